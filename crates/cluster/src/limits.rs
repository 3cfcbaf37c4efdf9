//! What is bounded, and why.

use std::time::Duration;

/// Bytes of a datagram: what fits into one packet on any usual network, so that none is cut in two.
pub const DATAGRAM_BYTES_MAX: usize = 1400;
/// Bytes of the name of a server.
pub const SERVER_ID_BYTES_MAX: usize = 64;
/// Bytes of the address under which a server takes forwarded requests.
pub const URL_BYTES_MAX: usize = 256;
/// Servers of one cluster that are remembered, dead ones included.
pub const SERVERS_MAX: usize = 256;
/// Peers that can be configured.
pub const PEERS_MAX: usize = 256;
/// Addresses of which it is remembered what was heard from there.
pub const SOURCES_MAX: usize = 2 * PEERS_MAX;
/// Waiting groups of one server that others hear of; those beyond it are woken by looking again.
pub const PRESENCE_MAX: usize = 4096;
/// Affinities that are remembered; a key beyond that is assigned anew each time.
pub const AFFINITIES_MAX: usize = 100_000;
/// Partitions whose queue is remembered, to find out where an ack should go.
pub const PARTITIONS_MAX: usize = 100_000;
/// Notices that wait to be sent. Beyond that they are dropped: they are hints.
pub const OUTBOX_MAX: usize = 4096;
/// Unused connections kept to one peer.
pub const IDLE_CONNECTIONS_MAX: usize = 64;
/// Answers up to this many bytes are read whole before they are passed on; longer ones are passed on as they arrive.
pub const WHOLE_ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Leases of lost answers that are remembered to be given back once more.
pub const LOST_ATTEMPTS_MAX: usize = 1024;

/// How long an unused connection to a peer is kept; a server closes its own after 75 seconds.
pub const IDLE_CONNECTION_MAX: Duration = Duration::from_secs(45);
/// How often names of peers are resolved again.
pub const RESOLVE_INTERVAL: Duration = Duration::from_secs(30);
/// How soon a name that could not be resolved is tried again.
pub const RESOLVE_AGAIN: Duration = Duration::from_secs(2);
/// How often one looks at what has run out.
pub const TICK: Duration = Duration::from_millis(100);
/// A group that waits no longer is still told of for this long, since a consumer usually comes back at once.
pub const PRESENCE_LINGER: Duration = Duration::from_secs(1);
/// How often it is told again who waits.
pub const PRESENCE_REFRESH: Duration = Duration::from_secs(2);
/// What was not told again for this long is forgotten.
pub const PRESENCE_EXPIRY: Duration = Duration::from_secs(7);
/// How soon a server that has not answered a challenge is challenged again.
pub const CHALLENGE_AGAIN: Duration = Duration::from_millis(500);
/// For how long after a server has come back keys that are better off there may move to it.
pub const RETURN_WINDOW: Duration = Duration::from_secs(60);
/// The longest time for which a circuit breaker stays open.
pub const CIRCUIT_RETRY_MAX: Duration = Duration::from_secs(300);

const _: () = assert!(PRESENCE_EXPIRY.as_millis() > 3 * PRESENCE_REFRESH.as_millis());
