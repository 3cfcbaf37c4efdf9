//! A hand-over by name, and what an observer knows of the workers.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use baton_election::machine::{Effect, Input, Machine, Now, SwapAnswer};
use baton_election::record::EpochRecord;
use baton_election::store::Version;
use baton_election::{Event, Settings};

const LATER: u64 = 100;

fn now(seconds: u64) -> Now {
    Now { mono: Duration::from_secs(seconds), wall_ms: seconds * 1000 }
}

fn epoch(lease_seq: u64) -> EpochRecord {
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
}

/// Steps the machine at its wake-ups, from [`LATER`] on. `list` answers every list, one record every read. Returns the
/// outcome of the request, and when it came.
fn outcome(
    machine: &mut Machine,
    mut list: impl FnMut() -> Result<Vec<(String, String)>, String>,
) -> (Result<(), String>, Duration) {
    let mut now = now(LATER);
    // The answer to the list that is under way already.
    machine.step(now, workers("1"));
    let mut inputs = vec![Input::StepDown(Some("c".into()))];
    loop {
        while let Some(input) = inputs.pop() {
            for effect in machine.step(now, input) {
                match effect {
                    Effect::List => inputs.push(Input::Listed(list())),
                    Effect::Read => inputs.push(Input::Read(Ok(Some((Version("3".into()), epoch(3)))))),
                    Effect::WriteHeartbeat(_) => inputs.push(Input::HeartbeatWritten(Ok(()))),
                    Effect::Swap(..) => {
                        inputs.push(Input::SwapAnswered(SwapAnswer::Done(Version("4".into()))))
                    }
                    Effect::SteppedDown(outcome) => return (outcome, now.mono),
                    _ => {}
                }
            }
        }
        now.mono = machine.wake_at().max(now.mono);
        inputs.push(Input::Tick);
    }
}

#[test]
fn a_list_that_fails_is_repeated_before_a_hand_over_is_refused() {
    let mut failures = 3;
    let list = || {
        failures -= 1;
        if failures >= 0 {
            return Err("out of order".to_owned());
        }
        Ok(["a", "b", "c"].map(|id| (id.to_owned(), "2".to_owned())).to_vec())
    };
    let (outcome, at) = outcome(&mut follower(), list);
    assert_eq!(outcome, Ok(()));
    assert!(at > now(LATER).mono, "it rests between two lists");
}

#[test]
fn a_hand_over_is_refused_in_the_end_with_what_the_store_said() {
    let mut tries = 0;
    let list = || {
        tries += 1;
        Err("out of order".to_owned())
    };
    let (outcome, at) = outcome(&mut follower(), list);
    assert_eq!(outcome, Err("no hand-over within 90s: out of order".to_owned()));
    assert_eq!(at, now(LATER + 90).mono);
    assert!((10..200).contains(&tries), "{tries} tries");
}

#[test]
fn an_observer_knows_how_many_are_alive_when_the_coordinator_changes() {
    let mut machine = follower();
    machine.step(now(LATER), workers("2"));
    // The coordinator dies, and another one takes over long after the last list.
    let other = EpochRecord { epoch_number: 2, coordinator_id: "c".into(), nonce: "m".into(), ..epoch(0) };
    let mut effects = machine.step(now(2 * LATER), Input::Tick);
    effects.extend(machine.step(now(2 * LATER), Input::Read(Ok(Some((Version("5".into()), other))))));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::List)), "{effects:?}");
    let effects = machine.step(now(2 * LATER), workers("3"));
    let known = effects.iter().find_map(|effect| match effect {
        Effect::Emit(Event::CoordinatorElected { worker_id, active_workers, .. }) => {
            Some((worker_id.as_str(), *active_workers))
        }
        _ => None,
    });
    assert_eq!(known, Some(("c", 2)), "b and c: {effects:?}");
}

#[test]
fn a_worker_writes_down_every_step_of_its_cold_start_at_once() {
    let mut machine = Machine::new(Settings::fast(), "b".into(), [1, 2]);
    let mut now = now(0);
    let mut inputs = vec![Input::Tick];
    let mut written = Vec::new();
    while now.mono < Duration::from_millis(900) {
        while let Some(input) = inputs.pop() {
            for effect in machine.step(now, input) {
                match effect {
                    Effect::Read => inputs.push(Input::Read(Ok(None))),
                    Effect::ReadHighestEpoch => inputs.push(Input::HighestEpoch(Ok(0))),
                    Effect::List => inputs.push(Input::Listed(Ok(Vec::new()))),
                    Effect::Swap(..) => {
                        inputs.push(Input::SwapAnswered(SwapAnswer::Done(Version("1".into()))))
                    }
                    Effect::WriteHeartbeat(worker) => {
                        written = worker.phases;
                        inputs.push(Input::HeartbeatWritten(Ok(())));
                    }
                    _ => {}
                }
            }
        }
        now.mono = machine.wake_at().max(now.mono);
        inputs.push(Input::Tick);
    }
    let steps: Vec<_> = written.iter().map(|step| (step.phase.as_str(), step.duration)).collect();
    assert_eq!(steps, [("observing", 0), ("election", 500), ("preparation", 0), ("ready", 100)]);
}
