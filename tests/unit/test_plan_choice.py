"""What `join` chooses for the needs of an application, and that every order starts with default options."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import pytest

import unisono
from unisono.model.delays import parse_delay
from unisono.model.offers import Ask
from unisono.model.options import ORDER_NAMES, OrderName, OrderOptions, QuasiGenuine, order_options
from unisono.model.policy import Gaps
from unisono.model.timing import Timing
from unisono.model.units import BandwidthReservation, Rate, exact_duration_text
from unisono.qos.plan.planner import plan, planned_policy

MS = 1_000_000

FIVE = {member: f"127.0.0.1:{9000 + member}" for member in range(1, 6)}


def plan_of(**options: Any) -> unisono.GroupPlan:
    return unisono.join("table", member=1, peers=FIVE, **options).plan


def default_options(name: str) -> OrderOptions:
    """The options of an order, all defaults; a topology has none."""
    if name == "quasi_genuine":
        return QuasiGenuine(topology=unisono.Topology({"all": tuple(FIVE)}, {"all": ("all",)}))
    return order_options(name)


@pytest.mark.parametrize(
    ("gaps", "order"),
    [
        (None, unisono.Consensus()),
        ("never", unisono.Consensus()),
        ("repaired", unisono.Vbr(failures=True, grades="both", loss_burst=2)),
        ("allowed", unisono.Vbr(failures=True, loss_burst=2)),
    ],
)
def test_auto_follows_the_need_for_gaps(gaps: Gaps | None, order: OrderOptions) -> None:
    plan = plan_of(gaps=gaps)
    assert plan.order == order
    assert "gaps=" in plan.text()


@pytest.mark.parametrize("order", ORDER_NAMES)
def test_five_members_start_with_default_options_in_every_order(order: str) -> None:
    assert plan_of(order=default_options(order)).bound_ns > 0


def test_a_deadline_gives_the_longest_slot_that_keeps_it() -> None:
    plan = plan_of(gaps="allowed", deadline="80ms")
    assert plan.timing.theta_ns == 20_000_000  # 80 = Δ + 2Γ + Θ = 50 + 10 + 20
    assert plan.bound_ns == 80_000_000


def test_an_infeasible_deadline_names_the_smallest_one_and_the_other_gaps() -> None:
    with pytest.raises(unisono.Infeasible) as refused:
        plan_of(deadline="80ms")
    assert refused.value.offered_ns == 300_000_000
    assert "a deadline of 300ms, or this deadline with gaps='repaired' or 'allowed'" in str(refused.value)
    with pytest.raises(unisono.Infeasible, match=r"a deadline of 60\.5ms$"):
        plan_of(deadline="60ms", gaps="allowed")


@pytest.mark.parametrize(
    ("order", "gaps"),
    [(unisono.Vbr(failures=True), "never"), (unisono.Vbr(failures=True), "repaired")],
)
def test_an_order_that_may_leave_gaps_is_refused_if_gaps_are_ruled_out(order: OrderOptions, gaps: Gaps) -> None:
    with pytest.raises(unisono.InvalidOption, match="may leave gaps"):
        plan_of(order=order, gaps=gaps)
    assert plan_of(order=order, gaps="allowed").order == order


@pytest.mark.parametrize("order", ["vbr", "cbr"])
def test_an_order_that_one_lost_datagram_stops_is_refused_on_a_network_that_loses(order: OrderName) -> None:
    lossy = unisono.Network(loss=0.01)
    with pytest.raises(unisono.InvalidOption, match=r"network\.loss: the order .* waits for a lost datagram for ever"):
        plan_of(order=order, network=lossy)
    assert plan_of(order=unisono.Vbr(fec=(1, 5)), network=lossy)
    assert plan_of(network=lossy).order == unisono.Consensus()


@pytest.mark.parametrize("deadline", ["75ms", "80ms", "200ms", "1s"])
def test_a_looser_deadline_is_never_refused_because_of_the_rate(deadline: str) -> None:
    plan = plan_of(gaps="repaired", deadline=deadline, rate=Rate(avg=500, burst=8))
    assert plan.timing.theta_ns <= 16 * MS  # 500/s in bursts of 8 need slots of at most 16 ms


@pytest.mark.parametrize(("loss", "burst"), [(0.01, 2), (0.05, 4), (0.3, 11)])
def test_more_loss_makes_auto_tolerate_more_losses_in_a_row(loss: float, burst: int) -> None:
    order = plan_of(gaps="allowed", network=unisono.Network(loss=loss)).order
    assert isinstance(order, unisono.Vbr)
    assert order.loss_burst == burst
    assert loss ** (burst + 1) < 1.001e-6


def test_a_service_without_a_total_order_keeps_no_promise_about_gaps() -> None:
    for gaps in ("never", "repaired"):
        with pytest.raises(unisono.InvalidOption, match="may leave gaps"):
            plan_of(order="reliable", gaps=gaps)
    final = unisono.Vbr(failures=True, grades="final")
    assert plan_of(order=final, gaps="never").order == final


DELAY = parse_delay("exponential:5ms", "delay")
QUESTIONS = [
    Ask(members, Rate(avg, burst), timing, max_message=size, link_bytes_per_s=125_000_000, **more)
    for members, (avg, burst), size, timing, more in itertools.product(
        (2, 5, 16),
        ((50, 8), (2000, 16)),
        (100, 4096, 60_000),
        (Timing(50 * MS, 5 * MS, 5 * MS), Timing(2 * MS, MS, 20 * MS)),
        cast(
            "tuple[dict[str, Any], ...]",
            (
                {},
                {"failures": 1, "grades": "both"},
                {"loss": 0.01, "loss_burst": 2, "fec": (2, 10)},
                {"loss": 0.05, "delay": DELAY, "deadline_ns": 400 * MS},
                {"priorities": True, "processing_ns": MS},
            ),
        ),
    )
]


def test_join_accepts_every_feasible_row_of_every_plan_as_it_is() -> None:
    """And it gives the bound of the row or a lower one."""
    seen, orders = 0, set()
    for ask in QUESTIONS:
        for offer in plan(ask).candidates:
            if not offer.feasible:
                continue
            assert offer.options is not None
            policy = planned_policy(ask, offer.options)
            config = unisono.Config(
                peers={member: f"127.0.0.1:{9000 + member}" for member in policy.view.members},
                member=1,
                order=offer.options,
                rate=ask.rate,
                max_message=ask.max_message,
                network=unisono.Network(
                    delta=exact_duration_text(offer.delta_ns or ask.timing.delta_ns),
                    gamma=exact_duration_text(ask.timing.gamma_ns),
                    link=unisono.Link("1Gbit/s"),
                ),
            )
            joined = unisono.join("grid", config=config)
            assert joined.plan.bound_ns <= offer.latency_bound_ns, (offer.order, offer.options)
            seen += 1
            orders.add(offer.order.split(" ρ=")[0])
    assert seen > 300
    assert len(orders) == 14, orders


def test_a_row_that_the_link_cannot_carry_is_not_offered() -> None:
    ask = Ask(16, Rate(2000, 16), Timing(50 * MS, 5 * MS, 5 * MS), link_bytes_per_s=1_000_000)
    found = plan(ask)
    assert not any(offer.feasible for offer in found.candidates if offer.order != "cbr")
    assert any("reservation refused" in offer.reasons[0] for offer in found.candidates)


def worst_wait_ns(slots: Sequence[int], theta_ns: int, bytes_per_s: int) -> float:
    """The longest time that a byte waits in a queue which gets these bytes at the ends of consecutive slots."""
    waiting, worst = 0.0, 0.0
    for size in slots:
        waiting = max(0.0, waiting - bytes_per_s * theta_ns / 1e9) + size
        worst = max(worst, waiting * 1e9 / bytes_per_s)
    return worst


@pytest.mark.parametrize(("full_slots", "queue_ms"), [(1, 25), (7, 25), (7, 5), (40, 100)])
def test_a_reservation_lets_no_byte_wait_longer_than_its_queue_allows(full_slots: int, queue_ms: int) -> None:
    """Attained by the longest run of full slots, which is the worst that the declared average permits."""
    run_bytes, run_ns = full_slots * 40_000, (full_slots - 1) * 5 * MS
    reservation = BandwidthReservation(1, 40_000, 5 * MS, run_bytes, run_ns, queue_ms * MS)
    waited_ns = worst_wait_ns([40_000] * full_slots, 5_000_000, reservation.needed_bytes_per_s)
    assert waited_ns <= queue_ms * 1e6
    assert waited_ns >= 0.999 * queue_ms * 1e6
