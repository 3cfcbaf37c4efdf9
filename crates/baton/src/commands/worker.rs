//! `baton worker`: runs a shell command for each job.
//!
//! The command gets the job's arguments on stdin and the rest in its environment; its output becomes the job's log,
//! and its exit code the outcome. Always: a command that must stop (cancelled, timed out, lost, or left over after a
//! drain) gets TERM, with all processes that it started, and KILL a little later; the job is reported only after all
//! of its processes have ended. A supervisor cannot end a command when it is killed itself: the command should pass
//! BATON_FENCE to the resource that it changes. Start at [`run`].

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use baton_client::worker::{Context, Failure, HandlerResult, Level, StopReason};
use serde_json::json;
use serde_json::value::to_raw_value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

use super::process_group::ProcessGroup;
use super::target::Target;

/// How long a command that got TERM may take before it is killed.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// Bytes of a line of the log; a longer one is split.
const LINE_BYTES_MAX: u64 = 16 << 10;
/// How long left-over processes of a command may hold its output open.
const OUTPUT_AFTER: Duration = Duration::from_secs(1);

/// Run a shell command for each job.
///
/// The command gets the job's arguments, a JSON value, on stdin, and BATON_JOB_ID, BATON_JOB_TYPE, BATON_ATTEMPT,
/// BATON_EXECUTION_ID, BATON_FENCE and, for a job of a schedule, BATON_SCHEDULE_ID and BATON_SCHEDULED_FOR in its
/// environment. Its output becomes the job's log. Exit code 0 completes the job; any other fails it, and its retry
/// policy applies. After SIGTERM or Ctrl-C running commands may finish.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton worker --type backup --exec './backup.sh'
  baton worker --queue mail --concurrency 4 --exec 'jq -r .to | xargs send-mail'
  baton schedule put nightly --cron '0 3 * * *' --type backup    enqueues jobs for the first one")]
pub struct Args {
    /// The command, for `sh -c`
    #[arg(long, value_name = "COMMAND")]
    exec: String,

    /// Serve this queue; may be given several times
    #[arg(long, short, value_name = "NAME", default_value = "default")]
    queue: Vec<String>,

    /// Take jobs of this type only; may be given several times
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Vec<String>,

    /// Run this many commands at once
    #[arg(long, short, value_name = "COUNT", default_value_t = 1)]
    concurrency: usize,

    /// A display name
    #[arg(long, value_name = "NAME", default_value = "baton worker")]
    name: String,

    /// Seconds that running commands get after SIGTERM, before they are stopped and their jobs released
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    grace: f64,

    /// Stop a command before its lease ends when no server answers, and release its job: no two run at once
    #[arg(long)]
    exclusive: bool,

    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.target.client()?;
    let mut worker = client
        .worker()
        .name(args.name.as_str())
        .concurrency(args.concurrency)
        .drain(super::seconds("--grace", args.grace)?)
        .stop_on_signals()?;
    if args.exclusive {
        worker = worker.exclusive();
    }
    worker = args.queue.iter().fold(worker, |worker, queue| worker.queue(queue.as_str()));
    let command: Arc<str> = args.exec.as_str().into();
    let handle = move |context: Context| execute(Arc::clone(&command), context);
    worker = if args.job_type.is_empty() {
        worker.handle_any(handle)
    } else {
        let types = args.job_type.iter();
        types.fold(worker, |worker, job_type| worker.handle_raw(job_type.as_str(), handle.clone()))
    };
    eprintln!("working on {}; Ctrl-C ends it", args.queue.join(", "));
    let worked = worker.run().await?;
    eprintln!(
        "{} completed, {} failed, {} given back, {} lost",
        worked.succeeded, worked.failed, worked.released, worked.lost
    );
    Ok(())
}

/// Runs the command for one job.
async fn execute(command: Arc<str>, context: Context) -> HandlerResult {
    let mut child = spawn(&command, &context)
        .map_err(|error| Failure::new(format!("cannot start the command: {error}")).kind("not_started"))?;
    let mut group = ProcessGroup::from_leader(&child);
    if let Some(mut stdin) = child.stdin.take() {
        let args = context.args().get().as_bytes().to_vec();
        // A command need not read its arguments.
        tokio::spawn(async move { drop(stdin.write_all(&args).await) });
    }
    let output = tokio::spawn(follow(child.stdout.take(), Level::Info, context.clone()));
    let errors = tokio::spawn(follow(child.stderr.take(), Level::Warn, context.clone()));
    let status = tokio::select! {
        status = child.wait() => status,
        () = context.cancellation().cancelled() => group.stop(&mut child, KILL_AFTER).await,
    };
    // Processes that a command left behind run on, as under cron.
    group.release();
    // Such a process may hold the output pipes open.
    let last = async { (output.await.unwrap_or_default(), errors.await.unwrap_or_default()) };
    let (_, last_error) = tokio::time::timeout(OUTPUT_AFTER, last).await.unwrap_or_default();
    outcome(status?, context.ended(), last_error)
}

fn outcome(status: ExitStatus, ended: Option<StopReason>, last_error: Option<String>) -> HandlerResult {
    if ended.is_some() {
        return Err(Failure::new("the command was stopped").kind("stopped"));
    }
    if status.success() {
        return Ok(to_raw_value(&json!({"exitCode": 0}))?);
    }
    let said = last_error.map(|line| format!(": {line}")).unwrap_or_default();
    Err(Failure::new(format!("exit code {}{said}", code(status))).kind("exit"))
}

fn spawn(command: &str, context: &Context) -> std::io::Result<Child> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command);
    let attempt = context.attempt().to_string();
    let fence = context.fence().to_string();
    let environment = [
        ("BATON_JOB_ID", Some(context.job_id())),
        ("BATON_JOB_TYPE", Some(context.job_type())),
        ("BATON_ATTEMPT", Some(&attempt)),
        ("BATON_EXECUTION_ID", Some(context.execution_id())),
        ("BATON_FENCE", Some(&fence)),
        ("BATON_SCHEDULE_ID", context.schedule_id()),
        ("BATON_SCHEDULED_FOR", context.scheduled_for()),
    ];
    shell.envs(environment.into_iter().filter_map(|(name, value)| Some((name, value?))));
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell.process_group(0).kill_on_drop(true).spawn()
}

/// Logs the lines that the command prints. Returns the last one.
async fn follow(from: Option<impl AsyncRead + Unpin>, level: Level, context: Context) -> Option<String> {
    let mut reader = BufReader::new(from?);
    let (mut last, mut line) = (None, Vec::new());
    loop {
        line.clear();
        let mut limited = tokio::io::AsyncReadExt::take(&mut reader, LINE_BYTES_MAX);
        if limited.read_until(b'\n', &mut line).await.ok()? == 0 {
            return last;
        }
        let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
        context.log(level, text.clone()).await;
        if !text.trim().is_empty() {
            last = Some(text);
        }
    }
}

/// The exit code, as a shell reports it.
fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
