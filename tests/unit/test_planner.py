"""The planner: the offers of all orders, the choice, and the refusal by Theorem 4."""

from dataclasses import replace
from math import exp

import pytest

from unisono.errors import InvalidOption
from unisono.model.capabilities import check_options
from unisono.model.delays import ExponentialDelay
from unisono.model.events import View
from unisono.model.offers import Ask, Offer
from unisono.model.policy import Policy, Redundancy
from unisono.model.timing import Timing
from unisono.model.units import Rate
from unisono.qos.plan.over_rmcast import ReliabilityRequirement
from unisono.qos.plan.planner import Plan, lower_bound_ns, plan
from unisono.qos.plan.rmcast_model import CrashModel, NetworkModel, reach_probability

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
    assert all(candidate.reasons for candidate in found.candidates)


def test_the_cheapest_that_fits_is_chosen() -> None:
    found = plan(replace(ASK, deadline_ns=60 * MS))
    assert found.chosen is not None
    fitting = [candidate for candidate in found.candidates if candidate.feasible]
    assert found.chosen.avg_rate == min(candidate.avg_rate for candidate in fitting)


def test_a_deadline_below_the_bound_rules_an_order_out() -> None:
    found = plan(replace(ASK, deadline_ns=18 * MS))
    assert offered(found, "vbr").feasible
    against = offered(found, "vbr with failures")
    assert not against.feasible
    assert "19ms exceeds the deadline of 18ms" in against.reasons[0]


def test_crashes_rule_out_orders_that_would_wait_forever() -> None:
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
    assert all(("Theorem 4" in candidate.reasons[0]) == refused for candidate in found.candidates)


def test_gaps_allowed_theorem_4_does_not_apply() -> None:
    assert lower_bound_ns(replace(ASK, failures=4)) == 0


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


def test_a_required_reliability_decides() -> None:
    ask = replace(ASK, loss=0.01, failures=1, fec=(2, 10))
    found = plan(ask, reliability=0.999)
    assert not offered(found, "vbr with failures").feasible
    assert offered(found, "vbr with failures over fec 2/10").feasible
    # Two copies and a few takeovers cost less here than two shares more for each block of a slot.
    assert found.chosen is not None
    assert found.chosen.order == "vbr with failures over rmcast ρ=1"


def test_residual_loss_rules_out_a_waiting_order_only_if_a_session_would_meet_it() -> None:
    """An unrepaired loss stops an order that waits: what matters is whether it happens during a session."""
    often = offered(plan(replace(ASK, loss=0.01, fec=(2, 10))), "vbr over fec 2/10")
    assert not often.feasible
    # 5 members, 250 datagrams a second each, for an hour, and none of 4 receivers may miss one.
    ask = replace(ASK, loss=1e-4, fec=(4, 10))
    rarely = offered(plan(ask), "vbr over fec 4/10")
    stays = 1e-4 * 126 * 1e-16
    assert rarely.feasible
    assert rarely.reliability == pytest.approx(exp(-5 * 250 * 3600 * 4 * stays), rel=1e-3)
    assert not offered(plan(ask), "vbr").feasible
    short = replace(ASK, loss=1e-4, session_ns=1)
    assert offered(plan(short), "vbr").feasible


def test_a_loss_burst_that_fec_repairs_does_not_reach_the_order() -> None:
    covered, beyond = (plan(replace(ASK, loss_burst=x, fec=(2, 10))) for x in (2, 3))
    assert offered(covered, "vbr over fec 2/10").feasible
    assert not offered(beyond, "vbr over fec 2/10").feasible


LOSSY = replace(ASK, loss=0.05, delay=ExponentialDelay(MS), deadline_ns=60 * MS)


def test_over_rmcast_delta_is_the_time_in_which_the_required_share_is_reached() -> None:
    found = plan(LOSSY, reliability=0.999)
    assert found.chosen is not None
    setting = found.chosen.redundancy
    assert setting is not None
    network = NetworkModel(ExponentialDelay(MS), 0.05)
    delta = found.chosen.latency_bound_ns - 2 * 2 * MS - 5 * MS  # Δ+2Γ+Θ
    assert found.chosen.order == f"vbr with failures over rmcast ρ={setting.rho}"
    assert reach_probability(5, network, setting, delta - 1) < 0.999 <= reach_probability(5, network, setting, delta)
    assert found.chosen.reliability == pytest.approx(0.999, abs=1e-9)
    assert found.chosen.avg_rate == pytest.approx(250 * found.chosen.broadcasts)
    assert found.chosen.broadcasts >= setting.rho + 1


def test_every_order_is_listed_alone_and_over_rmcast_with_the_negotiation() -> None:
    found = plan(LOSSY, reliability=0.999)
    names = [candidate.order.split(" ρ=")[0] for candidate in found.candidates]
    for order in ("cbr", "vbr", "vbr with failures", "leader", "timestamp"):
        assert names.count(order) == 1
        assert names.count(f"{order} over rmcast") == 1
    assert found.chosen is not None
    assert [line[0] for line in found.chosen.reasons if line[0] in "↓↑"] == list("↓↓↑↑↑")


def _policy_of(offer: Offer, ask: Ask) -> Policy:
    """The options that a member must give to get this offer."""
    over_rmcast = "over rmcast" in offer.order
    return Policy(
        "table",
        1,
        View(tuple(range(1, ask.members + 1))),
        ask.timing,
        ask.rate,
        order=offer.order.split()[0],
        failures="with failures" in offer.order,
        fec=ask.fec if "over fec" in offer.order else None,
        reliable=(offer.redundancy or Redundancy.of_ns(1, MS)) if over_rmcast else None,
        loss_burst=ask.loss_burst if "with failures" in offer.order and not over_rmcast else 0,
        grades=ask.grades if offer.final_latency_ns is not None else "early",
    )


@pytest.mark.parametrize(
    "ask",
    [
        ASK,
        LOSSY,
        replace(LOSSY, deadline_ns=1 * MS),
        replace(LOSSY, failures=1, loss_burst=2, fec=(2, 5)),
        replace(ASK, loss=0.01, grades="both"),
        replace(ASK, loss=0.01, loss_burst=2, fec=(1, 5), grades="final"),
        replace(LOSSY, priorities=True, deadline_ns=None),
    ],
)
def test_every_listed_combination_is_one_that_join_accepts(ask: Ask) -> None:
    for offer in plan(ask).candidates:
        check_options(_policy_of(offer, ask))


def test_each_of_two_consecutive_multicasts_must_be_more_reliable() -> None:
    found = plan(LOSSY, reliability=0.999)
    leader = next(offer for offer in found.candidates if offer.order.startswith("leader over"))
    assert leader.feasible
    assert leader.redundancy is not None
    delta = leader.latency_bound_ns // 2  # 2Δ+p with p = 1ms
    delta -= MS // 2
    assert reach_probability(5, NetworkModel(ExponentialDelay(MS), 0.05), leader.redundancy, delta) == pytest.approx(
        0.999**0.5, abs=1e-6
    )


def test_a_deadline_that_no_redundancy_meets_gets_alternatives() -> None:
    found = plan(replace(LOSSY, deadline_ns=12 * MS), reliability=0.999)
    assert found.chosen is None
    refused = next(offer for offer in found.candidates if offer.order == "vbr with failures over rmcast")
    instead = next(line for line in refused.reasons if line.startswith("instead: "))
    again = plan(replace(LOSSY, deadline_ns=refused.latency_bound_ns), reliability=0.999)
    assert again.chosen is not None
    assert f"{refused.latency_bound_ns / 1e6:.6g}ms" in instead


def test_late_datagrams_lower_the_reliability_of_an_order_without_rmcast() -> None:
    slow = plan(replace(ASK, delay=ExponentialDelay(5 * MS), failures=1))
    alone = offered(slow, "vbr with failures")
    assert alone.reliability == pytest.approx((1 - exp(-2)) ** 4)


def test_without_anything_to_repair_rmcast_is_not_considered() -> None:
    assert not any("rmcast" in candidate.order for candidate in plan(ASK).candidates)


def test_a_crash_model_gives_a_probability_of_agreement() -> None:
    requirement = ReliabilityRequirement(0.999, crashes=CrashModel(3_600_000 * MS, 1e-3))
    found = plan(LOSSY, reliability_requirement=requirement)
    assert found.chosen is not None
    assert any("agreement with probability 1 - " in line for line in found.chosen.reasons)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"members": 0}, "members"),
        ({"loss": 1.0}, "loss"),
        ({"loss": -0.1}, "loss"),
        ({"fec": (3, 3)}, "fec"),
        ({"fec": (0, 3)}, "fec"),
        ({"failures": -1}, "failures"),
        ({"session_ns": 0}, "session"),
    ],
)
def test_an_impossible_request_is_refused(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidOption, match=field):
        replace(ASK, **wrong)  # type: ignore[arg-type]


def test_the_priority_order_is_listed_with_its_limits() -> None:
    found = plan(replace(ASK, failures=1))
    plain, coordinated = offered(found, "priority"), offered(found, "priority_coordinator")
    assert (plain.latency_bound_ns, coordinated.latency_bound_ns) == (2 * 10 * MS, 3 * 10 * MS), "into the queues"
    assert plain.feasible
    assert coordinated.feasible
    assert "the consumers set the pace" in plain.reasons[0]
    late = offered(plan(replace(ASK, deadline_ns=500 * MS)), "priority")
    assert not late.feasible
    assert "no deadline can be promised" in late.reasons[0]
    assert not offered(plan(replace(ASK, failures=3)), "priority").feasible, "a majority must survive"


@pytest.mark.parametrize("order", ["priority", "priority_coordinator"])
def test_a_priority_order_names_no_bound_against_a_deadline_that_it_cannot_promise(order: str) -> None:
    tight = replace(ASK, deadline_ns=5 * MS)
    reasons = offered(plan(tight), order).reasons
    assert "no deadline can be promised" in reasons[0]
    assert not [reason for reason in reasons if "exceeds the deadline" in reason]
    assert order not in plan(tight).refusal, "the time into its queues is not a bound"
    assert "leave out the deadline or the priorities" in plan(replace(tight, priorities=True)).refusal


def test_the_priority_order_is_chosen_only_if_priorities_are_required() -> None:
    found = plan(replace(ASK, failures=1))
    assert found.chosen is not None
    assert not found.chosen.by_priority
    urgent = plan(replace(ASK, failures=1, priorities=True))
    assert urgent.chosen is not None
    assert urgent.chosen.order in {"priority", "priority_coordinator"}
    assert "priorities do not affect its order" in offered(urgent, "vbr with failures").reasons[0]
    assert plan(replace(ASK, priorities=True, deadline_ns=500 * MS)).chosen is None
