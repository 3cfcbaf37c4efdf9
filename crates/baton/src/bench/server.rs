//! The measured server: one that is running already, or one that this program starts on an empty directory and stops
//! afterwards.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The first line of the server's output.
const GREETING: &str = "baton is listening on http://";

/// The address of a server, and its process if known.
pub struct Server {
    host: String,
    pid: Option<u32>,
    own: Option<Own>,
}

/// A server that this program started.
struct Own {
    child: Child,
    directory: PathBuf,
}

/// The resource usage of a server's process.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Processor time in seconds.
    pub cpu: f64,
    /// Memory that is resident.
    pub memory_bytes: u64,
    /// Bytes written to disk; zero where the system does not report them.
    pub written_bytes: u64,
}

impl Server {
    /// A server that is already running.
    pub fn at(url: &str, pid: Option<u32>) -> Result<Self> {
        let host =
            url.strip_prefix("http://").with_context(|| format!("{url} does not begin with http://"))?;
        Ok(Self { host: host.trim_end_matches('/').to_owned(), pid, own: None })
    }

    /// Starts a server with an empty directory under `parent`. Blocks until it listens.
    pub fn start(parent: &Path) -> Result<Self> {
        let directory = parent.join(format!("baton-bench-{:016x}", baton_env::random_u64()));
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        Self::start_on(directory)
    }

    fn start_on(directory: PathBuf) -> Result<Self> {
        let log = directory.join("server.log");
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(directory.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(&log)?)
            .spawn()?;
        let mut output = BufReader::new(child.stdout.take().context("the server has no output")?);
        let pid = Some(child.id());
        let mut server = Self { host: String::new(), pid, own: Some(Own { child, directory }) };
        let mut first = String::new();
        output.read_line(&mut first)?;
        let host = first.trim().strip_prefix(GREETING);
        let said =
            || format!("the server said {first:?} and {:?}", fs::read_to_string(&log).unwrap_or_default());
        server.host = host.with_context(said)?.trim_end_matches('/').to_owned();
        // Drains the pipe, so that later output cannot block the server.
        std::thread::spawn(move || output.read_to_end(&mut Vec::new()));
        Ok(server)
    }

    /// Kills our own server and restarts it on the same directory.
    pub fn restart(mut self) -> Result<Self> {
        let mut own = self.own.take().context("only a server of our own can be restarted")?;
        own.end();
        Self::start_on(std::mem::take(&mut own.directory))
    }

    /// Its `HOST:PORT`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether it was started here.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Its usage so far, when its process is known.
    pub fn usage(&self) -> Option<Usage> {
        usage(self.pid?)
    }

    /// Bytes in its directory, when it is our own.
    pub fn disk_bytes(&self) -> Option<u64> {
        self.own.as_ref().map(|own| tree_bytes(&own.directory.join("data")))
    }

    /// Fails when its process is known and gone.
    pub fn ensure_alive(&mut self) -> Result<()> {
        if let Some(own) = &mut self.own {
            ensure!(own.child.try_wait()?.is_none(), "the server ended during the run");
        }
        Ok(())
    }
}

impl Own {
    fn end(&mut self) {
        // The process may have ended already.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.end();
        if !self.directory.as_os_str().is_empty() {
            // Left-over files do not spoil the result.
            _ = fs::remove_dir_all(&self.directory);
        }
    }
}

fn usage(pid: u32) -> Option<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and may hold spaces; user and system time are the 12th and 13th field after it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().ok()?;
    // Linux counts processor time for user space in hundredths of a second.
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let written = io.lines().find_map(|line| line.strip_prefix("write_bytes:"));
    let written_bytes = written.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
    Some(Usage { cpu: (user + system) / 100.0, memory_bytes: kilobytes << 10, written_bytes })
}

fn tree_bytes(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => tree_bytes(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_of_this_process_can_be_read() {
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.memory_bytes > 100 << 10, "{usage:?}");
    }

    #[test]
    fn an_address_is_cut_out_of_a_url() {
        assert_eq!(Server::at("http://127.0.0.1:6632/", None).unwrap().host(), "127.0.0.1:6632");
        assert!(Server::at("127.0.0.1:6632", None).is_err());
    }
}
