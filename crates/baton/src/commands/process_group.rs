//! A command with everything that it started: a process group of its own.
//!
//! Always: a command counts as ended when no process of its group is left, not when its first process has ended; a group
//! that is dropped is killed unless it was released. Not here: processes that leave the group on purpose (`setsid`).
//! Start at [`ProcessGroup::stop`].

use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid};
use tokio::process::Child;

/// How often a group without its first process is looked at: nothing notifies of the end of the others.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long killed processes may take to go; one that is stuck in the kernel goes when it can.
const KILLED_WITHIN: Duration = Duration::from_secs(5);

/// The processes that a command started and that have not ended.
#[derive(Debug)]
pub struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// The group of a command that was spawned with `process_group(0)`.
    pub fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    /// Leaves what is left of the group alone.
    pub fn release(&mut self) {
        self.0 = None;
    }

    /// Sends a signal to every process of the group.
    pub fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // One that has ended needs no signal.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Sends TERM, waits up to `grace` for all processes, and kills those that are left. Without a grace they are killed
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
        let _ = tokio::time::timeout(KILLED_WITHIN, self.empty()).await;
        status
    }

    /// Returns when no process is left, after the first one was waited for. Its number may soon be another group's.
    async fn empty(&mut self) {
        while let Some(group) = self.0 {
            // Where this process is the first of a container, orphans are its own to reap.
            while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
            if test_kill_process_group(group).is_err() {
                self.release();
            } else {
                baton_env::sleep(LOOK_EVERY).await;
            }
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
