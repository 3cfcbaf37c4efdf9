//! Chunked bodies, decoded as they arrive.
//!
//! Always: lines end in CR LF and nothing else, a size is hexadecimal digits and nothing else, so that no two
//! readers can disagree about where a body ends; extensions and trailers are skipped, and bounded. No socket here.
//! Start at [`Chunked::decode`].

/// Bytes of all extensions and trailers of one body.
const SKIPPED_BYTES_MAX: usize = 16 << 10;

/// The body is not chunked as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The size of a chunk, and whether it has a digit yet.
    Size(u64, bool),
    /// White space after the size. Only an extension or the end of the line may follow.
    Blank(u64),
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    /// At the start of a trailer, or of the empty line that ends the body.
    Trailers,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

/// Where in a chunked body we are.
#[derive(Debug)]
pub struct Chunked {
    state: State,
    skipped: usize,
}

impl Default for Chunked {
    fn default() -> Self {
        Self { state: State::Size(0, false), skipped: 0 }
    }
}

impl Chunked {
    /// Whether the body has ended.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Decodes `input`, appends what is in it to `out`, and says how many bytes of it belong to the body.
    pub fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Malformed> {
        let mut rest = input;
        while let Some((&byte, after)) = rest.split_first() {
            match self.state {
                State::Done => break,
                State::Data(left) => {
                    let count = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                    let (data, after) = rest.split_at(count);
                    out.extend_from_slice(data);
                    let left = left - count as u64;
                    self.state = if left == 0 { State::DataCr } else { State::Data(left) };
                    rest = after;
                }
                state => {
                    self.state = self.step(state, byte)?;
                    rest = after;
                }
            }
        }
        Ok(input.len() - rest.len())
    }

    /// Takes one byte that is not data.
    fn step(&mut self, state: State, byte: u8) -> Result<State, Malformed> {
        Ok(match (state, byte) {
            (State::Size(size, true) | State::Blank(size) | State::Extension(size), b'\r') => {
                State::SizeLf(size)
            }
            (State::Size(size, true) | State::Blank(size), b' ' | b'\t') => self.skip(State::Blank(size))?,
            (State::Size(size, true) | State::Blank(size), b';') => self.skip(State::Extension(size))?,
            (State::Size(size, _), digit) => {
                let digit = char::from(digit).to_digit(16).ok_or(Malformed)?;
                if size >> 60 != 0 {
                    return Err(Malformed);
                }
                State::Size((size << 4) | u64::from(digit), true)
            }
            (State::Extension(size), other) if other != b'\n' => self.skip(State::Extension(size))?,
            (State::SizeLf(0), b'\n') => State::Trailers,
            (State::SizeLf(size), b'\n') => State::Data(size),
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Size(0, false),
            (State::Trailers, b'\r') => State::EndLf,
            (State::Trailer, b'\r') => State::TrailerLf,
            (State::Trailers | State::Trailer, other) if other != b'\n' => self.skip(State::Trailer)?,
            (State::TrailerLf, b'\n') => State::Trailers,
            (State::EndLf, b'\n') => State::Done,
            _ => return Err(Malformed),
        })
    }

    fn skip(&mut self, next: State) -> Result<State, Malformed> {
        self.skipped += 1;
        if self.skipped > SKIPPED_BYTES_MAX { Err(Malformed) } else { Ok(next) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The body, how much of the input it took, and whether it ended.
    fn decode(pieces: &[&[u8]]) -> Result<(Vec<u8>, usize, bool), Malformed> {
        let (mut chunked, mut out, mut used) = (Chunked::default(), Vec::new(), 0);
        for piece in pieces {
            used += chunked.decode(piece, &mut out)?;
        }
        Ok((out, used, chunked.is_done()))
    }

    #[test]
    fn a_body_ends_where_it_says() {
        let input = b"3\r\nabc\r\n0A;x=\"y\"\r\n0123456789\r\n0\r\nT: v\r\n\r\nGET /";
        assert_eq!(decode(&[input]), Ok((b"abc0123456789".to_vec(), input.len() - 5, true)));
        assert_eq!(decode(&[b"5\r\nab"]), Ok((b"ab".to_vec(), 5, false)));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let wrong: &[&[u8]] = &[
            b"\r\n",
            b"zz\r\n",
            b"-1\r\n",
            b"+1\r\n",
            b"0x1\r\na",
            b" 1\r\n",
            b"1\na\n",
            b"1\r\nab",
            b"1\r\na\n",
            b"1\rX",
            b"1;a\nb\r\n",
            b"c 5\r\n",
            b"1 x\r\na",
            b"0\r\n\n",
            b"0\r\nT: v\n",
            b"0\r\n\rX",
            b"ffffffffffffffffffff\r\n",
            b"10000000000000000\r\n",
        ];
        for input in wrong {
            assert_eq!(decode(&[input]), Err(Malformed), "{:?}", String::from_utf8_lossy(input));
        }
        let long = [b"1;".to_vec(), vec![b'x'; SKIPPED_BYTES_MAX]].concat();
        assert_eq!(decode(&[&long]), Err(Malformed));
    }

    proptest! {
        #[test]
        fn pieces_decode_as_the_whole_does(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let mut input = Vec::new();
            for chunk in &chunks {
                input.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                input.extend_from_slice(chunk);
                input.extend_from_slice(b"\r\n");
            }
            input.extend_from_slice(b"0\r\n\r\n");
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(input.len())).collect();
            cuts.extend([0, input.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|pair| &input[pair[0]..pair[1]]).collect();
            prop_assert_eq!(decode(&pieces), Ok((chunks.concat(), input.len(), true)));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(input in "[0-9a-f;\\r\\n xT:]{0,60}") {
            let whole = decode(&[input.as_bytes()]);
            let bytes: Vec<_> = input.as_bytes().chunks(1).collect();
            prop_assert_eq!(decode(&bytes), whole);
        }
    }
}
