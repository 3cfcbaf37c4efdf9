//! Idempotency keys: a repeated call that makes jobs gets the first answer.

use baton_store::{IdempotencyKey, RequestMatch};
use baton_types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::error::Error;
use crate::model::ids::JobId;
use crate::model::keys;
use crate::model::limits::IDEMPOTENT_FOR;
use crate::model::state::State;
use crate::rules::enqueue::Enqueued;
use crate::storage::{Abort, JobsTx};

/// The error code for a key that another request has used.
pub const KEY_REUSED: &str = "idempotency_key_reused";

#[derive(Serialize, Deserialize)]
struct StoredAnswer(JobId, State, bool, #[serde(default)] Option<Timestamp>);

/// Runs `rule` unless the key already has an answer to the same request. Another request under the key is refused.
pub fn run_once(
    tx: &mut JobsTx<'_>,
    key: Option<&IdempotencyKey>,
    rule: impl FnOnce(&mut JobsTx<'_>) -> Result<Vec<Enqueued>, Abort>,
) -> Result<Vec<Enqueued>, Abort> {
    let Some(key) = key else { return rule(tx) };
    let position = keys::idempotent(&key.key);
    if let Some(record) = tx.record(&position)? {
        let RequestMatch::Same(answer) = key.compare(&record) else {
            let message =
                "this idempotency key came with another request before; use a new key for a new request";
            return Err(Error::conflict(KEY_REUSED, message).into());
        };
        if let Ok(answered) = serde_json::from_slice::<Vec<StoredAnswer>>(answer) {
            let again = |StoredAnswer(job_id, state, deduplicated, run_at)| Enqueued {
                job_id,
                state,
                run_at,
                deduplicated,
            };
            return Ok(answered.into_iter().map(again).collect());
        }
    }
    let answer = rule(tx)?;
    let kept: Vec<_> =
        answer.iter().map(|one| StoredAnswer(one.job_id, one.state, one.deduplicated, one.run_at)).collect();
    let until = tx.now().after(IDEMPOTENT_FOR);
    tx.put(position, key.encode_record(&serde_json::to_vec(&kept).unwrap_or_default()), Some(until));
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_an_earlier_version_is_read() {
        let text = r#"[["01900000-0000-7000-8000-000000000001","dispatched",false]]"#;
        let answered: Vec<StoredAnswer> = serde_json::from_str(text).unwrap();
        assert_eq!((answered[0].1, answered[0].3), (State::Dispatched, None));
    }
}
