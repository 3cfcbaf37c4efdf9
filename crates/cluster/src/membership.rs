//! Membership: the servers that one server has heard.
//!
//! Always: a datagram of a server counts only if it is later than every one before it, also over restarts, since
//! incarnations rise with every start of any server and are remembered while the server is known. A server is dead
//! after some silence, or when it announced that it leaves, and returns with its next heartbeat. No message of a
//! server counts before it has answered a challenge, once per start. Without that, a recording could speak for it to
//! a receiver that has never heard it. Deliberately absent: agreement. Two servers may disagree about a third one,
//! which only costs a detour. Time is an argument. Start at [`Membership::on_datagram`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::limits::{CHALLENGE_AGAIN, SERVERS_MAX};
use crate::load::Load;
use crate::wire::{Envelope, RejectReason};

/// Another server.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its address for forwarded requests.
    pub url: Arc<str>,
    /// Its load, as it reports it.
    pub load: Load,
    /// When its last datagram came.
    pub heard: Duration,
    /// Whether it is alive.
    pub alive: bool,
    /// Whether it is drained.
    pub draining: bool,
    /// The incarnation of its last datagram.
    pub incarnation: u64,
    sequence: u64,
    proof: Proof,
}

impl Member {
    fn unproven(now: Duration, envelope: &Envelope) -> Self {
        Self {
            url: "".into(),
            load: Load::default(),
            heard: now,
            alive: false,
            draining: false,
            incarnation: envelope.incarnation,
            sequence: envelope.sequence,
            proof: Proof::Missing,
        }
    }

    /// Whether to challenge it with `nonce` now.
    fn challenge(&mut self, now: Duration, nonce: u64) -> bool {
        let is_due = match self.proof {
            Proof::Missing => true,
            Proof::Asked(at, _) => now >= at + CHALLENGE_AGAIN,
            Proof::Given => false,
        };
        if is_due {
            self.proof = Proof::Asked(now, nonce);
        }
        is_due
    }

    fn prove(&mut self, nonce: u64) -> bool {
        let is_right = matches!(self.proof, Proof::Asked(_, asked) if asked == nonce);
        if is_right {
            self.proof = Proof::Given;
        }
        is_right
    }
}

/// Whether a start of a server has proved that it is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    Missing,
    /// When it was challenged, and with which nonce.
    Asked(Duration, u64),
    Given,
}

/// What a heartbeat has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// Nothing but the load.
    None,
    /// The server was not alive before.
    Joined,
    /// The server restarted, or moved.
    Restarted,
}

/// The other servers.
#[derive(Debug)]
pub struct Membership {
    own: Envelope,
    dead_after: Duration,
    members: BTreeMap<Arc<str>, Member>,
    /// Another server with this server's name.
    namesake: Option<Member>,
    restarts: u64,
}

impl Membership {
    /// The membership as seen by the server `own`, in its `incarnation`.
    pub fn new(own: Arc<str>, incarnation: u64, dead_after: Duration) -> Self {
        let own = Envelope { sender: own, incarnation, sequence: 0 };
        Self { own, dead_after, members: BTreeMap::new(), namesake: None, restarts: 0 }
    }

    /// This server's name.
    pub fn own(&self) -> &Arc<str> {
        &self.own.sender
    }

    /// The envelope of the next datagram of this server.
    pub fn next_envelope(&mut self) -> Envelope {
        self.own.sequence += 1;
        self.own.clone()
    }

    /// Whether a datagram counts. `Ok(false)` is one that this server sent itself.
    pub fn on_datagram(&mut self, now: Duration, envelope: &Envelope) -> Result<bool, RejectReason> {
        if envelope.sender == self.own.sender {
            // No two starts have the same incarnation.
            let is_own = envelope.incarnation == self.own.incarnation;
            return if is_own { Ok(false) } else { Err(self.hear_namesake(now, envelope)) };
        }
        if let Some(member) = self.members.get_mut(&envelope.sender) {
            let (incarnation, sequence) = (envelope.incarnation, envelope.sequence);
            if (incarnation, sequence) <= (member.incarnation, member.sequence) {
                return Err(RejectReason::Replayed);
            }
            if incarnation != member.incarnation {
                // Its old state is void; its next heartbeat brings the new one.
                member.alive = false;
                member.proof = Proof::Missing;
                self.restarts += 1;
            }
            (member.incarnation, member.sequence) = (incarnation, sequence);
            if member.alive {
                member.heard = now;
            }
            return Ok(true);
        }
        self.make_room();
        self.members.insert(Arc::clone(&envelope.sender), Member::unproven(now, envelope));
        Ok(true)
    }

    fn hear_namesake(&mut self, now: Duration, envelope: &Envelope) -> RejectReason {
        match &mut self.namesake {
            Some(known) if known.incarnation == envelope.incarnation => {
                if envelope.sequence <= known.sequence {
                    return RejectReason::Replayed;
                }
                (known.sequence, known.heard) = (envelope.sequence, now);
            }
            Some(known) if known.proof == Proof::Given && now < known.heard + self.dead_after => {}
            namesake => *namesake = Some(Member::unproven(now, envelope)),
        }
        RejectReason::Namesake
    }

    /// Whether to challenge another server with this server's name with `nonce` now. It may be an earlier start of
    /// this server, or a recording of it.
    pub fn challenge_namesake(&mut self, now: Duration, nonce: u64) -> bool {
        self.namesake.as_mut().is_some_and(|namesake| namesake.challenge(now, nonce))
    }

    /// A server with this server's name answers a challenge. Returns whether the answer is right.
    pub fn prove_namesake(&mut self, incarnation: u64, nonce: u64) -> bool {
        let known = self.namesake.as_mut().filter(|namesake| namesake.incarnation == incarnation);
        known.is_some_and(|namesake| namesake.prove(nonce))
    }

    /// Whether another server uses this server's name.
    pub fn has_namesake(&self, now: Duration) -> bool {
        let dead_after = self.dead_after;
        let is_there =
            |namesake: &Member| namesake.proof == Proof::Given && now < namesake.heard + dead_after;
        self.namesake.as_ref().is_some_and(is_there)
    }

    /// Whether messages of a server count.
    pub fn is_proven(&self, id: &str) -> bool {
        self.members.get(id).is_some_and(|member| member.proof == Proof::Given)
    }

    /// Whether to challenge a server with `nonce` now.
    pub fn challenge(&mut self, now: Duration, id: &str, nonce: u64) -> bool {
        self.members.get_mut(id).is_some_and(|member| member.challenge(now, nonce))
    }

    /// A server answers a challenge. Returns whether the answer is right.
    pub fn prove(&mut self, id: &str, nonce: u64) -> bool {
        self.members.get_mut(id).is_some_and(|member| member.prove(nonce))
    }

    /// Removes the dead server that was silent for longest, if there are too many.
    fn make_room(&mut self) {
        if self.members.len() < SERVERS_MAX {
            return;
        }
        let oldest = self.members.iter().min_by_key(|(_, member)| (member.alive, member.heard));
        if let Some(id) = oldest.map(|(id, _)| Arc::clone(id)) {
            self.members.remove(&id);
        }
    }

    /// Applies a server's heartbeat.
    pub fn on_heartbeat(&mut self, now: Duration, id: &str, url: &str, load: Load) -> MemberChange {
        let Some(member) = self.members.get_mut(id) else { return MemberChange::None };
        let moved = *member.url != *url;
        let change = match member.alive {
            false => MemberChange::Joined,
            true if moved => MemberChange::Restarted,
            true => MemberChange::None,
        };
        if moved {
            member.url = url.into();
        }
        (member.load, member.heard, member.alive) = (load, now, true);
        change
    }

    /// Sets whether a server is drained. Returns whether that changed.
    pub fn set_draining(&mut self, id: &str, draining: bool) -> bool {
        self.members
            .get_mut(id)
            .is_some_and(|member| std::mem::replace(&mut member.draining, draining) != draining)
    }

    /// A server leaves. Returns whether it was alive.
    pub fn leave(&mut self, id: &str) -> bool {
        self.members.get_mut(id).is_some_and(|member| std::mem::replace(&mut member.alive, false))
    }

    /// Marks silent servers as dead. Returns those that are newly dead.
    pub fn expire(&mut self, now: Duration) -> Vec<Arc<str>> {
        let dead_after = self.dead_after;
        let silent = |member: &Member| member.alive && member.heard + dead_after <= now;
        let lost: Vec<_> =
            self.members.iter().filter(|(_, m)| silent(m)).map(|(id, _)| Arc::clone(id)).collect();
        for id in &lost {
            self.leave(id);
        }
        lost
    }

    /// A known server.
    pub fn get(&self, id: &str) -> Option<&Member> {
        self.members.get(id)
    }

    /// All known servers, by name.
    pub fn all(&self) -> impl Iterator<Item = (&Arc<str>, &Member)> {
        self.members.iter()
    }

    /// The live servers, by name.
    pub fn alive(&self) -> impl Iterator<Item = (&Arc<str>, &Member)> {
        self.members.iter().filter(|(_, member)| member.alive)
    }

    /// How many restarts of other servers were seen.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn members() -> Membership {
        Membership::new("own".into(), 10, at(5000))
    }

    fn envelope(sender: &str, incarnation: u64, sequence: u64) -> Envelope {
        Envelope { sender: sender.into(), incarnation, sequence }
    }

    fn beat(members: &mut Membership, now: Duration, incarnation: u64, sequence: u64) -> MemberChange {
        assert_eq!(members.on_datagram(now, &envelope("b", incarnation, sequence)), Ok(true));
        members.on_heartbeat(now, "b", "http://b:1", Load::default())
    }

    #[test]
    fn a_server_is_dead_after_silence_and_comes_back_with_a_heartbeat() {
        let mut members = members();
        assert_eq!(beat(&mut members, at(0), 1, 1), MemberChange::Joined);
        assert_eq!(beat(&mut members, at(1000), 1, 2), MemberChange::None);
        assert!(members.expire(at(5999)).is_empty());
        assert_eq!(members.expire(at(6000)), ["b".into()]);
        assert!(members.expire(at(9000)).is_empty() && members.alive().count() == 0);
        assert_eq!(beat(&mut members, at(9000), 1, 3), MemberChange::Joined);
    }

    #[test]
    fn repeated_and_late_datagrams_do_not_count_also_over_a_restart() {
        let mut members = members();
        beat(&mut members, at(0), 1, 5);
        for (incarnation, sequence) in [(1, 5), (1, 4), (0, 99)] {
            let again = members.on_datagram(at(1), &envelope("b", incarnation, sequence));
            assert_eq!(again, Err(RejectReason::Replayed), "{incarnation} {sequence}");
        }
        members.expire(at(60_000));
        assert_eq!(members.on_datagram(at(60_000), &envelope("b", 1, 5)), Err(RejectReason::Replayed));
        assert_eq!(beat(&mut members, at(60_001), 2, 1), MemberChange::Joined);
        assert_eq!(members.restarts(), 1);
        assert_eq!(members.on_datagram(at(60_002), &envelope("b", 1, 100)), Err(RejectReason::Replayed));
    }

    #[test]
    fn a_server_counts_once_it_has_answered_a_challenge_and_again_after_a_restart() {
        let mut members = members();
        for incarnation in [1, 2] {
            members.on_datagram(at(0), &envelope("b", incarnation, 1)).unwrap();
            assert!(!members.is_proven("b") && !members.prove("b", 0), "{incarnation}");
            assert!(members.challenge(at(0), "b", 7) && !members.challenge(at(1), "b", 8));
            assert!(!members.prove("b", 8) && !members.is_proven("b"));
            assert!(members.challenge(CHALLENGE_AGAIN, "b", 9) && !members.prove("b", 7));
            assert!(members.prove("b", 9) && members.is_proven("b") && !members.prove("b", 9));
            assert!(!members.challenge(at(60_000), "b", 10));
        }
        // An older start can neither undo that nor send messages.
        assert_eq!(members.on_datagram(at(0), &envelope("b", 1, 100)), Err(RejectReason::Replayed));
        assert!(members.is_proven("b"));
    }

    #[test]
    fn own_datagrams_are_known_and_a_namesake_is_noticed() {
        let mut members = members();
        assert_eq!(members.on_datagram(at(0), &envelope("own", 10, 1)), Ok(false));
        assert_eq!(members.on_datagram(at(0), &envelope("own", 11, 1)), Err(RejectReason::Namesake));
        assert_eq!((members.next_envelope().sequence, members.next_envelope().sequence), (1, 2));
    }

    #[test]
    fn a_server_that_leaves_is_gone_at_once() {
        let mut members = members();
        beat(&mut members, at(0), 1, 1);
        assert!(members.leave("b") && !members.leave("b"));
        assert_eq!(members.alive().count(), 0);
    }

    #[test]
    fn another_server_with_our_name_counts_once_it_has_shown_that_it_is_there() {
        // Whether it started before or after this one.
        for incarnation in [9, 11] {
            let mut members = members();
            let heard = members.on_datagram(at(0), &envelope("own", incarnation, 5));
            assert_eq!(heard, Err(RejectReason::Namesake));
            assert!(!members.has_namesake(at(0)), "it may be a recording");
            assert!(members.challenge_namesake(at(0), 7) && !members.challenge_namesake(at(0), 8));
            assert!(!members.prove_namesake(incarnation, 8) && !members.prove_namesake(incarnation + 1, 7));
            assert!(members.prove_namesake(incarnation, 7) && members.has_namesake(at(0)));
            assert_eq!(
                members.on_datagram(at(1), &envelope("own", incarnation, 5)),
                Err(RejectReason::Replayed)
            );
            assert!(!members.has_namesake(at(10_000)), "it is gone");
        }
    }

    #[test]
    fn strangers_do_not_fill_the_memory() {
        let mut members = members();
        beat(&mut members, at(0), 1, 1);
        for number in 0..2 * SERVERS_MAX as u64 {
            members.on_datagram(at(1), &envelope(&format!("s{number}"), 1, 1)).unwrap();
        }
        assert_eq!(members.all().count(), SERVERS_MAX);
        assert!(members.get("b").is_some_and(|member| member.alive));
    }
}
