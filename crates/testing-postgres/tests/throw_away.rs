//! The temporary PostgreSQL is durable and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use baton_testing_postgres::Postgres;

#[test]
fn commits_survive_a_stop_and_nothing_survives_the_end() {
    let postgres = Postgres::start();
    assert_eq!(postgres.sql("postgres", "SHOW fsync"), "on");
    postgres.sql("postgres", "CREATE TABLE kept AS SELECT 7 AS number");
    postgres.stop();
    postgres.resume();
    assert_eq!(postgres.sql("postgres", "SELECT number FROM kept"), "7");
    assert_ne!(postgres.database(), postgres.database());
    let directory = postgres.socket_directory().to_owned();
    assert!(directory.exists());
    drop(postgres);
    assert!(!directory.exists());
}
