//! Encoding of numbers, times and texts in records. A small number takes a byte.

use baton_store::Error;
use baton_types::Timestamp;

/// Writes values one after the other.
#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// A variable-length integer: seven bits at a time, the lowest first.
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(u8::try_from(number & 0x7f).unwrap_or(0) | 0x80);
            number >>= 7;
        }
        self.0.push(u8::try_from(number).unwrap_or(0));
    }

    /// Eight bytes, for values such as hashes that are rarely small.
    pub fn fixed(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// A time as its distance from another, which is shorter.
    pub fn moment(&mut self, at: Timestamp, since: Timestamp) {
        let distance = at.micros().wrapping_sub(since.micros());
        self.number((distance.wrapping_shl(1) ^ (distance >> 63)).cast_unsigned());
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// Reads values that [`Writer`] wrote.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

fn cut_short() -> Error {
    Error::Corrupt("a record of a job queue is cut short".into())
}

impl<'a> Reader<'a> {
    pub fn byte(&mut self) -> Result<u8, Error> {
        let (byte, rest) = self.0.split_first().ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(*byte)
    }

    pub fn number(&mut self) -> Result<u64, Error> {
        let (mut number, mut shift) = (0u64, 0);
        loop {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(number);
            }
            shift += 7;
            if shift > 63 {
                return Err(cut_short());
            }
        }
    }

    pub fn fixed(&mut self) -> Result<u64, Error> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*bytes))
    }

    pub fn small(&mut self) -> Result<u32, Error> {
        u32::try_from(self.number()?).map_err(|_| cut_short())
    }

    pub fn moment(&mut self, since: Timestamp) -> Result<Timestamp, Error> {
        let folded = self.number()?;
        let distance = (folded >> 1).cast_signed() ^ -((folded & 1).cast_signed());
        Ok(Timestamp::from_micros(since.micros().wrapping_add(distance)))
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let length = usize::try_from(self.number()?).map_err(|_| cut_short())?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub fn text(&mut self) -> Result<&'a str, Error> {
        std::str::from_utf8(self.bytes()?).map_err(|_| cut_short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let base = Timestamp::from_micros(1_794_767_647_638_487);
        let mut writer = Writer::default();
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX];
        let moments = [base, Timestamp::MIN, Timestamp::MAX, base.before(std::time::Duration::from_secs(5))];
        numbers.iter().for_each(|number| writer.number(*number));
        moments.iter().for_each(|moment| writer.moment(*moment, base));
        writer.bytes("text".as_bytes());
        let mut reader = Reader(&writer.0);
        for number in numbers {
            assert_eq!(reader.number().unwrap(), number);
        }
        for moment in moments {
            assert_eq!(reader.moment(base).unwrap(), moment);
        }
        assert_eq!(reader.text().unwrap(), "text");
        assert!(reader.byte().is_err());
    }
}
