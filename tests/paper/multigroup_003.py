"""Two models for the tests of paper 003: the published algorithms and our implementation, with an ideal consensus.

A test states which group decides which messages, and when each group receives them. In both models one object stands
for a whole group, because its members have decided the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.model.topology import Topology
from unisono.orders.packing import Bundle
from unisono.orders.quasi_genuine.barriers import BarrierQueue
from unisono.orders.quasi_genuine.group_log import GroupLog
from unisono.orders.quasi_genuine.messages import Cast, Null, encode_value, stamp_of
from unisono.wire.frame import OutgoingMessages, read_packed_messages

TWO_GROUPS = Topology({"0": (1, 2, 3), "1": (4, 5, 6)}, {"0": ("0", "1"), "1": ("0", "1")})


@dataclass(frozen=True, slots=True)
class Message:
    """m: its name, m.ts, its sender, its serial there, and m.dst."""

    name: str
    ts: float
    sender: int
    serial: int = 0
    to: tuple[str, ...] = ("0", "1")
    null: bool = False


class PublishedGroup:
    """Algorithm 1 as printed, line by line."""

    def __init__(self, name: str, senders: Sequence[str]) -> None:
        self.name = name
        self.barrier = {sender: float("-inf") for sender in senders if sender != name}  # lines 2-4
        self.bar_pending: list[Message] = []
        self.delivered: list[str] = []

    def decide(self, *batch: Message) -> list[Message]:
        """Lines 19-27. Returns the messages sent to other groups: while a strict minimum exists (lines 23-25)."""
        self.bar_pending += [m for m in batch if self.name in m.to and not m.null]
        remaining, sent = list(batch), []
        while (smallest := [m for m in remaining if all(m == n or m.ts < n.ts for n in remaining)]) != []:
            sent.append(smallest[0])
            remaining.remove(smallest[0])
        self.deliver()
        return sent

    def receive(self, source: str, m: Message) -> None:
        """Lines 11-13."""
        if self.name in m.to and m not in self.bar_pending and m.name not in self.delivered and not m.null:
            self.bar_pending.append(m)
        self.barrier[source] = m.ts
        self.deliver()

    def deliver(self) -> None:
        """Lines 28-31."""
        while self.bar_pending:
            m = min(self.bar_pending, key=lambda waiting: waiting.ts)
            if not all(self.passes(m.ts, barrier) for barrier in self.barrier.values()):
                return
            self.bar_pending.remove(m)
            self.delivered.append(m.name)

    def passes(self, ts: float, barrier: float) -> bool:
        """Line 28: a strict comparison."""
        return ts < barrier


class CorrectedGroup(PublishedGroup):
    """Algorithm 3 with only two patches (erratum 003-8): '<=' in line 44, no discarding in the source group."""

    def __init__(self, name: str, senders: Sequence[str]) -> None:
        super().__init__(name, senders)
        self.decided: list[Message] = []

    def propose(self, *pending: Message) -> list[Message]:
        """Lines 25-29: the messages of propPending that are proposed; line 26 removes late ones."""
        return [m for m in pending if m.null or not any(m.ts < decided.ts for decided in self.decided)]

    def decide(self, *batch: Message) -> list[Message]:
        """Lines 30-39."""
        self.decided += batch
        return super().decide(*batch)

    def receive(self, source: str, m: Message) -> None:
        """Lines 40-43."""
        if m not in self.bar_pending and m.name not in self.delivered and not m.null:
            self.bar_pending.append(m)
        self.barrier[source] = max(m.ts, self.barrier[source])
        self.deliver()

    def passes(self, ts: float, barrier: float) -> bool:
        """Line 44, patched for erratum 003-4."""
        return ts <= barrier


class ImplementedGroup:
    """Our group log and barrier queue, which are the same at every member."""

    def __init__(self, name: str, topology: Topology = TWO_GROUPS) -> None:
        index = topology.index
        self.topology, self.number = topology, index(name)
        self.log = GroupLog(self.number, tuple(map(index, topology.receivers_from(name))))
        self.barrier_queue = BarrierQueue(self.number, tuple(map(index, topology.senders_to(name))))
        self.delivered: list[str] = []

    def cast(self, m: Message) -> Cast:
        packed = OutgoingMessages([m.name.encode()], same_size=True)
        bundle = Bundle(m.sender, 1, m.serial, m.serial, 0, b"".join(packed.parts()))
        return Cast(round(m.ts * 1000), self.topology.mask(m.to), bundle)

    def decide(self, *batch: Message) -> None:
        """Decide(k, msgSet)."""
        items = [Null(self.log.null_count, stamp_of(round(m.ts * 1000), 0)) if m.null else self.cast(m) for m in batch]
        for entry in self.log.apply(encode_value(items)):
            self.barrier_queue.add_own(entry)
        self.deliver()

    def receive_from(self, other: ImplementedGroup, upto: int | None = None) -> None:
        """Receive the entries of the other group's stream: the first `upto`, or all of them with its barrier."""
        stream = other.log.streams[self.number]
        entries = tuple(stream.entries)[:upto]
        self.barrier_queue.receive(other.number, stream.first, entries)
        if upto is None:
            self.barrier_queue.promise(other.number, stream.head, other.log.last_stamp)
        self.deliver()

    def deliver(self) -> None:
        for _, entry in self.barrier_queue.pop_deliverable(self.log.last_stamp):
            packed = read_packed_messages(entry.bundle.body, 0, len(entry.bundle.body))
            assert packed is not None
            self.delivered += [message.decode() for message in packed.messages()]


def agree(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two groups deliver the messages that both have in the same order."""
    return [name for name in one if name in other] == [name for name in other if name in one]
