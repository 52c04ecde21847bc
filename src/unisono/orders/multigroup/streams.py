"""What a group's leader and its herald send to other groups: decided entries until everybody has them, and barriers.

In the paper every member sends every decided message (Algorithm 1 line 24). Here the herald does, once, which is the
first to know; what is not answered the leader sends again, and whatever the herald has not said that it knows. A new
leader goes on from what the receivers say that they have. Entries are numbered, so it does not matter who sends them
(erratum 003-9).
"""

from __future__ import annotations

from unisono.model.events import Violation, ViolationKind
from unisono.orders.multigroup.group_log import GroupLog, OutgoingStream
from unisono.orders.multigroup.messages import STREAM_BYTES, StreamSegment, encode_entry, encode_stream_segment
from unisono.wire.frame import HEADER_BYTES, Frame, Kind

WINDOW = 512
"""So many entries may be on their way to one member."""
RELAYED_MAX = 256
"""More than these come to a herald only when it catches up: then the leader has sent them."""
BACKOFF_DOUBLINGS_MAX = 5
TRIM_EVERY_ENTRIES = 512
"""After so many more entries that all have, the group agrees to forget them."""


class _ReceiverProgress:
    """One member of another group."""

    __slots__ = ("acked", "attempts", "due_at", "has_reported", "incarnation", "sent", "was_asked")

    def __init__(self) -> None:
        self.incarnation = -1
        self.acked = self.sent = 0
        self.has_reported = False
        """Whether it has said, to this leader, what it has."""
        self.was_asked = False
        self.due_at = 0
        self.attempts = 0


class GroupStreams:
    """The sending side of one member, while it leads."""

    def __init__(self, me: int, incarnation: int, epoch: int, *, max_frame: int, retry_ns: int) -> None:
        self.down: list[Frame] = []
        self._entries_missed: dict[int, int] = {}
        self._reported_too_far: set[int] = set()
        self._frame_identity = (me, incarnation, epoch)
        self._max_entries_bytes = max_frame - HEADER_BYTES - STREAM_BYTES
        self._retry_ns = retry_ns
        self._progress: dict[tuple[int, int], _ReceiverProgress] = {}
        self._proposed_trims: dict[int, int] = {}
        self._sent_to_all: dict[int, int] = {}
        """By receiving group, the number of entries that have been sent to all of its members."""
        self._is_leader = False

    def reset(self, log: GroupLog, *, leads: bool) -> None:
        """A new reign: nobody has told this leader what it has; a herald leaves what there is to the leader."""
        self._is_leader = leads
        for link in self._progress.values():
            link.has_reported = link.was_asked = False
            link.due_at = link.attempts = 0
        self._proposed_trims.clear()
        self._sent_to_all = {} if leads else {receiver: stream.head for receiver, stream in log.streams.items()}

    def on_ack(self, now: int, member: int, incarnation: int, group: int, applied: int) -> None:
        """A member of another group has these."""
        link = self._progress.setdefault((group, member), _ReceiverProgress())
        if incarnation < link.incarnation:
            return
        if incarnation > link.incarnation or not link.has_reported:
            self._sent_to_all.pop(group, None)
            link.incarnation, link.acked, link.sent, link.has_reported = incarnation, applied, applied, True
        elif applied > link.acked:
            link.acked, link.sent = applied, max(link.sent, applied)
        else:
            return
        # Where something had to be sent again, the next that is missing need not wait for its time.
        wait_ns = 0 if link.attempts else self._retry_ns
        link.due_at, link.attempts = now + wait_ns if link.sent > link.acked else 0, 0

    def send_missing_to_all(
        self, now: int, log: GroupLog, receiver: int, members: tuple[int, ...], *, barrier: bool, relayed: bool
    ) -> None:
        """Send what each of these members lacks; with `barrier`, tell all of them how far stamps have come.

        A leader whose herald knows as much has nothing to send, but waits for the answers.
        """
        stream, through, before = log.streams[receiver], True, self._sent_to_all.get(receiver)
        if not barrier and before == stream.head:
            return
        if not self._is_leader:
            self._relay(now, log, receiver, members)
            return
        if relayed and before is not None:
            for member in members:
                link = self._progress[receiver, member]
                if link.sent < stream.head:
                    link.sent, link.due_at = stream.head, link.due_at or now + self._retry_ns
            self._sent_to_all[receiver] = stream.head
            return
        for member in members:
            link = self._progress.get((receiver, member)) or self._progress.setdefault(
                (receiver, member), _ReceiverProgress()
            )
            if link.has_reported and link.sent >= stream.head and not barrier:
                continue
            if not link.has_reported and stream.head == 0:
                link.has_reported = True
            sent = (
                link.has_reported and link.sent < stream.head and self._send_missing(now, log, receiver, member, link)
            )
            if not link.has_reported and not link.was_asked:
                link.was_asked, link.due_at = True, now + self._retry_ns
                self.send_barrier(now, log, receiver, member, wants_ack=True)
            elif barrier and not sent:
                self.send_barrier(now, log, receiver, member)
            through = through and link.has_reported and link.sent >= stream.head
        if through:
            self._sent_to_all[receiver] = stream.head

    def _relay(self, now: int, log: GroupLog, receiver: int, members: tuple[int, ...]) -> None:
        stream = log.streams[receiver]
        first = max(self._sent_to_all.get(receiver, 0) + 1, stream.first, stream.head - RELAYED_MAX + 1)
        for member in members:
            number = first
            while number <= stream.head:
                number = self._send_segment(now, log, receiver, member, number) + 1
            if first > stream.head:
                self.send_barrier(now, log, receiver, member)
        self._sent_to_all[receiver] = stream.head

    def _send_missing(self, now: int, log: GroupLog, receiver: int, member: int, progress: _ReceiverProgress) -> bool:
        stream, sent = log.streams[receiver], False
        if progress.sent + 1 < stream.first:
            self._entries_missed[member] = stream.first - 1 - progress.sent
            return False
        while progress.sent < stream.head and progress.sent - progress.acked < WINDOW:
            progress.sent = self._send_segment(now, log, receiver, member, progress.sent + 1)
            sent = True
        if sent and not progress.due_at:
            progress.due_at = now + self._retry_ns
        return sent

    def _send_segment(self, now: int, log: GroupLog, receiver: int, member: int, first: int) -> int:
        """A frame of entries from `first` on; the number of its last one."""
        stream, room, number = log.streams[receiver], self._max_entries_bytes, first
        parts: list[bytes] = []
        while number <= stream.head:
            part = encode_entry(stream.entry(number))
            if parts and len(part) > room:
                break
            parts.append(part)
            room -= len(part)
            number += 1
        self._send_frame(
            now, member, StreamSegment(log.own_group, first, stream.head, log.last_stamp, ()), parts, wants_ack=True
        )
        return number - 1

    def send_barrier(self, now: int, log: GroupLog, receiver: int, member: int, *, wants_ack: bool = False) -> None:
        """Tell one member how far stamps have come, behind how many entries; `answer` asks what it has."""
        head = log.streams[receiver].head
        self._send_frame(
            now, member, StreamSegment(log.own_group, head + 1, head, log.last_stamp, ()), [], wants_ack=wants_ack
        )

    def _send_frame(
        self, now: int, member: int, segment: StreamSegment, parts: list[bytes], *, wants_ack: bool
    ) -> None:
        me, life, epoch = self._frame_identity
        body = encode_stream_segment(segment, parts)
        marks = (int(wants_ack), 0, int(self._is_leader))
        self.down.append(Frame(Kind.GROUP_STREAM, me, life, epoch, 0, *marks, sent_ns=now, body=body, to=member))

    def wake(self, now: int, log: GroupLog) -> None:
        """Send again what was not answered: the first of it, until there is an answer."""
        for (receiver, member), link in self._progress.items():
            if not link.due_at or now < link.due_at:
                continue
            if receiver not in log.streams:
                link.due_at = 0
                continue
            link.attempts += 1
            link.due_at = now + (self._retry_ns << min(link.attempts, BACKOFF_DOUBLINGS_MAX))
            stream = log.streams[receiver]
            if link.has_reported and stream.first <= link.acked + 1 <= stream.head:
                link.sent = max(link.sent, self._send_segment(now, log, receiver, member, link.acked + 1))
            elif not link.has_reported or link.acked < stream.head:
                self.send_barrier(now, log, receiver, member, wants_ack=True)
            else:
                link.due_at = 0

    def wake_at(self) -> int | None:
        """When something will have waited too long for an answer."""
        return min([link.due_at for link in self._progress.values() if link.due_at], default=None)

    def report_too_far_behind(self) -> list[Violation]:
        """Members of other groups lack entries which are not kept any more; each is named once."""
        found = [
            Violation(
                ViolationKind.TOO_FAR_BEHIND,
                f"{entries} messages that member {member} lacks are not kept any more: it cannot catch up",
                member,
            )
            for member, entries in self._entries_missed.items()
            if member not in self._reported_too_far
        ]
        self._reported_too_far.update(self._entries_missed)
        return found

    def all_acknowledged(self) -> bool:
        """Whether all that was sent has been answered."""
        return all(link.acked >= link.sent for link in self._progress.values())

    def trimmable_entries(
        self, receiver: int, members: tuple[int, ...], stream: OutgoingStream, *, ended: bool = False
    ) -> int | None:
        """How many entries of a stream all members have, if that is worth agreeing on; of one that has ended, all."""
        links = [self._progress.get((receiver, member)) for member in members]
        if any(link is None or not link.has_reported for link in links):
            return None
        upto = min(link.acked for link in links if link is not None)
        if ended and upto == stream.head > self._proposed_trims.get(receiver, 0):
            self._proposed_trims[receiver] = upto
            return upto
        if upto < max(stream.first - 1, self._proposed_trims.get(receiver, 0)) + TRIM_EVERY_ENTRIES:
            return None
        self._proposed_trims[receiver] = upto
        return upto
