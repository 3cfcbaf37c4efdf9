//! JSON read without a tree.
//!
//! The hot routes borrow what they need from the body and write answers around stored bytes (`json_writer`), so that a
//! payload is never parsed and a string is copied only when it holds an escape. Always: what is read tells *absent*,
//! *null* and *of another type* apart, because the API answers them differently; every reader can read again what is
//! kept. Start at [`Text`], then [`Kept`].

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use baton_types::limits::JSON_LEVELS_MAX;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::{Error, Kind};
use crate::ignored::Ignored;

pub use crate::json_writer::{
    boolean, number, number_text, string, string_bytes, string_or_null, uuid, uuid_or_null,
};

/// A member that should be a string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Text<'a> {
    /// It is not there.
    #[default]
    Absent,
    /// It is `null`.
    Null,
    /// It is something else.
    Other,
    /// It is a string.
    Is(Cow<'a, str>),
}

impl<'a> Text<'a> {
    /// The string, `None` when absent; an error with `message` when it is anything else, `null` included.
    pub fn or_absent(self, message: &str) -> Result<Option<Cow<'a, str>>, Error> {
        match self {
            Self::Absent => Ok(None),
            Self::Is(text) => Ok(Some(text)),
            Self::Null | Self::Other => Err(Error::invalid(message)),
        }
    }

    /// The string, `None` when absent or `null`; an error with `message` when it is anything else.
    pub fn or_null(self, message: &str) -> Result<Option<Cow<'a, str>>, Error> {
        match self {
            Self::Null => Ok(None),
            other => other.or_absent(message),
        }
    }

    /// The string, or an error with `message`.
    pub fn required(self, message: &str) -> Result<Cow<'a, str>, Error> {
        self.or_absent(message)?.ok_or_else(|| Error::invalid(message))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any<'a>(std::marker::PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Any<'a> {
            type Value = Text<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text::Is(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text::Is(Cow::Owned(text.into())))
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Text::Null)
            }

            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(Text::Other)
            }

            fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
                Ok(Text::Other)
            }

            fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
                Ok(Text::Other)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
                Ok(Text::Other)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Text::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Text::Other)
            }
        }

        deserializer.deserialize_any(Any(std::marker::PhantomData))
    }
}

/// A member that should be a list of up to `MAX` elements. The length is checked while reading, so that a body cannot take
/// many times its size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum List<T, const MAX: usize = { baton_types::limits::BATCH_ITEMS_MAX }> {
    /// It is not there, or it is something else.
    #[default]
    Not,
    /// It is a list of more than the allowed number of elements.
    TooLong,
    /// It is a list.
    Is(Vec<T>),
}

impl<T, const MAX: usize> List<T, MAX> {
    /// The elements, or an error with `message` when it is no list.
    pub fn required(self, message: &str) -> Result<Vec<T>, Error> {
        match self {
            Self::Is(elements) => Ok(elements),
            Self::Not => Err(Error::invalid(message)),
            Self::TooLong => {
                let message = format!("a list holds at most {MAX} items; split the request");
                Err(Error::new(Kind::BatchTooLarge, message))
            }
        }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any<T, const MAX: usize>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Any<T, MAX> {
            type Value = List<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = seq.next_element()? {
                    if elements.len() == MAX {
                        while seq.next_element::<IgnoredAny>()?.is_some() {}
                        return Ok(List::TooLong);
                    }
                    elements.push(element);
                }
                Ok(List::Is(elements))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(List::Not)
            }

            fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
                Ok(List::Not)
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(List::Not)
            }

            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(List::Not)
            }

            fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
                Ok(List::Not)
            }

            fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
                Ok(List::Not)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
                Ok(List::Not)
            }
        }

        deserializer.deserialize_any(Any(std::marker::PhantomData))
    }
}

/// Reads a list of up to `MAX` elements, and refuses a longer one as soon as that is known: for `deserialize_with`.
pub fn up_to<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    match List::<T, MAX>::deserialize(deserializer)? {
        List::Is(elements) => Ok(elements),
        List::TooLong => Err(D::Error::custom(format_args!("a list here holds at most {MAX} elements"))),
        List::Not => Err(D::Error::custom("expected a list")),
    }
}

/// JSON that is kept as it came, and that any parser can read: not nested too deeply, without half a surrogate pair, and
/// without a number that no double can hold.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a>(&'a RawValue);

impl<'a> Kept<'a> {
    /// Its text.
    pub fn get(self) -> &'a str {
        self.0.get()
    }

    /// The same as a value of its own.
    pub fn to_owned(self) -> Box<RawValue> {
        self.0.to_owned()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Kept<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        check_kept(raw.get()).map_err(D::Error::custom)?;
        Ok(Self(raw))
    }
}

/// Says what is wrong with valid JSON that some parser could not read again.
pub fn check_kept(text: &str) -> Result<(), String> {
    check_levels(text)?;
    check_portable(text)
}

/// Says what is wrong with JSON that is nested too deeply.
fn check_levels(text: &str) -> Result<(), String> {
    // Nearly nothing has enough brackets, and they are counted faster than followed.
    if brackets(text.as_bytes()) <= JSON_LEVELS_MAX || levels(text.as_bytes()) <= JSON_LEVELS_MAX {
        return Ok(());
    }
    Err(format!("lists and objects may be nested {JSON_LEVELS_MAX} levels deep, these are deeper"))
}

/// Says what is wrong with valid JSON that strict parsers refuse: half of a surrogate pair, or a number beyond the range
/// of a double.
fn check_portable(text: &str) -> Result<(), String> {
    let bytes = text.as_bytes();
    if bytes.contains(&b'\\') && has_lone_surrogate(bytes) {
        return Err("a text holds half of a surrogate pair, such as \\ud800, which is no character".into());
    }
    // Few texts look as if they held such a number, so hardly any is split into its numbers.
    if (has_exponent(bytes) || has_long_number(bytes)) && has_number_beyond_double(text) {
        return Err("a number is beyond the range of a double, about 1.8e308".into());
    }
    Ok(())
}

/// Whether a `\u` escape names half of a pair without the other half.
fn has_lone_surrogate(text: &[u8]) -> bool {
    let (mut rest, mut high) = (text, false);
    loop {
        let unit = match rest {
            [b'\\', b'u', digits @ ..] => {
                let digits = digits.get(..4).and_then(|digits| std::str::from_utf8(digits).ok());
                digits.and_then(|digits| u16::from_str_radix(digits, 16).ok())
            }
            _ => None,
        };
        let is_low = unit.is_some_and(|unit| (0xdc00..0xe000).contains(&unit));
        if high != is_low {
            return true;
        }
        high = unit.is_some_and(|unit| (0xd800..0xdc00).contains(&unit));
        let used = match rest {
            [] => return false,
            [b'\\', b'u', ..] => 6,
            [b'\\', ..] => 2,
            _ => 1,
        };
        rest = rest.get(used..).unwrap_or_default();
    }
}

/// Whether a digit, an `e` and a digit or sign stand next to each other anywhere, as in an exponent.
fn has_exponent(text: &[u8]) -> bool {
    // Without a branch for each byte, so that many are compared at once.
    let is_exponent = |three: &[u8]| {
        three[0].is_ascii_digit()
            & (three[1] | 0x20 == b'e')
            & (three[2].is_ascii_digit() | (three[2] == b'+'))
    };
    let has = |part: &[u8]| part.windows(3).fold(false, |found, three| found | is_exponent(three));
    (0..text.len()).step_by(64).any(|at| has(&text[at..text.len().min(at + 66)]))
}

/// Whether so many digits stand next to each other that they may be beyond a double without an exponent.
fn has_long_number(text: &[u8]) -> bool {
    const DIGITS: usize = 300;
    // So long a run covers one of every so many bytes.
    text.iter().enumerate().skip(DIGITS - 1).step_by(DIGITS).any(|(at, byte)| {
        let digits =
            |run: &mut dyn Iterator<Item = &u8>| run.take_while(|byte| byte.is_ascii_digit()).count();
        byte.is_ascii_digit()
            && digits(&mut text[..at].iter().rev()) + digits(&mut text[at..].iter()) >= DIGITS
    })
}

/// Whether valid JSON holds a number that would be read as infinite.
fn has_number_beyond_double(text: &str) -> bool {
    let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    let (bytes, mut at, mut in_string) = (text.as_bytes(), 0, false);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 1,
            b'"' => in_string = !in_string,
            b'-' | b'0'..=b'9' if !in_string => {
                let end = at + bytes[at..].iter().take_while(|byte| is_part(byte)).count();
                if text[at..end].parse().is_ok_and(f64::is_infinite) {
                    return true;
                }
                at = end - 1;
            }
            _ => {}
        }
        at += 1;
    }
    false
}

/// How many brackets open, those in strings too.
fn brackets(text: &[u8]) -> usize {
    // The two differ in one bit. Few at a time, so that a byte can count them, which is sixteen times as fast.
    let count = |some: &[u8]| some.iter().map(|byte| u8::from(byte | 0x20 == b'{')).sum::<u8>();
    text.chunks(usize::from(u8::MAX)).map(|some| usize::from(count(some))).sum()
}

/// How deeply valid JSON is nested.
fn levels(text: &[u8]) -> usize {
    let (mut open, mut most, mut in_string, mut escaped) = (0usize, 0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                open += 1;
                most = most.max(open);
            }
            b']' | b'}' if !in_string => open = open.saturating_sub(1),
            _ => {}
        }
    }
    most
}

thread_local! {
    /// Where [`parse_noting`] collects the names that [`lenient`] types do not know; `None` outside of it.
    static UNKNOWN: RefCell<Option<Ignored>> = const { RefCell::new(None) };
}

/// Notes the name of a member that a [`lenient`] type does not know, if its caller wants to hear of them.
pub(crate) fn note_unknown(name: &str) {
    UNKNOWN.with_borrow_mut(|unknown| unknown.iter_mut().for_each(|unknown| unknown.add(name)));
}

/// Reads an object whose members may be absent or of any type: `lenient! { Item<'a> { "queue" => queue: Text<'a> } }`.
/// A value that is no object reads as one without members, unknown members are skipped, and of a member given
/// twice the last one counts.
macro_rules! lenient {
    ($(#[$doc:meta])* $visibility:vis struct $name:ident<'a> { $($(#[$field_doc:meta])* $key:literal => $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        $visibility struct $name<'a> {
            $($(#[$field_doc])* pub $field: $type,)*
            members: std::marker::PhantomData<&'a ()>,
        }

        const _: () = {
            use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

            #[allow(non_camel_case_types)]
            enum Key { $($field,)* Other }

            impl<'de> Deserialize<'de> for Key {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    struct Name;
                    impl Visitor<'_> for Name {
                        type Value = Key;
                        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                            f.write_str("a member name")
                        }
                        fn visit_str<E>(self, name: &str) -> Result<Key, E> {
                            Ok(match name { $($key => Key::$field,)* _ => { $crate::json::note_unknown(name); Key::Other } })
                        }
                    }
                    deserializer.deserialize_identifier(Name)
                }
            }

            impl<'de: 'a, 'a> Deserialize<'de> for $name<'a> {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    struct Any<'a>(std::marker::PhantomData<&'a ()>);
                    impl<'de: 'a, 'a> Visitor<'de> for Any<'a> {
                        type Value = $name<'a>;
                        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                            f.write_str("anything")
                        }
                        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                            let mut object = $name::default();
                            while let Some(key) = map.next_key::<Key>()? {
                                match key {
                                    $(Key::$field => object.$field = map.next_value()?,)*
                                    Key::Other => { map.next_value::<IgnoredAny>()?; }
                                }
                            }
                            Ok(object)
                        }
                        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                            while seq.next_element::<IgnoredAny>()?.is_some() {}
                            Ok($name::default())
                        }
                        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> { Ok($name::default()) }
                        fn visit_unit<E>(self) -> Result<Self::Value, E> { Ok($name::default()) }
                        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> { Ok($name::default()) }
                        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> { Ok($name::default()) }
                        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> { Ok($name::default()) }
                        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> { Ok($name::default()) }
                    }
                    deserializer.deserialize_any(Any(std::marker::PhantomData))
                }
            }
        };
    };
}
pub(crate) use lenient;

/// Reads a body that must not be empty.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Error> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(Error::new(Kind::BadBody, "Empty request body"));
    }
    let refused = |why: &dyn fmt::Display| Error::new(Kind::BadBody, format!("Invalid JSON: {why}"));
    // Looked at once as a whole: that takes a fraction of the time for each string alone.
    let text = std::str::from_utf8(body).map_err(|e| refused(&e))?;
    serde_json::from_str(text).map_err(|e| refused(&problem(&e)))
}

/// The same, and the names of members that its [`lenient`] types do not know. A known name costs nothing.
pub fn parse_noting<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<(T, Ignored), Error> {
    UNKNOWN.set(Some(Ignored::default()));
    let parsed = parse(body);
    let unknown = UNKNOWN.take();
    Ok((parsed?, unknown.unwrap_or_default()))
}

/// What is wrong with JSON, without the names that its types have in this program.
pub fn problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let mut told: Vec<&str> = Vec::new();
    let mut words = text.split(' ').peekable();
    while let Some(word) = words.next() {
        let is_type = words.peek().is_some_and(|next| next.starts_with(|c: char| c.is_ascii_uppercase()));
        if !is_type || !matches!(word, "struct" | "enum") {
            told.push(word);
            continue;
        }
        words.next();
        let is_tagged = told.last() == Some(&"tagged");
        if is_tagged {
            told.truncate(told.len() - 2);
        }
        told.push(if word == "struct" || is_tagged { "an object" } else { "one of the known words" });
    }
    told.join(" ")
}

/// Reads a body that may be left out, or be an empty object or list.
pub fn parse_or_default<'a, T: Deserialize<'a> + Default>(body: &'a [u8]) -> Result<T, Error> {
    if body.iter().all(u8::is_ascii_whitespace) { Ok(T::default()) } else { parse(body) }
}

#[cfg(test)]
mod tests {
    use super::*;

    lenient! {
        struct Pair<'a> {
            "a" => a: Text<'a>,
            "b" => b: Text<'a>,
        }
    }

    #[test]
    fn a_problem_names_no_type_of_this_program() {
        #[derive(Debug, serde::Deserialize)]
        struct RawThing {
            #[serde(rename = "count")]
            _count: u8,
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(tag = "kind")]
        enum RawKind {
            A,
        }
        let thing = |text: &str| problem(&serde_json::from_str::<RawThing>(text).unwrap_err());
        let kind = |text: &str| problem(&serde_json::from_str::<RawKind>(text).unwrap_err());
        assert_eq!(thing("7"), "invalid type: integer `7`, expected an object at line 1 column 1");
        assert_eq!(thing("{}"), "missing field `count` at line 1 column 2");
        assert_eq!(
            thing("{\"count\": \"x\"}"),
            "invalid type: string \"x\", expected u8 at line 1 column 13"
        );
        assert_eq!(kind("7"), "invalid type: integer `7`, expected an object at line 1 column 1");
    }

    #[test]
    fn absent_null_and_other_types_are_told_apart() {
        let read = |body: &'static str| {
            let pair: Pair<'_> = parse(body.as_bytes()).unwrap();
            (pair.a, pair.b)
        };
        assert_eq!(read(r#"{"a":"x"}"#), (Text::Is("x".into()), Text::Absent));
        assert_eq!(read(r#"{"a":null,"b":[1,{"c":2}],"z":{}}"#), (Text::Null, Text::Other));
        assert_eq!(read(r#"{"a":"\u0041\n","b":1.5}"#), (Text::Is("A\n".into()), Text::Other));
        assert_eq!(read("[1,2]"), (Text::Absent, Text::Absent));
        assert_eq!(read("7"), (Text::Absent, Text::Absent));
    }

    #[test]
    fn a_string_without_escapes_is_borrowed() {
        let pair: Pair<'_> = parse(br#"{"a":"x y"}"#).unwrap();
        assert!(matches!(pair.a, Text::Is(Cow::Borrowed(_))));
    }

    #[test]
    fn what_is_kept_can_be_read_by_strict_parsers() {
        let long = |digits: usize| format!("[{}]", "9".repeat(digits));
        let refused = [
            r#"{"a":"\ud800"}"#.into(),
            r#""\udc00""#.into(),
            r#""\ud83d\u0041""#.into(),
            r#""x\uD83Dx""#.into(),
            r#""\ude00\ud83d""#.into(),
            "[1,1e999]".into(),
            "-1E+400".into(),
            "123456.7e305".into(),
            long(310),
            format!("[\"{}\",1e400]", "x".repeat(100)),
        ];
        for text in &refused {
            assert!(serde_json::from_str::<Kept<'_>>(text).is_err(), "{text}");
            assert!(serde_json::from_str::<serde_json::Value>(text).is_err(), "{text}");
        }
        let kept = [
            r#""\ud83d\ude00 \\ud800 \\\\""#.into(),
            r#"{"id":"3e4f-1e999-99e999"}"#.into(),
            "[1e308,-1.7e+308,1e-999,0e999]".into(),
            long(308),
            long(299),
            format!("\"{}\"", "7".repeat(2000)),
        ];
        for text in &kept {
            assert!(serde_json::from_str::<Kept<'_>>(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_is_kept_is_nested_up_to_a_bound() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let objects = |levels: usize| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
        for nested in [nested, objects] {
            let fits = nested(JSON_LEVELS_MAX);
            assert_eq!(serde_json::from_str::<Kept<'_>>(&fits).unwrap().get(), fits);
            let refused = serde_json::from_str::<Kept<'_>>(&nested(JSON_LEVELS_MAX + 1)).unwrap_err();
            assert!(refused.to_string().contains("100 levels"), "{refused}");
        }
        let many = format!("[{}0]", r#"[{}],"]][[{{\\","#.repeat(1000));
        assert_eq!((brackets(many.as_bytes()), levels(many.as_bytes())), (6001, 3));
        assert!(serde_json::from_str::<Kept<'_>>(&many).is_ok());
        let hidden = format!(r#"["\"{}",{}]"#, "]".repeat(1000), nested(JSON_LEVELS_MAX));
        assert!(serde_json::from_str::<Kept<'_>>(&hidden).is_err());
    }

    #[test]
    fn an_empty_body_and_a_broken_one_are_named() {
        assert_eq!(parse::<Pair<'_>>(b"  ").unwrap_err().to_string(), "Empty request body");
        assert!(parse::<Pair<'_>>(b"{").unwrap_err().to_string().starts_with("Invalid JSON: "));
        assert!(parse::<Pair<'_>>(b"{} x").unwrap_err().to_string().starts_with("Invalid JSON: "));
        let not_utf8 = parse::<Pair<'_>>(b"{\"ignored\":\"\xff\"}").unwrap_err().to_string();
        assert!(not_utf8.starts_with("Invalid JSON: ") && not_utf8.contains("utf-8"), "{not_utf8}");
    }
}
