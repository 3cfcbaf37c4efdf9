//! The numbers that must not repeat, also over a restart.

use baton_store::Error;
use baton_types::Timestamp;
use bytes::{BufMut, Bytes};

use super::{corrupt_row, read_u64};

/// The first token ranges have this length.
const LONG_RANGE: u64 = 1 << 40;
/// Later ones are short, so that tokens stay exact as doubles however often a directory is opened.
const SHORT_RANGE: u64 = 1 << 20;
/// How many ranges are long.
const LONG_RANGES: u64 = 1 << 12;

/// Numbers that must not repeat, also over a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The next queue, group or partition id.
    pub next_id: u64,
    /// The version of the next record write.
    pub next_version: u64,
    /// How often the directory was opened, or ran out of tokens since; the high part of a token.
    pub opened: u64,
    /// The store's time in the last commit.
    pub now: Timestamp,
    /// The number of the last commit.
    pub commits: u64,
    /// The last commit that was synced before it was applied to the index.
    pub synced: u64,
}

impl Counters {
    /// Begins a new token range when the directory is opened: its tokens are above all before.
    pub fn begin_token_range(&mut self) {
        // A crash may have lost the row that says a short range was used up.
        self.opened += if self.opened < LONG_RANGES { 1 } else { 2 };
    }

    /// The token that comes after `drawn` others of the present range.
    pub fn next_token(&mut self, drawn: &mut u64) -> u64 {
        let long = self.opened.min(LONG_RANGES);
        let short = self.opened - long;
        *drawn += 1;
        let token = long * LONG_RANGE + short * SHORT_RANGE + *drawn;
        if *drawn + 1 >= (if self.opened < LONG_RANGES { LONG_RANGE } else { SHORT_RANGE }) {
            self.opened += 1;
            *drawn = 0;
        }
        token
    }

    pub fn encode(&self) -> Bytes {
        let mut row = Vec::with_capacity(48);
        row.put_u64_le(self.next_id);
        row.put_u64_le(self.next_version);
        row.put_u64_le(self.opened);
        row.put_i64_le(self.now.micros());
        row.put_u64_le(self.commits);
        row.put_u64_le(self.synced);
        row.into()
    }

    pub fn decode(mut row: &[u8]) -> Result<Self, Error> {
        let mut field = || read_u64(&mut row).ok_or_else(|| corrupt_row("counters"));
        let (next_id, next_version, opened) = (field()?, field()?, field()?);
        let (now, commits) = (Timestamp::from_micros(field()?.cast_signed()), field()?);
        Ok(Self { next_id, next_version, opened, now, commits, synced: field()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_rise_and_stay_exact_as_doubles_however_often_a_directory_is_opened() {
        let mut counters = Counters::default();
        let mut last = 0;
        for opened in [0, 100, LONG_RANGES - 2, LONG_RANGES + 100, u64::from(u32::MAX) - 5_000] {
            counters.opened = opened;
            for _ in 0..3 {
                counters.begin_token_range();
                for mut drawn in [0, SHORT_RANGE - 3] {
                    for _ in 0..3 {
                        let token = counters.next_token(&mut drawn);
                        assert!(token > last && token < 1 << 53, "{token} after {last} at {opened}");
                        last = token;
                    }
                }
            }
        }
    }

    #[test]
    fn counters_are_read_back_as_they_were_written() {
        let counters = Counters {
            next_id: 1,
            next_version: 2,
            opened: 3,
            now: Timestamp::from_micros(4),
            commits: 5,
            synced: 6,
        };
        assert_eq!(Counters::decode(&counters.encode()).unwrap(), counters);
    }
}
