//! Where messages come from and where a group continues, against a whole server.

use std::time::Duration;

use baton_client::{Client, Error, Queue, Subscription, Timestamp};
use baton_server::Testing;

async fn started() -> (Testing, Client) {
    let server = baton_server::testing().await.unwrap();
    let client = Client::new(server.url()).unwrap();
    (server, client)
}

/// All messages of the queue for its group, as numbers.
async fn taken(queue: &Queue) -> Vec<u32> {
    let pop = queue.pop().batch(10).partitions(10).auto_ack(true);
    let messages = pop.send().await.unwrap();
    messages.iter().map(|message| message.data().unwrap()).collect()
}

#[tokio::test]
async fn a_group_is_moved_to_the_beginning_to_a_moment_and_to_the_end() {
    let (_server, client) = started().await;
    for group in [Some("billing"), None] {
        let mut orders = client.queue(format!("orders-{group:?}"));
        if let Some(group) = group {
            orders = orders.group(group);
        }
        for number in 0..3 {
            orders.push(&number).send().await.unwrap();
        }
        let held = orders.pop().batch(3).send().await.unwrap();
        let second: Timestamp = held[1].created_at().parse().unwrap();

        orders.seek(Subscription::All).await.unwrap();
        let late = client.ack(&held[0], baton_client::AckStatus::Completed).await;
        assert!(matches!(late, Err(Error::LeaseLost { .. })), "{late:?}");
        assert_eq!(taken(&orders).await, [0, 1, 2], "{group:?}");

        orders.seek(Subscription::From(second)).await.unwrap();
        assert_eq!(taken(&orders).await, [1, 2], "{group:?}");

        orders.seek(Subscription::All).await.unwrap();
        orders.seek(Subscription::New).await.unwrap();
        assert_eq!(taken(&orders).await, [0; 0], "{group:?}");
    }
}

#[tokio::test]
async fn a_group_is_moved_in_one_partition_alone() {
    let (_server, client) = started().await;
    let orders = client.queue("orders").group("billing");
    for (number, partition) in ["a", "b"].into_iter().enumerate() {
        orders.clone().partition(partition).push(&number).send().await.unwrap();
    }
    assert_eq!(taken(&orders).await.len(), 2);
    orders.clone().partition("b").seek(Subscription::All).await.unwrap();
    assert_eq!(taken(&orders).await, [1]);
}

#[tokio::test]
async fn what_is_not_there_cannot_be_moved_in() {
    let (_server, client) = started().await;
    assert!(client.queue("orders").group("billing").seek(Subscription::New).await.is_err());
}

#[tokio::test]
async fn queues_are_taken_from_by_their_labels() {
    let (_server, client) = started().await;
    let labels = [("billing", "print"), ("billing", "send"), ("shop", "send")];
    for (number, (namespace, task)) in labels.into_iter().enumerate() {
        let queue = client.queue(format!("q{number}")).namespace(namespace).task(task);
        queue.create().await.unwrap();
        queue.push(&number).send().await.unwrap();
    }
    let both = client.namespace("billing").task("send").group("g").pop();
    let messages = both.clone().batch(9).send().await.unwrap();
    assert_eq!(messages.iter().map(baton_client::Message::queue).collect::<Vec<_>>(), ["q1"]);
    assert_eq!(messages[0].group(), "g");

    let one = client.task("send").consume().batch(1).limit(2).wait(Duration::from_secs(5));
    let (tell, mut told) = tokio::sync::mpsc::channel(9);
    let consumed = one
        .each(move |message| {
            tell.try_send(message.queue().to_owned()).unwrap();
            async { Ok::<_, Error>(()) }
        })
        .await
        .unwrap();
    assert_eq!(consumed.completed, 2);
    let mut queues = vec![told.recv().await.unwrap(), told.recv().await.unwrap()];
    queues.sort();
    assert_eq!(queues, ["q1", "q2"]);
}
