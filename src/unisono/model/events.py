"""What a stack hands out to the application."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from unisono.model.durations import duration_text
from unisono.model.grades import Grade
from unisono.model.timing import Timing
from unisono.model.views import View

POSITIONS_PER_SENDER = 1 << 32
"""A message's place in its slot is sender · 2³² + its number among the sender's messages of the slot."""


class PackedMessages(Protocol):
    """Messages that travelled together, taken apart only when somebody asks for them."""

    @property
    def count(self) -> int:
        """How many messages there are."""

    @property
    def payload_bytes(self) -> int:
        """How much payload they are together."""

    def messages(self) -> list[bytes]:
        """The messages, in the order in which they were sent."""

    def sizes(self) -> Sequence[int]:
        """Their sizes, without taking them apart."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message, delivered."""

    sender: int
    sequence: int
    slot: int
    payload: bytes
    incarnation: int = 0
    """The sender's life: a member that restarts counts its messages from 0 again."""
    priority: int | None = None
    """In the priority order; others do not carry it."""
    grade: Grade | None = None
    """Where messages are delivered twice, which of the two this is; None where they are delivered once."""

    @property
    def id(self) -> tuple[int, int, int]:
        """(sender, incarnation, sequence): no other multicast of the group ever has it."""
        return self.sender, self.incarnation, self.sequence


@dataclass(slots=True)
class Batch:
    """Consecutive deliveries from one sender in one slot: the unit in which order is decided."""

    sender: int
    incarnation: int
    slot: int
    first_sequence: int
    first_position: int
    first_index: int
    count: int
    packed_messages: list[PackedMessages]
    priority: int | None = None
    """In the priority order, where a batch is one message, and its slot the message's number in the agreed order."""
    grade: Grade | None = None
    """Where messages are delivered twice, which of the two this is."""

    @property
    def messages(self) -> list[bytes]:
        """The payloads, in order."""
        if len(self.packed_messages) == 1:
            return self.packed_messages[0].messages()
        return [message for run in self.packed_messages for message in run.messages()]

    @property
    def payload_bytes(self) -> int:
        """How much payload there is."""
        return sum(run.payload_bytes for run in self.packed_messages)

    def sizes(self) -> list[int]:
        """The payloads' sizes, in order."""
        return [size for run in self.packed_messages for size in run.sizes()]

    def deliveries(self) -> list[Delivery]:
        """One by one."""
        first, sender, slot, life = self.first_sequence, self.sender, self.slot, self.incarnation
        kind = (life, self.priority, self.grade)
        return [Delivery(sender, first + i, slot, payload, *kind) for i, payload in enumerate(self.messages)]


@dataclass(frozen=True, slots=True)
class ViewChange:
    """The membership from `view.first_slot` on; comes between two slots.

    Without failures that is the same place in the order at every member; with them each sees for itself who is gone.
    """

    view: View
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    view_id: int | None = None
    """Of an agreed view (virtual synchrony), its number; all members have the same views, in this order."""
    incarnations: tuple[int, ...] = ()
    """Of an agreed view, its members' incarnations, in the order of the members."""
    blocked_ns: int = 0
    """How long the change of agreed views kept messages from being handed out here."""


@dataclass(frozen=True, slots=True)
class TimingChange:
    """Slots have another length from `slot` on; comes between two slots, before the first message of that one.

    `bound_ns` is the latency that no message from there on exceeds.
    """

    slot: int
    timing: Timing
    bound_ns: int


class ViolationKind(StrEnum):
    """What did not hold. The value is the token that traces and JSON lines carry; it never changes."""

    BLOCKED = "blocked"
    """No majority of the group is reachable: nothing can be agreed on."""
    CANNOT_HOLD = "cannot_hold"
    """No setting of a layer keeps the agreement."""
    CLOCK = "clock"
    """A member's clock is off by more than Γ."""
    DEADLINE = "deadline"
    """The application did not keep up with the deliveries."""
    DEPOSED = "deposed"
    """This member led the group and does no longer."""
    EXCLUDED = "excluded"
    """The group went on without this member."""
    FENCED_OUT = "fenced_out"
    """The group refuses this incarnation of the member."""
    HELD_UP = "held_up"
    """Deliveries wait for another group's barrier."""
    LATE = "late"
    """A datagram, or a member's end of slot, came later than Δ+Γ allows."""
    LATE_JOIN = "late_join"
    """A JOIN came after the slot that it names."""
    LEADER_LOST = "leader_lost"
    """The leader no longer responds."""
    LOST = "lost"
    """A layer gives up messages."""
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
    """This member stood still and came back."""
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
    """A member lacks messages that nobody keeps any more."""
    UNSETTLED = "unsettled"
    """This member ended without a final delivery of all its early ones."""
    UNSTEADY = "unsteady"
    """A member times out again and again."""


class NoticeKind(StrEnum):
    """What a notice is about. The value is the token that traces and JSON lines carry; it never changes."""

    ADAPTED = "adapted"
    """The group uses other settings."""
    DEMAND = "demand"
    """This member needs other settings."""
    REJOINING = "rejoining"
    """This member joins again by itself."""
    SLA_CLEARED = "sla_cleared"
    """One member's service level agreement is kept again."""
    SYSTEM_SLA_CLEARED = "system_sla_cleared"
    """The whole group's service level agreement is kept again."""
    TOPOLOGY = "topology"
    """The groups that this member's group may send to have changed."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that the guarantees rest on did not hold; `text` says what and who, for a reader only."""

    kind: ViolationKind
    text: str
    member: int | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class ClockViolation(Violation):
    """A member's clock is off by more than Γ, of the kind "clock"."""

    off_ns: int = 0
    """How far it is ahead of ours at least, or (negative) behind; 0 where only the other knows."""

    @classmethod
    def of(cls, peer: int, off_ns: int, gamma_ns: int, outcome: str) -> ClockViolation:
        """As it is told; `outcome` is what follows from it."""
        found = "differs from ours by more"
        if off_ns:
            found = f"is {duration_text(abs(off_ns))} {'ahead of' if off_ns > 0 else 'behind'} ours, more"
        text = f"member {peer}'s clock {found} than Γ = {duration_text(gamma_ns)}: {outcome}"
        return cls(ViolationKind.CLOCK, text, peer, off_ns=off_ns)


@dataclass(frozen=True, slots=True)
class Blocked(Violation):
    """An agreed view has ended and no other can be agreed on: this member is cut off from the majority.

    It delivers nothing until a ViewChange follows, or it learns that the others went on without it and is out.
    """

    view_id: int = 0
    """The view that has ended."""
    reachable: tuple[int, ...] = ()
    """The members of that view that are still heard, this one included."""


@dataclass(frozen=True, slots=True)
class SlaViolation(Violation):
    """A service level agreement was not kept in a window; `offered` says what can still be had, where that is known."""

    sla: str = ""
    metric: str = ""
    bound: float = 0.0
    measured: float = 0.0
    """Of a spread the share of values within the bound, else the metric's value."""
    probability: float = 0.0
    link: int = 0
    """The peer whose link was worst; 0 if it is not about a link."""
    window_start_ns: int = 0
    window_ns: int = 0
    offered: str = ""
    id: str = ""
    """Of a verdict on the whole group: 16 hexadecimal digits that no other one has."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the application may want to know and that breaks no promise."""

    kind: NoticeKind
    text: str
    member: int | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class Rejoining(Notice):
    """The others went on without this member, which joins again by itself, in another incarnation.

    A ViewChange with this member in `joined` says when it is back; by then the state of another member was taken.
    """

    incarnation: int = 0
    """In which it comes back; its messages are counted from 0 again."""
    final_slot: int = 0
    """The last place in the order that it had reached."""


@dataclass(frozen=True, slots=True)
class SlaCleared(Notice):
    """A service level agreement is kept again, after a window in which it was not."""

    sla: str = ""
    window_start_ns: int = 0
    window_ns: int = 0
    id: str = ""


@dataclass(frozen=True, slots=True)
class TopologyChange(Notice):
    """Who may send to whom has changed for this member's group, at one point of what it agrees on (paper 003).

    To `sends_to` it may send from here on; `receives_from` are the groups that it waits for. `settled` once the other
    groups have followed in all that was wished for.
    """

    sends_to: tuple[str, ...] = ()
    receives_from: tuple[str, ...] = ()
    complete: bool = True
    talks_with: tuple[str, ...] = ()
    """The groups that this member exchanges datagrams with, until the end of all that is under way."""

    @classmethod
    def of(
        cls,
        member: int,
        sends_to: tuple[str, ...],
        receives_from: tuple[str, ...],
        communicates_with: tuple[str, ...],
        complete: bool,
    ) -> TopologyChange:
        """As it is told; `talks` are the groups that it exchanges datagrams with, to the end of what is under way."""
        said = (sends_to, receives_from, communicates_with)
        lists = [", ".join(names) or "nobody" for names in said]
        text = f"sends to {lists[0]}; receives from {lists[1]}; talks with {lists[2]}"
        return cls(NoticeKind.TOPOLOGY, text, member, None, sends_to, receives_from, complete, communicates_with)


SlaVerdict: TypeAlias = SlaViolation | SlaCleared
"""What is told of an agreement."""


@dataclass(frozen=True, slots=True)
class SettingsAgreed:
    """Everybody knows which settings a member needs, and goes by it from `slot` on.

    This member enters `entered`, which is that slot unless it was not there then. No concern of the application.
    """

    sender: int
    request: bytes
    slot: int
    local_slot: int


@dataclass(frozen=True, slots=True)
class LeaveComplete:
    """This member's own departure is complete: all that it accepted has been sent and delivered here."""

    final_slot: int


@dataclass(frozen=True, slots=True)
class Gap:
    """This member goes on without the rest of what `sender` sent in `slot`: it was lost, or its sender has failed.

    It is written down with what is delivered, and is no concern of the application: nothing may be missing at all.
    """

    sender: int
    incarnation: int
    """The sender's; 0 if it was never heard."""
    slot: int


@dataclass(frozen=True, slots=True)
class QueueStep:
    """A message's step into the consumable queue (paper 004): received, or `queued`. For the record only.

    `number` counts the member's steps; it had consumed `consumed` messages and was at `position` in the agreed order.
    `detail` names the target tail of what was received, the insertion point of what was queued; `view` is the agreed
    view in which it was received, none if it came with the state of another member.
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
