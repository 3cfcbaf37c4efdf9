//! The statements that fetch rows.

pub const BEGIN: &str = "BEGIN";
pub const ROLLBACK: &str = "ROLLBACK";

/// The database's time in microseconds, the versions of the catalog and the records, and the number of all
/// commits.
pub const VERSIONS: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    (SELECT number FROM versions WHERE name = 'structure'), (SELECT number FROM versions WHERE name = 'records'),
    (SELECT coalesce(sum(commits_made), 0)::bigint FROM servers)";

/// Counts the partitions that still have these versions.
pub const COUNT_UNCHANGED: &str = "SELECT count(*) FROM unnest($1::bigint[], $2::bigint[]) w (id, version)
    JOIN partitions p ON p.id = w.id AND p.version = w.version";

/// Only as the first lock of a transaction: a transaction that holds another lock never waits for these.
pub const LOCK_VERSIONS: &str = "SELECT number FROM versions WHERE name = ANY($1) ORDER BY name FOR UPDATE";

/// The numbers of partitions: those given, those with the given names, and those of the given queues.
macro_rules! any_of {
    () => {
        "ANY($1::bigint[]
            || ARRAY(SELECT p.id FROM unnest($2::bigint[], $3::text[]) w (queue_id, name)
                JOIN partitions p ON p.queue_id = w.queue_id AND p.name = w.name)
            || ARRAY(SELECT id FROM partitions WHERE queue_id = ANY($4::bigint[])))"
    };
}

/// Partitions with all their slots, in one snapshot.
pub const PARTITIONS: &str = concat!(
    "SELECT p.id, p.queue_id, p.name, p.start, p.tail, p.created_at, p.first_at, p.last_at, p.deleted, p.version,
        s.partition_id, s.group_id, s.next, s.line, s.lease_id, s.body
    FROM partitions p LEFT JOIN slots s ON s.partition_id = p.id WHERE p.id = ",
    any_of!()
);

/// Selects by numbers that are known before the first lock. PostgreSQL re-evaluates a row that changed while
/// its lock was awaited, but not the rows joined to it; a join here would return stale slots.
pub const PARTITIONS_LOCKED: &str = concat!(
    "SELECT id, queue_id, name, start, tail, created_at, first_at, last_at, deleted, version FROM partitions WHERE id = ",
    any_of!(),
    " ORDER BY id FOR UPDATE"
);
/// Waits for no lock: leaves out what others hold. Their number is compared with [`PARTITION_COUNT`]; with
/// `NOWAIT` PostgreSQL would log an error each time.
pub const PARTITIONS_SKIP_LOCKED: &str = concat!(
    "SELECT id, queue_id, name, start, tail, created_at, first_at, last_at, deleted, version FROM partitions WHERE id = ",
    any_of!(),
    " ORDER BY id FOR UPDATE SKIP LOCKED"
);
pub const PARTITION_COUNT: &str = concat!("SELECT count(*) FROM partitions WHERE id = ", any_of!());
pub const SLOTS: &str = concat!(
    "SELECT partition_id, group_id, next, line, lease_id, body FROM slots WHERE partition_id = ",
    any_of!()
);

pub const PARTITION_PAGE: &str = "
    SELECT id, queue_id, name, start, tail, created_at, first_at, last_at, deleted, version FROM partitions
    WHERE queue_id = $1 AND id > $2 ORDER BY id LIMIT $3";

pub const PARTITION_PAGE_SLOTS: &str = "
    SELECT partition_id, group_id, next, line, lease_id, body FROM slots WHERE partition_id IN (
        SELECT id FROM partitions WHERE queue_id = $1 AND id > $2 ORDER BY id LIMIT $3)";

/// Ready partitions of a group with all their slots and their `ready_at`, in one snapshot. `WITH TIES`
/// returns all that share the last `ready_at`, so that the ready index is complete up to it.
pub const READY: &str =
    "SELECT p.id, p.queue_id, p.name, p.start, p.tail, p.created_at, p.first_at, p.last_at, p.deleted, p.version,
        s.partition_id, s.group_id, s.next, s.line, s.lease_id, s.body, r.line
    FROM (SELECT s.partition_id, s.line FROM slots s JOIN partitions p ON p.id = s.partition_id
        WHERE s.group_id = $1 AND s.line <= $2 ORDER BY s.line FETCH FIRST ($3) ROWS WITH TIES) r
    JOIN partitions p ON p.id = r.partition_id JOIN slots s ON s.partition_id = p.id ORDER BY r.line, p.id";

/// Ready partitions of a group, locked, each with the slot of that group only.
pub const READY_LOCKED: &str =
    "SELECT p.id, p.queue_id, p.name, p.start, p.tail, p.created_at, p.first_at, p.last_at, p.deleted, p.version,
        s.partition_id, s.group_id, s.next, s.line, s.lease_id, s.body, s.line
    FROM slots s JOIN partitions p ON p.id = s.partition_id
    WHERE s.group_id = $1 AND s.line <= $2 ORDER BY s.line LIMIT $3 FOR UPDATE OF p, s SKIP LOCKED";
/// The first column of the slot in a row of a partition with its slot.
pub const SLOT_COLUMN: usize = 10;
/// The column of `ready_at` in a row of a ready partition.
pub const READY_AT_COLUMN: usize = 16;

/// What is ready for a group, whether others have locked it or not.
pub const READY_OR_LOCKED: &str =
    "SELECT partition_id, line FROM slots WHERE group_id = $1 AND line <= $2 ORDER BY line LIMIT $3";

pub const UPCOMING: &str =
    "SELECT partition_id, line FROM slots WHERE group_id = $1 AND line > $2 ORDER BY line LIMIT $3";

pub const MESSAGE_AND_PARTITION_COUNTS: &str = "SELECT coalesce(sum(tail - start - deleted_count), 0)::bigint, count(*) FROM partitions WHERE queue_id = $1";

pub const BACKLOG: &str = "
    SELECT coalesce(sum(greatest(p.tail - greatest(s.next, p.start) - s.done, 0)), 0)::bigint
    FROM slots s JOIN partitions p ON p.id = s.partition_id WHERE s.group_id = $1 AND s.line IS NOT NULL";

pub const LEASED_PARTITIONS: &str = "SELECT lease_id, partition_id FROM slots WHERE lease_id = ANY($1)";

pub const DEDUP_IDS: &str = "
    SELECT r.partition_id, r.first, r.until, r.hashes FROM unnest($1::bigint[], $2::bigint[]) w (partition_id, first)
    JOIN remembered r ON r.partition_id = w.partition_id AND r.first >= w.first AND r.until > $3 ORDER BY 1, 2";

pub const SEGMENTS: &str = "
    SELECT w.partition_id, w.place, s.body FROM unnest($1::bigint[], $2::bigint[]) w (partition_id, place)
    LEFT JOIN LATERAL (SELECT base, count, body FROM segments WHERE partition_id = w.partition_id AND base <= w.place
        ORDER BY base DESC LIMIT 1) s ON s.base + s.count > w.place";

pub const SEGMENT_TIMES: &str = "
    SELECT w.partition_id, w.place, s.created_at FROM unnest($1::bigint[], $2::bigint[]) w (partition_id, place)
    LEFT JOIN LATERAL (SELECT created_at FROM segments WHERE partition_id = w.partition_id AND base <= w.place
        ORDER BY base DESC LIMIT 1) s ON true";

/// Times rise with offsets, so a binary search over the segments finds the offset of a time. It reads no
/// payload.
pub const OFFSET_AT_TIME: &str = "
    WITH RECURSIVE halves (low, high) AS (
        SELECT $2::bigint, $3::bigint
        UNION ALL
        SELECT CASE WHEN s.created_at >= $4 THEN h.low ELSE h.low + (h.high - h.low) / 2 + 1 END,
               CASE WHEN s.created_at >= $4 THEN greatest(s.base, h.low) ELSE h.high END
        FROM halves h LEFT JOIN LATERAL (
            SELECT base, created_at FROM segments WHERE partition_id = $1 AND base <= h.low + (h.high - h.low) / 2
            ORDER BY base DESC LIMIT 1) s ON true
        WHERE h.low < h.high)
    SELECT low,
        (SELECT created_at FROM segments WHERE partition_id = $1 AND base <= low AND low < $3 ORDER BY base DESC LIMIT 1),
        (SELECT created_at FROM segments WHERE partition_id = $1 AND base < low AND low > $2 ORDER BY base DESC LIMIT 1)
    FROM halves WHERE low >= high LIMIT 1";

pub const RECORDS: &str = "SELECT key, version, expires_at, value FROM records WHERE key = ANY($1)";

pub const RECORD_PAGE: &str = "
    SELECT key, version, expires_at, value FROM records
    WHERE key > $1 AND ($2::bytea IS NULL OR key < $2) AND (expires_at IS NULL OR expires_at > $3)
    ORDER BY key LIMIT $4";

pub const DEAD_LETTERS: &str = "
    SELECT l.queue_id, l.body, l.payload FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[])
        w (queue_id, partition_id, place, group_name)
    JOIN dead_letters l ON l.queue_id = w.queue_id AND l.partition_id = w.partition_id AND l.place = w.place
        AND l.group_name = w.group_name";

pub const DEAD_LETTER_PAGE: &str = "
    SELECT queue_id, body, payload FROM dead_letters WHERE queue_id = $1 AND failed_at <= $2 AND (failed_at < $2
        OR partition_id > $3 OR (partition_id = $3 AND (place < $4 OR (place = $4 AND group_name > $5))))
    ORDER BY failed_at DESC, partition_id, place DESC, group_name LIMIT $6";

pub const DEAD_LETTER_KEYS: &str = "
    SELECT partition_id, place, group_name, failed_at FROM dead_letters
    WHERE queue_id = $1 AND (partition_id, place, group_name) > ($2, $3, $4)
    ORDER BY partition_id, place, group_name LIMIT $5";

pub const QUEUES: &str = "SELECT body::text FROM queues";
pub const GROUPS: &str = "SELECT body::text FROM groups";

/// Draws blocks of numbers for new queues, partitions and groups. The sequence moves by `IDS_PER_BLOCK`.
pub const NEXT_IDS: &str = "SELECT nextval('ids') FROM generate_series(1, $1::bigint)";
pub const IDS_PER_BLOCK: u64 = 64;
