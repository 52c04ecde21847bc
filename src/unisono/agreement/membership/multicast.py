"""Inside one view: view-atomic FIFO multicast, unicast, and the state transfer to members that join (paper 004 §3.2).

Sending: `multicast` numbers a message, splits it into frames and sends them. At most `WINDOW` frames of a member may be
missing at some other member; further messages wait. Unacknowledged frames are retransmitted.

Receiving: frames are delivered in the order of their numbers, sender by sender. Every member keeps every frame until
all members have acknowledged it. So any survivor of the view can pass on all that it has received before the next view
begins.

At the end of the view the multicast is frozen: nothing is sent or delivered. The members agree on the last message of
each sender (`last_messages`), fetch what they lack of these, and `close_view` delivers exactly up to there.

A member that joins needs the application's state at the beginning of its first view. `StateSender` sends it in chunks,
`StateReceiver` requests and reassembles them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unisono.agreement.membership.messages import (
    MORE,
    Acks,
    MembershipMessage,
    MembershipRequest,
    MessageRequest,
    Multicast,
    NextView,
    Relayed,
    StateChunk,
    Unicast,
    Vector,
    decode_next_view,
    encode_next_view,
)
from unisono.model.units import EVERYONE

WINDOW = 256
"""At most this many frames of a sender may be unacknowledged by some member."""
WAITING_MAX = 1 << 14
"""At most this many messages may wait, for acknowledgments of earlier ones or for the next view."""
RETRANSMIT_MAX = 16
"""Retransmit at most this many frames to one member at a time."""
CHUNKS_PER_ANSWER = 16
"""At most this many chunks of a state answer one request."""
_LENGTH = 8

SendInView = Callable[[int, MembershipMessage, int], None]
"""Sends a message of membership; called with (now, message, receiver)."""


@dataclass(frozen=True, slots=True)
class Receive:
    """Event: this member receives a message that its sender multicast in view `view_id`."""

    sender: int
    incarnation: int
    view_id: int
    body: bytes


@dataclass(frozen=True, slots=True)
class ReceiveUnicast:
    """Event: this member receives a message that another member sent to it alone."""

    sender: int
    incarnation: int
    view_id: int
    body: bytes


class _UnicastChannel:
    """The unicast messages to and from one other member."""

    __slots__ = ("acked", "acked_before", "early", "parts", "received", "sent", "unacknowledged")

    def __init__(self) -> None:
        self.sent = self.acked = self.acked_before = self.received = 0
        self.unacknowledged: dict[int, Unicast] = {}
        self.early: dict[int, Unicast] = {}
        self.parts: list[bytes] = []


class ViewMulticast:
    """Multicast and unicast of one member in one view."""

    def __init__(self, me: int, incarnations: Vector, view_id: int, send: SendInView, max_body_bytes: int) -> None:
        """`incarnations` maps each member to its incarnation. `max_body_bytes` is the space in one frame."""
        self.received_events: list[Receive | ReceiveUnicast] = []
        self.frozen = False
        """Whether a view change is in progress. Then nothing is sent and no received message is delivered."""
        self.ack_due = False
        """Whether frames have arrived that are not acknowledged yet."""
        self.waiting: deque[bytes] = deque()
        self._me, self._view_id, self._send, self._max_body_bytes = me, view_id, send, max_body_bytes
        self._incarnations = dict(incarnations)
        self.members = tuple(sorted(incarnations))
        self.peers = tuple(member for member in self.members if member != me)
        self.received = dict.fromkeys(self.members, 0)
        self._delivered = dict.fromkeys(self.members, 0)
        self._discarded = dict.fromkeys(self.members, 0)
        self._kept: dict[int, dict[int, Multicast]] = {member: {} for member in self.members}
        self._parts: dict[int, list[bytes]] = {member: [] for member in self.members}
        self._peer_received = {peer: dict.fromkeys(self.members, 0) for peer in self.peers}
        self._peer_received_before = dict.fromkeys(self.peers, 0)
        self._unicasts = {peer: _UnicastChannel() for peer in self.peers}
        self._needed_before_leaving: Vector | None = None

    # -- sending ---------------------------------------------------------------------------------------------

    def multicast(self, now: int, body: bytes) -> None:
        """Send a message to all members. Queue it if WINDOW frames of this member are already unacknowledged."""
        self.waiting.append(body)
        self.send_waiting(now)

    def send_waiting(self, now: int) -> None:
        """Send queued messages while fewer than WINDOW frames are unacknowledged.

        If the first frame of a message is sent, all its frames are sent.
        """
        while self.waiting and not self.frozen and len(self._kept[self._me]) < WINDOW:
            for part in _split_body(self.waiting.popleft(), self._max_body_bytes):
                number = self.received[self._me] = self.received[self._me] + 1
                message = self._kept[self._me][number] = Multicast(number, *part)
                if self.peers:
                    self._send(now, message, EVERYONE)
        self._deliver()
        if not self.peers:  # with peers, a frame is kept until they acknowledge it
            self._discard_stable()

    def unicast(self, now: int, to: int, body: bytes) -> None:
        """Send a message to one other member."""
        channel = self._unicasts.get(to)
        if channel is None:
            return
        for part in _split_body(body, self._max_body_bytes):
            channel.sent += 1
            message = channel.unacknowledged[channel.sent] = Unicast(channel.sent, *part)
            if channel.sent <= channel.acked + WINDOW:
                self._send(now, message, to)

    def retransmit(self, now: int, peers: Sequence[int]) -> None:
        """Retransmit to each of these peers that has acknowledged nothing new since the last call."""
        for peer in peers:
            channel, acked, own = self._unicasts[peer], self._peer_received[peer][self._me], self._kept[self._me]
            if acked == self._peer_received_before[peer]:
                for number in range(acked + 1, min(acked + RETRANSMIT_MAX, self.received[self._me]) + 1):
                    self._send(now, own[number], peer)
            self._peer_received_before[peer] = acked
            if channel.acked == channel.acked_before:
                for number in range(channel.acked + 1, min(channel.acked + RETRANSMIT_MAX, channel.sent) + 1):
                    self._send(now, channel.unacknowledged[number], peer)
            channel.acked_before = channel.acked

    # -- receiving -------------------------------------------------------------------------------------------

    def on_multicast(self, now: int, member: int, message: Multicast) -> None:
        """Handle a frame that `member` multicast, whether it comes from `member` or from a member that relays it."""
        kept, received = self._kept[member], self.received[member]
        self.ack_due = True
        if received < message.number <= received + 2 * WINDOW and message.number not in kept:
            kept[message.number] = message
            while self.received[member] + 1 in kept:
                self.received[member] += 1
            self._deliver()

    def on_unicast(self, now: int, member: int, unicast: Unicast) -> None:
        """Store a unicast frame that has arrived, and deliver the messages that are now complete and in order."""
        channel = self._unicasts[member]
        self.ack_due = True
        if self.frozen or not channel.received < unicast.number <= channel.received + 2 * WINDOW:
            return
        channel.early[unicast.number] = unicast
        while (following := channel.early.pop(channel.received + 1, None)) is not None:
            channel.received += 1
            channel.parts.append(following.body)
            if not following.flags & MORE:
                body = b"".join(channel.parts)
                self.received_events.append(ReceiveUnicast(member, self._incarnations[member], self._view_id, body))
                channel.parts = []

    def on_acks(self, now: int, member: int, acks: Acks) -> None:
        """Handle a member's report of the frames that it has received: discard frames that all members have."""
        known = self._peer_received[member]
        for sender, number in acks.received.items():
            if sender in known:
                known[sender] = max(known[sender], number)
        channel = self._unicasts[member]
        acked = min(acks.unicasts_received.get(self._me, 0), channel.sent)
        while channel.acked < acked:
            channel.acked += 1
            del channel.unacknowledged[channel.acked]
            following = channel.unacknowledged.get(channel.acked + WINDOW)
            if following is not None:
                self._send(now, following, member)
        self._discard_stable()
        self.send_waiting(now)

    def acks(self) -> Acks:
        """The acknowledgment of all frames that this member has received, as a message to the others."""
        return Acks(dict(self.received), {peer: channel.received for peer, channel in self._unicasts.items()})

    def has_unstable(self) -> bool:
        """Whether some frame is not known to have reached all its receivers."""
        return any(self._kept.values()) or any(channel.unacknowledged for channel in self._unicasts.values())

    def all_acknowledged(self) -> bool:
        """Whether this member may leave.

        All members must have what this member has sent, and what it had delivered when this was first called. A member
        that leaves takes no part in the flush, so a message that only it has delivered, and has perhaps acted upon,
        would be lost.
        """
        if self._needed_before_leaving is None:
            self._needed_before_leaving = dict(self._delivered)
        needed = self._needed_before_leaving.items()
        if any(known[member] < number for known in self._peer_received.values() for member, number in needed):
            return False
        return (
            not self.waiting
            and not self._kept[self._me]
            and not any(channel.unacknowledged for channel in self._unicasts.values())
        )

    # -- the end of the view ---------------------------------------------------------------------------------

    def lacks(self, last_messages: Vector) -> bool:
        """Whether this member lacks a message that belongs to the view, given the last message of each member."""
        return any(self.received.get(member, number) < number for member, number in last_messages.items())

    def request_missing(self, now: int, last_messages: Vector, holders: Vector) -> None:
        """Request the messages of the view that this member lacks from members that hold them."""
        for member, number in sorted(last_messages.items()):
            if self.received.get(member, number) < number and holders.get(member) in self._peer_received:
                self._send(now, MessageRequest(member, self.received[member] + 1, number), holders[member])

    def answer_request(self, now: int, to: int, request: MessageRequest) -> None:
        """Relay the requested messages that are kept here."""
        kept = self._kept.get(request.member, {})
        for number in range(request.first, min(request.last, request.first + 2 * RETRANSMIT_MAX) + 1):
            message = kept.get(number)
            if message is not None:
                self._send(now, Relayed(request.member, number, message.flags, message.body), to)

    def close_view(self, last_messages: Vector) -> None:
        """Deliver all messages up to the last ones of the view, and no others."""
        self.frozen = False
        self._deliver(last_messages)
        self.frozen = True

    # -- delivering ------------------------------------------------------------------------------------------

    def _deliver(self, last_messages: Vector | None = None) -> None:
        if self.frozen:
            return
        for member in self.members:
            last = self.received[member] if last_messages is None else last_messages.get(member, 0)
            while self._delivered[member] < last:
                self._delivered[member] += 1
                message = self._kept[member][self._delivered[member]]
                self._parts[member].append(message.body)
                if not message.flags & MORE:
                    body = b"".join(self._parts[member])
                    self._parts[member] = []
                    self.received_events.append(Receive(member, self._incarnations[member], self._view_id, body))

    def _discard_stable(self) -> None:
        """Discard the frames that all members have received."""
        for member, kept in self._kept.items():
            stable = min([self._delivered[member], *(known[member] for known in self._peer_received.values())])
            while self._discarded[member] < stable:
                self._discarded[member] += 1
                del kept[self._discarded[member]]


def _split_body(body: bytes, max_body_bytes: int) -> list[tuple[int, bytes]]:
    """Split a body into parts that each fit in a frame. Returns (flags, part) pairs."""
    starts = range(0, max(1, len(body)), max_body_bytes)
    return [
        (MORE if start + max_body_bytes < len(body) else 0, body[start : start + max_body_bytes]) for start in starts
    ]


# -- state transfer ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransferredState:
    """All that a newcomer needs to enter its first view: the view, the decision that led to it, and the state."""

    view_id: int
    members: Vector
    joined: tuple[int, ...]
    left: tuple[int, ...]
    description: bytes
    """The encoded view, as `encode_view_description` returns it."""
    decided: bytes
    """The decision that ended the previous view. A member that missed it may be able to get it only from a newcomer."""
    state: bytes


def encode_view_description(members: Vector, joined: Sequence[int], left: Sequence[int], decided: bytes) -> bytes:
    """Encode a view for newcomers, followed by the decision that led to it.

    The view has the form of a NextView with other counts: 1 for a member that joined, 2 for one that left, 3 for both.
    """
    changes = {m: (m in joined) + 2 * (m in left) for m in sorted({*joined, *left})}
    view = encode_next_view(NextView(members, changes))
    return len(view).to_bytes(_LENGTH) + view + decided


class StateSender:
    """Sends the application's state to the newcomers of one view, in chunks.

    A newcomer that has received the state sends it too: the members that had it first may crash before all newcomers
    have it.
    """

    def __init__(self, view_id: int, description: bytes, state: bytes | None = None) -> None:
        self._view_id = view_id
        self._description = description
        self._data: bytes | None = None
        if state is not None:
            self.set_state(view_id, state)

    def set_state(self, view_id: int, state: bytes) -> None:
        """Set the application's state at the beginning of the view."""
        if view_id == self._view_id:
            self._data = len(self._description).to_bytes(_LENGTH) + self._description + state

    def chunks_for(self, me: int, view_id: int, request: MembershipRequest, max_bytes: int) -> list[StateChunk]:
        """The next chunks of the state for a newcomer, from the offset up to which it has the state."""
        data = self._data
        if view_id != self._view_id or data is None:
            return []
        start = request.offset if (request.view_id, request.source) == (view_id, me) else 0
        offsets = range(start, len(data), max_bytes)[:CHUNKS_PER_ANSWER]
        return [StateChunk(view_id, len(data), offset, me, data[offset : offset + max_bytes]) for offset in offsets]


class StateReceiver:
    """A newcomer's side of the state transfer: requests chunks until the state is complete."""

    def __init__(self) -> None:
        self._attempt = 0
        self._source = (0, 0)
        """(view, member) that the state comes from."""
        self._total = self._chunk_bytes = 0
        self._data = bytearray()
        self._requested_at_bytes = -1

    def next_request(self) -> MembershipRequest:
        """The next request for a chunk.

        It names another source if the present one has sent nothing since the previous request.
        """
        if self._requested_at_bytes == len(self._data):
            self._attempt += 1
        self._requested_at_bytes = len(self._data)
        return MembershipRequest(False, self._attempt, *self._source, len(self._data))

    def receive(self, chunk: StateChunk) -> TransferredState | None:
        """Add a chunk of the state. Return the state when it is complete, else None."""
        source = (chunk.view_id, chunk.source)
        if source != self._source:
            if chunk.offset or chunk.view_id < self._source[0]:
                return None
            self._source, self._data = source, bytearray()
        if chunk.offset == len(self._data):
            self._data += chunk.part
        self._total, self._chunk_bytes = chunk.total, len(chunk.part)
        if len(self._data) < chunk.total:
            return None
        description, state = _split_off_first(bytes(self._data))
        encoded_view, decided = _split_off_first(description)
        view = decode_next_view(encoded_view) or NextView({}, {})
        joined = tuple(m for m, change in sorted(view.last_messages.items()) if change & 1)
        left = tuple(m for m, change in sorted(view.last_messages.items()) if change & 2)
        return TransferredState(chunk.view_id, view.members, joined, left, description, decided, state)

    def wants_next_chunk(self) -> bool:
        """Whether the last request is fully answered and the state is still incomplete."""
        return (
            len(self._data) < self._total
            and len(self._data) >= max(0, self._requested_at_bytes) + CHUNKS_PER_ANSWER * self._chunk_bytes
        )


def _split_off_first(data: bytes) -> tuple[bytes, bytes]:
    """Split bytes into their first field, which is preceded by its length, and the rest."""
    end = _LENGTH + int.from_bytes(data[:_LENGTH])
    return data[_LENGTH:end], data[end:]
