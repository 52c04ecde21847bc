"""What `join` chooses for the needs of an application, and that every order starts with default options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import unisono
from unisono.model.options import ORDER_NAMES, OrderOptions, QuasiGenuine, order_options
from unisono.model.units import BandwidthReservation
from unisono.qos.plan.choice import Gaps

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
        ("repaired", unisono.Vbr(failures=True, grades="both")),
        ("allowed", unisono.Vbr(failures=True)),
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
    with pytest.raises(unisono.Infeasible, match="a deadline of 60.5ms$"):
        plan_of(deadline="60ms", gaps="allowed")


@pytest.mark.parametrize(
    ("order", "gaps"),
    [(unisono.Vbr(failures=True), "never"), (unisono.Vbr(failures=True), "repaired")],
)
def test_an_order_that_may_leave_gaps_is_refused_if_gaps_are_ruled_out(order: OrderOptions, gaps: Gaps) -> None:
    with pytest.raises(unisono.InvalidOption, match="may leave gaps"):
        plan_of(order=order, gaps=gaps)
    assert plan_of(order=order, gaps="allowed").order == order


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
    reservation = BandwidthReservation(1, 40_000, 5_000_000, full_slots, queue_ms * 1_000_000)
    waited_ns = worst_wait_ns([40_000] * full_slots, 5_000_000, reservation.needed_bytes_per_s)
    assert waited_ns <= queue_ms * 1e6
    assert waited_ns >= 0.999 * queue_ms * 1e6
