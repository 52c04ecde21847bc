"""Paper 000 §7: the network loses at most x consecutive datagrams of a sender; gaps, but one order and no delay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, product

import pytest
from tests.full_rate import full_rate
from tests.paper.gapped_group import MS, GapGroup, fixed, random_churn
from tests.worlds.adversaries import adversarial_network

from unisono.model.timing import Timing
from unisono.orders.vbr.failures import VbrGaps
from unisono.sim.network import Flight, SimulatedLink, constant_delay
from unisono.wire.frame import END_OF_SLOT

TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
BOUND_NS = 19 * MS
FIRST = 1_700_000_000_000 * MS


class Scripted:
    """Loses the datagrams of one link that a script names, from a given time on, and none after the script."""

    def __init__(self, sender: int, receiver: int, lost: Sequence[bool], from_ns: int) -> None:
        self.hits = 0
        self._link = (sender, receiver)
        self._lost = list(lost)
        self._from_ns = from_ns

    def apply(self, link: SimulatedLink, now: int, flights: list[Flight]) -> list[Flight]:
        if (link.sender, link.receiver) != self._link or now < self._from_ns or not self._lost:
            return flights
        lost = self._lost.pop(0)
        self.hits += lost
        return [] if lost else flights


def lossy(
    lost: Sequence[bool],
    *,
    loss_burst: int,
    members: int = 2,
    timing: Timing = TIMING,
    orders: dict[int, type[VbrGaps]] | None = None,
    max_frame: int = 1400,
) -> GapGroup:
    """From slot 10 on, the link from member 2 to member 1 loses the datagrams marked in `lost`."""
    numbers = tuple(range(1, members + 1))
    network = adversarial_network(numbers, constant_delay(MS), timing.delta_ns)
    network.faults = (Scripted(2, 1, lost, FIRST + 10 * timing.theta_ns + 1),)
    return GapGroup(
        timing,
        fixed(dict.fromkeys(numbers, 0)),
        network,
        loss_burst=loss_burst,
        orders=orders,
        max_frame=max_frame,
        start_ns=FIRST,
    )


def longest_burst(lost: Sequence[bool]) -> int:
    return max((len(list(burst)) for hit, burst in groupby(lost) if hit), default=0)


def patterns(length: int, loss_burst: int) -> list[tuple[bool, ...]]:
    """All patterns of this length with at most `loss_burst` consecutive losses."""
    return [lost for lost in product((False, True), repeat=length) if longest_burst(lost) <= loss_burst]


# -- 000-28: the threshold -------------------------------------------------------------------------------------------


def test_000_28_x_consecutive_losses_make_at_most_x_silent_slots_and_this_is_attained() -> None:
    """All patterns of ten datagrams, with one, two or three datagrams per slot."""
    for loss_burst, per_slot in product(range(4), (1, 2, 3)):
        silent = [
            longest_burst([all(lost[at : at + per_slot]) for at in range(0, len(lost) - per_slot + 1, per_slot)])
            for lost in patterns(10, loss_burst)
        ]
        assert max(silent) == loss_burst // per_slot <= loss_burst
        assert max(silent) == loss_burst or per_slot > 1


@pytest.mark.parametrize(("loss_burst", "count"), [(1, 34), (2, 81)])
@pytest.mark.parametrize("theta_ns", [5 * MS, 40 * MS])
def test_000_28_within_the_bound_no_correct_member_is_removed_in_any_pattern(
    loss_burst: int, count: int, theta_ns: int
) -> None:
    """If Θ is above Δ+Γ, a lost frame shows by the time-out; otherwise by the next frame."""
    timing = Timing(10 * MS, 2 * MS, theta_ns)
    all_patterns = patterns(7, loss_burst)
    assert len(all_patterns) == count
    for lost in all_patterns:
        group = lossy(lost, loss_burst=loss_burst, timing=timing)
        for slot in range(9, 20):
            group.send(group.slot_start_ns(2, slot) + MS, 2, 10)
        group.run(group.slot_start_ns(1, 24))
        assert not group.wrongly_removed(), lost
        assert not group.received_not_delivered(), lost
        assert len(group.latest_record(1).delivered) == 11 - sum(lost), lost
        assert group.latency() <= group.bound_ns, lost
        assert not group.failed_checks(), lost


@pytest.mark.parametrize("loss_burst", [1, 2, 3])
def test_000_28_removal_comes_after_x_plus_1_silent_slots_and_not_before(loss_burst: int) -> None:
    timing = Timing(10 * MS, 2 * MS, 40 * MS)  # the next frame arrives after the slot's time-out
    for silent in range(1, loss_burst + 3):
        group = lossy([True] * silent, loss_burst=loss_burst, timing=timing)
        group.run(group.slot_start_ns(1, 30))
        # The last mark to arrive is that of slot 9, sent at the first instant of slot 10.
        assert group.latest_record(1).removed() == (
            [(group.slot_number(10 + loss_burst + 1), 2)] if silent > loss_burst else []
        )
        assert group.latest_record(1).order.view.members == (1, 2), "it is added again after its next frame"


def test_000_28_only_consecutive_silent_slots_count() -> None:
    """One datagram in three is lost for a long time, and each lost slot ends by its time-out."""
    timing = Timing(10 * MS, 2 * MS, 40 * MS)
    group = lossy([True, False, False] * 10, loss_burst=1, timing=timing)
    group.run(group.slot_start_ns(1, 45))
    assert not group.latest_record(1).removed()


def test_000_28_a_control_frame_counts_as_a_heartbeat() -> None:
    """Marks and HELLOs alternate and every mark is lost: no two consecutive losses, and no data for many slots.

    Member 3 never starts, so the HELLOs continue.
    """
    group = lossy([True, False] * 12, loss_burst=1, members=3, timing=Timing(10 * MS, 2 * MS, 10 * MS))
    group.crash(FIRST, 3)
    group.run(group.slot_start_ns(1, 40))
    assert 2 not in [removed for _, removed in group.latest_record(1).removed()]


# -- how a member detects loss ---------------------------------------------------------------------------------------


def test_section_7_the_next_frame_shows_a_loss_which_then_costs_one_slot_and_not_the_time_out() -> None:
    """Member 1's mark of slot 10 is lost on its way to member 2. Links are FIFO, so the next mark shows the loss."""
    network = adversarial_network((1, 2), constant_delay(MS), TIMING.delta_ns)
    network.faults = (Scripted(1, 2, [True], FIRST + 11 * TIMING.theta_ns),)
    group = GapGroup(TIMING, fixed({1: 0, 2: 0}), network, loss_burst=1, start_ns=FIRST)
    group.send(group.slot_start_ns(2, 10), 2, 10)
    group.run(group.slot_start_ns(1, 20))
    took = {member: ns for ns, _, member in group.latencies()}
    assert took == {1: TIMING.theta_ns + MS, 2: 2 * TIMING.theta_ns + MS}


def test_section_7_the_time_out_shows_a_loss_if_no_frame_follows_before_it() -> None:
    timing = Timing(10 * MS, 2 * MS, 40 * MS)
    network = adversarial_network((1, 2), constant_delay(MS), timing.delta_ns)
    network.faults = (Scripted(1, 2, [True], FIRST + 11 * timing.theta_ns),)
    group = GapGroup(timing, fixed({1: 0, 2: 0}), network, loss_burst=1, start_ns=FIRST - FIRST % timing.theta_ns)
    group.send(group.slot_start_ns(2, 10), 2, 10)
    group.run(group.slot_start_ns(1, 16))
    assert group.latency() == timing.theta_ns + timing.delta_ns + timing.gamma_ns


def test_section_7_the_latency_bound_of_theorem_5_holds_and_is_attained() -> None:
    """The sender's clock is fast, the receiver's slow, and a third member's mark is lost."""
    timing = Timing(10 * MS, 2 * MS, 40 * MS)
    network = adversarial_network((1, 2, 3), constant_delay(MS), timing.delta_ns)
    network.faults = (Scripted(1, 2, [True], FIRST + 11 * timing.theta_ns),)
    clocks = fixed({1: 0, 2: -MS, 3: MS})
    group = GapGroup(timing, clocks, network, loss_burst=1, start_ns=FIRST - FIRST % timing.theta_ns)
    group.send(group.slot_start_ns(3, 10), 3, 10)
    group.run(group.slot_start_ns(1, 16))
    assert max(group.latencies()) == (timing.delta_ns + 2 * timing.gamma_ns + timing.theta_ns, (3, 1, 0), 2)
    assert not group.wrongly_removed()


@pytest.mark.parametrize("lost", range(11))
def test_section_7_after_a_gap_only_complete_messages_are_delivered(lost: int) -> None:
    """Erratum 001-6. Three messages of 700 bytes in fragments of 208, with small ones between; one frame is lost.

    The simulated world compares every delivered payload with the sent one.
    """
    sizes = (700, 30, 700, 30, 700)
    script = [number == lost for number in range(lost + 1)]
    group = lossy(script, loss_burst=1, max_frame=256)
    group.send(group.slot_start_ns(2, 10) + MS, 2, *sizes)
    group.run(group.slot_start_ns(1, 20))
    record = group.latest_record(1)
    assert list(record.delivered) == sorted(record.received())
    assert len(record.delivered) == 4, "only the message with a fragment in the lost frame is missing"
    assert not group.failed_checks(), "a message has the same position at both members"


def test_section_7_every_header_carries_the_rate_also_in_end_of_slot_marks() -> None:
    group = lossy([], loss_burst=2)
    rate = full_rate(3, TIMING)
    group.send(group.slot_start_ns(2, 8) + MS, 2, 10, 10)
    group.world.change_rate(group.slot_start_ns(2, 10) + MS, 2, rate)
    group.run(group.slot_start_ns(1, 16))
    frames = group.latest_record(1).frames
    assert {frame.burst for (_, _, slot, _), frame in frames.items() if slot <= group.slot_number(10)} == {8}
    assert {frame.burst for (_, _, slot, _), frame in frames.items() if slot > group.slot_number(10)} == {3}
    assert any(frame.packed_messages is None and frame.flags & END_OF_SLOT for frame in frames.values()), (
        "some of them are dummies"
    )


@pytest.mark.parametrize("loss_burst", [0, 1, 3])
def test_section_7_a_join_is_sent_x_plus_1_times_and_one_arrives(loss_burst: int) -> None:
    """The first x datagrams of the joiner are lost on every link."""
    network = adversarial_network((1, 2, 3), constant_delay(MS), TIMING.delta_ns)
    network.faults = tuple(Scripted(3, to, [True] * loss_burst, FIRST) for to in (1, 2))
    clocks = fixed(dict.fromkeys((1, 2, 3), 0))
    group = GapGroup(TIMING, clocks, network, loss_burst=loss_burst, start_ns=FIRST, starts_ns={3: FIRST + 71 * MS})
    group.run(group.slot_start_ns(1, 30))
    assert group.latest_record(3).joins_sent == loss_burst + 1
    assert group.latest_record(1).joins_sent == group.latest_record(2).joins_sent == loss_burst + 1, (
        "only their own JOINs; no member requests a merge"
    )
    first = group.latest_record(3).first_slot
    for member in (1, 2):
        assert [slot for slot in group.latest_record(member).added(3) if slot == first]


# -- Definition 2 under loss, in random schedules --------------------------------------------------------------------


def definition_2_under_loss(seeds: range) -> int:
    messages = 0
    for seed in seeds:
        loss_burst = 1 + seed % 3
        plan, group = random_churn(seed, loss_burst=loss_burst)
        replay = f"random_churn({seed}, loss_burst={loss_burst}) is {plan}"
        assert not group.unordered(), replay
        assert not group.failed_checks(), f"{group.failed_checks()}\n{replay}"
        assert not group.received_not_delivered(), f"{group.received_not_delivered()[0]}\n{replay}"
        assert not group.wrongly_removed(), f"{group.wrongly_removed()[0]}\n{replay}"
        assert not group.violations(), f"{group.violations()[0]}\n{replay}"
        assert group.latency() <= group.bound_ns, replay
        messages += sum(len(record.sent_ns) for record in group.records.values())
    return messages


@pytest.mark.parametrize("part", range(3))
def test_definition_2_holds_under_loss_in_120_random_schedules(part: int) -> None:
    assert definition_2_under_loss(range(part * 40, (part + 1) * 40)) > 300


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(20))
def test_definition_2_holds_under_loss_in_10000_random_schedules(part: int) -> None:
    definition_2_under_loss(range(10_000 + part * 500, 10_000 + (part + 1) * 500))


# -- planted bugs ----------------------------------------------------------------------------------------------------


class RemovesAtX(VbrGaps):
    """Removes a member after x silent slots instead of x+1."""

    def _timed_out(self, now: int, sender: int) -> bool:
        timed_out = super()._timed_out(now, sender)
        if timed_out and sender != self._policy.member and self._deliver_slot - self._latest_slot_heard[sender] == 1:
            self._failed.append(sender)
        return timed_out


class RenumbersAfterGap(VbrGaps):
    """Gives the messages after a gap the positions of the missing ones."""

    gap_stable_places = False


@pytest.mark.parametrize("bug", [RemovesAtX, RenumbersAfterGap])
def test_a_planted_bug_is_caught(bug: type[VbrGaps]) -> None:
    timing = Timing(10 * MS, 2 * MS, 40 * MS)
    group = lossy([False, True, False], loss_burst=1, timing=timing, orders={1: bug}, max_frame=256)
    group.send(group.slot_start_ns(2, 11) + MS, 2, 200, 200, 200, 200)
    group.run(group.slot_start_ns(1, 20))
    if bug is RemovesAtX:
        group = lossy([True], loss_burst=1, timing=timing, orders={1: bug})
        group.run(group.slot_start_ns(1, 20))
        assert group.wrongly_removed()
    else:
        assert set(group.failed_checks()) == {"total_order"}
