"""Two models for the tests of paper 003: Algorithm 1 as it is printed, and ours, each with an ideal consensus.

A test says who decides what, and what reaches whom when. In both, one value stands for a group whose members agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.model.topology import Topology
from unisono.orders.multigroup.barriers import BarrierQueue
from unisono.orders.multigroup.group_log import GroupLog
from unisono.orders.multigroup.messages import Cast, Null, checked_bundle, encode_value, stamp_of
from unisono.wire.bundles import Bundle, encode_bundle
from unisono.wire.packed_messages import OutgoingMessages, read_packed_messages

EVERYBODY = Topology({"0": (1, 2, 3), "1": (4, 5, 6)}, {"0": ("0", "1"), "1": ("0", "1")})


@dataclass(frozen=True, slots=True)
class Message:
    """m: its name, m.ts, who sent it, its number there, and m.dst."""

    name: str
    ts: float
    sender: int
    serial: int = 0
    to: tuple[str, ...] = ("0", "1")
    null: bool = False


class PublishedGroup:
    """Algorithm 1 as printed, line by line, for a group whose members have decided the same."""

    def __init__(self, name: str, senders: Sequence[str]) -> None:
        self.name = name
        self.barrier = {sender: float("-inf") for sender in senders if sender != name}  # lines 2-4
        self.bar_pending: list[Message] = []
        self.delivered: list[str] = []

    def decide(self, *batch: Message) -> list[Message]:
        """Lines 19-27; what is sent to other groups, which is as much as a strict minimum can be found (23-25)."""
        self.bar_pending += [m for m in batch if self.name in m.to and not m.null]
        rest, sent = list(batch), []
        while (smallest := [m for m in rest if all(m == n or m.ts < n.ts for n in rest)]) != []:
            sent.append(smallest[0])
            rest.remove(smallest[0])
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
        """Line 28: strictly."""
        return ts < barrier


class CorrectedGroup(PublishedGroup):
    """Algorithm 3 with two patches and no more (erratum 003-8): '<=' in line 44, no discarding in the source group."""

    def __init__(self, name: str, senders: Sequence[str]) -> None:
        super().__init__(name, senders)
        self.decided: list[Message] = []

    def propose(self, *pending: Message) -> list[Message]:
        """Lines 25-29: what of propPending is proposed, which line 26 takes everything from that is late."""
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
    """The group log and the gate, as every member has them."""

    def __init__(self, name: str, topology: Topology = EVERYBODY) -> None:
        number = topology.index
        self.topology, self.number = topology, number(name)
        self.log = GroupLog(self.number, tuple(map(number, topology.receivers_from(name))))
        self.gate = BarrierQueue(self.number, tuple(map(number, topology.senders_to(name))))
        self.delivered: list[str] = []

    def cast(self, m: Message) -> Cast:
        run = OutgoingMessages([m.name.encode()], same_size=True)
        parcel = Bundle(m.sender, 1, m.serial, m.serial, 0, b"".join(run.parts()))
        return Cast(round(m.ts * 1000), self.topology.mask(m.to), encode_bundle(parcel))

    def decide(self, *batch: Message) -> None:
        """Decide(k, msgSet)."""
        items = [Null(self.log.null_count, stamp_of(round(m.ts * 1000), 0)) if m.null else self.cast(m) for m in batch]
        own = self.log.apply(encode_value(items))
        assert own is not None
        for entry in own:
            self.gate.add_own(entry)
        self.deliver()

    def receive_from(self, other: ImplementedGroup, upto: int | None = None) -> None:
        """All that the other group has decided for this one, or its first entries, and the barrier behind them."""
        stream = other.log.streams[self.number]
        entries = tuple(stream.entries)[:upto]
        self.gate.receive(other.number, stream.first, entries)
        if upto is None:
            self.gate.promise(other.number, stream.head, other.log.last_stamp)
        self.deliver()

    def deliver(self) -> None:
        for _, entry in self.gate.pop_deliverable(self.log.last_stamp):
            parcel = checked_bundle(entry.bundle)
            run = read_packed_messages(parcel.body, 0, len(parcel.body))
            assert run is not None
            self.delivered += [message.decode() for message in run.messages()]


def agree(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two groups have what both delivered in one order."""
    return [name for name in one if name in other] == [name for name in other if name in one]
