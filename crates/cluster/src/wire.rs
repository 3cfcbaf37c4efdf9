//! The wire format of gossip.
//!
//! A datagram is: two letters, the version, the kind, the cluster, the sender's incarnation and sequence number, the
//! sender's name, the content, and an HMAC-SHA256 over all of it. Numbers are big endian. Always: at most
//! [`DATAGRAM_BYTES_MAX`] bytes; nothing of a datagram is used before its signature was verified, in constant time;
//! an authentic datagram of an unknown kind is ignored, so that later versions can add kinds. No socket here. Start
//! at [`DatagramSeal::open`].

use std::sync::Arc;

use baton_types::{GroupId, PartitionId, QueueId};
use ring::hmac;

use crate::limits::{DATAGRAM_BYTES_MAX, SERVER_ID_BYTES_MAX, URL_BYTES_MAX};
use crate::load::Load;

const MAGIC: [u8; 2] = *b"bn";
const VERSION: u8 = 1;
const MAC_BYTES: usize = 32;
/// Letters, version, kind, cluster, incarnation, sequence, and the length of the name.
const HEADER_BYTES: usize = 2 + 1 + 1 + 8 + 8 + 8 + 1;
/// Bytes that are left for the content with the longest sender name.
const CONTENT_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - HEADER_BYTES - SERVER_ID_BYTES_MAX - MAC_BYTES;

/// New messages that fit one datagram.
pub const AVAILABLE_MAX: usize = (CONTENT_BYTES_MAX - 2) / 16;
/// Freed partitions that fit one datagram.
pub const FREED_MAX: usize = (CONTENT_BYTES_MAX - 2) / 24;
/// Waiting groups that fit one datagram.
pub const PRESENCE_PAGE: usize = (CONTENT_BYTES_MAX - 2) / 25;
const _: () = assert!(URL_BYTES_MAX + 2 + 25 <= CONTENT_BYTES_MAX);

/// The sender of a datagram, and its sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The name of the server.
    pub sender: Arc<str>,
    /// Rises with every start of any server of the cluster.
    pub incarnation: u64,
    /// Rises with every datagram of an incarnation.
    pub sequence: u64,
}

/// A group that waits on a server, or no longer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingGroup {
    /// The queue.
    pub queue: QueueId,
    /// The group.
    pub group: GroupId,
    /// The hash of the queue's name, which is how pushes name it.
    pub name: u64,
    /// Whether it waits.
    pub on: bool,
}

/// The content of a datagram.
#[derive(Clone, Debug, PartialEq)]
pub enum GossipMessage {
    /// The sender is alive.
    Heartbeat {
        /// Its address for forwarded requests. Without a host, the source address of the datagram is its host.
        url: String,
        /// Its load.
        load: Load,
        /// Whether it is drained.
        draining: bool,
    },
    /// Partitions have new messages.
    Available(Vec<(QueueId, PartitionId)>),
    /// Partitions are free again for groups.
    Freed(Vec<(QueueId, GroupId, PartitionId)>),
    /// The options of a queue changed.
    Configured(QueueId),
    /// A queue was deleted; with the hash of its name.
    Deleted(QueueId, u64),
    /// The groups that wait on the sender.
    Presence(Vec<WaitingGroup>),
    /// A maintenance mode was switched.
    Switched,
    /// The sender is stopping.
    Leaving,
    /// A server is asked to prove that it is running, and not a recording.
    Challenge {
        /// The server that is asked.
        to: Arc<str>,
        /// The number that it must return.
        nonce: u64,
    },
    /// The answer to a challenge.
    Proof {
        /// The number of the challenge.
        nonce: u64,
    },
}

impl GossipMessage {
    fn kind(&self) -> u8 {
        match self {
            Self::Heartbeat { .. } => 1,
            Self::Available(_) => 2,
            Self::Freed(_) => 3,
            Self::Configured(_) => 4,
            Self::Deleted(..) => 5,
            Self::Presence(_) => 6,
            Self::Switched => 7,
            Self::Leaving => 8,
            Self::Challenge { .. } => 9,
            Self::Proof { .. } => 10,
        }
    }
}

/// Why a datagram is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// It is not a Baton datagram, or truncated.
    Malformed,
    /// It has another version.
    Version,
    /// Its signature is wrong.
    Forged,
    /// It belongs to another cluster.
    Foreign,
    /// It is a repetition, or older than the last one.
    Replayed,
    /// Its sender uses this server's name.
    Namesake,
    /// It comes from an address that is not among the peers.
    Source,
    /// Its sender has not answered a challenge yet.
    Unproven,
}

impl RejectReason {
    /// Every reason.
    pub const ALL: [Self; 8] = [
        Self::Malformed,
        Self::Version,
        Self::Forged,
        Self::Foreign,
        Self::Replayed,
        Self::Namesake,
        Self::Source,
        Self::Unproven,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Version => "version",
            Self::Forged => "forged",
            Self::Foreign => "foreign",
            Self::Replayed => "replayed",
            Self::Namesake => "namesake",
            Self::Source => "source",
            Self::Unproven => "unproven",
        }
    }
}

/// The hash that stands for a queue's name on the wire.
pub fn name_hash(queue: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(queue.as_bytes())
}

/// Signs and verifies datagrams of one cluster.
#[derive(Clone)]
pub struct DatagramSeal {
    key: hmac::Key,
    cluster: u64,
}

impl std::fmt::Debug for DatagramSeal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seal").finish_non_exhaustive()
    }
}

impl DatagramSeal {
    /// Derives the keys from what the servers share through their store, and from the operator's secret.
    pub fn new(shared: &[u8], secret: &str) -> Self {
        let shared = hmac::Key::new(hmac::HMAC_SHA256, shared);
        let key = hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&shared, secret.as_bytes()).as_ref());
        let mut cluster = [0; 8];
        // Derived from the shared part alone, so that a wrong secret is told apart from another cluster.
        let tag = hmac::sign(&shared, b"\0cluster");
        cluster.iter_mut().zip(tag.as_ref()).for_each(|(byte, tag)| *byte = *tag);
        Self { key, cluster: u64::from_be_bytes(cluster) }
    }

    /// The number of the cluster. Not secret.
    pub fn cluster(&self) -> u64 {
        self.cluster
    }

    /// Encodes a datagram; `None` when the message does not fit.
    pub fn seal(&self, envelope: &Envelope, message: &GossipMessage) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, message.kind()]);
        for number in [self.cluster, envelope.incarnation, envelope.sequence] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        let name = envelope.sender.as_bytes();
        out.push(u8::try_from(name.len()).ok().filter(|_| name.len() <= SERVER_ID_BYTES_MAX)?);
        out.extend_from_slice(name);
        write(&mut out, message)?;
        let mac = hmac::sign(&self.key, &out);
        out.extend_from_slice(mac.as_ref());
        (out.len() <= DATAGRAM_BYTES_MAX).then_some(out)
    }

    /// Verifies and decodes a datagram; its message is `None` when its kind is unknown.
    pub fn open(&self, bytes: &[u8]) -> Result<(Envelope, Option<GossipMessage>), RejectReason> {
        if bytes.len() > DATAGRAM_BYTES_MAX || bytes.len() < HEADER_BYTES + MAC_BYTES {
            return Err(RejectReason::Malformed);
        }
        let (signed, mac) = bytes.split_at(bytes.len() - MAC_BYTES);
        let mut reader = Reader(signed);
        if reader.take(2)? != MAGIC {
            return Err(RejectReason::Malformed);
        }
        if reader.byte()? != VERSION {
            return Err(RejectReason::Version);
        }
        let kind = reader.byte()?;
        let cluster = reader.number()?;
        if cluster != self.cluster {
            return Err(RejectReason::Foreign);
        }
        if hmac::verify(&self.key, signed, mac).is_err() {
            return Err(RejectReason::Forged);
        }
        let (incarnation, sequence) = (reader.number()?, reader.number()?);
        let length = usize::from(reader.byte()?);
        if length == 0 || length > SERVER_ID_BYTES_MAX {
            return Err(RejectReason::Malformed);
        }
        let sender = reader.text(length)?.into();
        let message = read(kind, &mut reader)?;
        Ok((Envelope { sender, incarnation, sequence }, message))
    }
}

fn write(out: &mut Vec<u8>, message: &GossipMessage) -> Option<()> {
    match message {
        GossipMessage::Heartbeat { url, load, draining } => {
            if url.len() > URL_BYTES_MAX {
                return None;
            }
            write_numbers(out, &[load.outstanding, load.waiting, load.cpu].map(f64::to_bits));
            write_count(out, url.len())?;
            out.extend_from_slice(url.as_bytes());
            out.push(u8::from(*draining));
        }
        GossipMessage::Available(entries) => {
            write_count(out, entries.len())?;
            for (queue, partition) in entries {
                write_numbers(out, &[queue.0, partition.0]);
            }
        }
        GossipMessage::Freed(entries) => {
            write_count(out, entries.len())?;
            for (queue, group, partition) in entries {
                write_numbers(out, &[queue.0, group.0, partition.0]);
            }
        }
        GossipMessage::Configured(queue) => write_numbers(out, &[queue.0]),
        GossipMessage::Deleted(queue, name) => write_numbers(out, &[queue.0, *name]),
        GossipMessage::Presence(entries) => {
            write_count(out, entries.len())?;
            for waiting in entries {
                write_numbers(out, &[waiting.queue.0, waiting.group.0, waiting.name]);
                out.push(u8::from(waiting.on));
            }
        }
        GossipMessage::Switched | GossipMessage::Leaving => {}
        GossipMessage::Challenge { to, nonce } => {
            write_numbers(out, &[*nonce]);
            write_count(out, to.len())?;
            out.extend_from_slice(to.as_bytes());
        }
        GossipMessage::Proof { nonce } => write_numbers(out, &[*nonce]),
    }
    Some(())
}

fn write_count(out: &mut Vec<u8>, count: usize) -> Option<()> {
    out.extend_from_slice(&u16::try_from(count).ok()?.to_be_bytes());
    Some(())
}

fn write_numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
}

fn read(kind: u8, reader: &mut Reader<'_>) -> Result<Option<GossipMessage>, RejectReason> {
    Ok(Some(match kind {
        1 => {
            let mut number = || reader.number().map(f64::from_bits);
            let load = Load { outstanding: number()?, waiting: number()?, cpu: number()? };
            let length = reader.count()?;
            if !load.is_valid() || length > URL_BYTES_MAX {
                return Err(RejectReason::Malformed);
            }
            let url = reader.text(length)?.into();
            // Older servers do not send this flag.
            let draining = reader.byte().is_ok_and(|flag| flag != 0);
            GossipMessage::Heartbeat { url, load, draining }
        }
        2 => {
            GossipMessage::Available(reader.list(AVAILABLE_MAX, |reader| {
                Ok((QueueId(reader.number()?), PartitionId(reader.number()?)))
            })?)
        }
        3 => GossipMessage::Freed(reader.list(FREED_MAX, |reader| {
            Ok((QueueId(reader.number()?), GroupId(reader.number()?), PartitionId(reader.number()?)))
        })?),
        4 => GossipMessage::Configured(QueueId(reader.number()?)),
        5 => GossipMessage::Deleted(QueueId(reader.number()?), reader.number()?),
        6 => GossipMessage::Presence(reader.list(PRESENCE_PAGE, |reader| {
            let (queue, group) = (QueueId(reader.number()?), GroupId(reader.number()?));
            Ok(WaitingGroup { queue, group, name: reader.number()?, on: reader.byte()? != 0 })
        })?),
        7 => GossipMessage::Switched,
        8 => GossipMessage::Leaving,
        9 => {
            let (nonce, length) = (reader.number()?, reader.count()?);
            GossipMessage::Challenge { to: reader.text(length)?.into(), nonce }
        }
        10 => GossipMessage::Proof { nonce: reader.number()? },
        _ => return Ok(None),
    }))
}

/// Reads bytes from the start. Unread trailing bytes belong to later versions.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], RejectReason> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(RejectReason::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, RejectReason> {
        self.take(1)?.first().copied().ok_or(RejectReason::Malformed)
    }

    fn count(&mut self) -> Result<usize, RejectReason> {
        Ok(usize::from(self.byte()?) << 8 | usize::from(self.byte()?))
    }

    fn number(&mut self) -> Result<u64, RejectReason> {
        let bytes = self.take(8)?.try_into().map_err(|_| RejectReason::Malformed)?;
        Ok(u64::from_be_bytes(bytes))
    }

    fn text(&mut self, length: usize) -> Result<&'a str, RejectReason> {
        std::str::from_utf8(self.take(length)?).map_err(|_| RejectReason::Malformed)
    }

    fn list<T>(
        &mut self,
        max: usize,
        mut entry: impl FnMut(&mut Self) -> Result<T, RejectReason>,
    ) -> Result<Vec<T>, RejectReason> {
        let count = self.count()?;
        if count > max {
            return Err(RejectReason::Malformed);
        }
        (0..count).map(|_| entry(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seal() -> DatagramSeal {
        DatagramSeal::new(b"what the store holds", "secret")
    }

    fn envelope(sequence: u64) -> Envelope {
        Envelope { sender: "node-1".into(), incarnation: 7, sequence }
    }

    fn heartbeat() -> GossipMessage {
        let load = Load { outstanding: 12.5, waiting: 3.0, cpu: 40.0 };
        GossipMessage::Heartbeat { url: "http://10.0.0.1:6632".into(), load, draining: true }
    }

    #[test]
    fn the_fullest_datagrams_fit_into_a_packet() {
        let sender: Arc<str> = "n".repeat(SERVER_ID_BYTES_MAX).into();
        let full = [
            GossipMessage::Heartbeat {
                url: "u".repeat(URL_BYTES_MAX),
                load: Load::default(),
                draining: false,
            },
            GossipMessage::Available(vec![(QueueId(u64::MAX), PartitionId(0)); AVAILABLE_MAX]),
            GossipMessage::Freed(vec![(QueueId(1), GroupId(2), PartitionId(3)); FREED_MAX]),
            GossipMessage::Presence(vec![
                WaitingGroup {
                    queue: QueueId(1),
                    group: GroupId(2),
                    name: 3,
                    on: true
                };
                PRESENCE_PAGE
            ]),
        ];
        for message in full {
            let envelope = Envelope { sender: Arc::clone(&sender), ..envelope(1) };
            let bytes = seal().seal(&envelope, &message).unwrap();
            assert!(bytes.len() <= DATAGRAM_BYTES_MAX);
            assert_eq!(seal().open(&bytes), Ok((envelope, Some(message))));
        }
    }

    #[test]
    fn what_does_not_fit_is_not_sent() {
        let many = GossipMessage::Available(vec![(QueueId(1), PartitionId(2)); 2 * AVAILABLE_MAX]);
        assert_eq!(seal().seal(&envelope(1), &many), None);
        let long = Envelope { sender: "n".repeat(SERVER_ID_BYTES_MAX + 1).into(), ..envelope(1) };
        assert_eq!(seal().seal(&long, &GossipMessage::Leaving), None);
    }

    #[test]
    fn another_cluster_and_another_secret_are_not_believed() {
        let bytes = seal().seal(&envelope(1), &heartbeat()).unwrap();
        assert_eq!(DatagramSeal::new(b"another store", "secret").open(&bytes), Err(RejectReason::Foreign));
        assert_eq!(
            DatagramSeal::new(b"what the store holds", "guess").open(&bytes),
            Err(RejectReason::Forged)
        );
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let bytes = seal().seal(&envelope(1), &heartbeat()).unwrap();
        for place in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[place / 8] ^= 1 << (place % 8);
            assert!(seal().open(&wrong).is_err(), "bit {place}");
        }
    }

    #[test]
    fn an_authentic_datagram_of_an_unknown_kind_is_ignored_and_of_another_version_refused() {
        let with = |place: usize, value: u8| {
            let bytes = seal().seal(&envelope(1), &GossipMessage::Leaving).unwrap();
            let mut signed = bytes[..bytes.len() - MAC_BYTES].to_vec();
            signed[place] = value;
            let mac = hmac::sign(&seal().key, &signed);
            seal().open(&[&signed, mac.as_ref()].concat())
        };
        assert_eq!(with(3, 200), Ok((envelope(1), None)));
        assert_eq!(with(2, 2), Err(RejectReason::Version));
        assert_eq!(with(0, b'x'), Err(RejectReason::Malformed));
    }

    /// Signs any bytes, to test the parser behind the signature check.
    fn signed(kind: u8, rest: &[u8]) -> Vec<u8> {
        let mut out = [MAGIC.as_slice(), &[VERSION, kind], &seal().cluster.to_be_bytes()].concat();
        out.extend_from_slice(rest);
        let mac = hmac::sign(&seal().key, &out);
        out.extend_from_slice(mac.as_ref());
        out
    }

    fn any_message() -> impl Strategy<Value = GossipMessage> {
        let waiting =
            (any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(|(queue, group, name, on)| {
                WaitingGroup { queue: QueueId(queue), group: GroupId(group), name, on }
            });
        prop_oneof![
            ("[ -~]{0,256}", 0.0..1e9, 0.0..1e9, 0.0..1e9, any::<bool>()).prop_map(
                |(url, outstanding, waiting, cpu, draining)| {
                    GossipMessage::Heartbeat { url, load: Load { outstanding, waiting, cpu }, draining }
                }
            ),
            prop::collection::vec((any::<u64>(), any::<u64>()), 0..=AVAILABLE_MAX).prop_map(|entries| {
                GossipMessage::Available(
                    entries.into_iter().map(|(q, p)| (QueueId(q), PartitionId(p))).collect(),
                )
            }),
            prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..=FREED_MAX).prop_map(
                |entries| {
                    let freed = |(q, g, p)| (QueueId(q), GroupId(g), PartitionId(p));
                    GossipMessage::Freed(entries.into_iter().map(freed).collect())
                }
            ),
            any::<u64>().prop_map(|queue| GossipMessage::Configured(QueueId(queue))),
            any::<(u64, u64)>().prop_map(|(queue, name)| GossipMessage::Deleted(QueueId(queue), name)),
            prop::collection::vec(waiting, 0..=PRESENCE_PAGE).prop_map(GossipMessage::Presence),
            Just(GossipMessage::Switched),
            Just(GossipMessage::Leaving),
            ("[a-z0-9:.-]{1,64}", any::<u64>())
                .prop_map(|(to, nonce)| GossipMessage::Challenge { to: to.into(), nonce }),
            any::<u64>().prop_map(|nonce| GossipMessage::Proof { nonce }),
        ]
    }

    proptest! {
        // PROPTEST_CASES asks for more.
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2000)))]

        #[test]
        fn what_was_said_is_what_is_heard(
            message in any_message(), sender in "[a-z0-9:.-]{1,64}", incarnation: u64, sequence: u64,
        ) {
            let envelope = Envelope { sender: sender.into(), incarnation, sequence };
            let bytes = seal().seal(&envelope, &message).unwrap();
            prop_assert_eq!(seal().open(&bytes), Ok((envelope, Some(message))));
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
            prop_assert!(seal().open(&bytes).is_err());
        }

        #[test]
        fn no_signed_bytes_make_the_parser_panic(
            kind in 0u8..12, name_length in 0u8..80, rest in prop::collection::vec(any::<u8>(), 0..1400),
        ) {
            let _ = seal().open(&signed(kind, &rest));
            let name = vec![b'n'; name_length.into()];
            let named = [vec![0; 16], vec![name_length], name, rest].concat();
            let _ = seal().open(&signed(kind, &named));
        }

        #[test]
        fn no_mangled_datagram_makes_the_parser_panic(
            message in any_message(), at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>(),
        ) {
            let bytes = seal().seal(&envelope(1), &message).unwrap();
            let mut mangled = bytes[12..bytes.len() - MAC_BYTES].to_vec();
            let place = at.index(mangled.len());
            mangled[place] = byte;
            mangled.truncate(cut.index(mangled.len() + 1));
            let _ = seal().open(&signed(bytes[3], &mangled));
        }
    }
}
