"""Many independent RMCasts among n processes, for counting: the automaton of net/rmcast/message.py and nothing else.

Here is only the network (who loses a copy, how long it takes), crashes, and one loop over arrivals and deadlines. The
scenarios are paper 002's (§5.2): nobody crashes; the originator crashes after copy 0; it crashes in the middle of
copy 0, which then reaches a few. A fourth is Appendix C's: every process may crash at every send and before every
takeover. A copy that its receiver will ignore is not carried: `max_recd` never falls, and what is below it counts only
where copies are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

import numpy as np
import numpy.typing as npt

from unisono.errors import InvalidOption
from unisono.model.delays import DelayModel
from unisono.model.redundancy import Redundancy
from unisono.net.rmcast.message import MAXINT, NEVER, ZETA, RmcastMessage, RmcastRules
from unisono.sim.random_streams import sample_delays

CrashScenario = Literal["no crash", "originator crashes", "direct receivers", "anybody crashes"]

ORIGINATOR = 0
NOT_REACHED = 2**62
"""The time at which a process that never got a copy got it."""
_MEMBER_BITS = 12
_MEMBER_MASK = (1 << _MEMBER_BITS) - 1
_TIME_SHIFT = 2 * _MEMBER_BITS
_MAX_DELAY_NS = (2**62 >> _TIME_SHIFT) - 1
_ROWS_PER_DRAW = 512
_CRASHED = -1


@dataclass(frozen=True, slots=True)
class RmcastCase:
    """One point of an experiment: the group, its protocol, its network, and what crashes."""

    members: int
    redundancy: Redundancy
    delay: DelayModel
    loss: float
    scenario: CrashScenario = "no crash"
    direct_receivers: int = 0
    """How many processes copy 0 reaches in scenario 3; none of those copies is lost (002-17)."""
    crash_in_send_probability: float = 0.0
    """β: the probability that a broadcaster crashes after a send to one receiver, where anybody may crash."""
    crash_before_takeover_probability: float = 0.0
    """v: the probability that a process crashes before it takes over, where anybody may crash."""

    def __post_init__(self) -> None:
        if self.members < 2 or self.members * (self.redundancy.rho + 1) > _MEMBER_MASK:
            raise InvalidOption("members", f"2 to {_MEMBER_MASK} / (ρ+1) are possible, not {self.members}")
        if not 0 <= self.loss < 1:
            raise InvalidOption("loss", f"a share from 0 to less than 1 is needed, not {self.loss}")
        if (self.scenario == "direct receivers") != (0 < self.direct_receivers < self.members):
            raise InvalidOption(
                "direct", f"1 to {self.members - 1} go with 'direct receivers', not {self.direct_receivers}"
            )
        if self.scenario != "anybody crashes" and (
            self.crash_in_send_probability or self.crash_before_takeover_probability
        ):
            raise InvalidOption("scenario", "β and v go with 'anybody crashes', and only with it")


@dataclass(slots=True)
class RmcastOutcomes:
    """What was seen of each run, in nanoseconds since the call; NOT_REACHED where somebody never got the message."""

    first_ns: npt.NDArray[np.int64]
    """When the first destination had it."""
    one_receiver_ns: npt.NDArray[np.int64]
    """When one destination, drawn at random, had it."""
    last_ns: npt.NDArray[np.int64]
    """When the last destination that did not crash had it."""
    broadcasts: npt.NDArray[np.int64]

    def disagreed(self) -> npt.NDArray[np.bool_]:
        """Whether somebody had the message and somebody who did not crash never did."""
        return (self.first_ns < NOT_REACHED) & (self.last_ns >= NOT_REACHED)

    def spread_after_one_receiver_ns(self) -> npt.NDArray[np.int64]:
        """From the given destination to the last, of those runs in which it got the message; 0 if it was the last."""
        had = self.one_receiver_ns < NOT_REACHED
        last, given = self.last_ns[had], self.one_receiver_ns[had]
        return np.where(last >= NOT_REACHED, NOT_REACHED, last - given)

    def spread_ns(self) -> npt.NDArray[np.int64]:
        """From the first to the last; NOT_REACHED if there is none, 0 if nobody got it at all."""
        spread = np.where(self.last_ns >= NOT_REACHED, NOT_REACHED, self.last_ns - self.first_ns)
        return np.where(self.first_ns >= NOT_REACHED, 0, spread)


class RmcastRuns:
    """The loop, and what its runs have in common."""

    def __init__(self, case: RmcastCase, chance: np.random.Generator) -> None:
        self._case = case
        self._chance = chance
        self._arrivals = self._random_arrivals()
        zetas = self._random_zetas()

        def zeta(_eta_ns: int) -> int:
            return next(zetas)

        self._rules = [RmcastRules(i, case.members, case.redundancy, zeta) for i in range(case.members)]
        for rules in self._rules:
            # The tables of an adaptive rule depend on nothing that differs between processes.
            rules.omega_rule = self._rules[0].omega_rule

    def run(self, runs: int) -> RmcastOutcomes:
        """That many RMCasts, one after the other."""
        others = self._case.members - 1
        given = 1 + (self._chance.random(runs) * others).astype(np.int64)
        first, at_given, last, broadcasts = [], [], [], []
        for index in range(runs):
            got, dead, count = self._run_once()
            first.append(min(got[1:]))
            at_given.append(got[given[index]])
            if dead:
                # Where everybody crashed nobody is left to miss it.
                last.append(max((at for who, at in enumerate(got[1:], 1) if who not in dead), default=0))
            else:
                last.append(max(got[1:]))
            broadcasts.append(count)
        columns = (np.array(column, dtype=np.int64) for column in (first, at_given, last, broadcasts))
        return RmcastOutcomes(*columns)

    def _run_once(self) -> tuple[list[int], list[int], int]:
        """When each process first got the message, which of them crashed, and how many broadcasts there were."""
        setting, rows = self._case, self._arrivals
        mortal, crashes_at_once = setting.scenario == "anybody crashes", setting.scenario != "no crash"
        # What is below a receiver's `max_recd` matters only to one that counts.
        counts = self._rules[0].enough_broadcasts > 0
        messages = [RmcastMessage(rules, ORIGINATOR) for rules in self._rules]
        got = [NOT_REACHED] * setting.members
        dead: list[int] = []
        # What has been broadcast, as (copy number, broadcaster); arrivals refer to it by its place.
        sent: list[tuple[int, int]] = []
        # Arrivals, the soonest last, each one number: time, place in `sent`, receiver.
        coming: list[int] = []
        # (time, process), at most one that counts per process: `asked`. A deadline that moved back is looked at again.
        # Who has crashed is asked for at a time before all others, and so never again.
        alarms: list[tuple[int, int]] = []
        asked = [NEVER] * setting.members

        now, who, k = 0, ORIGINATOR, messages[ORIGINATOR].originate(0)
        row = next(rows)
        if setting.scenario == "direct receivers":
            row = self._direct_copies()
        if crashes_at_once and not mortal:
            asked[ORIGINATOR] = _CRASHED
        while True:
            if mortal and (reach := self._sends_before_crash()) < setting.members - 1:
                served = self._receivers_served(who, reach)
                row = [code for code in row if code & _MEMBER_MASK in served]
                asked[who] = _CRASHED
                dead.append(who)
            base = (now << _TIME_SHIFT) | (len(sent) << _MEMBER_BITS)
            sent.append((k, who))
            up_to = MAXINT - 1 if counts else k
            coming += [
                base + code
                for code in row
                if messages[code & _MEMBER_MASK].max_recd <= up_to and code & _MEMBER_MASK != who
            ]
            coming.sort(reverse=True)
            deadline = messages[who].deadline
            if deadline < asked[who]:
                asked[who] = deadline
                heappush(alarms, (deadline, who))
            # Until somebody broadcasts: arrivals, and alarms between them; an arrival at the very instant goes first.
            while True:
                if alarms:
                    now, who = alarms[0]
                    until = (now + 1) << _TIME_SHIFT
                elif coming:
                    until = coming[0] + 1
                else:
                    return got, dead, len(sent)
                while coming and coming[-1] < until:
                    code = coming.pop()
                    receiver = code & _MEMBER_MASK
                    message = messages[receiver]
                    number, broadcaster = sent[(code >> _MEMBER_BITS) & _MEMBER_MASK]
                    if message.on_copy(code >> _TIME_SHIFT, number, broadcaster):
                        got[receiver] = code >> _TIME_SHIFT
                    deadline = message.deadline
                    if deadline < asked[receiver]:
                        asked[receiver] = deadline
                        heappush(alarms, (deadline, receiver))
                        now, who = alarms[0]
                        until = (now + 1) << _TIME_SHIFT
                if not alarms:
                    continue
                heappop(alarms)
                if asked[who] != now:
                    continue
                message = messages[who]
                if message.deadline > now:
                    asked[who] = deadline = message.deadline
                    if deadline < NEVER:
                        heappush(alarms, (deadline, who))
                    continue
                if (
                    mortal
                    and message.phase == ZETA
                    and self._chance.random() < setting.crash_before_takeover_probability
                ):
                    asked[who] = _CRASHED
                    dead.append(who)
                    continue
                k = message.wake(now)
                asked[who] = NEVER
                if k >= 0:
                    row = next(rows)
                    break
                asked[who] = deadline = message.deadline
                heappush(alarms, (deadline, who))

    def _sends_before_crash(self) -> int:
        """How many receivers a broadcaster serves before it crashes; as many as there are, or more: it does not."""
        if self._case.crash_in_send_probability <= 0:
            return self._case.members
        return int(self._chance.geometric(self._case.crash_in_send_probability))

    def _receivers_served(self, broadcaster: int, count: int) -> set[int]:
        """The first receivers of a broadcast, in an order drawn at random."""
        order = self._chance.permutation(self._case.members).tolist()
        order.remove(broadcaster)
        return set(order[:count])

    def _direct_copies(self) -> list[int]:
        """Copy 0 at exactly `direct` receivers, drawn at random."""
        setting = self._case
        chosen = 1 + self._chance.permutation(setting.members - 1)[: setting.direct_receivers]
        took = sample_delays(setting.delay, self._chance.random(setting.direct_receivers))
        return [(delay << _TIME_SHIFT) | who for delay, who in zip(took.tolist(), chosen.tolist(), strict=True)]

    def _random_arrivals(self) -> Iterator[list[int]]:
        """For each broadcast the copies that arrive, as delay and receiver in one number, the last one first."""
        setting, chance = self._case, self._chance
        everyone = np.arange(setting.members, dtype=np.int64)
        while True:
            took = sample_delays(setting.delay, chance.random((_ROWS_PER_DRAW, setting.members)))
            codes = (np.minimum(took, _MAX_DELAY_NS) << _TIME_SHIFT) | everyone
            lost = chance.random((_ROWS_PER_DRAW, setting.members)) < setting.loss
            codes[lost] = -1
            codes = -np.sort(-codes, axis=1)
            arrive = setting.members - lost.sum(axis=1)
            for row, count in zip(codes.tolist(), arrive.tolist(), strict=True):
                yield row[:count]

    def _random_zetas(self) -> Iterator[int]:
        """ζ, uniform on (0, η)."""
        eta = self._case.redundancy.eta_ns
        while True:
            yield from np.ceil(self._chance.random(4096) * (eta - 1)).astype(np.int64).tolist()
