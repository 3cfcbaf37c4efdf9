//! A partition's name in memory.
//!
//! Names are mostly short, and there may be millions of them. A short one stands where it is needed: finding it does
//! not have to wait for another place in memory, and it takes none.

/// A name of any length.
pub enum Name {
    Short { length: u8, bytes: [u8; SHORT_MAX] },
    Long(Box<str>),
}

/// As much as fits beside a length in what a long name takes, rounded up to whole words.
const SHORT_MAX: usize = 22;

const _: () = assert!(size_of::<Name>() == 24);

impl Name {
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
        // It came from one.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_lengths_are_what_they_were() {
        for length in 0..60 {
            let name: String = "kunde-ü-42-".chars().cycle().take(length).collect();
            assert_eq!(Name::new(&name).as_str(), name);
            assert_eq!(Name::new(&name).as_bytes(), name.as_bytes());
        }
    }
}
