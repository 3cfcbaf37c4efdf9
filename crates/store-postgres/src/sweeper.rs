//! Clearing away what nobody can see any more: trimmed segments, what removed queues and groups left behind,
//! transaction ids whose window is over. A little at a time, and never in anyone's way.
//!
//! A removal is one small commit that makes things unreachable; the rows go here. Any server sweeps what any
//! server left; two never take the same leftover, because they skip what is locked.

use std::sync::Arc;
use std::time::Duration;

use crate::failure::Failure;
use crate::flush::COMMIT;
use crate::link::{Link, Param, Row, call, param};
use crate::load::BEGIN;
use crate::store::Shared;

/// How often to look without being told: for what servers that are gone left behind.
const EVERY: Duration = Duration::from_secs(30);
/// A pause after being told, so that many removals are cleared away together.
const LINGER: Duration = Duration::from_millis(200);
/// Rows removed in one transaction.
const ROWS: i64 = 5_000;

/// Nobody can be writing any more to a partition or group that was removed so long ago.
const TAKE: &str = "SELECT ctid::text, kind, id, up_to FROM leftovers
    WHERE kind = 'segments' OR since < clock_timestamp() - interval '30 seconds'
    ORDER BY kind = 'segments' DESC LIMIT 50 FOR UPDATE SKIP LOCKED";
const DONE: &str = "DELETE FROM leftovers WHERE ctid = ANY($1::text[]::tid[])";
const MOVE_ON: &str = "UPDATE leftovers SET up_to = $2 WHERE ctid = $1::text::tid";

const SEGMENTS: &str = "DELETE FROM segments WHERE ctid = ANY(ARRAY(
    SELECT s.ctid FROM (SELECT id, max(up_to) AS up_to FROM unnest($1::bigint[], $2::bigint[]) w (id, up_to) GROUP BY id) w
    JOIN segments s ON s.partition_id = w.id AND s.base < w.up_to AND s.base + s.count <= w.up_to LIMIT $3)) RETURNING 1";
const OF_PARTITION: &str = "WITH slots AS (DELETE FROM slots WHERE partition_id = $1),
    ids AS (DELETE FROM remembered WHERE partition_id = $1)
    DELETE FROM segments WHERE ctid = ANY(ARRAY(SELECT ctid FROM segments WHERE partition_id = $1 LIMIT $2)) RETURNING 1";
const OF_QUEUE: &str = "DELETE FROM dead_letters WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM dead_letters WHERE queue_id = $1 LIMIT $2)) RETURNING 1";
/// By partition, because only what is in line can be found by group.
const OF_GROUP: &str = "WITH page AS (SELECT id FROM partitions WHERE id > $2 ORDER BY id LIMIT $3),
    gone AS (DELETE FROM slots s USING page WHERE s.partition_id = page.id AND s.group_id = $1)
    SELECT max(id), count(*) FROM page";
const FORGET: &str = "DELETE FROM remembered WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM remembered WHERE until <= $1 ORDER BY until LIMIT $2)) RETURNING 1";
/// Servers that have been silent for a month, but for the one that knows the latest moment.
const SERVERS: &str = "DELETE FROM servers WHERE seen_at < clock_timestamp() - interval '30 days'
    AND moment < (SELECT max(moment) FROM servers)";

/// Runs until its task is ended.
pub async fn run(shared: Arc<Shared>) {
    let mut link = None;
    loop {
        let told = tokio::time::timeout(EVERY, shared.sweep.notified()).await.is_ok();
        if told {
            baton_env::sleep(LINGER).await;
        }
        if let Err(failure) = sweep(&shared, &mut link).await {
            tracing::debug!(%failure, "clearing away is put off");
            link = None;
        }
    }
}

async fn sweep(shared: &Shared, link: &mut Option<Link>) -> Result<(), Failure> {
    if link.as_ref().is_none_or(Link::is_closed) {
        *link = Some(Link::open(&shared.address, &shared.schema).await?);
    }
    let Some(link) = link else { return Ok(()) };
    while sweep_some(link).await? {}
    let now = shared.now();
    while rows(link, FORGET, vec![param(now.micros()), param(ROWS)]).await?.len() as i64 == ROWS {}
    rows(link, SERVERS, Vec::new()).await?;
    Ok(())
}

async fn rows(link: &Link, text: &'static str, params: Vec<Param>) -> Result<Vec<Row>, Failure> {
    Ok(link.run(vec![call(text, params)]).await?.pop().unwrap_or_default())
}

/// Clears away some leftovers; tells whether there may be more.
async fn sweep_some(link: &Link) -> Result<bool, Failure> {
    let mut results = link.run(vec![call(BEGIN, Vec::new()), call(TAKE, Vec::new())]).await?;
    let taken = results.pop().unwrap_or_default();
    let (segments, others): (Vec<Row>, Vec<Row>) =
        taken.into_iter().partition(|row| row.get::<&str>(1) == "segments");
    let mut done: Vec<String> = Vec::new();
    let mut worked = false;
    if !segments.is_empty() {
        let ids: Vec<i64> = segments.iter().map(|row| row.get(2)).collect();
        let ends: Vec<i64> = segments.iter().map(|row| row.get(3)).collect();
        let gone = rows(link, SEGMENTS, vec![param(ids), param(ends), param(ROWS)]).await?.len() as i64;
        if gone < ROWS {
            done.extend(segments.iter().map(|row| row.get::<String>(0)));
        }
        worked = true;
    } else if let Some(row) = others.first() {
        let (place, kind, id, up_to): (String, &str, i64, i64) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let all = match kind {
            "partition" => {
                rows(link, OF_PARTITION, vec![param(id), param(ROWS)]).await?.len() as i64 > ROWS - 1
            }
            "queue" => rows(link, OF_QUEUE, vec![param(id), param(ROWS)]).await?.len() as i64 > ROWS - 1,
            _ => {
                let page = rows(link, OF_GROUP, vec![param(id), param(up_to), param(ROWS)]).await?;
                let last: Option<i64> = page.first().and_then(|row| row.get(0));
                if let Some(last) = last {
                    rows(link, MOVE_ON, vec![param(place.clone()), param(last)]).await?;
                }
                last.is_some()
            }
        };
        if !all {
            done.push(place);
        }
        worked = true;
    }
    link.run(vec![call(DONE, vec![param(done)]), call(COMMIT, Vec::new())]).await?;
    Ok(worked)
}
