"""Paper 000 §8: no schedule exceeds the latency bounds of the leader orders, and some reach them (000-30, 000-31)."""

from __future__ import annotations

from random import Random

import pytest
from tests.full_rate import full_rate
from tests.paper.leader_group import MS, LeaderGroup, unrelated_clocks

from unisono.model.offers import Ask
from unisono.model.timing import Timing
from unisono.model.units import Rate
from unisono.orders.leader import broadcast as leader_order
from unisono.orders.leader import timestamp as timestamp_order
from unisono.orders.leader.base import LeaderOrderBase
from unisono.orders.leader.broadcast import LeaderBroadcast
from unisono.orders.leader.timestamp import TimestampLeader, constant_delay_bound_ns, latency_bound_ns
from unisono.sim.network import Adversary, constant_delay

ORDERS: tuple[type[LeaderOrderBase], ...] = (LeaderBroadcast, TimestampLeader)
LEADER = 1
NAMES = [order.__name__ for order in ORDERS]


def worst_latency(group: LeaderGroup) -> int:
    assert not group.failed_checks()
    return max(group.latencies())[0]


def random_schedule(order: type[LeaderOrderBase], seed: int) -> LeaderGroup:
    """Random delays within Δ, unrelated clocks, bursts at random times."""
    chance = Random(seed)
    count = chance.randint(2, 5)
    timing = Timing(chance.choice((0, 1, 10 * MS, chance.randint(0, 10 * MS))), 0, chance.randint(1, 10) * MS)
    delta = timing.delta_ns
    corner = chance.random() < 0.5

    def delays(*_: int) -> int:
        return chance.choice((0, delta)) if corner else chance.randint(0, delta)

    group = LeaderGroup(
        order,
        timing,
        count,
        delays,
        processing_ns=chance.choice((0, MS, 8 * MS)),
        offsets_ns=unrelated_clocks(chance, range(1, count + 1)),
        fifo=chance.random() < 0.7,
        rate=full_rate(chance.choice((1, 3, 8)), timing),
        max_message=2500,
    )
    for _ in range(8):
        sizes = [chance.choice((0, 10, 200, 2500)) for _ in range(chance.randint(1, 3))]
        group.send(chance.randint(0, 4 * timing.theta_ns), chance.randint(1, count), *sizes)
    return group


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_no_schedule_is_slower_than_the_bound(order: type[LeaderOrderBase], first: int) -> None:
    for seed in range(first, first + 50):
        group = random_schedule(order, seed).run(40 * MS)
        assert not group.failed_checks(), f"random_schedule({order.__name__}, {seed}): {group.failed_checks()}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
def test_no_schedule_of_ten_thousand_is_slower_than_the_bound(order: type[LeaderOrderBase]) -> None:
    for seed in range(1000, 11_000):
        group = random_schedule(order, seed).run(40 * MS)
        assert not group.failed_checks(), f"random_schedule({order.__name__}, {seed}): {group.failed_checks()}"


def constant_schedule(seed: int) -> LeaderGroup:
    """Every delay is Δ. The leader sends nothing, because its own requests take no time. All else is random."""
    chance = Random(seed)
    count = chance.choice((2, 3, 4, 5, 8))
    timing = Timing(chance.choice((0, 1, 10 * MS, chance.randint(0, 10 * MS))), 0, chance.randint(1, 20) * MS)
    group = LeaderGroup(
        TimestampLeader,
        timing,
        count,
        constant_delay(timing.delta_ns),
        processing_ns=chance.choice((0, MS, chance.randint(0, 12 * MS))),
        offsets_ns=unrelated_clocks(chance, range(1, count + 1)),
        rate=full_rate(chance.choice((1, 3, 8)), timing),
        max_message=2500,
    )
    for _ in range(8):
        sizes = [chance.choice((0, 10, 200, 2500)) for _ in range(chance.randint(1, 3))]
        group.send(chance.randint(0, 3 * timing.theta_ns), chance.randint(2, count), *sizes)
    return group


def assert_published_bound(seeds: range) -> int:
    """Check the published bound in these schedules; returns how many come within a nanosecond of it."""
    reached = 0
    for seed in seeds:
        group = constant_schedule(seed).run(60 * MS)
        bound_ns = constant_delay_bound_ns(group.timing, group.orders[1]._policy.processing_ns)
        assert bound_ns <= group.bound_ns
        failed = group.failed_checks(bound_ns=bound_ns)
        assert not failed, f"constant_schedule({seed}): {failed}"
        reached += max(group.latencies(), default=(0,))[0] >= bound_ns - 1
    return reached


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_8_2_with_constant_delays_no_schedule_is_slower_than_published(first: int) -> None:
    assert assert_published_bound(range(first, first + 50)) > 5, "random schedules reach the bound"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_8_2_with_constant_delays_no_schedule_of_ten_thousand_is_slower_than_published(part: int) -> None:
    assert_published_bound(range(1000 + part * 1000, 2000 + part * 1000))


# -- 8.1 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "processing_ms"), [(2, 0), (2, 7), (8, 1), (16, 1), pytest.param(64, 1, marks=pytest.mark.slow)]
)
def test_8_1_leader_broadcast_takes_2_delta_plus_p_for_any_group_size(members: int, processing_ms: int) -> None:
    timing = Timing(10 * MS, 0, 5 * MS)
    group = LeaderGroup(
        LeaderBroadcast, timing, members, constant_delay(timing.delta_ns), processing_ns=processing_ms * MS
    )
    group.send(3 * MS, members, 100)
    assert worst_latency(group.run()) == 20 * MS + processing_ms * MS == group.bound_ns


def test_8_1_messages_are_ordered_by_arrival_at_the_leader() -> None:
    timing = Timing(10 * MS, 0, 5 * MS)

    def delays(sender: int, receiver: int, *_: int) -> int:
        return 10 * MS if sender == 2 and receiver == LEADER else 0

    group = LeaderGroup(LeaderBroadcast, timing, 3, delays)
    group.send(0, 2, 10)
    group.send(9 * MS, 3, 10)
    group.run()
    assert group.delivered() == {member: [(3, 0), (2, 0)] for member in (1, 2, 3)}


def test_8_1_each_message_is_sent_twice_and_the_leader_relays_complete_frames() -> None:
    timing = Timing(10 * MS, 0, 5 * MS)
    group = LeaderGroup(LeaderBroadcast, timing, 3, constant_delay(MS))
    before = None
    for _ in range(2):
        group.world.run(group.base_ns + 2 * MS)
        frames = {
            m: sum(load.frames_by_slot.values()) + load.control_frames for m, load in group.ledger.traffic.items()
        }
        if before is None:
            before = frames
            group.world.send(group.base_ns + MS, 2, [100] * 8)
    assert before is not None
    assert frames[2] - before[2] == 1
    assert frames[LEADER] - before[LEADER] == 1
    assert frames[3] == before[3]


# -- 8.2 ---------------------------------------------------------------------------------------------------------


def overtaking(delta: int) -> Adversary:
    """Erratum 000-30: requests of member 3 reach the leader in no time; every other frame takes Δ."""

    def delays(sender: int, receiver: int, *_: int) -> int:
        return 0 if (sender, receiver) == (3, LEADER) else delta

    return delays


@pytest.mark.parametrize("members", [3, 4, 16, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("processing_ms", "theta_ms", "published_ms", "bound_ms"), [(1, 5, 21, 25), (3, 20, 30, 40)])
def test_8_2_a_request_can_be_overtaken_for_any_group_size_000_30(
    processing_ms: int, theta_ms: int, published_ms: int, bound_ms: int, members: int
) -> None:
    timing = Timing(10 * MS, 0, theta_ms * MS)
    group = LeaderGroup(TimestampLeader, timing, members, overtaking(10 * MS), processing_ns=processing_ms * MS)
    group.send(0, 2, 10)
    # The second request must arrive first, so the bound is approached to a nanosecond and not reached.
    group.send(10 * MS - 1, 3, 10)
    slowest, message, _ = max(group.run(timing.theta_ns).latencies())
    assert not group.failed_checks()
    assert constant_delay_bound_ns(timing, processing_ms * MS) == published_ms * MS
    assert latency_bound_ns(timing, processing_ms * MS) == bound_ms * MS == group.bound_ns
    assert (slowest, message) == (bound_ms * MS - 1, (2, 0))


@pytest.mark.parametrize("members", [2, 3, 8, 16, pytest.param(64, marks=pytest.mark.slow)])
def test_8_2_if_every_delay_is_delta_the_published_bound_holds(members: int) -> None:
    timing = Timing(10 * MS, 0, 5 * MS)
    group = LeaderGroup(TimestampLeader, timing, members, constant_delay(10 * MS), processing_ns=MS)
    for member in range(1, min(members, 6) + 1):
        group.send(member, member, 10)
    assert worst_latency(group.run(timing.theta_ns)) == 21 * MS == constant_delay_bound_ns(timing, MS)


def test_8_2_a_leader_that_sends_overtakes_others_even_if_every_delay_is_delta() -> None:
    """The leader's own requests take no time, so only 2Δ+max(p, Θ) holds and not the published bound."""
    timing = Timing(10 * MS, 0, 5 * MS)
    group = LeaderGroup(TimestampLeader, timing, 4, constant_delay(10 * MS), processing_ns=MS)
    group.send(0, 2, 10)
    group.send(10 * MS - 1, LEADER, 10)
    assert worst_latency(group.run(timing.theta_ns)) == 25 * MS - 1 > constant_delay_bound_ns(timing, MS)


def test_8_2_with_constant_delays_and_long_slots_the_published_bound_is_approached() -> None:
    timing = Timing(10 * MS, 0, 20 * MS)
    group = LeaderGroup(TimestampLeader, timing, 4, constant_delay(10 * MS), processing_ns=3 * MS)
    group.send(0, 3, 10)
    group.send(1, 2, 10)
    assert worst_latency(group.run(timing.theta_ns)) == 30 * MS - 1


@pytest.mark.parametrize("members", [2, 4, 16, pytest.param(64, marks=pytest.mark.slow)])
def test_8_2_a_leader_slower_than_a_slot_makes_the_bound_exact(members: int) -> None:
    timing = Timing(10 * MS, 0, 5 * MS)
    group = LeaderGroup(TimestampLeader, timing, members, constant_delay(10 * MS), processing_ns=7 * MS)
    group.send(0, 2, 10)
    assert worst_latency(group.run(timing.theta_ns)) == 27 * MS == group.bound_ns


def test_8_2_one_release_gives_back_all_stamps_000_31() -> None:
    timing = Timing(10 * MS, 0, 5 * MS)
    group = LeaderGroup(TimestampLeader, timing, 3, constant_delay(10 * MS), rate=full_rate(100, timing))
    group.send(0, 2, 10)
    group.send(7 * MS, 3, 10)
    group.run(20 * MS)
    frames = group.ledger.traffic[2].frames_by_slot
    assert list(frames.values()) == [2], "the message and one release, for 99 stamps"
    assert group.delivered()[LEADER] == [(2, 0), (3, 0)]
    positions = group.trace().deliveries().place.tolist()
    assert sorted(set(positions)) == [0, 100], "released stamps are not used"


def test_8_2_a_full_burst_needs_no_release() -> None:
    timing = Timing(10 * MS, 0, 5 * MS)
    group = LeaderGroup(TimestampLeader, timing, 3, constant_delay(10 * MS), rate=full_rate(4, timing))
    group.send(0, 2, 10, 10, 10, 10)
    group.run(20 * MS)
    assert list(group.ledger.traffic[2].frames_by_slot.values()) == [1]


# -- the arithmetic ----------------------------------------------------------------------------------------------


def test_offers_state_the_bounds_and_the_reasons() -> None:
    ask = Ask(5, Rate(50, 8), Timing(10 * MS, 2 * MS, 5 * MS), processing_ns=MS)
    broadcast, stamps = leader_order.offer(ask), timestamp_order.offer(ask)
    assert (broadcast.latency_bound_ns, broadcast.feasible) == (21 * MS, True)
    assert (stamps.latency_bound_ns, stamps.feasible) == (25 * MS, True)
    assert broadcast.avg_rate == 2 * 50 + 200, "each message twice, and a heartbeat per slot"
    assert stamps.avg_rate == 50 + 3 * 200 + 200, "three control frames and a heartbeat per slot"
    assert stamps.max_burst == 8 + 2 + 1
    assert "2Δ+p = 2·10ms + 1ms = 21ms" in broadcast.reasons[0]
    assert "2Δ+max(p, Θ) = 2·10ms + max(1ms, 5ms) = 25ms" in stamps.reasons[0]


def test_offers_refuse_asks_outside_the_assumptions() -> None:
    rate, timing = Rate(50, 8), Timing(10 * MS, 2 * MS, 5 * MS)
    for offer in (leader_order.offer, timestamp_order.offer):
        assert not offer(Ask(5, rate, timing, loss=0.01)).feasible
        assert not offer(Ask(4, rate, timing, failures=2)).feasible
        assert offer(Ask(5, rate, timing, failures=2)).feasible
        late = offer(Ask(5, rate, timing, failures=1, deadline_ns=60 * MS))
        assert not late.feasible
        assert "when the leader crashes" in late.reasons[0]
