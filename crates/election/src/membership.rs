//! One group's use of the lease of a process.
//!
//! Always: a process joins a group at most once at a time, because it has one name in all its groups; the group is
//! free to be joined again when its [`Membership`] is dropped. Start at [`JoinedGroups::join`].

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};

use crate::machine::HeldLease;

/// The groups that a process has joined.
#[derive(Clone, Debug, Default)]
pub(crate) struct JoinedGroups(Arc<Mutex<BTreeSet<String>>>);

impl JoinedGroups {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins `group` under `lease`; `None` if the process has joined it already.
    pub(crate) fn join(&self, group: &str, lease: ProcessLeaseHandle) -> Option<Membership> {
        let joined = self.lock().insert(group.to_owned());
        joined.then(|| Membership { lease, group: group.to_owned(), groups: self.clone() })
    }
}

/// What a member sees of the lease of its process, and what it may ask of it.
#[derive(Clone, Debug)]
pub(crate) struct ProcessLeaseHandle {
    /// The lease; `None` while the process has none.
    pub(crate) current: watch::Receiver<Option<HeldLease>>,
    /// Asks for a new lease instead of the current one.
    pub(crate) abandon: mpsc::Sender<()>,
}

/// The membership of a process in one group, until it is dropped.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) lease: ProcessLeaseHandle,
    group: String,
    groups: JoinedGroups,
}

impl Membership {
    /// Replaces the lease of the process by a new one, because a claim that no member acts upon may rest on the old one.
    pub(crate) fn abandon_lease(&self) {
        // A full channel holds such a request already.
        let _ = self.lease.abandon.try_send(());
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.groups.lock().remove(&self.group);
    }
}
