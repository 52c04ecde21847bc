"""The events of a stack: deliveries, view changes, violations, notices; and the statistics of a running member."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from itertools import count as count_from
from itertools import repeat
from typing import NamedTuple, Protocol, TypeAlias

from unisono.errors import InvalidOption
from unisono.model.delays import Histogram
from unisono.model.timing import Timing
from unisono.model.units import checked_member, duration_text


class Grade(Enum):
    """The grade of a delivery. EARLY: on time, possibly corrected later. FINAL: all members agree on it.

    The value of each grade is its token in traces.
    """

    EARLY = "early"
    FINAL = "final"


GRADES = ("early", "final", "both")
"""The values of the option `grades`.

"early": deliveries as the order produces them. "final": only deliveries that all members agree on. "both": each message
once in each grade.
"""


@dataclass(frozen=True, slots=True)
class View:
    """The members of a group from `first_slot` on, in the order in which a slot's messages are delivered."""

    members: tuple[int, ...]
    first_slot: int = 0

    def __post_init__(self) -> None:
        if not self.members:
            raise InvalidOption("members", "expected at least one member, got none")
        for member in self.members:
            checked_member(member)
        if list(self.members) != sorted(set(self.members)):
            raise InvalidOption("members", f"expected ascending member numbers, each once, got {self.members}")

    def without(self, member: int, first_slot: int) -> View:
        """The view that begins at `first_slot`, after `member` has departed."""
        return View(tuple(m for m in self.members if m != member), first_slot)


POSITIONS_PER_SENDER = 1 << 32
"""A message's position in its slot is sender · 2³² + its number among the sender's messages of that slot."""


class PackedMessages(Protocol):
    """Several messages packed into one buffer. They are unpacked only when `messages` is called."""

    @property
    def count(self) -> int:
        """The number of messages."""

    @property
    def payload_bytes(self) -> int:
        """The total size of the messages."""

    def messages(self) -> list[bytes]:
        """The messages, in the order in which they were sent."""

    def sizes(self) -> Sequence[int]:
        """The size of each message, without unpacking them."""


class Delivery(NamedTuple):  # one is created for each message, several times as fast as a frozen dataclass
    """One delivered message."""

    sender: int
    sequence: int
    slot: int
    payload: bytes
    incarnation: int = 0
    """The sender's incarnation. A member that restarts counts its messages from 0 again."""
    priority: int | None = None
    """The priority, in the priority order; None in the other orders."""
    grade: Grade | None = None
    """The grade, in a group that delivers each message twice; None if messages are delivered once."""
    late: bool = False
    """Whether the message may have been sent by a time that `Group.complete_until` has returned already.

    Only final deliveries can be late. A message is late at all members or at none.
    """

    @property
    def id(self) -> tuple[int, int, int]:
        """The triple (sender, incarnation, sequence), which is unique among all messages of the group."""
        return self.sender, self.incarnation, self.sequence

    def __eq__(self, other: object) -> bool:
        """Whether both are deliveries with the same values; a delivery never equals a plain tuple."""
        return isinstance(other, Delivery) and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        """Whether the other object is no delivery, or one with another value."""
        return not self == other

    def __hash__(self) -> int:
        return tuple.__hash__(self)


_new_delivery: Callable[[type[Delivery], Iterable[object]], Delivery] = tuple.__new__
"""Makes a Delivery from all its values without running Python code; `Delivery` itself checks their number."""


@dataclass(slots=True)
class Batch:
    """Consecutive deliveries of one sender's messages in one slot. A stack reports deliveries in such batches."""

    sender: int
    incarnation: int
    slot: int
    first_sequence: int
    first_position: int
    first_index: int
    count: int
    packed_messages: list[PackedMessages]
    priority: int | None = None
    """The message's priority, in the priority order; None in the other orders.

    In the priority order a batch is one message, and `slot` is the message's number in the agreed order.
    """
    grade: Grade | None = None
    """The grade, in a group that delivers each message twice; None if messages are delivered once."""
    late: bool = False
    """Whether `Group.complete_until` may have passed these messages; see `Delivery.late`."""

    @property
    def messages(self) -> list[bytes]:
        """The payloads of the batch, in the order of delivery."""
        if len(self.packed_messages) == 1:
            return self.packed_messages[0].messages()
        return [message for packed in self.packed_messages for message in packed.messages()]

    @property
    def payload_bytes(self) -> int:
        """The total size of the batch's payloads in bytes."""
        return sum(packed.payload_bytes for packed in self.packed_messages)

    def sizes(self) -> list[int]:
        """The sizes of the batch's payloads in bytes, in the order of delivery."""
        return [size for packed in self.packed_messages for size in packed.sizes()]

    def deliveries(self) -> list[Delivery]:
        """The batch as a list with one Delivery per message."""
        return self.deliveries_of(self.messages, 0)

    def deliveries_of(self, payloads: Sequence[bytes], first: int) -> list[Delivery]:
        """The deliveries with these payloads, the first of which is message number `first` of this batch."""
        fields = zip(
            repeat(self.sender),
            count_from(self.first_sequence + first),
            repeat(self.slot),
            payloads,
            repeat(self.incarnation),
            repeat(self.priority),
            repeat(self.grade),
            repeat(self.late),
            strict=False,
        )
        return list(map(_new_delivery, repeat(Delivery), fields))


@dataclass(frozen=True, slots=True)
class ViewChange:
    """The group has the members of `view` from slot `view.first_slot` on. The event comes between two slots.

    Without failures, all members report it at the same point of the order. With failures, each member detects departed
    members by itself, so that point may differ.
    """

    view: View
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    view_id: int | None = None
    """The number of a view that the members agreed on (virtual synchrony); None otherwise.

    All members install the same views, in the order of these numbers.
    """
    incarnations: tuple[int, ...] = ()
    """The incarnations of the view's members, in the order of the members; empty if the view was not agreed on."""
    blocked_ns: int = 0
    """How long no message could be delivered at this member while it changed from one agreed view to the next."""


@dataclass(frozen=True, slots=True)
class TimingChange:
    """Slots have another length from `slot` on. The event comes before the first message of that slot.

    `bound_ns` is the latency bound from there on.
    """

    slot: int
    timing: Timing
    bound_ns: int


class ViolationKind(StrEnum):
    """The kind of a violation: the assumption that did not hold.

    The value of each kind is its token in traces and JSON lines. It never changes.
    """

    BLOCKED = "blocked"
    """No majority of the group is reachable: nothing can be agreed on."""
    CANNOT_HOLD = "cannot_hold"
    """Adaptation finds no settings with which a layer can keep a service level agreement."""
    CLOCK = "clock"
    """A member's clock is off by more than Γ."""
    DEADLINE = "deadline"
    """A change of the slot length made the latency bound longer than the deadline that this member asked for."""
    DEPOSED = "deposed"
    """This member led the group and has stepped down."""
    EXCLUDED = "excluded"
    """The group continues without this member."""
    FENCED_OUT = "fenced_out"
    """The other members refuse this incarnation of this member."""
    HELD_UP = "held_up"
    """Deliveries wait for another group's barrier."""
    LATE = "late"
    """A datagram, or a member's end of slot, arrived later than Δ+Γ allows."""
    LATE_DELIVERY = "late_delivery"
    """Messages were delivered later than the deadline that this member asked for."""
    LATE_JOIN = "late_join"
    """A member's announcement that it joins (JOIN) arrived after the slot at which the member wants to start."""
    LEADER_LOST = "leader_lost"
    """The leader no longer responds."""
    LOST = "lost"
    """A layer has lost messages and does not wait for them any more."""
    MEMORY_LOST = "memory_lost"
    """A member restarted without its storage."""
    MULTICAST = "multicast"
    """IP multicast does not work here."""
    NO_MAJORITY = "no_majority"
    """No leader can be elected."""
    NOT_RELATED = "not_related"
    """A message names a group that its sender may no longer send to."""
    NUMBER_TAKEN = "number_taken"
    """Another process uses this member's number."""
    OWN_CLOCK = "own_clock"
    """Most other clocks differ from this member's by more than Γ."""
    PAUSED = "paused"
    """This member was suspended for a while."""
    POLICY_DIFFERS = "policy_differs"
    """Two members have different settings."""
    RATE_REFUSED = "rate_refused"
    """The network has no room for a member's new rate."""
    RECEIVE_BUFFER = "receive_buffer"
    """The operating system grants less buffer than a burst needs."""
    RESERVATION = "reservation"
    """A member's reserved rate no longer fits after the slot length changed."""
    RESERVATION_REFUSED = "reservation_refused"
    """The network refused a requested reservation."""
    RESTARTED = "restarted"
    """A member restarted after the group had formed; this group cannot add it again."""
    SLA = "sla"
    """A service level agreement was not kept at one member."""
    SLOTS = "slots"
    """Two parts of a divided group numbered their slots differently."""
    SOCKET = "socket"
    """The operating system refused to send or receive."""
    SYSTEM_SLA = "system_sla"
    """A service level agreement was not kept in the whole group."""
    TOO_FAR_BEHIND = "too_far_behind"
    """A member lacks messages that no other member stores any more."""
    UNSETTLED = "unsettled"
    """This member ended without a final delivery of all its early ones."""
    UNSTEADY = "unsteady"
    """The other members time out one member again and again."""


class NoticeKind(StrEnum):
    """The kind of a notice: its subject.

    The value of each kind is its token in traces and JSON lines. It never changes.
    """

    ADAPTED = "adapted"
    """Adaptation changed the settings that the group uses."""
    DEMAND = "demand"
    """This member needs other settings than the group uses, and requests them."""
    REJOINING = "rejoining"
    """The others excluded this member; it rejoins by itself."""
    SLA_CLEARED = "sla_cleared"
    """One member's service level agreement is kept again."""
    SYSTEM_SLA_CLEARED = "system_sla_cleared"
    """The whole group's service level agreement is kept again."""
    TOPOLOGY = "topology"
    """The groups that this member's group may send to have changed."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An assumption behind the guarantees did not hold. `text` explains it to the user; programs use `kind`."""

    kind: ViolationKind
    text: str
    member: int | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class ClockViolation(Violation):
    """A member's clock is off by more than Γ (`ViolationKind.CLOCK`)."""

    off_ns: int = 0
    """How far that clock is at least ahead of this member's. Negative if it is behind; 0 if only the other member
    knows."""

    @classmethod
    def of(cls, peer: int, off_ns: int, gamma_ns: int, outcome: str) -> ClockViolation:
        """The violation for the clock of member `peer`. `outcome` says in words what follows from it."""
        difference = "differs from ours by more"
        if off_ns:
            difference = f"is {duration_text(abs(off_ns))} {'ahead of' if off_ns > 0 else 'behind'} ours, more"
        text = f"member {peer}'s clock {difference} than Γ = {duration_text(gamma_ns)}: {outcome}"
        return cls(ViolationKind.CLOCK, text, peer, off_ns=off_ns)


@dataclass(frozen=True, slots=True)
class LateDeliveries(Violation):
    """Messages of one sender were delivered later than the deadline (`ViolationKind.LATE_DELIVERY`).

    The event follows the first late delivery of the sender at once. After that there is at most one event per sender
    and second, for all late deliveries since the last one. `member` is the sender, and `slot` the slot of the first of
    these messages. With two grades only early deliveries count.
    """

    count: int = 0
    """How many deliveries were late."""
    late_by_ns: int = 0
    """By how much the latest one missed the deadline, at least. A message counts as sent at the end of its slot, by a
    clock that is ahead by Γ: the true delay is longer by up to a slot and 2Γ."""

    @classmethod
    def of(cls, sender: int, slot: int, count: int, late_by_ns: int) -> LateDeliveries:
        """The violation for `count` late deliveries, with a text that describes them."""
        latest = f"the latest one at least {duration_text(late_by_ns)} after the deadline"
        text = f"late deliveries of messages of member {sender}: {count}, {latest}"
        return cls(ViolationKind.LATE_DELIVERY, text, sender, slot, count, late_by_ns)


@dataclass(frozen=True, slots=True)
class Blocked(Violation):
    """An agreed view has ended and the members have not agreed on the next one for a while; the text says why.

    In most cases this member is partitioned from the majority. It delivers nothing until a ViewChange follows, or until
    it learns that the others have excluded it.
    """

    view_id: int = 0
    """The number of the agreed view that has ended."""
    reachable: tuple[int, ...] = ()
    """The members of the ended view that this member can reach, itself included."""


@dataclass(frozen=True, slots=True)
class SlaViolation(Violation):
    """A service level agreement was not kept in a window. `offered` is the best that is still possible, if known."""

    sla: str = ""
    metric: str = ""
    bound: float = 0.0
    measured: float = 0.0
    """The measured value. For a metric with many values in a window, the share of them that kept the bound."""
    probability: float = 0.0
    link: int = 0
    """The peer with the worst link; 0 if the metric does not concern a link."""
    window_start_ns: int = 0
    window_ns: int = 0
    offered: str = ""
    id: str = ""
    """A unique id of 16 hexadecimal digits for a violation in the whole group; empty for one member's violation."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Information for the application. Unlike a Violation, it means that every guarantee still holds."""

    kind: NoticeKind
    text: str
    member: int | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class Rejoining(Notice):
    """The others have excluded this member. It rejoins by itself as a new incarnation.

    A ViewChange with this member in `joined` follows when it is back and has received another member's state.
    """

    incarnation: int = 0
    """The new incarnation. It counts its messages from 0 again."""
    final_slot: int = 0
    """The number, in the agreed order, of the last message that the previous incarnation delivered."""


@dataclass(frozen=True, slots=True)
class SlaCleared(Notice):
    """A service level agreement is kept again after a violation."""

    sla: str = ""
    window_start_ns: int = 0
    window_ns: int = 0
    id: str = ""


@dataclass(frozen=True, slots=True)
class TopologyChange(Notice):
    """The topology has changed for this member's group, at the same point of the order for all its members (paper 003).

    From here on the group may send to `sends_to` and waits for messages of `receives_from`. `complete` means that the
    other groups have applied the whole requested change.
    """

    sends_to: tuple[str, ...] = ()
    receives_from: tuple[str, ...] = ()
    complete: bool = True
    talks_with: tuple[str, ...] = ()
    """The groups that this member exchanges datagrams with until all pending messages are delivered."""

    @classmethod
    def of(
        cls,
        member: int,
        sends_to: tuple[str, ...],
        receives_from: tuple[str, ...],
        communicates_with: tuple[str, ...],
        complete: bool,
    ) -> TopologyChange:
        """The notice for these groups, with a text that lists them."""
        lists = [", ".join(names) or "no group" for names in (sends_to, receives_from, communicates_with)]
        text = f"sends to {lists[0]}; receives from {lists[1]}; exchanges datagrams with {lists[2]}"
        return cls(NoticeKind.TOPOLOGY, text, member, None, sends_to, receives_from, complete, communicates_with)


SlaVerdict: TypeAlias = SlaViolation | SlaCleared
"""A report about a service level agreement: it is violated, or kept again."""


@dataclass(frozen=True, slots=True)
class SettingsAgreed:
    """All members know the settings that `sender` requests, and apply them from `slot` on.

    This member applies them from `local_slot` on: the same slot, unless it joined later. The application does not get
    this event.
    """

    sender: int
    request: bytes
    slot: int
    local_slot: int


@dataclass(frozen=True, slots=True)
class LeaveComplete:
    """This member has left the group: every message that it accepted has been sent, and delivered here."""

    final_slot: int


@dataclass(frozen=True, slots=True)
class SlotSkipped:
    """This member skips the rest of the messages of `sender` in `slot`: they were lost, or the sender failed.

    The trace records this event. The application does not get it, because the skipped part may be empty. It gets a
    `Gap` when the sender's next frame shows which messages are missing.
    """

    sender: int
    incarnation: int
    """The sender's incarnation; 0 if this member never received a frame from it."""
    slot: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages of one sender are missing at this member: they were lost, arrived too late, or were sent during a cut.

    The event comes before the sender's next delivery. With two grades it concerns the early deliveries only. Messages
    from before this member joined are not reported.
    """

    sender: int
    incarnation: int
    slot: int
    """The first slot of which messages may be missing."""
    first: int | None
    """The sequence number of the first missing message. None if this member knows no earlier message of the sender: the
    missing messages begin in `slot`."""
    last: int | None
    """The sequence number of the last missing message.

    None if the sender timed out: an unknown number of its last messages is missing, possibly none. If the same
    incarnation returns, another Gap with the same `first` has the number.
    """

    @property
    def count(self) -> int | None:
        """The number of missing messages; None if it is unknown."""
        return None if self.first is None or self.last is None else self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class QueueStep:
    """A member of the priority order received a message or, if `queued`, put it into its consumable queue (paper 004).

    `number` counts the member's steps. The member had consumed `consumed` messages and was at `position` in the agreed
    order. `detail` is the target tail of a received message, or the insertion point of a queued one. `view` is the
    agreed view in which the message was received; None if it arrived with the state of another member.
    """

    queued: bool
    sender: int
    incarnation: int
    sequence: int
    priority: int
    number: int
    consumed: int
    position: int
    detail: str
    view: int | None = None


Event: TypeAlias = Delivery | ViewChange | TimingChange | Gap | Violation | Notice
"""The events that an iteration over a group yields."""
StackEvent: TypeAlias = (
    Batch | ViewChange | TimingChange | Gap | Violation | Notice | LeaveComplete | SlotSkipped | QueueStep
)


class RemainingMessages:
    """The remaining messages of a batch, already unpacked. The interface is that of `PackedMessages`."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self._messages)

    @property
    def payload_bytes(self) -> int:
        """The total size of the messages."""
        return sum(map(len, self._messages))

    def messages(self) -> list[bytes]:
        """The messages, in the order of delivery."""
        return self._messages

    def sizes(self) -> list[int]:
        """The size of each message."""
        return list(map(len, self._messages))


def remaining(batch: Batch, payloads: list[bytes]) -> Batch:
    """The part of a batch that consists of its last messages, which have these payloads."""
    delivered = batch.count - len(payloads)
    return replace(
        batch,
        first_sequence=batch.first_sequence + delivered,
        first_position=batch.first_position + delivered,
        first_index=batch.first_index + delivered,
        count=len(payloads),
        packed_messages=[RemainingMessages(payloads)],
    )


@dataclass(frozen=True, slots=True)
class Stats:
    """Measurements of a running member about itself and its network."""

    sent: int
    delivered: int
    bound_ns: int
    delays: Histogram
    """One-way delays of the end-of-slot marks that arrived; they include the difference between the two clocks."""
    lateness: Histogram
    """How long after their due time this member's timers fired."""
    gamma_ns: int | None
    """The largest difference between clocks, errors included; None until every peer has answered a probe."""
    refused: Mapping[str, int]
    """The number of datagrams that this member refused as invalid, by reason."""
    ignored: Mapping[str, int]
    """The number of valid frames that this member did not use, by reason."""
    dropped: int
    """The number of datagrams that the kernel dropped because the receive buffer was full."""
    errors: Mapping[str, int]
    """The number of datagrams that could not be sent, by the error of the operating system."""
    multicast: bool
    """Whether this member sends its data by IP multicast."""
    order: str = "vbr"
    late: int = 0
    """The deliveries that were certainly later than the deadline, or than the bound if there is no deadline."""
    gap_free: bool = True
    """Whether deliveries, or with two grades the final deliveries, are guaranteed to have no gaps."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """The counters of this member's parts, by "part.name" such as "fec.recovered"; docs/monitoring.md lists them."""


@dataclass(slots=True)
class Sending:
    """Counts the messages that the group accepts from the calls of `send_many` that get this object."""

    accepted: int = 0
    """How many messages the group has accepted from calls that have ended, also by cancellation or by an error.

    From each call these are the first messages. The group sends them, and none of the others.
    """
