"""Reliable FIFO multicast inside one view, and what is told to one member alone (paper 004 §3.2, below the views).

Every member keeps every message until everybody is known to have it: so whatever one survivor of the view has received,
it can hand to the others before the next view begins. What a member may have on its way is bounded; the rest waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from unisono.agreement.membership.contract import Receive, ReceiveUnicast
from unisono.agreement.membership.messages import (
    MORE,
    Acks,
    MembershipMessage,
    MessageRequest,
    Multicast,
    Relayed,
    Unicast,
    Vector,
)
from unisono.model.ids import EVERYONE

WINDOW = 256
"""So many parts of a member's messages may be unknown to somebody."""
WAITING_MAX = 1 << 14
RETRANSMIT_MAX = 16

SendInView = Callable[[int, MembershipMessage, int], None]
"""(now, message, to)."""


class _UnicastChannel:
    """What goes to, and comes from, one other member."""

    __slots__ = ("acked", "acked_before", "early", "parts", "received", "sent", "waiting")

    def __init__(self) -> None:
        self.sent = self.acked = self.acked_before = self.received = 0
        self.waiting: dict[int, Unicast] = {}
        self.early: dict[int, Unicast] = {}
        self.parts: list[bytes] = []


class ViewMulticast:
    """One member's part in one view."""

    def __init__(self, me: int, incarnations: Vector, view_id: int, send: SendInView, max_body_bytes: int) -> None:
        """`lives` are the members, each with its incarnation; `room` is for a body in one frame."""
        self.received_events: list[Receive | ReceiveUnicast] = []
        self.frozen = False
        """While a view change is under way nothing is multicast and nothing received is handed out."""
        self.ack_due = False
        """Whether the others have to hear what has come."""
        self.waiting: deque[bytes] = deque()
        self._me, self._incarnations, self._view_id, self._send, self._max_body_bytes = (
            me,
            dict(incarnations),
            view_id,
            send,
            max_body_bytes,
        )
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
        """Send, or wait for room."""
        self.waiting.append(body)
        self.send_waiting(now)

    def send_waiting(self, now: int) -> None:
        """Send what waits, as far as there is room for whole messages."""
        while self.waiting and not self.frozen and len(self._kept[self._me]) < WINDOW:
            for part in _split_body(self.waiting.popleft(), self._max_body_bytes):
                number = self.received[self._me] = self.received[self._me] + 1
                sent = self._kept[self._me][number] = Multicast(number, *part)
                if self.peers:
                    self._send(now, sent, EVERYONE)
        self._deliver()
        if not self.peers:  # else what this member has is needed until the others say that they have it
            self._discard_stable()

    def unicast(self, now: int, to: int, body: bytes) -> None:
        """To one other member."""
        tells = self._unicasts.get(to)
        if tells is None:
            return
        for part in _split_body(body, self._max_body_bytes):
            tells.sent += 1
            said = tells.waiting[tells.sent] = Unicast(tells.sent, *part)
            if tells.sent <= tells.acked + WINDOW:
                self._send(now, said, to)

    # -- what arrives ----------------------------------------------------------------------------------------

    def on_multicast(self, now: int, member: int, sent: Multicast) -> None:
        """A message of a member's, from itself or passed on."""
        kept, received = self._kept[member], self.received[member]
        self.ack_due = True
        if received < sent.number <= received + 2 * WINDOW and sent.number not in kept:
            kept[sent.number] = sent
            while self.received[member] + 1 in kept:
                self.received[member] += 1
            self._deliver()

    def on_unicast(self, now: int, member: int, unicast: Unicast) -> None:
        """Something for this member alone."""
        tells = self._unicasts[member]
        self.ack_due = True
        if self.frozen or not tells.received < unicast.number <= tells.received + 2 * WINDOW:
            return
        tells.early[unicast.number] = unicast
        while (following := tells.early.pop(tells.received + 1, None)) is not None:
            tells.received += 1
            tells.parts.append(following.body)
            if not following.flags & MORE:
                self.received_events.append(
                    ReceiveUnicast(member, self._incarnations[member], self._view_id, b"".join(tells.parts))
                )
                tells.parts = []

    def on_acks(self, now: int, member: int, acks: Acks) -> None:
        """What a member has."""
        theirs = self._peer_received[member]
        for sender, number in acks.received.items():
            if sender in theirs:
                theirs[sender] = max(theirs[sender], number)
        tells = self._unicasts[member]
        told = min(acks.unicasts_received.get(self._me, 0), tells.sent)
        while tells.acked < told:
            tells.acked += 1
            del tells.waiting[tells.acked]
            following = tells.waiting.get(tells.acked + WINDOW)
            if following is not None:
                self._send(now, following, member)
        self._discard_stable()
        self.send_waiting(now)

    def acks(self) -> Acks:
        """What this member has."""
        return Acks(dict(self.received), {peer: tells.received for peer, tells in self._unicasts.items()})

    def has_unstable(self) -> bool:
        """Whether anybody is not known to have something."""
        return any(self._kept.values()) or any(tells.waiting for tells in self._unicasts.values())

    def all_acknowledged(self) -> bool:
        """Whether everybody has all that this member has multicast or told, and what it had received when asked first.

        Whoever leaves is not asked for what it has: what only it had heard, and may have acted upon, would go with it.
        """
        if self._needed_before_leaving is None:
            self._needed_before_leaving = dict(self._delivered)
        behind = self._needed_before_leaving.items()
        if any(theirs[member] < number for theirs in self._peer_received.values() for member, number in behind):
            return False
        return not self.waiting and not self._kept[self._me] and not any(t.waiting for t in self._unicasts.values())

    def retransmit(self, now: int, peers: Sequence[int]) -> None:
        """Say again what these members have had the time to acknowledge and have not."""
        for peer in peers:
            tells, theirs, mine = self._unicasts[peer], self._peer_received[peer][self._me], self._kept[self._me]
            if theirs == self._peer_received_before[peer]:
                for number in range(theirs + 1, min(theirs + RETRANSMIT_MAX, self.received[self._me]) + 1):
                    self._send(now, mine[number], peer)
            self._peer_received_before[peer] = theirs
            if tells.acked == tells.acked_before:
                for number in range(tells.acked + 1, min(tells.acked + RETRANSMIT_MAX, tells.sent) + 1):
                    self._send(now, tells.waiting[number], peer)
            tells.acked_before = tells.acked

    # -- the end of the view ---------------------------------------------------------------------------------

    def lacks(self, last_messages: Vector) -> bool:
        """Whether anything of the cut is missing here."""
        return any(self.received.get(member, number) < number for member, number in last_messages.items())

    def request_missing(self, now: int, last_messages: Vector, holders: Vector) -> None:
        """Ask those who have it for what is missing."""
        for member, number in sorted(last_messages.items()):
            if self.received.get(member, number) < number and holders.get(member) in self._peer_received:
                self._send(now, MessageRequest(member, self.received[member] + 1, number), holders[member])

    def answer_request(self, now: int, to: int, request: MessageRequest) -> None:
        """Somebody lacks messages that this member may have."""
        kept = self._kept.get(request.member, {})
        for number in range(request.first, min(request.last, request.first + 2 * RETRANSMIT_MAX) + 1):
            sent = kept.get(number)
            if sent is not None:
                self._send(now, Relayed(request.member, number, sent.flags, sent.body), to)

    def close_view(self, last_messages: Vector) -> None:
        """Hand out all of the cut, and nothing behind it."""
        self.frozen = False
        self._deliver(last_messages)
        self.frozen = True

    def _deliver(self, last_messages: Vector | None = None) -> None:
        if self.frozen:
            return
        for member in self.members:
            last = self.received[member] if last_messages is None else last_messages.get(member, 0)
            while self._delivered[member] < last:
                self._delivered[member] += 1
                sent = self._kept[member][self._delivered[member]]
                self._parts[member].append(sent.body)
                if not sent.flags & MORE:
                    body = b"".join(self._parts[member])
                    self._parts[member] = []
                    self.received_events.append(Receive(member, self._incarnations[member], self._view_id, body))

    def _discard_stable(self) -> None:
        """What everybody has is needed no more."""
        for member, kept in self._kept.items():
            stable = min([self._delivered[member], *(theirs[member] for theirs in self._peer_received.values())])
            while self._discarded[member] < stable:
                self._discarded[member] += 1
                del kept[self._discarded[member]]


def _split_body(body: bytes, max_body_bytes: int) -> list[tuple[int, bytes]]:
    """A body in parts that each fit a frame, with the flags of each."""
    starts = range(0, max(1, len(body)), max_body_bytes)
    return [
        (MORE if start + max_body_bytes < len(body) else 0, body[start : start + max_body_bytes]) for start in starts
    ]
