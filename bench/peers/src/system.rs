//! What a queue system must offer to be measured: three verbs on a connection of its own client.

use std::future::Future;

use anyhow::Result;

use crate::message::Stamp;

/// One system under measurement.
pub trait System: Send + Sync + 'static {
    /// A connection with the system's own client.
    type Link: Link;

    /// Makes an empty stream and one consumer group on it.
    fn prepare(&self) -> impl Future<Output = Result<()>> + Send;

    /// Opens connection number `number`.
    fn open(&self, number: usize) -> impl Future<Output = Result<Self::Link>> + Send;

    /// Messages that the group has not finished.
    fn unfinished(&self) -> impl Future<Output = Result<u64>> + Send;
}

/// One connection. A producer only pushes, a consumer only takes and finishes, a lone connection does all.
pub trait Link: Send + 'static {
    /// What finishing a delivery needs.
    type Receipt: Send;

    /// Stores the batch. Returns when the system has said that all of it is stored.
    fn push(&mut self, batch: Vec<Vec<u8>>) -> impl Future<Output = Result<()>> + Send;

    /// Waits until there is at least one message, then takes up to `most`.
    fn take(&mut self, most: usize) -> impl Future<Output = Result<Vec<(Stamp, Self::Receipt)>>> + Send;

    /// Stores the batch and takes what it brings, up to `most`: for a system whose client can ask for both at once.
    fn push_and_take(
        &mut self,
        batch: Vec<Vec<u8>>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<(Stamp, Self::Receipt)>>> + Send {
        async move {
            self.push(batch).await?;
            self.take(most).await
        }
    }

    /// Acknowledges. Returns when the system has confirmed all of it.
    fn finish(&mut self, receipts: Vec<Self::Receipt>) -> impl Future<Output = Result<()>> + Send;
}
