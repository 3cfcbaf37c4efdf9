//! Reports on their way to the server, batched, each retried until it is answered.
//!
//! Always: a report is retried as long as its job waits for the answer, however long no server answers.

use http::uri::PathAndQuery;
use tokio::sync::{mpsc, oneshot};

use super::wire::{Report, ReportRequest, ReportResponse};
use crate::{Client, Error, retry};

/// Outcomes of one call.
const REPORTS_MAX: usize = 500;

/// The server's answer to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportAnswer {
    Accepted,
    /// The execution is stale: another one has or had the job.
    Refused,
    /// No server could be reached.
    Unreported,
}

pub(super) struct PendingReport {
    pub report: Report,
    pub verdict: oneshot::Sender<ReportAnswer>,
}

/// Sends reports until all senders are gone.
pub(super) async fn run(client: Client, mut entries: mpsc::Receiver<PendingReport>) {
    let mut batch = Vec::with_capacity(REPORTS_MAX);
    while entries.recv_many(&mut batch, REPORTS_MAX).await > 0 {
        let (reports, answers): (Vec<_>, Vec<_>) =
            batch.drain(..).map(|entry| (entry.report, entry.verdict)).unzip();
        let verdicts = report_until_answered(&client, &reports, &answers).await;
        for (answer, verdict) in answers.into_iter().zip(verdicts) {
            // A job that was lost or dropped does not wait.
            let _ = answer.send(verdict);
        }
    }
}

async fn report_until_answered(
    client: &Client,
    reports: &[Report],
    answers: &[oneshot::Sender<ReportAnswer>],
) -> Vec<ReportAnswer> {
    let mut tries = 0;
    loop {
        match post_reports(client, reports).await {
            Ok(items) => {
                let verdict = |item: &super::wire::ReportResult| match (item.ok, item.code.as_deref()) {
                    (true, _) => ReportAnswer::Accepted,
                    (false, code) => {
                        tracing::warn!(code, "an outcome was refused");
                        ReportAnswer::Refused
                    }
                };
                return items.iter().map(verdict).collect();
            }
            Err(error) if error.is_temporary() && answers.iter().any(|answer| !answer.is_closed()) => {
                tracing::warn!(%error, "cannot report; trying again");
                baton_env::sleep(retry::backoff(tries, &error, baton_env::random_u64())).await;
                tries += 1;
            }
            Err(error) => {
                tracing::error!(%error, "outcomes could not be reported");
                return vec![ReportAnswer::Unreported; reports.len()];
            }
        }
    }
}

async fn post_reports(client: &Client, reports: &[Report]) -> Result<Vec<super::wire::ReportResult>, Error> {
    let path = PathAndQuery::from_static("/api/v1/executions:report");
    let answer = client.post(path, &ReportRequest { items: reports }, "").await?;
    let items = answer.parse::<ReportResponse>()?.items;
    if items.len() != reports.len() {
        return Err(answer.protocol_error(format!("{} verdicts on {} outcomes", items.len(), reports.len())));
    }
    Ok(items)
}
