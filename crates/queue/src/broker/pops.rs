//! Messages for a consumer: what a pop was granted, read and handed over.
//!
//! Always: who was granted something and is not there to take it gives it back; a delivery is remembered before anybody can
//! ack it. Start at [`Broker::pop_heralded`].

use std::sync::Arc;

use baton_env::Stopwatch;
use baton_store::{MessageView, Segment};
use baton_types::{LeaseId, limits};

use super::{Broker, Shared};
use crate::Error;
use crate::meter::Kind;
use crate::parking::{Granted, Herald, ImmediatePop, Waited};
use crate::pop::{self, Claim, PopRequest, Popped, Range};
use crate::push::check_name;
use crate::unreadable::{self, Unreadable};
use crate::waiting::Watched;

/// Bytes of payload that a herald may hand over: it prepares on the thread that decides for everybody, so what takes long
/// is left to the caller's own.
const HERALDED_BYTES_MAX: usize = 64 << 10;

/// What a pop came to.
#[derive(Debug)]
pub enum Given {
    /// There was nothing, and nothing came in time.
    Nothing,
    /// Messages, for the caller to hand over.
    Messages(Popped),
    /// Messages that the herald has handed over.
    Told,
}

impl Broker {
    /// Messages for a consumer; `None` when there are none, or none came in time. Dropping the future ends the
    /// wait at once, and what it was granted goes to the next.
    pub async fn pop(&self, request: PopRequest) -> Result<Option<Popped>, Error> {
        Ok(match self.pop_heralded(request, None).await? {
            Given::Messages(popped) => Some(popped),
            Given::Nothing | Given::Told => None,
        })
    }

    /// The same, with a herald who may hand over what comes while the pop waits.
    pub async fn pop_heralded(
        &self,
        request: PopRequest,
        herald: Option<Box<dyn Herald<Popped>>>,
    ) -> Result<Given, Error> {
        check_pop(&request)?;
        if self.shared.keeper.pops_are_stopped().await? {
            return Ok(Given::Nothing);
        }
        let (watch, request) = (Stopwatch::start(), Arc::new(request));
        let granted = ImmediatePop::run(&self.shared.store, request.clone()).await?;
        if !granted.decided.claims.is_empty() {
            // Boxed, here and below, so that a parked pop does not hold it.
            let delivered = Box::pin(self.deliver(granted, &request)).await;
            self.shared.meters.took(Kind::Pop, watch.elapsed());
            return delivered;
        }
        self.shared.meters.took(Kind::Pop, watch.elapsed());
        let queue = request.target.queue().filter(|_| !granted.decided.looked_at.is_empty());
        let Some(wait) = request.wait else {
            self.shared.meters.popped_nothing(queue);
            return Ok(Given::Nothing);
        };
        let watched =
            Watched { queues: granted.decided.looked_at.clone(), partition: granted.decided.partition };
        drop(granted);
        let wait = wait.min(limits::POP_WAIT_MAX);
        let herald = herald.map(|herald| Delivery::boxed(&self.shared, &request, herald));
        match Box::pin(self.shared.parking.wait(request.clone(), herald, watched, wait)).await? {
            Waited::Granted(granted) => Box::pin(self.deliver(granted, &request)).await,
            Waited::Told => Ok(Given::Told),
            Waited::Nothing => {
                self.shared.meters.popped_nothing(queue);
                Ok(Given::Nothing)
            }
        }
    }

    /// Reads what was granted.
    async fn deliver(&self, mut granted: Granted, request: &PopRequest) -> Result<Given, Error> {
        let (lease, mut claims, mut bytes) = (granted.lease, Vec::new(), 0);
        let conflation = granted.decided.conflation;
        for range in &granted.decided.claims {
            let bytes_max = limits::POP_BYTES_MAX.saturating_sub(bytes);
            let segments = self.shared.store.read(range.partition, range.from, range.to, bytes_max).await?;
            let (mut messages, complete) = wanted(range, &segments, bytes_max)?;
            bytes += payload_bytes(&messages);
            if !complete && !request.auto_ack {
                let keep = messages.last().map_or(range.from, |message| message.offset.plus(1));
                let partition = range.partition;
                self.run(move |tx| pop::give_back(tx, lease, Some((partition, keep)))).await?;
            }
            self.open(&mut messages, request, (!request.auto_ack).then_some(lease)).await?;
            if !messages.is_empty() {
                claims.push(claim(range, messages));
            }
        }
        granted.accept();
        let popped = Popped { lease: (!request.auto_ack).then_some(lease), claims, conflation };
        self.shared.note(&popped);
        Ok(if popped.claims.is_empty() { Given::Nothing } else { Given::Messages(popped) })
    }

    /// Opens sealed messages. Those that nobody can read any more become dead letters, so that they are in nobody's
    /// way; a server without any key was rather forgotten to be given one, and refuses instead.
    async fn open(
        &self,
        messages: &mut Vec<MessageView>,
        request: &PopRequest,
        lease: Option<LeaseId>,
    ) -> Result<(), Error> {
        let (mut unreadable, sealer) = (Vec::new(), &self.shared.sealer);
        {
            let mut opener = sealer.opener();
            messages.retain_mut(|message| match opener.open_message(message) {
                Ok(()) => true,
                Err(reason) => {
                    let (partition, offset) = (message.partition, message.offset);
                    unreadable.push(Unreadable { partition, offset, reason });
                    false
                }
            });
        }
        let Some(first) = unreadable.first() else { return Ok(()) };
        if !sealer.can_seal() && lease.is_some() {
            return Err(Error::KeyMissing(first.reason.clone()));
        }
        tracing::error!(
            partition = first.partition.0,
            offset = first.offset.0,
            messages = unreadable.len(),
            reason = first.reason,
            "messages cannot be decrypted and become dead letters"
        );
        let group = request.group.clone();
        self.run(move |tx| unreadable::bury(tx, &group, lease, &unreadable)).await
    }
}

impl Shared {
    /// What was granted, if it is not much, and all of it is at hand and can be read.
    fn at_hand(&self, granted: &Granted, request: &PopRequest) -> Option<Popped> {
        let (mut claims, mut bytes, mut opener) = (Vec::new(), 0, self.sealer.opener());
        for range in &granted.decided.claims {
            let bytes_max = HERALDED_BYTES_MAX.saturating_sub(bytes);
            let segments = self.store.at_hand(range.partition, range.from, range.to, bytes_max)?;
            let (mut messages, complete) = wanted(range, &segments, bytes_max).ok()?;
            bytes += payload_bytes(&messages);
            if !complete || messages.is_empty() || bytes > HERALDED_BYTES_MAX {
                return None;
            }
            messages.iter_mut().try_for_each(|message| opener.open_message(message)).ok()?;
            claims.push(claim(range, messages));
        }
        let lease = (!request.auto_ack).then_some(granted.lease);
        Some(Popped { lease, claims, conflation: granted.decided.conflation })
    }

    /// Counts what is about to be handed over, and remembers it for its acks.
    fn note(&self, popped: &Popped) {
        if let Some(lease) = popped.lease {
            for claim in &popped.claims {
                self.deliveries.add(lease, &claim.queue, claim.partition, &claim.messages);
            }
        }
        self.meters.popped(popped, self.store.now());
    }
}

/// Hands a parked pop what it is granted, if that is at hand, through the herald of its caller.
struct Delivery {
    shared: Arc<Shared>,
    request: Arc<PopRequest>,
    herald: Box<dyn Herald<Popped>>,
    popped: Option<Popped>,
}

impl Delivery {
    fn boxed(
        shared: &Arc<Shared>,
        request: &Arc<PopRequest>,
        herald: Box<dyn Herald<Popped>>,
    ) -> Box<dyn Herald<Granted>> {
        Box::new(Self { shared: shared.clone(), request: request.clone(), herald, popped: None })
    }
}

impl Herald<Granted> for Delivery {
    fn prepare(&mut self, granted: &Granted) {
        self.popped = self.shared.at_hand(granted, &self.request);
        if let Some(popped) = &self.popped {
            self.herald.prepare(popped);
        }
    }

    fn tell(self: Box<Self>, note: &mut dyn FnMut()) -> bool {
        let Self { shared, herald, popped, .. } = *self;
        let Some(popped) = popped else { return false };
        herald.tell(&mut || {
            shared.note(&popped);
            note();
        })
    }
}

/// The messages of a range, and whether these are all of it. At least one is read, however large.
fn wanted(range: &Range, segments: &[Segment], bytes_max: usize) -> Result<(Vec<MessageView>, bool), Error> {
    let (mut messages, mut bytes) = (Vec::new(), 0);
    for message in segments.iter().flat_map(Segment::messages) {
        let message = message.map_err(baton_store::Error::from)?;
        let is_wanted = range.from <= message.offset
            && message.offset < range.to
            && !range.except.as_ref().is_some_and(|except| except.contains(message.offset));
        if !is_wanted {
            continue;
        }
        if bytes > 0 && bytes + message.payload.len() > bytes_max {
            return Ok((messages, false));
        }
        bytes += message.payload.len();
        messages.push(message);
    }
    let complete = segments.last().is_some_and(|segment| segment.end() >= range.to);
    Ok((messages, complete))
}

fn payload_bytes(messages: &[MessageView]) -> usize {
    messages.iter().map(|message| message.payload.len()).sum()
}

fn claim(range: &Range, messages: Vec<MessageView>) -> Claim {
    Claim {
        queue: range.queue.clone(),
        partition: range.partition,
        partition_name: range.partition_name.clone(),
        attempt: range.attempt,
        messages,
    }
}

fn check_pop(request: &PopRequest) -> Result<(), Error> {
    check_name("group", &request.group)?;
    match &request.target {
        pop::Target::Queue(queue) => check_name("queue", queue),
        pop::Target::Partition { queue, partition } => {
            check_name("queue", queue).and_then(|()| check_name("partition", partition))
        }
        pop::Target::Labels { namespace, task } => {
            namespace.iter().chain(task).try_for_each(|label| check_name("namespace or task", label))
        }
    }
}
