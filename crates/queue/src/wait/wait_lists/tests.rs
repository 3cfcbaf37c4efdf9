//! What is promised of waiting pops, without clocks, threads and stores.

use super::*;

const BACK_OFF: BackOff = BackOff {
    initial: Duration::from_millis(100),
    threshold: 3,
    multiplier: 2.0,
    max: Duration::from_millis(1000),
};
const QUEUE: QueueId = QueueId(1);
const NEVER: Duration = Duration::from_secs(3600);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn any(group: &str) -> Key {
    Key { target: Target::Queue("q".into()), group: group.into() }
}

fn one(partition: &str) -> Key {
    Key { target: Target::Partition { queue: "q".into(), partition: partition.into() }, group: "g".into() }
}

fn place(queue: QueueId, group: u64) -> WatchedQueue {
    WatchedQueue { queue, group: GroupId(group), name: "q".into() }
}

fn watched(group: u64, partition: Option<u64>) -> Watched {
    Watched { queues: vec![place(QUEUE, group)], partition: partition.map(PartitionId) }
}

fn appended(partition: u64) -> Event {
    Event::Appended { queue: QUEUE, partition: PartitionId(partition) }
}

fn checked(found: bool, watched: Watched, due_in: Option<Duration>) -> Checked {
    Checked { found, watched, due_in, unheard: None }
}

/// Parks a waiter and lets its first look find nothing.
fn parked(waiters: &mut Waiters<u32>, key: Key, watched: Watched, content: u32) -> LineId {
    waiters.park(ms(0), NEVER, key, watched.clone(), content);
    let query = waiters.take_due(ms(0), None).remove(0);
    waiters.checked(ms(0), query.line, checked(false, watched, None));
    query.line
}

#[test]
fn a_notice_wakes_every_line_of_its_queue_and_no_other() {
    let mut waiters = Waiters::new(BACK_OFF);
    let mut woken = vec![
        parked(&mut waiters, any("g"), watched(1, None), 1),
        parked(&mut waiters, one("p"), watched(1, Some(7)), 2),
    ];
    let elsewhere = Watched { queues: vec![place(QueueId(2), 9)], partition: None };
    parked(&mut waiters, any("other"), elsewhere, 3);
    assert_eq!(waiters.take_due(ms(1), None), []);
    waiters.wake_queue(ms(1), QUEUE);
    let mut due: Vec<_> = waiters.take_due(ms(1), None).into_iter().map(|query| query.line).collect();
    due.sort_unstable();
    woken.sort_unstable();
    assert_eq!(due, woken);
}

#[test]
fn the_pause_grows_after_three_empty_checks_up_to_its_maximum() {
    let mut waiters = Waiters::new(BACK_OFF);
    waiters.park(ms(0), NEVER, any("g"), watched(1, None), 1);
    let (mut at, mut pauses) = (ms(0), Vec::new());
    for _ in 0..7 {
        let query = waiters.take_due(at, None).remove(0);
        waiters.checked(at, query.line, checked(false, watched(1, None), None));
        let next = waiters.agenda.next().unwrap();
        pauses.push((next - at).as_millis());
        at = next;
    }
    assert_eq!(pauses, [100, 100, 200, 400, 800, 1000, 1000]);
    assert_eq!(waiters.statistics().groups_backed_off, 1);
}

#[test]
fn a_line_at_rest_backs_off_without_looking_until_something_can_have_changed() {
    let mut waiters = Waiters::new(BACK_OFF);
    let nothing = || Checked { watched: watched(1, None), unheard: Some(7), ..Checked::default() };
    waiters.park(ms(0), NEVER, any("g"), watched(1, None), 1);
    let line = waiters.take_due(ms(0), Some(7)).remove(0).line;
    waiters.checked(ms(0), line, nothing());
    let (mut at, mut pauses) = (ms(0), Vec::new());
    for _ in 0..6 {
        let next = waiters.agenda.next().unwrap();
        pauses.push((next - at).as_millis());
        at = next;
        assert_eq!(waiters.take_due(at, Some(7)), []);
    }
    assert_eq!(pauses, [100, 100, 200, 400, 800, 1000]);
    assert_eq!(waiters.statistics().groups_backed_off, 1);
    at = waiters.agenda.next().unwrap();
    assert_eq!(waiters.take_due(at, Some(8)).len(), 1, "a queue or a group has changed");
    waiters.checked(at, line, nothing());
    waiters.wake(at, appended(5));
    assert_eq!(waiters.take_due(at, Some(7)).len(), 1, "an event was heard");
}

#[test]
fn a_line_that_rests_with_others_is_woken_by_an_event_and_leaves_nothing_behind() {
    let mut waiters = Waiters::new(BACK_OFF);
    let nothing = || Checked { watched: watched(1, None), unheard: Some(7), ..Checked::default() };
    let id = waiters.park(ms(0), NEVER, any("g"), watched(1, None), 1);
    let line = waiters.take_due(ms(0), Some(7)).remove(0).line;
    let mut at = ms(0);
    for _ in 0..2 {
        waiters.checked(at, line, nothing());
        while waiters.lines[&line].next_check != crate::wait::recheck_schedule::RESTING {
            at = waiters.agenda.next().unwrap();
            assert_eq!(waiters.take_due(at, Some(7)), []);
        }
        waiters.wake(at, appended(5));
        assert_eq!(waiters.take_due(at, Some(7)).len(), 1);
    }
    waiters.checked(at, line, nothing());
    while waiters.lines[&line].next_check != crate::wait::recheck_schedule::RESTING {
        at = waiters.agenda.next().unwrap();
        waiters.take_due(at, Some(7));
    }
    waiters.cancel(id);
    assert_eq!((waiters.agenda.next(), waiters.statistics()), (None, WaitStatistics::default()));
}

#[test]
fn a_line_does_not_rest_before_it_has_listened_nor_when_something_is_due() {
    let mut waiters = Waiters::new(BACK_OFF);
    waiters.park(ms(0), NEVER, any("g"), Watched::default(), 1);
    let mut at = ms(0);
    for (watched, due_in) in [(watched(1, None), None), (watched(1, None), Some(NEVER))] {
        let line = waiters.take_due(at, Some(7)).remove(0).line;
        waiters.checked(at, line, Checked { found: false, watched, due_in, unheard: Some(7) });
        at = waiters.agenda.next().unwrap();
    }
    assert_eq!(waiters.take_due(at, Some(7)).len(), 1);
}

#[test]
fn a_push_resets_the_back_off_and_looks_at_once() {
    let mut waiters = Waiters::new(BACK_OFF);
    let line = parked(&mut waiters, any("g"), watched(1, None), 1);
    waiters.lines.get_mut(&line).unwrap().empties = 9;
    waiters.wake(ms(7), appended(5));
    assert_eq!(waiters.take_due(ms(7), None).len(), 1);
    assert_eq!(waiters.statistics().groups_backed_off, 0);
}

#[test]
fn one_query_is_under_way_per_line() {
    let mut waiters = Waiters::new(BACK_OFF);
    waiters.park(ms(0), NEVER, any("g"), watched(1, None), 1);
    waiters.park(ms(0), NEVER, any("g"), watched(1, None), 2);
    let queries = waiters.take_due(ms(0), None);
    assert_eq!((queries.len(), queries[0].waiters.len()), (1, 2));
    waiters.wake(ms(1), appended(5));
    assert!(waiters.take_due(ms(1), None).is_empty());
    assert_eq!(waiters.statistics().groups_in_flight, 1);
}

#[test]
fn an_event_during_a_query_leads_to_another_at_once() {
    let mut waiters = Waiters::new(BACK_OFF);
    waiters.park(ms(0), NEVER, any("g"), watched(1, None), 1);
    let query = waiters.take_due(ms(0), None).remove(0);
    waiters.wake(ms(1), appended(5));
    waiters.checked(ms(2), query.line, checked(false, watched(1, None), None));
    assert_eq!(waiters.take_due(ms(2), None).len(), 1);
}

#[test]
fn finding_something_leads_to_another_look_for_the_next_waiter() {
    let mut waiters = Waiters::new(BACK_OFF);
    waiters.park(ms(0), NEVER, any("g"), watched(1, None), 1);
    waiters.park(ms(0), NEVER, any("g"), watched(1, None), 2);
    let query = waiters.take_due(ms(0), None).remove(0);
    assert_eq!(waiters.cancel(query.waiters[0]), Some(1));
    waiters.checked(ms(1), query.line, checked(true, watched(1, None), None));
    assert_eq!(waiters.take_due(ms(1), None).remove(0).waiters, [query.waiters[1]]);
}

#[test]
fn a_deadline_answers_with_nothing_and_leaves_nothing_behind() {
    let mut waiters = Waiters::new(BACK_OFF);
    waiters.park(ms(0), ms(50), any("g"), watched(1, None), 1);
    waiters.park(ms(0), ms(80), any("g"), watched(1, None), 2);
    let query = waiters.take_due(ms(0), None).remove(0);
    waiters.checked(ms(0), query.line, checked(false, watched(1, None), None));
    assert_eq!(waiters.next_wake(), Some(ms(50)));
    assert_eq!(waiters.expire(ms(50)), [1]);
    assert_eq!(waiters.expire(ms(80)), [2]);
    assert_eq!(waiters.statistics(), WaitStatistics::default());
    assert_eq!(waiters.next_wake(), None);
    assert!(!waiters.watches(QUEUE));
}

#[test]
fn the_alarm_is_moved_only_for_what_would_come_too_late() {
    let mut waiters = Waiters::new(BACK_OFF);
    assert_eq!(waiters.set_alarm(), None);
    assert!(!waiters.is_before_alarm());
    let line = parked(&mut waiters, any("g"), watched(1, None), 1);
    assert!(waiters.is_before_alarm(), "it was not set at all");
    assert_eq!(waiters.set_alarm(), Some(ms(100)));
    let park = |waiters: &mut Waiters<u32>, now, deadline| {
        let id = waiters.park(now, deadline, any("g"), watched(1, None), 2);
        assert_eq!(waiters.take_due(now, None).len(), 1);
        waiters.checked(now, line, checked(false, watched(1, None), None));
        id
    };
    park(&mut waiters, ms(10), ms(150));
    assert!(!waiters.is_before_alarm());
    let early = park(&mut waiters, ms(20), ms(50));
    assert!(waiters.is_before_alarm());
    waiters.cancel(early);
    assert!(!waiters.is_before_alarm(), "a waiter that has gone needs no alarm");
}

#[test]
fn the_first_who_waits_and_the_last_who_leaves_are_told() {
    let mut waiters = Waiters::new(BACK_OFF);
    waiters.note_changes();
    let first = waiters.park(ms(0), NEVER, any("g"), watched(1, None), 1);
    assert_eq!(waiters.take_changes(), [(place(QUEUE, 1), true)]);
    let second = waiters.park(ms(0), NEVER, one("five"), watched(1, Some(5)), 2);
    waiters.cancel(first);
    assert_eq!(waiters.take_changes(), []);
    waiters.cancel(second);
    assert_eq!(waiters.take_changes(), [(place(QUEUE, 1), false)]);
}

#[test]
fn a_cancelled_waiter_is_gone_at_once() {
    let mut waiters = Waiters::new(BACK_OFF);
    let id = waiters.park(ms(0), NEVER, any("g"), watched(1, None), 1);
    assert_eq!(waiters.cancel(id), Some(1));
    assert_eq!(waiters.statistics(), WaitStatistics::default());
    assert!(waiters.take_due(ms(0), None).is_empty());
}

#[test]
fn groups_do_not_wake_each_other_by_freeing() {
    let mut waiters = Waiters::new(BACK_OFF);
    let first = parked(&mut waiters, any("g"), watched(1, None), 1);
    parked(&mut waiters, any("h"), watched(2, None), 2);
    waiters.wake(ms(1), Event::Freed { queue: QUEUE, group: GroupId(1), partition: PartitionId(5) });
    let due: Vec<_> = waiters.take_due(ms(1), None).into_iter().map(|query| query.line).collect();
    assert_eq!(due, [first]);
}

#[test]
fn a_push_wakes_the_waiters_of_its_partition_and_of_any() {
    let mut waiters = Waiters::new(BACK_OFF);
    let anything = parked(&mut waiters, any("g"), watched(1, None), 1);
    let exact = parked(&mut waiters, one("five"), watched(1, Some(5)), 2);
    parked(&mut waiters, one("six"), watched(1, Some(6)), 3);
    let missing = parked(&mut waiters, one("seven"), watched(1, None), 4);
    waiters.wake(ms(1), appended(5));
    let mut due: Vec<_> = waiters.take_due(ms(1), None).into_iter().map(|query| query.line).collect();
    due.sort();
    assert_eq!(due, [anything, exact, missing]);
}

#[test]
fn what_is_due_is_looked_at_when_it_is() {
    let mut waiters = Waiters::new(BACK_OFF);
    waiters.park(ms(0), NEVER, any("g"), watched(1, None), 1);
    let query = waiters.take_due(ms(0), None).remove(0);
    waiters.checked(ms(0), query.line, checked(false, watched(1, None), Some(ms(30))));
    assert_eq!(waiters.next_wake(), Some(ms(30)));
}
