//! Bulk actions: change many jobs, a page at a time, so that nothing else waits long.

use crate::model::error::Error;
use crate::model::ids::JobId;
use crate::model::limits::PAGE_MAX;
use crate::model::state::State;
use crate::rules::cancellation;
use crate::rules::search::Filter;
use crate::rules::state_machine::Cancelled;
use crate::service::Jobs;
use crate::storage::{Abort, each};

/// What to do with each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkAction {
    /// Cancel it.
    Cancel,
    /// Retry it.
    Retry,
}

/// The result of a bulk action, or of its dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Jobs that match the filter and can be changed.
    pub matched: u64,
    /// Jobs that were changed.
    pub changed: u64,
    /// A few of them.
    pub sample: Vec<JobId>,
    /// The cursor for the next call, if there are more.
    pub next: Option<String>,
}

/// Pages of one call.
const PAGES_MAX: usize = 50;
const SAMPLE_MAX: usize = 10;

impl Jobs {
    /// Changes all jobs that match `filter`; a dry run only counts them.
    pub async fn bulk(
        &self,
        action: BulkAction,
        mut filter: Filter,
        cursor: Option<String>,
        dry_run: bool,
    ) -> Result<Done, Error> {
        let fits = |state: &State| match action {
            BulkAction::Cancel => !state.is_terminal() && *state != State::Cancelling,
            BulkAction::Retry => state.is_terminal() && !matches!(state, State::Completed | State::Gone),
        };
        let asked =
            if filter.states.is_empty() { State::ALL.to_vec() } else { std::mem::take(&mut filter.states) };
        filter.states = asked.into_iter().filter(fits).collect();
        if filter.states.is_empty() {
            return Err(Error::invalid("no job in these states can be changed so"));
        }
        // Jobs that match only later are left alone, or a retry that fails at once would never end.
        let (mut done, mut cursor) = (Done::default(), cursor);
        for _ in 0..PAGES_MAX {
            let page = self.search(filter.clone(), cursor.clone(), PAGE_MAX).await?;
            let ids: Vec<JobId> = page.jobs.iter().map(|job| job.id).collect();
            done.matched += ids.len() as u64;
            done.sample.extend(ids.iter().take(SAMPLE_MAX - done.sample.len().min(SAMPLE_MAX)));
            if !dry_run && !ids.is_empty() {
                done.changed += self.change(action, ids).await?;
            }
            cursor = page.next;
            if cursor.is_none() {
                return Ok(done);
            }
        }
        done.next = cursor;
        Ok(done)
    }

    async fn change(&self, action: BulkAction, ids: Vec<JobId>) -> Result<u64, Error> {
        self.shared
            .decide(move |tx| {
                tx.prefetch_slots(ids.iter().filter_map(|id| id.position()))?;
                let changed = each(&ids, |id| {
                    let Some(position) = tx.find(*id)? else { return Ok(0) };
                    let state = tx.slot(position)?.map_or(State::Gone, |slot| slot.state);
                    let did = match action {
                        BulkAction::Cancel => {
                            cancellation::cancel(tx, *id, false, None)? != Cancelled::TooLate
                        }
                        BulkAction::Retry if state.is_terminal() => {
                            match cancellation::retry(tx, *id, true, None, None) {
                                Err(Abort::Refused(_)) => false,
                                other => other.map(|_| true)?,
                            }
                        }
                        BulkAction::Retry => false,
                    };
                    Ok(u64::from(did))
                })?;
                Ok(changed.into_iter().sum())
            })
            .await
    }
}
