//! How this node takes part in the cluster, shared by its tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, watch};

use crate::model::ownership::OwnershipTable;

/// The node's state in the cluster, shared by its tasks.
#[derive(Debug)]
pub struct Participation {
    /// Whether the server is about to stop.
    leaving: AtomicBool,
    /// Whether it stops without a handoff, as a crash would.
    abandoned: AtomicBool,
    /// Notified when one of these changes.
    pub(crate) notifier: Notify,
    /// Whether the node takes no part: it drains or has drained.
    pub(crate) idle: watch::Sender<bool>,
    /// Whether all slices were handed over or left behind.
    pub(crate) drained: watch::Sender<bool>,
    /// The ownership table at the last read.
    pub(crate) table: watch::Sender<Option<Arc<OwnershipTable>>>,
}

impl Default for Participation {
    fn default() -> Self {
        Self {
            leaving: false.into(),
            abandoned: false.into(),
            notifier: Notify::new(),
            idle: watch::Sender::new(false),
            drained: watch::Sender::new(false),
            table: watch::Sender::new(None),
        }
    }
}

impl Participation {
    /// Whether the node takes no part.
    pub fn is_idle(&self) -> bool {
        *self.idle.borrow()
    }

    /// The ownership table at the last read: a hint.
    pub fn table(&self) -> Option<Arc<OwnershipTable>> {
        self.table.borrow().clone()
    }

    /// Starts the drain; returns when all slices were handed over or left behind.
    pub async fn leave(&self) {
        self.leaving.store(true, Ordering::SeqCst);
        self.notifier.notify_one();
        // The sender lives as long as `self`.
        let _ = self.drained.subscribe().wait_for(|drained| *drained).await;
    }

    /// Stops without a handoff.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
    }

    /// Whether the node must not write anything to the others any more.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// Whether the server is about to stop.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }
}
