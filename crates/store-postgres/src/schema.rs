//! The schema and its migrations: steps that are applied once each, in order, under a lock.
//!
//! When several servers start at once, one applies the steps and the others wait and find nothing to do. An
//! older server keeps working beside a newer schema as long as steps only add. A step that would break it
//! raises [`OLDEST_READER`], and an older server refuses to start.
//!
//! Which indexes exist, and why no other:
//!
//! | index | for |
//! |---|---|
//! | `queues (id)`, `groups (id)` | changes; every server keeps all of both in memory |
//! | `queues (name)`, `groups (queue_id, name)` | two servers that create the same one at once: one of them tries again |
//! | `partitions (id)` | the lock of a partition; its row is narrow and changes in place (HOT) |
//! | `partitions (queue_id, name)` | from name to number, and two servers that create the same one |
//! | `slots (partition_id, group_id)` | a group's place; read along with the partition |
//! | `slots (group_id, line)` where in line | the ready view: what has work, oldest first; nothing else is in it |
//! | `slots (lease_id)` where leased | renewing and giving back by lease |
//! | `segments (partition_id, base)` | messages in order; a moment is found by halving |
//! | `remembered (partition_id, first)` | transaction ids of a partition, from where a server left off |
//! | `remembered (until)` | forgetting them; new rows always come last |
//! | `records (key)` | key and prefix |
//! | `dead_letters (queue_id, partition_id, place, group_name)`, `(queue_id, failed_at)` | one letter; the newest |

use std::time::Duration;

use baton_store::Error;

use crate::client::connection::{PgConnection, param, quoted, statement};
use crate::client::error::DatabaseError;

/// The version that this server writes.
pub const VERSION: i32 = 4;
/// The oldest version that can read what this server writes.
pub const OLDEST_READER: i32 = 3;

/// How long a server waits for another server's migration.
const LOCK_WAIT: Duration = Duration::from_secs(60);

/// Step `n` leads from version `n` to `n + 1`.
const STEPS: [&str; 4] = [CREATE_TABLES, ADD_PARTITION_VERSIONS, SHORTEN_NUMBERS, ADD_CONFLICT_CONDITIONS];

const CREATE_TABLES: &str = "
CREATE TABLE versions (name text PRIMARY KEY, number bigint NOT NULL) WITH (fillfactor = 50);
INSERT INTO versions VALUES ('structure', 0), ('records', 0);
CREATE SEQUENCE ids INCREMENT BY 64;
CREATE TABLE servers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    epoch bigint NOT NULL DEFAULT 0,
    commits bigint NOT NULL DEFAULT 0,
    moment bigint NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 20);
CREATE TABLE queues (
    id bigint PRIMARY KEY,
    name text COLLATE \"C\" NOT NULL UNIQUE,
    body jsonb NOT NULL
);
CREATE TABLE groups (
    id bigint PRIMARY KEY,
    queue_id bigint NOT NULL,
    name text COLLATE \"C\" NOT NULL,
    body jsonb NOT NULL,
    UNIQUE (queue_id, name)
);
CREATE TABLE partitions (
    id bigint PRIMARY KEY,
    queue_id bigint NOT NULL,
    name text COLLATE \"C\" NOT NULL,
    start bigint NOT NULL,
    tail bigint NOT NULL,
    created_at bigint NOT NULL,
    first_at bigint NOT NULL,
    last_at bigint NOT NULL,
    deleted bytea,
    deleted_count bigint NOT NULL,
    UNIQUE (queue_id, name)
) WITH (fillfactor = 60);
CREATE TABLE slots (
    partition_id bigint NOT NULL,
    group_id bigint NOT NULL,
    next bigint NOT NULL,
    done bigint NOT NULL,
    line bigint,
    lease_id uuid,
    body bytea NOT NULL,
    PRIMARY KEY (partition_id, group_id)
) WITH (fillfactor = 60);
CREATE INDEX slots_in_line ON slots (group_id, line) WHERE line IS NOT NULL;
CREATE INDEX slots_leased ON slots (lease_id) WHERE lease_id IS NOT NULL;
CREATE TABLE segments (
    partition_id bigint NOT NULL,
    base bigint NOT NULL,
    count integer NOT NULL,
    created_at bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (partition_id, base)
) WITH (autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE segments ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE remembered (
    partition_id bigint NOT NULL,
    first bigint NOT NULL,
    until bigint NOT NULL,
    hashes bytea NOT NULL,
    PRIMARY KEY (partition_id, first)
);
ALTER TABLE remembered ALTER COLUMN hashes SET STORAGE EXTERNAL;
CREATE INDEX remembered_until ON remembered (until);
CREATE TABLE records (
    key bytea PRIMARY KEY,
    version bigint NOT NULL,
    expires_at bigint,
    value bytea NOT NULL
) WITH (fillfactor = 70);
CREATE TABLE dead_letters (
    queue_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    place bigint NOT NULL,
    group_name text COLLATE \"C\" NOT NULL,
    failed_at bigint NOT NULL,
    body bytea NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (queue_id, partition_id, place, group_name)
);
CREATE INDEX dead_letters_newest ON dead_letters (queue_id, failed_at DESC, partition_id, place DESC, group_name);
CREATE TABLE leftovers (
    kind text NOT NULL,
    id bigint NOT NULL,
    up_to bigint NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp()
);
";

/// Adds versions to partitions: every commit that changes anything in a partition raises its version, and
/// servers validate it. An older server does not raise it. The renamed column stops such a server from
/// committing.
const ADD_PARTITION_VERSIONS: &str = "
ALTER TABLE partitions ADD COLUMN version bigint NOT NULL DEFAULT 0;
ALTER TABLE servers RENAME COLUMN commits TO committed;
";

/// Removes the ten low bits of numbers, which identified the server; now numbers are exact as doubles. Their
/// order stays. An older server would draw higher numbers than all new ones. The renamed column stops such a
/// server from committing.
const SHORTEN_NUMBERS: &str = "
LOCK TABLE partitions, slots, records, versions, servers IN ACCESS EXCLUSIVE MODE;
ALTER TABLE servers RENAME COLUMN committed TO commits_made;
UPDATE versions SET number = number >> 10;
UPDATE partitions SET version = version >> 10;
UPDATE records SET version = version >> 10;
UPDATE slots SET line = line >> 10, body = CASE WHEN get_byte(body, 0) & 4 = 0 THEN body ELSE overlay(body
    PLACING int8send(('x' || encode(substring(body FROM 34 FOR 8), 'hex'))::bit(64)::bigint >> 10) FROM 34 FOR 8) END;
";

/// Adds the conditions that a failed validation raises. Each has a code of its own and says in PostgreSQL's log
/// what happened; an operator can filter the log by them.
const ADD_CONFLICT_CONDITIONS: &str = "
CREATE FUNCTION conflict(what text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'baton: another server changed the % first; this transaction is repeated', what
        USING ERRCODE = 'BT001';
END $$;
CREATE FUNCTION partition_conflict(id bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'baton: another server changed partition % first; this transaction is repeated', id
        USING ERRCODE = 'BT002';
END $$;
";

/// The version of a schema relative to this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaStatus {
    /// The schema does not exist.
    Missing,
    /// Some steps are not applied yet.
    Behind,
    /// The version that this server writes.
    Current,
    /// A newer version that this server can work with.
    Ahead,
}

/// The status of the schema; an error if this server is too old for it.
pub async fn check(connection: &PgConnection, schema: &str) -> Result<SchemaStatus, Error> {
    let exists = statement(
        "SELECT to_regclass(quote_ident($1) || '.migrations') IS NOT NULL",
        vec![param(schema.to_owned())],
    );
    let rows = connection.run(vec![exists]).await.map_err(|e| unusable(schema, &e))?;
    if !rows[0][0].get::<bool>(0) {
        return Ok(SchemaStatus::Missing);
    }
    let newest = format!(
        "SELECT coalesce(max(version), 0), coalesce(max(oldest_reader), 0) FROM {}.migrations",
        quoted(schema)
    );
    let rows = connection.run(vec![statement(newest, Vec::new())]).await.map_err(|e| unusable(schema, &e))?;
    let (version, oldest_reader): (i32, i32) = (rows[0][0].get(0), rows[0][0].get(1));
    if oldest_reader > VERSION {
        return Err(Error::Unusable(format!(
            "the schema {schema:?} was changed by a newer Baton (version {version}); this one reads up to {VERSION}: \
             run the newer one, or give another schema with --store-schema"
        )));
    }
    Ok(match version.cmp(&VERSION) {
        std::cmp::Ordering::Less => SchemaStatus::Behind,
        std::cmp::Ordering::Equal => SchemaStatus::Current,
        std::cmp::Ordering::Greater => SchemaStatus::Ahead,
    })
}

/// Applies the missing steps in one transaction.
pub async fn migrate(link: &PgConnection, schema: &str) -> Result<(), Error> {
    if matches!(check(link, schema).await?, SchemaStatus::Current | SchemaStatus::Ahead) {
        return Ok(());
    }
    apply_steps(link, schema).await.map_err(|e| unusable(schema, &e))
}

async fn apply_steps(link: &PgConnection, schema: &str) -> Result<(), DatabaseError> {
    // `IF NOT EXISTS` may still fail when another server creates the same at the same moment; then a retry
    // finds it.
    let mut tries = 0;
    while let Err(failure) = create_schema(link, schema).await {
        tries += 1;
        if tries > 20 {
            return Err(failure);
        }
        baton_env::sleep(Duration::from_millis(50)).await;
    }
    // A failure from here on drops the connection, which rolls back the transaction.
    let lock = format!(
        "BEGIN; SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = 0; SET LOCAL search_path = {1};
         LOCK TABLE migrations IN ACCESS EXCLUSIVE MODE",
        LOCK_WAIT.as_millis(),
        quoted(schema)
    );
    link.run_script(&lock).await?;
    let newest = statement("SELECT coalesce(max(version), 0) FROM migrations", Vec::new());
    let done = usize::try_from(link.run(vec![newest]).await?[0][0].get::<i32>(0)).unwrap_or(0);
    for (step, version) in STEPS.iter().zip(1i32..).skip(done) {
        link.run_script(step).await?;
        let note = "INSERT INTO migrations (version, oldest_reader) VALUES ($1, $2)";
        link.run(vec![statement(note, vec![param(version), param(OLDEST_READER)])]).await?;
        tracing::info!(schema, version, "migrated the schema");
    }
    link.run_script("COMMIT").await
}

/// Creates the schema if it is missing. If it exists, the role needs no permission to create schemas.
async fn create_schema(link: &PgConnection, schema: &str) -> Result<(), DatabaseError> {
    let exists = "SELECT to_regnamespace(quote_ident($1)) IS NOT NULL";
    let rows = link.run(vec![statement(exists, vec![param(schema.to_owned())])]).await?;
    if !rows[0][0].get::<bool>(0) {
        link.run_script(&format!("CREATE SCHEMA {}", quoted(schema))).await?;
    }
    let table = format!(
        "CREATE TABLE IF NOT EXISTS {}.migrations (
             version integer PRIMARY KEY, oldest_reader integer NOT NULL,
             applied_at timestamptz NOT NULL DEFAULT clock_timestamp())",
        quoted(schema)
    );
    link.run_script(&table).await
}

fn unusable(schema: &str, failure: &DatabaseError) -> Error {
    Error::Unusable(format!("the schema {schema:?} cannot be used: {failure}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_step_to_every_version() {
        assert_eq!(STEPS.len(), usize::try_from(VERSION).unwrap());
        const { assert!(OLDEST_READER <= VERSION) };
    }
}
