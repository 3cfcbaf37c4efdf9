//! Work on many dead letters at once: what they died of, pushing them again, removing them.
//!
//! Always: a call looks at a bounded number of letters and says where the next one goes on, so millions take many short
//! calls. A letter is pushed again and removed in one commit. Of one partition the oldest message comes first, so messages
//! return in their order. Start at [`Broker::replay_letters`].

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use baton_store::{DeadLetter, DeadLetterKey, Queue, Tx, TxError, collect_misses};
use baton_types::{Offset, PartitionId, QueueId, Timestamp};

use super::dead_letters::{READ_AT_ONCE, push_again, reseal};
use super::{Broker, PAGE};
use crate::Error;
use crate::rules::seal::Sealer;

/// Letters that one call looks at when it must read them, and when their keys are enough.
const READ_MAX: usize = 10_000;
const KEYS_MAX: usize = 100_000;
/// Different errors that one call tells of.
const ERRORS_MAX: usize = 1_000;
/// How long a call with a rate may take: it pushes no more letters than the rate allows in this time.
const PACED_FOR: Duration = Duration::from_secs(5);

/// Which dead letters are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterFilter {
    /// Of this queue.
    pub queue: Option<String>,
    /// Of this partition.
    pub partition: Option<String>,
    /// Of this group.
    pub group: Option<String>,
    /// Given up at or after this moment.
    pub from: Option<Timestamp>,
    /// Given up at or before this moment.
    pub to: Option<Timestamp>,
    /// With exactly this error; an empty text means letters without one.
    pub error: Option<String>,
    /// With an error that contains this text.
    pub error_contains: Option<String>,
}

impl LetterFilter {
    fn wants_key(&self, key: &DeadLetterKey, failed_at: Timestamp) -> bool {
        self.group.as_deref().is_none_or(|group| *key.group == *group)
            && self.from.is_none_or(|from| failed_at >= from)
            && self.to.is_none_or(|to| failed_at <= to)
    }

    fn wants_error(&self, error: Option<&str>) -> bool {
        let error = error.unwrap_or_default();
        self.error.as_deref().is_none_or(|wanted| wanted == error)
            && self.error_contains.as_deref().is_none_or(|part| error.contains(part))
    }

    /// Whether keys do not say which letters are meant.
    fn needs_errors(&self) -> bool {
        self.error.is_some() || self.error_contains.is_some()
    }
}

/// Where the next call goes on: in a queue, after a letter of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterPlace {
    queue: QueueId,
    after: Option<DeadLetterKey>,
}

impl fmt::Display for LetterPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.queue)?;
        match &self.after {
            Some(key) => write!(f, ".{}.{}.{}", key.partition, key.offset, key.group),
            None => Ok(()),
        }
    }
}

impl FromStr for LetterPlace {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let unknown = || Error::Invalid("cursor must be the nextCursor of an earlier answer".into());
        let (queue, rest) = text.split_once('.').map_or((text, None), |(queue, rest)| (queue, Some(rest)));
        let queue: QueueId = queue.parse().map_err(|_| unknown())?;
        let Some(rest) = rest else { return Ok(Self { queue, after: None }) };
        let mut parts = rest.splitn(3, '.');
        let mut part = || parts.next().ok_or_else(unknown);
        let partition: PartitionId = part()?.parse().map_err(|_| unknown())?;
        let offset: Offset = part()?.parse().map_err(|_| unknown())?;
        let key = DeadLetterKey { queue, partition, offset, group: part()?.into() };
        Ok(Self { queue, after: Some(key) })
    }
}

/// What a call came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterProgress {
    /// Letters that the filter describes, among those that were looked at.
    pub matched: u64,
    /// Those that were pushed again, or removed.
    pub changed: u64,
    /// Those that stay, because their message was pushed again before, for another group.
    pub duplicates: u64,
    /// Why the call ended early: the letter at which it did stays.
    pub stopped: Option<String>,
    /// Where the next call goes on; `None` when all have been looked at.
    pub next: Option<LetterPlace>,
}

/// The letters that died of one error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterError {
    /// How many.
    pub count: u64,
    /// When the first died.
    pub first: Timestamp,
    /// When the last died.
    pub last: Timestamp,
    /// The last.
    pub sample: LetterSample,
}

/// One of several letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterSample {
    /// Where it is.
    pub key: DeadLetterKey,
    /// The name of its queue.
    pub queue: Arc<str>,
    /// The name of its partition.
    pub partition: Arc<str>,
    /// The transaction id of its message.
    pub transaction_id: String,
}

/// Letters by the text of their error.
pub type LetterErrors = BTreeMap<Option<String>, LetterError>;

/// What is done with letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Count,
    CountErrors,
    Replay,
    Remove,
}

/// What a decision came to.
#[derive(Default)]
struct Step {
    looked: usize,
    last: Option<DeadLetterKey>,
    matched: Vec<(DeadLetterKey, Timestamp)>,
    letters: Vec<(DeadLetter, Arc<str>)>,
    changed: u64,
    duplicates: u64,
}

impl Broker {
    /// How many letters a filter describes.
    pub async fn count_letters(
        &self,
        filter: LetterFilter,
        from: Option<LetterPlace>,
    ) -> Result<LetterProgress, Error> {
        Ok(self.work_on_letters(filter, Action::Count, from, usize::MAX, None).await?.0)
    }

    /// What letters died of. Each call tells of other letters, so counts of the same error are to be added up.
    pub async fn letter_errors(
        &self,
        filter: LetterFilter,
        from: Option<LetterPlace>,
    ) -> Result<(LetterErrors, LetterProgress), Error> {
        let (progress, errors) =
            self.work_on_letters(filter, Action::CountErrors, from, usize::MAX, None).await?;
        Ok((errors, progress))
    }

    /// Pushes up to `limit` letters again, `rate` a second if that is given.
    pub async fn replay_letters(
        &self,
        filter: LetterFilter,
        from: Option<LetterPlace>,
        limit: usize,
        rate: Option<f64>,
    ) -> Result<LetterProgress, Error> {
        Ok(self.work_on_letters(filter, Action::Replay, from, limit, rate).await?.0)
    }

    /// Removes up to `limit` letters with their messages' last copies.
    pub async fn remove_letters(
        &self,
        filter: LetterFilter,
        from: Option<LetterPlace>,
        limit: usize,
    ) -> Result<LetterProgress, Error> {
        Ok(self.work_on_letters(filter, Action::Remove, from, limit, None).await?.0)
    }

    async fn work_on_letters(
        &self,
        filter: LetterFilter,
        action: Action,
        mut from: Option<LetterPlace>,
        limit: usize,
        rate: Option<f64>,
    ) -> Result<(LetterProgress, LetterErrors), Error> {
        let mut queues = self.matching_queues(filter.queue.clone(), None, None).await?;
        queues.sort_by_key(|queue| queue.id);
        let begin = from.as_ref().map_or(QueueId(0), |place| place.queue);
        let reads = filter.needs_errors() || matches!(action, Action::CountErrors | Action::Replay);
        let (mut at_once, mut left) = if reads { (READ_AT_ONCE, READ_MAX) } else { (PAGE, KEYS_MAX) };
        let limit = rate.map_or(limit, |rate| limit.min(paced(rate)));
        let (mut progress, mut errors) = (LetterProgress::default(), LetterErrors::new());
        for queue in queues.into_iter().filter(|queue| queue.id >= begin) {
            let mut after = from.take().filter(|place| place.queue == queue.id).and_then(|place| place.after);
            let only = match filter.partition.clone() {
                Some(name) => {
                    let id = queue.id;
                    let Some(partition) = self.run(move |tx| tx.partition_id(id, &name)).await? else {
                        continue;
                    };
                    Some(partition)
                }
                None => None,
            };
            loop {
                let room = limit.saturating_sub(usize::try_from(progress.matched).unwrap_or(usize::MAX));
                if left == 0 || room == 0 || errors.len() >= ERRORS_MAX {
                    progress.next = Some(LetterPlace { queue: queue.id, after });
                    return Ok((progress, errors));
                }
                let count = at_once.min(left).min(room);
                let job =
                    (Arc::clone(&queue), filter.clone(), after.clone(), Arc::clone(&self.shared.sealer));
                let decide = move |tx: &mut dyn Tx| {
                    let (queue, filter, after, sealer) = &job;
                    step(tx, queue, filter, only, action, after.as_ref(), count, reads, sealer)
                };
                let step = match self.run(decide).await {
                    Ok(Ok(step)) => step,
                    // Perhaps there is room for some of them: one by one from here.
                    Ok(Err(_)) | Err(_) if at_once > 1 && action == Action::Replay => {
                        at_once = 1;
                        continue;
                    }
                    Ok(Err(error)) | Err(error) if progress.changed == 0 => return Err(error),
                    Ok(Err(error)) | Err(error) => {
                        progress.stopped = Some(error.to_string());
                        progress.next = Some(LetterPlace { queue: queue.id, after });
                        return Ok((progress, errors));
                    }
                };
                left = left.saturating_sub(step.looked);
                progress.matched += step.matched.len() as u64;
                progress.changed += step.changed;
                progress.duplicates += step.duplicates;
                if action == Action::CountErrors {
                    step.letters.into_iter().for_each(|letter| count_error(&mut errors, &queue, letter));
                }
                if step.looked < count {
                    break;
                }
                after = step.last;
                if let Some(rate) = rate.filter(|_| step.changed > 0) {
                    baton_env::sleep(Duration::from_secs_f64(step.changed as f64 / rate)).await;
                }
            }
        }
        Ok((progress, errors))
    }
}

/// How many letters a rate allows in one call; at least one.
fn paced(rate: f64) -> usize {
    // A cast of a float saturates.
    ((rate * PACED_FOR.as_secs_f64()) as usize).max(1)
}

fn count_error(errors: &mut LetterErrors, queue: &Arc<Queue>, (letter, partition): (DeadLetter, Arc<str>)) {
    let at = letter.failed_at;
    let sample = LetterSample {
        key: letter.key,
        queue: queue.spec.name.clone(),
        partition,
        transaction_id: letter.transaction_id,
    };
    match errors.get_mut(&letter.error) {
        Some(known) => {
            known.count += 1;
            known.first = known.first.min(at);
            if at >= known.last {
                known.last = at;
                known.sample = sample;
            }
        }
        None => {
            errors.insert(letter.error, LetterError { count: 1, first: at, last: at, sample });
        }
    }
}

/// Looks at the next `count` letters of a queue and does to those that are meant what `action` says.
#[expect(clippy::too_many_arguments, reason = "they are one request")]
fn step(
    tx: &mut dyn Tx,
    queue: &Queue,
    filter: &LetterFilter,
    only: Option<PartitionId>,
    action: Action,
    after: Option<&DeadLetterKey>,
    count: usize,
    reads: bool,
    sealer: &Sealer,
) -> Result<Result<Step, Error>, TxError> {
    let keys = tx.dead_letter_keys(queue.id, after, count)?;
    let mut step =
        Step { looked: keys.len(), last: keys.last().map(|(key, _)| key.clone()), ..Step::default() };
    step.matched = keys;
    step.matched.retain(|(key, failed_at)| {
        only.is_none_or(|only| only == key.partition) && filter.wants_key(key, *failed_at)
    });
    if reads {
        let mut letters = Vec::with_capacity(step.matched.len());
        collect_misses(&step.matched, |(key, _)| {
            let (letter, partition) = (tx.dead_letter(key), tx.partition_by_id(key.partition));
            let name = partition?.map(|partition| partition.name);
            letters.extend(letter?.zip(name));
            Ok(())
        })?;
        letters.retain(|(letter, _)| filter.wants_error(letter.error.as_deref()));
        step.matched = letters.iter().map(|(letter, _)| (letter.key.clone(), letter.failed_at)).collect();
        step.letters = letters;
    }
    match action {
        Action::Replay if !step.letters.is_empty() => {
            if let Err(error) = reseal_all(sealer, queue, &mut step.letters) {
                return Ok(Err(error));
            }
            let pushed = match push_again(tx, queue, &step.letters)? {
                Ok(pushed) => pushed,
                Err(error) => return Ok(Err(error)),
            };
            step.duplicates = pushed.iter().filter(|pushed| pushed.duplicate).count() as u64;
            step.changed = pushed.len() as u64 - step.duplicates;
            step.letters.clear();
        }
        Action::Remove => {
            step.matched.iter().for_each(|(key, _)| tx.remove_dead_letter(key));
            step.changed = step.matched.len() as u64;
        }
        Action::Count | Action::CountErrors | Action::Replay => {}
    }
    Ok(Ok(step))
}

/// Seals letters for their way back. Those that cannot be read are left out: they stay dead letters, and hold up no
/// other. A server without any key refuses instead.
fn reseal_all(
    sealer: &Sealer,
    queue: &Queue,
    letters: &mut Vec<(DeadLetter, Arc<str>)>,
) -> Result<(), Error> {
    let (mut opener, mut refused) = (sealer.opener(), None);
    letters.retain_mut(|(letter, partition)| match reseal(sealer, &mut opener, queue, partition, letter) {
        Ok(()) => true,
        Err(Error::KeyMissing(reason)) if sealer.can_seal() => {
            let (partition, offset) = (letter.key.partition.0, letter.key.offset.0);
            tracing::warn!(
                partition,
                offset,
                reason,
                "a dead letter cannot be decrypted and is not replayed"
            );
            false
        }
        Err(error) => {
            refused = refused.take().or(Some(error));
            false
        }
    });
    refused.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_can_be_written_and_read() {
        let queue = QueueId(7);
        let key = |group: &str| DeadLetterKey {
            queue,
            partition: PartitionId(3),
            offset: Offset(9),
            group: group.into(),
        };
        for after in [None, Some(key("g")), Some(key("a.b.c")), Some(key("__QUEUE_MODE__"))] {
            let place = LetterPlace { queue, after };
            assert_eq!(place.to_string().parse::<LetterPlace>().unwrap(), place);
        }
        for wrong in ["", "x", "1.2", "1.2.3", "1.2.x.g", "-1"] {
            assert!(wrong.parse::<LetterPlace>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_rate_allows_at_least_one_letter() {
        assert_eq!((paced(0.01), paced(5.0), paced(f64::MAX)), (1, 25, usize::MAX));
    }
}
