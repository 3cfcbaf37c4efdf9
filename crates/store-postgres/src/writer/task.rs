//! The task that runs the writer, and its intake.

use std::sync::{Arc, Mutex, PoisonError};

use baton_store::{Error, Operation};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinHandle;

use crate::client::error::DatabaseError;
use crate::context::{RETRY_AFTER, StoreContext};
use crate::writer::{Writer, WriterInput};

/// Operations that may wait for their batch.
const INTAKE_MAX: usize = 16_384;

/// A running writer.
pub struct WriterTask {
    shared: Arc<StoreContext>,
    intake: mpsc::Sender<WriterInput>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl WriterTask {
    /// Connects the writer and starts its task.
    pub async fn start(shared: Arc<StoreContext>) -> Result<Self, DatabaseError> {
        let writer = Writer::open(shared.clone()).await?;
        let (intake, received) = mpsc::channel(INTAKE_MAX);
        let task = Mutex::new(Some(tokio::spawn(writer.run(received))));
        Ok(Self { shared, intake, task })
    }

    /// Queues an operation for the next batch.
    pub fn submit(&self, operation: Box<dyn Operation>) {
        if self.shared.is_refusing() {
            return operation.finish(Err(Error::Busy(RETRY_AFTER)));
        }
        match self.intake.try_send(WriterInput::Operation(operation)) {
            Err(TrySendError::Full(WriterInput::Operation(operation))) => {
                operation.finish(Err(Error::Busy(RETRY_AFTER)))
            }
            Err(TrySendError::Closed(WriterInput::Operation(operation))) => {
                operation.finish(Err(Error::Closed("it was closed".into())))
            }
            _ => {}
        }
    }

    /// Runs all queued operations, then ends.
    pub async fn close(&self) -> Result<(), Error> {
        // An error means that the task has ended already.
        let _ = self.intake.send(WriterInput::Close).await;
        match self.take_task() {
            Some(task) => task.await.map_err(|e| Error::Closed(e.to_string())),
            None => Ok(()),
        }
    }

    pub fn abort(&self) {
        if let Some(task) = self.take_task() {
            task.abort();
        }
    }

    fn take_task(&self) -> Option<JoinHandle<()>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
