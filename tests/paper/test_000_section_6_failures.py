"""Paper 000 §6: total order with gaps, failure detection, Theorem 5, joins, leaves, partitions and merges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from tests.paper.gapped_group import MS, PLENTY, GapGroup, fixed, random_churn

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.durations import NS_PER_S
from unisono.model.events import ClockViolation
from unisono.model.faults import Loss, Partition, Span
from unisono.model.offers import Ask
from unisono.model.policy import PROBE_INTERVAL_NS, Policy
from unisono.model.rates import Rate
from unisono.model.text.scenario import parse_scenario
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.orders.leader.election import outage_ns
from unisono.orders.vbr.failures import VbrGaps, latency_bound_ns
from unisono.qos.plan.planner import lower_bound_ns, plan
from unisono.sim import run as simulate
from unisono.sim.clocks import FixedClock, SteppedClock
from unisono.sim.faults import FaultSpan, LossFault, PartitionFault
from unisono.sim.network import SimulatedNetwork, adversarial_network, constant_delay, delay_per_link, full_mesh
from unisono.sim.random_streams import RandomStreams
from unisono.stack import build

TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
BOUND_NS = 19 * MS
HALF = TIMING.gamma_ns // 2


def group_of(members: int, *, delay_ns: int = MS, offsets: Mapping[int, int] | None = None, **more: object) -> GapGroup:
    """Members 1 to n whose every datagram takes the same time; their clocks are right unless told."""
    numbers = tuple(range(1, members + 1))
    clocks = fixed({member: (offsets or {}).get(member, 0) for member in numbers})
    return GapGroup(TIMING, clocks, adversarial_network(numbers, constant_delay(delay_ns), TIMING.delta_ns), **more)  # type: ignore[arg-type]


def chatter(group: GapGroup, from_slot: int, to_slot: int, *members: int) -> None:
    """Each member hands in a message in every slot, in the middle of it."""
    for member, slot in product(members or group.members, range(from_slot, to_slot)):
        group.send(group.slot_start_ns(member, slot) + TIMING.theta_ns // 2, member, 40)


def assert_in_order(group: GapGroup) -> None:
    assert not group.unordered()
    assert not group.failed_checks()


# -- Definition 2 and Theorem 5, by chance ---------------------------------------------------------------------------


def definition_2_and_theorem_5(seeds: range) -> tuple[int, int]:
    """How many messages were sent, and how many schedules came to the bound itself."""
    messages = attained = 0
    for seed in seeds:
        plan, group = random_churn(seed)
        told = f"random_churn({seed}) is {plan}"
        assert not group.unordered(), told
        assert not group.failed_checks(), f"{group.failed_checks()}\n{told}"
        assert not group.undelivered(), f"{group.undelivered()[0]}\n{told}"
        assert not group.received_not_delivered(), f"{group.received_not_delivered()[0]}\n{told}"
        assert not group.wrongly_removed(), f"{group.wrongly_removed()[0]}\n{told}"
        assert not group.violations(), f"{group.violations()[0]}\n{told}"
        assert group.latency() <= group.bound_ns == latency_bound_ns(plan.timing), told
        messages += sum(len(account.sent_ns) for account in group.records.values())
        attained += group.latency() == group.bound_ns
    return messages, attained


@pytest.mark.parametrize("part", range(4))
def test_definition_2_and_theorem_5_hold_in_200_random_schedules_of_crashes_joins_and_leaves(part: int) -> None:
    messages, attained = definition_2_and_theorem_5(range(part * 50, (part + 1) * 50))
    assert messages > 500
    assert attained > 2, "chance alone finds the bound, so the schedules are not tame"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(20))
def test_definition_2_and_theorem_5_hold_in_10000_random_schedules(part: int) -> None:
    definition_2_and_theorem_5(range(10_000 + part * 500, 10_000 + (part + 1) * 500))


def test_a_member_that_joins_leaves_and_is_back_before_others_deliver_its_first_slot_is_heard_in_both_lives() -> None:
    """Slots are short: the others deliver one Δ+Γ after its end, when the next life's JOIN is here already."""
    definition_2_and_theorem_5(range(13_486, 13_487))


# -- Theorem 4 and Lemma 6.1 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("failures", [1, 2, 3, 8])
def test_theorem_4_no_gap_free_order_that_survives_f_crashes_promises_less_than_f_plus_1_delta(failures: int) -> None:
    """The planner refuses to the nanosecond; and no order that it knows of offers a gap-free bound below that."""
    least_ns = (failures + 1) * TIMING.delta_ns
    ask = Ask(2 * failures + 1, Rate(50, 8), TIMING, failures=failures, reliable=True)
    assert lower_bound_ns(ask) == least_ns
    refused, not_refused = (plan(replace(ask, deadline_ns=ns)).refusal for ns in (least_ns - 1, least_ns))
    assert "Theorem 4" in refused
    assert "Theorem 4" not in not_refused
    promised = {offer.order: offer for offer in plan(ask).candidates if offer.feasible}
    assert {"leader", "timestamp", "consensus"} <= set(promised)
    for offer in promised.values():
        died = tuple(range(1, failures + 1))
        if offer.outage_ns is not None:
            assert offer.latency_bound_ns + failures * offer.outage_ns >= least_ns, offer.order
            stack = build(Policy("p", 1, View(tuple(range(1, ask.members + 1))), TIMING, ask.rate, order=offer.order))
            assert failures * offer.outage_ns >= stack.outage_ns(died), "what runs states no more than was planned"
    kept = plan(replace(ask, deadline_ns=3600 * NS_PER_S)).candidates
    assert {offer.order: offer.feasible for offer in kept}["consensus"] is False, "it promises nothing when one dies"


def test_theorem_4_a_gap_free_order_pays_for_two_crashes_what_the_scenario_says() -> None:
    path = Path(__file__).parents[2] / "scenarios" / "theorem_4_lower_bound.toml"
    scenario = parse_scenario(path.read_text("utf-8"), path.name)
    assert scenario.bound_ns == 2 * TIMING.delta_ns + 2 * outage_ns(TIMING, 0)
    result = simulate(scenario)
    verdicts = check_all(result.trace, until_ns=result.until_ns)
    assert {verdict.status for verdict in verdicts.values()} == {Status.VALID}, verdicts
    assert verdicts["latency"].figures["max_ns"] == 155 * MS + 1 > 3 * TIMING.delta_ns


def test_lemma_6_1_all_the_messages_received_by_a_process_are_delivered() -> None:
    """(1) Who is not suspected and does not fail is not suspected after; (2) who is back is heard from its slot on."""
    received = 0
    for seed in range(200, 240):
        plan_, group = random_churn(seed)
        assert not group.received_not_delivered(), f"{group.received_not_delivered()[0]}\n{plan_}"
        assert not group.wrongly_removed(), f"(1): {group.wrongly_removed()[0]}\n{plan_}"
        assert not group.undelivered(), f"(2): {group.undelivered()[0]}\n{plan_}"
        received += sum(len(account.received()) for account in group.correct())
    assert received > 500


# -- §6.2: detecting faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash_ns", [0, 1, TIMING.theta_ns // 2, TIMING.theta_ns - 1, 7 * MS, 11 * MS])
def test_000_23_nobody_alive_is_given_up_and_who_has_crashed_is_in_768_runs(crash_ns: int) -> None:
    """128 runs per instant of the crash: all clock corners of three members, all delay corners of four links."""
    links = ((1, 2), (2, 1), (3, 1), (3, 2))
    for corner, delays in product(product((-HALF, HALF), repeat=3), product((0, TIMING.delta_ns), repeat=4)):
        network = adversarial_network((1, 2, 3), delay_per_link(dict(zip(links, delays, strict=True))), TIMING.delta_ns)
        group = GapGroup(TIMING, fixed(dict(zip((1, 2, 3), corner, strict=True))), network)
        group.crash(group.slot_start_ns(3, 5) + crash_ns, 3)
        group.send(group.slot_start_ns(1, 6), 1, 10)
        group.send(group.slot_start_ns(2, 6), 2, 10)
        group.run(group.slot_start_ns(1, 14))
        told = f"clocks {corner}, delays {dict(zip(links, delays, strict=True))}"
        assert [gone for _, gone in group.latest_record(1).removed()] == [3], told
        assert [gone for _, gone in group.latest_record(2).removed()] == [3], told
        assert not group.undelivered(), told
        assert group.latency() <= BOUND_NS, told


@pytest.mark.parametrize("extra_ns", [0, 1])
def test_000_22_what_arrives_exactly_at_the_time_out_counts_even_if_two_do(extra_ns: int) -> None:
    """Members 1 and 2 are slow and their marks take Δ: both reach member 3, which is fast, at its very time-out.

    The first of them must not make member 3 give up the second. A nanosecond more, and both have failed.
    """

    def delay(_: int) -> int:
        return TIMING.delta_ns + extra_ns * (group.world.now > late_from)

    late_from = 2**63
    network = SimulatedNetwork(full_mesh((1, 2, 3), lambda *_: delay))
    group = GapGroup(TIMING, fixed({1: -HALF, 2: -HALF, 3: HALF}), network)
    late_from = group.slot_start_ns(1, 8) + 1
    chatter(group, 7, 10)
    group.run(group.slot_start_ns(1, 16))
    gone = {member for _, member in group.latest_record(3).removed()}
    assert gone == ({1, 2} if extra_ns else set())
    at_time_out = TIMING.end_of(group.slot_number(7)) + TIMING.delta_ns + TIMING.gamma_ns - HALF
    assert at_time_out in [at for slot, at in group.latest_record(3).delivered.values() if slot == group.slot_number(7)]
    assert not group.unordered()


def test_section_6_2_a_pause_within_the_time_out_removes_nobody() -> None:
    group = group_of(3)
    chatter(group, 5, 20)
    group.pause(group.slot_start_ns(2, 8) - MS, group.slot_start_ns(2, 8) + 4 * MS, 2)
    group.run(group.slot_start_ns(1, 30))
    assert not any(group.latest_record(member).removed() for member in group.members)
    assert not group.undelivered()
    assert not group.violations()


def test_section_6_2_what_a_crashed_member_sent_before_is_delivered_by_all_who_have_it() -> None:
    """001-6 too: two of its frames arrive, the slot's end does not; they are delivered at the time-out."""
    group = group_of(3, max_frame=256, max_message=200)
    group.send(group.slot_start_ns(3, 6), 3, 200, 200, 200)
    group.crash(group.slot_start_ns(3, 6) + 1, 3)
    group.run(group.slot_start_ns(1, 12))
    sent = len(group.latest_record(3).sent_ns)
    assert sent == 3
    assert list(group.latest_record(1).delivered) == list(group.latest_record(2).delivered) == [(3, 1, 0), (3, 1, 1)], (
        "the third was held back"
    )
    slot = group.slot_number(6)
    assert group.latest_record(1).removed() == group.latest_record(2).removed() == [(slot + 1, 3)]
    assert group.latest_record(1).views[-1][0] == TIMING.end_of(slot) + TIMING.delta_ns + TIMING.gamma_ns
    assert_in_order(group)


# -- §6.5: Theorem 5 -------------------------------------------------------------------------------------------------


def figure_9(timing: Timing, members: int, failures: int = 1) -> GapGroup:
    """The last member's clock is Γ/2 ahead, and it sends at the first instant of a slot; its neighbour's is Γ/2 behind.

    The first `failures` members have just crashed, so that everybody waits for them, for as long as one may.
    """
    half = timing.gamma_ns // 2
    numbers = tuple(range(1, members + 1))
    offsets = dict.fromkeys(numbers, 0) | {members: half, members - 1: -half}
    group = GapGroup(
        timing, fixed(offsets), adversarial_network(numbers, constant_delay(timing.delta_ns // 2), timing.delta_ns)
    )
    slot = 3 + 2 * (timing.delta_ns + timing.gamma_ns) // timing.theta_ns
    for member in range(1, failures + 1):
        group.crash(group.slot_start_ns(member, slot) + member, member)
    group.send(group.slot_start_ns(members, slot), members, 100)
    return group.run(group.slot_start_ns(members, slot) + group.bound_ns)


@pytest.mark.parametrize(
    "timing",
    [
        TIMING,
        Timing(1, 0, 1000),
        Timing(10 * MS, 0, 5 * MS),
        Timing(1, 2, 1001),
        Timing(123_456_789, 34_567_890, 50 * MS),
        Timing(3 * MS, 40 * MS, 20 * MS),
        Timing(100_000, 20_000, 1_000 * MS),
    ],
)
def test_theorem_5_figure_9_attains_the_bound_exactly(timing: Timing) -> None:
    group = figure_9(timing, 3)
    bound = timing.delta_ns + 2 * timing.gamma_ns + timing.theta_ns
    assert latency_bound_ns(timing) == group.bound_ns == bound
    assert (bound, (3, 1, 0), 2) in group.latencies()
    assert group.latency() == bound
    assert not group.failed_checks()
    assert not group.violations()


@pytest.mark.parametrize("members", [3, 4, 8, 16, pytest.param(64, marks=pytest.mark.slow)])
def test_theorem_5_the_attained_maximum_does_not_depend_on_the_number_of_members(members: int) -> None:
    group = figure_9(TIMING, members)
    assert max(group.latencies())[:2] == (BOUND_NS, (members, 1, 0))
    assert sum(len(account.delivered) for account in group.records.values()) == members - 1


@pytest.mark.parametrize("failures", [1, 2, 5, 8])
def test_theorem_5_the_attained_maximum_does_not_depend_on_the_number_of_failures(failures: int) -> None:
    """A gap-free order would need (f+1)Δ (Theorem 4): 90 ms for eight failures; here it stays at 19 ms."""
    group = figure_9(TIMING, 10, failures)
    assert max(group.latencies()) == (BOUND_NS, (10, 1, 0), 9)


def test_theorem_5_failures_one_after_another_do_not_add_up() -> None:
    group = group_of(6, delay_ns=TIMING.delta_ns, offsets={5: -HALF, 6: HALF})
    for number, member in enumerate((1, 2, 3, 4)):
        group.crash(group.slot_start_ns(member, 6 + number) + MS, member)
    chatter(group, 4, 16, 5, 6)
    for slot in range(4, 16):
        group.send(group.slot_start_ns(6, slot), 6, 10)
    group.run(group.slot_start_ns(6, 22))
    assert group.latency() == BOUND_NS
    assert_in_order(group)
    assert not group.undelivered()


# -- §6.3: joins -----------------------------------------------------------------------------------------------------


def test_000_24_the_join_is_never_late_and_both_waits_are_attained_in_9720_cases() -> None:
    """Every phase of the clock, both clock corners of joiner and receiver, delays of 0, Δ/2 and Δ, in small numbers."""
    cases = joiner_attains = other_attains = 0
    for theta, delta, gamma in product((1000, 1001, 1005), (1, 500, 1000, 2300, 3007), (0, 2, 700)):
        timing, half = Timing(delta, gamma, theta), gamma // 2
        for phase, joiner, receiver in product(range(0, theta, -(-theta // 18)), (-half, half), (-half, half)):
            woken = 10**9 + phase
            first = timing.smax(woken + joiner)
            starts = timing.start_of(first) - joiner - woken
            assert 0 < starts <= delta + gamma + theta
            joiner_attains += starts == delta + gamma + theta
            others_start = timing.start_of(first) - receiver - woken
            assert others_start <= delta + 2 * gamma + theta
            other_attains += others_start == delta + 2 * gamma + theta
            for delay in (0, delta // 2, delta):
                assert woken + delay + receiver < timing.start_of(first), (
                    "the receiver's clock is still before the slot"
                )
                cases += 1
    assert cases == 9720
    assert joiner_attains
    assert other_attains


@pytest.mark.parametrize(("offset", "waits_ns"), [(HALF, 17 * MS), (-HALF, 17 * MS)])
def test_000_24_the_joiner_starts_within_delta_gamma_theta_and_the_others_gamma_later(
    offset: int, waits_ns: int
) -> None:
    """The joiner's clock plus Δ+Γ is at the first instant of a slot when it wakes: it waits one whole Θ more.

    Its slots are known to be the group's 2Δ+2Γ after it woke, which is in time for what is sent in its first slot.
    """
    clocks = fixed({1: -HALF, 2: HALF, 3: offset})
    network = adversarial_network((1, 2, 3), constant_delay(TIMING.delta_ns), TIMING.delta_ns)
    group = GapGroup(TIMING, clocks, network, starts_ns={3: FIRST + 63 * MS - offset})
    group.run(group.slot_start_ns(1, 30))
    joiner = group.latest_record(3)
    first = joiner.first_slot
    assert first is not None
    entered = {m: group.world.members[m].clock.true_at(TIMING.start_of(first)) - joiner.started_ns for m in (1, 2, 3)}
    assert entered.pop(3) == waits_ns == TIMING.delta_ns + TIMING.gamma_ns + TIMING.theta_ns
    assert max(entered.values()) == waits_ns + HALF + offset <= BOUND_NS
    sure_ns = joiner.views[0][0] - joiner.started_ns
    assert sure_ns == 2 * (TIMING.delta_ns + TIMING.gamma_ns) <= min(entered.values()) + BOUND_NS
    assert group.latest_record(1).views[-1][1].joined == (3,), (
        "and it stays: its marks are there from its first slot on"
    )
    assert group.latest_record(1).added(3)[-1] == group.latest_record(2).added(3)[-1] == first, (
        "all add it at the same slot"
    )


FIRST = 1_700_000_000_000 * MS


def test_000_24_a_join_is_in_time_although_everybody_has_used_up_its_burst_and_ended_the_slot_before() -> None:
    """Bursts of one end a slot at its beginning; its delivery is complete before the JOIN for the next one comes."""
    numbers = (1, 2, 3)
    network = adversarial_network(
        numbers, delay_per_link({(3, 1): TIMING.delta_ns, (3, 2): TIMING.delta_ns}), TIMING.delta_ns
    )
    group = GapGroup(
        TIMING,
        fixed({1: 0, 2: 0, 3: -HALF}),
        network,
        rates=dict.fromkeys(numbers, Rate(PLENTY, 1)),
        starts_ns={3: FIRST + 63 * MS},
    )
    for member, slot in product((1, 2), range(5, 20)):
        group.send(group.slot_start_ns(member, slot), member, 10)
    group.run(group.slot_start_ns(1, 30))
    assert not group.violations()
    first = group.latest_record(3).first_slot
    assert group.latest_record(1).added(3)[-1] == group.latest_record(2).added(3)[-1] == first
    assert not group.undelivered()


def test_000_25_two_joiners_with_different_smax_hear_each_other_from_the_later_one_on() -> None:
    group = group_of(4, starts_ns={3: FIRST + 52 * MS, 4: FIRST + 59 * MS})
    chatter(group, 5, 30)
    group.run(group.slot_start_ns(1, 40))
    firsts = {group.latest_record(3).first_slot, group.latest_record(4).first_slot}
    assert len(firsts) == 2
    assert group.latest_record(3).added(4)[-1] == group.latest_record(4).first_slot
    assert not group.undelivered()
    assert not group.violations()


def test_000_25_who_wakes_after_a_join_has_passed_and_begins_before_it_still_hears_the_joiner() -> None:
    """Member 2's clock is Γ ahead of member 3's: it joins first and begins a slot later. Its JOIN finds nobody."""
    timing = Timing(10 * MS, 6 * MS, 5 * MS)
    network = adversarial_network((1, 2, 3), constant_delay(0), timing.delta_ns)
    starts = {2: FIRST + 51 * MS, 3: FIRST + 51 * MS + 1}
    group = GapGroup(timing, fixed({1: 0, 2: 3 * MS, 3: -3 * MS}), network, starts_ns=starts)
    for member, slot in product((1, 2, 3), range(10, 30)):
        group.send(group.slot_start_ns(member, slot), member, 10)
    group.run(group.slot_start_ns(1, 40))
    first_2, first_3 = group.latest_record(2).first_slot, group.latest_record(3).first_slot
    assert first_2 is not None
    assert first_3 is not None
    assert first_2 > first_3
    assert group.latest_record(3).added(2)[-1] == first_2, "at the slot that it named, not after a merge"
    assert not group.undelivered()
    assert not group.violations()


def test_section_6_3_a_process_that_wakes_after_a_join_hears_the_joiner() -> None:
    group = group_of(3, starts_ns={2: FIRST + 51 * MS, 3: FIRST + 55 * MS})
    chatter(group, 10, 30)
    group.run(group.slot_start_ns(1, 40))
    assert not group.undelivered()
    assert {message[0] for message in group.latest_record(3).delivered} == {1, 2, 3}


@pytest.mark.parametrize("away_ns", [0, 1, 5 * MS, 12 * MS, 40 * MS, 500 * MS])
def test_section_6_3_a_crashed_member_comes_back_as_a_new_incarnation_at_one_slot_for_all(away_ns: int) -> None:
    """Also before anybody has missed it: then the old life ends and the new one begins without a gap in the list."""
    group = group_of(4, delay_ns=9 * MS, offsets={1: -HALF, 2: HALF})
    chatter(group, 4, 40 + away_ns // TIMING.theta_ns)
    back = group.slot_start_ns(3, 10) + 2 * MS + away_ns
    group.crash(group.slot_start_ns(3, 10) + 2 * MS, 3)
    group.restart(back, 3)
    group.run(back + 40 * TIMING.theta_ns)
    first = group.records[3, 2].first_slot
    assert first == TIMING.smax(back)
    assert {group.latest_record(member).added(3)[-1] for member in (1, 2, 4)} == {first}
    assert not group.undelivered()
    assert not group.violations()
    assert_in_order(group)
    assert any(message[:2] == (3, 2) for message in group.latest_record(1).delivered)


def test_000_26_an_old_incarnation_in_flight_never_enters_after_a_rejoin() -> None:
    """Everything of member 3 takes Δ, so its last frames arrive when its next life has long been announced."""
    network = adversarial_network(
        (1, 2, 3), delay_per_link({(3, 1): TIMING.delta_ns, (3, 2): TIMING.delta_ns}), TIMING.delta_ns, fifo=False
    )
    group = GapGroup(TIMING, fixed({1: 0, 2: 0, 3: HALF}), network, max_frame=256)
    chatter(group, 4, 40)
    for slot in range(8, 14):
        group.crash(group.slot_start_ns(3, slot) + 4 * MS, 3)
        group.restart(group.slot_start_ns(3, slot) + 4 * MS, 3)
    group.run(group.slot_start_ns(1, 50))
    assert max(life for member, life in group.records if member == 3) == 7
    for member in (1, 2):
        lives = [message[1] for message in group.latest_record(member).delivered if message[0] == 3]
        assert lives == sorted(lives)
    assert not group.undelivered()
    assert_in_order(group)


# -- 001-5: leave ----------------------------------------------------------------------------------------------------


def test_001_5_a_leave_is_the_implicit_end_of_its_slot_and_all_see_it_at_the_same_place() -> None:
    group = group_of(3, delay_ns=TIMING.delta_ns, offsets={1: -HALF, 3: HALF})
    chatter(group, 5, 20)
    group.leave(group.slot_start_ns(2, 10) + 3 * MS, 2)
    group.run(group.slot_start_ns(1, 30))
    left = group.latest_record(2).left
    assert left is not None
    assert left.final_slot == group.slot_number(10)
    assert group.latest_record(1).removed() == group.latest_record(3).removed() == [(left.final_slot + 1, 2)]
    assert not group.undelivered(), "the leaver has delivered its last slot, and all have the leaver's messages of it"
    assert group.latency() < BOUND_NS
    assert_in_order(group)


@pytest.mark.parametrize("away_ns", [0, 1, 20 * MS])
def test_001_5_who_has_left_may_come_back_and_its_old_end_mark_ends_no_slot_of_the_new_life(away_ns: int) -> None:
    group = group_of(3, delay_ns=TIMING.delta_ns)
    chatter(group, 5, 40)
    group.leave(group.slot_start_ns(2, 10) + 3 * MS, 2)
    group.run(group.slot_start_ns(1, 10) + 3 * MS)
    while group.latest_record(2).left is None:
        group.run(group.world.now + MS // 4)
    group.restart(group.world.now + away_ns, 2)
    group.run(group.slot_start_ns(1, 50))
    first = group.records[2, 2].first_slot
    assert group.latest_record(1).added(2)[-1] == group.latest_record(3).added(2)[-1] == first
    assert not group.undelivered()
    assert not group.violations()


def test_001_5_a_leave_while_joining_takes_effect_after_the_slot_that_others_count_on() -> None:
    group = group_of(3, starts_ns={3: FIRST + 50 * MS})
    chatter(group, 5, 30, 1, 2)
    group.leave(FIRST + 52 * MS, 3)
    group.run(group.slot_start_ns(1, 40))
    account = group.latest_record(3)
    assert account.left is not None
    assert account.left.final_slot == account.first_slot
    assert (
        group.latest_record(1).removed()[-1] == group.latest_record(2).removed()[-1] == (account.left.final_slot + 1, 3)
    )
    assert group.latency() < BOUND_NS
    assert not group.violations()
    assert not group.undelivered()


# -- §6.6: partitions and merges -------------------------------------------------------------------------------------


def partitioned(sides: tuple[tuple[int, ...], ...], from_ns: int, to_ns: int, delay_ns: int = MS) -> GapGroup:
    numbers = tuple(sorted(member for side in sides for member in side))
    network = adversarial_network(numbers, constant_delay(delay_ns), TIMING.delta_ns)
    span = Span(from_ns, to_ns)
    network.faults = (PartitionFault(Partition(span, sides), FaultSpan(span, FIRST)),)
    return GapGroup(TIMING, fixed(dict.fromkeys(numbers, 0)), network)


def test_section_6_6_both_sides_go_on_within_the_bound_and_hear_each_other_again_after_healing() -> None:
    group = partitioned(((1, 2), (3, 4, 5)), 50 * MS, 200 * MS)
    chatter(group, 4, 100)
    group.run(group.slot_start_ns(1, 120))
    assert_in_order(group)
    healed = group.slot_number(41 + TIMING.smax(0) + 2)
    for account in group.records.values():
        between = {
            m[0] for m, (slot, _) in account.delivered.items() if group.slot_number(16) <= slot < group.slot_number(39)
        }
        assert between == ({1, 2} if account.member < 3 else {3, 4, 5})
        after = [m for m, (slot, _) in account.delivered.items() if slot >= healed]
        assert len(after) == 5 * (group.slot_number(100) - healed), "from the merge on nothing is missing"
    assert group.latency() <= BOUND_NS, "nothing blocks while the lists change"


@pytest.mark.parametrize("delay_ns", [MS, TIMING.delta_ns])
def test_000_27_a_merge_takes_at_most_two_requests_and_two_answers_per_pair_and_then_there_is_quiet(
    delay_ns: int,
) -> None:
    group = partitioned(((1, 2), (3, 4, 5)), 50 * MS, 200 * MS, delay_ns)
    group.run(FIRST + 199 * MS)
    before = {account.member: account.joins_sent for account in group.records.values()}
    assert before == dict.fromkeys(group.members, 1)
    group.run(FIRST + 300 * MS)
    after = {account.member: account.joins_sent - 1 for account in group.records.values()}
    assert 6 <= sum(after.values()) <= 6 * 4, "six pairs were divided"
    group.run(FIRST + 600 * MS)
    assert {account.member: account.joins_sent - 1 for account in group.records.values()} == after
    assert all(account.order.view.members == group.members for account in group.records.values())


@pytest.mark.parametrize("delay_ns", [0, TIMING.delta_ns])
def test_section_6_6_suspicion_on_one_side_only_is_mended(delay_ns: int) -> None:
    """Member 2 does not hear member 1 for a while, and member 1 hears everything."""
    network = adversarial_network((1, 2, 3), constant_delay(delay_ns), TIMING.delta_ns)
    span = Span(50 * MS, 90 * MS)
    loss = Loss(span, 1.0, senders=(1,), receivers=(2,))
    network.faults = (LossFault((loss,), FIRST, RandomStreams(1).stream("loss")),)
    group = GapGroup(TIMING, fixed({1: 0, 2: 0, 3: 0}), network)
    chatter(group, 4, 60)
    group.run(group.slot_start_ns(1, 80))
    assert [gone for _, gone in group.latest_record(2).removed()] == [1]
    assert not group.latest_record(1).removed()
    assert not group.latest_record(3).removed()
    assert group.latest_record(2).order.view.members == (1, 2, 3)
    assert_in_order(group)
    late = {m for m, (slot, _) in group.latest_record(1).delivered.items() if slot > group.slot_number(30)}
    assert late <= group.latest_record(2).delivered.keys()
    assert sum(account.joins_sent for account in group.records.values()) <= 3 + 2


# -- clocks that are off by more than Γ ------------------------------------------------------------------------------


def with_clock(
    offset_ns: int,
    *,
    members: int = 4,
    since_ns: int | None = None,
    delay_ns: int = MS,
    run_ns: int = 400 * MS,
) -> GapGroup:
    """One member's clock is off, from the start or by a leap; clocks are probed as in real groups."""
    numbers = tuple(range(1, members + 1))
    clocks = fixed(dict.fromkeys(numbers, 0))
    clocks[2] = FixedClock(offset_ns) if since_ns is None else SteppedClock(0, [(FIRST + since_ns, offset_ns)])
    network = adversarial_network(numbers, constant_delay(delay_ns), TIMING.delta_ns)
    group = GapGroup(TIMING, clocks, network, probe_every_ns=PROBE_INTERVAL_NS)
    for member, slot in product(numbers, range(4, (run_ns - 100 * MS) // TIMING.theta_ns)):
        group.send(FIRST + slot * TIMING.theta_ns + 2 * MS, member, 20)
    return group.run(FIRST + run_ns)


def kinds(group: GapGroup, member: int) -> list[str]:
    return [violation.kind for violation in group.latest_record(member).violations]


@pytest.mark.parametrize("offset_ns", [4 * MS, 50 * MS, 900 * MS, 20_000 * MS])
@pytest.mark.parametrize("since_ns", [None, 120 * MS])
def test_bad_input_a_clock_that_is_ahead_is_seen_by_everyone_and_its_member_fenced(
    offset_ns: int, since_ns: int | None
) -> None:
    group = with_clock(offset_ns, since_ns=since_ns)
    for member in (1, 3, 4):
        assert "clock" in kinds(group, member)
        fenced = next(v for v in group.latest_record(member).violations if v.kind == "clock")
        assert fenced.member == 2
        assert "ahead of ours, more than Γ = 2ms: it is left out" in fenced.text
        assert 2 not in group.latest_record(member).order.view.members
    assert not group.unordered()
    assert not group.failed_checks(ignore=("latency",))
    right = [took for took, message, member in group.latencies() if message[0] != 2 and member != 2]
    assert max(right) <= BOUND_NS, "the others' latency holds"
    assert set(range(1, 5)) - {2} == {message[0] for message in group.latest_record(1).delivered} - {2}


@pytest.mark.parametrize("offset_ns", [4 * MS, 50 * MS])
def test_bad_input_who_is_ahead_of_everyone_learns_that_its_own_clock_is_wrong(offset_ns: int) -> None:
    """The answers to its requests were sent after them, and show a time before them."""
    group = with_clock(offset_ns, since_ns=120 * MS, delay_ns=0)
    assert "own_clock" in kinds(group, 2)
    assert group.latest_record(2).left is not None


@pytest.mark.parametrize("offset_ns", [-4 * MS, -50 * MS, -900 * MS])
@pytest.mark.parametrize("delay_ns", [0, MS])
def test_bad_input_a_clock_that_is_behind_is_seen_by_its_own_member_which_leaves(offset_ns: int, delay_ns: int) -> None:
    group = with_clock(offset_ns, delay_ns=delay_ns)
    assert kinds(group, 2)[-1] == "own_clock"
    assert "most members' clocks differ from ours by more than Γ = 2ms" in group.latest_record(2).violations[-1].text
    assert group.latest_record(2).left is not None
    assert all(group.latest_record(member).order.view.members == (1, 3, 4) for member in (1, 3, 4))
    assert not group.unordered()
    right = [took for took, message, member in group.latencies() if message[0] != 2 and member != 2]
    assert max(right) <= BOUND_NS


@pytest.mark.parametrize("delay_ns", [0, TIMING.delta_ns // 2, TIMING.delta_ns])
@pytest.mark.parametrize("offset_ns", [3 * MS, 8 * MS, 50 * MS, -3 * MS, -8 * MS, -50 * MS])
def test_bad_input_a_wrong_clock_is_found_behind_any_delay_unless_every_datagram_seems_in_time(
    offset_ns: int, delay_ns: int
) -> None:
    """Of clocks that differ by o, datagrams that take d seem to take d+o one way and d-o the other."""
    group = with_clock(offset_ns, delay_ns=delay_ns, run_ns=1200 * MS)
    off = abs(offset_ns)
    hidden = delay_ns - off >= -TIMING.gamma_ns and delay_ns + off <= TIMING.delta_ns + TIMING.gamma_ns
    assert not group.unordered()
    if hidden:
        assert not group.violations()
        assert not group.undelivered()
        assert all(account.order.view.members == group.members for account in group.records.values())
        return
    right = [member for member in group.members if member != 2]
    found = {m: [v for v in group.latest_record(m).violations if isinstance(v, ClockViolation)] for m in right}
    assert sum(len(told) for told in found.values()) >= 2, "one may come up after it has gone"
    for member in right:
        assert len(found[member]) <= 1
        assert all(v.kind == "clock" and v.member == 2 and abs(v.off_ns) <= off for v in found[member])
        assert group.latest_record(member).order.view.members == (1, 3, 4)
        assert sum(at > FIRST + 900 * MS for at, _ in group.latest_record(member).views) == 0, (
            "and there is an end to it"
        )
        assert {(m, 1) for m in right} <= {
            message[:2] for message, (_, at) in group.latest_record(member).delivered.items()
        }
    assert kinds(group, 2)[-1] == "own_clock"
    assert group.latest_record(2).left is not None
    took = [took for took, message, member in group.latencies() if message[0] != 2 and member != 2]
    assert max(took) <= BOUND_NS, "the others' latency holds"


@pytest.mark.parametrize("offset_ns", [TIMING.gamma_ns, -TIMING.gamma_ns])
@pytest.mark.parametrize("delay_ns", [0, TIMING.delta_ns // 2, TIMING.delta_ns])
def test_bad_input_a_clock_off_by_gamma_is_nobodys_business(offset_ns: int, delay_ns: int) -> None:
    group = with_clock(offset_ns, delay_ns=delay_ns, run_ns=800 * MS)
    assert not group.violations()
    assert not group.undelivered()


def test_bad_input_of_two_members_each_reports_the_other_and_neither_leaves() -> None:
    group = with_clock(30 * MS, members=2)
    assert "clock" in kinds(group, 1)
    assert "clock" in kinds(group, 2)
    assert group.latest_record(1).order.view.members == (1,)
    assert group.latest_record(2).order.view.members == (2,)
    assert len(group.latest_record(1).delivered) > 20


def test_bad_input_a_clock_within_gamma_is_never_reported() -> None:
    group = with_clock(TIMING.gamma_ns, delay_ns=TIMING.delta_ns)
    assert not any(v.kind == "clock" for account in group.records.values() for v in account.violations)


def test_bad_input_a_fenced_member_is_taken_back_when_it_restarts_with_its_clock_put_right() -> None:
    numbers = (1, 2, 3)
    clocks = fixed(dict.fromkeys(numbers, 0)) | {2: SteppedClock(50 * MS, [(FIRST + 100 * MS, 0)])}
    group = GapGroup(TIMING, clocks, adversarial_network(numbers, constant_delay(MS), TIMING.delta_ns))
    group.crash(FIRST + 90 * MS, 2)
    group.restart(FIRST + 200 * MS, 2)
    for slot in range(50, 70):
        group.send(FIRST + slot * TIMING.theta_ns + MS, 2, 10)
    group.run(FIRST + 450 * MS)
    assert "clock" in kinds(group, 1)
    assert group.latest_record(1).order.view.members == numbers
    assert any(message[:2] == (2, 2) for message in group.latest_record(1).delivered)


# -- pauses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pause_ns", [17 * MS, 40 * MS, 3_000 * MS])
def test_bad_input_a_member_that_stood_still_comes_back_in_order_and_loses_nothing_that_it_had_to_send(
    pause_ns: int,
) -> None:
    group = group_of(4, max_frame=256, max_message=100)
    begins = group.slot_start_ns(2, 10) + MS
    ends = begins + pause_ns
    chatter(group, 5, 10)
    group.send(begins - 1, 2, 30, 40)  # taken, and held back for the slot's end
    for slot in range(12, 60 + pause_ns // TIMING.theta_ns):
        group.send(group.slot_start_ns(3, slot), 3, 10)
    group.pause(begins, ends, 2)
    group.send(begins + 1, 2, 50)  # handed in while it stood still
    group.run(ends + 200 * MS)
    paused = group.latest_record(2)
    assert [violation.kind for violation in paused.violations] == ["paused"]
    assert len(paused.sent_ns) == 5 + 3
    for member in (1, 3, 4):
        mine = [message for message in group.latest_record(member).delivered if message[0] == 2]
        assert mine == [(2, 1, sequence) for sequence in range(8)], "what it held back left when all expected it again"
        assert group.latest_record(member).order.view.members == (1, 2, 3, 4), "it is in the list again"
    assert not group.unordered()
    assert not group.failed_checks(ignore=("latency",))
    last = max(slot for slot, _ in group.latest_record(1).delivered.values())
    assert max(slot for slot, _ in paused.delivered.values()) == last
    heard = {message for message in paused.delivered if message[0] == 3}
    assert heard == {message for message in group.latest_record(1).delivered if message[0] == 3}, (
        "what had arrived is delivered"
    )


# -- planted bugs ----------------------------------------------------------------------------------------------------


class GivesUpEarly(VbrGaps):
    """Waits for Δ instead of Δ+Γ."""

    def _late_at(self) -> int:
        return super()._late_at() - self.grid.gamma_ns


class WaitsLonger(VbrGaps):
    """Waits a nanosecond too long."""

    def _late_at(self) -> int:
        return super()._late_at() + 1


class SwapsMembers(VbrGaps):
    """Delivers the last member first."""

    def _finish_slot(self, now: int) -> None:
        object.__setattr__(self.view, "members", tuple(sorted(self.view.members)))
        super()._finish_slot(now)
        object.__setattr__(self.view, "members", self.view.members[::-1])


class JoinsLate(VbrGaps):
    """Adds who joins a slot after the one that was named."""

    def _expect(self, now: int, peer: int, life: int, slot: int) -> None:
        super()._expect(now, peer, life, slot + 1)


def found_by(bug: type[VbrGaps], seeds: range) -> set[str]:
    """Which judges see a bug that one member has."""
    found: set[str] = set()
    for seed in seeds:
        members = random_churn(seed)[1].members
        group = random_churn(seed, orders={members[-1]: bug})[1]
        found |= {name for name, verdict in group.failed_checks().items() if verdict.witness is not None}
        found |= {"undelivered"} if group.undelivered() else set()
        found |= {"wrongly removed"} if group.wrongly_removed() else set()
        found |= {"late"} if group.latency() > group.bound_ns else set()
    return found


@pytest.mark.parametrize(
    ("bug", "judge"),
    [
        (GivesUpEarly, "wrongly removed"),
        (WaitsLonger, "late"),
        (SwapsMembers, "total_order"),
        (JoinsLate, "undelivered"),
    ],
)
def test_a_planted_bug_is_caught(bug: type[VbrGaps], judge: str) -> None:
    assert judge in found_by(bug, range(40))


class ForgetsTheFence(VbrGaps):
    """Takes a clock for right that is wrong."""

    def _fence(self, now: int, peer: int, life: int, off_ns: int) -> bool:
        return False


@pytest.mark.parametrize("order", [VbrGaps, ForgetsTheFence])
def test_a_planted_bug_that_forgets_the_fence_is_caught(order: type[VbrGaps]) -> None:
    """Figure 9 with a sender 4 ms ahead, twice Γ: what it sends takes longer than the bound, unless it is left out."""
    clocks = fixed({1: 0, 2: 4 * MS, 3: 0})
    network = adversarial_network((1, 2, 3), constant_delay(MS), TIMING.delta_ns)
    group = GapGroup(TIMING, clocks, network, orders=dict.fromkeys((1, 2, 3), order))
    group.crash(group.slot_start_ns(1, 10) + MS, 1)
    group.send(group.slot_start_ns(2, 10), 2, 10)
    group.run(group.slot_start_ns(1, 20))
    took = [ns for ns, _, member in group.latencies() if member == 3]
    assert took == ([BOUND_NS + 2 * MS] if order is ForgetsTheFence else [])
    assert not group.unordered(), "the order is one even so"
