"""The traffic of each member, slot by slot: the quantities of paper 000, Theorem 3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from unisono.model.effects import Datagram
from unisono.model.units import EVERYONE, NS_PER_MS
from unisono.wire.frame import KIND_AT, Kind, unpack_header

_SLOT_FIELD = 10
"""The index of the slot among the fields of a header."""
_DATA_KINDS = frozenset(map(int, (Kind.DATA, Kind.FEC, Kind.RMCAST)))


@dataclass(slots=True)
class MemberTraffic:
    """One member's datagrams. A data frame counts for its slot, even if it leaves later."""

    frames_by_slot: dict[int, int] = field(default_factory=dict)
    bytes_by_slot: dict[int, int] = field(default_factory=dict)
    control_frames: int = 0
    control_bytes: int = 0

    @property
    def slot_count(self) -> int:
        """How many slots were sent: each has at least its end-of-slot mark."""
        return len(self.frames_by_slot)

    @property
    def avg_rate(self) -> float:
        """The average number of frames per slot that the member sent (the paper's NetAvgRate)."""
        return sum(self.frames_by_slot.values()) / len(self.frames_by_slot) if self.frames_by_slot else 0.0

    @property
    def max_burst(self) -> int:
        """The most frames that the member sent in one slot (the paper's NetMaxBurst)."""
        return max(self.frames_by_slot.values(), default=0)


class TrafficLedger:
    """Counts the datagrams of every member. A datagram to the whole group counts once, like the paper's net-mcast."""

    def __init__(self, *, keeps_send_times: bool = False) -> None:
        self.traffic: dict[int, MemberTraffic] = {}
        self.send_times: dict[tuple[int, int], list[int]] = {}
        """By sender and receiver, the times of sending in milliseconds; empty unless `keeps_send_times`."""
        self.keeps_send_times = keeps_send_times
        self.datagrams_by_pair: Counter[tuple[int, int]] = Counter()
        """By sender and receiver, the number of datagrams; receiver 0 is the whole group."""

    def record_send_times(self, now: int, member: int, datagrams: Sequence[Datagram]) -> None:
        """Record the times at which a member sends datagrams."""
        millisecond = now - now % NS_PER_MS
        for datagram in datagrams:
            times = self.send_times.setdefault((member, _pair_receiver(datagram)), [])
            if not times or times[-1] != millisecond:
                times.append(millisecond)

    def record(self, member: int, datagrams: Sequence[Datagram]) -> None:
        """Count the datagrams that a member sends."""
        load = self.traffic.get(member)
        if load is None:
            load = self.traffic[member] = MemberTraffic()
        for datagram in datagrams:
            self.datagrams_by_pair[member, _pair_receiver(datagram)] += 1
            size = len(datagram.data)
            if datagram.data[KIND_AT] not in _DATA_KINDS:
                load.control_frames += 1
                load.control_bytes += size
                continue
            slot = unpack_header(datagram.data, 0)[_SLOT_FIELD]
            load.frames_by_slot[slot] = load.frames_by_slot.get(slot, 0) + 1
            load.bytes_by_slot[slot] = load.bytes_by_slot.get(slot, 0) + size


def _pair_receiver(datagram: Datagram) -> int:
    """The one member that a datagram goes to; 0 if it goes to the whole group."""
    return EVERYONE if datagram.to_group else datagram.destinations[0]
