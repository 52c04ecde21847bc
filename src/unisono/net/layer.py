"""The contract of a layer, and code that several layers share.

A layer sits between the order and the network. It receives frames from above and from below, together with the local
clock reading, and appends its output to the lists `down` and `up`, which the stack empties. It knows nothing of
sockets and reads no clock. A layer says when it needs to be woken (`wake_at`) and is woken then (`wake`): the driver
sets one alarm for the whole stack.

`Service` is the base of the layers above reliable multicast, in net/services. `SequenceWindow` tells which messages of
a sender have arrived. The contracts `Order` and `Observer` are here because the stack needs them together with `Layer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from unisono.errors import InvalidOption
from unisono.model.events import SettingsAgreed, StackEvent, Violation, ViolationKind
from unisono.model.policy import FRAME_MIN, Policy
from unisono.model.status import Standing
from unisono.model.units import EVERYONE, Rate, group_key
from unisono.wire.door import Door, Refusal
from unisono.wire.frame import HEADER_BYTES, Frame, Kind, Nested

WINDOW = 1 << 15
"""How many numbers of one sender a SequenceWindow tracks, counted from the first missing number."""


class Timed(Protocol):
    """A part of the stack that may need to be woken."""

    def wake(self, now: int) -> None:
        """Do what is due at `now`, the present reading of the local clock."""

    def wake_at(self) -> int | None:
        """The clock reading at which `wake` must be called next, or None if nothing is due."""


class Layer(Timed, Protocol):
    """A layer between the order and the network."""

    name: ClassVar[str]
    """The layer's name in metric rows, service level agreements and dashboards."""
    wraps: frozenset[Kind]
    """The kinds of frames that the layer handles on their way down; all others bypass it."""
    opens: frozenset[Kind]
    """The kinds of frames that the layer handles on their way up; all others bypass it."""
    down: list[Frame]
    """Frames for the layer below, or for the network."""
    up: list[Frame]
    """Frames for the layer above, or for the order."""

    def from_above(self, now: int, frame: Frame) -> None:
        """Handle a frame that the layer above sends."""

    def from_below(self, now: int, frame: Frame) -> None:
        """Handle a frame that has arrived from the layer below."""

    def counters(self) -> Mapping[str, int]:
        """The layer's counters, by name."""


@dataclass(slots=True)
class LostMessages(Frame):
    """A layer passes this up when `count` messages, the last of them numbered `first_sequence`, are lost for good.

    The stack turns it into a violation for the application; orders and layers never see it.
    """

    count: int = 0
    reason: str = ""

    def to_violation(self) -> Violation:
        """The violation that the application receives."""
        noun = "message" if self.count == 1 else "messages"
        text = f"{self.count} {noun} of member {self.sender}, up to number {self.first_sequence}, {self.reason}"
        return Violation(ViolationKind.LOST, text, self.sender, self.slot)


# -- services --------------------------------------------------------------------------------------------------------


class Service(ABC):
    """Base of the layers that number the frames of the layer above: FIFO, causal and uniform delivery.

    A service wraps each frame for everyone, of any kind, in a frame of its own kind, so services compose in any order.
    Frames for a single member pass unchanged.
    """

    wraps = frozenset({Kind.DATA, Kind.FIFO, Kind.CAUSAL, Kind.UNIFORM})
    opens: frozenset[Kind]
    name: ClassVar[str]
    kind: Kind
    stamp_bytes_per_member = 0
    """The size of the stamp between this service's header and the wrapped frame, per member."""

    @classmethod
    def order_policy(cls, policy: Policy) -> Policy:
        """The policy for the layers above: their frames leave room for this service's header and stamp."""
        room = policy.max_frame - HEADER_BYTES - cls.stamp_bytes_per_member * len(policy.view.members)
        if room < FRAME_MIN:
            missing = FRAME_MIN - room
            text = f"the service {policy.order} needs {missing} more bytes per frame; raise max_frame"
            raise InvalidOption("max_frame", text)
        return replace(policy, max_frame=room)

    def __init__(self, policy: Policy) -> None:
        if policy.reliable is None:
            raise InvalidOption(
                "reliable",
                f"the service {policy.order} needs reliable multicast; give ρ, η and ω (option reliable)",
            )
        self.down: list[Frame] = []
        self.up: list[Frame] = []
        self.ignored: Counter[str] = Counter()
        """Frames that the door admitted but this layer did not use, by reason."""
        self._policy = policy
        self._redundancy = policy.reliable
        self._message_lifetime_ns = policy.reliable.message_lifetime_ns(
            len(policy.view.members), policy.timing.delta_ns
        )
        """A message still missing this long after a later one of its sender is lost (`message_lifetime_ns`)."""
        self._door = Door(group_key(policy.group), policy.member, policy.view.members)
        self._sequence = 0

    @abstractmethod
    def from_above(self, now: int, frame: Frame) -> None:
        """Handle a frame that the layer above sends."""

    @abstractmethod
    def from_below(self, now: int, frame: Frame) -> None:
        """Handle a frame that has arrived from the layer below."""

    @abstractmethod
    def wake(self, now: int) -> None:
        """Do what is due at `now`, such as skipping messages that are lost."""

    @abstractmethod
    def wake_at(self) -> int | None:
        """The clock reading at which `wake` must be called next, or None if nothing is due."""

    def counters(self) -> Mapping[str, int]:
        """The number of frames that this service did not use."""
        return {"ignored": self.ignored.total()}

    def _send_numbered(self, now: int, frame: Frame, stamp: bytes = b"") -> None:
        """Wrap a frame for everyone: a header with the next number, the service's own data (`stamp`), and the frame."""
        policy = self._policy
        self.down.append(
            Nested(
                self.kind,
                policy.member,
                policy.incarnation,
                policy.epoch,
                frame.slot,
                0,
                0,
                0,
                self._sequence,
                now,
                None,
                stamp,
                EVERYONE,
                frame.multicast,
                inner=frame,
            )
        )
        self._sequence += 1

    def _open(self, frame: Nested, stamp_bytes: int = 0) -> Frame | None:
        """The wrapped frame, which follows a stamp of this size; None if it is invalid, which is counted as ignored."""
        frame.start += stamp_bytes
        inner = self._door.open_nested(frame, frame.sender, frame.incarnation)
        if isinstance(inner, Refusal):
            self.ignored[f"contains: {inner}"] += 1
            return None
        return inner


class SequenceWindow:
    """The message numbers of one sender's incarnation that have arrived: a contiguous range, and numbers beyond it.

    A missing number counts as lost some time after a later number arrives (`add` sets the time), or when WINDOW later
    numbers have arrived.
    """

    __slots__ = ("_counted_from", "_holes", "floor", "highest", "seen")

    def __init__(self, first: int = 0, *, may_start_midstream: bool = False) -> None:
        """`first` is the first number to arrive. With `may_start_midstream`, earlier numbers do not count as lost."""
        self.floor = max(0, first - WINDOW + 1)
        """All numbers below this one have arrived or are lost."""
        self.highest = self.floor - 1
        self.seen: set[int] = set()
        """The numbers above the floor that have arrived."""
        self._counted_from = first if may_start_midstream else 0
        self._holes: deque[tuple[int, int]] = deque()
        """(time, number): at that time, all numbers before this one that have not arrived are lost."""

    def is_known(self, number: int) -> bool:
        """Whether a number has arrived or counts as lost."""
        return number < self.floor or number in self.seen

    def add(self, number: int, lost_at: int) -> list[int]:
        """Record a number that was not known. Missing numbers before it will count as lost at the time `lost_at`.

        Returns the numbers that are lost at once, because they are WINDOW or more behind.
        """
        if number > self.highest + 1:
            self._holes.append((lost_at, number))
        self.highest = max(self.highest, number)
        lost = self._mark_lost_before(number - WINDOW + 1)
        self.seen.add(number)
        self._advance_floor()
        return lost

    def next_loss_at(self) -> int | None:
        """When the next missing number will count as lost, or None."""
        holes = self._holes
        while holes and holes[0][1] <= self.floor:
            holes.popleft()
        return holes[0][0] if holes else None

    def expire(self, now: int) -> list[int]:
        """Return the numbers that are lost by now; of a range longer than WINDOW, only the last WINDOW."""
        lost: list[int] = []
        while (due := self.next_loss_at()) is not None and due <= now:
            lost += self._mark_lost_before(self._holes.popleft()[1])
        return lost

    def _mark_lost_before(self, before: int) -> list[int]:
        if before <= self.floor:
            return []
        first = max(self.floor, self._counted_from, before - WINDOW)
        lost = [number for number in range(first, before) if number not in self.seen]
        self.seen = {number for number in self.seen if number >= before}
        self.floor = before
        self._advance_floor()
        return lost

    def _advance_floor(self) -> None:
        while self.floor in self.seen:
            self.seen.remove(self.floor)
            self.floor += 1


# -- the contracts of the order and the observer ---------------------------------------------------------------------


NO_ROOM = (0, 0)
"""The answer of `Order.room` that promises nothing."""


class Order(Timed, Protocol):
    """The top of a stack: application messages go in, ordered deliveries come out."""

    down: list[Frame]
    """Frames for the first layer, or for the network."""
    events: list[StackEvent]
    """Deliveries and other events for the application."""
    ignored: Counter[str]
    """Frames that the door admitted but the order did not use, by reason."""
    window_slots: int
    """How many slots a sender may be ahead of its own deliveries."""
    gap_free: bool
    """Whether the order promises no gaps (paper 000, Definition 1), or may have them (paper 000, Definition 2)."""
    keeps_sending_to_departed: bool
    """Whether this member keeps sending to departed members, for example because they may come back."""

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """Accept as many of the messages, from the first on, as the declared rate allows now. Returns how many."""

    def room(self, now: int) -> tuple[int, int]:
        """How many messages, and how many bytes of payload, `submit` accepts for certain at the same clock reading.

        No other input may come in between. The answer may be lower than what `submit` accepts; NO_ROOM promises
        nothing.
        """

    def from_below(self, now: int, frame: Frame) -> None:
        """Handle a frame that has arrived from the layer below, or from the network."""

    def change_rate(self, now: int, rate: Rate) -> None:
        """Renegotiate this member's rate. If ReservationRefused is raised, the old rate stays in force."""

    def leave(self, now: int) -> None:
        """Send the accepted messages, then leave the group."""

    def latest_slot(self, now: int) -> int:
        """The last slot that a frame arriving now may belong to."""

    def bound_ns(self) -> int:
        """The latency bound: the longest time from submission to delivery while the order's assumptions hold."""

    def waiting_for(self) -> tuple[int, ...]:
        """The members that the group waits for before it starts; empty when it runs."""

    def running(self) -> bool:
        """Whether the order accepts and delivers messages."""

    def peer_problems(self) -> Mapping[int, str]:
        """By peer, why the group cannot start with it, such as "joined with other options"."""

    def why_not_formed(self) -> str:
        """Why the group has not started, apart from missing members and `peer_problems`; empty if not known."""

    def peer_rate(self, peer: int) -> Rate | None:
        """The rate that a peer declared, or None if it is not known yet."""

    def by_multicast(self) -> bool:
        """Whether this member's data goes by IP multicast."""

    def standing(self, now: int) -> Standing:
        """What this member knows about the group's leader, its majority and its peers."""


class Observer(Protocol):
    """Sees all frames and events that cross a boundary between layers, and changes none of them."""

    due: int
    """The clock reading at which the observer needs to be woken."""

    events: list[StackEvent]
    """Events for the application; the stack empties the list."""

    def wake(self, now: int) -> None:
        """Do what is due: the local clock has reached `due`."""

    def submitted(self, now: int, messages: Sequence[bytes], accepted: int) -> None:
        """The application submitted messages; the order accepted the first `accepted` of them."""

    def delivered(self, now: int, events: Sequence[StackEvent]) -> None:
        """The stack passed these events to the application."""

    def arrived(self, now: int, frame: Frame, serial: int) -> None:
        """A datagram arrived."""

    def arrived_in_batch(self, now: int, frames: Sequence[Frame], serials: bytes, flags: bytes) -> None:
        """Several datagrams arrived in one read: the kernel joins consecutive datagrams of one sender."""

    def passed_up(self, layer: str, frames: Sequence[Frame]) -> None:
        """A layer passed frames up."""

    def passed_down(self, layer: str, frames: int) -> None:
        """Frames were passed down to a layer."""

    def settings_agreed(self, now: int, agreed: Sequence[SettingsAgreed]) -> None:
        """The settings that these members requested are agreed on."""

    def datagrams_sent(self, datagrams: int, size: int) -> None:
        """The stack put datagrams on the network."""
