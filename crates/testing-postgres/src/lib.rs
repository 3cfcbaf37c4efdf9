//! A temporary PostgreSQL for tests, started from the binaries of the machine.
//!
//! Every test that needs one gets a real one, with `fsync` on. Always: it listens on loopback only; it ends with the
//! process that started it, even when that process is killed, because its guard script notices the end of its input.
//! Not here: code that a Baton server uses.
//!
//! Start at [`Postgres::start`]; tests that can share a server use [`Postgres::shared`] and a schema or a
//! [`database`](Postgres::database) of their own.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Another process may take the free port first.
const TRIES: usize = 5;

/// A running PostgreSQL. Dropping it stops it and removes its files.
pub struct Postgres {
    bin: PathBuf,
    port: u16,
    directory: PathBuf,
    /// `None` for a server that another process started.
    guard: Mutex<Option<GuardProcess>>,
}

struct GuardProcess {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Postgres {
    /// Starts a server and waits until it answers.
    ///
    /// # Panics
    ///
    /// If PostgreSQL is not installed or does not start.
    pub fn start() -> Self {
        let bin = find_binaries().expect("initdb and postgres are installed (apt-get install postgresql)");
        for _ in 0..TRIES {
            if let Some(started) = Self::try_start(&bin, free_port()) {
                return started;
            }
        }
        panic!("PostgreSQL did not start; what it said stands above");
    }

    /// One server for all tests of this process that do not stop it; for all processes if the environment variable
    /// `BATON_TEST_POSTGRES` has the port of one.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| Self::from_environment().unwrap_or_else(Self::start))
    }

    fn from_environment() -> Option<Self> {
        let port = std::env::var("BATON_TEST_POSTGRES").ok()?.parse().ok()?;
        Some(Self { bin: find_binaries()?, port, directory: PathBuf::new(), guard: Mutex::new(None) })
    }

    fn try_start(bin: &Path, port: u16) -> Option<Self> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(include_str!("postgres.sh")).arg("postgres.sh").arg(bin).arg(port.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir("/tmp").process_group(0);
        // PostgreSQL refuses to run as root.
        if let Some((user, group)) = unprivileged_user() {
            command.uid(user).gid(group);
        }
        let mut process = command.spawn().ok()?;
        let (input, output) = (process.stdin.take(), process.stdout.take()?);
        let mut guard = GuardProcess { process, input, output: BufReader::new(output) };
        let said = guard.read_reply();
        let directory = PathBuf::from(said.strip_prefix("ready ")?);
        Some(Self { bin: bin.into(), port, directory, guard: Mutex::new(Some(guard)) })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of its socket.
    pub fn socket_directory(&self) -> &Path {
        &self.directory
    }

    /// The address of the default database.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    fn url_of(&self, database: &str) -> String {
        format!("postgres://baton@127.0.0.1:{}/{database}", self.port)
    }

    /// The address of a new, empty database.
    ///
    /// # Panics
    ///
    /// If it cannot be created.
    pub fn database(&self) -> String {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = format!("test_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url_of(&name)
    }

    /// Runs a statement. Returns one row per line, with columns separated by `|`.
    ///
    /// # Panics
    ///
    /// If the statement fails.
    pub fn sql(&self, database: &str, statement: &str) -> String {
        let mut command = Command::new(self.bin.join("psql"));
        command.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-U", "baton", "-h", "127.0.0.1", "-d", database]);
        let output = command.arg("-p").arg(self.port.to_string()).args(["-c", statement]).output();
        let output = output.expect("psql is installed with PostgreSQL");
        assert!(output.status.success(), "{statement}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().into()
    }

    /// Kills it, as a power failure would.
    pub fn stop(&self) {
        self.send_command("stop");
    }

    /// Restarts it after [`stop`](Self::stop), at the same address.
    pub fn resume(&self) {
        self.send_command("start");
    }

    fn send_command(&self, word: &str) {
        let mut guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(guard) = guard.as_mut() else { panic!("one that is shared is not stopped") };
        if let Some(input) = &mut guard.input {
            writeln!(input, "{word}").expect("the guarding script listens");
        }
        guard.read_reply();
    }
}

impl GuardProcess {
    fn read_reply(&mut self) -> String {
        let mut line = String::new();
        // An ended script leaves an incomplete line.
        let _ = self.output.read_line(&mut line);
        line.trim().into()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.get_mut().unwrap_or_else(PoisonError::into_inner) {
            guard.input = None;
            let _ = guard.process.wait();
        }
    }
}

/// The directory of the newest `initdb` and `postgres`.
fn find_binaries() -> Option<PathBuf> {
    let both =
        |directory: &PathBuf| ["initdb", "postgres", "psql"].iter().all(|name| directory.join(name).exists());
    let mut installed: Vec<(u32, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten() {
        let version = entry.file_name().to_string_lossy().parse().unwrap_or(0);
        installed.push((version, entry.path().join("bin")));
    }
    installed.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories =
        installed.into_iter().rev().map(|(_, directory)| directory).chain(std::env::split_paths(&path));
    directories.into_iter().find(both)
}

/// A free loopback port below the range of ephemeral ports, so that no connection takes it while the database
/// restarts. Processes start the search at different ports.
fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 2000;
    static TURN: AtomicU64 = AtomicU64::new(0);
    let begin = 16 * u64::from(std::process::id()) + TURN.fetch_add(1, Ordering::Relaxed);
    let begin = u16::try_from(begin % u64::from(COUNT)).unwrap_or(0);
    let mut ports = (0..COUNT).map(|next| FIRST + (begin + next) % COUNT);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("loopback has a free port")
}

/// The user to run it as when we are root: `postgres`, else another unprivileged user.
fn unprivileged_user() -> Option<(u32, u32)> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let own = std::fs::metadata("/proc/self").ok().map(|meta| std::os::unix::fs::MetadataExt::uid(&meta));
    if own != Some(0) {
        return None;
    }
    ["postgres", "nobody"].into_iter().find_map(|name| {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}
