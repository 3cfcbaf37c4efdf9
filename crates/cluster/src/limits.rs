//! Limits, each with its reason.

use std::time::Duration;

/// Bytes of a datagram: fits into one packet on usual networks, so that none is fragmented.
pub const DATAGRAM_BYTES_MAX: usize = 1400;
/// Bytes of the name of a server.
pub const SERVER_ID_BYTES_MAX: usize = 64;
/// Bytes of a server's address for forwarded requests.
pub const URL_BYTES_MAX: usize = 256;
/// Servers of one cluster that are remembered, including dead ones.
pub const SERVERS_MAX: usize = 256;
/// Peers that can be configured.
pub const PEERS_MAX: usize = 256;
/// Source addresses whose last datagrams are remembered.
pub const SOURCES_MAX: usize = 2 * PEERS_MAX;
/// Waiting groups that a server announces; groups beyond that are woken by their recheck.
pub const PRESENCE_MAX: usize = 4096;
/// Affinities that are remembered; keys beyond that are assigned anew each time.
pub const AFFINITIES_MAX: usize = 100_000;
/// Partitions whose queue is remembered, to route acks.
pub const PARTITIONS_MAX: usize = 100_000;
/// Notices that wait to be sent. Beyond that they are dropped: they are hints.
pub const OUTBOX_MAX: usize = 4096;
/// Unused connections kept to one peer.
pub const IDLE_CONNECTIONS_MAX: usize = 64;
/// Responses up to this many bytes are buffered; longer ones are streamed.
pub const WHOLE_ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Leases of lost responses that are remembered for another release.
pub const LOST_ATTEMPTS_MAX: usize = 1024;

/// How long an unused connection to a peer is kept; a server closes its own after 75 seconds.
pub const IDLE_CONNECTION_MAX: Duration = Duration::from_secs(45);
/// How often names of peers are resolved again.
pub const RESOLVE_INTERVAL: Duration = Duration::from_secs(30);
/// How soon a name that could not be resolved is tried again.
pub const RESOLVE_AGAIN: Duration = Duration::from_secs(2);
/// How often expiries are checked.
pub const TICK: Duration = Duration::from_millis(100);
/// A group that stopped waiting is announced for this long, since a consumer usually returns at once.
pub const PRESENCE_LINGER: Duration = Duration::from_secs(1);
/// How often waiting groups are announced again.
pub const PRESENCE_REFRESH: Duration = Duration::from_secs(2);
/// Announcements that were not repeated for this long expire.
pub const PRESENCE_EXPIRY: Duration = Duration::from_secs(7);
/// How soon a server that has not answered a challenge is challenged again.
pub const CHALLENGE_AGAIN: Duration = Duration::from_millis(500);
/// For how long keys may move to a server that has returned.
pub const RETURN_WINDOW: Duration = Duration::from_secs(60);
/// The longest time that a circuit breaker stays open.
pub const CIRCUIT_RETRY_MAX: Duration = Duration::from_secs(300);

const _: () = assert!(PRESENCE_EXPIRY.as_millis() > 3 * PRESENCE_REFRESH.as_millis());
