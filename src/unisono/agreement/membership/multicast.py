"""Reliable FIFO multicast inside one view, and what is told to one member alone (paper 004 §3.2, below the views).

Every member keeps every message until everybody is known to have it: so whatever one survivor of the view has received,
it can hand to the others before the next view begins. What a member may have on its way is bounded; the rest waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from unisono.agreement.membership.contract import Receive, Told
from unisono.agreement.membership.messages import MORE, Acks, Message, Need, Passed, Said, Sent, Vector
from unisono.model.ids import EVERYONE

WINDOW = 256
"""So many parts of a member's messages may be unknown to somebody."""
WAITING_MAX = 1 << 14
AGAIN_AT_ONCE = 16

Say = Callable[[int, Message, int], None]
"""(now, message, to)."""


class _Tells:
    """What goes to, and comes from, one other member."""

    __slots__ = ("acked", "acked_before", "early", "parts", "received", "sent", "waiting")

    def __init__(self) -> None:
        self.sent = self.acked = self.acked_before = self.received = 0
        self.waiting: dict[int, Said] = {}
        self.early: dict[int, Said] = {}
        self.parts: list[bytes] = []


class ViewMulticast:
    """One member's part in one view."""

    def __init__(self, me: int, lives: Vector, view_id: int, say: Say, room: int) -> None:
        """`lives` are the members, each with its incarnation; `room` is for a body in one frame."""
        self.out: list[Receive | Told] = []
        self.frozen = False
        """While a view change is under way nothing is multicast and nothing received is handed out."""
        self.news = False
        """Whether the others have to hear what has come."""
        self.waiting: deque[bytes] = deque()
        self._me, self._lives, self._view_id, self._say, self._room = me, dict(lives), view_id, say, room
        self.members = tuple(sorted(lives))
        self.peers = tuple(member for member in self.members if member != me)
        self.received = dict.fromkeys(self.members, 0)
        self._handed_out = dict.fromkeys(self.members, 0)
        self._forgotten = dict.fromkeys(self.members, 0)
        self._kept: dict[int, dict[int, Sent]] = {member: {} for member in self.members}
        self._parts: dict[int, list[bytes]] = {member: [] for member in self.members}
        self._theirs = {peer: dict.fromkeys(self.members, 0) for peer in self.peers}
        self._theirs_before = dict.fromkeys(self.peers, 0)
        self._tells = {peer: _Tells() for peer in self.peers}
        self._to_leave_behind: Vector | None = None

    # -- sending ---------------------------------------------------------------------------------------------

    def multicast(self, now: int, body: bytes) -> None:
        """Send, or wait for room."""
        self.waiting.append(body)
        self.pump(now)

    def pump(self, now: int) -> None:
        """Send what waits, as far as there is room for whole messages."""
        while self.waiting and not self.frozen and len(self._kept[self._me]) < WINDOW:
            for part in _parted(self.waiting.popleft(), self._room):
                number = self.received[self._me] = self.received[self._me] + 1
                sent = self._kept[self._me][number] = Sent(number, *part)
                if self.peers:
                    self._say(now, sent, EVERYONE)
        self._hand_out()
        if not self.peers:  # else what this member has is needed until the others say that they have it
            self._forget()

    def tell(self, now: int, to: int, body: bytes) -> None:
        """To one other member."""
        tells = self._tells.get(to)
        if tells is None:
            return
        for part in _parted(body, self._room):
            tells.sent += 1
            said = tells.waiting[tells.sent] = Said(tells.sent, *part)
            if tells.sent <= tells.acked + WINDOW:
                self._say(now, said, to)

    # -- what arrives ----------------------------------------------------------------------------------------

    def on_sent(self, now: int, member: int, sent: Sent) -> None:
        """A message of a member's, from itself or passed on."""
        kept, received = self._kept[member], self.received[member]
        self.news = True
        if received < sent.number <= received + 2 * WINDOW and sent.number not in kept:
            kept[sent.number] = sent
            while self.received[member] + 1 in kept:
                self.received[member] += 1
            self._hand_out()

    def on_said(self, now: int, member: int, said: Said) -> None:
        """Something for this member alone."""
        tells = self._tells[member]
        self.news = True
        if self.frozen or not tells.received < said.number <= tells.received + 2 * WINDOW:
            return
        tells.early[said.number] = said
        while (following := tells.early.pop(tells.received + 1, None)) is not None:
            tells.received += 1
            tells.parts.append(following.body)
            if not following.flags & MORE:
                self.out.append(Told(member, self._lives[member], self._view_id, b"".join(tells.parts)))
                tells.parts = []

    def on_acks(self, now: int, member: int, acks: Acks) -> None:
        """What a member has."""
        theirs = self._theirs[member]
        for sender, number in acks.received.items():
            if sender in theirs:
                theirs[sender] = max(theirs[sender], number)
        tells = self._tells[member]
        told = min(acks.told.get(self._me, 0), tells.sent)
        while tells.acked < told:
            tells.acked += 1
            del tells.waiting[tells.acked]
            following = tells.waiting.get(tells.acked + WINDOW)
            if following is not None:
                self._say(now, following, member)
        self._forget()
        self.pump(now)

    def acks(self) -> Acks:
        """What this member has."""
        return Acks(dict(self.received), {peer: tells.received for peer, tells in self._tells.items()})

    def unstable(self) -> bool:
        """Whether anybody is not known to have something."""
        return any(self._kept.values()) or any(tells.waiting for tells in self._tells.values())

    def settled(self) -> bool:
        """Whether everybody has all that this member has multicast or told, and what it had received when asked first.

        Whoever leaves is not asked for what it has: what only it had heard, and may have acted upon, would go with it.
        """
        if self._to_leave_behind is None:
            self._to_leave_behind = dict(self._handed_out)
        behind = self._to_leave_behind.items()
        if any(theirs[member] < number for theirs in self._theirs.values() for member, number in behind):
            return False
        return not self.waiting and not self._kept[self._me] and not any(t.waiting for t in self._tells.values())

    def again(self, now: int, peers: Sequence[int]) -> None:
        """Say again what these members have had the time to acknowledge and have not."""
        for peer in peers:
            tells, theirs, mine = self._tells[peer], self._theirs[peer][self._me], self._kept[self._me]
            if theirs == self._theirs_before[peer]:
                for number in range(theirs + 1, min(theirs + AGAIN_AT_ONCE, self.received[self._me]) + 1):
                    self._say(now, mine[number], peer)
            self._theirs_before[peer] = theirs
            if tells.acked == tells.acked_before:
                for number in range(tells.acked + 1, min(tells.acked + AGAIN_AT_ONCE, tells.sent) + 1):
                    self._say(now, tells.waiting[number], peer)
            tells.acked_before = tells.acked

    # -- the end of the view ---------------------------------------------------------------------------------

    def lacks(self, cut: Vector) -> bool:
        """Whether anything of the cut is missing here."""
        return any(self.received.get(member, number) < number for member, number in cut.items())

    def fetch(self, now: int, cut: Vector, holders: Vector) -> None:
        """Ask those who have it for what is missing."""
        for member, number in sorted(cut.items()):
            if self.received.get(member, number) < number and holders.get(member) in self._theirs:
                self._say(now, Need(member, self.received[member] + 1, number), holders[member])

    def answer(self, now: int, to: int, need: Need) -> None:
        """Somebody lacks messages that this member may have."""
        kept = self._kept.get(need.member, {})
        for number in range(need.first, min(need.last, need.first + 2 * AGAIN_AT_ONCE) + 1):
            sent = kept.get(number)
            if sent is not None:
                self._say(now, Passed(need.member, number, sent.flags, sent.body), to)

    def close(self, cut: Vector) -> None:
        """Hand out all of the cut, and nothing behind it."""
        self.frozen = False
        self._hand_out(cut)
        self.frozen = True

    def _hand_out(self, cut: Vector | None = None) -> None:
        if self.frozen:
            return
        for member in self.members:
            last = self.received[member] if cut is None else cut.get(member, 0)
            while self._handed_out[member] < last:
                self._handed_out[member] += 1
                sent = self._kept[member][self._handed_out[member]]
                self._parts[member].append(sent.body)
                if not sent.flags & MORE:
                    body = b"".join(self._parts[member])
                    self._parts[member] = []
                    self.out.append(Receive(member, self._lives[member], self._view_id, body))

    def _forget(self) -> None:
        """What everybody has is needed no more."""
        for member, kept in self._kept.items():
            stable = min([self._handed_out[member], *(theirs[member] for theirs in self._theirs.values())])
            while self._forgotten[member] < stable:
                self._forgotten[member] += 1
                del kept[self._forgotten[member]]


def _parted(body: bytes, room: int) -> list[tuple[int, bytes]]:
    """A body in parts that each fit a frame, with the flags of each."""
    starts = range(0, max(1, len(body)), room)
    return [(MORE if start + room < len(body) else 0, body[start : start + room]) for start in starts]
