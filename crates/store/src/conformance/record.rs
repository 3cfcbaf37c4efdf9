//! Records: versioned values under keys.

use baton_types::limits;
use bytes::Bytes;

use super::{Backend, Restart, START_TIME, TestStore, seconds};
use crate::{Error, Tx};

async fn put<B: Backend>(bench: &TestStore<B>, key: &'static str, value: &'static str) -> u64 {
    bench.run(move |tx| tx.put_record(key, value.into(), None)).await
}

async fn value<B: Backend>(bench: &TestStore<B>, key: &'static str) -> Option<Bytes> {
    bench.run(move |tx| Ok(tx.record(key)?.map(|record| record.value))).await
}

async fn scan<B: Backend>(
    bench: &TestStore<B>,
    prefix: &'static str,
    after: Option<&'static str>,
    limit: usize,
) -> Vec<String> {
    bench.run(move |tx| keys(tx, prefix, after, limit)).await
}

fn keys(
    tx: &mut dyn Tx,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<String>, crate::TxError> {
    Ok(tx.records(prefix, after, limit)?.into_iter().map(|(key, _)| key).collect())
}

pub async fn a_record_is_read_as_it_was_written<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let until = START_TIME.after(seconds(60));
    let bytes = Bytes::from_iter(0..=255u8);
    let expected = bytes.clone();
    let version = bench.run(move |tx| tx.put_record("a/ü", bytes.clone(), Some(until))).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        let record = bench.run(|tx| tx.record("a/ü")).await.unwrap();
        assert_eq!(
            (record.value, record.version, record.expires_at),
            (expected.clone(), version, Some(until))
        );
        assert_eq!(value(&bench, "a").await, None);
    }
}

pub async fn a_version_is_higher_than_every_one_before<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let mut last = put(&bench, "a", "1").await;
    for key in ["b", "a", "a", "c"] {
        let version = put(&bench, key, "2").await;
        assert!(version > last);
        last = version;
    }
    assert_eq!(bench.run(|tx| tx.record("c")).await.unwrap().version, last);
}

pub async fn versions_do_not_begin_again_after_removal_or_restart<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let mut last = put(&bench, "a", "1").await;
    for restart in Restart::ALL {
        bench.run(|tx| Ok(tx.remove_record("a"))).await;
        bench.restart(restart).await;
        let version = put(&bench, "a", "2").await;
        assert!(version > last, "{restart:?}");
        last = version;
    }
}

pub async fn a_record_expires_by_store_time<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let until = START_TIME.after(seconds(10));
    bench.run(move |tx| tx.put_record("lease", "x".into(), Some(until))).await;
    put(&bench, "lease2", "stays").await;
    bench.clock.advance_to(START_TIME.after(seconds(9)));
    assert!(value(&bench, "lease").await.is_some());
    assert_eq!(scan(&bench, "lease", None, 10).await, ["lease", "lease2"]);
    bench.clock.advance_to(until);
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(value(&bench, "lease").await, None);
        assert_eq!(
            scan(&bench, "lease", None, 1).await,
            ["lease2"],
            "an expired row does not use up the limit"
        );
    }
}

pub async fn an_expired_record_can_be_written_again<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let first = bench.run(|tx| tx.put_record("k", "old".into(), Some(START_TIME))).await;
    assert_eq!(value(&bench, "k").await, None);
    assert!(put(&bench, "k", "new").await > first);
    assert_eq!(value(&bench, "k").await.unwrap(), "new");
}

pub async fn a_removed_record_is_gone<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    put(&bench, "a", "1").await;
    bench.run(|tx| Ok(tx.remove_record("a"))).await;
    bench.run(|tx| Ok(tx.remove_record("never was"))).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(value(&bench, "a").await, None);
        assert!(scan(&bench, "", None, 10).await.is_empty());
    }
}

pub async fn a_scan_tells_a_prefix_in_order<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    for key in ["b/2", "a/1", "b/10", "b", "b/1", "c", "b/", "z\0", "z\0y", "z"] {
        put(&bench, key, key).await;
    }
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(scan(&bench, "b/", None, 10).await, ["b/", "b/1", "b/10", "b/2"]);
        assert_eq!(scan(&bench, "z\0", None, 10).await, ["z\0", "z\0y"]);
        assert_eq!(scan(&bench, "", None, 20).await.len(), 10);
        assert!(scan(&bench, "d", None, 10).await.is_empty());
        assert!(scan(&bench, "b/", None, 0).await.is_empty());
    }
}

pub async fn a_scan_goes_on_after_a_key_and_stops_at_the_limit<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    for key in ["k/1", "k/2", "k/3", "k/4", "l"] {
        put(&bench, key, "").await;
    }
    assert_eq!(scan(&bench, "k/", Some("k/1"), 2).await, ["k/2", "k/3"]);
    assert_eq!(scan(&bench, "k/", Some("k/3"), 2).await, ["k/4"]);
    assert_eq!(scan(&bench, "k/", Some("k/25"), 2).await, ["k/3", "k/4"], "the key itself need not exist");
    assert!(scan(&bench, "k/", Some("k/4"), 2).await.is_empty());
    assert!(scan(&bench, "k/", Some("z"), 2).await.is_empty());
}

pub async fn a_scan_after_a_key_before_the_prefix_begins_with_the_prefix<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    for key in ["a", "b", "k/1"] {
        put(&bench, key, "").await;
    }
    let found = bench.submit(|tx| {
        tx.put_record("c", "".into(), None)?;
        tx.put_record("k/2", "".into(), None)?;
        keys(tx, "k/", Some("a"), 9)
    });
    assert_eq!(found.await.unwrap(), ["k/1", "k/2"]);
    assert_eq!(scan(&bench, "k/", Some("a"), 9).await, ["k/1", "k/2"]);
}

pub async fn a_scan_sees_uncommitted_writes_and_removals_among_stored_rows<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    for key in ["k/1", "k/3", "k/5", "k/7"] {
        put(&bench, key, "stored").await;
    }
    let write = bench.submit(|tx| {
        tx.put_record("k/0", "new".into(), None)?;
        tx.put_record("k/4", "new".into(), None)?;
        tx.put_record("k/5", "changed".into(), None)?;
        tx.put_record("k/9", "new".into(), None)?;
        tx.remove_record("k/3");
        tx.remove_record("k/4");
        Ok(())
    });
    let all = bench.submit(|tx| tx.records("k/", None, 10));
    let page = bench.submit(|tx| keys(tx, "k/", Some("k/1"), 2));
    write.await.unwrap();
    let told: Vec<_> = all.await.unwrap().into_iter().map(|(key, record)| (key, record.value)).collect();
    let expected = [("k/0", "new"), ("k/1", "stored"), ("k/5", "changed"), ("k/7", "stored"), ("k/9", "new")];
    assert_eq!(told, expected.map(|(key, value)| (key.to_owned(), Bytes::from(value))));
    assert_eq!(page.await.unwrap(), ["k/5", "k/7"]);
    assert_eq!(scan(&bench, "k/", None, 10).await, ["k/0", "k/1", "k/5", "k/7", "k/9"]);
}

pub async fn a_record_that_is_too_large_is_refused<B: Backend>() {
    let bench = TestStore::<B>::new().await;
    let write = |bytes: usize| bench.submit(move |tx| tx.put_record("big", vec![7; bytes].into(), None));
    write(limits::RECORD_BYTES_MAX).await.unwrap();
    let refused = write(limits::RECORD_BYTES_MAX + 1).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    assert_eq!(value(&bench, "big").await.unwrap().len(), limits::RECORD_BYTES_MAX);
}

pub async fn the_last_of_several_writes_in_one_commit_stays<B: Backend>() {
    let mut bench = TestStore::<B>::new().await;
    let writes: Vec<_> = (0..20)
        .map(|i| {
            bench.submit(move |tx| {
                if i % 3 == 2 {
                    tx.remove_record("gone");
                } else {
                    tx.put_record("gone", "x".into(), None)?;
                }
                tx.remove_record("last");
                tx.put_record("last", Bytes::from(format!("{i}")), None)
            })
        })
        .collect();
    for write in writes {
        write.await.unwrap();
    }
    bench.run(|tx| Ok(tx.remove_record("gone"))).await;
    for restart in Restart::ALL {
        bench.restart(restart).await;
        assert_eq!(value(&bench, "last").await.unwrap(), "19");
        assert_eq!(value(&bench, "gone").await, None);
    }
}
