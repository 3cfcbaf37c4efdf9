//! The cost of a routing decision, on a server with some peers.
//!
//! `cargo run --release -p baton-cluster --example decide`

use std::sync::Arc;
use std::time::Duration;

use baton_cluster::load::Load;
use baton_cluster::membership::Membership;
use baton_cluster::wire::Envelope;
use baton_cluster::{Policy, PopTarget, Router, name_hash};
use baton_env::Stopwatch;

const DECISIONS: u32 = 1_000_000;
const QUEUES: usize = 100;

fn main() {
    for others in [2, 49] {
        let mut router = router(others);
        let queues: Vec<_> = (0..QUEUES).map(|number| format!("queue-{number}")).collect();
        let now = Duration::from_secs(1);
        let (mut forwarded, watch) = (0_u32, Stopwatch::start());
        for queue in queues.iter().cycle().take(DECISIONS as usize) {
            let key = router.affinity_key(PopTarget::Queue(queue), "group");
            forwarded += u32::from(router.route_pop(now, &key, || 0.5).0.is_some());
        }
        let pop = watch.elapsed() / DECISIONS;
        let watch = Stopwatch::start();
        for queue in queues.iter().cycle().take(DECISIONS as usize) {
            forwarded += u32::from(router.route_push(now, name_hash(queue)).is_some());
        }
        let push = watch.elapsed() / DECISIONS;
        println!("{} servers: a pop {pop:?}, a push {push:?} ({forwarded} forwarded)", others + 1);
    }
}

fn router(others: u64) -> Router {
    let mut router = Router::new(Membership::new("own".into(), 1, Duration::from_secs(5)), Policy::default());
    for number in 0..others {
        let sender: Arc<str> = format!("server-{number}").into();
        let envelope = Envelope { sender: Arc::clone(&sender), incarnation: 2, sequence: 1 };
        if router.membership.on_datagram(Duration::ZERO, &envelope).is_ok() {
            router.on_heartbeat(Duration::ZERO, &sender, "http://127.0.0.1:1", Load::default(), false);
        }
    }
    router
}
