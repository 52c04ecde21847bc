"""The planner: what each order offers side by side, what is chosen, and Theorem 4's refusal."""

from dataclasses import replace

import pytest

from unisono.errors import InvalidPolicy
from unisono.model.offers import Ask, Offer
from unisono.model.rates import Rate
from unisono.model.timing import Timing
from unisono.qos.planner import Plan, lower_bound_ns, plan

MS = 1_000_000
ASK = Ask(members=5, rate=Rate(50, 8), timing=Timing(10 * MS, 2 * MS, 5 * MS), processing_ns=1 * MS)


def offered(found: Plan, order: str) -> Offer:
    return next(candidate for candidate in found.candidates if candidate.order == order)


def test_every_order_is_listed_with_its_theorem() -> None:
    found = plan(ASK)
    bounds = {candidate.order: candidate.latency_bound_ns // MS for candidate in found.candidates}
    assert bounds["vbr"] == 10 + 2 + 5  # Δ+Γ+Θ, Theorem 2
    assert bounds["vbr with failures"] == 10 + 2 * 2 + 5  # Δ+2Γ+Θ, Theorem 5
    assert bounds["leader"] == 2 * 10 + 1  # 2Δ+p
    assert bounds["timestamp"] == 2 * 10 + max(1, 5)  # 2Δ+max(p, Θ), as corrected
    assert bounds["cbr"] >= 10 + 2  # Δ+Γ from the turn, Theorem 1, and the wait for the turn
    assert all(candidate.why for candidate in found.candidates)


def test_the_cheapest_that_fits_is_chosen() -> None:
    found = plan(replace(ASK, deadline_ns=60 * MS))
    assert found.chosen is not None
    fitting = [candidate for candidate in found.candidates if candidate.feasible]
    assert found.chosen.avg_rate == min(candidate.avg_rate for candidate in fitting)


def test_a_deadline_below_a_bound_is_the_reason_against_it() -> None:
    found = plan(replace(ASK, deadline_ns=18 * MS))
    assert offered(found, "vbr").feasible
    against = offered(found, "vbr with failures")
    assert not against.feasible
    assert "19ms is above the deadline of 18ms" in against.why[0]


def test_crashes_rule_out_what_would_wait_for_ever() -> None:
    found = plan(replace(ASK, failures=1, deadline_ns=60 * MS))
    assert not offered(found, "vbr").feasible
    assert not offered(found, "cbr").feasible
    assert found.chosen is not None
    assert found.chosen.order == "vbr with failures"


@pytest.mark.parametrize(("failures", "deadline_ms", "refused"), [(1, 19, True), (1, 20, False), (3, 39, True)])
def test_theorem_4_no_gap_free_bound_below_f_plus_1_delta(failures: int, deadline_ms: int, refused: bool) -> None:
    ask = replace(ASK, failures=failures, reliable=True, deadline_ns=deadline_ms * MS)
    assert lower_bound_ns(ask) == (failures + 1) * 10 * MS
    found = plan(ask)
    assert found.chosen is None, "none of the orders is gap-free in time when members crash"
    assert ("Theorem 4" in found.refusal) == refused
    assert all(("Theorem 4" in candidate.why[0]) == refused for candidate in found.candidates)


def test_gaps_allowed_theorem_4_does_not_apply() -> None:
    assert lower_bound_ns(replace(ASK, failures=9)) == 0


def test_redundancy_raises_reliability_and_costs_datagrams() -> None:
    plain = plan(replace(ASK, loss=0.01, failures=1))
    coded = plan(replace(ASK, loss=0.01, failures=1, fec=(2, 10)))
    bare, over = offered(plain, "vbr with failures"), offered(coded, "vbr with failures over fec 2/10")
    assert bare.reliability == pytest.approx(0.99**4)
    # One original of a block of 10 stays lost if it is lost and at least 2 of the other 9 are.
    stays = 0.01 * (1 - 0.99**9 - 9 * 0.01 * 0.99**8)
    assert over.reliability == pytest.approx((1 - stays) ** 4)
    assert over.avg_rate > bare.avg_rate
    assert over.latency_bound_ns == bare.latency_bound_ns
    assert over.max_burst == 8 + 2 * 1


def test_a_reliability_that_is_asked_for_decides() -> None:
    ask = replace(ASK, loss=0.01, failures=1, fec=(2, 10))
    found = plan(ask, reliability=0.999)
    assert not offered(found, "vbr with failures").feasible
    assert found.chosen is not None
    assert found.chosen.order == "vbr with failures over fec 2/10"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"members": 0}, "members"),
        ({"loss": 1.0}, "loss"),
        ({"loss": -0.1}, "loss"),
        ({"fec": (3, 3)}, "fec"),
        ({"fec": (0, 3)}, "fec"),
        ({"failures": -1}, "failures"),
    ],
)
def test_what_cannot_be_planned_is_refused(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidPolicy, match=field):
        replace(ASK, **wrong)  # type: ignore[arg-type]
