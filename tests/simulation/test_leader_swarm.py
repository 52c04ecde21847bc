"""Leaders that crash, pause, are cut off or leave; the checkers judge each run.

With crashes alone, every guarantee except the latency bound holds among survivors, and the interruption is bounded. If
the network breaks its promise, one order remains: a member that delivered another one is fenced and reports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from tests.paper.leader_group import MS, SAFETY, LeaderGroup, unrelated_clocks

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.delays import ConstantDelay
from unisono.model.events import Batch
from unisono.model.faults import Loss, Partition, Span
from unisono.model.policy import Policy
from unisono.model.scenario import Leave, Network, PlannedRateChange, Scenario, Start, Workload
from unisono.model.timing import Timing
from unisono.model.units import Rate, Reserver
from unisono.orders.leader.base import LeaderOrderBase
from unisono.orders.leader.broadcast import LeaderBroadcast
from unisono.orders.leader.election import leader_change_bound_ns
from unisono.orders.leader.stream import StreamEntry
from unisono.orders.leader.timestamp import PendingGrant, TimestampLeader
from unisono.orders.packing import FramePayload
from unisono.sim import run
from unisono.sim.member import PayloadMismatch
from unisono.sim.network import constant_delay
from unisono.sim.swarm.vbr import calm
from unisono.wire.frame import Frame

ORDERS: tuple[type[LeaderOrderBase], ...] = (LeaderBroadcast, TimestampLeader)
NAMES = [order.__name__ for order in ORDERS]
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
LONG = 600 * MS
"""No message takes longer than this, however many leaders crash in these runs."""


def busy(
    order: type[LeaderOrderBase], seed: int, members: int = 5, faults: Sequence[Partition | Loss] = ()
) -> tuple[Random, LeaderGroup]:
    """A group in which all members send for about 120 ms, with random delays and unrelated clocks."""
    chance = Random(seed)

    def delays(*_: int) -> int:
        return chance.choice((0, 10 * MS, chance.randint(0, 10 * MS)))

    offsets = unrelated_clocks(chance, range(1, members + 1))
    group = LeaderGroup(order, TIMING, members, delays, processing_ns=MS, offsets_ns=offsets, link_faults=faults)
    for member in range(1, members + 1):
        at = 0
        for _ in range(15):
            at += chance.randint(0, 16 * MS)
            group.send(at, member, *[20] * chance.randint(1, 4))
    return chance, group


def violations(group: LeaderGroup) -> dict[int, list[str]]:
    return {member: group.violation_kinds(member) for member in group.members if group.violation_kinds(member)}


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
@pytest.mark.parametrize("first_us", range(0, 40_000, 8_000))
def test_the_leader_may_crash_at_any_instant(order: type[LeaderOrderBase], first_us: int) -> None:
    """Crash at each half millisecond of a small scenario: before a request arrives, between its frames, after."""
    for at_us in range(first_us, first_us + 8_000, 500):
        group = LeaderGroup(
            order, TIMING, 4, constant_delay(9 * MS), processing_ns=MS, offsets_ns={2: 7 * MS, 3: 3 * MS}
        )
        for number in range(8):
            for member in (1, 2, 3, 4):
                group.send(number * 11 * MS + member * 700_000, member, 30, 30)
        group.crash(at_us * 1000, 1)
        group.run(150 * MS)
        assert not group.failed_checks(bound_ns=LONG), f"crash at {at_us} us: {group.failed_checks(bound_ns=LONG)}"
        survivors = [group.delivered()[member] for member in (2, 3, 4)]
        assert survivors[0] == survivors[1] == survivors[2]
        assert all(sum(name[0] == member for name in survivors[0]) == 16 for member in (2, 3, 4))
        for member in (2, 3, 4):
            assert group.violation_kinds(member).count("leader_lost") == 1
            assert group.orders[member].view.members == (2, 3, 4)
            # The interruption has the stated bound; a message that waits for it takes the latency bound on top.
            assert group.longest_gap_ns(member, 0) <= leader_change_bound_ns(TIMING) + group.bound_ns + 11 * MS
        for text in group.violation_texts("leader_lost"):
            assert 0 < float(text.split("for ")[1].split(" ms")[0]) <= leader_change_bound_ns(TIMING) / MS


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
@pytest.mark.parametrize("processing_ns", [0, 5 * MS, 20 * MS])
def test_a_message_lost_with_the_leader_is_later_by_at_most_delta_plus_p(
    order: type[LeaderOrderBase], processing_ns: int
) -> None:
    """A message that reaches the leader just before its crash takes at most Δ+p longer than interruption and bound."""
    timing, slowest = Timing(10 * MS, 0, 5 * MS), 0
    for at_us in range(18_000, 30_000, 500):
        group = LeaderGroup(order, timing, 4, constant_delay(10 * MS), processing_ns=processing_ns)
        group.send(20 * MS, 3, 10)
        group.crash(at_us * 1000, 1)
        outage_ns = group.orders[3].outage_ns([1])
        assert not group.run(200 * MS).failed_checks(bound_ns=group.bound_ns + outage_ns), f"crash at {at_us} us"
        slowest = max(slowest, *(latency for latency, _, _ in group.latencies()))
    assert group.bound_ns + leader_change_bound_ns(timing) < slowest <= group.bound_ns + outage_ns


def crashed(order: type[LeaderOrderBase], seed: int) -> LeaderGroup:
    """The leader crashes, and in most runs another member before, with or after it."""
    chance, group = busy(order, seed)
    at = chance.randint(0, 100 * MS)
    group.crash(at, 1)
    if seed % 3:
        group.crash(max(0, at + chance.randint(-40 * MS, 60 * MS)), chance.choice((2, 2, 3, 5)))
    return group


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
@pytest.mark.parametrize("first", range(0, 24, 8))
def test_two_of_five_members_crash(order: type[LeaderOrderBase], first: int) -> None:
    for seed in range(first, first + 8):
        group = crashed(order, seed).run(300 * MS)
        assert not group.failed_checks(bound_ns=LONG), (
            f"crashed({order.__name__}, {seed}): {group.failed_checks(bound_ns=LONG)}"
        )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
def test_two_of_five_members_crash_in_many_runs(order: type[LeaderOrderBase]) -> None:
    for seed in range(100, 1100):
        group = crashed(order, seed).run(300 * MS)
        assert not group.failed_checks(bound_ns=LONG), (
            f"crashed({order.__name__}, {seed}): {group.failed_checks(bound_ns=LONG)}"
        )


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
@pytest.mark.parametrize("first", range(0, 24, 8))
def test_a_paused_leader_steps_down_and_returns_without_a_second_order(
    order: type[LeaderOrderBase], first: int
) -> None:
    for seed in range(first, first + 8):
        chance, group = busy(order, seed)
        at = chance.randint(5 * MS, 80 * MS)
        group.pause(at, at + chance.randint(MS, 200 * MS), chance.choice((1, 1, 1, 3)))
        group.run(400 * MS)
        assert not group.failed_checks(bound_ns=LONG), f"seed {seed}: {group.failed_checks(bound_ns=LONG)}"
        assert all(group.orders[member].view.members == (1, 2, 3, 4, 5) for member in group.members)
        assert "fenced_out" not in [kind for kinds in violations(group).values() for kind in kinds]


def test_a_leader_that_steps_down_reports_it_and_follows() -> None:
    _, group = busy(LeaderBroadcast, 1)
    group.pause(20 * MS, 150 * MS, 1)
    group.run(300 * MS)
    assert "deposed" in group.violation_kinds(1)
    assert {order.election.leader for order in group.orders.values()} == {2}
    assert group.orders[1].view.members == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
@pytest.mark.parametrize("first", range(0, 24, 8))
def test_one_side_of_a_partition_continues(order: type[LeaderOrderBase], first: int) -> None:
    """All members that are not fenced deliver one sequence, and no member of the larger side is fenced."""
    for seed in range(first, first + 8):
        chance = Random(seed)
        side = tuple(sorted(chance.sample(range(1, 6), chance.randint(1, 2))))
        other = tuple(m for m in range(1, 6) if m not in side)
        at = chance.randint(5 * MS, 80 * MS)
        partition = Partition(Span(at, at + chance.randint(MS, 200 * MS)), (side, other))
        _, group = busy(order, seed, faults=[partition])
        group.run(600 * MS)
        assert_one_order(group, f"seed {seed}, {partition}")
        assert not {*other} & {m for m in group.members if "fenced_out" in group.violation_kinds(m)}


def partitioned_with_failure(order: type[LeaderOrderBase], seed: int) -> tuple[LeaderGroup, list[int]]:
    """A partition and a member that crashes or pauses around that time; and the members that do not crash."""
    chance = Random(seed)
    count = chance.choice((3, 5))
    members = range(1, count + 1)
    side = tuple(sorted(chance.sample(members, chance.randint(1, count // 2))))
    at = chance.randint(0, 60 * MS)
    partition = Partition(
        Span(at, at + chance.randint(20 * MS, 120 * MS)), (side, tuple(m for m in members if m not in side))
    )
    delay = chance.choice((2 * MS, 5 * MS, 9 * MS))
    group = LeaderGroup(order, TIMING, count, constant_delay(delay), processing_ns=MS, link_faults=[partition])
    for number in range(40):
        for member in members:
            group.send(number * 15 * MS + member * MS, member, 20)
    failing, when = chance.choice(members), chance.randint(0, 150 * MS)
    crashes = chance.random() < 0.5
    if crashes:
        group.crash(when, failing)
    else:
        group.pause(when, when + chance.randint(10 * MS, 80 * MS), failing)
    return group, [member for member in members if not (crashes and member == failing)]


def assert_continues(order: type[LeaderOrderBase], seed: int) -> None:
    """All live members can communicate after 260 ms at the latest; the last message is sent 340 ms after that."""
    group, live = partitioned_with_failure(order, seed)
    group.run(300 * MS)
    description = f"partitioned_with_failure({order.__name__}, {seed}): {violations(group)}"
    assert_one_order(group, description, live)
    live = [member for member in live if "fenced_out" not in group.violation_kinds(member)]
    if len(live) > len(group.members) // 2:
        last = max(at - group.base_ns for member in live for at in group.delivery_times(member))
        assert last > 500 * MS, description


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 8, 11, 34, 1013, 1039, 1414])
def test_a_majority_that_can_communicate_again_continues(order: type[LeaderOrderBase], seed: int) -> None:
    """What past failures did: in seed 34 a leader without a majority blocked the votes of others. In 8 and 11 a new
    leader lacked frames. In 1013 and 1039 a leader needed a removed member for its majority and could not readmit it.
    In 1414 two former leaders outbid each other for ever.
    """
    assert_continues(order, seed)


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
def test_a_candidate_that_was_paused_does_not_count_old_votes(order: type[LeaderOrderBase]) -> None:
    """Its voters follow another leader when it wakes. If it began its term, it would be fenced for what it orders."""
    group, live = partitioned_with_failure(order, 5070)
    group.run(300 * MS)
    assert live == [1, 2, 3, 4, 5]
    assert all(group.orders[member].view.members == (1, 2, 3, 4, 5) for member in live), violations(group)
    assert not [kinds for kinds in violations(group).values() if "fenced_out" in kinds or "leader_lost" in kinds]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
def test_many_majorities_that_can_communicate_again_continue(order: type[LeaderOrderBase]) -> None:
    for seed in range(1000, 3000):
        assert_continues(order, seed)


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
def test_a_partition_heals_after_the_third_member_has_crashed(order: type[LeaderOrderBase]) -> None:
    partition = Partition(Span(30 * MS, 150 * MS), ((3,), (1, 2)))
    group = LeaderGroup(order, TIMING, 3, constant_delay(5 * MS), processing_ns=MS, link_faults=[partition])
    for number in range(40):
        for member in (1, 2, 3):
            group.send(number * 15 * MS + member * MS, member, 20)
    group.crash(80 * MS, 2)
    group.run(500 * MS)
    assert_one_order(group, str(violations(group)), [1, 3])
    alive = [member for member in (1, 3) if "fenced_out" not in group.violation_kinds(member)]
    if alive == [1, 3]:
        assert all(max(group.delivery_times(member)) - group.base_ns > 500 * MS for member in alive), violations(group)


def assert_one_order(group: LeaderGroup, description: str, live: Sequence[int] | None = None) -> None:
    """All live members that are not fenced delivered the same messages in the same order, each once."""
    delivered = group.delivered()
    logs = [delivered[m] for m in live or group.members if "fenced_out" not in group.violation_kinds(m)]
    logs.sort(key=len)
    assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(logs)), description
    assert len(set(logs[-1])) == len(logs[-1]), description
    assert logs[0] == logs[-1], description


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
def test_a_side_without_a_majority_stops(order: type[LeaderOrderBase]) -> None:
    partition = Partition(Span(30 * MS, None), ((1, 2), (3, 4, 5)))
    _, group = busy(order, 4, faults=[partition])
    group.run(200 * MS)
    for member in (1, 2):
        times = group.delivery_times(member)
        # It orders until the others have timed out; messages ordered by then take the latency bound.
        assert max(times) <= group.base_ns + 30 * MS + leader_change_bound_ns(TIMING) + group.bound_ns
    assert "no_majority" in group.violation_kinds(1)
    assert group.orders[3].view.members == (3, 4, 5)


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
def test_a_leader_without_a_majority_waits_for_it_without_waking_all_the_time(order: type[LeaderOrderBase]) -> None:
    """Frames have waited for p at a leader that may not order them. Only an input can change that, no timer."""
    partition = Partition(Span(30 * MS, 200 * MS), ((1,), (2,), (3,)))
    group = LeaderGroup(order, TIMING, 3, constant_delay(5 * MS), processing_ns=20 * MS, link_faults=[partition])
    for number in range(20):
        group.send(number * 15 * MS, 1, 20)
    group.run(600 * MS)
    assert_one_order(group, str(violations(group)))
    assert len(group.delivered()[1]) == 20
    assert group.world.steps < 10_000


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
@pytest.mark.parametrize("first", range(0, 16, 8))
def test_lost_datagrams_only_cause_lateness(order: type[LeaderOrderBase], first: int) -> None:
    for seed in range(first, first + 8):
        _, group = busy(order, seed, faults=[Loss(Span(), 0.05)])
        group.run(700 * MS)
        assert_one_order(group, f"seed {seed}")


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
@pytest.mark.parametrize("delay_ms", [5, 50, 79])
def test_one_lost_datagram_costs_time_and_no_member(order: type[LeaderOrderBase], delay_ms: int) -> None:
    """A round trip takes up to 16 slots here. With the timestamp leader, a request and its frames may both be lost."""
    timing = Timing(80 * MS, 5 * MS, 10 * MS)
    for receiver in (1, 3):
        for at in range(200, 300, 13):
            loss = Loss(Span(at * MS, (at + 10) * MS), 1.0, senders=(4 - receiver,), receivers=(receiver,))
            group = LeaderGroup(order, timing, 3, constant_delay(delay_ms * MS), link_faults=[loss])
            for number in range(60):
                group.send(number * 11 * MS, 1 + number % 3, 20)
            group.run(1000 * MS)
            description = f"loss to {receiver} at {at} ms: {violations(group)}"
            assert_one_order(group, description)
            assert len(group.delivered()[1]) == 60, description
            assert not {"fenced_out", "leader_lost"} & {kind for kinds in violations(group).values() for kind in kinds}
            longest = group.bound_ns + 4 * timing.delta_ns if order is LeaderBroadcast else 5 * group.bound_ns
            assert max(latency for latency, _, _ in group.latencies()) < longest, description


@pytest.mark.parametrize("order", ORDERS, ids=NAMES)
@pytest.mark.parametrize("first", range(0, 16, 8))
def test_a_leader_that_leaves_hands_over(order: type[LeaderOrderBase], first: int) -> None:
    for seed in range(first, first + 8):
        chance, group = busy(order, seed)
        at = chance.randint(0, 80 * MS)
        group.leave(at, 1)
        if seed % 2:
            group.leave(at + chance.randint(0, 30 * MS), 2)
        if seed % 4 == 0:
            group.crash(at + chance.randint(0, 30 * MS), 3)
        group.run(200 * MS)
        assert not group.failed_checks(bound_ns=LONG), f"seed {seed}: {group.failed_checks(bound_ns=LONG)}"
        assert 1 not in group.orders[5].view.members
        assert not group.orders[1].running()


def test_a_promised_candidate_is_waited_for_although_the_leader_before_it_left() -> None:
    """Slots are longer than Δ. Member 27 voted for 14 and receives nothing for 2Δ; 14 has just begun to lead."""
    scenario = Scenario(
        source="handed over",
        group="swarm",
        order="timestamp",
        members=(1, 14, 27, 40),
        timing=Timing(1_379_465, 0, 4_138_396),
        rates={
            1: Rate(96.65580577595765, 2),
            14: Rate(724.9185433196823, 5),
            27: Rate(96.65580577595765, 2),
            40: Rate(483.2790288797882, 2),
        },
        workloads={
            1: Workload("cbr", 0, 29, rate=19.33116115519153),
            14: Workload("bursts", 0, 100, burst=1, every_ns=13_333_333),
            27: Workload("cbr", 0, 288, rate=144.98370866393645),
            40: Workload("bursts", 0, 160, burst=2, every_ns=5_333_333),
        },
        network=Network(ConstantDelay(876_621), "corners"),
        run_ns=50_674_437,
        seed=12_371,
        epoch_ns=1_700_000_000_019_517_163,
        max_message=300,
        max_frame=400,
        steps=(
            Start(1, 669_944),
            PlannedRateChange(27, 16_717_822, Rate(241.6395144398941, 1)),
            PlannedRateChange(40, 6_203_001, Rate(96.65580577595765, 2)),
            Leave(1, 24_948_526),
        ),
    )
    result = run(scenario)
    verdicts = check_all(result.trace, until_ns=result.until_ns, bound_ns=LONG)
    assert {verdict.status for verdict in verdicts.values()} == {Status.VALID}, verdicts
    assert not [v for found in result.violations.values() for v in found if v.kind == "fenced_out"]


@pytest.mark.parametrize("order", ["leader", "timestamp"])
@pytest.mark.parametrize("first", range(0, 16, 8))
def test_within_the_assumptions_every_guarantee_holds(order: str, first: int) -> None:
    """Adversarial clocks and delays, duplicates, reordering, late starts, rate changes, members that leave."""
    for seed in range(first, first + 8):
        scenario = replace(calm(seed), order=order)
        leader = scenario.members[0]
        steps = tuple(step for step in scenario.steps if not (isinstance(step, Leave) and step.member == leader))
        result = run(replace(scenario, steps=steps), compare_payloads=True)
        verdicts = check_all(result.trace, until_ns=result.until_ns)
        failed = {name: verdict for name, verdict in verdicts.items() if verdict.status is not Status.VALID}
        assert not failed, f"calm({seed}) as {order}: {failed}"
        assert not any(result.violations.values()), f"calm({seed}) as {order}: {result.violations}"


# -- planted bugs ------------------------------------------------------------------------------------------------


class NeverDetectsPause(LeaderBroadcast):
    """A leader that does not check whether it was paused."""

    def __init__(self, policy: Policy, reserver: Reserver) -> None:
        super().__init__(policy, reserver)
        self.election.detect_own_pause = lambda now: None  # type: ignore[method-assign]


class SkipsMissingFrames(TimestampLeader):
    """Delivers the frames of a grant that have arrived, and continues with the next grant."""

    def _deliver_grant(self, grant: PendingGrant) -> bool:
        super()._deliver_grant(grant)
        return True


class ResendsDelivered(LeaderBroadcast):
    """Sends its last message again after a change of leader, although it is already delivered."""

    last_delivered: Frame | None = None

    def _on_relayed_entry(self, now: int, entry: StreamEntry) -> None:
        if entry.origin == self.election.member:
            self.last_delivered = self._pending_frames[0]
        super()._on_relayed_entry(now, entry)

    def _reset_after_member_change(self, now: int, entry: StreamEntry, changed: set[int]) -> None:
        super()._reset_after_member_change(now, entry, changed)
        if self.last_delivered is not None:
            again = replace(self.last_delivered, number=self._next_number)
            self._next_number += 1
            self._pending_frames.append(again)
            self._send_to_leader(now, again)


class DeliversOwnAtOnce(LeaderBroadcast):
    """Also delivers its own messages when it sends them."""

    def _send(self, now: int, payload: FramePayload, flags: int) -> None:
        sequence = self._sequence
        super()._send(now, payload, flags)
        if payload.packed_messages is not None:
            messages = payload.packed_messages
            me, slot = self.election.member, self.election.timing.slot_of(now)
            self.events.append(Batch(me, 1, slot, sequence, 0, self._index, messages.count, [messages]))
            self._index += messages.count


@pytest.mark.parametrize("planted", [NeverDetectsPause, SkipsMissingFrames, ResendsDelivered, DeliversOwnAtOnce])
def test_planted_bugs_are_caught(planted: type[LeaderOrderBase]) -> None:
    for seed in range(12):
        chance, group = busy(planted, seed)
        at = chance.randint(5 * MS, 60 * MS)
        group.pause(at, at + 120 * MS, 1)
        try:
            group.run(300 * MS)
        except PayloadMismatch:
            return
        if any(name in group.failed_checks(bound_ns=LONG) for name in (*SAFETY, "gap_freedom")):
            return
    pytest.fail(f"no checker found {planted.__name__}")
