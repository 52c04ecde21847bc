"""Paper 000 §4 and §5 assume clocks within Γ: what the orders without failures do about one that is not.

Nobody can be left out of an order that promises every message to everybody. A wrong clock that shows in time keeps
the group from beginning; one that shows later is reported, once, and the order of deliveries does not suffer.
"""

from __future__ import annotations

from collections import Counter

import pytest

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.delays import ConstantDelay
from unisono.model.events import ClockViolation, Violation
from unisono.model.rates import Rate
from unisono.model.scenario import Clocks, Network, Scenario, Workload
from unisono.model.timing import Timing
from unisono.sim.run import build_world, run_meta

MS = 1_000_000
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
MEMBERS = (1, 2, 3)
WRONG = 3
RUNS = {"vbr": (Rate(400.0, 4), 1000 * MS), "cbr": (Rate(50.0, 1), 2500 * MS)}


def played(order: str, offset_ns: int, delay_ns: int, *, begins: bool | None = None) -> dict[int, list[Violation]]:
    """One member's clock is off, and every datagram takes the same time; the deliveries are in one order."""
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
    world, memory, bound_ns, reliable = build_world(scenario, 1, compare_payloads=True)
    world.run(world.send_until_ns + bound_ns)
    verdicts = check_all(memory.trace(run_meta(scenario, 1, bound_ns, reliable)), until_ns=world.now)
    assert all(verdicts[name].status is Status.VALID for name in ("total_order", "integrity", "fifo"))
    if begins is not None:
        assert any(node.delivered for node in world.members.values()) is begins
    return {member: node.violations for member, node in world.members.items()}


def clocks(found: dict[int, list[Violation]], member: int) -> list[ClockViolation]:
    return [violation for violation in found[member] if isinstance(violation, ClockViolation)]


@pytest.mark.parametrize("order", ["vbr", "cbr"])
@pytest.mark.parametrize("delay_ns", [0, TIMING.delta_ns // 2, TIMING.delta_ns])
@pytest.mark.parametrize("offset_ns", [8 * MS, -8 * MS])
def test_section_5_1_a_clock_that_is_off_by_more_than_gamma_is_reported_once(
    order: str, delay_ns: int, offset_ns: int
) -> None:
    found = played(order, offset_ns, delay_ns)
    told = [(violation.member, violation.off_ns) for member in MEMBERS for violation in clocks(found, member)]
    assert told
    for member in MEMBERS:
        mine = clocks(found, member)
        assert all(violation.kind == "clock" and violation.member is not None for violation in mine)
        assert max(Counter(violation.member for violation in mine).values(), default=0) <= 1, "once per peer"
        late = Counter(violation.member for violation in found[member] if violation.kind == "late")
        assert max(late.values(), default=0) <= 1, "and once what is late because of it"
        if member != WRONG:
            assert all(violation.member == WRONG for violation in mine)
            assert all(violation.off_ns * offset_ns > 0 for violation in mine), "in the right direction"
    assert all(abs(off_ns) <= abs(offset_ns) for _, off_ns in told), "by so much at least"


@pytest.mark.parametrize("order", ["vbr", "cbr"])
@pytest.mark.parametrize("offset_ns", [3 * MS, -3 * MS])
def test_section_5_1_a_group_does_not_begin_with_a_clock_that_shows_in_its_hello(order: str, offset_ns: int) -> None:
    """Who sees the other ahead refuses it, at least; and without everybody nobody begins."""
    found = played(order, offset_ns, 0, begins=False)
    who_sees = (1, 2) if offset_ns > 0 else (WRONG,)
    for member in who_sees:
        assert all("the group does not begin with it" in violation.text for violation in clocks(found, member))
        assert clocks(found, member)


@pytest.mark.parametrize("order", ["vbr", "cbr"])
@pytest.mark.parametrize("delay_ns", [0, TIMING.delta_ns])
@pytest.mark.parametrize("offset_ns", [TIMING.gamma_ns, -TIMING.gamma_ns])
def test_section_5_1_a_clock_within_gamma_is_never_reported(order: str, delay_ns: int, offset_ns: int) -> None:
    assert not any(played(order, offset_ns, delay_ns, begins=True).values())
