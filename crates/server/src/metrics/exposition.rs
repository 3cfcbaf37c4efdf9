//! The text format of Prometheus.

use std::fmt::{Display, Write};

use baton_store::Distribution;

use super::families::{self, Type};

/// A page being written. Samples of one family follow each other.
#[derive(Default)]
pub struct Exposition {
    page: String,
    family: &'static str,
}

impl Exposition {
    /// A sample without labels.
    pub fn one(&mut self, name: &'static str, value: impl Display) {
        self.labelled(name, &[], value);
    }

    /// A sample with labels.
    pub fn labelled(&mut self, name: &'static str, labels: &[(&str, &str)], value: impl Display) {
        self.enter(name);
        self.sample(name, labels, None, &value);
    }

    /// A distribution; its whole numbers are so many to a `unit` of the family.
    pub fn histogram(
        &mut self,
        name: &'static str,
        labels: &[(&str, &str)],
        distribution: &Distribution,
        unit: f64,
    ) {
        self.enter(name);
        let mut below = 0;
        for (bound, count) in distribution.bounds.iter().zip(distribution.counts) {
            below += count;
            self.sample(&format!("{name}_bucket"), labels, Some(&(*bound as f64 / unit).to_string()), &below);
        }
        self.sample(&format!("{name}_bucket"), labels, Some("+Inf"), &distribution.count());
        self.sample(&format!("{name}_sum"), labels, None, &(distribution.sum as f64 / unit));
        self.sample(&format!("{name}_count"), labels, None, &distribution.count());
    }

    /// The page.
    pub fn finish(self) -> String {
        self.page
    }

    /// Tells what the family is before its first sample.
    fn enter(&mut self, name: &'static str) {
        if self.family == name {
            return;
        }
        self.family = name;
        let Some(family) = families::find(name) else {
            debug_assert!(false, "{name} is not in the table of families");
            return;
        };
        let kind = match family.kind {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(self.page, "# HELP {name} {}\n# TYPE {name} {kind}", family.help);
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], bound: Option<&str>, value: &dyn Display) {
        self.page.push_str(name);
        let all = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        for (index, (label, text)) in all.enumerate() {
            let _ = write!(self.page, "{}{label}=\"", if index == 0 { '{' } else { ',' });
            self.escape(text);
            self.page.push('"');
        }
        if !labels.is_empty() || bound.is_some() {
            self.page.push('}');
        }
        let _ = writeln!(self.page, " {value}");
    }

    fn escape(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '\\' => self.page.push_str("\\\\"),
                '"' => self.page.push_str("\\\""),
                '\n' => self.page.push_str("\\n"),
                other => self.page.push(other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use baton_store::{DURATION_BOUNDS, Histogram};

    use super::*;

    #[test]
    fn a_family_is_introduced_once_and_labels_are_escaped() {
        let mut page = Exposition::default();
        page.labelled("queen_dlq_depth_by_queue", &[("queue", "a\"\\\n")], 1);
        page.labelled("queen_dlq_depth_by_queue", &[("queue", "b")], 2);
        let text = page.finish();
        assert_eq!(text.matches("# TYPE queen_dlq_depth_by_queue gauge\n").count(), 1);
        assert!(text.contains("queen_dlq_depth_by_queue{queue=\"a\\\"\\\\\\n\"} 1\n"), "{text}");
    }

    #[test]
    fn the_buckets_of_a_histogram_add_up() {
        let histogram = Histogram::new(DURATION_BOUNDS);
        [10, 60, 99_000_000].into_iter().for_each(|micros| histogram.observe(micros));
        let mut page = Exposition::default();
        page.histogram("baton_store_commit_seconds", &[], &histogram.snapshot(), 1e6);
        let text = page.finish();
        assert!(text.contains("baton_store_commit_seconds_bucket{le=\"0.00005\"} 1\n"), "{text}");
        assert!(text.contains("baton_store_commit_seconds_bucket{le=\"10\"} 2\n"), "{text}");
        assert!(text.contains("baton_store_commit_seconds_bucket{le=\"+Inf\"} 3\n"), "{text}");
        assert!(text.contains("baton_store_commit_seconds_count 3\n"), "{text}");
    }
}
