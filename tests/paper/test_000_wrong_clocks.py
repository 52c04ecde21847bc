"""Paper 000 §4 and §5 assume clocks within Γ. Here one member of an order without failures has a wrong clock.

These orders deliver every message at every member, so they cannot exclude one. If a wrong clock is detected before the
group starts, the group does not start. Later, each member reports a wrong clock once, and the order stays correct.
"""

from __future__ import annotations

from collections import Counter

import pytest

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.delays import ConstantDelay
from unisono.model.events import ClockViolation, Violation
from unisono.model.scenario import Clocks, Network, Scenario, Workload
from unisono.model.timing import Timing
from unisono.model.units import Rate
from unisono.sim.run import build_world, run_meta

MS = 1_000_000
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
MEMBERS = (1, 2, 3)
WRONG = 3
RUNS = {"vbr": (Rate(400.0, 4), 1000 * MS), "cbr": (Rate(50.0, 1), 2500 * MS)}


def violations_of(
    order: str, offset_ns: int, delay_ns: int, *, starts: bool | None = None
) -> dict[int, list[Violation]]:
    """Run a group with one wrong clock and a constant delay, and check that it delivers in one order."""
    rate, run_ns = RUNS[order]
    scenario = Scenario(
        source="here",
        group="g",
        order=order,
        members=MEMBERS,
        timing=TIMING,
        rates=dict.fromkeys(MEMBERS, rate),
        workloads=dict.fromkeys(MEMBERS, Workload("cbr", 10, 10, rate=40.0)),
        network=Network(ConstantDelay(delay_ns)),
        run_ns=run_ns,
        seed=1,
        clocks=Clocks("perfect", offsets_ns={WRONG: offset_ns}),
    )
    world, recorder, bound_ns, reliable = build_world(scenario, 1, compare_payloads=True)
    world.run(world.send_until_ns + bound_ns)
    verdicts = check_all(recorder.trace(run_meta(scenario, 1, bound_ns, reliable)), until_ns=world.now)
    assert all(verdicts[name].status is Status.VALID for name in ("total_order", "integrity", "fifo"))
    if starts is not None:
        assert any(node.delivered for node in world.members.values()) is starts
    return {member: node.violations for member, node in world.members.items()}


def clock_violations(found: dict[int, list[Violation]], member: int) -> list[ClockViolation]:
    return [violation for violation in found[member] if isinstance(violation, ClockViolation)]


@pytest.mark.parametrize("order", ["vbr", "cbr"])
@pytest.mark.parametrize("delay_ns", [0, TIMING.delta_ns // 2, TIMING.delta_ns])
@pytest.mark.parametrize("offset_ns", [8 * MS, -8 * MS])
def test_section_5_1_a_clock_that_is_off_by_more_than_gamma_is_reported_once(
    order: str, delay_ns: int, offset_ns: int
) -> None:
    found = violations_of(order, offset_ns, delay_ns)
    reported = [violation.off_ns for member in MEMBERS for violation in clock_violations(found, member)]
    assert reported
    for member in MEMBERS:
        mine = clock_violations(found, member)
        assert all(violation.kind == "clock" and violation.member is not None for violation in mine)
        assert max(Counter(violation.member for violation in mine).values(), default=0) <= 1, "once per peer"
        late = Counter(violation.member for violation in found[member] if violation.kind == "late")
        assert max(late.values(), default=0) <= 1, "its late frames are reported once as well"
        if member != WRONG:
            assert all(violation.member == WRONG for violation in mine)
            assert all(violation.off_ns * offset_ns > 0 for violation in mine), "in the right direction"
    assert all(abs(off_ns) <= abs(offset_ns) for off_ns in reported), "a report is a lower bound of the difference"


@pytest.mark.parametrize("order", ["vbr", "cbr"])
@pytest.mark.parametrize("offset_ns", [3 * MS, -3 * MS])
def test_section_5_1_a_group_does_not_start_if_a_hello_shows_a_wrong_clock(order: str, offset_ns: int) -> None:
    """A member refuses every peer whose clock is ahead of its own, and the group starts only with all members."""
    found = violations_of(order, offset_ns, 0, starts=False)
    refusing = (1, 2) if offset_ns > 0 else (WRONG,)
    for member in refusing:
        mine = clock_violations(found, member)
        assert all("the group does not begin with it" in violation.text for violation in mine)
        assert mine


@pytest.mark.parametrize("order", ["vbr", "cbr"])
@pytest.mark.parametrize("delay_ns", [0, TIMING.delta_ns])
@pytest.mark.parametrize("offset_ns", [TIMING.gamma_ns, -TIMING.gamma_ns])
def test_section_5_1_a_clock_within_gamma_is_never_reported(order: str, delay_ns: int, offset_ns: int) -> None:
    assert not any(violations_of(order, offset_ns, delay_ns, starts=True).values())
