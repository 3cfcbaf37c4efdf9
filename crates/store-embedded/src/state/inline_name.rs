//! The name of a partition in memory.
//!
//! Most names are short, and there may be millions of them. A short name is stored inline, without an allocation of its
//! own: comparing it costs no further cache miss.

/// A name of any length.
pub enum InlineName {
    Short { length: u8, bytes: [u8; SHORT_MAX] },
    Long(Box<str>),
}

/// The bytes that fit beside a length into the size of a long name, rounded up to whole words.
const SHORT_MAX: usize = 22;

const _: () = assert!(size_of::<InlineName>() == 24);

impl InlineName {
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; SHORT_MAX];
        match (u8::try_from(name.len()), bytes.get_mut(..name.len())) {
            (Ok(length), Some(short)) => {
                short.copy_from_slice(name.as_bytes());
                Self::Short { length, bytes }
            }
            _ => Self::Long(name.into()),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { length, bytes } => bytes.get(..usize::from(*length)).unwrap_or_default(),
            Self::Long(name) => name.as_bytes(),
        }
    }

    pub fn as_str(&self) -> &str {
        // The bytes are those of a `str`.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_lengths_are_stored_unchanged() {
        for length in 0..60 {
            let name: String = "kunde-ü-42-".chars().cycle().take(length).collect();
            assert_eq!(InlineName::new(&name).as_str(), name);
            assert_eq!(InlineName::new(&name).as_bytes(), name.as_bytes());
        }
    }
}
