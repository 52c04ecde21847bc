"""What a layer is, and what the order on top of the layers is.

A layer takes frames from above and from below, with the local clock, and leaves what it has to say in two
lists, `down` and `up`, which the stack empties. It decides nothing about sockets and reads no clock. Timers are
a question (`wake_at`) and an input (`wake`): the driver sets one alarm for the whole stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from unisono.model.events import SettingsAgreed, StackEvent, Violation, ViolationKind
from unisono.model.rates import Rate
from unisono.wire.frame import Frame, Kind


class Timed(Protocol):
    """Something that may want to be woken."""

    def wake(self, now: int) -> None:
        """The local clock has reached `now`; do what is due."""

    def wake_at(self) -> int | None:
        """The clock reading at which something will be due, if anything will."""


class Layer(Timed, Protocol):
    """A service between the order and the network."""

    name: ClassVar[str]
    """The layer's name in metric rows, service level agreements and dashboards."""
    wraps: frozenset[Kind]
    """The kinds of frames that it takes from above; all others pass it by."""
    opens: frozenset[Kind]
    """The kinds of frames that it takes from below; all others pass it by."""
    down: list[Frame]
    up: list[Frame]

    def from_above(self, now: int, frame: Frame) -> None:
        """The layer above sends a frame."""

    def from_below(self, now: int, frame: Frame) -> None:
        """A frame has arrived."""


@dataclass(slots=True)
class LostMessages(Frame):
    """Goes up in place of messages that will not come: `count` of them, the last one's number as `first_sequence`.

    The stack tells the application; orders and layers never see it.
    """

    count: int = 0
    reason: str = ""

    def to_violation(self) -> Violation:
        """What the application is told."""
        what = "message" if self.count == 1 else "messages"
        text = f"{self.count} {what} of member {self.sender}, up to number {self.first_sequence}, {self.reason}"
        return Violation(ViolationKind.LOST, text, self.sender, self.slot)


class Order(Timed, Protocol):
    """The top of a stack: application messages in, deliveries in one order out."""

    down: list[Frame]
    events: list[StackEvent]
    ignored: Counter[str]
    """Frames that came through the door but were not used, by reason."""
    window_slots: int
    """How many slots a sender may be ahead of what it has delivered."""

    def submit(self, now: int, messages: Sequence[bytes]) -> int:
        """app-mcast: take as many of the messages, from the first on, as the declared rate has room for now."""

    def from_below(self, now: int, frame: Frame) -> None:
        """net-receive."""

    def change_rate(self, now: int, rate: Rate) -> None:
        """Renegotiate; ReservationRefused leaves the old rate in force."""

    def leave(self, now: int) -> None:
        """Send what was accepted, then depart."""

    def latest_slot(self, now: int) -> int:
        """The last slot that a frame arriving now may belong to."""

    def bound_ns(self) -> int:
        """AppLatency: no delivery is later than this after its submission, while the assumptions hold."""

    def gap_free(self) -> bool:
        """Whether the order is promised to be free of gaps (Definition 1), or may have them (Definition 2)."""

    def keeps_sending_to_departed(self) -> bool:
        """Whether somebody who is not in the list may come back into it, and so must go on hearing us."""

    def waiting_for(self) -> tuple[int, ...]:
        """The members without whom the group has not begun yet; empty when it runs."""

    def running(self) -> bool:
        """Whether messages are being taken and delivered."""

    def why_not_formed(self) -> str:
        """What is known of why the group has not begun, beyond members that are missing; empty if nothing."""

    def peer_rate(self, peer: int) -> Rate | None:
        """What a peer declared, if it has."""

    def by_multicast(self) -> bool:
        """Whether this member's data goes by IP multicast."""


class Observer(Protocol):
    """Sees what crosses the boundaries of a stack's layers, and changes nothing of it."""

    due: int
    """The clock reading from which on it wants to be woken."""

    events: list[StackEvent]
    """What the application is to know; the stack empties it."""

    def wake(self, now: int) -> None:
        """The local clock has reached `due`."""

    def submitted(self, now: int, messages: Sequence[bytes], accepted: int) -> None:
        """The application offered messages, of which the order took the first `taken`."""

    def delivered(self, now: int, events: Sequence[StackEvent]) -> None:
        """The order handed these to the application."""

    def arrived(self, now: int, frame: Frame, serial: int) -> None:
        """The network delivered a datagram."""

    def arrived_in_batch(self, now: int, frames: Sequence[Frame], serials: bytes, flags: bytes) -> None:
        """The network delivered datagrams at once, as kernels do with those of one socket that follow each other."""

    def passed_up(self, layer: str, frames: Sequence[Frame]) -> None:
        """A layer passed frames up."""

    def passed_down(self, layer: str, frames: int) -> None:
        """Frames were passed down to a layer."""

    def settings_agreed(self, now: int, agreed: Sequence[SettingsAgreed]) -> None:
        """Everybody goes by what these members need."""

    def datagrams_sent(self, datagrams: int, size: int) -> None:
        """The stack put datagrams on the network."""
