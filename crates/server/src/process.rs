//! What this process uses, as the operating system tells it. Where it tells nothing, all numbers are zero.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Ticks of the processor time that `/proc` counts in a second; Linux has told the same number for ever.
const TICKS_PER_SECOND: u64 = 100;
const PAGE_BYTES: u64 = 4096;

/// What a process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time in its own code, in microseconds.
    pub user_micros: u64,
    /// Processor time in the kernel, in microseconds.
    pub system_micros: u64,
    /// Memory in use, in bytes.
    pub resident_bytes: u64,
    /// Address space, in bytes.
    pub virtual_bytes: u64,
}

impl Usage {
    /// What this process uses now.
    pub fn now() -> Self {
        std::fs::read_to_string("/proc/self/stat")
            .ok()
            .and_then(|text| Self::parse(&text))
            .unwrap_or_default()
    }

    /// Reads the line of `/proc/…/stat`. The name in parentheses may hold anything, so counting begins after it.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<_> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
        let micros = |ticks: u64| ticks * (1_000_000 / TICKS_PER_SECOND);
        Some(Self {
            user_micros: micros(number(11)?),
            system_micros: micros(number(12)?),
            virtual_bytes: number(20)?,
            resident_bytes: number(21)? * PAGE_BYTES,
        })
    }

    /// The same by name, as it is kept with each minute.
    pub fn gauges(&self) -> BTreeMap<Arc<str>, f64> {
        let gauge = |name: &str, value: u64| (Arc::from(name), value as f64);
        [
            gauge("cpuUserMicros", self.user_micros),
            gauge("cpuSystemMicros", self.system_micros),
            gauge("residentBytes", self.resident_bytes),
        ]
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_confuse() {
        let text = "1 (a) b (c)) S 0 1 1 0 -1 0 1 0 0 0 250 50 0 0 20 0 4 0 1000 8192 3 0";
        let usage = Usage::parse(text).unwrap();
        assert_eq!((usage.user_micros, usage.system_micros), (2_500_000, 500_000));
        assert_eq!((usage.virtual_bytes, usage.resident_bytes), (8192, 12_288));
        assert_eq!(Usage::parse("nonsense"), None);
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(Usage::now().resident_bytes > 100_000);
    }
}
