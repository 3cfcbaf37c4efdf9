//! Limits of jobs, each with its reason, and default times.

use std::time::Duration;

/// Jobs of one call: one commit stays a fraction of a second.
pub const BATCH_JOBS_MAX: usize = 1_000;
/// Bytes of a job's arguments: jobs carry references, not files.
pub const ARGS_BYTES_MAX: usize = 1 << 20;
/// Bytes of arguments of one batch.
pub const BATCH_BYTES_MAX: usize = 16 << 20;
/// Bytes of a result; a larger one belongs elsewhere, with a reference to it.
pub const RESULT_BYTES_MAX: usize = 256 << 10;
/// Bytes of an error's text; more is cut off.
pub const ERROR_BYTES_MAX: usize = 8 << 10;
/// Bytes of a name: a job type, a queue, a tag, a key.
pub const NAME_BYTES_MAX: usize = 255;
/// Tags of a job: each is a row.
pub const TAGS_MAX: usize = 16;
/// Jobs that a job may depend on.
pub const DEPENDS_MAX: usize = 100;
/// Jobs that may depend on one job: they change in the commit in which it ends.
pub const DEPENDENTS_MAX: usize = 1_000;
/// Job types of one queue: each can have a lane of its own.
pub const KINDS_MAX: usize = 1_000;
/// Job queues.
pub const QUEUES_MAX: usize = 10_000;
/// The largest weight of a queue.
pub const WEIGHT_MAX: u32 = 1_000;
/// Queues that a worker may serve.
pub const WORKER_QUEUES_MAX: usize = 64;
/// Job types that a worker may name.
pub const WORKER_KINDS_MAX: usize = 256;
/// Jobs to stop that the server queues for a worker's next heartbeat.
pub const WORKER_STOPS_MAX: usize = 100;
/// Workers registered at a time.
pub const WORKERS_MAX: usize = 10_000;
/// Jobs that one lease call may take.
pub const LEASE_JOBS_MAX: usize = 1_000;
/// Bytes of arguments in one lease response.
pub const LEASE_BYTES_MAX: usize = 16 << 20;
/// Outcomes of one report.
pub const REPORTS_MAX: usize = 1_000;
/// Jobs that a heartbeat may list.
pub const BEAT_JOBS_MAX: usize = 10_000;
/// The longest wait of a lease call, or for a job's end.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// Retries that a job may ask for.
pub const RETRIES_MAX: u32 = 1_000;
/// How far ahead a job may be due.
pub const DELAY_MAX: Duration = Duration::from_secs(5 * 365 * 24 * 3600);
/// The longest timeout of a job.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// The longest window of a unique key.
pub const WINDOW_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Permits of a concurrency key.
pub const PERMITS_MAX: u32 = 100_000;
/// Bytes of a line of a log; more is cut off.
pub const LINE_BYTES_MAX: usize = 16 << 10;
/// Lines of one call.
pub const LINES_MAX: usize = 1_000;
/// Lines that are kept of one execution, at least. Older lines are dropped and counted, and readers see a gap.
pub const LINES_KEPT_MAX: u64 = 10_000;
/// A job fails after this many lost executions: the job itself may be what kills its workers.
pub const LOSSES_MAX: u32 = 3;
/// Lines or events of one call are split into records of this many bytes.
pub const SPLIT_BYTES: usize = 256 << 10;
/// Entries of one page of a listing.
pub const PAGE_MAX: usize = 1_000;
/// Chunks that one page of a listing reads, so that no search delays other work.
pub const PAGE_CHUNKS_MAX: usize = 256;
/// Ranges of chunks in a lane. Beyond that, neighbouring ranges are joined and the empty chunks between them are
/// read, too.
pub const LANE_RANGES_MAX: usize = 1_024;

/// The timeout of a job that sets none.
pub const TIMEOUT: Duration = Duration::from_secs(300);
/// How long a worker may be silent before its jobs go to others.
pub const LEASE: Duration = Duration::from_secs(30);
/// How often a worker should send a heartbeat.
pub const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long a worker has to stop a cancelled job.
pub const CANCEL_GRACE: Duration = Duration::from_secs(30);
/// How long a completed or cancelled job is kept.
pub const COMPLETED_FOR: Duration = Duration::from_secs(24 * 3600);
/// How long a failed job, a dead letter and a job's history are kept.
pub const FAILED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long the log of a job is kept after its end.
pub const LOGS_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long an idempotency key is remembered.
pub const IDEMPOTENT_FOR: Duration = Duration::from_secs(24 * 3600);
/// How long a silent worker stays listed.
pub const WORKER_FOR: Duration = Duration::from_secs(3600);
/// How long the reason of a cancellation is kept for the worker; afterwards the job's history has it.
pub const CANCEL_REASON_FOR: Duration = Duration::from_secs(24 * 3600);
/// Lost executions count against a job only within this time.
pub const LOSSES_WITHIN: Duration = Duration::from_secs(72 * 3600);
/// A waiting job gains one priority after each of these, so that no job starves.
pub const AGEING: Duration = Duration::from_secs(60);
