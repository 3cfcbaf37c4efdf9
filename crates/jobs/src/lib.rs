//! Jobs: work that is accepted once, run by a worker, tried again when it fails, and observable meanwhile.
//!
//! Each rule is a function of a unit of work: it reads the store, changes slots, and the unit of work derives the rest.
//! The store runs the rule in one commit that validates everything it read. So all servers of a database decide
//! alike, and no server keeps state of its own. Always: an accepted job is kept until it has ended and its retention
//! is over; a stale fence changes nothing; only the store's time ends a lease. Deliberately absent: exactly-once
//! effects (a worker that dies after its work and before its report causes another run), HTTP (`baton-server`), bytes
//! on disk (`baton-store`), calendars (`baton-schedules`).
//!
//! Start at [`Jobs`], then `rules::state_machine`, then `storage`.
//!
//! # Folders
//!
//! Each uses only those above it.
//!
//! | folder | what it is |
//! |---|---|
//! | `model` | plain data: ids, slots, chunks, queue heads, specifications, ownership, limits, record keys |
//! | `storage` | the unit of work over the store, and what follows from changed slots |
//! | `rules` | what each operation does: enqueue, lease, report, cancel, fire a schedule |
//! | `runtime` | what the tasks of one server share: notifiers, prefetch hints, counters, options |
//! | `maintenance` | the leader's loop: timeouts, schedules, retention, compaction, tallies |
//! | `nodes` | servers that share a store: membership, ownership, handoff, rebalance, channels |
//! | `service` | [`Jobs`], the handle that servers call |
//!
//! # Where a job is
//!
//! Millions of jobs must be cheap, so no job has rows of its own:
//!
//! - Its *specification* (type, arguments, policy) is a message. Each job queue has one partition for specifications, in
//!   a hidden queue of the store. So a batch of a thousand jobs is one packed segment. The job's id encodes the partition
//!   and the offset.
//! - Its *slot* (state, fence, lease, attempts: what changes) stands in a *chunk*, one record for [`CHUNK`] neighbours.
//!   A batch that is leased or reported together changes a few records.
//! - Its *attempts* that did not simply succeed, and its result, are entries of a second partition, the queue's history.
//!   Each entry points to the one before.
//!
//! | record | holds |
//! |---|---|
//! | `jobs/queue/{name}` | the number of the queue's partition |
//! | `jobs/head/{partition}` | name, settings, counts by state, and the *lanes*: which chunks hold dispatched jobs, by priority and type |
//! | `jobs/kinds/{partition}` | the names of its job types, by number |
//! | `jobs/chunk/{partition}/{number}` | the slots of a chunk |
//! | `jobs/due/{time}/{partition}/{number}` | the due index: a chunk in which something is due, ordered by time |
//! | `jobs/permits/{page}` | concurrency keys: how many jobs hold a permit of each, and the linked list of waiting jobs; `jobs/permits` is the number of pages |
//! | `jobs/unique/{hash}` | a unique key and the job that holds it |
//! | `jobs/after/{partition}/{offset}` | the jobs that depend on a job |
//! | `jobs/label/{kind}/{hash}/{job}` | a job with a tag, a correlation id or a schedule |
//! | `jobs/dead/{time}/{job}` | a dead letter, the newest first |
//! | `jobs/log/{job}/{number}` | lines of a job's log; `jobs/logs/{job}` holds how far each execution's log is |
//! | `jobs/worn/{time}/{job}` | when to remove a job's log |
//! | `jobs/progress/{job}` | the last progress that a worker reported |
//! | `jobs/worker/{number}` | a worker |
//! | `jobs/idempotent/{hash}` | the answer to a call with an idempotency key |
//! | `jobs/schedule/{id}` | a schedule |
//! | `jobs/fire/{time}/{id}` | the next check of a schedule, ordered by time |
//! | `jobs/leader`, `jobs/term` | the lease of the node that runs the maintenance, and the number of its term |
//! | `jobs/node/{id}` | a node, renewed by its own heartbeats; absent where one server uses the store |
//! | `jobs/event/{number}` | a cluster event; `jobs/events` is the number of the next one |
//! | `jobs/journal/{number}` | what one commit changed, while a client watches a channel; `jobs/journal-end` is the last number |
//! | `jobs/owners` | which node owns which slice of the jobs, under which epoch |
//!
//! No rule writes lanes, counts or due entries. The unit of work derives them from the slots before and after, so they
//! cannot drift apart. A job that is due tomorrow costs nothing until then: its chunk stands in the due index.
//!
//! # Maintenance
//!
//! Work that no request asks for (timeouts, ended leases, schedules, retention) belongs to one node: the holder of the
//! lease `jobs/leader`. Each such commit checks the lease's token.

mod maintenance;
mod model;
mod nodes;
mod rules;
mod runtime;
mod service;
mod storage;

pub use model::channel_names;
pub use model::error::Error;
pub use model::history_entry::JobError;
pub use model::ids::{CHUNK, ExecutionId, JobId, JobPosition, WorkerId};
pub use model::limits;
pub use model::new_job::{Dependency, NORMAL, NewJob, OnConflict, PRIORITIES, Unique, UniqueScope, When};
pub use model::node_times::ClusterTimes;
pub use model::ownership::{HandoffCase, OwnershipReason, SLICES};
pub use model::payload::DeliveredSpec;
pub use model::policy::Policy;
pub use model::queue_head::{QueueSettings, Rate};
pub use model::retry::Retry;
pub use model::spec::Spec;
pub use model::state::{Outcome, State, WaitReason};
pub use model::worker::{Desired, NewWorker, Worker};
pub use nodes::node_record::{Node, NodeState};
pub use rules::enqueue::Enqueued;
pub use rules::heartbeat::{Heartbeat, HeartbeatReply, HeldJob, Progress, ProgressAt};
pub use rules::job_view::{Attempt, JobDetail, JobView};
pub use rules::logs::{LogAppended, LogLevel, LogLine, LogPage, LogQuery, NewLogLine, NewLogLines};
pub use rules::queues::{HIDDEN, OTHER_SETTINGS, QueueView};
pub use rules::reporting::{Report, Reported};
pub use rules::schedules as schedule;
pub use rules::search::{Filter, JobPage};
pub use rules::state_machine::Cancelled;
pub use runtime::meter::JobCounters;
pub use runtime::notifiers::JobWatch;
pub use runtime::options::Options;
pub use service::{
    BulkAction, ClusterEvent, ClusterView, DeadLetters, Done, Jobs, JobsInTx, Leased, Leases, NodeView,
    Owner, Refused, Registered,
};
pub use storage::{Changes, CommitEffects};
