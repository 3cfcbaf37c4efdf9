//! Who asks for another coordinator by name.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use baton_election::Settings;
use baton_election::machine::{Effect, Input, Machine, Now};
use baton_election::record::Epoch;
use baton_election::store::Version;

const LATER: u64 = 100;

fn now(seconds: u64) -> Now {
    Now { mono: Duration::from_secs(seconds), wall_ms: seconds * 1000 }
}

fn epoch(lease_seq: u64) -> Epoch {
    let json = serde_json::json!({
        "epochNumber": 1, "coordinatorId": "a", "incarnation": "a1", "nonce": "n", "leaseSeq": lease_seq,
        "epoch": 300_000, "epochStart": 0, "electedBy": "a", "durationMs": 300_000, "leaseMs": 90_000,
    });
    serde_json::from_value(json).unwrap()
}

fn workers(mark: &str) -> Input {
    Input::Listed(Ok(["a", "b", "c"].map(|id| (id.to_owned(), mark.to_owned())).to_vec()))
}

/// `b`, which follows `a` and has listed the workers for the last time when it started, long ago.
fn follower() -> Machine {
    let settings = Settings { skip_cold_start: true, ..Settings::default() };
    let mut machine = Machine::new(settings, "b".into(), [1, 2]);
    machine.step(now(0), Input::Tick);
    machine.step(now(0), Input::Read(Ok(Some((Version("1".into()), epoch(1))))));
    machine.step(now(0), workers("1"));
    machine.step(now(LATER - 1), Input::Tick);
    machine.step(now(LATER - 1), Input::Read(Ok(Some((Version("2".into()), epoch(2))))));
    machine
}

fn refusal(effects: &[Effect]) -> Option<&str> {
    effects.iter().find_map(|effect| match effect {
        Effect::SteppedDown(Err(error)) => Some(error.as_str()),
        _ => None,
    })
}

#[test]
fn who_is_alive_is_looked_up_when_a_worker_is_asked_for_by_name() {
    let mut machine = follower();
    let effects = machine.step(now(LATER), Input::StepDown(Some("c".into())));
    assert!(refusal(&effects).is_none(), "{effects:?}");
    machine.step(now(LATER), workers("2"));
    let effects = machine.step(now(LATER), Input::Read(Ok(Some((Version("3".into()), epoch(3))))));
    let asked = effects.iter().find_map(|effect| match effect {
        Effect::Swap(_, record) => Some((record.step_down, record.handover_to.as_deref())),
        _ => None,
    });
    assert_eq!(asked, Some((true, Some("c"))), "{effects:?}");
}

#[test]
fn a_worker_that_is_not_alive_cannot_be_asked_for() {
    let mut machine = follower();
    machine.step(now(LATER), Input::StepDown(Some("d".into())));
    let effects = machine.step(now(LATER), workers("2"));
    assert_eq!(refusal(&effects), Some("\"d\" is not known to be alive; the workers alive are a, b, c"));
    machine.step(now(LATER), Input::StepDown(Some("c".into())));
    let effects = machine.step(now(LATER), Input::Listed(Err("out of order".into())));
    assert!(refusal(&effects).is_some_and(|error| error.contains("out of order")), "{effects:?}");
}
