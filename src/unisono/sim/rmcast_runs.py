"""Many independent RMCasts among n processes, for statistics: only the automaton of net/rmcast/message.py runs.

This module adds the network (losses and delays of copies), crashes, and one loop over arrivals and deadlines. There are
four crash scenarios. Three are those of paper 002 §5.2: no process crashes; the originator crashes after copy 0; the
originator crashes in the middle of copy 0, which then reaches only a few processes. The fourth is that of Appendix C:
every process may crash at every send and before every take-over. To save time, the loop leaves out copies that their
receivers would ignore: those with a lower number than a copy that the receiver has. If receivers count copies, they
ignore none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

import numpy as np
import numpy.typing as npt

from unisono.errors import InvalidOption
from unisono.model.delays import DelayModel
from unisono.model.policy import Redundancy
from unisono.net.rmcast.message import MAXINT, NEVER, ZETA, RmcastMessage, RmcastRules
from unisono.sim.random_streams import sample_delays

CrashScenario = Literal["no crash", "originator crashes", "direct receivers", "anybody crashes"]

ORIGINATOR = 0
NOT_REACHED = 2**62
"""The arrival time at a process that never gets a copy."""
_MEMBER_BITS = 12
_MEMBER_MASK = (1 << _MEMBER_BITS) - 1
_TIME_SHIFT = 2 * _MEMBER_BITS
_MAX_DELAY_NS = (2**62 >> _TIME_SHIFT) - 1
_ROWS_PER_DRAW = 512
_CRASHED = -1


@dataclass(frozen=True, slots=True)
class RmcastCase:
    """One point of an experiment: the group, its protocol, its network, and its crashes."""

    members: int
    redundancy: Redundancy
    delay: DelayModel
    loss: float
    scenario: CrashScenario = "no crash"
    direct_receivers: int = 0
    """In the scenario "direct receivers": how many processes copy 0 reaches. No such copy is lost (erratum 002-17)."""
    crash_in_send_probability: float = 0.0
    """β: the probability that a broadcaster crashes after a send to one receiver. Only for "anybody crashes"."""
    crash_before_takeover_probability: float = 0.0
    """v: the probability that a process crashes before it takes over. Only for the scenario "anybody crashes"."""

    def __post_init__(self) -> None:
        if self.members < 2 or self.members * (self.redundancy.rho + 1) > _MEMBER_MASK:
            most = _MEMBER_MASK // (self.redundancy.rho + 1)
            raise InvalidOption(
                "members", f"expected 2 to {most} members for ρ = {self.redundancy.rho}, got {self.members}"
            )
        if not 0 <= self.loss < 1:
            raise InvalidOption("loss", f"expected a probability of at least 0 and less than 1, got {self.loss}")
        if (self.scenario == "direct receivers") != (0 < self.direct_receivers < self.members):
            raise InvalidOption(
                "direct",
                f"expected 1 to {self.members - 1} receivers in the scenario 'direct receivers', and 0 in others; "
                f"got {self.direct_receivers} in the scenario {self.scenario!r}",
            )
        if self.scenario != "anybody crashes" and (
            self.crash_in_send_probability or self.crash_before_takeover_probability
        ):
            raise InvalidOption(
                "scenario",
                "crash_in_send_probability and crash_before_takeover_probability apply only to the scenario 'anybody "
                f"crashes'; leave them out in the scenario {self.scenario!r}",
            )


@dataclass(slots=True)
class RmcastOutcomes:
    """Measurements of each run, in nanoseconds since the call; NOT_REACHED if a process never gets the message."""

    first_ns: npt.NDArray[np.int64]
    """When the first destination got the message."""
    one_receiver_ns: npt.NDArray[np.int64]
    """When one destination, drawn at random, got the message."""
    last_ns: npt.NDArray[np.int64]
    """When the last destination that did not crash got the message."""
    broadcasts: npt.NDArray[np.int64]

    def disagreed(self) -> npt.NDArray[np.bool_]:
        """Whether a destination got the message and another, which did not crash, never did."""
        return (self.first_ns < NOT_REACHED) & (self.last_ns >= NOT_REACHED)

    def spread_after_one_receiver_ns(self) -> npt.NDArray[np.int64]:
        """The time from the arrival at one destination, drawn at random, to the arrival at the last one.

        Only for the runs in which the drawn destination got the message; 0 if it was the last one.
        """
        reached = self.one_receiver_ns < NOT_REACHED
        last_ns, one_ns = self.last_ns[reached], self.one_receiver_ns[reached]
        return np.where(last_ns >= NOT_REACHED, NOT_REACHED, last_ns - one_ns)

    def spread_ns(self) -> npt.NDArray[np.int64]:
        """The time from the arrival at the first destination to the arrival at the last one.

        NOT_REACHED if a destination that did not crash never got the message; 0 if no destination got it.
        """
        spread = np.where(self.last_ns >= NOT_REACHED, NOT_REACHED, self.last_ns - self.first_ns)
        return np.where(self.first_ns >= NOT_REACHED, 0, spread)


class RmcastRuns:
    """Runs many RMCasts of one case, with common protocol rules and one source of random numbers."""

    def __init__(self, case: RmcastCase, chance: np.random.Generator) -> None:
        self._case = case
        self._chance = chance
        self._arrivals = self._random_arrivals()
        zetas = self._random_zetas()

        def zeta(_eta_ns: int) -> int:
            return next(zetas)

        self._rules = [RmcastRules(i, case.members, case.redundancy, zeta) for i in range(case.members)]
        for rules in self._rules:
            # The tables of an adaptive rule are the same for all processes.
            rules.omega_rule = self._rules[0].omega_rule

    def run(self, runs: int) -> RmcastOutcomes:
        """Run this many RMCasts, one after the other."""
        others = self._case.members - 1
        drawn = 1 + (self._chance.random(runs) * others).astype(np.int64)
        first, at_drawn, last, broadcasts = [], [], [], []
        for index in range(runs):
            received_ns, crashed, broadcast_count = self._run_once()
            first.append(min(received_ns[1:]))
            at_drawn.append(received_ns[drawn[index]])
            if crashed:
                # If all destinations crashed, none of them misses the message.
                last.append(
                    max((at for process, at in enumerate(received_ns[1:], 1) if process not in crashed), default=0)
                )
            else:
                last.append(max(received_ns[1:]))
            broadcasts.append(broadcast_count)
        columns = (np.array(column, dtype=np.int64) for column in (first, at_drawn, last, broadcasts))
        return RmcastOutcomes(*columns)

    def _run_once(self) -> tuple[list[int], list[int], int]:
        """When each process first got the message, which processes crashed, and how many broadcasts there were."""
        case = self._case
        run = _SingleRun(self._rules, case, self._chance)
        now, broadcaster, copy_number = 0, ORIGINATOR, run.messages[ORIGINATOR].originate(0)
        copies = next(self._arrivals)
        if case.scenario == "direct receivers":
            copies = self._direct_copies()
        if case.scenario in {"originator crashes", "direct receivers"}:
            run.alarm_ns[ORIGINATOR] = _CRASHED
        while True:
            if run.any_may_crash and (served_count := self._sends_before_crash()) < case.members - 1:
                served = self._receivers_served(broadcaster, served_count)
                copies = [copy for copy in copies if copy & _MEMBER_MASK in served]
                run.crash(broadcaster)
            run.broadcast(now, broadcaster, copy_number, copies)
            following = run.next_broadcast()
            if following is None:
                return run.received_ns, run.crashed, len(run.broadcasts)
            now, broadcaster, copy_number = following
            copies = next(self._arrivals)

    def _sends_before_crash(self) -> int:
        """Draw how many sends a broadcaster makes before it crashes. One with fewer receivers does not crash."""
        if self._case.crash_in_send_probability <= 0:
            return self._case.members
        return int(self._chance.geometric(self._case.crash_in_send_probability))

    def _receivers_served(self, broadcaster: int, count: int) -> set[int]:
        """Draw the `count` receivers that get a broadcast before its broadcaster crashes."""
        order = self._chance.permutation(self._case.members).tolist()
        order.remove(broadcaster)
        return set(order[:count])

    def _direct_copies(self) -> list[int]:
        """Draw which `direct_receivers` processes copy 0 reaches, and its delay to each of them."""
        case = self._case
        chosen = 1 + self._chance.permutation(case.members - 1)[: case.direct_receivers]
        delays = sample_delays(case.delay, self._chance.random(case.direct_receivers))
        return [
            (delay << _TIME_SHIFT) | receiver for delay, receiver in zip(delays.tolist(), chosen.tolist(), strict=True)
        ]

    def _random_arrivals(self) -> Iterator[list[int]]:
        """Yield, for each broadcast, the copies that arrive, the longest delay first.

        Each copy is one number that combines its delay and its receiver.
        """
        case, chance = self._case, self._chance
        everyone = np.arange(case.members, dtype=np.int64)
        while True:
            delays = sample_delays(case.delay, chance.random((_ROWS_PER_DRAW, case.members)))
            codes = (np.minimum(delays, _MAX_DELAY_NS) << _TIME_SHIFT) | everyone
            lost = chance.random((_ROWS_PER_DRAW, case.members)) < case.loss
            codes[lost] = -1
            codes = -np.sort(-codes, axis=1)
            arriving = case.members - lost.sum(axis=1)
            for row, count in zip(codes.tolist(), arriving.tolist(), strict=True):
                yield row[:count]

    def _random_zetas(self) -> Iterator[int]:
        """Draw values of ζ, the wait before a take-over, uniformly from (0, η)."""
        eta = self._case.redundancy.eta_ns
        while True:
            yield from np.ceil(self._chance.random(4096) * (eta - 1)).astype(np.int64).tolist()


class _SingleRun:
    """One RMCast: the automaton of each process, the copies under way, and the alarms."""

    __slots__ = (
        "_alarms",
        "_arrivals",
        "_case",
        "_chance",
        "_counts_copies",
        "alarm_ns",
        "any_may_crash",
        "broadcasts",
        "crashed",
        "messages",
        "received_ns",
    )

    def __init__(self, rules: Sequence[RmcastRules], case: RmcastCase, chance: np.random.Generator) -> None:
        self._case = case
        self._chance = chance
        self.any_may_crash = case.scenario == "anybody crashes"
        self._counts_copies = rules[0].enough_broadcasts > 0
        self.messages = [RmcastMessage(each, ORIGINATOR) for each in rules]
        self.received_ns = [NOT_REACHED] * case.members
        """When each process first got the message."""
        self.crashed: list[int] = []
        self.broadcasts: list[tuple[int, int]] = []
        """(copy number, broadcaster) of each broadcast; arrivals refer to a broadcast by its index."""
        self._arrivals: list[int] = []
        """Sorted so that the next arrival is last. Each number combines time, index in `broadcasts` and receiver."""
        self.alarm_ns = [NEVER] * case.members
        """The time of each process's alarm; _CRASHED, which no alarm can precede, for a crashed process."""
        self._alarms: list[tuple[int, int]] = []
        """A heap of (time, process). An entry whose time is not in `alarm_ns` has been replaced."""

    def crash(self, process: int) -> None:
        """Let a process stop: its alarm never fires again."""
        self.alarm_ns[process] = _CRASHED
        self.crashed.append(process)

    def broadcast(self, now: int, broadcaster: int, copy_number: int, copies: Sequence[int]) -> None:
        """Put copies on their way. Each copy is one number that combines its delay and its receiver."""
        messages = self.messages
        base = (now << _TIME_SHIFT) | (len(self.broadcasts) << _MEMBER_BITS)
        self.broadcasts.append((copy_number, broadcaster))
        # A receiver ignores a copy below its `max_recd`, unless it counts copies.
        highest_needed = MAXINT - 1 if self._counts_copies else copy_number
        self._arrivals += [
            base + copy
            for copy in copies
            if messages[copy & _MEMBER_MASK].max_recd <= highest_needed and copy & _MEMBER_MASK != broadcaster
        ]
        self._arrivals.sort(reverse=True)
        deadline = messages[broadcaster].deadline
        if deadline < self.alarm_ns[broadcaster]:
            self.alarm_ns[broadcaster] = deadline
            heappush(self._alarms, (deadline, broadcaster))

    def next_broadcast(self) -> tuple[int, int, int] | None:
        """Process arrivals and alarms up to the next broadcast. Return its time, broadcaster and copy number.

        Return None if nothing is left to happen.
        """
        while self._alarms or self._arrivals:
            self._process_arrivals()
            if self._alarms:
                now, process = heappop(self._alarms)
                copy_number = self._on_alarm(now, process)
                if copy_number >= 0:
                    return now, process, copy_number
        return None

    def _process_arrivals(self) -> None:
        """Process all arrivals up to the first alarm; an arrival at the very instant of the alarm comes first."""
        arrivals, alarms, alarm_ns = self._arrivals, self._alarms, self.alarm_ns
        until = (alarms[0][0] + 1) << _TIME_SHIFT if alarms else arrivals[0] + 1
        while arrivals and arrivals[-1] < until:
            arrival = arrivals.pop()
            receiver = arrival & _MEMBER_MASK
            message = self.messages[receiver]
            copy_number, broadcaster = self.broadcasts[(arrival >> _MEMBER_BITS) & _MEMBER_MASK]
            if message.on_copy(arrival >> _TIME_SHIFT, copy_number, broadcaster):
                self.received_ns[receiver] = arrival >> _TIME_SHIFT
            deadline = message.deadline
            if deadline < alarm_ns[receiver]:
                alarm_ns[receiver] = deadline
                heappush(alarms, (deadline, receiver))
                until = (alarms[0][0] + 1) << _TIME_SHIFT

    def _on_alarm(self, now: int, process: int) -> int:
        """Wake a process. Return the number of the copy that it broadcasts now, or -1 if it broadcasts none."""
        if self.alarm_ns[process] != now:
            return -1
        message = self.messages[process]
        if message.deadline > now:  # the deadline was postponed
            self.alarm_ns[process] = message.deadline
            if message.deadline < NEVER:
                heappush(self._alarms, (message.deadline, process))
            return -1
        if (
            self.any_may_crash
            and message.phase == ZETA
            and self._chance.random() < self._case.crash_before_takeover_probability
        ):
            self.crash(process)
            return -1
        copy_number = message.wake(now)
        self.alarm_ns[process] = NEVER
        if copy_number < 0:
            self.alarm_ns[process] = message.deadline
            heappush(self._alarms, (message.deadline, process))
        return copy_number
