"""What a queue may and may not have done, judged from what its clients saw.

Producers and consumers write down every push, delivery and ack with the time before it was sent and the time
after it was answered. `check` is a pure function from such a history to the list of promises it breaks, so that
it can be tested with no server, and so that one recorded history always gets the same verdict.

Judged: nothing accepted is lost; nothing appears that was not pushed; one transaction id is one message; first
deliveries follow the order of the pushes; what was acked does not come again. Deliberately not judged: how often
an unacked message is delivered (at least once means what it says), and any order between partitions.

Times are of one monotonic clock. Two calls that overlapped in time have no order, so a verdict is given only
where every possible order of the two would be wrong. Start at `check`.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Push:
    """One request, retried under the same ids until it was answered or given up."""

    partition: str
    ids: tuple
    start: float
    # When it was answered that all of them are stored; None when that was never heard.
    end: float | None


@dataclass(frozen=True)
class Delivery:
    """One message in the answer to a pop."""

    group: str
    partition: str
    id: str
    offset: int
    # Whether the payload is what was pushed under this id.
    intact: bool
    start: float
    end: float


@dataclass(frozen=True)
class Ack:
    """One message acked as completed."""

    group: str
    id: str
    start: float
    # When success was answered; None when no answer was heard, so that it may or may not have happened.
    end: float | None


@dataclass
class History:
    """Everything that was seen. Deliveries stand in the order in which they arrived."""

    groups: tuple
    pushes: list = field(default_factory=list)
    deliveries: list = field(default_factory=list)
    acks: list = field(default_factory=list)


@dataclass(frozen=True)
class Violation:
    """One broken promise."""

    promise: str
    detail: str


def check(history):
    """The promises that this history, which ends with every group having read all there is, breaks."""
    return [
        *invented(history),
        *lost(history),
        *repeated_id(history),
        *reordered_offsets(history),
        *reordered_deliveries(history),
        *acked_and_delivered_again(history),
    ]


def invented(history):
    """Messages that nobody pushed, or not there, or not with that payload."""
    pushed = {}
    for push in history.pushes:
        for id in push.ids:
            pushed[id] = push
    for delivery in history.deliveries:
        push = pushed.get(delivery.id)
        if push is None:
            yield Violation("invented", f"{delivery.id} was never pushed")
        elif push.partition != delivery.partition:
            yield Violation(
                "invented", f"{delivery.id} was pushed to {push.partition}, came from {delivery.partition}"
            )
        elif delivery.end < push.start:
            yield Violation("invented", f"{delivery.id} was delivered before it was pushed")
        elif not delivery.intact:
            yield Violation("invented", f"{delivery.id} came with another payload")


def lost(history):
    """Accepted messages that a group never received, or received, never finished, and never received again."""
    delivered = {(delivery.group, delivery.id) for delivery in history.deliveries}
    tried = {(ack.group, ack.id) for ack in history.acks}
    for push in history.pushes:
        if push.end is None:
            continue
        for id in push.ids:
            for group in history.groups:
                if (group, id) not in delivered:
                    yield Violation("lost", f"{id} was accepted and never delivered to {group}")
                elif (group, id) not in tried:
                    yield Violation("lost", f"{id} was delivered to {group}, never acked, and is gone")


def repeated_id(history):
    """Transaction ids under which two messages were stored."""
    offsets = {}
    for delivery in history.deliveries:
        known = offsets.setdefault(delivery.id, delivery.offset)
        if known != delivery.offset:
            yield Violation("one id, one message", f"{delivery.id} stands at {known} and at {delivery.offset}")


def reordered_offsets(history):
    """Places in a partition that were given twice, or against the order of the pushes."""
    places = {}
    for delivery in history.deliveries:
        known = places.setdefault((delivery.partition, delivery.offset), delivery.id)
        if known != delivery.id:
            yield Violation(
                "order", f"{delivery.partition} has both {known} and {delivery.id} at {delivery.offset}"
            )
    pushed = _pushed(history)
    fronts = {}
    for (partition, _), id in sorted(places.items()):
        if id in pushed:
            front = fronts.setdefault(partition, _Front())
            if other := front.overtook(pushed[id]):
                yield Violation("order", f"{partition} stores {other} before {id}, pushed earlier")
            front.add(pushed[id])


def reordered_deliveries(history):
    """First deliveries to a group that came against the order of the pushes."""
    pushed = _pushed(history)
    first = {}
    for delivery in history.deliveries:
        if delivery.id in pushed:
            first.setdefault((delivery.group, delivery.partition), {}).setdefault(delivery.id, delivery)
    for (group, partition), deliveries in first.items():
        for id, other in _overtaken(list(deliveries.values()), pushed):
            yield Violation("order", f"{group} got {other} of {partition} before {id}, pushed earlier")


def _overtaken(deliveries, pushed):
    """Pairs (id, other): the other surely came first, earlier in the same answer or in an earlier one."""
    answers = {}
    for delivery in deliveries:
        front = answers.setdefault((delivery.start, delivery.end), _Front())
        if other := front.overtook(pushed[delivery.id]):
            yield delivery.id, other
        front.add(pushed[delivery.id])
    earlier = _Front()
    ended = iter(sorted(deliveries, key=lambda delivery: delivery.end))
    following = next(ended, None)
    for delivery in sorted(deliveries, key=lambda delivery: delivery.start):
        while following is not None and following.end < delivery.start:
            earlier.add(pushed[following.id])
            following = next(ended, None)
        if other := earlier.overtook(pushed[delivery.id]):
            yield delivery.id, other


def acked_and_delivered_again(history):
    """Messages that came again after success was answered to their ack."""
    finished = {}
    for ack in history.acks:
        if ack.end is not None:
            key = (ack.group, ack.id)
            finished[key] = min(ack.end, finished.get(key, ack.end))
    for delivery in history.deliveries:
        end = finished.get((delivery.group, delivery.id))
        if end is not None and delivery.start > end:
            yield Violation("acked is done", f"{delivery.id} came to {delivery.group} again after its ack")


@dataclass(frozen=True)
class _Pushed:
    """One message's place among the pushes."""

    id: str
    request: int
    index: int
    start: float
    end: float | None


def _pushed(history):
    return {
        id: _Pushed(id, request, index, push.start, push.end)
        for request, push in enumerate(history.pushes)
        for index, id in enumerate(push.ids)
    }


class _Front:
    """How far a reader has come: the latest push it has seen, and the last item of each request."""

    def __init__(self):
        self.latest = None
        self.last_of_request = {}

    def add(self, message):
        if self.latest is None or message.start > self.latest.start:
            self.latest = message
        last = self.last_of_request.get(message.request)
        if last is None or message.index > last.index:
            self.last_of_request[message.request] = message

    def overtook(self, message):
        """A message already seen that must not stand before this one, if there is one: a later item of the same
        request, or one that was sent after this one was answered."""
        last = self.last_of_request.get(message.request)
        if last is not None and last.index > message.index:
            return last.id
        if self.latest is not None and message.end is not None and message.end < self.latest.start:
            return self.latest.id
        return None
