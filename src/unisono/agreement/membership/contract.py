"""What an order over virtual synchrony needs below it (paper 004 §3.2), and what it owes in return.

A member hears one stream: messages of the view it is in, and between them the views. The promises:

1. **View-atomic.** If two members both go from view v to view v+1, they have received the same messages in v. A message
   is received in the view in which its sender multicast it, or by nobody who goes on to the next view; the sender's
   own copy comes through the same stream, and a sender that goes on has received all it multicast.
2. **FIFO.** The messages of one sender, in one incarnation, are received in the order in which it multicast them, each
   at most once. Nothing is promised between senders: acknowledgments may overtake what they acknowledge (004-1).
3. **One sequence of views.** Members that go on install the same views with the same members, in the same order.
4. **State at the cut.** A member that stays is asked for its state (`StateWanted`) behind the last message of the old
   view and before the new view, and answers at once; a newcomer is given one of these states (`StateGiven`) before
   its first view. The first members of a group begin without one.

A member that comes back in another incarnation is in `left` and in `joined` of some views, perhaps of the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from unisono.model.events import Violation
from unisono.net.layer import Timed
from unisono.wire.frame import Frame


@dataclass(frozen=True, slots=True)
class Receive:
    """A message that was multicast in view `view_id` has come; `body` is what its sender gave to `multicast`."""

    sender: int
    incarnation: int
    view_id: int
    body: bytes


@dataclass(frozen=True, slots=True)
class ReceiveUnicast:
    """What a member of this view said to this member alone."""

    sender: int
    incarnation: int
    view_id: int
    body: bytes


@dataclass(frozen=True, slots=True)
class NewView:
    """The members from here on, in ascending order, each with its incarnation; the first view of a group is 1."""

    view_id: int
    members: tuple[int, ...]
    incarnations: tuple[int, ...]
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    blocked_ns: int = 0
    """How long nothing could be handed out here, because the views were changing."""


@dataclass(frozen=True, slots=True)
class StateRequested:
    """View `view_id` brings newcomers: call `give_state` before anything that follows in the stream is looked at."""

    view_id: int


@dataclass(frozen=True, slots=True)
class StateReceived:
    """To a newcomer, just before view `view_id`: the state of a member that was in the view before."""

    view_id: int
    state: bytes


@dataclass(frozen=True, slots=True)
class NoLongerMember:
    """This member is in no view any more: it has left, or the others went on without it. Nothing follows."""

    reason: str


ViewEvent: TypeAlias = Receive | ReceiveUnicast | NewView | StateRequested | StateReceived | NoLongerMember


class ViewSynchrony(Timed, Protocol):
    """Virtual synchrony, as one member has it."""

    down: list[Frame]
    """Frames for the network, taken out by the stack."""
    stream: list[ViewEvent]
    """What has happened, in this member's order; taken out by whoever is above."""
    violations: list[Violation]
    """What the application is to know of what does not hold; taken out by whoever is above."""

    def multicast(self, now: int, body: bytes) -> None:
        """To every member of the view, this one included. While `blocked`, it waits and goes out in the next view."""

    def unicast(self, now: int, to: int, body: bytes) -> None:
        """To one other member. It comes unless one of the two goes or a view begins before: whoever needs the answer
        says it again in the new view. What one member tells another comes in order."""

    def blocked(self) -> bool:
        """Whether a view change is under way: what is multicast now waits for it."""

    def provide_state(self, now: int, view_id: int, state: bytes) -> None:
        """The answer to `StateWanted`."""

    def from_below(self, now: int, frame: Frame) -> None:
        """A frame has arrived."""

    def leave(self, now: int) -> None:
        """Ask to be left out of the next view; `Out` follows when it is done.

        What came before this was asked, everybody receives who goes on, unless this member crashes before it is out.
        """
