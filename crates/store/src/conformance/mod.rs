//! The conformance suite: the behaviours that every backend must show, written against [`Store`] and [`Tx`].
//!
//! A backend says how to open, reopen and crash it ([`Backend`]) and enrols with one line,
//! `baton_store::conformance!(MyBackend)`, which makes a test of every behaviour here. Always: a behaviour knows
//! nothing of the backend, moves time only by hand, and waits for answers, never for time. Not here: speed, damaged
//! files, full disks (those are each backend's own tests).
//!
//! Start at [`TestStore`], then read any file: one per table.

#![allow(
    clippy::unwrap_used,
    clippy::unit_arg,
    clippy::type_complexity,
    clippy::cloned_ref_to_slice_refs,
    missing_docs,
    reason = "a test suite; the names of the behaviours are sentences"
)]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use baton_env::ManualClock;
use baton_types::{GroupId, Offset, PartitionId, QueueId, QueueOptions, Timestamp};

use crate::{
    BoxFuture, Cursor, Durability, Error, GroupSpec, GroupStart, MessageBlock, NewMessage, QueueSpec, Store,
    StoredMessage, Tx, TxError, submit,
};

pub mod cursor;
pub mod dead_letter;
pub mod decision;
pub mod group;
pub mod idempotency;
pub mod message;
pub mod model;
pub mod queue;
pub mod record;
pub mod remembered;
pub mod time;

/// How the suite controls a backend.
pub trait Backend: Sized + Send + Sync + 'static {
    /// A new empty location for data.
    fn empty() -> impl Future<Output = Self> + Send;

    /// Opens the store at this location.
    fn open(&self, clock: Arc<ManualClock>) -> impl Future<Output = Arc<dyn Store>> + Send;

    /// Ends `store` as a crash would. Returns the location of the data that survived.
    fn crash(self, store: Arc<dyn Store>) -> impl Future<Output = Self> + Send;
}

/// Makes one test of every behaviour for a [`Backend`].
#[macro_export]
macro_rules! conformance {
    ($backend:ty) => {
        $crate::conformance! { @ $backend;
            time:
                now_rises_strictly_though_the_clock_stands_still
                a_step_of_the_clock_neither_stops_time_nor_skips_any
                the_store_follows_a_clock_that_was_stepped
                now_rises_over_a_restart_though_the_clock_goes_back
                the_store_tells_the_time_of_the_last_decision_or_later
                no_token_is_given_twice_and_each_is_higher_than_the_last
                tokens_and_versions_are_exact_as_doubles;
            record:
                a_record_is_read_as_it_was_written
                a_version_is_higher_than_every_one_before
                versions_do_not_begin_again_after_removal_or_restart
                a_record_expires_by_store_time
                an_expired_record_can_be_written_again
                a_removed_record_is_gone
                a_scan_tells_a_prefix_in_order
                a_scan_goes_on_after_a_key_and_stops_at_the_limit
                a_scan_after_a_key_before_the_prefix_begins_with_the_prefix
                a_scan_sees_uncommitted_writes_and_removals_among_stored_rows
                a_record_that_is_too_large_is_refused
                the_last_of_several_writes_in_one_commit_stays;
            idempotency:
                the_first_answer_is_kept_for_the_same_request
                an_answer_expires_with_its_key;
            queue:
                a_queue_is_found_by_name_and_number
                a_queue_is_changed_in_place
                queues_are_told_in_the_order_of_their_creation
                partitions_are_found_and_paged_by_number
                hundreds_of_partitions_are_found_and_filled_in_one_decision
                numbers_are_never_used_again
                a_removed_queue_takes_everything_with_it
                a_queue_of_the_same_name_begins_empty
                a_queue_made_and_removed_in_one_decision_leaves_nothing;
            message:
                messages_come_back_as_they_were_pushed
                offsets_are_dense
                appends_of_one_commit_are_read_in_order
                a_message_is_seen_by_the_decision_that_appended_it
                a_read_tells_the_segments_that_touch_the_range
                a_read_stops_after_the_segment_that_passes_the_bound
                a_read_of_nothing_is_empty
                partitions_do_not_see_each_others_messages
                the_row_tells_when_the_oldest_and_newest_message_came
                a_moment_is_found_among_stored_and_uncommitted_messages
                a_trim_moves_the_start_exactly
                a_trim_beyond_the_tail_stops_at_the_tail
                a_trim_backwards_changes_nothing
                trimmed_messages_are_not_read_once_their_segment_is_gone
                messages_trimmed_before_they_were_committed_are_gone
                offsets_go_on_after_everything_was_trimmed
                a_deleted_message_is_marked_until_it_is_trimmed;
            remembered:
                a_transaction_id_is_remembered_for_its_window
                a_transaction_id_is_forgotten_some_time_after_its_window
                the_newest_of_two_messages_with_one_id_is_told
                the_newest_is_told_also_when_its_window_is_shorter
                a_transaction_id_belongs_to_its_partition
                an_id_is_remembered_also_when_its_message_is_gone
                without_a_window_nothing_is_remembered
                remembered_ids_outlive_a_restart;
            group:
                a_group_is_found_by_name_and_number
                groups_are_told_by_name
                a_group_of_the_same_name_replaces_and_voids_the_old_one
                a_store_that_lists_the_places_of_a_group_lists_each
                a_removed_group_takes_its_cursors_and_leases_with_it
                a_group_from_the_oldest_sees_everything_kept
                a_group_from_a_moment_sees_what_came_since
                a_group_from_now_sees_what_is_pushed_in_the_same_commit_after_it
                a_group_from_a_later_moment_does_not_see_what_comes_before_it
                a_group_sees_partitions_that_come_later;
            cursor:
                there_is_no_cursor_before_the_first_is_written
                a_cursor_is_read_as_it_was_written
                a_cursor_of_an_unknown_group_or_partition_is_not_kept
                a_lease_is_found_by_its_id_until_it_is_given_back
                a_lease_may_hold_several_partitions
                only_partitions_with_work_are_offered
                a_partition_is_offered_when_its_time_has_come
                the_next_moment_is_that_of_the_first_partition_with_work
                the_next_moment_forgets_what_was_trimmed
                the_partition_offered_longest_ago_comes_first
                none_starves_among_many
                a_leased_partition_keeps_its_turn
                a_cursor_that_goes_back_is_offered_again
                backlog_counts_what_is_neither_finished_nor_deleted_nor_trimmed;
            dead_letter:
                a_letter_is_read_as_it_was_written
                a_letter_of_the_same_key_replaces_the_old_one
                letters_are_told_newest_first_and_paged
                letters_of_one_moment_are_paged_without_loss
                keys_of_letters_are_paged_by_partition_without_loss
                a_removed_letter_is_gone
                letters_belong_to_their_queue
                letters_are_seen_before_they_are_committed;
            decision:
                decisions_run_as_if_one_after_the_other
                a_decision_that_fails_before_it_writes_leaves_nothing
                a_decision_that_fails_after_it_wrote_is_undone
                a_decision_that_panics_is_undone
                a_decision_sees_its_own_writes
                decisions_begun_in_order_are_run_in_order
                an_answered_decision_outlives_a_crash
                a_write_that_was_read_outlives_a_crash
                a_listener_hears_of_new_messages
                a_listener_hears_of_a_partition_that_is_free_again
                a_decision_of_a_listener_sees_the_change_of_its_event
                closing_finishes_submitted_decisions
                a_closed_store_says_so
                statistics_count_the_work;
            model:
                random_work_agrees_with_a_plain_model
                random_work_that_is_waited_for_agrees_with_a_plain_model
                random_records_agree_with_a_plain_model;
        }
    };
    (@ $backend:ty; $($module:ident: $($name:ident)*;)*) => {
        $(mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    $crate::conformance::$module::$name::<$backend>().await;
                }
            )*
        })*
    };
}

/// How a store is closed before it is opened again.
#[derive(Clone, Copy, Debug)]
pub enum Restart {
    Not,
    Close,
    Crash,
}

impl Restart {
    /// First without a restart, then with each kind.
    pub const ALL: [Self; 3] = [Self::Not, Self::Close, Self::Crash];
}

/// The start time of every test.
pub const START_TIME: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
/// A typical dedup window.
pub const WINDOW: Duration = Duration::from_secs(60);

/// An open store with a test clock, and shorthands for common steps.
pub struct TestStore<B> {
    backend: Option<B>,
    store: Option<Arc<dyn Store>>,
    pub clock: Arc<ManualClock>,
}

impl<B: Backend> TestStore<B> {
    /// An empty store.
    pub async fn new() -> Self {
        let (backend, clock) = (B::empty().await, Arc::new(ManualClock::new(START_TIME)));
        let store = backend.open(clock.clone()).await;
        Self { backend: Some(backend), store: Some(store), clock }
    }

    pub fn store(&self) -> &dyn Store {
        &**self.store.as_ref().unwrap()
    }

    pub fn shared_store(&self) -> Arc<dyn Store> {
        self.store.clone().unwrap()
    }

    pub async fn restart(&mut self, how: Restart) {
        match how {
            Restart::Not => return,
            Restart::Close => {
                self.store().close().await.unwrap();
                self.store = None;
            }
            Restart::Crash => {
                let (backend, store) = (self.backend.take().unwrap(), self.store.take().unwrap());
                self.backend = Some(backend.crash(store).await);
            }
        }
        self.store = Some(self.backend.as_ref().unwrap().open(self.clock.clone()).await);
    }

    /// Submits a decision at once; awaiting the future returns the answer.
    pub fn submit<R: Send + 'static>(
        &self,
        decide: impl FnMut(&mut dyn Tx) -> Result<R, TxError> + Send + 'static,
    ) -> BoxFuture<'static, Result<R, Error>> {
        Box::pin(submit(self.store(), decide))
    }

    /// Runs a decision that must succeed.
    pub async fn run<R: Send + 'static>(
        &self,
        decide: impl FnMut(&mut dyn Tx) -> Result<R, TxError> + Send + 'static,
    ) -> R {
        self.submit(decide).await.unwrap()
    }

    pub async fn queue(&self, name: &'static str) -> QueueId {
        self.run(move |tx| Ok(tx.put_queue(queue_spec(name))?.id)).await
    }

    pub async fn partition(&self, queue: QueueId, name: &'static str) -> PartitionId {
        self.run(move |tx| Ok(tx.create_partition(queue, name))).await
    }

    /// A queue with one partition.
    pub async fn queue_with_partition(&self) -> (QueueId, PartitionId) {
        let queue = self.queue("q").await;
        (queue, self.partition(queue, "p").await)
    }

    pub async fn group(&self, queue: QueueId, name: &'static str, start: GroupStart) -> GroupId {
        self.run(move |tx| Ok(put_group(tx, queue, name, start))).await
    }

    pub async fn push(&self, partition: PartitionId, payloads: &[&str]) -> Offset {
        let block = block(payloads);
        self.run(move |tx| Ok(tx.append(partition, &block, Duration::ZERO).first)).await
    }

    pub async fn trim(&self, partition: PartitionId, start: u64) {
        self.run(move |tx| tx.trim(partition, Offset(start))).await;
    }

    pub async fn put_cursor(&self, group: GroupId, partition: PartitionId, cursor: Cursor) {
        self.run(move |tx| {
            tx.put_cursor(group, partition, cursor.clone(), Durability::Now);
            Ok(())
        })
        .await;
    }

    /// The messages from `from` to before `to`, read segment by segment as a consumer would.
    pub async fn messages(&self, partition: PartitionId, from: u64, to: u64) -> Vec<StoredMessage> {
        let segments = self.store().read(partition, Offset(from), Offset(to), usize::MAX).await.unwrap();
        let messages = segments.iter().flat_map(|s| s.messages().collect::<Vec<_>>()).map(Result::unwrap);
        messages.filter(|m| (from..to).contains(&m.offset.0)).collect()
    }

    /// The payloads from `from` to before `to`.
    pub async fn payloads(&self, partition: PartitionId, from: u64, to: u64) -> Vec<String> {
        let messages = self.messages(partition, from, to).await;
        messages.iter().map(|m| String::from_utf8(m.payload.to_vec()).unwrap()).collect()
    }
}

pub fn queue_spec(name: &str) -> QueueSpec {
    QueueSpec { name: name.into(), namespace: "".into(), task: "".into(), options: QueueOptions::default() }
}

pub fn put_group(tx: &mut dyn Tx, queue: QueueId, name: &str, start: GroupStart) -> GroupId {
    let subscribed_at = tx.now();
    tx.put_group(queue, &GroupSpec { name, start, subscribed_at, conflation: false }).id
}

pub fn block(payloads: &[&str]) -> MessageBlock {
    let mut block = MessageBlock::default();
    for payload in payloads {
        block.push(&NewMessage { payload: payload.as_bytes(), ..NewMessage::default() });
    }
    block
}

/// Messages whose transaction ids are their payloads.
pub fn named_block(payloads: &[&str]) -> MessageBlock {
    let mut block = MessageBlock::default();
    for payload in payloads {
        let message =
            NewMessage { transaction_id: Some(payload), payload: payload.as_bytes(), ..Default::default() };
        block.push(&message);
    }
    block
}

/// A cursor at `next`.
pub fn cursor_at(next: u64) -> Cursor {
    Cursor { next: Offset(next), ..Cursor::default() }
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    /// A behaviour that is missing in the list would never run.
    #[test]
    fn every_behaviour_is_in_the_list() {
        let list = include_str!("mod.rs");
        for (module, text) in [
            ("cursor", include_str!("cursor.rs")),
            ("dead_letter", include_str!("dead_letter.rs")),
            ("decision", include_str!("decision.rs")),
            ("group", include_str!("group.rs")),
            ("message", include_str!("message.rs")),
            ("model", include_str!("model.rs")),
            ("queue", include_str!("queue.rs")),
            ("record", include_str!("record.rs")),
            ("remembered", include_str!("remembered.rs")),
            ("time", include_str!("time.rs")),
        ] {
            let written = text.matches("pub async fn ").count();
            let section = list.split(&format!("            {module}:\n")).nth(1).unwrap();
            let listed = section.split(';').next().unwrap().split_whitespace().count();
            assert_eq!(written, listed, "{module}");
        }
    }
}
