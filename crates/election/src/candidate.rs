//! The three hooks of a participant, and the task that calls them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::event::Reason;
use crate::leadership::Leadership;
use crate::machine::Input;

/// What a participant does as coordinator. All three hooks have an empty default.
///
/// Always: they are called one after the other, never two at a time; the first two futures are dropped where they
/// stand when the leadership ends, so what they do must be safe to break off (or fenced by the token); the term is
/// given away only after [`stopped`](Self::stopped) has returned, or its lease has run out.
pub trait Candidate: Send + Sync + 'static {
    /// This worker has become the coordinator.
    fn became(&self, leadership: Leadership) -> impl Future<Output = ()> + Send {
        let _ = leadership;
        async {}
    }

    /// It is the coordinator no longer. Should be quick: the next one waits for it.
    fn stopped(&self, reason: Reason) -> impl Future<Output = ()> + Send {
        let _ = reason;
        async {}
    }

    /// Called again and again while it is the coordinator.
    fn work(&self, leadership: &Leadership) -> impl Future<Output = ()> + Send {
        let _ = leadership;
        async {}
    }
}

/// Takes part and does nothing. For programs that ask [`Elector::leadership`](crate::Elector::leadership) instead.
impl Candidate for () {}

/// Calls the hooks for each leadership that comes in, and tells when each has ended.
pub(crate) async fn serve<C: Candidate>(
    candidate: Arc<C>,
    interval: Duration,
    mut terms: mpsc::Receiver<Leadership>,
    ended: mpsc::Sender<Input>,
) {
    while let Some(leadership) = terms.recv().await {
        let term = tokio::spawn(one(Arc::clone(&candidate), interval, leadership));
        let mut failed = false;
        if let Err(error) = term.await {
            tracing::error!(%error, "a hook of the coordinator broke off; the term is given up");
            failed = true;
        }
        if failed && ended.send(Input::StepDown(None)).await.is_err() {
            return;
        }
        if ended.send(Input::WorkEnded).await.is_err() {
            return;
        }
    }
}

async fn one<C: Candidate>(candidate: Arc<C>, interval: Duration, leadership: Leadership) {
    let work = async {
        candidate.became(leadership.clone()).await;
        loop {
            candidate.work(&leadership).await;
            baton_env::sleep(interval).await;
        }
    };
    let Err(over) = leadership.guard::<std::convert::Infallible>(work).await;
    candidate.stopped(over.0).await;
}
