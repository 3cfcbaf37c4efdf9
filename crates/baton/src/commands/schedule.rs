//! `baton schedule`: manages schedules of jobs.

use anyhow::{Context, bail};
use baton_client::Schedules;
use serde_json::{Map, Value, json};

use super::table::{self, text};
use super::target::Target;
use crate::output::Output;

/// Manage schedules: enqueue jobs by a cron expression, at an interval, or once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton schedule put nightly --cron '0 3 * * *' --zone Europe/Berlin --type backup
  baton schedule put beat --every 30 --type beat '{\"loud\": true}'
  baton schedule list
  baton schedule show nightly                with its next fires
  baton schedule trigger nightly             fire now
  baton schedule pause nightly
  baton schedule backfill nightly --from 2026-11-01T00:00:00Z --to 2026-11-08T00:00:00Z --dry-run")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Create or change a schedule.
    Put(Box<PutArgs>),
    /// List schedules.
    List(ListArgs),
    /// Show a schedule with its next fires.
    Show(NameArgs),
    /// Remove a schedule; its jobs stay.
    Delete(NameArgs),
    /// Fire now, in addition to its times.
    Trigger(NameArgs),
    /// Pause a schedule.
    Pause(NameArgs),
    /// Resume a schedule with the fires after now.
    Resume(NameArgs),
    /// Fire for the times of a past period.
    Backfill(BackfillArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct NameArgs {
    /// The schedule's id
    id: String,

    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct PutArgs {
    /// The schedule's id
    id: String,

    /// The arguments of its jobs, a JSON value
    #[arg(value_name = "JSON")]
    args: Option<String>,

    /// The type of its jobs
    #[arg(long = "type", value_name = "TYPE")]
    job_type: String,

    /// The queue of its jobs
    #[arg(long, short, value_name = "NAME", default_value = "default")]
    queue: String,

    /// A cron expression: minute, hour, day of the month, month, day of the week; optionally with seconds first
    #[arg(long, value_name = "EXPRESSION", required_unless_present_any = ["every", "at"])]
    cron: Option<String>,

    /// Seconds between two fires
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["cron", "at"])]
    every: Option<f64>,

    /// The time of its only fire, such as 2026-11-15T18:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "cron")]
    at: Option<String>,

    /// The time zone of the cron expression
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,

    /// No fire before this time
    #[arg(long, value_name = "TIME")]
    start: Option<String>,

    /// No fire after this time
    #[arg(long, value_name = "TIME")]
    end: Option<String>,

    /// What happens to missed fires: once, all or skip
    #[arg(long, value_name = "POLICY")]
    misfire: Option<String>,

    /// What happens while the last job is still running: allow, skip, queue_one or replace
    #[arg(long, value_name = "POLICY")]
    overlap: Option<String>,

    /// Start each job up to this many seconds later, to spread the load
    #[arg(long, value_name = "SECONDS")]
    jitter: Option<f64>,

    /// The timeout of its jobs in seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,

    /// How often a job is retried after a failure
    #[arg(long, value_name = "COUNT")]
    retries: Option<u32>,

    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct BackfillArgs {
    /// The schedule's id
    id: String,

    /// From this time
    #[arg(long, value_name = "TIME")]
    from: String,

    /// To this time
    #[arg(long, value_name = "TIME")]
    to: String,

    /// At most this many
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    max: u64,

    /// Only list the times
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    target: Target,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Put(args) => {
            let schedule = schedule_body(&args)?;
            let answer = args.target.client()?.schedules().put(&args.id, &schedule).await?;
            print_state(&args.target, &answer)
        }
        Command::List(args) => list(&args.target).await,
        Command::Show(args) => print_state(&args.target, &schedules(&args)?.get(&args.id).await?),
        Command::Delete(args) => Ok(schedules(&args)?.delete(&args.id).await?),
        Command::Trigger(args) => {
            let answer = schedules(&args)?.trigger(&args.id).await?;
            print(&args.target, &answer, text(&answer["jobId"]))
        }
        Command::Pause(args) => print_state(&args.target, &schedules(&args)?.pause(&args.id).await?),
        Command::Resume(args) => print_state(&args.target, &schedules(&args)?.resume(&args.id).await?),
        Command::Backfill(args) => {
            let client = args.target.client()?.schedules();
            let answer = client.backfill(&args.id, &args.from, &args.to, args.max, args.dry_run).await?;
            let fires: Vec<_> = answer["fires"].as_array().into_iter().flatten().map(text).collect();
            print(&args.target, &answer, fires.join("\n"))
        }
    }
}

fn schedules(args: &NameArgs) -> anyhow::Result<Schedules> {
    Ok(args.target.client()?.schedules())
}

/// The schedule as the API expects it.
fn schedule_body(args: &PutArgs) -> anyhow::Result<Value> {
    let millis = |what: &str, seconds: Option<f64>| {
        let duration = seconds.map(|seconds| super::seconds(what, seconds)).transpose()?;
        anyhow::Ok(duration.map(|duration| json!(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))))
    };
    let text = |given: &Option<String>| given.as_ref().map(|given| json!(given));
    let kind = match (&args.cron, args.every, &args.at) {
        (Some(_), ..) => "cron",
        (None, Some(_), _) => "interval",
        (None, None, Some(_)) => "once",
        (None, None, None) => bail!("give one of --cron, --every and --at"),
    };
    let arguments = args.args.as_ref().map(|args| serde_json::from_str::<Value>(args));
    let arguments = arguments.transpose().context("the arguments are no JSON value")?;
    let job = [
        ("jobType", Some(json!(args.job_type))),
        ("queue", Some(json!(args.queue))),
        ("args", arguments),
        ("timeoutMs", millis("--timeout", args.timeout)?),
        ("retry", args.retries.map(|retries| json!({"maxRetries": retries}))),
    ];
    let schedule = [
        ("kind", Some(json!(kind))),
        ("cron", text(&args.cron)),
        ("everyMs", millis("--every", args.every)?),
        ("at", text(&args.at)),
        ("timeZone", text(&args.zone)),
        ("startAt", text(&args.start)),
        ("endAt", text(&args.end)),
        ("misfire", text(&args.misfire)),
        ("overlap", text(&args.overlap)),
        ("jitterMs", millis("--jitter", args.jitter)?),
        ("job", Some(object(job))),
    ];
    Ok(object(schedule))
}

fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let given = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(given.collect::<Map<_, _>>())
}

async fn list(target: &Target) -> anyhow::Result<()> {
    let client = target.client()?.schedules();
    let mut output = Output::new(target.json);
    let mut rows = table::new(&["schedule", "when", "zone", "type", "enabled", "next fire", "last fire"]);
    let mut cursor: Option<String> = None;
    loop {
        let page = client.list(cursor.as_deref()).await?;
        for schedule in page["schedules"].as_array().into_iter().flatten() {
            if output.is_json() {
                output.json(schedule)?;
            } else {
                rows.add_row([
                    text(&schedule["id"]),
                    when(schedule),
                    text(&schedule["timeZone"]),
                    text(&schedule["job"]["jobType"]),
                    text(&schedule["enabled"]),
                    text(&schedule["nextFires"][0]),
                    text(&schedule["lastFire"]["at"]),
                ]);
            }
        }
        match page["nextCursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    if !output.is_json() {
        if rows.is_empty() {
            output.text("No schedules: `baton schedule put ID --cron '0 3 * * *' --type TYPE` makes one.")?;
        } else {
            output.text(rows)?;
        }
    }
    output.flush()?;
    Ok(())
}

fn when(schedule: &Value) -> String {
    match schedule["everyMs"].as_u64() {
        Some(millis) => format!("every {} s", std::time::Duration::from_millis(millis).as_secs_f64()),
        None if schedule["at"].is_string() => format!("at {}", text(&schedule["at"])),
        None => text(&schedule["cron"]),
    }
}

/// Prints a schedule.
fn print_state(target: &Target, schedule: &Value) -> anyhow::Result<()> {
    let mut shown = table::new(&["schedule", &text(&schedule["id"])]);
    let mut row = |label: &str, value: String| {
        if !value.is_empty() {
            shown.add_row([label.to_owned(), value]);
        }
    };
    row("when", when(schedule));
    let plain =
        [("zone", "timeZone"), ("enabled", "enabled"), ("misfire", "misfire"), ("overlap", "overlap")];
    for (label, name) in plain {
        row(label, text(&schedule[name]));
    }
    row("job type", text(&schedule["job"]["jobType"]));
    row("queue", text(&schedule["job"]["queue"]));
    row("arguments", text(&schedule["job"]["args"]));
    row("last fire", text(&schedule["lastFire"]["at"]));
    row("came to", text(&schedule["lastOutcome"]));
    let fires: Vec<_> = schedule["nextFires"].as_array().into_iter().flatten().map(text).collect();
    row("next fires", fires.join("\n"));
    print(target, schedule, shown)
}

fn print(target: &Target, answer: &Value, for_people: impl std::fmt::Display) -> anyhow::Result<()> {
    let mut output = Output::new(target.json);
    if output.is_json() {
        output.json(answer)?;
    } else {
        output.text(for_people)?;
    }
    output.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: PutArgs,
    }

    fn put(words: &[&str]) -> anyhow::Result<Value> {
        schedule_body(&Cli::try_parse_from([&["put"], words].concat())?.args)
    }

    #[test]
    fn a_schedule_is_described_as_the_api_wants_it() {
        let cron =
            put(&["nightly", "{\"a\": 1}", "--cron", "0 3 * * *", "--zone", "Europe/Berlin", "--type", "t"]);
        let expected = json!({
            "kind": "cron", "cron": "0 3 * * *", "timeZone": "Europe/Berlin",
            "job": {"jobType": "t", "queue": "default", "args": {"a": 1}},
        });
        assert_eq!(cron.unwrap(), expected);
        let every = put(&["beat", "--every", "1.5", "--type", "t", "--retries", "0"]).unwrap();
        assert_eq!((&every["everyMs"], &every["job"]["retry"]["maxRetries"]), (&json!(1500), &json!(0)));
        assert!(put(&["x", "--type", "t"]).is_err());
        assert!(put(&["x", "--type", "t", "--cron", "* * * * *", "--every", "1"]).is_err());
        assert!(put(&["x", "not json", "--type", "t", "--every", "1"]).is_err());
    }
}
