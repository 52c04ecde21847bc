"""The results of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from unisono.model.events import Violation
from unisono.model.scenario import Scenario
from unisono.sim.traffic import MemberTraffic
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import RunMeta
from unisono.trace.table import Trace


@dataclass(frozen=True, slots=True)
class Overhead:
    """The traffic as measured, in frames per slot: the largest over all members (paper 000, Theorem 3)."""

    avg_rate: float
    """Frames per slot on average: the paper's NetAvgRate."""
    max_burst: int
    """The most frames in one slot: the paper's NetMaxBurst."""
    added_rate: float
    """Frames per slot beyond one for each message, on average: at most 1 while a message fits in a frame."""


@dataclass(frozen=True)
class Result:
    """The result of one run. Give its end, `until_ns`, to the checkers, so that they find undelivered messages."""

    scenario: Scenario
    seed: int
    meta: RunMeta
    memory_trace: MemoryTrace
    until_ns: int
    events: int
    """How many events were simulated: arrivals, timers, application inputs, faults."""
    datagrams: int
    """How many datagrams were put on links."""
    sent: dict[int, int]
    """By member, the messages that its stack accepted."""
    delivered: dict[int, int]
    unsent: dict[int, int]
    """By member, the messages that its stack had not accepted when the run ended."""
    traffic: dict[int, MemberTraffic]
    """By member, its frames and bytes in each slot."""
    datagrams_by_pair: dict[tuple[int, int], int]
    """By sender and receiver, the number of datagrams; receiver 0 is the whole group."""
    send_times: dict[tuple[int, int], list[int]]
    """By sender and receiver, the times of sending in milliseconds; only if the topology changes during the run."""
    violations: dict[int, list[Violation]]
    fault_hits: tuple[int, ...]
    """How many datagrams each link fault of the scenario has affected."""

    @cached_property
    def trace(self) -> Trace:
        """The trace of the run, as rows."""
        return self.memory_trace.trace(self.meta)

    @property
    def overhead(self) -> Overhead:
        """The measured average rate, largest burst and added rate (paper 000, Theorem 3)."""
        return Overhead(
            max((load.avg_rate for load in self.traffic.values()), default=0.0),
            max((load.max_burst for load in self.traffic.values()), default=0),
            max((self._added_rate(member) for member in self.traffic), default=0.0),
        )

    def _added_rate(self, member: int) -> float:
        load = self.traffic[member]
        return load.avg_rate - self.sent[member] / load.slot_count if load.slot_count else 0.0
