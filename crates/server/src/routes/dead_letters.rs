//! `GET /api/v1/dlq`: messages that a group gave up on.

use baton_http::{Query, Reply};
use baton_queue::{DeadLetterFilter, ListedLetter};
use baton_types::MessageId;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::messages;
use crate::call::{Answer, Call};
use crate::error::Error;

const DEFAULT_LIMIT: u64 = 100;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    id: String,
    transaction_id: &'a str,
    partition_id: String,
    queue: &'a str,
    partition: &'a str,
    consumer_group: &'a str,
    error_message: Option<&'a str>,
    retry_count: u32,
    data: &'a RawValue,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    data_omitted: bool,
    producer_sub: Option<&'a str>,
    trace_id: Option<String>,
    offset: u64,
    created_at: String,
    failed_at: String,
}

impl<'a> Row<'a> {
    fn new(listed: &'a ListedLetter) -> Self {
        let ListedLetter { letter, queue, partition, omitted } = listed;
        let key = &letter.key;
        Self {
            id: MessageId::new(letter.created_at, key.partition, key.offset).to_string(),
            transaction_id: &letter.transaction_id,
            partition_id: key.partition.to_string(),
            queue,
            partition,
            consumer_group: &key.group,
            error_message: letter.error.as_deref(),
            retry_count: letter.retries,
            data: messages::payload(&letter.payload),
            data_omitted: *omitted,
            producer_sub: letter.producer.as_deref(),
            trace_id: letter.trace_id.map(|id| id.to_string()),
            offset: key.offset.0,
            created_at: letter.created_at.to_iso_millis(),
            failed_at: letter.failed_at.to_iso_millis(),
        }
    }
}

/// Lists dead letters.
pub(super) fn list(call: Call) -> Answer {
    Box::pin(async move {
        let filter = filter(&call.query()?)?;
        let pagination = json!({"limit": filter.limit, "offset": filter.offset});
        let page = call.broker().dead_letters(filter).await?;
        #[derive(Serialize)]
        struct Page<'a> {
            messages: Vec<Row<'a>>,
            total: u64,
            pagination: Value,
        }
        let messages = page.letters.iter().map(Row::new);
        Reply::ok(&Page { messages: messages.collect(), total: page.total, pagination })
    })
}

fn filter(query: &Query<'_>) -> Result<DeadLetterFilter, Error> {
    let (limit, offset) = messages::page(query, DEFAULT_LIMIT)?;
    Ok(DeadLetterFilter {
        queue: query.owned("queue"),
        partition: query.owned("partition"),
        group: query.owned("consumerGroup"),
        from: query.moment("from")?,
        to: query.moment("to")?,
        limit,
        offset,
    })
}
