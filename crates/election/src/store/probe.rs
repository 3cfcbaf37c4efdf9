//! Tests whether a store enforces conditional writes, before an election relies on it.
//!
//! Some stores ignore the conditions; others check first and write later, so that two concurrent writers both
//! succeed. Neither can elect. The probe writes under keys of its own and removes them.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::{Store, SwapOutcome, Version};

/// Concurrent writers of one record in each race. A store that checks first and writes later lets two of them win in
/// most races, but not in all. Few and many writers hit different gaps, so each count races [`ROUNDS`] times.
const RACER_COUNTS: [usize; 3] = [2, 4, 16];

/// Races per count for a creation, and as many for an update.
const ROUNDS: usize = 4;

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// It took a write that its condition forbade.
    #[error(
        "the store does not enforce conditional writes: {0}. An election on it would have two winners. Use a store \
         that does (Amazon S3, Google Cloud Storage, Azure Blob Storage, PostgreSQL, a local directory, a Baton server)"
    )]
    Unsafe(String),
    /// It could not be asked.
    #[error("the store could not be probed: {0}")]
    Failed(#[from] super::Error),
}

/// Writes, overwrites and races under fresh keys, and refuses a store that lets a forbidden write pass.
pub async fn probe(store: &Arc<dyn Store>) -> Result<(), ProbeError> {
    let name = format!("probe/{:016x}", baton_env::random_u64());
    let outcome = check_conditions(store, &name).await;
    // A leftover costs a few bytes only.
    let _ = store.remove(&name).await;
    outcome
}

async fn check_conditions(store: &Arc<dyn Store>, key: &str) -> Result<(), ProbeError> {
    let done = |swap: SwapOutcome, what: &str| match swap {
        SwapOutcome::Done(version) => Ok(version),
        SwapOutcome::Conflict => Err(ProbeError::Unsafe(format!("it refused {what}, which was allowed"))),
    };
    let refused = |swap: SwapOutcome, what: &str| match swap {
        SwapOutcome::Done(_) => Err(ProbeError::Unsafe(format!("it took {what}"))),
        SwapOutcome::Conflict => Ok(()),
    };
    let missing = Version("0".into());
    let first = done(store.swap(key, None, b"1".to_vec()).await?, "the creation of a record")?;
    refused(store.swap(key, None, b"2".to_vec()).await?, "the creation of a record that existed")?;
    let second =
        done(store.swap(key, Some(&first), b"3".to_vec()).await?, "an update from the right version")?;
    refused(store.swap(key, Some(&first), b"4".to_vec()).await?, "an update from an old version")?;
    match store.read(key).await? {
        Some((version, value)) if version == second && value == b"3" => {}
        _ => return Err(ProbeError::Unsafe("a read did not return what was written last".into())),
    }
    store.remove(key).await?;
    for absent in [&second, &missing] {
        // A store may call a version that it could not have given an error; it must only not write.
        if let Ok(swap) = store.swap(key, Some(absent), b"5".to_vec()).await {
            refused(swap, "an update of a record that did not exist")?;
        }
    }
    for _ in 0..ROUNDS {
        for racers in RACER_COUNTS {
            let created = race_writers(store, key, None, racers).await?;
            race_writers(store, key, Some(&created), racers).await?;
            store.remove(key).await?;
        }
    }
    Ok(())
}

/// Lets `racers` tasks write one record under the same condition; returns the version of the only winner.
async fn race_writers(
    store: &Arc<dyn Store>,
    key: &str,
    expected: Option<&Version>,
    racers: usize,
) -> Result<Version, ProbeError> {
    let mut tasks = JoinSet::new();
    for racer in 0..racers {
        let (store, key, expected) = (Arc::clone(store), key.to_owned(), expected.cloned());
        // A store may name a version after its content, so no two write the same.
        let value = format!("racer {racer} {:016x}", baton_env::random_u64()).into_bytes();
        tasks.spawn(async move { store.swap(&key, expected.as_ref(), value).await });
    }
    let (mut winners, mut failure) = (Vec::new(), None);
    while let Some(outcome) = tasks.join_next().await {
        match outcome {
            Ok(Ok(SwapOutcome::Done(version))) => winners.push(version),
            Ok(Ok(SwapOutcome::Conflict)) | Err(_) => {}
            Ok(Err(error)) => failure = Some(error),
        }
    }
    let what = if expected.is_none() { "creations" } else { "updates from one version" };
    match (winners.pop(), failure) {
        (Some(version), _) if winners.is_empty() => Ok(version),
        (Some(_), _) => Err(ProbeError::Unsafe(format!(
            "of {racers} {what} of one record at once, {} succeeded",
            winners.len() + 1
        ))),
        // A writer whose answer was lost may have won.
        (None, Some(error)) => Err(error.into()),
        (None, None) => {
            Err(ProbeError::Unsafe(format!("of {racers} {what} of one record at once, none succeeded")))
        }
    }
}
