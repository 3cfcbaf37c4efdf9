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
/// Always: they are called one after the other, never concurrently. The futures of `became` and `work` are dropped
/// when the leadership ends, so they must be safe to cancel (or fenced by the token). The term is released only after [`stopped`](Self::stopped) has returned, or its lease has run out.
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

/// Calls the hooks for each leadership, and reports when each has ended.
pub(crate) async fn run_terms<C: Candidate>(
    candidate: Arc<C>,
    interval: Duration,
    mut terms: mpsc::Receiver<Leadership>,
    ended: mpsc::Sender<Input>,
) {
    while let Some(leadership) = terms.recv().await {
        let term = tokio::spawn(run_hooks(Arc::clone(&candidate), interval, leadership));
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

async fn run_hooks<C: Candidate>(candidate: Arc<C>, interval: Duration, leadership: Leadership) {
    let mut began = false;
    let work = async {
        began = true;
        candidate.became(leadership.clone()).await;
        loop {
            candidate.work(&leadership).await;
            baton_env::sleep(interval).await;
        }
    };
    let Err(over) = leadership.guard::<std::convert::Infallible>(work).await;
    // A process frozen right after its promotion may wake up with the term over: no hook has begun.
    if began {
        candidate.stopped(over.0).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use baton_env::{Clock, ManualClock};

    use super::*;

    #[derive(Default)]
    struct Diary(Mutex<Vec<&'static str>>);

    impl Candidate for Diary {
        async fn became(&self, _: Leadership) {
            self.0.lock().unwrap().push("became");
        }

        async fn stopped(&self, _: Reason) {
            self.0.lock().unwrap().push("stopped");
        }
    }

    #[tokio::test]
    async fn who_never_became_it_never_stops_being_it() {
        let clock = Arc::new(ManualClock::new("2026-11-15T00:00:00Z".parse().unwrap()));
        let (diary, second) = (Arc::new(Diary::default()), Duration::from_secs(1));
        let leadership = Leadership::new(1, Some(second), Arc::clone(&clock) as Arc<dyn Clock>);
        clock.advance(second);
        run_hooks(Arc::clone(&diary), second, leadership).await;
        assert!(diary.0.lock().unwrap().is_empty());
        let leadership = Leadership::new(2, None, clock);
        let (_, ()) = tokio::join!(run_hooks(Arc::clone(&diary), second, leadership.clone()), async {
            while diary.0.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            leadership.revoke(Reason::Requested);
        });
        assert_eq!(*diary.0.lock().unwrap(), ["became", "stopped"]);
    }
}
