//! The sweeper deletes rows that are no longer reachable: trimmed segments, what removed queues and groups
//! left, and transaction ids after their dedup window. It works in small steps and without locks that others
//! wait for.
//!
//! A removal is one small commit that makes rows unreachable; the sweeper deletes them later. Any server
//! sweeps what any server left. Two servers never take the same leftover, because they skip locked rows.

use std::sync::Arc;
use std::time::Duration;

use crate::client::connection::{Param, PgConnection, PgRow, param, statement};
use crate::client::error::DatabaseError;
use crate::commit::COMMIT;
use crate::context::StoreContext;
use crate::fetch::BEGIN;

/// How often to sweep without a wake-up, for what lost servers left behind.
const INTERVAL: Duration = Duration::from_secs(30);
/// Pause after a wake-up, so that several removals are swept together.
const COALESCE_FOR: Duration = Duration::from_millis(200);
/// Rows deleted in one transaction.
const ROWS_PER_STEP: i64 = 5_000;

/// Waits 30 seconds before the rows of a removed partition or group: by then no transaction writes to them
/// any more.
const SELECT_LEFTOVERS: &str = "SELECT ctid::text, kind, id, up_to FROM leftovers
    WHERE kind = 'segments' OR since < clock_timestamp() - interval '30 seconds'
    ORDER BY kind = 'segments' DESC LIMIT 50 FOR UPDATE SKIP LOCKED";
const DELETE_LEFTOVERS: &str = "DELETE FROM leftovers WHERE ctid = ANY($1::text[]::tid[])";
const ADVANCE_LEFTOVER: &str = "UPDATE leftovers SET up_to = $2 WHERE ctid = $1::text::tid";

const DELETE_TRIMMED_SEGMENTS: &str = "DELETE FROM segments WHERE ctid = ANY(ARRAY(
    SELECT s.ctid FROM (SELECT id, max(up_to) AS up_to FROM unnest($1::bigint[], $2::bigint[]) w (id, up_to) GROUP BY id) w
    JOIN segments s ON s.partition_id = w.id AND s.base < w.up_to AND s.base + s.count <= w.up_to LIMIT $3)) RETURNING 1";
const DELETE_PARTITION_ROWS: &str = "WITH slots AS (DELETE FROM slots WHERE partition_id = $1),
    ids AS (DELETE FROM remembered WHERE partition_id = $1)
    DELETE FROM segments WHERE ctid = ANY(ARRAY(SELECT ctid FROM segments WHERE partition_id = $1 LIMIT $2)) RETURNING 1";
const DELETE_QUEUE_ROWS: &str = "DELETE FROM dead_letters WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM dead_letters WHERE queue_id = $1 LIMIT $2)) RETURNING 1";
/// Page by page over the partitions, because only slots with work can be found by group.
const DELETE_GROUP_ROWS: &str = "WITH page AS (SELECT id FROM partitions WHERE id > $2 ORDER BY id LIMIT $3),
    gone AS (DELETE FROM slots s USING page WHERE s.partition_id = page.id AND s.group_id = $1)
    SELECT max(id), count(*) FROM page";
const DELETE_EXPIRED_IDS: &str = "DELETE FROM remembered WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM remembered WHERE until <= $1 ORDER BY until LIMIT $2)) RETURNING 1";
/// Server rows unused for a month, except the row with the latest time.
const DELETE_SILENT_SERVERS: &str =
    "DELETE FROM servers WHERE seen_at < clock_timestamp() - interval '30 days'
    AND moment < (SELECT max(moment) FROM servers)";

/// Runs until its task is aborted.
pub async fn run(shared: Arc<StoreContext>) {
    let mut connection = None;
    loop {
        let told = tokio::time::timeout(INTERVAL, shared.sweep.notified()).await.is_ok();
        if told {
            baton_env::sleep(COALESCE_FOR).await;
        }
        if let Err(failure) = sweep_all(&shared, &mut connection).await {
            tracing::debug!(%failure, "the sweep failed; it will be repeated");
            connection = None;
        }
    }
}

async fn sweep_all(
    shared: &StoreContext,
    connection: &mut Option<PgConnection>,
) -> Result<(), DatabaseError> {
    if connection.as_ref().is_none_or(PgConnection::is_closed) {
        *connection = Some(PgConnection::connect(&shared.address, &shared.schema).await?);
    }
    let Some(connection) = connection else { return Ok(()) };
    while sweep_some(connection).await? {}
    let now = shared.now();
    while run_one(connection, DELETE_EXPIRED_IDS, vec![param(now.micros()), param(ROWS_PER_STEP)])
        .await?
        .len() as i64
        == ROWS_PER_STEP
    {}
    run_one(connection, DELETE_SILENT_SERVERS, Vec::new()).await?;
    Ok(())
}

async fn run_one(
    connection: &PgConnection,
    text: &'static str,
    params: Vec<Param>,
) -> Result<Vec<PgRow>, DatabaseError> {
    Ok(connection.run(vec![statement(text, params)]).await?.pop().unwrap_or_default())
}

/// Deletes some leftovers. Returns whether there may be more.
async fn sweep_some(connection: &PgConnection) -> Result<bool, DatabaseError> {
    let mut results =
        connection.run(vec![statement(BEGIN, Vec::new()), statement(SELECT_LEFTOVERS, Vec::new())]).await?;
    let taken = results.pop().unwrap_or_default();
    let (segments, others): (Vec<PgRow>, Vec<PgRow>) =
        taken.into_iter().partition(|row| row.get::<&str>(1) == "segments");
    let mut done: Vec<String> = Vec::new();
    let mut worked = false;
    if !segments.is_empty() {
        let ids: Vec<i64> = segments.iter().map(|row| row.get(2)).collect();
        let ends: Vec<i64> = segments.iter().map(|row| row.get(3)).collect();
        let gone =
            run_one(connection, DELETE_TRIMMED_SEGMENTS, vec![param(ids), param(ends), param(ROWS_PER_STEP)])
                .await?
                .len() as i64;
        if gone < ROWS_PER_STEP {
            done.extend(segments.iter().map(|row| row.get::<String>(0)));
        }
        worked = true;
    } else if let Some(row) = others.first() {
        let (place, kind, id, up_to): (String, &str, i64, i64) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let all = match kind {
            "partition" => {
                run_one(connection, DELETE_PARTITION_ROWS, vec![param(id), param(ROWS_PER_STEP)]).await?.len()
                    as i64
                    > ROWS_PER_STEP - 1
            }
            "queue" => {
                run_one(connection, DELETE_QUEUE_ROWS, vec![param(id), param(ROWS_PER_STEP)]).await?.len()
                    as i64
                    > ROWS_PER_STEP - 1
            }
            _ => {
                let page = run_one(
                    connection,
                    DELETE_GROUP_ROWS,
                    vec![param(id), param(up_to), param(ROWS_PER_STEP)],
                )
                .await?;
                let last: Option<i64> = page.first().and_then(|row| row.get(0));
                if let Some(last) = last {
                    run_one(connection, ADVANCE_LEFTOVER, vec![param(place.clone()), param(last)]).await?;
                }
                last.is_some()
            }
        };
        if !all {
            done.push(place);
        }
        worked = true;
    }
    connection
        .run(vec![statement(DELETE_LEFTOVERS, vec![param(done)]), statement(COMMIT, Vec::new())])
        .await?;
    Ok(worked)
}
