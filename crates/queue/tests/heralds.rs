//! A pop that waits is handed its messages by its herald where that could prepare, and in any case once.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use baton_queue::{
    AckItem, Broker, Given, Herald, LeaseClaim, Options, PopRequest, Popped, PushBatch, Subscription, Target,
};
use baton_store::{NewMessage, Store};
use baton_store_embedded::EmbeddedStore;
use baton_types::QUEUE_MODE;
use baton_types::wire::AckStatus;
use tokio::sync::mpsc;

/// Enough that the store finds itself calm and has callers commit, which is when heralds prepare.
const MESSAGES: usize = 40;

/// Hands over what it has prepared, if it is willing.
struct Messenger {
    willing: bool,
    popped: Option<Popped>,
    handed: mpsc::Sender<Popped>,
}

impl Herald<Popped> for Messenger {
    fn prepare(&mut self, popped: &Popped) {
        self.popped = Some(popped.clone());
    }

    fn tell(self: Box<Self>, note: &mut dyn FnMut()) -> bool {
        let Self { willing, popped, handed } = *self;
        let Some(popped) = popped.filter(|_| willing) else { return false };
        note();
        handed.try_send(popped).unwrap();
        true
    }
}

fn request() -> PopRequest {
    PopRequest {
        target: Target::Queue("q".into()),
        group: QUEUE_MODE.into(),
        batch: 10,
        partitions: 1,
        auto_ack: false,
        wait: Some(Duration::from_secs(30)),
        lease: None,
        subscription: Subscription::All,
        attempt: None,
        conflation: false,
    }
}

async fn ack(broker: &Broker, popped: &Popped) {
    let claim = &popped.claims[0];
    let item = AckItem {
        partition: Some(claim.partition),
        transaction_id: claim.messages[0].id().to_string(),
        group: QUEUE_MODE.into(),
        lease: LeaseClaim::Held(popped.lease.unwrap()),
        status: AckStatus::Completed,
        error: None,
    };
    let acked = broker.ack(vec![item]).await.unwrap();
    assert!(acked[0].error.is_none(), "{:?}", acked[0].error);
}

/// Pushes messages of so many bytes to a consumer that waits each time, and says how many its herald handed over.
async fn handed_over(willing: bool, bytes: usize) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(EmbeddedStore::open(baton_store_embedded::Options::new(directory.path())).unwrap());
    let broker = Broker::start(Arc::clone(&store) as Arc<dyn Store>, Options::default());
    let (handed, mut hand) = mpsc::channel(1);
    let mut told = 0;
    for number in 0..MESSAGES {
        let herald = Box::new(Messenger { willing, popped: None, handed: handed.clone() });
        let consumer = broker.clone();
        let waiting = tokio::spawn(async move { consumer.pop_heralded(request(), Some(herald)).await });
        while broker.wait_statistics().waiters == 0 {
            tokio::task::yield_now().await;
        }
        let (mut batch, payload) = (PushBatch::default(), format!("{number}{}", " ".repeat(bytes)));
        let message = NewMessage { payload: payload.as_bytes(), ..NewMessage::default() };
        batch.add("q", "p", &message).unwrap();
        broker.push(batch).await.unwrap();
        let popped = match waiting.await.unwrap().unwrap() {
            Given::Messages(popped) => popped,
            Given::Told => {
                told += 1;
                hand.try_recv().unwrap()
            }
            Given::Nothing => panic!("message {number} never came"),
        };
        assert_eq!(popped.claims[0].messages[0].payload, payload.as_bytes());
        assert!(hand.try_recv().is_err(), "message {number} came twice");
        ack(&broker, &popped).await;
    }
    assert_eq!(broker.wait_statistics().waiters, 0);
    broker.shutdown().await;
    drop(broker);
    store.close().await.unwrap();
    told
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_herald_that_could_prepare_hands_over_what_a_waiting_pop_is_granted() {
    let told = handed_over(true, 10).await;
    assert!(told > MESSAGES / 4, "only {told} of {MESSAGES} were handed over by their herald");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_herald_does_not_hand_over_its_caller_gets() {
    assert_eq!(handed_over(false, 10).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_message_is_left_to_the_caller() {
    assert_eq!(handed_over(true, 64 << 10).await, 0);
}
