//! A command and all processes that it started, in a process group of its own.
//!
//! Always: a command has ended when no process of its group is left, not when its first process has ended; a group
//! that is dropped is killed unless it was released. Not here: processes that leave the group on purpose (`setsid`).
//! Start at [`ProcessGroup::stop`].

use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid};
use tokio::process::Child;

/// How often to check a group without its first process: no signal reports the end of the others.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How long killed processes may take to end; one that is stuck in the kernel may take longer.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A process group with running processes.
#[derive(Debug)]
pub struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// The group of a command that was spawned with `process_group(0)`.
    pub fn from_leader(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    /// Lets the remaining processes of the group run on.
    pub fn release(&mut self) {
        self.0 = None;
    }

    /// Sends a signal to every process of the group.
    pub fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // An error means that the process has ended.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Sends TERM, waits up to `grace` for all processes, and kills the remaining ones. Without a grace it kills them
    /// at once.
    pub async fn stop(&mut self, child: &mut Child, grace: Duration) -> std::io::Result<ExitStatus> {
        if !grace.is_zero() {
            self.signal(Signal::TERM);
            let all = async {
                let status = child.wait().await;
                self.empty().await;
                status
            };
            if let Ok(status) = tokio::time::timeout(grace, all).await {
                return status;
            }
        }
        self.signal(Signal::KILL);
        let status = child.wait().await;
        let _ = tokio::time::timeout(KILL_TIMEOUT, self.empty()).await;
        status
    }

    /// Returns when no process is left, after the first one was reaped. The group's number may be reused soon after.
    async fn empty(&mut self) {
        while let Some(group) = self.0 {
            // When this process is the init process of a container, it must reap orphans.
            while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
            if test_kill_process_group(group).is_err() {
                self.release();
            } else {
                baton_env::sleep(CHECK_INTERVAL).await;
            }
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
