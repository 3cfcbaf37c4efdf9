//! `/api/v1/dlq/errors`, `/api/v1/dlq:replay`, `/api/v1/dlq:purge`: many dead letters at once.
//!
//! Always: a call that changes letters names which, or says `all`; it does a bounded part and answers with the cursor of the
//! rest. Not here: which letters a filter means (`baton_queue::LetterFilter`). Start at [`replay`].

use baton_http::{Reply, moment};
use baton_queue::{LetterFilter, LetterPlace, LetterProgress};
use serde::Deserialize;
use serde_json::{Value, json};

use super::jobs::parsed;
use crate::call::{Answer, Call};
use crate::error::Error;

/// Letters that one call pushes again, and removes.
const REPLAYED_MAX: usize = 1_000;
const PURGED_MAX: usize = 10_000;
/// Letters pushed again in a second: a call pushes at least one, and takes a few seconds at most.
const RATES: std::ops::RangeInclusive<f64> = 0.2..=1e6;

const EXPECTED: &str = "{\"filter\": {...}} or {\"all\": true}, with \"dryRun\", \"limit\" and \"cursor\"";

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct RawFilter {
    queue: Option<String>,
    partition: Option<String>,
    consumer_group: Option<String>,
    from: Option<String>,
    to: Option<String>,
    error: Option<String>,
    error_contains: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Bulk {
    filter: RawFilter,
    all: bool,
    dry_run: bool,
    limit: Option<usize>,
    rate_per_sec: Option<f64>,
    cursor: Option<String>,
}

impl RawFilter {
    fn checked(self) -> Result<LetterFilter, Error> {
        let at = |name, text: Option<String>| text.map(|text| moment(name, &text)).transpose();
        Ok(LetterFilter {
            from: at("from", self.from)?,
            to: at("to", self.to)?,
            queue: self.queue,
            partition: self.partition,
            group: self.consumer_group,
            error: self.error,
            error_contains: self.error_contains,
        })
    }

    /// The filter of a call that changes what it describes. One that describes everything must say `all`, so that a
    /// filter that was left out or misspelt changes nothing.
    fn checked_or_all(self, all: bool) -> Result<LetterFilter, Error> {
        let filter = self.checked()?;
        match (filter == LetterFilter::default(), all) {
            (true, false) => Err(Error::invalid("give a filter, or \"all\": true to mean every dead letter")),
            (false, true) => Err(Error::invalid("give a filter or \"all\": true, not both")),
            _ => Ok(filter),
        }
    }
}

fn place(cursor: Option<String>) -> Result<Option<LetterPlace>, Error> {
    cursor.map(|cursor| cursor.parse().map_err(Error::from)).transpose()
}

fn next(progress: &LetterProgress) -> Value {
    progress.next.as_ref().map_or(Value::Null, |place| place.to_string().into())
}

/// Groups dead letters by their error.
pub(super) fn errors(call: Call) -> Answer {
    Box::pin(async move {
        let query = call.query()?;
        let filter = LetterFilter {
            queue: query.owned("queue"),
            partition: query.owned("partition"),
            group: query.owned("consumerGroup"),
            from: query.moment("from")?,
            to: query.moment("to")?,
            error: query.owned("error"),
            error_contains: query.owned("errorContains"),
        };
        let (errors, progress) = call.broker().letter_errors(filter, place(query.owned("cursor"))?).await?;
        let mut errors: Vec<_> = errors.into_iter().collect();
        errors.sort_by_key(|(_, error)| std::cmp::Reverse(error.count));
        let row = |(text, error): &(Option<String>, baton_queue::LetterError)| {
            json!({
                "error": text,
                "count": error.count,
                "firstFailedAt": error.first.to_iso_millis(),
                "lastFailedAt": error.last.to_iso_millis(),
                "sample": {
                    "queue": error.sample.queue,
                    "partition": error.sample.partition,
                    "partitionId": error.sample.key.partition.to_string(),
                    "transactionId": error.sample.transaction_id,
                    "consumerGroup": error.sample.key.group,
                },
            })
        };
        let rows: Vec<_> = errors.iter().map(row).collect();
        Reply::ok(&json!({"errors": rows, "counted": progress.matched, "nextCursor": next(&progress)}))
    })
}

/// Pushes those that a filter describes again, perhaps so many a second.
pub(super) fn replay(mut call: Call) -> Answer {
    Box::pin(async move {
        let wish: Bulk = parsed(&mut call, EXPECTED)?;
        let filter = wish.filter.checked_or_all(wish.all)?;
        let from = place(wish.cursor)?;
        if let Some(rate) = wish.rate_per_sec.filter(|rate| !RATES.contains(rate)) {
            return Err(Error::invalid(format!("ratePerSec must be from 0.2 to 1000000, not {rate}")));
        }
        let limit = wish.limit.unwrap_or(REPLAYED_MAX).clamp(1, REPLAYED_MAX);
        let progress = match wish.dry_run {
            true => call.broker().count_letters(filter, from).await?,
            false => call.broker().replay_letters(filter, from, limit, wish.rate_per_sec).await?,
        };
        Reply::ok(&json!({
            "dryRun": wish.dry_run,
            "matched": progress.matched,
            "replayed": progress.changed,
            "duplicates": progress.duplicates,
            "stopped": progress.stopped,
            "nextCursor": next(&progress),
        }))
    })
}

/// Removes those that a filter describes.
pub(super) fn purge(mut call: Call) -> Answer {
    Box::pin(async move {
        let wish: Bulk = parsed(&mut call, EXPECTED)?;
        if wish.rate_per_sec.is_some() {
            return Err(Error::invalid("ratePerSec is for replays"));
        }
        let filter = wish.filter.checked_or_all(wish.all)?;
        let from = place(wish.cursor)?;
        let limit = wish.limit.unwrap_or(PURGED_MAX).clamp(1, PURGED_MAX);
        let progress = match wish.dry_run {
            true => call.broker().count_letters(filter, from).await?,
            false => call.broker().remove_letters(filter, from, limit).await?,
        };
        Reply::ok(&json!({
            "dryRun": wish.dry_run,
            "matched": progress.matched,
            "purged": progress.changed,
            "nextCursor": next(&progress),
        }))
    })
}
