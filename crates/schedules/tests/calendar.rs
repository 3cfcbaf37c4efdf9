//! Calendars against tables of clock changes, and against a scan of every minute.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use baton_schedules::{
    Calendar, Cron, DstGap, DstOverlap, FIRES_MAX, GRACE, Interval, Misfire, Recurrence, Zone, catch_up,
    jitter,
};
use baton_types::Timestamp;
use jiff::tz::{AmbiguousOffset, TimeZoneDatabase};
use proptest::prelude::*;

use DstGap::{Shift, Skip};
use DstOverlap::{Both, First, Last};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn cron(text: &str, zone: &str, gap: DstGap, overlap: DstOverlap) -> Calendar {
    let rule = Recurrence::Cron { cron: text.parse().unwrap(), zone: zone.parse().unwrap(), gap, overlap };
    Calendar::new(rule, None, None).unwrap()
}

fn utc(text: &str) -> Calendar {
    cron(text, "UTC", Shift, First)
}

fn every(seconds: u64, anchor: &str) -> Calendar {
    let interval = Interval::new(Duration::from_secs(seconds), at(anchor)).unwrap();
    Calendar::new(Recurrence::Interval(interval), Some(at(anchor)), None).unwrap()
}

fn fires(calendar: &Calendar, from: &str, to: &str) -> Vec<String> {
    let from = at(from).before(Duration::from_micros(1));
    let fires: Vec<_> = calendar.upcoming(from).take_while(|fire| *fire <= at(to)).collect();
    let earlier = |fire: &Timestamp| calendar.last(fire.before(Duration::from_micros(1)));
    let mut back: Vec<_> =
        std::iter::successors(calendar.last(at(to)), earlier).take_while(|fire| *fire > from).collect();
    back.reverse();
    assert_eq!(fires, back, "the way back must pass the same moments");
    fires.into_iter().map(|fire| fire.to_iso_seconds()).collect()
}

#[track_caller]
fn check(calendar: &Calendar, from: &str, to: &str, expected: &[&str]) {
    assert_eq!(fires(calendar, from, to), expected);
}

#[test]
fn expressions_name_the_times_that_crontabs_name() {
    let table: &[(&str, &str, &[&str])] = &[
        (
            "*/20 9 * * *",
            "2026-01-01T10:00:00Z",
            &["2026-01-01T09:00:00Z", "2026-01-01T09:20:00Z", "2026-01-01T09:40:00Z"],
        ),
        (
            "5/20 9 * * *",
            "2026-01-01T10:00:00Z",
            &["2026-01-01T09:05:00Z", "2026-01-01T09:25:00Z", "2026-01-01T09:45:00Z"],
        ),
        ("*/30 0 9 * * *", "2026-01-01T10:00:00Z", &["2026-01-01T09:00:00Z", "2026-01-01T09:00:30Z"]),
        (
            "0 12 13 * FRI",
            "2026-01-17T00:00:00Z",
            &["2026-01-02T12:00:00Z", "2026-01-09T12:00:00Z", "2026-01-13T12:00:00Z", "2026-01-16T12:00:00Z"],
        ),
        (
            "0 12 */10 * 0-4",
            "2026-02-01T00:00:00Z",
            &["2026-01-01T12:00:00Z", "2026-01-11T12:00:00Z", "2026-01-21T12:00:00Z"],
        ),
        ("0 6 * * sat-sun", "2026-01-08T00:00:00Z", &["2026-01-03T06:00:00Z", "2026-01-04T06:00:00Z"]),
        ("0 6 * * 7", "2026-01-08T00:00:00Z", &["2026-01-04T06:00:00Z"]),
        ("15 10 31 Feb,apr,Mar *", "2027-01-01T00:00:00Z", &["2026-03-31T10:15:00Z"]),
        ("@monthly", "2026-02-20T00:00:00Z", &["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"]),
        ("0 0 29 2 *", "2033-01-01T00:00:00Z", &["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]),
    ];
    for (text, to, expected) in table {
        assert_eq!(&fires(&utc(text), "2026-01-01T00:00:00Z", to), expected, "{text}");
    }
}

#[test]
fn a_wrong_expression_is_refused_with_what_would_be_right() {
    let table = [
        ("", "has 5 fields"),
        ("* * * *", "this one has 4"),
        ("* * * * * * *", "this one has 7"),
        ("60 * * * *", "the minute is a number from 0 to 59"),
        ("* 24 * * *", "the hour is a number from 0 to 23"),
        ("* * 0 * *", "the day of the month is a number from 1 to 31"),
        ("* * L * *", "\"L\" is not"),
        ("* * 15W * *", "\"15W\" is not"),
        ("* * * * 5#2", "\"5#2\" is not"),
        ("* * ? * *", "\"?\" is not"),
        ("* * * juno *", "or a name such as feb"),
        ("*/90 * * * *", "for another rhythm use an interval"),
        ("*/0 * * * *", "from 1 to 59"),
        ("50-10 * * * *", "runs backwards; write it as two"),
        ("1,,2 * * * *", "\"\" is not"),
        ("+5 * * * *", "\"+5\" is not"),
        ("0 0 30 2 *", "never fires"),
        ("@reboot", "the words are @yearly"),
    ];
    for (text, said) in table {
        let problem = text.parse::<Cron>().unwrap_err().to_string();
        assert!(problem.starts_with("cron: ") && problem.contains(said), "{text:?}: {problem}");
    }
    assert!("1,".repeat(400).parse::<Cron>().is_err());
}

#[test]
fn an_unknown_zone_is_refused_with_a_suggestion() {
    let table = [
        ("Europe/Berlim", "did you mean Europe/Berlin?"),
        ("Berlin", "did you mean Europe/Berlin?"),
        ("new york", "did you mean America/New_York?"),
        ("Amerika/New_York", "did you mean America/New_York?"),
        ("Moon/Sea of Tranquillity", "use a name such as"),
        ("+02:00", "use a name such as"),
        ("Etc/Unknown", "is not known"),
        ("", "is not known"),
    ];
    for (name, said) in table {
        let problem = name.parse::<Zone>().unwrap_err().to_string();
        assert!(problem.starts_with("timeZone: ") && problem.contains(said), "{name:?}: {problem}");
    }
    assert!("a".repeat(10_000).parse::<Zone>().unwrap_err().to_string().len() < 200);
    assert_eq!("europe/berlin".parse::<Zone>().unwrap().name(), "Europe/Berlin");
    assert_eq!("UTC".parse::<Zone>().unwrap().name(), "UTC");
}

#[test]
fn dst_in_new_york() {
    let zone = |text, gap, overlap| cron(text, "America/New_York", gap, overlap);
    // On 8 March 2026 the clock goes from 02:00 to 03:00, on 1 November from 02:00 to 01:00.
    let (from, to) = ("2026-03-07T12:00:00Z", "2026-03-09T12:00:00Z");
    check(&zone("30 2 * * *", Shift, First), from, to, &["2026-03-08T07:30:00Z", "2026-03-09T06:30:00Z"]);
    check(&zone("30 2 * * *", Skip, First), from, to, &["2026-03-09T06:30:00Z"]);
    check(
        &zone("30 2,3 * * *", Shift, First),
        "2026-03-08T00:00:00Z",
        "2026-03-08T12:00:00Z",
        &["2026-03-08T07:30:00Z"],
    );
    let (from, to) = ("2026-03-08T06:00:00Z", "2026-03-08T08:00:00Z");
    let even = [
        "2026-03-08T06:00:00Z",
        "2026-03-08T06:30:00Z",
        "2026-03-08T07:00:00Z",
        "2026-03-08T07:30:00Z",
        "2026-03-08T08:00:00Z",
    ];
    check(&zone("*/30 * * * *", Shift, First), from, to, &even);
    check(&zone("0 */2 * * *", Shift, First), from, to, &["2026-03-08T08:00:00Z"]);
    check(&zone("*/30 2 * * *", Shift, First), from, to, &[]);
    let (from, to) = ("2026-11-01T04:00:00Z", "2026-11-02T07:00:00Z");
    let (first, last, next) = ("2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z");
    check(&zone("30 1 * * *", Shift, First), from, to, &[first, next]);
    check(&zone("30 1 * * *", Shift, Last), from, to, &[last, next]);
    check(&zone("30 1 * * *", Shift, Both), from, to, &[first, last, next]);
    let even = ["2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z", "2026-11-01T07:00:00Z"];
    check(&zone("0 * * * *", Shift, First), "2026-11-01T04:30:00Z", "2026-11-01T07:30:00Z", &even);
}

#[test]
fn dst_in_berlin() {
    let zone = |text, gap, overlap| cron(text, "Europe/Berlin", gap, overlap);
    // On 29 March 2026 the clock goes from 02:00 to 03:00, on 25 October from 03:00 to 02:00.
    let (from, to) = ("2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z");
    check(&zone("30 2 * * *", Shift, First), from, to, &["2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"]);
    check(&zone("30 2 * * *", Skip, First), from, to, &["2026-03-30T00:30:00Z"]);
    check(
        &zone("0 2,3 * * *", Shift, First),
        "2026-03-29T00:00:00Z",
        "2026-03-29T12:00:00Z",
        &["2026-03-29T01:00:00Z"],
    );
    check(
        &zone("15 0 2 29 3 *", Shift, First),
        "2026-03-29T00:00:00Z",
        "2026-03-29T12:00:00Z",
        &["2026-03-29T01:00:15Z"],
    );
    let (from, to) = ("2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z");
    let (first, last, next) = ("2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z");
    check(&zone("30 2 * * *", Shift, First), from, to, &[first, next]);
    check(&zone("30 2 * * *", Shift, Last), from, to, &[last, next]);
    check(&zone("30 2 * * *", Shift, Both), from, to, &[first, last, next]);
    // The end of the repeated hour is not repeated.
    check(&zone("0 3 * * *", Shift, Both), from, to, &["2026-10-25T02:00:00Z", "2026-10-26T02:00:00Z"]);
}

#[test]
fn dst_on_lord_howe() {
    let zone = |text, gap, overlap| cron(text, "Australia/Lord_Howe", gap, overlap);
    // Half an hour: on 4 October 2026 from 02:00 to 02:30, on 5 April from 02:00 to 01:30.
    let (from, to) = ("2026-10-03T00:00:00Z", "2026-10-05T00:00:00Z");
    check(&zone("15 2 * * *", Shift, First), from, to, &["2026-10-03T15:45:00Z", "2026-10-04T15:15:00Z"]);
    check(&zone("15 2 * * *", Skip, First), from, to, &["2026-10-04T15:15:00Z"]);
    check(&zone("40 2 * * *", Skip, First), from, to, &["2026-10-03T15:40:00Z", "2026-10-04T15:40:00Z"]);
    let (from, to) = ("2026-04-04T00:00:00Z", "2026-04-06T00:00:00Z");
    let (first, last, next) = ("2026-04-04T14:45:00Z", "2026-04-04T15:15:00Z", "2026-04-05T15:15:00Z");
    check(&zone("45 1 * * *", Shift, First), from, to, &[first, next]);
    check(&zone("45 1 * * *", Shift, Last), from, to, &[last, next]);
    check(&zone("45 1 * * *", Shift, Both), from, to, &[first, last, next]);
    check(&zone("15 1 * * *", Shift, Both), from, to, &["2026-04-04T14:15:00Z", "2026-04-05T14:45:00Z"]);
    // On the clock of the island the hours are uneven, so a rhythm keeps to what the clock shows.
    let (from, to) = ("2026-04-04T14:00:00Z", "2026-04-04T17:00:00Z");
    check(
        &zone("0 * * * *", Shift, First),
        from,
        to,
        &["2026-04-04T14:00:00Z", "2026-04-04T15:30:00Z", "2026-04-04T16:30:00Z"],
    );
}

#[test]
fn dst_in_santiago() {
    let zone = |text, gap, overlap| cron(text, "America/Santiago", gap, overlap);
    // At midnight: 6 September 2026 begins at 01:00, and on 4 April 24:00 becomes 23:00.
    let (from, to) = ("2026-09-05T12:00:00Z", "2026-09-07T12:00:00Z");
    check(&zone("0 0 * * *", Shift, First), from, to, &["2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"]);
    check(&zone("0 0 * * *", Skip, First), from, to, &["2026-09-07T03:00:00Z"]);
    check(&zone("@daily", Shift, First), from, to, &["2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"]);
    let (from, to) = ("2026-04-04T12:00:00Z", "2026-04-06T12:00:00Z");
    let (first, last, next) = ("2026-04-05T02:30:00Z", "2026-04-05T03:30:00Z", "2026-04-06T03:30:00Z");
    check(&zone("30 23 * * *", Shift, First), from, to, &[first, next]);
    check(&zone("30 23 * * *", Shift, Last), from, to, &[last, next]);
    check(&zone("30 23 * * *", Shift, Both), from, to, &[first, last, next]);
    check(&zone("0 0 * * *", Shift, Both), from, to, &["2026-04-05T04:00:00Z", "2026-04-06T04:00:00Z"]);
}

#[test]
fn fires_keep_to_the_start_and_the_end() {
    let rule = Recurrence::Cron {
        cron: "0 * * * *".parse().unwrap(),
        zone: "UTC".parse().unwrap(),
        gap: Shift,
        overlap: First,
    };
    let calendar =
        Calendar::new(rule.clone(), Some(at("2026-01-01T10:00:00Z")), Some(at("2026-01-01T12:00:00Z")))
            .unwrap();
    let all = ["2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z", "2026-01-01T12:00:00Z"];
    check(&calendar, "2025-01-01T00:00:00Z", "2027-01-01T00:00:00Z", &all);
    assert!(Calendar::new(rule, Some(at("2026-01-02T00:00:00Z")), Some(at("2026-01-01T00:00:00Z"))).is_err());
    let once = Calendar::new(Recurrence::Once(at("2026-01-01T00:00:00Z")), None, None).unwrap();
    check(&once, "2025-01-01T00:00:00Z", "2027-01-01T00:00:00Z", &["2026-01-01T00:00:00Z"]);
    assert!(Interval::new(Duration::from_millis(999), Timestamp::MIN).is_err());
}

#[test]
fn searches_end_at_the_ends_of_time() {
    for calendar in [
        utc("* * * * * *"),
        every(5, "2026-01-01T00:00:00Z"),
        cron("0 0 29 2 */6", "America/New_York", Shift, First),
    ] {
        for moment in [Timestamp::MIN, Timestamp::MAX, Timestamp::from_micros(0), at("9999-12-30T00:00:00Z")]
        {
            let (next, last) = (calendar.next(moment), calendar.last(moment));
            assert!(next.is_none_or(|next| next > moment) && last.is_none_or(|last| last <= moment));
        }
    }
}

#[test]
fn two_weeks_of_downtime_make_one_job_a_bounded_number_or_none() {
    let (start, now) = ("2026-01-01T00:00:00Z", at("2026-01-15T00:00:02Z"));
    for calendar in [every(5, start), utc("*/5 * * * * *")] {
        let caught = |policy| catch_up(&calendar, at(start), now, policy, GRACE).unwrap();
        let (once, all, skip) = (caught(Misfire::Once), caught(Misfire::All), caught(Misfire::Skip));
        assert_eq!(once.fires, [at("2026-01-15T00:00:00Z")]);
        assert_eq!(all.fires.len(), FIRES_MAX);
        assert_eq!(all.fires[FIRES_MAX - 1], at("2026-01-15T00:00:00Z"));
        assert_eq!(all.fires[0], at("2026-01-14T23:51:45Z"));
        assert_eq!(skip.fires, []);
        for caught in [once, all, skip] {
            assert_eq!((caught.is_misfire, caught.next), (true, Some(at("2026-01-15T00:00:05Z"))));
        }
    }
}

#[test]
fn a_fire_within_the_grace_is_late_and_not_missed() {
    let calendar = every(20, "2026-01-01T00:00:00Z");
    for policy in [Misfire::Once, Misfire::All, Misfire::Skip] {
        let caught =
            catch_up(&calendar, at("2026-01-01T00:00:00Z"), at("2026-01-01T00:00:59Z"), policy, GRACE)
                .unwrap();
        let all = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:20Z", "2026-01-01T00:00:40Z"].map(at);
        assert_eq!((caught.fires, caught.is_misfire), (all.to_vec(), false));
    }
    let before =
        catch_up(&calendar, at("2026-01-01T00:00:20Z"), at("2026-01-01T00:00:19Z"), Misfire::All, GRACE);
    assert_eq!(before, None);
}

/// A field as text and the values it stands for, made without the parser under test.
fn field(min: i8, max: i8) -> impl Strategy<Value = (String, Vec<i8>)> {
    let list = prop::collection::vec(min..=max, 1..4)
        .prop_map(|values| (values.iter().map(i8::to_string).collect::<Vec<_>>().join(","), values));
    let range = (min..=max, min..=max).prop_map(|(one, other)| {
        let (low, high) = (one.min(other), one.max(other));
        (format!("{low}-{high}"), (low..=high).collect())
    });
    let every = (1..=(max - min).min(13)).prop_map(move |step| {
        (format!("*/{step}"), (min..=max).step_by(usize::from(step.unsigned_abs())).collect())
    });
    prop_oneof![Just(("*".to_owned(), (min..=max).collect())), list, range, every]
}

#[derive(Clone, Debug)]
struct Pattern {
    minute: (String, Vec<i8>),
    hour: (String, Vec<i8>),
    day: (String, Vec<i8>),
    month: (String, Vec<i8>),
    weekday: (String, Vec<i8>),
}

impl Pattern {
    fn text(&self) -> String {
        [&self.minute, &self.hour, &self.day, &self.month, &self.weekday]
            .map(|(text, _)| text.as_str())
            .join(" ")
    }

    fn is_rhythm(&self) -> bool {
        self.minute.0.contains(['*', '/']) || self.hour.0.contains(['*', '/'])
    }

    fn names(&self, time: jiff::civil::DateTime) -> bool {
        let day = self.day.1.contains(&time.day());
        let weekday = self.weekday.1.contains(&time.weekday().to_sunday_zero_offset());
        let is_any = self.day.0.starts_with('*') || self.weekday.0.starts_with('*');
        let is_day = if is_any { day && weekday } else { day || weekday };
        is_day
            && self.month.1.contains(&time.month())
            && self.hour.1.contains(&time.hour())
            && self.minute.1.contains(&time.minute())
    }

    /// Every fire from `start` on, for so many minutes, by looking at each minute.
    fn scan(
        &self,
        zone: &jiff::tz::TimeZone,
        gap: DstGap,
        overlap: DstOverlap,
        start: i64,
        minutes: i64,
    ) -> Vec<i64> {
        let (start, end) = (start, start + minutes * 60);
        let margin = 3 * 60;
        let mut found: Vec<i64> = Vec::new();
        for minute in -margin..minutes + margin {
            let second = jiff::Timestamp::from_second(start + minute * 60).unwrap();
            if self.is_rhythm() {
                found.extend(self.names(zone.to_datetime(second)).then_some(second.as_second()));
                continue;
            }
            // Each minute that any clock may show.
            let shown = jiff::tz::TimeZone::UTC.to_datetime(second);
            if !self.names(shown) {
                continue;
            }
            let moment = |offset: jiff::tz::Offset| offset.to_timestamp(shown).unwrap().as_second();
            match zone.to_ambiguous_timestamp(shown).offset() {
                AmbiguousOffset::Unambiguous { offset } => found.push(moment(offset)),
                AmbiguousOffset::Gap { before, .. } => found.extend((gap == Shift).then(|| moment(before))),
                AmbiguousOffset::Fold { before, after } => {
                    found.extend((overlap != Last).then(|| moment(before)));
                    found.extend((overlap != First).then(|| moment(after)));
                }
            }
        }
        found.retain(|second| (start + 86_400..end - 86_400).contains(second));
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn pattern() -> impl Strategy<Value = Pattern> {
    (field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 6))
        .prop_map(|(minute, hour, day, month, weekday)| Pattern { minute, hour, day, month, weekday })
}

/// The beginning of a stretch of eight days, often one with a clock change.
fn start() -> impl Strategy<Value = i64> {
    let changes =
        ["2026-03-04", "2026-03-26", "2026-03-31", "2026-09-02", "2026-09-30", "2026-10-21", "2026-10-28"];
    let near = prop::sample::select(changes.to_vec())
        .prop_map(|day| at(&format!("{day}T00:00:00Z")).micros() / 1_000_000);
    prop_oneof![near, (0..5_000i64).prop_map(|day| 1_704_067_200 + day * 86_400)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn no_fire_is_skipped_or_invented(
        pattern in pattern(),
        start in start(),
        zone in prop::sample::select(vec![
            "UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Asia/Kolkata",
            "Africa/Casablanca", "Pacific/Apia",
        ]),
        gap in prop::sample::select(vec![Shift, Skip]),
        overlap in prop::sample::select(vec![First, Last, Both]),
    ) {
        prop_assume!(pattern.text().parse::<Cron>().is_ok());
        let calendar = cron(&pattern.text(), zone, gap, overlap);
        let minutes = 8 * 24 * 60;
        let rules = TimeZoneDatabase::bundled().get(zone).unwrap();
        let expected = pattern.scan(&rules, gap, overlap, start, minutes);
        let from = Timestamp::from_micros((start + 86_400) * 1_000_000);
        let end = Timestamp::from_micros((start + minutes * 60 - 86_400) * 1_000_000);
        let forward: Vec<_> = calendar
            .upcoming(from.before(Duration::from_micros(1)))
            .take_while(|fire| *fire < end)
            .map(|fire| fire.micros() / 1_000_000)
            .collect();
        prop_assert_eq!(&forward, &expected);
        let earlier = |fire: &Timestamp| calendar.last(fire.before(Duration::from_micros(1)));
        let mut back: Vec<_> =
            std::iter::successors(calendar.last(end.before(Duration::from_micros(1))), earlier)
                .take_while(|fire| *fire >= from)
                .map(|fire| fire.micros() / 1_000_000)
                .collect();
        back.reverse();
        prop_assert_eq!(&back, &expected);
    }

    #[test]
    fn the_next_fire_is_after_and_the_last_is_not(
        pattern in pattern(),
        micros in 1_500_000_000_000_000i64..2_500_000_000_000_000,
        zone in prop::sample::select(vec!["UTC", "America/New_York", "Australia/Lord_Howe", "America/Santiago"]),
    ) {
        prop_assume!(pattern.text().parse::<Cron>().is_ok());
        let calendar = cron(&pattern.text(), zone, Shift, First);
        let moment = Timestamp::from_micros(micros);
        let (next, last) = (calendar.next(moment).unwrap(), calendar.last(moment).unwrap());
        prop_assert!(last <= moment && moment < next);
        prop_assert_eq!(calendar.next(last).unwrap(), next);
        prop_assert_eq!(calendar.last(next.before(Duration::from_micros(1))).unwrap(), last);
    }

    #[test]
    fn an_interval_does_not_drift(seconds in 1u64..100_000, micros in 0i64..4_000_000_000_000_000) {
        let anchor = at("2026-01-01T00:00:00Z");
        let interval = every(seconds, "2026-01-01T00:00:00Z");
        let next = interval.next(Timestamp::from_micros(micros)).unwrap();
        prop_assert!(next.micros() > micros);
        prop_assert_eq!((next.micros() - anchor.micros()) % (i64::try_from(seconds).unwrap() * 1_000_000), 0);
    }

    #[test]
    fn nothing_is_fired_for_twice_however_the_looks_fall(
        every_seconds in 1u64..120,
        pauses in prop::collection::vec(0u64..400, 1..60),
        policy in prop::sample::select(vec![Misfire::Once, Misfire::All, Misfire::Skip]),
    ) {
        let calendar = every(every_seconds, "2026-01-01T00:00:00Z");
        let (mut now, mut next) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z"));
        let mut fired = Vec::new();
        for pause in pauses {
            now = now.after(Duration::from_secs(pause));
            let Some(caught) = catch_up(&calendar, next, now, policy, GRACE) else { continue };
            prop_assert!(caught.fires.iter().all(|fire| *fire >= next && *fire <= now));
            if !caught.is_misfire || policy == Misfire::Once {
                prop_assert!(!caught.fires.is_empty());
            }
            fired.extend(caught.fires);
            next = caught.next.unwrap();
            prop_assert!(next > now);
        }
        prop_assert!(fired.is_sorted_by(|one, other| one < other));
    }

    #[test]
    fn jitter_is_bounded_and_always_the_same(name in ".{0,20}", micros in any::<i64>(), millis in 0u64..100_000) {
        let max = Duration::from_millis(millis);
        let delay = jitter(&name, Timestamp::from_micros(micros), max);
        prop_assert!(delay <= max);
        prop_assert_eq!(delay, jitter(&name, Timestamp::from_micros(micros), max));
    }

    #[test]
    fn no_expression_makes_it_panic(text in ".{0,40}", fields in "[0-9*/,a-zA-Z@ -]{0,40}") {
        let _ = (text.parse::<Cron>(), fields.parse::<Cron>());
    }
}

proptest! {
    // Each looks for a suggestion among all zones.
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    #[test]
    fn no_zone_makes_it_panic(text in ".{0,80}") {
        let _ = text.parse::<Zone>();
    }
}
