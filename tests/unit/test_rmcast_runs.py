"""Many RMCasts at once: the fast loop against a plain one over the same automaton and the same chance."""

from heapq import heappop, heappush

import numpy as np
import pytest

from unisono.errors import InvalidOption
from unisono.model.delays import (
    ConstantDelay,
    DelayModel,
    EmpiricalDelay,
    ExponentialDelay,
    LognormalDelay,
    UniformDelay,
)
from unisono.model.redundancy import Adaptive, Redundancy, RelativeRequirement
from unisono.net.rmcast.message import NEVER, RmcastMessage, RmcastRules
from unisono.sim.random_delays import generator, sample_delays
from unisono.sim.rmcast_runs import NOT_REACHED, ORIGINATOR, CrashScenario, RmcastCase, RmcastRuns

MS = 1_000_000
ETA = 4_600_000


class Plain:
    """One heap, every copy carried, the automaton asked about each."""

    def __init__(self, runs: RmcastRuns, setting: RmcastCase) -> None:
        self.rows, self.setting = runs._arrivals, setting
        self.rules: list[RmcastRules] = runs._rules

    def one(self) -> tuple[list[int], int]:
        n = self.setting.members
        messages = [RmcastMessage(rules, ORIGINATOR) for rules in self.rules]
        got, broadcasts = [NOT_REACHED] * n, 0
        crashed = self.setting.scenario == "originator crashes"
        # Arrivals before alarms of the same instant; arrivals in the order in which they were sent.
        events: list[tuple[int, int, int, int, int]] = []

        def broadcast(now: int, who: int, k: int) -> None:
            nonlocal broadcasts
            for code in next(self.rows):
                if code & 4095 != who:
                    heappush(events, (now + (code >> 24), 0, broadcasts, code & 4095, k * 4096 + who))
            broadcasts += 1

        broadcast(0, ORIGINATOR, messages[ORIGINATOR].originate(0))
        while True:
            alarm = min(
                (message.deadline, who) for who, message in enumerate(messages) if not (crashed and who == ORIGINATOR)
            )
            if events and events[0][0] <= alarm[0]:
                now, _, _, receiver, what = heappop(events)
                if messages[receiver].on_copy(now, what // 4096, what % 4096):
                    got[receiver] = now
            elif alarm[0] < NEVER:
                k = messages[alarm[1]].wake(alarm[0])
                if k >= 0:
                    broadcast(alarm[0], alarm[1], k)
            else:
                return got, broadcasts


@pytest.mark.parametrize("scenario", ["no crash", "originator crashes"])
@pytest.mark.parametrize("adaptive", ["none", "heuristic", "counting", "exact"])
@pytest.mark.parametrize(("members", "rho", "omega_ns"), [(3, 1, 0), (12, 2, MS), (20, 1, 0), (7, 3, 0)])
def test_the_fast_loop_does_what_a_plain_one_does(
    members: int, rho: int, omega_ns: int, adaptive: Adaptive, scenario: CrashScenario
) -> None:
    relative = RelativeRequirement(0.95, 25 * MS, 0.1, ExponentialDelay(MS)) if adaptive == "exact" else None
    redundancy = Redundancy(rho, ETA, omega_ns, adaptive, relative)
    setting = RmcastCase(members, redundancy, ExponentialDelay(MS), 0.1, scenario)
    fast, source = RmcastRuns(setting, generator(7, "same")), RmcastRuns(setting, generator(7, "same"))
    plain = Plain(source, setting)
    for _ in range(40):
        got, _, count = fast._run_once()
        assert (got, count) == plain.one()


def test_a_copy_at_the_very_instant_of_a_deadline_is_told_first() -> None:
    """With equal delays and ω = 0 every copy comes when its time-out runs out; the heuristic tells the two apart."""
    setting = RmcastCase(12, Redundancy(3, ETA, 0, "heuristic"), ConstantDelay(MS), 0.2)
    fast, source = RmcastRuns(setting, generator(8, "tie")), RmcastRuns(setting, generator(8, "tie"))
    plain = Plain(source, setting)
    for _ in range(60):
        got, _, count = fast._run_once()
        assert (got, count) == plain.one()


def test_nothing_is_lost_and_all_take_equally_long() -> None:
    setting = RmcastCase(6, Redundancy(2, ETA, MS), ConstantDelay(MS), 0.0)
    seen = RmcastRuns(setting, generator(1)).run(5)
    assert seen.broadcasts.tolist() == [3] * 5
    assert seen.first_ns.tolist() == seen.last_ns.tolist() == seen.one_receiver_ns.tolist() == [MS] * 5
    assert seen.spread_ns().tolist() == [0] * 5
    assert not seen.disagreed().any()


def test_an_originator_that_crashes_is_replaced_and_needs_rho_plus_2_at_least() -> None:
    setting = RmcastCase(6, Redundancy(2, ETA, MS), ConstantDelay(MS), 0.0, "originator crashes")
    assert RmcastRuns(setting, generator(1)).run(200).broadcasts.min() == 4


def test_direct_receivers_are_as_many_as_asked_and_the_rest_wait_for_a_takeover() -> None:
    setting = RmcastCase(10, Redundancy(1, ETA), ConstantDelay(MS), 0.0, "direct receivers", direct_receivers=3)
    seen = RmcastRuns(setting, generator(1)).run(50)
    assert (seen.first_ns == MS).all()
    assert (seen.last_ns > MS + ETA + MS).all()
    assert 0.2 < (seen.one_receiver_ns == MS).mean() < 0.5


def test_everybody_who_serves_one_and_dies_leaves_some_out() -> None:
    setting = RmcastCase(
        6, Redundancy(1, ETA), ConstantDelay(MS), 0.0, "anybody crashes", crash_in_send_probability=1.0
    )
    seen = RmcastRuns(setting, generator(1)).run(20)
    # Each serves one more, until one serves another that has died already. Only then is somebody left out, or all died.
    assert seen.broadcasts.min() == 2
    assert seen.disagreed().mean() > 0.5
    nobody = RmcastCase(
        6, Redundancy(1, ETA), ConstantDelay(MS), 0.0, "anybody crashes", crash_before_takeover_probability=1.0
    )
    assert not RmcastRuns(nobody, generator(1)).run(20).disagreed().any()


@pytest.mark.parametrize(
    "model",
    [
        ConstantDelay(MS),
        UniformDelay(MS, 3 * MS),
        ExponentialDelay(MS),
        LognormalDelay(MS, 0.4),
        EmpiricalDelay((1, 5, 9), (2, 1, 4)),
    ],
)
def test_a_block_of_delays_is_the_models_quantiles(model: DelayModel) -> None:
    shares = generator(3).random((20, 30))
    drawn = sample_delays(model, shares)
    assert drawn.shape == shares.shape
    one_by_one = [model.quantile(share) for share in shares.ravel().tolist()]
    assert np.abs(drawn.ravel() - np.array(one_by_one)).max() <= 1


def test_each_name_has_a_stream_of_its_own_and_the_same_each_time() -> None:
    assert generator(1, "a", 2).random() == generator(1, "a", 2).random()
    assert generator(1, "a", 2).random() != generator(1, "a", 3).random()
    setting = RmcastCase(9, Redundancy(1, ETA), ExponentialDelay(MS), 0.2)
    one, two = (RmcastRuns(setting, generator(5, "again")).run(60) for _ in range(2))
    assert one.last_ns.tolist() == two.last_ns.tolist()
    assert one.broadcasts.tolist() == two.broadcasts.tolist()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"members": 1}, "members"),
        ({"members": 3000}, "members"),
        ({"loss": 1.0}, "loss"),
        ({"direct_receivers": 2}, "direct"),
        ({"scenario": "direct receivers"}, "direct"),
        ({"crash_in_send_probability": 0.1}, "scenario"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, object], field: str) -> None:
    whole = {"members": 5, "redundancy": Redundancy(1, ETA), "delay": ExponentialDelay(MS), "loss": 0.05, **arguments}
    with pytest.raises(InvalidOption, match=field):
        RmcastCase(**whole)  # type: ignore[arg-type]
