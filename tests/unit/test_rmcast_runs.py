"""Many RMCasts at once: the fast loop against a simple one with the same automaton and the same random numbers."""

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
from unisono.model.policy import Adaptive, Redundancy, RelativeRequirement
from unisono.net.rmcast.message import NEVER, RmcastMessage, RmcastRules
from unisono.sim.random_streams import generator, sample_delays
from unisono.sim.rmcast_runs import NOT_REACHED, ORIGINATOR, CrashScenario, RmcastCase, RmcastRuns

MS = 1_000_000
ETA = 4_600_000


class SimpleLoop:
    """A simulation with a single heap that passes every copy to the automaton."""

    def __init__(self, runs: RmcastRuns, setting: RmcastCase) -> None:
        self.rows, self.setting = runs._arrivals, setting
        self.rules: list[RmcastRules] = runs._rules

    def run_once(self) -> tuple[list[int], int]:
        """When each process received the message, and the number of broadcasts."""
        n = self.setting.members
        messages = [RmcastMessage(rules, ORIGINATOR) for rules in self.rules]
        received_ns, broadcasts = [NOT_REACHED] * n, 0
        crashed = self.setting.scenario == "originator crashes"
        # Arrivals come before deadlines of the same instant, and in the order in which they were sent.
        events: list[tuple[int, int, int, int, int]] = []

        def broadcast(now: int, process: int, k: int) -> None:
            nonlocal broadcasts
            for code in next(self.rows):
                if code & 4095 != process:
                    heappush(events, (now + (code >> 24), 0, broadcasts, code & 4095, k * 4096 + process))
            broadcasts += 1

        broadcast(0, ORIGINATOR, messages[ORIGINATOR].originate(0))
        while True:
            deadline, process = min(
                (message.deadline, process)
                for process, message in enumerate(messages)
                if not (crashed and process == ORIGINATOR)
            )
            if events and events[0][0] <= deadline:
                now, _, _, receiver, copy = heappop(events)
                if messages[receiver].on_copy(now, copy // 4096, copy % 4096):
                    received_ns[receiver] = now
            elif deadline < NEVER:
                k = messages[process].wake(deadline)
                if k >= 0:
                    broadcast(deadline, process, k)
            else:
                return received_ns, broadcasts


@pytest.mark.parametrize("scenario", ["no crash", "originator crashes"])
@pytest.mark.parametrize("adaptive", ["none", "heuristic", "counting", "exact"])
@pytest.mark.parametrize(("members", "rho", "omega_ns"), [(3, 1, 0), (12, 2, MS), (20, 1, 0), (7, 3, 0)])
def test_the_fast_loop_equals_a_simple_one(
    members: int, rho: int, omega_ns: int, adaptive: Adaptive, scenario: CrashScenario
) -> None:
    relative = RelativeRequirement(0.95, 25 * MS, 0.1, ExponentialDelay(MS)) if adaptive == "exact" else None
    redundancy = Redundancy.of_ns(rho, ETA, omega_ns, adaptive, relative)
    setting = RmcastCase(members, redundancy, ExponentialDelay(MS), 0.1, scenario)
    fast, source = RmcastRuns(setting, generator(7, "same")), RmcastRuns(setting, generator(7, "same"))
    simple = SimpleLoop(source, setting)
    for _ in range(40):
        received_ns, _, count = fast._run_once()
        assert (received_ns, count) == simple.run_once()


def test_a_copy_at_the_very_instant_of_a_deadline_comes_first() -> None:
    """With equal delays and ω = 0 every copy arrives exactly at its time-out; the result depends on the order."""
    setting = RmcastCase(12, Redundancy.of_ns(3, ETA, 0, "heuristic"), ConstantDelay(MS), 0.2)
    fast, source = RmcastRuns(setting, generator(8, "tie")), RmcastRuns(setting, generator(8, "tie"))
    simple = SimpleLoop(source, setting)
    for _ in range(60):
        received_ns, _, count = fast._run_once()
        assert (received_ns, count) == simple.run_once()


def test_without_loss_and_with_equal_delays_all_receive_at_once() -> None:
    setting = RmcastCase(6, Redundancy.of_ns(2, ETA, MS), ConstantDelay(MS), 0.0)
    runs = RmcastRuns(setting, generator(1)).run(5)
    assert runs.broadcasts.tolist() == [3] * 5
    assert runs.first_ns.tolist() == runs.last_ns.tolist() == runs.one_receiver_ns.tolist() == [MS] * 5
    assert runs.spread_ns().tolist() == [0] * 5
    assert not runs.disagreed().any()


def test_after_an_originator_crash_at_least_rho_plus_2_broadcasts_are_needed() -> None:
    setting = RmcastCase(6, Redundancy.of_ns(2, ETA, MS), ConstantDelay(MS), 0.0, "originator crashes")
    assert RmcastRuns(setting, generator(1)).run(200).broadcasts.min() == 4


def test_only_the_direct_receivers_get_the_message_before_a_takeover() -> None:
    setting = RmcastCase(10, Redundancy.of_ns(1, ETA), ConstantDelay(MS), 0.0, "direct receivers", direct_receivers=3)
    runs = RmcastRuns(setting, generator(1)).run(50)
    assert (runs.first_ns == MS).all()
    assert (runs.last_ns > MS + ETA + MS).all()
    assert 0.2 < (runs.one_receiver_ns == MS).mean() < 0.5


def test_members_disagree_if_every_broadcaster_crashes_while_sending() -> None:
    setting = RmcastCase(
        6, Redundancy.of_ns(1, ETA), ConstantDelay(MS), 0.0, "anybody crashes", crash_in_send_probability=1.0
    )
    runs = RmcastRuns(setting, generator(1)).run(20)
    # Each broadcast reaches one more process, until it reaches one that has crashed. Then some processes are left out,
    # unless all have crashed.
    assert runs.broadcasts.min() == 2
    assert runs.disagreed().mean() > 0.5
    no_takeover = RmcastCase(
        6, Redundancy.of_ns(1, ETA), ConstantDelay(MS), 0.0, "anybody crashes", crash_before_takeover_probability=1.0
    )
    assert not RmcastRuns(no_takeover, generator(1)).run(20).disagreed().any()


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
def test_sampled_delays_are_the_quantiles_of_the_model(model: DelayModel) -> None:
    shares = generator(3).random((20, 30))
    drawn = sample_delays(model, shares)
    assert drawn.shape == shares.shape
    one_by_one = [model.quantile(share) for share in shares.ravel().tolist()]
    assert np.abs(drawn.ravel() - np.array(one_by_one)).max() <= 1


def test_each_name_has_its_own_reproducible_random_stream() -> None:
    assert generator(1, "a", 2).random() == generator(1, "a", 2).random()
    assert generator(1, "a", 2).random() != generator(1, "a", 3).random()
    setting = RmcastCase(9, Redundancy.of_ns(1, ETA), ExponentialDelay(MS), 0.2)
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
def test_invalid_cases_are_refused(arguments: dict[str, object], field: str) -> None:
    fields = {
        "members": 5,
        "redundancy": Redundancy.of_ns(1, ETA),
        "delay": ExponentialDelay(MS),
        "loss": 0.05,
        **arguments,
    }
    with pytest.raises(InvalidOption, match=field):
        RmcastCase(**fields)  # type: ignore[arg-type]
