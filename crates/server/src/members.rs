//! The members of a JSON object, looked at one by one.
//!
//! For the operations on records, locks and timers: they are small and of many kinds, and a value must be kept as it
//! came. Always: *absent* and *null* are told apart. Start at [`Members`].

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Members of one object.
const MEMBERS_MAX: usize = 64;

/// The members of an object; of one given twice the last counts.
#[derive(Debug)]
pub struct Members<'a> {
    named: BTreeMap<String, &'a RawValue>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = BTreeMap<String, &'de RawValue>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut named = BTreeMap::new();
                while let Some((name, value)) = map.next_entry()? {
                    named.insert(name, value);
                    if named.len() > MEMBERS_MAX {
                        return Err(A::Error::custom(format_args!(
                            "an object here has at most {MEMBERS_MAX} members"
                        )));
                    }
                }
                Ok(named)
            }
        }

        deserializer.deserialize_map(Object).map(|named| Self { named })
    }
}

impl<'a> Members<'a> {
    /// The members of the object that `text` is; `None` when it is none.
    pub fn of(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The names that are there.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(String::as_str)
    }

    /// The text of a member.
    pub fn raw(&self, name: &str) -> Option<&'a str> {
        self.named.get(name).map(|raw| raw.get())
    }

    /// A member of some type; `None` when it is absent, an error that says it must be `what` when it is something
    /// else.
    pub fn get<T: Deserialize<'a>>(&self, name: &str, what: &str) -> Result<Option<T>, String> {
        let wrong = |_| format!("{name} must be {what}");
        self.raw(name).map(serde_json::from_str).transpose().map_err(wrong)
    }

    /// The same for one that must be there.
    pub fn need<T: Deserialize<'a>>(&self, name: &str, what: &str) -> Result<T, String> {
        self.get(name, what)?.ok_or_else(|| format!("{name} is missing; it must be {what}"))
    }

    /// A member that is `true`, `false` or absent, which is false.
    pub fn flag(&self, name: &str) -> Result<bool, String> {
        Ok(self.get(name, "true or false")?.unwrap_or(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_null_and_wrong_are_told_apart() {
        let members = Members::of(r#"{"a": null, "b": 1.50, "c": "x"}"#).unwrap();
        assert_eq!(members.get::<u64>("z", "a number"), Ok(None));
        assert_eq!(members.get::<u64>("a", "a number"), Err("a must be a number".into()));
        assert_eq!(members.raw("b"), Some("1.50"));
        assert_eq!(members.need::<String>("c", "a string"), Ok("x".into()));
        assert!(members.need::<String>("d", "a string").is_err());
        assert!(Members::of("[1]").is_none());
    }
}
