"""Paper 000 §5.3, Theorem 3: one more frame per slot on average, no more in a burst; and the trade-off with Θ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from tests.full_rate import full_rate
from tests.paper.schedule import MS, Group, figure_8, fixed
from tests.worlds.adversaries import adversarial_network

from unisono.model.events import View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_S, BandwidthReservation, Rate, UnlimitedNetwork
from unisono.orders.packing import reservation
from unisono.orders.vbr.order import VbrOrder
from unisono.sim.network import constant_delay, corners
from unisono.wire.frame import UDP_IP_BYTES

TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
BURST = 6
FILLS = 1300
"""Two messages of this size do not fit into a frame of 1400 bytes, so each frame holds one message, as in the paper."""


def loaded(per_slot: Mapping[int, list[int]], *, size: int = FILLS, burst: int = BURST) -> Group:
    """Member m submits per_slot[m][k] messages at random instants of slot k, for each k in its list."""
    chance, members = Random(3), tuple(per_slot)
    group = Group(
        TIMING,
        fixed({member: chance.randint(-MS, MS) for member in members}),
        adversarial_network(members, corners(chance, TIMING.delta_ns), TIMING.delta_ns),
        rates=dict.fromkeys(members, full_rate(burst, TIMING)),
        max_message=FILLS,
    )
    for member, counts in per_slot.items():
        for number, count in enumerate(counts):
            start = group.slot_start(member, number)
            for at in sorted(start + chance.randrange(TIMING.theta_ns) for _ in range(count)):
                group.send(at, member, size)
    slots = max(len(counts) for counts in per_slot.values())
    return group.run(group.base_ns + slots * TIMING.theta_ns + group.bound_ns)


def frames(group: Group, member: int, slots: int) -> list[int]:
    """The number of frames that a member sent in each slot."""
    first = group.base_ns // TIMING.theta_ns
    return [group.ledger.traffic[member].frames_by_slot[slot] for slot in range(first, first + slots)]


def test_theorem_3_a_silent_member_attains_the_one_extra_frame_per_slot() -> None:
    group = loaded({1: [0] * 50, 2: [1] * 50})
    assert frames(group, 1, 50) == [1] * 50, "NetAvgRate = AppAvgRate + 1 per slot, with AppAvgRate = 0"


def test_theorem_3_over_any_k_slots_at_most_k_frames_are_added_to_the_messages() -> None:
    chance = Random(1)
    counts = {member: [chance.choice((0, 0, 1, 2, BURST)) for _ in range(80)] for member in (1, 2, 3)}
    group = loaded(counts)
    for member, sent in counts.items():
        seen = frames(group, member, 80)
        for k in (1, 2, 5, 20, 80):
            for at in range(80 - k + 1):
                assert sum(seen[at : at + k]) <= sum(sent[at : at + k]) + k
        # Tighter than the paper: the last frame of a slot carries the mark, so only empty slots cost an extra frame.
        assert seen == [max(1, count) for count in sent]


def test_theorem_3_net_max_burst_equals_app_max_burst_and_is_attained_at_full_load() -> None:
    group = loaded({1: [BURST] * 40, 2: [0] * 40, 3: [BURST - 1, BURST] * 20})
    assert frames(group, 1, 40) == [BURST] * 40, "a full burst needs no extra frame for its end-of-slot mark"
    assert all(load.max_burst <= BURST for load in group.ledger.traffic.values())


def test_theorem_3_packing_takes_fewer_frames_than_messages() -> None:
    group = loaded({1: [BURST] * 40, 2: [3] * 40}, size=100)
    assert frames(group, 1, 40) == [1] * 40, "one frame holds six messages of 100 bytes and the mark"
    assert group.ledger.traffic[1].avg_rate == 1 < BURST


@pytest.mark.parametrize("member", [1, 2, 3])
def test_theorem_3_holds_in_every_slot_while_rates_change(member: int) -> None:
    chance = Random(member)
    members = (1, 2, 3)
    group = Group(
        TIMING,
        fixed(dict.fromkeys(members, 0)),
        adversarial_network(members, constant_delay(TIMING.delta_ns), TIMING.delta_ns),
        rates=dict.fromkeys(members, full_rate(3, TIMING)),
        max_message=FILLS,
    )
    in_force = []
    burst = 3
    for number in range(40):
        in_force.append(burst)
        group.send(group.slot_start(member, number), member, *[FILLS] * burst)
        if chance.random() < 0.5:
            burst = chance.randint(1, 6)
            group.change_rate(group.slot_start(member, number) + MS, member, full_rate(burst, TIMING))
    assert frames(group.run(), member, 40) == in_force, "a rate change needs no extra frame either"


@pytest.mark.parametrize(("count", "dummies"), [(3, 0), (2, 1)])
def test_theorem_3_a_full_burst_of_fragmented_messages_needs_no_frame_for_its_mark(count: int, dummies: int) -> None:
    """The last fragment of a full burst carries the mark. If the burst is not full, more messages may follow.

    So a slot that is not full ends with a dummy.
    """
    fragments, slots = 3, 20
    group = Group(
        TIMING,
        fixed({1: 0, 2: 0}),
        adversarial_network((1, 2), constant_delay(0), TIMING.delta_ns),
        rates=dict.fromkeys((1, 2), full_rate(3, TIMING)),
        max_message=fragments * 1300,
    )
    for number in range(slots):
        group.send(group.slot_start(1, number), 1, *[fragments * 1300] * count)
    assert frames(group.run(), 1, slots) == [fragments * count + dummies] * slots


def test_section_5_1_a_full_slot_is_complete_before_its_end() -> None:
    """If all members use up their bursts, delivery waits only for the network."""
    group = Group(
        TIMING,
        fixed({1: 0, 2: 0}),
        adversarial_network((1, 2), constant_delay(3 * MS), TIMING.delta_ns),
        rates=dict.fromkeys((1, 2), full_rate(2, TIMING)),
    )
    for member in (1, 2):
        group.send(group.slot_start(member, 2), member, 10, 10)
    assert {ns for ns, _, _ in group.run().latencies()} == {3 * MS}, "own messages too: the last slot ends 3 ms late"


# -- reserve -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_message", [1, 100, 1300, 1346, 1347, 5000, 20_000])
@pytest.mark.parametrize("burst_bytes", [None, 30_000])
def test_theorem_3_the_reservation_covers_every_byte_that_is_sent(max_message: int, burst_bytes: int | None) -> None:
    """The application always has more to send, up to its burst and average. Bytes on the wire include headers."""
    chance = Random(max_message)
    rate = Rate(600, 5, burst_bytes)
    policy = Policy("g", 1, View((1,)), TIMING, rate, max_message=max_message)
    group = Group(
        TIMING,
        fixed({1: 0}),
        adversarial_network((1,), constant_delay(0), TIMING.delta_ns),
        rates={1: rate},
        max_message=max_message,
    )
    slots = 2 * rate.averaging_slots(TIMING.theta_ns)
    for number in range(slots):
        sizes = [chance.choice((0, max_message, chance.randint(0, max_message))) for _ in range(5)]
        group.send(group.slot_start(1, number) + chance.randrange(TIMING.theta_ns), 1, *sizes)
    load = group.run().ledger.traffic[1]
    first = group.base_ns // TIMING.theta_ns
    on_wire = [
        load.bytes_by_slot.get(s, 0) + UDP_IP_BYTES * load.frames_by_slot.get(s, 0) for s in range(first, first + slots)
    ]
    reserved = reservation(policy, rate)
    assert max(on_wire) <= reserved.burst_bytes_per_slot
    k = rate.averaging_slots(TIMING.theta_ns)
    window_ns = k * TIMING.theta_ns
    for at in range(slots - k + 1):
        assert sum(on_wire[at : at + k]) * NS_PER_S <= reserved.avg_bytes_per_s * window_ns
    accepted = Counter(row.slot for row in group.sent().values())
    assert max(accepted.values()) <= rate.burst
    messages = [accepted[s] for s in range(first, first + slots)]
    most = max(sum(messages[at : at + k]) for at in range(slots - k + 1))
    assert most <= rate.avg * window_ns / NS_PER_S, "§2.1: k·AvgRate messages in k·Θ"
    if burst_bytes is None or burst_bytes >= 5 * max_message:
        assert most == rate.avg * window_ns / NS_PER_S, "the load reaches the limit"


def test_theorem_3_the_order_reserves_at_the_start_and_at_every_rate_change() -> None:
    reserved: list[BandwidthReservation] = []

    class RecordingNetwork(UnlimitedNetwork):
        def reserve(self, reservation: BandwidthReservation) -> None:
            reserved.append(reservation)

    policy = Policy("g", 1, View((1,)), TIMING, Rate(100, 2))
    order = VbrOrder(policy, RecordingNetwork())
    order.wake(0)
    start = TIMING.start_of(order.view.first_slot)
    small, large = Rate(100, 2), Rate(500, 9)
    order.change_rate(start, large)
    order.wake(start + TIMING.theta_ns)
    order.change_rate(start + TIMING.theta_ns, small)
    order.wake(start + 2 * TIMING.theta_ns)
    less, more = reservation(policy, small), reservation(policy, large)
    # While both rates are in use, the larger one stays reserved; bandwidth is released only afterwards.
    assert reserved == [less, more, more, more, less]
    # The average contains 1/Θ headers in addition to the messages.
    per_second = NS_PER_S / TIMING.theta_ns
    silent = reservation(policy, Rate(1e-6, 1)).avg_bytes_per_s
    assert silent == pytest.approx(per_second * (48 + 4 + UDP_IP_BYTES), abs=2)


# -- the note after Theorem 3 ------------------------------------------------------------------------------------


def test_after_theorem_3_a_longer_slot_gives_more_delay_and_fewer_marks() -> None:
    """Measures both sides of the trade-off: the latency of Figure 8, and the marks of a member that sends nothing."""
    latencies: list[int] = []
    marks: list[float] = []
    thetas = [int(ms * MS) for ms in (1, 2.5, 5, 10, 20, 40)]
    for theta in thetas:
        timing = Timing(10 * MS, 2 * MS, theta)
        latencies.append(max(figure_8(timing, 3).run().latencies())[0])
        quiet = Group(timing, fixed({1: 0, 2: 0}), adversarial_network((1, 2), constant_delay(0), timing.delta_ns))
        fifth = NS_PER_S // 5
        load = quiet.run(quiet.base_ns + fifth).ledger.traffic[1]
        first, last = quiet.base_ns // theta, (quiet.base_ns + fifth) // theta
        marks.append(5 * sum(load.frames_by_slot[slot] for slot in range(first, last)))
    assert latencies == [12 * MS + theta for theta in thetas]
    assert marks == [NS_PER_S / theta for theta in thetas]
    assert latencies == sorted(latencies)
    assert marks == sorted(marks, reverse=True)
