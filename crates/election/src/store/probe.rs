//! Shows, before anything rests on it, whether a store enforces conditional writes.
//!
//! Some that speak the right protocol ignore the conditions; others check them first and write later, so that two
//! writers at once both succeed. Neither can elect. The probe writes under keys of its own and clears them away.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::{Store, Swap, Version};

/// Creations of one key that are tried at the same time.
const RACERS: usize = 16;

/// How often they race. A store that checks first and writes later fails nearly every race, but not all.
const RACES: usize = 4;

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
    let outcome = check(store, &name).await;
    for race in 0..=RACES {
        // Left behind they cost nothing but a few bytes.
        let _ = store.remove(&format!("{name}-{race}")).await;
    }
    outcome
}

async fn check(store: &Arc<dyn Store>, name: &str) -> Result<(), ProbeError> {
    let key = format!("{name}-0");
    let done = |swap: Swap, what: &str| match swap {
        Swap::Done(version) => Ok(version),
        Swap::Conflict => Err(ProbeError::Unsafe(format!("it refused {what}, which was allowed"))),
    };
    let refused = |swap: Swap, what: &str| match swap {
        Swap::Done(_) => Err(ProbeError::Unsafe(format!("it took {what}"))),
        Swap::Conflict => Ok(()),
    };
    let missing = Version("0".into());
    let first = done(store.swap(&key, None, b"1".to_vec()).await?, "the creation of a record")?;
    refused(store.swap(&key, None, b"2".to_vec()).await?, "the creation of a record that existed")?;
    let second =
        done(store.swap(&key, Some(&first), b"3".to_vec()).await?, "an update from the right version")?;
    refused(store.swap(&key, Some(&first), b"4".to_vec()).await?, "an update from an old version")?;
    match store.read(&key).await? {
        Some((version, value)) if version == second && value == b"3" => {}
        _ => return Err(ProbeError::Unsafe("a read did not return what was written last".into())),
    }
    store.remove(&key).await?;
    for absent in [&second, &missing] {
        // A store may call a version that it could not have given an error; it must only not write.
        if let Ok(swap) = store.swap(&key, Some(absent), b"5".to_vec()).await {
            refused(swap, "an update of a record that did not exist")?;
        }
    }
    for race in 1..=RACES {
        race_once(store, &format!("{name}-{race}")).await?;
    }
    Ok(())
}

async fn race_once(store: &Arc<dyn Store>, key: &str) -> Result<(), ProbeError> {
    let mut racers = JoinSet::new();
    for racer in 0..RACERS {
        let (store, key) = (Arc::clone(store), key.to_owned());
        racers.spawn(async move { store.swap(&key, None, format!("racer {racer}").into_bytes()).await });
    }
    let (mut winners, mut failure) = (0, None);
    while let Some(outcome) = racers.join_next().await {
        match outcome {
            Ok(Ok(Swap::Done(_))) => winners += 1,
            Ok(Ok(Swap::Conflict)) | Err(_) => {}
            Ok(Err(error)) => failure = Some(error),
        }
    }
    match (winners, failure) {
        (1, _) => Ok(()),
        (0, Some(error)) => Err(error.into()),
        // A racer whose answer was lost may have won.
        (0, None) => Err(ProbeError::Unsafe(format!("of {RACERS} creations at once none succeeded"))),
        (winners, _) => Err(ProbeError::Unsafe(format!(
            "of {RACERS} creations of one record at once, {winners} succeeded"
        ))),
    }
}
