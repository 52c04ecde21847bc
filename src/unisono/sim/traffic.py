"""What members put on the network, slot by slot: the figures of Theorem 3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from unisono.model.durations import NS_PER_MS
from unisono.stack import Datagram
from unisono.wire.frame import KIND_AT, Kind, unpack_header

_SLOT = 10
"""Where a header's fields have the slot."""
_COUNTED = frozenset(map(int, (Kind.DATA, Kind.FEC, Kind.RMCAST)))


@dataclass(slots=True)
class Load:
    """One member's datagrams. Data frames count for the slot that they belong to, whenever they leave."""

    frames: dict[int, int] = field(default_factory=dict)
    bytes: dict[int, int] = field(default_factory=dict)
    control_frames: int = 0
    control_bytes: int = 0

    @property
    def slots(self) -> int:
        """How many slots were sent: each has at least its end-of-slot mark."""
        return len(self.frames)

    @property
    def avg_rate(self) -> float:
        """NetAvgRate as sent, in frames per slot."""
        return sum(self.frames.values()) / len(self.frames) if self.frames else 0.0

    @property
    def max_burst(self) -> int:
        """NetMaxBurst as sent, in frames per slot."""
        return max(self.frames.values(), default=0)


class Ledger:
    """Counts the datagrams of every member; one to everyone counts once, as the paper's net-mcast does."""

    def __init__(self, *, timed: bool = False) -> None:
        self.loads: dict[int, Load] = {}
        self.contacts: dict[tuple[int, int], list[int]] = {}
        """When each member has sent to each, to the millisecond; empty unless `timed`."""
        self.timed = timed
        self.pairs: Counter[tuple[int, int]] = Counter()
        """How many datagrams each member has sent to each; 0 stands for everybody."""

    def meet(self, now: int, member: int, datagrams: Sequence[Datagram]) -> None:
        """A member sends these now."""
        when = now - now % NS_PER_MS
        for datagram in datagrams:
            times = self.contacts.setdefault((member, datagram.to), [])
            if not times or times[-1] != when:
                times.append(when)

    def note(self, member: int, datagrams: Sequence[Datagram]) -> None:
        """A member sends these."""
        load = self.loads.get(member)
        if load is None:
            load = self.loads[member] = Load()
        for datagram in datagrams:
            self.pairs[member, datagram.to] += 1
            size = len(datagram.data)
            if datagram.data[KIND_AT] not in _COUNTED:
                load.control_frames += 1
                load.control_bytes += size
                continue
            slot = unpack_header(datagram.data, 0)[_SLOT]
            load.frames[slot] = load.frames.get(slot, 0) + 1
            load.bytes[slot] = load.bytes.get(slot, 0) + size
