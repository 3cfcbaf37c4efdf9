//! Idempotency keys: a call that is repeated because its answer was lost is answered as the first time.

use serde::{Deserialize, Serialize};

use crate::book::{Book, Halt};
use crate::enqueue::Enqueued;
use crate::id::JobId;
use crate::key;
use crate::limits::IDEMPOTENT_FOR;
use crate::state::State;

#[derive(Serialize, Deserialize)]
struct Answered(JobId, State, bool);

/// Runs `rule` unless a call with this key has been answered.
pub fn once(
    book: &mut Book<'_>,
    key: Option<&str>,
    rule: impl FnOnce(&mut Book<'_>) -> Result<Vec<Enqueued>, Halt>,
) -> Result<Vec<Enqueued>, Halt> {
    let Some(key) = key else { return rule(book) };
    let place = key::idempotent(key);
    if let Some(value) = book.record(&place)?
        && let Ok(answered) = serde_json::from_slice::<Vec<Answered>>(&value)
    {
        let again =
            |Answered(job_id, state, deduplicated)| Enqueued { job_id, state, run_at: None, deduplicated };
        return Ok(answered.into_iter().map(again).collect());
    }
    let answer = rule(book)?;
    let kept: Vec<_> = answer.iter().map(|one| Answered(one.job_id, one.state, one.deduplicated)).collect();
    let until = book.now().after(IDEMPOTENT_FOR);
    book.put(place, serde_json::to_vec(&kept).unwrap_or_default(), Some(until));
    Ok(answer)
}
