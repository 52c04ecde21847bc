"""One reliable multicast among n processes: the automata of paper 002 §3.4 on an event heap.

A function of the caller chooses the result of each broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from unisono.model.policy import Redundancy
from unisono.net.rmcast.message import NO_COPY, RmcastMessage, RmcastRules

MS = 1_000_000
ORIGINATOR = 1


@dataclass(frozen=True)
class Broadcast:
    """A broadcast that is about to be made: the `index`th of its broadcaster."""

    at: int
    broadcaster: int
    copy: int
    index: int


@dataclass(frozen=True)
class BroadcastResult:
    """The result of a broadcast."""

    delays_ns: dict[int, int]
    """The delay to each process that receives it."""
    crashes: bool = False
    """Whether the broadcaster crashes during it."""


ChooseResult = Callable[[Broadcast, list[int]], BroadcastResult]


@dataclass
class Outcome:
    """The events of one multicast."""

    broadcasts: list[Broadcast] = field(default_factory=list)
    delivered: dict[int, int] = field(default_factory=dict)
    """The delivery time at each process that delivered."""
    crashed: set[int] = field(default_factory=set)
    reached: dict[int, set[int]] = field(default_factory=dict)
    """The processes that received at least one copy of a broadcaster, by broadcaster."""
    ended_ns: int = 0

    def correct(self, n: int) -> set[int]:
        return set(range(1, n + 1)) - self.crashed

    def is_uniform(self, n: int) -> bool:
        """Whether all correct processes have the message, or none of them."""
        holders = self.correct(n) & set(self.delivered)
        return not holders or holders == self.correct(n)

    def finishers_reached_all(self, n: int, rho: int) -> bool:
        """Whether every process that broadcast copy ρ has reached every correct process with at least one copy."""
        finishers = {b.broadcaster for b in self.broadcasts if b.copy == rho}
        return all(self.correct(n) - {f} <= self.reached[f] for f in finishers)


def run_multicast(
    n: int,
    redundancy: Redundancy,
    choose_result: ChooseResult,
    zeta: Callable[[int, int], int],
    originator: int = ORIGINATOR,
) -> Outcome:
    """One multicast in a group of n; `zeta(member, η)` draws ζ."""
    rules = {
        i: RmcastRules(i, n, redundancy, lambda eta, i=i: zeta(i, eta))  # type: ignore[misc]
        for i in range(1, n + 1)
    }
    processes = {i: RmcastMessage(rules[i], originator) for i in rules}
    outcome = Outcome()
    heap: list[tuple[int, int, int, int, int, int]] = []
    broadcasts_made = dict.fromkeys(processes, 0)

    def broadcast(now: int, i: int, k: int) -> None:
        event = Broadcast(now, i, k, broadcasts_made[i])
        broadcasts_made[i] += 1
        outcome.broadcasts.append(event)
        result = choose_result(event, [j for j in processes if j != i])
        outcome.reached.setdefault(i, set()).update(result.delays_ns)
        for j, delay in result.delays_ns.items():
            heappush(heap, (now + delay, 0, len(outcome.broadcasts), j, k, i))
        if result.crashes:
            outcome.crashed.add(i)
        else:
            schedule(i)

    def schedule(i: int) -> None:
        heappush(heap, (processes[i].deadline, 1, 0, i, 0, 0))

    outcome.delivered[originator] = 0
    broadcast(0, originator, processes[originator].originate(0))
    while heap and heap[0][0] < 2**62:
        now, timer, _, i, k, source = heappop(heap)
        process = processes[i]
        if i in outcome.crashed:
            continue
        outcome.ended_ns = now
        if timer:
            if process.deadline == now and (copy := process.wake(now)) != NO_COPY:
                broadcast(now, i, copy)
                continue
        elif process.on_copy(now, k, source):
            outcome.delivered[i] = now
        schedule(i)
    return outcome


class Explorer:
    """Enumerates all combinations of choices, depth first: each path repeats the run with the next combination."""

    def __init__(self) -> None:
        self._path: list[list[int]] = []
        self._depth = 0

    def paths(self) -> Iterator[None]:
        while True:
            self._depth = 0
            yield
            while self._path and self._path[-1][0] + 1 == self._path[-1][1]:
                self._path.pop()
            if not self._path:
                return
            self._path[-1][0] += 1

    def choose(self, options: int) -> int:
        """A number below `options`."""
        if self._depth == len(self._path):
            self._path.append([0, options])
        choice = self._path[self._depth][0]
        self._depth += 1
        return choice
