"""The events of a stack: deliveries, view changes, violations, notices; and the statistics of a running member."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Protocol, TypeAlias

from unisono.errors import InvalidOption
from unisono.model.delays import Histogram
from unisono.model.timing import Timing
from unisono.model.units import checked_member, duration_text


class Grade(Enum):
    """EARLY: on time, possibly corrected later. FINAL: agreed by all members. The value is the token in traces."""

    EARLY = "early"
    FINAL = "final"


GRADES = ("early", "final", "both")
"""The values of the option `grades`: deliveries as the order produces them, only agreed ones, or both for each."""


@dataclass(frozen=True, slots=True)
class View:
    """The members, in the order in which a slot delivers their messages. The view begins at `first_slot`."""

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
        """The view after `member` has departed."""
        return View(tuple(m for m in self.members if m != member), first_slot)


POSITIONS_PER_SENDER = 1 << 32
"""A message's position in its slot is sender · 2³² + its number among the sender's messages of that slot."""


class PackedMessages(Protocol):
    """Messages packed into one buffer. They are unpacked only on demand."""

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


@dataclass(frozen=True, slots=True)
class Delivery:
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

    @property
    def id(self) -> tuple[int, int, int]:
        """(sender, incarnation, sequence): unique among all messages of the group."""
        return self.sender, self.incarnation, self.sequence


@dataclass(slots=True)
class Batch:
    """Consecutive deliveries from one sender in one slot: the unit in which the order is decided."""

    sender: int
    incarnation: int
    slot: int
    first_sequence: int
    first_position: int
    first_index: int
    count: int
    packed_messages: list[PackedMessages]
    priority: int | None = None
    """The priority, in the priority order. There, a batch is one message, and `slot` its number in the agreed order."""
    grade: Grade | None = None
    """The grade, in a group that delivers each message twice."""

    @property
    def messages(self) -> list[bytes]:
        """The payloads, in order."""
        if len(self.packed_messages) == 1:
            return self.packed_messages[0].messages()
        return [message for packed in self.packed_messages for message in packed.messages()]

    @property
    def payload_bytes(self) -> int:
        """The total size of the payloads."""
        return sum(packed.payload_bytes for packed in self.packed_messages)

    def sizes(self) -> list[int]:
        """The sizes of the payloads, in order."""
        return [size for packed in self.packed_messages for size in packed.sizes()]

    def deliveries(self) -> list[Delivery]:
        """The messages as single deliveries."""
        first, sender, slot = self.first_sequence, self.sender, self.slot
        rest = (self.incarnation, self.priority, self.grade)
        return [Delivery(sender, first + i, slot, payload, *rest) for i, payload in enumerate(self.messages)]


@dataclass(frozen=True, slots=True)
class ViewChange:
    """The membership from `view.first_slot` on. Reported between two slots.

    Without failures, all members report it at the same point of the order. With failures, each member detects departed
    members by itself.
    """

    view: View
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    view_id: int | None = None
    """The number of an agreed view (virtual synchrony). All members install the same views in this order."""
    incarnations: tuple[int, ...] = ()
    """The incarnations of an agreed view's members, in the order of the members."""
    blocked_ns: int = 0
    """How long the change of agreed views blocked deliveries at this member."""


@dataclass(frozen=True, slots=True)
class TimingChange:
    """Slots have another length from `slot` on. Reported before the first message of that slot.

    `bound_ns` is the latency bound from there on.
    """

    slot: int
    timing: Timing
    bound_ns: int


class ViolationKind(StrEnum):
    """The assumption that did not hold. The value is the token that traces and JSON lines carry; it never changes."""

    BLOCKED = "blocked"
    """No majority of the group is reachable: nothing can be agreed on."""
    CANNOT_HOLD = "cannot_hold"
    """A layer has no setting with which it can keep a service level agreement."""
    CLOCK = "clock"
    """A member's clock is off by more than Γ."""
    DEADLINE = "deadline"
    """The application did not keep up with the deliveries."""
    DEPOSED = "deposed"
    """This member led the group and has stepped down."""
    EXCLUDED = "excluded"
    """The group continues without this member."""
    FENCED_OUT = "fenced_out"
    """The group refuses this incarnation of the member."""
    HELD_UP = "held_up"
    """Deliveries wait for another group's barrier."""
    LATE = "late"
    """A datagram, or a member's end of slot, arrived later than Δ+Γ allows."""
    LATE_JOIN = "late_join"
    """A JOIN arrived after the slot that it names."""
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
    """A member's new rate does not fit."""
    RECEIVE_BUFFER = "receive_buffer"
    """The operating system grants less buffer than a burst needs."""
    RESERVATION = "reservation"
    """A reserved rate no longer fits the slots."""
    RESERVATION_REFUSED = "reservation_refused"
    """A requested rate was refused."""
    RESTARTED = "restarted"
    """A member restarted while the group formed."""
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
    """A member times out repeatedly."""


class NoticeKind(StrEnum):
    """The subject of a notice. The value is the token that traces and JSON lines carry; it never changes."""

    ADAPTED = "adapted"
    """The group uses other settings."""
    DEMAND = "demand"
    """This member needs other settings."""
    REJOINING = "rejoining"
    """This member rejoins by itself."""
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
    """How far that clock is ahead of ours, at least; negative if behind, 0 if only the other member knows."""

    @classmethod
    def of(cls, peer: int, off_ns: int, gamma_ns: int, outcome: str) -> ClockViolation:
        """The violation with its text; `outcome` is the consequence."""
        difference = "differs from ours by more"
        if off_ns:
            difference = f"is {duration_text(abs(off_ns))} {'ahead of' if off_ns > 0 else 'behind'} ours, more"
        text = f"member {peer}'s clock {difference} than Γ = {duration_text(gamma_ns)}: {outcome}"
        return cls(ViolationKind.CLOCK, text, peer, off_ns=off_ns)


@dataclass(frozen=True, slots=True)
class Blocked(Violation):
    """An agreed view has ended and no next one can be agreed on: this member is partitioned from the majority.

    It delivers nothing until a ViewChange follows, or until it learns that the others have excluded it.
    """

    view_id: int = 0
    """The view that has ended."""
    reachable: tuple[int, ...] = ()
    """The reachable members of that view, this one included."""


@dataclass(frozen=True, slots=True)
class SlaViolation(Violation):
    """A service level agreement was not kept in a window. `offered` is the best that is still possible, if known."""

    sla: str = ""
    metric: str = ""
    bound: float = 0.0
    measured: float = 0.0
    """For a spread, the share of values within the bound; otherwise the metric's value."""
    probability: float = 0.0
    link: int = 0
    """The peer with the worst link; 0 if the metric does not concern a link."""
    window_start_ns: int = 0
    window_ns: int = 0
    offered: str = ""
    id: str = ""
    """A unique id of 16 hexadecimal digits, if the verdict is on the whole group."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Information for the application; every guarantee holds."""

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
    """The last position in the order that the previous incarnation reached."""


@dataclass(frozen=True, slots=True)
class SlaCleared(Notice):
    """A service level agreement is kept again after a violation."""

    sla: str = ""
    window_start_ns: int = 0
    window_ns: int = 0
    id: str = ""


@dataclass(frozen=True, slots=True)
class TopologyChange(Notice):
    """The topology has changed for this member's group, at one point of its agreed sequence (paper 003).

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
        """The notice with its text."""
        lists = [", ".join(names) or "no group" for names in (sends_to, receives_from, communicates_with)]
        text = f"sends to {lists[0]}; receives from {lists[1]}; exchanges datagrams with {lists[2]}"
        return cls(NoticeKind.TOPOLOGY, text, member, None, sends_to, receives_from, complete, communicates_with)


SlaVerdict: TypeAlias = SlaViolation | SlaCleared
"""A reported verdict on an agreement."""


@dataclass(frozen=True, slots=True)
class SettingsAgreed:
    """All members know the settings that `sender` requests, and apply them from `slot` on. Not for the application.

    This member applies them from `local_slot` on: the same slot, unless it joined later.
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
class Gap:
    """This member skips the rest of the messages of `sender` in `slot`: they were lost, or the sender failed.

    For the trace only, not for the application: the skipped part may be empty.
    """

    sender: int
    incarnation: int
    """The sender's incarnation; 0 if this member never received a frame from it."""
    slot: int


@dataclass(frozen=True, slots=True)
class QueueStep:
    """A message was received, or `queued` in the consumable queue (paper 004). For the trace only.

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


StackEvent: TypeAlias = Batch | ViewChange | TimingChange | Violation | Notice | LeaveComplete | Gap | QueueStep


class RemainingMessages:
    """Messages that are already unpacked, with the interface of `PackedMessages`."""

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
        """The messages, in order."""
        return self._messages

    def sizes(self) -> list[int]:
        """The size of each message."""
        return list(map(len, self._messages))


def remaining(batch: Batch, deliveries: Sequence[Delivery]) -> Batch:
    """The part of a batch that consists of its last `deliveries`."""
    delivered = batch.count - len(deliveries)
    return replace(
        batch,
        first_sequence=batch.first_sequence + delivered,
        first_position=batch.first_position + delivered,
        first_index=batch.first_index + delivered,
        count=len(deliveries),
        packed_messages=[RemainingMessages([delivery.payload for delivery in deliveries])],
    )


@dataclass(frozen=True, slots=True)
class Stats:
    """Measurements of a running member about itself and its network."""

    sent: int
    delivered: int
    bound_ns: int
    delays: Histogram
    """One-way delays of end-of-slot marks; they include the difference of the clocks."""
    lateness: Histogram
    """How late this member's timers fired."""
    gamma_ns: int | None
    """The largest difference between clocks, errors included; None until every peer has answered a probe."""
    refused: Mapping[str, int]
    """Refused datagrams, by reason."""
    ignored: Mapping[str, int]
    """Valid frames that were not used, by reason."""
    dropped: int
    """Datagrams that the kernel dropped because the receive buffer was full."""
    errors: Mapping[str, int]
    """Datagrams that could not be sent, by the error of the operating system."""
    multicast: bool
    """Whether this member sends its data by IP multicast."""
    order: str = "vbr"
    gap_free: bool = True
    """Whether deliveries, or with two grades the final deliveries, are guaranteed to have no gaps."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """The counters of this member's parts, by "part.name" such as "fec.recovered"; docs/monitoring.md lists them."""
