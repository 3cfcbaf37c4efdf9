//! Jobs: work that is accepted once, run by some worker, tried again when it fails, and watched meanwhile.
//!
//! Each rule is a function over a [`Book`], which is one look at the store and the changes that follow from it; the
//! store runs it in one commit with everything it rests on. So every server of a database decides alike, and none
//! keeps a truth of its own. Always: an accepted job is kept until it has ended and its time is over; whoever shows
//! an old fence changes nothing; only the store's time ends a lease. Deliberately absent: exactly-once effects (a
//! worker that dies after its work and before its report sees the job run again), HTTP (`baton-server`), bytes on
//! disk (`baton-store`).
//!
//! Start at [`Jobs`], then `machine`, then `book`.
//!
//! # Where a job is
//!
//! Millions of jobs must be cheap, so no job has rows of its own:
//!
//! - Its *specification* (type, arguments, policy) is a message of a partition, one partition for each job queue, in
//!   a hidden queue of the store. So a batch of a thousand jobs is one packed segment. The job's id is that place.
//! - Its *slot* (state, fence, lease, attempts: what changes) stands in a *chunk*: one record for
//!   [`CHUNK`] neighbours. A batch that is leased or reported together changes a few records.
//! - Its *attempts* that did not simply succeed, and its result, are entries of a second partition, the queue's
//!   history; each points to the one before.
//!
//! | record | holds |
//! |---|---|
//! | `jobs/queue/{name}` | the number of the queue's partition |
//! | `jobs/head/{partition}` | name, settings, counts by state, and the *lanes*: which chunks hold dispatched jobs, by priority and type |
//! | `jobs/kinds/{partition}` | the names of its job types, by number |
//! | `jobs/chunk/{partition}/{number}` | the slots of a chunk |
//! | `jobs/due/{time}/{partition}/{number}` | a chunk in which something is due then, in the order of time |
//! | `jobs/permits/{page}` | concurrency keys: how many hold each, and who waits, as a list through the slots; `jobs/permits` is the number of pages |
//! | `jobs/unique/{hash}` | a unique key and the job that holds it |
//! | `jobs/after/{partition}/{offset}` | the jobs that depend on a job |
//! | `jobs/label/{kind}/{hash}/{job}` | a job with a tag, a correlation id or a schedule |
//! | `jobs/dead/{time}/{job}` | a dead letter, the newest first |
//! | `jobs/log/{job}/{number}` | lines of a job's log; `jobs/logs/{job}` tells where each execution's log stands |
//! | `jobs/worn/{time}/{job}` | when a job's log has had its time |
//! | `jobs/progress/{job}` | what a worker last said of its progress |
//! | `jobs/worker/{number}` | a worker |
//! | `jobs/idempotent/{hash}` | what a call with an idempotency key came to |
//! | `jobs/schedule/{id}` | a schedule |
//! | `jobs/fire/{time}/{id}` | a schedule that is to be looked at then, in the order of time |
//! | `jobs/leader`, `jobs/term` | the lease of the node that runs the duties, and how many terms there were |
//! | `jobs/node/{id}` | a node, kept fresh by itself; none where a store has one user |
//! | `jobs/event/{number}` | something that happened among nodes; `jobs/events` tells where the next one will be |
//! | `jobs/journal/{number}` | what one commit changed, while somebody watches a channel; `jobs/journal-end` is the last number |
//! | `jobs/owners` | which node owns which slice of the jobs, under which epoch |
//!
//! Lanes, counts and due entries are never written by a rule: the [`Book`] derives them from what the slots were and
//! what they have become, so they cannot drift apart. Jobs that wait for tomorrow stand in their chunk's due entry
//! and are not looked at before.
//!
//! # Leader duties
//!
//! What nobody asks for (jobs that become due, leases that run out, retention) is done by one node, the holder of
//! `jobs/leader`, in `duties`; each such commit is guarded by the lease's token.

mod audit;
mod availability;
pub mod beat;
pub mod book;
mod bulk;
mod cancel;
mod chunk;
pub mod cluster;
mod codec;
mod compact;
mod dead_letter;
pub mod due;
mod duties;
mod end;
pub mod enqueue;
mod error;
mod head;
pub mod history;
mod id;
mod idempotency;
mod jobs;
mod key;
mod lane;
mod leader;
mod lease;
pub mod limits;
mod log;
pub mod machine;
mod meter;
mod payload;
mod permit;
mod policy;
mod queue;
mod recount;
mod report;
pub mod schedule;
mod search;
mod spec;
mod state;
mod view;
mod wait;
mod wear;
mod worker;

pub use beat::{Beat, Heard, Held, Progress, ProgressAt};
pub use book::{Book, Changes, Halt, News};
pub use bulk::{Action, Done};
pub use chunk::{CHUNK, Slot};
pub use cluster::{ClusterEvent, ClusterView, Owner, Times};
pub use dead_letter::DeadLetters;
pub use enqueue::Enqueued;
pub use error::Error;
pub use head::{QueueSettings, Rate};
pub use history::JobError;
pub use id::{ExecutionId, JobId, Place, WorkerId};
pub use jobs::{Jobs, Leased, Leases, Options, Refused, Registered, Within};
pub use leader::Term;
pub use log::{Level, Line, LogPage, LogQuery, Logged, NewLine, NewLines};
pub use machine::Cancelled;
pub use meter::Numbers;
pub use payload::Brief;
pub use policy::Policy;
pub use queue::{HIDDEN, OTHER_SETTINGS, QueueView};
pub use report::{Report, Reported};
pub use search::{Filter, Page};
pub use spec::{Dependency, NORMAL, NewJob, OnConflict, PRIORITIES, Retry, Spec, Unique, UniqueScope, When};
pub use state::{Outcome, State, WaitReason};
pub use view::{Attempt, JobDetail, JobView};
pub use wait::Watch;
pub use worker::{Desired, NewWorker, Worker};
