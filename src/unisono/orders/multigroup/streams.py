"""What a group's leader and its herald send to other groups: decided entries until everybody has them, and barriers.

In the paper every member sends every decided message (Algorithm 1 line 24). Here the herald does, once, which is the
first to know; what is not answered the leader sends again, and whatever the herald has not said that it knows. A new
leader goes on from what the receivers say that they have. Entries are numbered, so it does not matter who sends them
(erratum 003-9).
"""

from __future__ import annotations

from unisono.model.events import Violation, ViolationKind
from unisono.orders.multigroup.group_log import GroupLog, OutStream
from unisono.orders.multigroup.messages import STREAM_BYTES, Stream, encode_entry, encode_stream
from unisono.wire.frame import HEADER_BYTES, Frame, Kind

WINDOW = 512
"""So many entries may be on their way to one member."""
HERALDED_MOST = 256
"""More than these come to a herald only when it catches up: then the leader has sent them."""
BACKOFF_MOST = 5
HEARD_EVERY = 512
"""After so many more entries that all have, the group agrees to forget them."""


class _Link:
    """One member of another group."""

    __slots__ = ("acked", "asked", "due_at", "known", "life", "sent", "tries")

    def __init__(self) -> None:
        self.life = -1
        self.acked = self.sent = 0
        self.known = False
        """Whether it has said, to this leader, what it has."""
        self.asked = False
        self.due_at = 0
        self.tries = 0


class Outward:
    """The sending side of one member, while it leads."""

    def __init__(self, me: int, life: int, epoch: int, *, max_frame: int, retry_ns: int) -> None:
        self.down: list[Frame] = []
        self._too_far: dict[int, int] = {}
        self._told: set[int] = set()
        self._head = (me, life, epoch)
        self._room = max_frame - HEADER_BYTES - STREAM_BYTES
        self._retry_ns = retry_ns
        self._links: dict[tuple[int, int], _Link] = {}
        self._proposed: dict[int, int] = {}
        self._through: dict[int, int] = {}
        """By receiving group, the number of entries that have been sent to all of its members."""
        self._leads = False

    def reset(self, log: GroupLog, *, leads: bool) -> None:
        """A new reign: nobody has told this leader what it has; a herald leaves what there is to the leader."""
        self._leads = leads
        for link in self._links.values():
            link.known = link.asked = False
            link.due_at = link.tries = 0
        self._proposed.clear()
        self._through = {} if leads else {receiver: stream.head for receiver, stream in log.streams.items()}

    def hear(self, now: int, member: int, life: int, group: int, applied: int) -> None:
        """A member of another group has these."""
        link = self._links.setdefault((group, member), _Link())
        if life < link.life:
            return
        if life > link.life or not link.known:
            self._through.pop(group, None)
            link.life, link.acked, link.sent, link.known = life, applied, applied, True
        elif applied > link.acked:
            link.acked, link.sent = applied, max(link.sent, applied)
        else:
            return
        # Where something had to be sent again, the next that is missing need not wait for its time.
        wait_ns = 0 if link.tries else self._retry_ns
        link.due_at, link.tries = now + wait_ns if link.sent > link.acked else 0, 0

    def push(
        self, now: int, log: GroupLog, receiver: int, members: tuple[int, ...], *, barrier: bool, heralded: bool
    ) -> None:
        """Send what each of these members lacks; with `barrier`, tell all of them how far stamps have come.

        A leader whose herald knows as much has nothing to send, but waits for the answers.
        """
        stream, through, before = log.streams[receiver], True, self._through.get(receiver)
        if not barrier and before == stream.head:
            return
        if not self._leads:
            self._herald(now, log, receiver, members)
            return
        if heralded and before is not None:
            for member in members:
                link = self._links[receiver, member]
                if link.sent < stream.head:
                    link.sent, link.due_at = stream.head, link.due_at or now + self._retry_ns
            self._through[receiver] = stream.head
            return
        for member in members:
            link = self._links.get((receiver, member)) or self._links.setdefault((receiver, member), _Link())
            if link.known and link.sent >= stream.head and not barrier:
                continue
            if not link.known and stream.head == 0:
                link.known = True
            sent = link.known and link.sent < stream.head and self._send(now, log, receiver, member, link)
            if not link.known and not link.asked:
                link.asked, link.due_at = True, now + self._retry_ns
                self.tell(now, log, receiver, member, answer=True)
            elif barrier and not sent:
                self.tell(now, log, receiver, member)
            through = through and link.known and link.sent >= stream.head
        if through:
            self._through[receiver] = stream.head

    def _herald(self, now: int, log: GroupLog, receiver: int, members: tuple[int, ...]) -> None:
        stream = log.streams[receiver]
        first = max(self._through.get(receiver, 0) + 1, stream.first, stream.head - HERALDED_MOST + 1)
        for member in members:
            number = first
            while number <= stream.head:
                number = self._frame(now, log, receiver, member, number) + 1
            if first > stream.head:
                self.tell(now, log, receiver, member)
        self._through[receiver] = stream.head

    def _send(self, now: int, log: GroupLog, receiver: int, member: int, link: _Link) -> bool:
        stream, sent = log.streams[receiver], False
        if link.sent + 1 < stream.first:
            self._too_far[member] = stream.first - 1 - link.sent
            return False
        while link.sent < stream.head and link.sent - link.acked < WINDOW:
            link.sent = self._frame(now, log, receiver, member, link.sent + 1)
            sent = True
        if sent and not link.due_at:
            link.due_at = now + self._retry_ns
        return sent

    def _frame(self, now: int, log: GroupLog, receiver: int, member: int, first: int) -> int:
        """A frame of entries from `first` on; the number of its last one."""
        stream, room, number = log.streams[receiver], self._room, first
        parts: list[bytes] = []
        while number <= stream.head:
            part = encode_entry(stream.entry(number))
            if parts and len(part) > room:
                break
            parts.append(part)
            room -= len(part)
            number += 1
        self._say(now, member, Stream(log.me, first, stream.head, log.last, ()), parts, answer=True)
        return number - 1

    def tell(self, now: int, log: GroupLog, receiver: int, member: int, *, answer: bool = False) -> None:
        """Tell one member how far stamps have come, behind how many entries; `answer` asks what it has."""
        head = log.streams[receiver].head
        self._say(now, member, Stream(log.me, head + 1, head, log.last, ()), [], answer=answer)

    def _say(self, now: int, member: int, stream: Stream, parts: list[bytes], *, answer: bool) -> None:
        me, life, epoch = self._head
        body = encode_stream(stream, parts)
        marks = (int(answer), 0, int(self._leads))
        self.down.append(Frame(Kind.STREAM, me, life, epoch, 0, *marks, sent_ns=now, body=body, to=member))

    def wake(self, now: int, log: GroupLog) -> None:
        """Send again what was not answered: the first of it, until there is an answer."""
        for (receiver, member), link in self._links.items():
            if not link.due_at or now < link.due_at:
                continue
            if receiver not in log.streams:
                link.due_at = 0
                continue
            link.tries += 1
            link.due_at = now + (self._retry_ns << min(link.tries, BACKOFF_MOST))
            stream = log.streams[receiver]
            if link.known and stream.first <= link.acked + 1 <= stream.head:
                link.sent = max(link.sent, self._frame(now, log, receiver, member, link.acked + 1))
            elif not link.known or link.acked < stream.head:
                self.tell(now, log, receiver, member, answer=True)
            else:
                link.due_at = 0

    def wake_at(self) -> int | None:
        """When something will have waited too long for an answer."""
        return min([link.due_at for link in self._links.values() if link.due_at], default=None)

    def lost(self) -> list[Violation]:
        """Members of other groups lack entries which are not kept any more; each is named once."""
        found = [
            Violation(
                ViolationKind.TOO_FAR_BEHIND,
                f"{entries} messages that member {member} lacks are not kept any more: it cannot catch up",
                member,
            )
            for member, entries in self._too_far.items()
            if member not in self._told
        ]
        self._told.update(self._too_far)
        return found

    def done(self) -> bool:
        """Whether all that was sent has been answered."""
        return all(link.acked >= link.sent for link in self._links.values())

    def heard(self, receiver: int, members: tuple[int, ...], stream: OutStream, *, ended: bool = False) -> int | None:
        """How many entries of a stream all members have, if that is worth agreeing on; of one that has ended, all."""
        links = [self._links.get((receiver, member)) for member in members]
        if any(link is None or not link.known for link in links):
            return None
        upto = min(link.acked for link in links if link is not None)
        if ended and upto == stream.head > self._proposed.get(receiver, 0):
            self._proposed[receiver] = upto
            return upto
        if upto < max(stream.first - 1, self._proposed.get(receiver, 0)) + HEARD_EVERY:
            return None
        self._proposed[receiver] = upto
        return upto
