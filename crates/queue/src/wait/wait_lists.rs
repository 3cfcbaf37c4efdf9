//! Waiting pops: who waits for what, and when to look again.
//!
//! A pop that finds nothing and may wait is parked here; it costs a few hundred bytes and no thread. Waiters
//! for the same thing (target and group) share one line: one query at a time serves the line from its head,
//! and one back-off counts its empty checks. Always: a waiter is answered once: with messages, with nothing at
//! its deadline, or never if its caller has gone. Not here: clocks, threads and stores (`parking`): time is a
//! number that comes in, queries are values that go out.
//!
//! Start at [`Waiters::park`] and [`Waiters::take_due`].

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use baton_store::Event;
use baton_types::{GroupId, PartitionId, QueueId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::recheck_schedule::{Agenda, LineId, together};
use crate::rules::pop::{Target, WatchedQueue};

/// Waiters that one query may serve.
const SERVED_AT_ONCE: usize = 64;

/// How to look again after finding nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackOff {
    /// The first pause.
    pub initial: Duration,
    /// Empty checks before the pause grows.
    pub threshold: u32,
    /// By how much it grows.
    pub multiplier: f64,
    /// The longest pause.
    pub max: Duration,
}

/// What a line waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub target: Target,
    pub group: String,
}

/// Names a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(u64);

/// A look that is due for a line, on behalf of its first waiters.
#[derive(Debug, PartialEq, Eq)]
pub struct Query {
    pub line: LineId,
    pub waiters: Vec<WaiterId>,
}

/// What a look at a line's queues has found out about them; events are matched against it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// The queues.
    pub queues: Vec<WatchedQueue>,
    /// The partition, when one is named and exists.
    pub partition: Option<PartitionId>,
}

/// What a look at a line came to.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Whether it found something.
    pub found: bool,
    pub watched: Watched,
    /// When there will be something without any event.
    pub due_in: Option<Duration>,
    /// What the store said before the look of changes that no event tells of; see `Store::unheard`.
    pub unheard: Option<u64>,
}

/// Numbers about waiting pops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitStatistics {
    /// Parked pops.
    pub waiters: usize,
    /// Lines.
    pub groups_tracked: usize,
    /// Lines with a query under way.
    pub groups_in_flight: usize,
    /// Lines whose pause has grown.
    pub groups_backed_off: usize,
}

/// All waiters. `W` is what the caller keeps with each.
pub struct Waiters<W> {
    back_off: BackOff,
    waiters: FxHashMap<WaiterId, Waiter<W>>,
    lines: FxHashMap<LineId, Line>,
    by_key: FxHashMap<Key, LineId>,
    by_queue: FxHashMap<QueueId, FxHashSet<LineId>>,
    /// Lines that a new queue concerns: the one they name is missing, or they name labels.
    open_ended: FxHashSet<LineId>,
    /// The newest queue that an event has named.
    newest: QueueId,
    agenda: Agenda,
    deadlines: BTreeSet<(Duration, WaiterId)>,
    /// How many lines watch a queue for a group.
    present: FxHashMap<(QueueId, GroupId), usize>,
    /// Places where waiting has begun or ended since this was taken last; `None` until a caller wants them.
    changes: Option<Vec<(WatchedQueue, bool)>>,
    /// When the recheck timer fires next; `None`: only after a call rings it.
    alarm: Option<Duration>,
    next_id: u64,
}

struct Waiter<W> {
    line: LineId,
    deadline: Duration,
    content: W,
}

struct Line {
    key: Key,
    waiting: VecDeque<WaiterId>,
    watched: Watched,
    in_flight: bool,
    /// Whether something happened while the query was under way, so that its "nothing" is stale.
    woken: bool,
    empties: u32,
    pause: Duration,
    next_check: Duration,
    /// Set when the last look found nothing, and would find nothing again without an event for as long as the store
    /// says this of changes that no event tells of.
    rests: Option<u64>,
}

impl<W> Waiters<W> {
    pub fn new(back_off: BackOff) -> Self {
        Self {
            back_off,
            waiters: FxHashMap::default(),
            lines: FxHashMap::default(),
            by_key: FxHashMap::default(),
            by_queue: FxHashMap::default(),
            open_ended: FxHashSet::default(),
            newest: QueueId(0),
            agenda: Agenda::default(),
            deadlines: BTreeSet::new(),
            present: FxHashMap::default(),
            changes: None,
            alarm: None,
            next_id: 0,
        }
    }

    /// Adds a waiter; its line is looked at as soon as possible, for something may have come since its caller
    /// looked.
    pub fn park(
        &mut self,
        now: Duration,
        deadline: Duration,
        key: Key,
        watched: Watched,
        content: W,
    ) -> WaiterId {
        self.next_id += 1;
        let id = WaiterId(self.next_id);
        let line_id = match self.by_key.get(&key) {
            Some(line) => *line,
            None => self.open_line(now, key),
        };
        self.watch(line_id, watched);
        self.waiters.insert(id, Waiter { line: line_id, deadline, content });
        self.deadlines.insert((deadline, id));
        if let Some(line) = self.lines.get_mut(&line_id) {
            line.waiting.push_back(id);
            line.woken = true;
        }
        self.check_at(line_id, now);
        id
    }

    fn open_line(&mut self, now: Duration, key: Key) -> LineId {
        self.next_id += 1;
        let id = LineId(self.next_id);
        self.by_key.insert(key.clone(), id);
        let line = Line {
            key,
            waiting: VecDeque::new(),
            watched: Watched::default(),
            in_flight: false,
            woken: false,
            empties: 0,
            pause: self.back_off.initial,
            next_check: now,
            rests: None,
        };
        self.agenda.plan(id, now);
        self.lines.insert(id, line);
        id
    }

    /// Notes which events concern a line.
    fn watch(&mut self, id: LineId, watched: Watched) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        for place in watched.queues.iter().filter(|place| !line.watched.queues.contains(place)) {
            self.by_queue.entry(place.queue).or_default().insert(id);
            let lines = self.present.entry((place.queue, place.group)).or_default();
            *lines += 1;
            if *lines == 1 {
                note(&mut self.changes, place, true);
            }
        }
        let before = std::mem::replace(&mut line.watched, watched).queues;
        let after = line.watched.queues.clone();
        for place in before.iter().filter(|place| !after.contains(place)) {
            if !after.iter().any(|other| other.queue == place.queue) {
                unwatch(&mut self.by_queue, place.queue, id);
            }
            self.leave(place);
        }
        match self.lines.get(&id).is_some_and(Line::is_open_ended) {
            true => self.open_ended.insert(id),
            false => self.open_ended.remove(&id),
        };
    }

    /// A line watches a place no longer.
    fn leave(&mut self, place: &WatchedQueue) {
        if let Some(lines) = self.present.get_mut(&(place.queue, place.group)) {
            *lines -= 1;
            if *lines == 0 {
                self.present.remove(&(place.queue, place.group));
                note(&mut self.changes, place, false);
            }
        }
    }

    /// From now on notes where waiting begins and ends; tells where it has begun already.
    pub fn note_changes(&mut self) {
        let places = self.lines.values().flat_map(|line| line.watched.queues.iter().cloned());
        self.changes = Some(places.map(|place| (place, true)).collect());
    }

    /// Where waiting has begun (true) or ended since the last call.
    pub fn take_changes(&mut self) -> Vec<(WatchedQueue, bool)> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Whether an event in this queue concerns anyone.
    pub fn watches(&self, queue: QueueId) -> bool {
        self.by_queue.contains_key(&queue)
    }

    /// Takes out a waiter: it has got something, or its caller has gone.
    pub fn cancel(&mut self, id: WaiterId) -> Option<W> {
        let waiter = self.waiters.remove(&id)?;
        self.deadlines.remove(&(waiter.deadline, id));
        if let Some(line) = self.lines.get_mut(&waiter.line) {
            match line.waiting.front() {
                Some(first) if *first == id => drop(line.waiting.pop_front()),
                _ => line.waiting.retain(|other| *other != id),
            }
        }
        self.close_if_empty(waiter.line);
        Some(waiter.content)
    }

    /// Something happened: lines that it concerns forget their back-off and are looked at now.
    pub fn wake(&mut self, now: Duration, event: Event) {
        let queue = match event {
            Event::Appended { queue, .. } | Event::Freed { queue, .. } => queue,
        };
        let Some(lines) = self.by_queue.get(&queue) else { return };
        let concerned: Vec<_> =
            lines.iter().copied().filter(|line| self.lines[line].is_concerned(event)).collect();
        for id in concerned {
            self.wake_line(now, id);
        }
    }

    /// An event names a queue: whether it is newer than all before, and some lines that may have waited for it are looked
    /// at now.
    pub fn note_queue(&mut self, now: Duration, queue: QueueId) -> bool {
        if queue <= self.newest {
            return false;
        }
        self.newest = queue;
        let lines: Vec<_> = self.open_ended.iter().copied().collect();
        for id in &lines {
            self.wake_line(now, *id);
        }
        !lines.is_empty()
    }

    /// Something happened in a queue: all its lines are looked at now.
    pub fn wake_queue(&mut self, now: Duration, queue: QueueId) {
        let lines: Vec<_> = self.by_queue.get(&queue).into_iter().flatten().copied().collect();
        for id in lines {
            self.wake_line(now, id);
        }
    }

    fn wake_line(&mut self, now: Duration, id: LineId) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        line.empties = 0;
        line.pause = self.back_off.initial;
        line.woken = true;
        self.check_at(id, now);
    }

    fn check_at(&mut self, id: LineId, at: Duration) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        if !line.in_flight && at < line.next_check {
            self.agenda.remove(id, line.next_check);
            line.next_check = at;
            self.agenda.plan(id, at);
        }
    }

    /// The lines to look at now, each marked as under way. At most one query per line. `unheard` is what the store says
    /// of changes that no event tells of: a line of which nothing can have changed counts as looked at, and in the end
    /// rests with others, so that an idle one costs next to nothing.
    pub fn take_due(&mut self, now: Duration, unheard: Option<u64>) -> Vec<Query> {
        let mut queries = Vec::new();
        for id in self.agenda.rouse(now, self.back_off.max, unheard) {
            let Some(line) = self.lines.get_mut(&id) else { continue };
            line.next_check = now;
            self.agenda.plan(id, now);
        }
        while let Some(id) = self.agenda.due(now) {
            let Some(line) = self.lines.get_mut(&id) else { continue };
            if let Some(rests) = line.rests.filter(|rests| unheard == Some(*rests) && !line.woken) {
                line.count_empty(&self.back_off);
                if line.pause >= self.back_off.max {
                    line.next_check = self.agenda.rest(id, now, line.pause, rests);
                } else {
                    line.next_check = together(now, line.pause);
                    self.agenda.plan(id, line.next_check);
                }
                continue;
            }
            line.in_flight = true;
            line.woken = false;
            let waiters = line.waiting.iter().take(SERVED_AT_ONCE).copied().collect();
            queries.push(Query { line: id, waiters });
        }
        queries
    }

    /// What the caller keeps with a waiter that still waits.
    pub fn content(&self, id: WaiterId) -> Option<&W> {
        self.waiters.get(&id).map(|waiter| &waiter.content)
    }

    /// A query is back.
    pub fn checked(
        &mut self,
        now: Duration,
        id: LineId,
        Checked { found, watched, due_in, unheard }: Checked,
    ) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        // Until now this line heard no events of a place that is new: the next look begins after it does.
        let listened = line.watched == watched;
        let sure = listened && !found && due_in.is_none();
        line.rests = unheard.filter(|_| sure);
        self.watch(id, watched);
        let Some(line) = self.lines.get_mut(&id) else { return };
        line.in_flight = false;
        if found {
            line.empties = 0;
            line.pause = self.back_off.initial;
        } else {
            line.count_empty(&self.back_off);
        }
        let pause = if found || line.woken { Duration::ZERO } else { line.pause };
        line.next_check = now + due_in.map_or(pause, |due_in| due_in.min(pause));
        self.agenda.plan(id, line.next_check);
        self.close_if_empty(id);
    }

    /// Takes out the waiters whose deadline has come.
    pub fn expire(&mut self, now: Duration) -> Vec<W> {
        let mut expired = Vec::new();
        while let Some((_, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            expired.extend(self.cancel(id));
        }
        expired
    }

    /// Takes out all waiters.
    pub fn drain(&mut self) -> Vec<W> {
        self.expire(Duration::MAX)
    }

    /// Sets the alarm for when there is next something to do.
    pub fn set_alarm(&mut self) -> Option<Duration> {
        self.alarm = self.next_wake();
        self.alarm
    }

    /// Whether there is something to do before the alarm rings.
    pub fn is_before_alarm(&self) -> bool {
        self.next_wake().is_some_and(|next| self.alarm.is_none_or(|alarm| next < alarm))
    }

    /// When there is next something to do.
    fn next_wake(&self) -> Option<Duration> {
        let check = self.agenda.next();
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        check.into_iter().chain(deadline).min()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Takes out everyone in a line.
    pub fn take_line(&mut self, line: LineId) -> Vec<W> {
        let waiting = self.lines.get(&line).map(|line| line.waiting.clone()).unwrap_or_default();
        waiting.into_iter().filter_map(|id| self.cancel(id)).collect()
    }

    /// How many wait for each queue; those that wait for any queue with a label are not among them.
    pub fn by_queue(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for line in self.lines.values() {
            if let Some(queue) = line.key.target.queue().filter(|_| !line.waiting.is_empty()) {
                *counts.entry(queue.to_owned()).or_insert(0) += line.waiting.len() as u64;
            }
        }
        counts
    }

    pub fn statistics(&self) -> WaitStatistics {
        let count = |wanted: fn(&Line, &BackOff) -> bool| {
            self.lines.values().filter(|line| wanted(line, &self.back_off)).count()
        };
        WaitStatistics {
            waiters: self.waiters.len(),
            groups_tracked: self.lines.len(),
            groups_in_flight: count(|line, _| line.in_flight),
            groups_backed_off: count(|line, back_off| line.empties >= back_off.threshold),
        }
    }

    fn close_if_empty(&mut self, id: LineId) {
        let Some(line) = self.lines.get(&id) else { return };
        if line.in_flight || !line.waiting.is_empty() {
            return;
        }
        self.agenda.remove(id, line.next_check);
        self.open_ended.remove(&id);
        self.by_key.remove(&line.key);
        let watched = self.lines.remove(&id).map(|line| line.watched.queues).unwrap_or_default();
        for place in &watched {
            unwatch(&mut self.by_queue, place.queue, id);
            self.leave(place);
        }
    }
}

fn note(changes: &mut Option<Vec<(WatchedQueue, bool)>>, place: &WatchedQueue, on: bool) {
    if let Some(changes) = changes {
        changes.push((place.clone(), on));
    }
}

fn unwatch(by_queue: &mut FxHashMap<QueueId, FxHashSet<LineId>>, queue: QueueId, line: LineId) {
    if let Some(lines) = by_queue.get_mut(&queue) {
        lines.remove(&line);
        if lines.is_empty() {
            by_queue.remove(&queue);
        }
    }
}

impl Line {
    /// Counts a look that found nothing.
    fn count_empty(&mut self, back_off: &BackOff) {
        self.empties = self.empties.saturating_add(1);
        if self.empties >= back_off.threshold {
            self.pause = self.pause.mul_f64(back_off.multiplier).min(back_off.max);
        }
    }

    /// Whether a queue that does not exist yet may be what it waits for.
    fn is_open_ended(&self) -> bool {
        self.watched.queues.is_empty() || matches!(self.key.target, Target::Labels { .. })
    }

    fn is_concerned(&self, event: Event) -> bool {
        let named = matches!(self.key.target, Target::Partition { .. });
        let same = |partition| !named || self.watched.partition.is_none_or(|watched| watched == partition);
        match event {
            Event::Appended { partition, .. } => same(partition),
            Event::Freed { queue, group, partition } => {
                let watches = |place: &WatchedQueue| place.queue == queue && place.group == group;
                same(partition) && self.watched.queues.iter().any(watches)
            }
        }
    }
}
