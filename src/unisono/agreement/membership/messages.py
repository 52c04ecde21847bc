"""The frames of membership: multicast and acknowledgments, the flush of a view, requests to join, state transfer.

The epoch of a frame is the number of the view that its sender is in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from unisono.wire.codec import (
    AnySpec,
    Bytes,
    Items,
    Mapped,
    Spec,
    Tagged,
    Unreadable,
    boolean,
    count,
    register,
    u8,
    u16,
    u32,
    u63,
)
from unisono.wire.frame import Kind

MORE = 1
"""Flag of a multicast or unicast frame: its message continues in the next frame."""
OVERHEAD_BYTES = 64
"""The most bytes that any membership frame adds to the body that it carries."""

Vector: TypeAlias = Mapping[int, int]
"""A number for each member: a count of the member's messages, unless the text states another meaning."""


@dataclass(frozen=True, slots=True)
class Multicast:
    """Frame number `number` that its sender multicast in this view: a message, or a part of one (flag MORE)."""

    number: int
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Acks:
    """How many multicast and unicast frames of each member the sender has received."""

    received: Vector
    unicasts_received: Vector


@dataclass(frozen=True, slots=True)
class Unicast:
    """Frame number `number` that its sender sent in this view to this receiver only."""

    number: int
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Flush:
    """The coordinator of a view change asks the survivors to stop delivering and to report what they have received.

    Survivors are members of both this view and the next. `members` is the next view that the coordinator attempts.
    """

    attempt: int
    members: Vector
    """The incarnation of each member of the next view."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """A survivor's answer to the coordinator of a view change: how many messages of each member it has received.

    If `ready`, the survivor has all messages up to the last ones of the view.
    """

    attempt: int
    ready: bool
    received: Vector


class LastMessage(NamedTuple):
    """The number of a member's last message in a view, and a survivor that holds its messages up to that number."""

    member: int
    number: int
    holder: int


@dataclass(frozen=True, slots=True)
class LastMessages:
    """The coordinator tells the survivors the last message of each member in the view that ends."""

    attempt: int
    last: tuple[LastMessage, ...]

    @property
    def received(self) -> dict[int, int]:
        """The number of each member's last message in the view."""
        return {each.member: each.number for each in self.last}

    @property
    def holders(self) -> dict[int, int]:
        """For each member, a survivor that holds all its messages of the view."""
        return {each.member: each.holder for each in self.last}


@dataclass(frozen=True, slots=True)
class MembershipRequest:
    """A request to join the group, or, if `leaving`, to be left out of the view after `view_id`.

    A newcomer also requests the state: `attempt` selects the member that sends it; `view_id`, `source` and `offset` say
    how much of which state has arrived.
    """

    leaving: bool
    attempt: int
    view_id: int
    source: int
    offset: int


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A request for the frames numbered `first` to `last` that `member` multicast in this view."""

    member: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Relayed:
    """A frame that `member` multicast, passed on by another member that holds it."""

    member: int
    number: int
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True)
class NextViewDecided:
    """The decision of the members of view `view_id`: the encoded next view."""

    view_id: int
    value: bytes


@dataclass(frozen=True, slots=True)
class StateChunk:
    """A part of the state for newcomers of view `view_id`: the view's description, then the application's state."""

    view_id: int
    total: int
    offset: int
    source: int
    part: bytes


MembershipMessage: TypeAlias = (
    Multicast
    | Acks
    | Unicast
    | Flush
    | Flushed
    | LastMessages
    | MembershipRequest
    | MessageRequest
    | Relayed
    | NextViewDecided
    | StateChunk
)


@dataclass(frozen=True, slots=True)
class NextView:
    """The value that consensus decides: the members of the next view, and the last messages of this one."""

    members: Vector
    last_messages: Vector


_NUMBER = u63("number", least=1)
_FLAGS = u8("flags", most=MORE)
_VIEW_ID = u63("view_id")
_VIEW_RECOVERY: Tagged[MessageRequest | Relayed | NextViewDecided | StateChunk] = Tagged(
    (
        1,
        Spec(
            MessageRequest,
            u16("member"),
            u63("first", least=1),
            u63("last", least=1),
            check=lambda request: request.first <= request.last,
        ),
    ),
    (2, Spec(Relayed, u16("member"), _NUMBER, _FLAGS, Bytes("body"))),
    (3, Spec(NextViewDecided, _VIEW_ID, Bytes("value"), check=lambda decided: len(decided.value) > 0)),
    (
        4,
        Spec(
            StateChunk,
            _VIEW_ID,
            u32("total"),
            u32("offset"),
            u16("source"),
            Bytes("part"),
            check=lambda chunk: chunk.offset + len(chunk.part) <= chunk.total,
        ),
    ),
)
SPECS: Final[Mapping[Kind, AnySpec]] = {
    Kind.MCAST: Spec(Multicast, _NUMBER, _FLAGS, Bytes("body")),
    Kind.ACKS: Spec(
        Acks,
        count("received"),
        count("unicasts_received"),
        Mapped("received", "HQ"),
        Mapped("unicasts_received", "HQ"),
    ),
    Kind.UNICAST: Spec(Unicast, _NUMBER, _FLAGS, Bytes("body")),
    Kind.FLUSH: Spec(Flush, u32("attempt"), count("members", least=1), Mapped("members", "HI")),
    Kind.FLUSHED: Spec(Flushed, u32("attempt"), boolean("ready"), count("received"), Mapped("received", "HQ")),
    Kind.LAST_MESSAGES: Spec(
        LastMessages,
        u32("attempt"),
        count("last"),
        Items("last", Spec(LastMessage, u16("member"), u63("number"), u16("holder")), ascending=True),
        check=lambda message: len(message.received) == len(message.last),
    ),
    Kind.MEMBERSHIP_REQUEST: Spec(
        MembershipRequest, boolean("leaving"), u32("attempt"), _VIEW_ID, u16("source"), u32("offset")
    ),
    Kind.VIEW_RECOVERY: _VIEW_RECOVERY,
}
register(SPECS)
_NEXT_VIEW: Final = Spec(
    NextView,
    count("members", least=1),
    count("last_messages"),
    Mapped("members", "HI"),
    Mapped("last_messages", "HQ"),
)


def encode_next_view(next_view: NextView) -> bytes:
    """Encode a next view as a value for consensus."""
    return _NEXT_VIEW.encode(next_view)


def decode_next_view(value: bytes) -> NextView | None:
    """Decode a value that consensus decided. None if it is no valid next view: consensus does not check values."""
    try:
        return _NEXT_VIEW.decode(value)
    except Unreadable:
        return None
