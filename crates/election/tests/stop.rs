//! A coordinator that is stopped gives its term up at once.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use baton_election::Settings;
use baton_election::machine::{Effect, Input, Machine, Now, SwapAnswer};
use baton_election::record::EpochRecord;
use baton_election::store::Version;

fn now(seconds: u64) -> Now {
    Now { mono: Duration::from_secs(seconds), wall_ms: seconds * 1000 }
}

/// What the machine wants to write, and on which version.
fn swap(effects: &[Effect]) -> Option<(Option<Version>, EpochRecord)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Swap(expected, record) => Some((expected.clone(), record.clone())),
        _ => None,
    })
}

fn reads(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Read)).count()
}

fn version(text: &str) -> Version {
    Version(text.to_owned())
}

/// A coordinator at work, and its record as it stands under version 1.
fn coordinator() -> (Machine, EpochRecord) {
    let settings = Settings { skip_cold_start: true, ..Settings::default() };
    let mut machine = Machine::new(settings, "a".into(), [1, 2]);
    let mut effects = machine.step(now(0), Input::Tick);
    for input in [Input::Read(Ok(None)), Input::HighestEpoch(Ok(0)), Input::Listed(Ok(Vec::new()))] {
        effects.extend(machine.step(now(0), input));
    }
    let (_, record) = swap(&effects).expect("a claim");
    let effects = machine.step(now(0), Input::SwapAnswered(SwapAnswer::Done(version("1"))));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Promote { .. })), "{effects:?}");
    (machine, record)
}

/// Stops it at `seconds`; what it does when its work has ended.
fn stopped(machine: &mut Machine, seconds: u64) -> Vec<Effect> {
    let effects = machine.step(now(seconds), Input::Stop);
    assert!(swap(&effects).is_none(), "not while it works");
    machine.step(now(seconds), Input::WorkEnded)
}

#[test]
fn a_release_does_not_wait_for_a_look_that_is_under_way() {
    let (mut machine, record) = coordinator();
    assert_eq!(reads(&machine.step(now(15), Input::Tick)), 1);
    let (expected, released) = swap(&stopped(&mut machine, 15)).expect("a release at once");
    assert_eq!((expected, released.released), (Some(version("1")), true));
    // The read shows a term that is over, so it is ignored.
    let effects = machine.step(now(15), Input::Read(Ok(Some((version("1"), record)))));
    assert!(effects.is_empty(), "{effects:?}");
    let effects = machine.step(now(15), Input::SwapAnswered(SwapAnswer::Done(version("2"))));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Finished)), "{effects:?}");
}

#[test]
fn a_release_waits_for_a_renewal_that_is_under_way() {
    let (mut machine, _) = coordinator();
    let (_, renewed) = swap(&machine.step(now(30), Input::Tick)).expect("a renewal");
    assert!(!renewed.released);
    assert!(
        swap(&stopped(&mut machine, 30)).is_none(),
        "it would be refused: the version is about to change"
    );
    let effects = machine.step(now(30), Input::SwapAnswered(SwapAnswer::Done(version("2"))));
    let (expected, released) = swap(&effects).expect("a release");
    assert_eq!((expected, released.released), (Some(version("2")), true));
}

#[test]
fn a_release_that_was_refused_is_tried_again_after_its_own_look() {
    let (mut machine, record) = coordinator();
    machine.step(now(15), Input::Tick);
    stopped(&mut machine, 15);
    // A user has asked for another coordinator meanwhile, so the record has changed.
    let effects = machine.step(now(15), Input::SwapAnswered(SwapAnswer::Conflict));
    assert_eq!(reads(&effects), 1);
    let asked = EpochRecord { lease_seq: record.lease_seq + 1, step_down: true, ..record.clone() };
    machine.step(now(15), Input::Read(Ok(Some((version("1"), record)))));
    assert!(swap(&machine.step(now(19), Input::Tick)).is_none(), "not before its look has come");
    let mut effects = machine.step(now(19), Input::Read(Ok(Some((version("2"), asked)))));
    effects.extend(machine.step(now(23), Input::Tick));
    let (expected, released) = swap(&effects).expect("a second release");
    assert_eq!((expected, released.released), (Some(version("2")), true));
}
