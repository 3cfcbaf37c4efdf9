//! Payloads that are encrypted at rest.
//!
//! A sealed payload stands where the payload would, so nothing else knows of it: a zero byte and three more, which no
//! JSON text begins with, the id of the key (8 bytes), the salt (16), a counter (8), then what AES-256-GCM made of
//! the payload, with its tag. The header and where the payload belongs ([`Owner`]) are authenticated with it, so that
//! bytes that are moved to another message do not open. The mark is the format: 3 binds a message to its queue, its
//! partition and its transaction id, 2 bound it to its queue only, 1 to nothing. All three open, each by its own rule
//! only: the mark is part of the header, so bytes of one format do not open as another one.
//! Each start of a server draws a salt and derives a key of its own from it and the key that was set, and counts from
//! there: a nonce never comes twice, however many messages there are. Always: the first key of a ring seals, every
//! one opens; keys are never printed. Not here: which queues are sealed (`push` insists on it), transaction ids and
//! names, which stay readable. Start at [`Sealer`].

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use baton_store::{DeadLetter, NewMessage, StoredMessage};
use baton_types::MessageId;
use bytes::Bytes;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::{digest, hkdf};
use rustc_hash::FxHashSet;

use crate::Error;

const MARK: [u8; 4] = [0, b'B', b'E', 3];
/// The mark of messages that are bound to their queue only, and of records.
const QUEUE_MARK: [u8; 4] = [0, b'B', b'E', 2];
/// The mark of payloads that are bound to no owner.
const UNBOUND_MARK: [u8; 4] = [0, b'B', b'E', 1];
const KEY_BYTES: usize = 32;
const ID_BYTES: usize = 8;
const SALT_BYTES: usize = 16;
const COUNTER_BYTES: usize = 8;
const HEADER_BYTES: usize = MARK.len() + ID_BYTES + SALT_BYTES + COUNTER_BYTES;
/// Keys of one ring.
const KEYS_MAX: usize = 100;
/// Names of sealed queues that are remembered; a queue beyond that costs one more decision per push.
const QUEUES_MAX: usize = 100_000;

type KeyId = [u8; ID_BYTES];
type Salt = [u8; SALT_BYTES];

/// Whether a payload is sealed.
pub fn is_sealed(payload: &[u8]) -> bool {
    [MARK, QUEUE_MARK, UNBOUND_MARK].iter().any(|mark| payload.starts_with(mark))
}

/// Where a sealed payload belongs. A message's offset is not part of it, nor is the id that the server gives to a message
/// without one: neither is known before the message is stored.
#[derive(Clone, Copy, Debug)]
pub enum Owner<'a> {
    /// To a message.
    Message {
        /// Its queue.
        queue: &'a str,
        /// The name of its partition.
        partition: &'a str,
        /// The transaction id that its producer gave.
        transaction_id: Option<&'a [u8]>,
    },
    /// To the record with this key.
    Record(&'a str),
}

impl Owner<'_> {
    /// What is authenticated with a payload that has this header.
    fn authenticated(self, header: &[u8]) -> Vec<u8> {
        if header.starts_with(&UNBOUND_MARK) {
            return header.to_vec();
        }
        match self {
            Self::Record(key) => [header, b"r", key.as_bytes()].concat(),
            Self::Message { queue, .. } if header.starts_with(&QUEUE_MARK) => {
                [header, b"q", queue.as_bytes()].concat()
            }
            Self::Message { queue, partition, transaction_id } => {
                // With its length, a name never runs into the next one.
                let length = |name: &str| (name.len() as u64).to_le_bytes();
                let (queue_length, partition_length) = (length(queue), length(partition));
                let names =
                    [&queue_length, queue.as_bytes(), &partition_length, partition.as_bytes()].concat();
                let id: [&[u8]; 2] = transaction_id.map_or([b"0", b""], |id| [b"1", id]);
                [header, b"m", &names, id[0], id[1]].concat()
            }
        }
    }
}

/// The keys of sealed payloads: the first seals, all open.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keyring(Vec<Key>);

#[derive(Clone, PartialEq, Eq)]
struct Key {
    id: KeyId,
    bytes: [u8; KEY_BYTES],
}

/// Why keys cannot be used. Says nothing of the keys themselves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// One is not what a key must be.
    #[error("key {0} is not 64 hexadecimal digits; `openssl rand -hex 32` makes one")]
    Malformed(usize),
    /// One stands there twice.
    #[error("key {0} stands there twice")]
    Repeated(usize),
    /// There are too many.
    #[error("there are more than {KEYS_MAX} keys")]
    TooMany,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| hex(&key.id))).finish()
    }
}

impl FromStr for Keyring {
    type Err = KeyError;

    /// Reads keys with commas or white space between.
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let mut keys: Vec<Key> = Vec::new();
        let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
        for (place, word) in words.enumerate() {
            let bytes = unhex(word).and_then(|bytes| bytes.try_into().ok());
            let bytes = bytes.ok_or(KeyError::Malformed(place + 1))?;
            if place >= KEYS_MAX {
                return Err(KeyError::TooMany);
            }
            let key = Key { id: id_of(&bytes), bytes };
            if keys.contains(&key) {
                return Err(KeyError::Repeated(place + 1));
            }
            keys.push(key);
        }
        Ok(Self(keys))
    }
}

impl Keyring {
    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a key is called: it tells which one is missing and nothing else.
fn id_of(key: &[u8; KEY_BYTES]) -> KeyId {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(b"baton key id");
    context.update(key);
    let mut id = KeyId::default();
    id.copy_from_slice(&context.finish().as_ref()[..ID_BYTES]);
    id
}

/// Bytes as text.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or_default();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Bytes from their text.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8; 2]| u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect()).flatten()
}

fn derive(key: &Key, salt: &Salt) -> Option<LessSafeKey> {
    let pseudorandom = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&key.bytes);
    let material = pseudorandom.expand(&[b"baton payload"], &AES_256_GCM).ok()?;
    Some(LessSafeKey::new(UnboundKey::from(material)))
}

fn nonce(counter: [u8; COUNTER_BYTES]) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..COUNTER_BYTES].copy_from_slice(&counter);
    Nonce::assume_unique_for_key(bytes)
}

/// Seals and opens payloads.
pub struct Sealer {
    ring: Keyring,
    /// The key in use and its salt.
    current: Option<(KeyId, Salt, LessSafeKey)>,
    counter: AtomicU64,
    /// Queues that turned out to be sealed, so that the next push to them comes sealed. Only a hint.
    queues: RwLock<FxHashSet<Arc<str>>>,
}

impl Sealer {
    /// Seals with the first key of the ring.
    pub fn new(ring: Keyring) -> Self {
        let current = ring.0.first().and_then(|key| {
            let mut salt = Salt::default();
            baton_env::random_bytes(&mut salt);
            Some((key.id, salt, derive(key, &salt)?))
        });
        Self { ring, current, counter: AtomicU64::new(0), queues: RwLock::default() }
    }

    /// Whether there is a key to seal with.
    pub fn can_seal(&self) -> bool {
        self.current.is_some()
    }

    /// A payload that only its owner's readers can read.
    pub fn seal(&self, owner: Owner<'_>, payload: &[u8]) -> Result<Vec<u8>, Error> {
        let (id, salt, key) = self.current.as_ref().ok_or_else(no_key)?;
        let counter = self.counter.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let mut sealed = Vec::with_capacity(HEADER_BYTES + payload.len() + AES_256_GCM.tag_len());
        for part in [&MARK[..], id, salt, &counter, payload] {
            sealed.extend_from_slice(part);
        }
        let (header, body) = sealed.split_at_mut(HEADER_BYTES);
        let tag = key
            .seal_in_place_separate_tag(nonce(counter), Aad::from(owner.authenticated(header)), body)
            .map_err(|_| Error::Invalid("the payload is too large to be encrypted".into()))?;
        sealed.extend_from_slice(tag.as_ref());
        Ok(sealed)
    }

    /// Opens payloads one after the other.
    pub fn opener(&self) -> Opener<'_> {
        Opener { ring: &self.ring, last: None }
    }

    /// Notes that a queue wants its payloads sealed, or no longer does.
    pub fn note(&self, queue: &str, sealed: bool) {
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        if !sealed {
            queues.remove(queue);
        } else if queues.len() < QUEUES_MAX {
            queues.insert(queue.into());
        }
    }

    /// Whether `note` was called for the queue.
    pub fn is_noted(&self, queue: &str) -> bool {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).contains(queue)
    }

    /// The same message of a partition, sealed.
    pub fn sealed<'a>(
        &self,
        queue: &str,
        partition: &str,
        message: &NewMessage<'a>,
        space: &'a mut Vec<u8>,
    ) -> Result<NewMessage<'a>, Error> {
        if is_sealed(message.payload) {
            return Ok(*message);
        }
        let transaction_id = message.transaction_id.map(str::as_bytes);
        *space = self.seal(Owner::Message { queue, partition, transaction_id }, message.payload)?;
        Ok(NewMessage { payload: space, ..*message })
    }
}

/// What a push to a sealed queue is told by a server without a key.
pub fn no_key() -> Error {
    Error::KeyMissing(
        "the queue is encrypted (encryptionEnabled) and this server has no key; start it with encryption_keys"
            .into(),
    )
}

/// Opens payloads, and remembers the key of the last one, as neighbours mostly have the same.
pub struct Opener<'r> {
    ring: &'r Keyring,
    last: Option<(KeyId, Salt, LessSafeKey)>,
}

impl Opener<'_> {
    /// The payload as it was pushed, or why it cannot be read. One that is not sealed is returned as it is.
    pub fn open(&mut self, owner: Owner<'_>, payload: &Bytes) -> Result<Bytes, String> {
        if !is_sealed(payload) {
            return Ok(payload.clone());
        }
        let parts = payload.split_at_checked(HEADER_BYTES).and_then(|(header, body)| {
            let rest = header.get(MARK.len()..)?;
            let (id, rest) = rest.split_first_chunk::<ID_BYTES>()?;
            let (salt, rest) = rest.split_first_chunk::<SALT_BYTES>()?;
            Some((header, *id, *salt, *rest.first_chunk::<COUNTER_BYTES>()?, body))
        });
        let Some((header, id, salt, counter, body)) = parts else {
            return Err("the encrypted payload is cut short".into());
        };
        if self.last.as_ref().is_none_or(|last| (last.0, last.1) != (id, salt)) {
            let Some(key) = self.ring.0.iter().find(|key| key.id == id) else {
                return Err(format!(
                    "the payload is encrypted with key {}, which is not among the server's encryption_keys",
                    hex(&id)
                ));
            };
            self.last = derive(key, &salt).map(|derived| (id, salt, derived));
        }
        let mut opened = body.to_vec();
        let authenticated = Aad::from(owner.authenticated(header));
        let length = self.last.as_ref().and_then(|(_, _, key)| {
            Some(key.open_in_place(nonce(counter), authenticated, &mut opened).ok()?.len())
        });
        match length {
            Some(length) => {
                opened.truncate(length);
                Ok(opened.into())
            }
            None => Err(format!("the payload encrypted with key {} has been changed or moved", hex(&id))),
        }
    }

    /// Opens a message of a partition where it stands, or says why it cannot be read.
    pub fn open_message(
        &mut self,
        queue: &str,
        partition: &str,
        message: &mut StoredMessage,
    ) -> Result<(), String> {
        if is_sealed(&message.payload) {
            let transaction_id = message.transaction_id.as_deref();
            message.payload =
                self.open(Owner::Message { queue, partition, transaction_id }, &message.payload)?;
        }
        Ok(())
    }

    /// The payload of a dead letter of a partition, or why it cannot be read.
    pub fn open_letter(
        &mut self,
        queue: &str,
        partition: &str,
        letter: &DeadLetter,
    ) -> Result<Bytes, String> {
        let own_id =
            || MessageId::new(letter.created_at, letter.key.partition, letter.key.offset).to_string();
        // A letter without the producer's id carries the server's, which was not known when the message was sealed.
        let is_given = !is_sealed(&letter.payload) || letter.transaction_id != own_id();
        let transaction_id = is_given.then_some(letter.transaction_id.as_bytes());
        self.open(Owner::Message { queue, partition, transaction_id }, &letter.payload)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWNER: Owner<'_> = message("q", "p", Some("t"));

    /// Made with key 1 before payloads were bound to their owners.
    const UNBOUND: &str = "004245015577d0eacacbedeb000102030405060708090a0b0c0d0e0f030\
        0000000000000c3cde2f4aaddedd100768a8c37be09893e433c85c0a6e1";

    /// Made with key 1 for queue `q` before messages were bound to their partitions and transaction ids.
    const OF_QUEUE: &str = "004245025577d0eacacbedeb000102030405060708090a0b0c0d0e0f04\
        000000000000006d88765924037be03b557f2a191ecf5dc835eb2f3b1e73";
    /// Made then with key 1 for the record `k`.
    const OF_RECORD: &str = "004245025577d0eacacbedeb000102030405060708090a0b0c0d0e0f05\
        00000000000000e9bdd7ad840754ee944e877ed2c24cb0dfab636d51cdb2";

    const fn message<'a>(queue: &'a str, partition: &'a str, id: Option<&'a str>) -> Owner<'a> {
        let transaction_id = match id {
            Some(id) => Some(id.as_bytes()),
            None => None,
        };
        Owner::Message { queue, partition, transaction_id }
    }

    fn ring(keys: &[u8]) -> Keyring {
        let keys: Vec<_> = keys.iter().map(|key| hex(&[*key; KEY_BYTES])).collect();
        keys.join(",\n").parse().unwrap()
    }

    #[test]
    fn keys_are_64_digits_each_and_are_not_printed() {
        let ring = ring(&[1, 0xab]);
        assert!(!format!("{ring:?}").contains("0101") && !format!("{ring:?}").contains("abab"));
        let wrong = |text: &str| text.parse::<Keyring>().unwrap_err();
        assert_eq!(wrong("abc"), KeyError::Malformed(1));
        assert_eq!(wrong(&"g".repeat(64)), KeyError::Malformed(1));
        assert_eq!(wrong(&format!("{0},{0}", "1".repeat(64))), KeyError::Repeated(2));
        assert!("".parse::<Keyring>().unwrap().is_empty());
    }

    #[test]
    fn a_payload_opens_where_it_belongs_only() {
        let sealer = Sealer::new(ring(&[1]));
        let owners = [
            message("a", "p", Some("t")),
            message("ab", "p", Some("t")),
            // Another message of the partition, with and without an id, and the same id in another partition.
            message("a", "p", Some("u")),
            message("a", "p", Some("")),
            message("a", "p", None),
            message("a", "q", Some("t")),
            // The same letters, cut in other places.
            message("ap", "", Some("t")),
            message("", "ap", Some("t")),
            message("a", "pt", Some("")),
            message("a", "p1t", None),
            Owner::Record("a"),
        ];
        for (place, owner) in owners.iter().enumerate() {
            let sealed = Bytes::from(sealer.seal(*owner, b"1").unwrap());
            for (other_place, other) in owners.iter().enumerate() {
                let opened = sealer.opener().open(*other, &sealed);
                assert_eq!(opened.is_ok(), place == other_place, "{owner:?} as {other:?}");
            }
            // The mark cannot be exchanged for one of payloads that open in more places.
            for mark in [QUEUE_MARK, UNBOUND_MARK] {
                let loose = [&mark[..], &sealed[MARK.len()..]].concat();
                assert!(sealer.opener().open(*owner, &loose.into()).is_err(), "{owner:?} as {mark:?}");
            }
        }
    }

    /// Payloads of both older formats open by their own rules, and not under another mark.
    #[test]
    fn payloads_of_older_formats_still_open() {
        let sealer = Sealer::new(ring(&[1]));
        let opened = |owner, payload: &[u8]| sealer.opener().open(owner, &Bytes::copy_from_slice(payload));
        let [unbound, of_queue, of_record] = [UNBOUND, OF_QUEUE, OF_RECORD].map(|text| unhex(text).unwrap());
        assert!([&unbound, &of_queue, &of_record].iter().all(|payload| is_sealed(payload)));
        let same_queue = [OWNER, message("q", "other", None)];
        let elsewhere = [message("other", "p", Some("t")), Owner::Record("k")];
        for owner in same_queue.into_iter().chain(elsewhere) {
            assert_eq!(opened(owner, &unbound).unwrap(), &b"{\"n\":1}"[..]);
        }
        for owner in same_queue {
            assert_eq!(opened(owner, &of_queue).unwrap(), &b"{\"n\":2}"[..]);
            assert!(opened(owner, &of_record).is_err());
        }
        assert_eq!(opened(Owner::Record("k"), &of_record).unwrap(), &b"{\"n\":3}"[..]);
        for owner in elsewhere {
            assert!(opened(owner, &of_queue).is_err(), "{owner:?}");
        }
        for (payload, own) in [(unbound, UNBOUND_MARK), (of_queue, QUEUE_MARK), (of_record, QUEUE_MARK)] {
            for mark in [MARK, QUEUE_MARK, UNBOUND_MARK].into_iter().filter(|mark| *mark != own) {
                let relabelled = [&mark[..], &payload[MARK.len()..]].concat();
                for owner in same_queue.into_iter().chain(elsewhere) {
                    assert!(opened(owner, &relabelled).is_err(), "{own:?} as {mark:?} for {owner:?}");
                }
            }
        }
    }

    #[test]
    fn an_old_key_still_opens_and_a_missing_one_is_named() {
        let old = Sealer::new(ring(&[1]));
        let sealed = Bytes::from(old.seal(OWNER, b"{\"n\":1}").unwrap());
        let rotated = Sealer::new(ring(&[2, 1]));
        assert_eq!(rotated.opener().open(OWNER, &sealed).unwrap(), &b"{\"n\":1}"[..]);
        let fresh = Bytes::from(rotated.seal(OWNER, b"1").unwrap());
        let error = old.opener().open(OWNER, &fresh).unwrap_err();
        assert!(error.contains(&hex(&id_of(&[2; KEY_BYTES]))), "{error}");
        assert!(Sealer::new(Keyring::default()).seal(OWNER, b"1").is_err());
        assert_eq!(old.opener().open(OWNER, &Bytes::from_static(b"plain")).unwrap(), "plain");
    }

    proptest! {
        #[test]
        fn what_was_sealed_is_opened_and_nothing_else(
            payload in prop::collection::vec(any::<u8>(), 0..300), place in any::<prop::sample::Index>(), flip in 1u8..,
        ) {
            let sealer = Sealer::new(ring(&[7]));
            let (sealed, again) = (sealer.seal(OWNER, &payload).unwrap(), sealer.seal(OWNER, &payload).unwrap());
            prop_assert_ne!(&sealed, &again);
            let mut opener = sealer.opener();
            for sealed in [sealed.clone(), again] {
                prop_assert_eq!(&opener.open(OWNER, &sealed.into()).unwrap()[..], &payload[..]);
            }
            let mut changed = sealed.clone();
            let place = place.index(changed.len());
            changed[place] ^= flip;
            if is_sealed(&changed) {
                prop_assert!(opener.open(OWNER, &changed.into()).is_err());
            }
            prop_assert!(opener.open(OWNER, &Bytes::copy_from_slice(&sealed[..sealed.len() - 1])).is_err());
            prop_assert!(opener.open(OWNER, &Bytes::copy_from_slice(&sealed[..9])).is_err());
        }

        #[test]
        fn a_message_opens_in_its_own_place_and_in_no_other(
            place in ("[ab]{0,2}", "[ab]{0,2}", prop::option::of("[ab]{0,2}")),
            other in ("[ab]{0,2}", "[ab]{0,2}", prop::option::of("[ab]{0,2}")),
            payload in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let sealer = Sealer::new(ring(&[7]));
            let [owner, elsewhere] =
                [&place, &other].map(|(queue, partition, id)| message(queue, partition, id.as_deref()));
            let sealed = Bytes::from(sealer.seal(owner, &payload).unwrap());
            prop_assert_eq!(&sealer.opener().open(owner, &sealed).unwrap()[..], &payload[..]);
            prop_assert_eq!(sealer.opener().open(elsewhere, &sealed).is_ok(), place == other);
        }
    }
}
