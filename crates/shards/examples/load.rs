//! Measures the cost of shards: the time to plan them, the processor time of a server with idle workers, and the time
//! until all workers have received a change.
//!
//! Starts the program named by the first argument and speaks plain ZMTP to it, one connection per worker.
//!
//!     cargo run --package baton-shards --example load -- target/debug/baton
//!
//! Further arguments, each with its default: workers that send heartbeats (10000), their shards (100000), seconds to
//! measure (30), workers that receive a change (1000), `sticky` or `contiguous`.

#![allow(clippy::unwrap_used, reason = "a measurement may stop at the first surprise")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_env::Stopwatch;
use baton_shards::{Allocation, Heartbeat, Request, Rules, Service, Snapshot};
use baton_types::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

const BEAT: Duration = Duration::from_secs(5);
/// Ticks of processor time in a second on Linux.
const TICKS: f64 = 100.0;
/// Concurrent connection attempts.
const BEGINNING_MAX: usize = 64;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u32| arguments.get(at).map_or(default, |text| text.parse().unwrap());
    let allocation = arguments.get(5).map_or("contiguous", String::as_str);
    let (workers, shards, seconds, told) =
        (number(1, 10_000), number(2, 100_000), number(3, 30), number(4, 1_000));
    spread(shards, told, Allocation::Contiguous);
    spread(shards, told, Allocation::Sticky);
    let Some(program) = arguments.first() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        beat(&Server::start(program, allocation), workers, shards, seconds).await;
        measure_change(&Server::start(program, allocation), told, shards).await;
    });
}

/// The time to plan shards again when a worker joins.
fn spread(shards: u32, workers: u32, allocation: Allocation) {
    let rules = Rules {
        allocation,
        timeout: Duration::from_secs(15),
        forget_after: Duration::from_secs(60),
        rebalance_interval: Duration::ZERO,
    };
    let now = Timestamp::from_micros(1);
    let mut service = Service::default();
    let join = |service: &mut Service, worker: u32| {
        let beat = Heartbeat {
            is_registration: true,
            shard_count: Some(shards),
            ..Heartbeat::from_worker(format!("w{worker:06}"))
        };
        service.apply(&Request::Heartbeat(beat), &rules, now).unwrap();
    };
    (0..workers).for_each(|worker| join(&mut service, worker * 2));
    service.rebalance(&rules, now);
    let mut times: Vec<Duration> = (0..11)
        .map(|round| {
            let mut changed = service.clone();
            join(&mut changed, round * 2 + 1);
            let watch = Stopwatch::start();
            changed.rebalance(&rules, now);
            let spread = watch.elapsed();
            let snapshot = Snapshot::compute(Arc::new(changed), 1);
            assert_eq!(snapshot.unassigned, 0);
            spread
        })
        .collect();
    times.sort();
    println!(
        "{shards} shards over {workers} workers spread anew, {allocation:?}: {:?} (median of 11)",
        times[5]
    );
}

struct Server {
    child: Child,
    address: String,
    _data: tempfile::TempDir,
}

impl Server {
    fn start(program: &str, allocation: &str) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--shards-listen", "127.0.0.1:0", "--log", "warn"])
            .args(["--shards-allocation", allocation, "--data"])
            .arg(data.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address =
            lines.map_while(Result::ok).find_map(|line| line.split("tcp://").nth(1).map(str::to_owned));
        Self { child, address: address.unwrap(), _data: data }
    }

    /// Seconds of processor time so far.
    fn processor(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / TICKS
    }

    fn resident_mebibytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Counters that all workers of a run share.
#[derive(Default)]
struct Counts {
    /// Workers that have received their shards.
    joined: AtomicU64,
    assignments: AtomicU64,
}

async fn beat(server: &Server, workers: u32, shards: u32, seconds: u32) {
    let before = server.processor();
    let watch = Stopwatch::start();
    baton_env::sleep(Duration::from_secs(5)).await;
    let idle = (server.processor() - before) / watch.elapsed().as_secs_f64();
    println!("without workers: {:.1} % of a core", idle * 100.0);
    let counts = Arc::new(Counts::default());
    let watch = Stopwatch::start();
    begin(server, "beating", 0..workers, shards, &counts).await;
    wait_until_settled(&counts, u64::from(workers)).await;
    println!("{workers} workers have joined after {:.1} s", watch.elapsed().as_secs_f64());
    let (before, answered) = (server.processor(), counts.assignments.load(Ordering::Relaxed));
    let watch = Stopwatch::start();
    baton_env::sleep(Duration::from_secs(seconds.into())).await;
    let (used, wall) = (server.processor() - before, watch.elapsed().as_secs_f64());
    let answers = counts.assignments.load(Ordering::Relaxed) - answered;
    println!(
        "{workers} workers, {shards} shards: {:.0} beats answered a second, {:.1} % of a core, {} MiB",
        answers as f64 / wall,
        used / wall * 100.0,
        server.resident_mebibytes(),
    );
}

async fn measure_change(server: &Server, workers: u32, shards: u32) {
    let counts = Arc::new(Counts::default());
    // Only odd numbers, so that a worker can join before the others and move all of their shards.
    begin(server, "told", 1..workers + 1, shards, &counts).await;
    wait_until_settled(&counts, workers.into()).await;
    let before = counts.assignments.load(Ordering::Relaxed);
    let watch = Stopwatch::start();
    begin(server, "told", 0..1, shards, &counts).await;
    let wanted = before + u64::from(workers) / 2;
    while counts.assignments.load(Ordering::Relaxed) < wanted {
        baton_env::sleep(Duration::from_millis(1)).await;
    }
    let half = watch.elapsed();
    while counts.assignments.load(Ordering::Relaxed) < before + u64::from(workers) + 1 {
        baton_env::sleep(Duration::from_millis(1)).await;
    }
    println!("one more worker: half of {workers} were told after {half:?}, all after {:?}", watch.elapsed());
}

/// Waits until all have joined and no assignment changed between two heartbeats.
async fn wait_until_settled(counts: &Counts, workers: u64) {
    while counts.joined.load(Ordering::Relaxed) < workers {
        baton_env::sleep(Duration::from_millis(50)).await;
    }
    let most = workers * 3 / 10 + 10;
    let mut before = u64::MAX / 2;
    loop {
        let now = counts.assignments.load(Ordering::Relaxed);
        if now.saturating_sub(before) < most && now >= before {
            return;
        }
        before = now;
        baton_env::sleep(Duration::from_secs(1)).await;
    }
}

async fn begin(server: &Server, service: &str, ids: std::ops::Range<u32>, shards: u32, counts: &Arc<Counts>) {
    let beginning = Arc::new(Semaphore::new(BEGINNING_MAX));
    for id in ids {
        let place = Arc::clone(&beginning).acquire_owned().await.unwrap();
        let (address, service, counts) = (server.address.clone(), service.to_owned(), Arc::clone(counts));
        tokio::spawn(async move {
            let data =
                format!("\"serviceName\":\"{service}\",\"workerId\":\"w{id:06}\",\"maxShardCount\":{shards}");
            let mut worker = Worker::connect(&address).await;
            worker.send(&format!("{{\"type\":\"register\",\"data\":{{{data}}}}}")).await;
            if !worker.receive().await {
                return;
            }
            counts.joined.fetch_add(1, Ordering::Relaxed);
            counts.assignments.fetch_add(1, Ordering::Relaxed);
            drop(place);
            worker
                .beat(
                    &format!("{{\"type\":\"heartbeat\",\"data\":{{{data},\"assignedShards\":[]}}}}"),
                    &counts,
                )
                .await;
        });
    }
}

/// A minimal DEALER socket.
struct Worker {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Worker {
    async fn connect(address: &str) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut greeting = [0u8; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        stream.write_all(&greeting).await.unwrap();
        let ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER";
        stream.write_all(&[0x04, ready.len() as u8]).await.unwrap();
        stream.write_all(ready).await.unwrap();
        stream.read_exact(&mut greeting).await.unwrap();
        let mut worker = Self { stream, buffer: Vec::new() };
        assert!(worker.frame().await.is_some_and(|(flags, _)| flags & 4 != 0), "no READY");
        worker
    }

    /// Sends a message; if the server has ended, the next receive notices.
    async fn send(&mut self, text: &str) {
        let mut frame = vec![0x02];
        frame.extend((text.len() as u64).to_be_bytes());
        frame.extend(text.as_bytes());
        let _ = self.stream.write_all(&frame).await;
    }

    /// The next frame, from the buffer or the socket. Cancel-safe. `None` when the server has ended.
    async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some((flags, from, length)) = self.head()
                && self.buffer.len() >= from + length
            {
                let body = self.buffer[from..from + length].to_vec();
                self.buffer.drain(..from + length);
                return Some((flags, body));
            }
            if self.stream.read_buf(&mut self.buffer).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    fn head(&self) -> Option<(u8, usize, usize)> {
        let flags = *self.buffer.first()?;
        if flags & 2 == 0 {
            return Some((flags, 2, (*self.buffer.get(1)?).into()));
        }
        let length = self.buffer.get(1..9)?;
        Some((flags, 9, usize::try_from(u64::from_be_bytes(length.try_into().unwrap())).unwrap()))
    }

    /// Waits for a message, and answers pings meanwhile. Returns whether one came.
    async fn receive(&mut self) -> bool {
        loop {
            let Some((flags, body)) = self.frame().await else { return false };
            if flags & 4 == 0 {
                assert!(body.starts_with(b"{\"type\":\"assignment\""), "{}", String::from_utf8_lossy(&body));
                return true;
            }
            if let Some(ping) = body.strip_prefix(b"\x04PING") {
                let mut pong = vec![0x04, u8::try_from(5 + ping.len() - 2).unwrap()];
                pong.extend(b"\x04PONG");
                pong.extend(&ping[2..]);
                let _ = self.stream.write_all(&pong).await;
            }
        }
    }

    async fn beat(&mut self, message: &str, counts: &Counts) {
        let first = BEAT.mul_f64((baton_env::random_u64() % 1000) as f64 / 1000.0);
        let mut due = baton_env::ResettableSleep::after(first);
        loop {
            tokio::select! {
                () = std::future::poll_fn(|cx| due.poll(cx)) => {
                    due.reset(BEAT);
                    self.send(message).await;
                }
                received = self.receive() => {
                    if !received {
                        return;
                    }
                    counts.assignments.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}
