//! `baton push`: pushes messages given as arguments, or one on each line of a file or of stdin.

use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::PathBuf;

use anyhow::{Context, bail};
use baton_client::{PushStatus, Queue, RawValue, limits};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::mpsc;

use super::target::Target;
use crate::output::Output;

/// A push is sent at this size, even with room for more messages.
const PUSH_BYTES: usize = 4 << 20;

/// Push messages to a queue.
///
/// Each message is one JSON value. The queue is created when it is missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  baton push orders '{\"number\": 1}' '{\"number\": 2}'
  baton push orders --partition customer-42 --transaction-id order-1 '{\"number\": 1}'
  baton push orders --file orders.jsonl         one message on each line
  tail -F app.log.json | baton push logs        as they come")]
pub struct Args {
    /// The queue
    queue: String,

    /// Messages, each a JSON value; without any, one is read from each line of the file or of stdin
    #[arg(value_name = "JSON", conflicts_with = "file", allow_negative_numbers = true)]
    messages: Vec<String>,

    /// Push to this partition
    #[arg(long, short, value_name = "NAME")]
    partition: Option<String>,

    /// The id by which the server recognises a repeated push of the (one) message
    #[arg(long, value_name = "ID")]
    transaction_id: Option<String>,

    /// Read messages from this file, or from stdin when it is `-`
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Send up to this many messages at once
    #[arg(long, short, value_name = "COUNT", default_value_t = 500,
          value_parser = clap::value_parser!(u32).range(1..=limits::BATCH_ITEMS_MAX as i64))]
    batch: u32,

    #[command(flatten)]
    target: Target,
}

/// Counts of pushed messages.
#[derive(Debug, Default)]
struct Sent {
    queued: usize,
    /// Those that are in the server's spool.
    buffered: usize,
    duplicates: usize,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let mut queue = args.target.client()?.queue(args.queue.as_str());
    if let Some(partition) = &args.partition {
        queue = queue.partition(partition.as_str());
    }
    let mut output = Output::new(args.target.json);
    let mut sent = Sent::default();
    if args.messages.is_empty() {
        if args.transaction_id.is_some() {
            bail!("--transaction-id names one message: give that message as an argument");
        }
        let outcome = push_lines(&args, &queue, &mut output, &mut sent).await;
        match sent.queued + sent.duplicates {
            0 => outcome?,
            pushed => outcome.with_context(|| format!("stopped after {pushed} pushed messages"))?,
        }
    } else {
        push_arguments(&args, &queue, &mut output, &mut sent).await?;
    }
    if !output.is_json() {
        let plural = if sent.queued == 1 { "" } else { "s" };
        output.text(format_args!(
            "pushed {} message{plural} to {}{}{}",
            sent.queued,
            args.queue,
            buffered(&sent),
            duplicates(&sent)
        ))?;
    }
    output.flush()?;
    Ok(())
}

fn buffered(sent: &Sent) -> String {
    match sent.buffered {
        0 => String::new(),
        n => format!(", {n} buffered until the server's maintenance or the outage of its database is over"),
    }
}

fn duplicates(sent: &Sent) -> String {
    match sent.duplicates {
        0 => String::new(),
        n => format!(", {n} had been there already"),
    }
}

/// Pushes the arguments.
async fn push_arguments(
    args: &Args,
    queue: &Queue,
    output: &mut Output,
    sent: &mut Sent,
) -> anyhow::Result<()> {
    if args.transaction_id.is_some() && args.messages.len() > 1 {
        bail!("--transaction-id names one message, but there are {}", args.messages.len());
    }
    let parse =
        |(i, text): (usize, &String)| parse(text).with_context(|| format!("message {} is no JSON", i + 1));
    let messages: Vec<_> = args.messages.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
    for messages in messages.chunks(args.batch as usize) {
        send(queue, messages, args.transaction_id.as_deref(), output, sent).await?;
    }
    Ok(())
}

/// Pushes lines as they arrive: sends what is there, up to the batch, while more is read.
async fn push_lines(args: &Args, queue: &Queue, output: &mut Output, sent: &mut Sent) -> anyhow::Result<()> {
    let batch = args.batch as usize;
    let (reader, bytes) = open(args)?;
    let (sender, mut lines) = mpsc::channel(2 * batch);
    // A thread of its own, never joined: a read from a terminal cannot be interrupted.
    std::thread::spawn(move || read_lines(reader, &sender));
    let progress = match bytes {
        Some(bytes) => ProgressBar::new(bytes).with_style(ProgressStyle::with_template(
            "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        )?),
        None => ProgressBar::no_length()
            .with_style(ProgressStyle::with_template("{spinner} {human_pos} messages, {per_sec}")?),
    };
    while let Some(first) = lines.recv().await {
        let (messages, problem) = gather(first, &mut lines, batch);
        if !messages.is_empty() {
            send(queue, &messages, None, output, sent).await?;
            output.flush()?;
            let lines = messages.iter().map(|message| message.get().len() + 1);
            progress.inc(if bytes.is_some() { lines.sum::<usize>() } else { lines.len() } as u64);
        }
        if let Some(problem) = problem {
            return Err(problem);
        }
    }
    progress.finish_and_clear();
    Ok(())
}

/// The available lines, up to the batch, and the error that ended them.
fn gather(
    first: ParsedLine,
    lines: &mut mpsc::Receiver<ParsedLine>,
    batch: usize,
) -> (Vec<Box<RawValue>>, Option<anyhow::Error>) {
    let (mut messages, mut bytes) = (Vec::new(), 0);
    let mut next = Some(first);
    while let Some(line) = next {
        match line {
            Ok(line) => {
                bytes += line.get().len();
                messages.push(line);
            }
            Err(problem) => return (messages, Some(problem)),
        }
        let room = messages.len() < batch && bytes < PUSH_BYTES;
        next = if room { lines.try_recv().ok() } else { None };
    }
    (messages, None)
}

async fn send(
    queue: &Queue,
    messages: &[Box<RawValue>],
    transaction_id: Option<&str>,
    output: &mut Output,
    sent: &mut Sent,
) -> anyhow::Result<()> {
    let mut push = queue.push_all(messages);
    if let Some(id) = transaction_id {
        push = push.transaction_id(id);
    }
    if !output.is_json() {
        let confirmation = push.confirm().await?;
        sent.queued += confirmation.queued;
        sent.buffered += confirmation.buffered;
        sent.duplicates += confirmation.duplicates;
        return Ok(());
    }
    let results = push.send().await?;
    sent.queued += results.iter().filter(|result| result.status != PushStatus::Failed).count();
    results.iter().try_for_each(|result| output.json(result))?;
    let refused = results.iter().find(|result| result.status == PushStatus::Failed);
    match refused {
        None => Ok(()),
        Some(result) => {
            bail!("a message was refused: {}", result.error.as_deref().unwrap_or("no explanation"))
        }
    }
}

/// The input, and its size if known.
fn open(args: &Args) -> anyhow::Result<(Box<dyn BufRead + Send>, Option<u64>)> {
    match &args.file {
        Some(path) if path.as_os_str() != "-" => {
            let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            let bytes = file.metadata().ok().filter(Metadata::is_file).map(|metadata| metadata.len());
            Ok((Box::new(BufReader::new(file)), bytes))
        }
        None if io::stdin().is_terminal() => {
            bail!("nothing to push: give JSON as arguments, a file with --file, or lines on stdin")
        }
        _ => Ok((Box::new(BufReader::new(io::stdin())), None)),
    }
}

type ParsedLine = anyhow::Result<Box<RawValue>>;

/// Sends every non-empty line, until the end, an error, or a closed channel.
fn read_lines(mut reader: impl BufRead, sender: &mpsc::Sender<ParsedLine>) {
    for number in 1.. {
        let line = match read_line(&mut reader, number) {
            Ok(Some(line)) if line.is_empty() => continue,
            Ok(Some(line)) => parse(&line).with_context(|| format!("line {number} is no JSON")),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        let failed = line.is_err();
        if sender.blocking_send(line).is_err() || failed {
            return;
        }
    }
}

fn read_line(reader: &mut impl BufRead, number: usize) -> anyhow::Result<Option<String>> {
    let mut line = Vec::new();
    reader.take(limits::BODY_BYTES_MAX as u64).read_until(b'\n', &mut line).context("cannot read on")?;
    if line.len() == limits::BODY_BYTES_MAX {
        bail!("line {number} is over the limit of {} bytes", limits::BODY_BYTES_MAX);
    }
    if line.is_empty() {
        return Ok(None);
    }
    let text = String::from_utf8(line).with_context(|| format!("line {number} is no UTF-8"))?;
    Ok(Some(text.trim().to_owned()))
}

fn parse(text: &str) -> anyhow::Result<Box<RawValue>> {
    serde_json::from_str(text).with_context(|| format!("{} (a text needs quotes: '\"text\"')", excerpt(text)))
}

fn excerpt(text: &str) -> String {
    let start: String = text.chars().take(60).collect();
    if start.len() < text.len() { format!("{start}…") } else { start }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(input: &'static str) -> Vec<Result<String, String>> {
        let (sender, mut receiver) = mpsc::channel(10);
        read_lines(input.as_bytes(), &sender);
        drop(sender);
        let mut lines = Vec::new();
        while let Some(line) = receiver.blocking_recv() {
            lines.push(line.map(|json| json.get().to_owned()).map_err(|e| format!("{e:#}")));
        }
        lines
    }

    #[test]
    fn every_line_is_a_message_byte_for_byte() {
        let read = lines("{\"a\": 1.50}\n\n  [1,  2]\r\n\"last\"");
        let expected = ["{\"a\": 1.50}", "[1,  2]", "\"last\""].map(|line| Ok(line.to_owned()));
        assert_eq!(read, expected);
    }

    #[test]
    fn a_bad_line_is_named_and_ends_the_reading() {
        let read = lines("1\nhello\n3");
        assert_eq!(read.len(), 2);
        assert!(read[1].as_ref().is_err_and(|e| e.starts_with("line 2 is no JSON")), "{read:?}");
    }
}
