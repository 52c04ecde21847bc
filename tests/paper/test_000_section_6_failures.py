"""Paper 000 §6: total order with gaps, failure detection, Theorem 5, joins, leaves, partitions and merges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from tests.full_rate import full_rate
from tests.paper.gapped_group import MS, GapGroup, fixed, random_churn
from tests.worlds.adversaries import adversarial_network, delay_per_link
from tests.worlds.unchecked import unchecked_members

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.model.events import ClockViolation, View
from unisono.model.faults import Loss, Partition, Span
from unisono.model.offers import Ask
from unisono.model.policy import PROBE_INTERVAL_NS, Policy
from unisono.model.text.scenario import parse_scenario
from unisono.model.timing import SlotGrid, Timing
from unisono.model.units import NS_PER_S, Rate
from unisono.orders.leader.election import outage_ns
from unisono.orders.vbr import slots
from unisono.orders.vbr.failures import VbrGaps, latency_bound_ns
from unisono.qos.plan.planner import lower_bound_ns, plan
from unisono.sim import run as simulate
from unisono.sim.clocks import FixedClock, SteppedClock
from unisono.sim.faults import FaultSpan, LossFault, PartitionFault
from unisono.sim.network import SimulatedNetwork, constant_delay, full_mesh
from unisono.sim.random_streams import RandomStreams
from unisono.stack import build

TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
BOUND_NS = 19 * MS
HALF = TIMING.gamma_ns // 2


def group_of(members: int, *, delay_ns: int = MS, offsets: Mapping[int, int] | None = None, **more: object) -> GapGroup:
    """Members 1 to n with a constant delay, and correct clocks unless `offsets` are given."""
    numbers = tuple(range(1, members + 1))
    clocks = fixed({member: (offsets or {}).get(member, 0) for member in numbers})
    return GapGroup(TIMING, clocks, adversarial_network(numbers, constant_delay(delay_ns), TIMING.delta_ns), **more)  # type: ignore[arg-type]


def chatter(group: GapGroup, from_slot: int, to_slot: int, *members: int) -> None:
    """Each member submits a message in the middle of every slot."""
    for member, slot in product(members or group.members, range(from_slot, to_slot)):
        group.send(group.slot_start_ns(member, slot) + TIMING.theta_ns // 2, member, 40)


def assert_in_order(group: GapGroup) -> None:
    assert not group.unordered()
    assert not group.failed_checks()


# -- Definition 2 and Theorem 5, in random schedules -----------------------------------------------------------------


def definition_2_and_theorem_5(seeds: range) -> tuple[int, int]:
    """The number of messages sent, and the number of schedules that attained the bound."""
    messages = attained = 0
    for seed in seeds:
        plan, group = random_churn(seed)
        replay = f"random_churn({seed}) is {plan}"
        assert not group.unordered(), replay
        assert not group.failed_checks(), f"{group.failed_checks()}\n{replay}"
        assert not group.undelivered(), f"{group.undelivered()[0]}\n{replay}"
        assert not group.received_not_delivered(), f"{group.received_not_delivered()[0]}\n{replay}"
        assert not group.wrongly_removed(), f"{group.wrongly_removed()[0]}\n{replay}"
        assert not group.violations(), f"{group.violations()[0]}\n{replay}"
        assert group.latency() <= group.bound_ns == latency_bound_ns(plan.timing), replay
        messages += sum(len(record.sent_ns) for record in group.records.values())
        attained += group.latency() == group.bound_ns
    return messages, attained


@pytest.mark.parametrize("part", range(4))
def test_definition_2_and_theorem_5_hold_in_200_random_schedules_of_crashes_joins_and_leaves(part: int) -> None:
    messages, attained = definition_2_and_theorem_5(range(part * 50, (part + 1) * 50))
    assert messages > 500
    assert attained > 2, "random schedules attain the bound, so they are hard enough"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(20))
def test_definition_2_and_theorem_5_hold_in_10000_random_schedules(part: int) -> None:
    definition_2_and_theorem_5(range(10_000 + part * 500, 10_000 + (part + 1) * 500))


def test_a_member_that_leaves_and_rejoins_before_its_first_slot_is_delivered_is_heard_in_both_incarnations() -> None:
    """Slots are short: the others deliver a slot Δ+Γ after its end, after the next incarnation's JOIN has arrived."""
    definition_2_and_theorem_5(range(13_486, 13_487))


# -- Theorem 4 and Lemma 6.1 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("failures", [1, 2, 3, 8])
def test_theorem_4_no_gap_free_order_that_tolerates_f_crashes_promises_less_than_f_plus_1_delta(failures: int) -> None:
    """The planner refuses a deadline one nanosecond below, and no order that it knows has a smaller gap-free bound."""
    least_ns = (failures + 1) * TIMING.delta_ns
    ask = Ask(2 * failures + 1, Rate(50, 8), TIMING, failures=failures, reliable=True)
    assert lower_bound_ns(ask) == least_ns
    refused, not_refused = (plan(replace(ask, deadline_ns=ns)).refusal for ns in (least_ns - 1, least_ns))
    assert "Theorem 4" in refused
    assert "Theorem 4" not in not_refused
    promised = {offer.order: offer for offer in plan(ask).candidates if offer.feasible}
    assert {"leader", "timestamp", "consensus"} <= set(promised)
    for offer in promised.values():
        crashed = tuple(range(1, failures + 1))
        if offer.outage_ns is not None:
            assert offer.latency_bound_ns + failures * offer.outage_ns >= least_ns, offer.order
            stack = build(Policy("p", 1, View(tuple(range(1, ask.members + 1))), TIMING, ask.rate, order=offer.order))
            assert failures * offer.outage_ns >= stack.outage_ns(crashed), "the stack's outage is within the plan"
    with_deadline = plan(replace(ask, deadline_ns=3600 * NS_PER_S)).candidates
    assert {offer.order: offer.feasible for offer in with_deadline}["consensus"] is False, (
        "consensus promises no latency after a crash"
    )


def test_theorem_4_two_crashes_cost_a_gap_free_order_the_time_that_the_scenario_states() -> None:
    path = Path(__file__).parents[2] / "scenarios" / "theorem_4_lower_bound.toml"
    scenario = parse_scenario(path.read_text("utf-8"), path.name)
    assert scenario.bound_ns == 2 * TIMING.delta_ns + 2 * outage_ns(TIMING, 0)
    result = simulate(scenario)
    verdicts = check_all(result.trace, until_ns=result.until_ns)
    assert {verdict.status for verdict in verdicts.values()} == {Status.VALID}, verdicts
    assert verdicts["latency"].figures["max_ns"] == 155 * MS + 1 > 3 * TIMING.delta_ns


def test_lemma_6_1_a_process_delivers_all_messages_that_it_receives() -> None:
    """(1) A correct member that is not suspected stays so. (2) A returned member is heard from its first slot on."""
    received = 0
    for seed in range(200, 240):
        plan_, group = random_churn(seed)
        assert not group.received_not_delivered(), f"{group.received_not_delivered()[0]}\n{plan_}"
        assert not group.wrongly_removed(), f"(1): {group.wrongly_removed()[0]}\n{plan_}"
        assert not group.undelivered(), f"(2): {group.undelivered()[0]}\n{plan_}"
        received += sum(len(record.received()) for record in group.correct())
    assert received > 500


# -- §6.2: detecting faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash_ns", [0, 1, TIMING.theta_ns // 2, TIMING.theta_ns - 1, 7 * MS, 11 * MS])
def test_000_23_exactly_the_crashed_member_is_removed_in_768_runs(crash_ns: int) -> None:
    """128 runs per instant of the crash: all extreme clocks of three members, all extreme delays of four links."""
    links = ((1, 2), (2, 1), (3, 1), (3, 2))
    for corner, delays in product(product((-HALF, HALF), repeat=3), product((0, TIMING.delta_ns), repeat=4)):
        network = adversarial_network((1, 2, 3), delay_per_link(dict(zip(links, delays, strict=True))), TIMING.delta_ns)
        group = GapGroup(TIMING, fixed(dict(zip((1, 2, 3), corner, strict=True))), network)
        group.crash(group.slot_start_ns(3, 5) + crash_ns, 3)
        group.send(group.slot_start_ns(1, 6), 1, 10)
        group.send(group.slot_start_ns(2, 6), 2, 10)
        group.run(group.slot_start_ns(1, 14))
        case = f"clocks {corner}, delays {dict(zip(links, delays, strict=True))}"
        assert [removed for _, removed in group.latest_record(1).removed()] == [3], case
        assert [removed for _, removed in group.latest_record(2).removed()] == [3], case
        assert not group.undelivered(), case
        assert group.latency() <= BOUND_NS, case


@pytest.mark.parametrize("extra_ns", [0, 1])
def test_000_22_two_marks_that_arrive_exactly_at_the_time_out_are_both_in_time(extra_ns: int) -> None:
    """Members 1 and 2 have slow clocks and their marks take Δ. Both reach member 3 (fast clock) at its time-out.

    Processing the first mark must not time out the second. One nanosecond later, both members count as failed.
    """

    def delay(_: int) -> int:
        return TIMING.delta_ns + extra_ns * (group.world.now > late_from)

    late_from = 2**63
    network = SimulatedNetwork(full_mesh((1, 2, 3), lambda *_: delay))
    group = GapGroup(TIMING, fixed({1: -HALF, 2: -HALF, 3: HALF}), network)
    late_from = group.slot_start_ns(1, 8) + 1
    chatter(group, 7, 10)
    group.run(group.slot_start_ns(1, 16))
    removed = {member for _, member in group.latest_record(3).removed()}
    assert removed == ({1, 2} if extra_ns else set())
    at_time_out = TIMING.end_of(group.slot_number(7)) + TIMING.delta_ns + TIMING.gamma_ns - HALF
    assert at_time_out in [at for slot, at in group.latest_record(3).delivered.values() if slot == group.slot_number(7)]
    assert not group.unordered()


def test_section_6_2_a_pause_within_the_time_out_removes_no_member() -> None:
    group = group_of(3)
    chatter(group, 5, 20)
    group.pause(group.slot_start_ns(2, 8) - MS, group.slot_start_ns(2, 8) + 4 * MS, 2)
    group.run(group.slot_start_ns(1, 30))
    assert not any(group.latest_record(member).removed() for member in group.members)
    assert not group.undelivered()
    assert not group.violations()


def test_section_6_2_members_deliver_the_frames_that_they_have_of_a_crashed_member() -> None:
    """Erratum 001-6: two of its frames arrive, but no end-of-slot mark. They are delivered at the time-out."""
    group = group_of(3, max_frame=256, max_message=200)
    group.send(group.slot_start_ns(3, 6), 3, 200, 200, 200)
    group.crash(group.slot_start_ns(3, 6) + 1, 3)
    group.run(group.slot_start_ns(1, 12))
    sent = len(group.latest_record(3).sent_ns)
    assert sent == 3
    assert list(group.latest_record(1).delivered) == list(group.latest_record(2).delivered) == [(3, 1, 0), (3, 1, 1)], (
        "the third was not sent before the crash"
    )
    slot = group.slot_number(6)
    assert group.latest_record(1).removed() == group.latest_record(2).removed() == [(slot + 1, 3)]
    assert group.latest_record(1).views[-1][0] == TIMING.end_of(slot) + TIMING.delta_ns + TIMING.gamma_ns
    assert_in_order(group)


# -- §6.5: Theorem 5 -------------------------------------------------------------------------------------------------


def figure_9(timing: Timing, members: int, failures: int = 1) -> GapGroup:
    """The last member's clock is Γ/2 ahead, and it sends at the first instant of a slot; the one before is Γ/2 behind.

    The first `failures` members have just crashed, so all others wait for them until the time-out.
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
    assert sum(len(record.delivered) for record in group.records.values()) == members - 1


@pytest.mark.parametrize("failures", [1, 2, 5, 8])
def test_theorem_5_the_attained_maximum_does_not_depend_on_the_number_of_failures(failures: int) -> None:
    """A gap-free order needs at least (f+1)Δ (Theorem 4), 90 ms for eight failures. This order stays at 19 ms."""
    group = figure_9(TIMING, 10, failures)
    assert max(group.latencies()) == (BOUND_NS, (10, 1, 0), 9)


def test_theorem_5_the_delays_of_consecutive_failures_do_not_add_up() -> None:
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


def test_000_24_a_join_is_never_late_and_both_waits_are_attained_in_9720_cases() -> None:
    """Phases of the clock, extreme clocks of joiner and receiver, and delays of 0, Δ/2 and Δ, with small numbers."""
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
    """When the joiner starts, its clock plus Δ+Γ is the first instant of a slot, so it waits a whole Θ more.

    By then a mark of another member has confirmed that it uses the group's slots.
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
    assert joiner.views[0][0] - joiner.started_ns == waits_ns, "its slots are confirmed when its first one begins"
    assert group.latest_record(1).views[-1][1].joined == (3,), (
        "it stays in the view: its marks arrive from its first slot on"
    )
    assert group.latest_record(1).added(3)[-1] == group.latest_record(2).added(3)[-1] == first, (
        "all members add it at the same slot"
    )


FIRST = 1_700_000_000_000 * MS


def joiner_among(
    timing: Timing, offsets: Mapping[int, int], delay_ns: int, phase_ns: int, running: tuple[int, ...] = (1, 2)
) -> GapGroup:
    """Member 3 starts beside running members, with a message that it tries to send every half millisecond."""
    network = adversarial_network((1, 2, 3), constant_delay(delay_ns), timing.delta_ns)
    start_ns = FIRST - FIRST % timing.theta_ns
    starts_at = start_ns + 20 * timing.theta_ns + phase_ns
    starts = {3: starts_at} | {member: 2**62 for member in (1, 2) if member not in running}
    group = GapGroup(timing, fixed(offsets), network, start_ns=start_ns, starts_ns=starts)
    group.send(starts_at + 1, 3, 40)
    ends_at = starts_at + 2 * (timing.delta_ns + timing.gamma_ns) + latency_bound_ns(timing) + 3 * timing.theta_ns
    for again_at in range(starts_at + MS // 2, ends_at, MS // 2):
        group.send(again_at, 3)
    group.run(ends_at)
    return group


@pytest.mark.parametrize(
    "timing", [TIMING, Timing(30 * MS, 2 * MS, 5 * MS), Timing(3 * MS, MS, 10 * MS), Timing(20 * MS, 0, 4 * MS)]
)
def test_section_6_3_a_joiner_sends_at_most_delta_gamma_theta_after_its_start_if_slots_never_changed(
    timing: Timing,
) -> None:
    """Every phase of the start, extreme clocks, no delay or Δ: never before its first slot, and the bound is attained.

    It does not wait for answers to its JOIN, which take up to 2Δ+2Γ.
    """
    promised_ns, half = timing.delta_ns + timing.gamma_ns + timing.theta_ns, timing.gamma_ns // 2
    waits = set()
    for phase, joiner, other, delay in product(range(5), (-half, half), (-half, half), (0, timing.delta_ns)):
        offsets = {1: other, 2: -other, 3: joiner}
        longest = -(timing.delta_ns + timing.gamma_ns + joiner)  # its clock plus Δ+Γ is the first instant of a slot
        group = joiner_among(timing, offsets, delay, (longest + phase * timing.theta_ns // 5) % timing.theta_ns)
        record = group.latest_record(3)
        assert record.first_slot == timing.smax(record.started_ns + joiner)
        sent_ns = record.sent_ns[0]
        assert sent_ns + joiner >= timing.start_of(record.first_slot), "no message before its first slot"
        waits.add(sent_ns - record.started_ns)
        assert (3, 1, 0) in group.latest_record(1).delivered
        assert not group.violations()
        assert not group.undelivered()
    assert max(waits) == promised_ns


@pytest.mark.parametrize("running", [(), (1, 2)])
def test_section_6_3_a_joiner_whose_slots_no_member_confirms_waits_for_every_answer(running: tuple[int, ...]) -> None:
    """Alone, or beside members that started when it did, it cannot know that no group with other slots is up."""
    phase_ns = -19 * TIMING.theta_ns if running else 0
    group = joiner_among(TIMING, dict.fromkeys((1, 2, 3), 0), MS, phase_ns, running)
    record = group.latest_record(3)
    assert record.sent_ns[0] - record.started_ns == 2 * (TIMING.delta_ns + TIMING.gamma_ns)
    assert not group.violations()
    assert not group.undelivered()


def joins_during_a_slot_change() -> list[str]:
    """The problems of joins at every phase of a slot-length change; Δ on all links but from member 1 to the joiner.

    There datagrams arrive at once until Θ after the joiner's start, and take Δ then. So member 1 confirms the slots as
    early as possible, and its answer to the JOIN, which names the change, comes as late as possible.
    """
    timing, start_ns, problems = Timing(20 * MS, 0, 5 * MS), FIRST - FIRST % (5 * MS), []
    for starts_at in range(start_ns + 150 * MS, start_ns + 210 * MS, MS):
        network = adversarial_network(
            (1, 2, 3),
            lambda sender, receiver, now, _, until=starts_at + timing.theta_ns: (  # type: ignore[misc]
                0 if (sender, receiver) == (1, 3) and now < until else timing.delta_ns
            ),
            timing.delta_ns,
        )
        clocks = fixed(dict.fromkeys((1, 2, 3), 0))
        group = GapGroup(timing, clocks, network, start_ns=start_ns, starts_ns={3: starts_at})
        group.world.change_slot(start_ns + 30 * timing.theta_ns + 1, 2, 15 * MS)
        for sent_at in range(starts_at, starts_at + 4 * timing.delta_ns, MS):
            group.send(sent_at, 3, 40)
        group.run(starts_at + 16 * timing.delta_ns)
        problems += group.violations() + group.undelivered() + group.unordered()
        assert [group.latest_record(member).order.grid.changes for member in (1, 2, 3)] == [1, 1, 1]
    return problems


def test_section_6_3_a_joiner_learns_of_a_slot_length_change_before_it_sends_in_wrong_slots() -> None:
    assert not joins_during_a_slot_change()


def test_a_change_that_takes_effect_delta_earlier_reaches_a_joiner_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the third Δ, a confirmed joiner sends in slots that no longer exist."""

    def earlier(grid: SlotGrid, requested_in: int) -> int:
        return grid.slot_of(grid.end_of(requested_in) + 2 * grid.delta_ns + 3 * grid.gamma_ns)

    monkeypatch.setattr(slots, "effective_slot", earlier)
    assert any("missed a change of the slot length" in problem for problem in joins_during_a_slot_change())


def test_000_24_a_join_is_in_time_although_all_members_used_up_their_bursts_of_the_slot_before() -> None:
    """A burst of one ends a slot at its start; the slot is delivered before the JOIN for the next slot arrives."""
    numbers = (1, 2, 3)
    network = adversarial_network(
        numbers, delay_per_link({(3, 1): TIMING.delta_ns, (3, 2): TIMING.delta_ns}), TIMING.delta_ns
    )
    group = GapGroup(
        TIMING,
        fixed({1: 0, 2: 0, 3: -HALF}),
        network,
        rates=dict.fromkeys(numbers, full_rate(1, TIMING)),
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


def test_000_25_a_member_that_missed_a_join_and_starts_before_the_joiner_still_hears_it() -> None:
    """Member 2's clock is Γ ahead of member 3's: it joins first and starts a slot later. Member 3 misses its JOIN."""
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
    assert group.latest_record(3).added(2)[-1] == first_2, "at the announced slot, not after a merge"
    assert not group.undelivered()
    assert not group.violations()


def test_section_6_3_a_process_that_starts_after_a_join_hears_the_joiner() -> None:
    group = group_of(3, starts_ns={2: FIRST + 51 * MS, 3: FIRST + 55 * MS})
    chatter(group, 10, 30)
    group.run(group.slot_start_ns(1, 40))
    assert not group.undelivered()
    assert {message[0] for message in group.latest_record(3).delivered} == {1, 2, 3}


@pytest.mark.parametrize("away_ns", [0, 1, 5 * MS, 12 * MS, 40 * MS, 500 * MS])
def test_section_6_3_a_crashed_member_returns_as_a_new_incarnation_at_the_same_slot_for_all(away_ns: int) -> None:
    """If it returns before the others notice the crash, the new incarnation replaces the old one without a gap."""
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


def test_000_26_frames_of_an_old_incarnation_are_never_delivered_after_a_rejoin() -> None:
    """All datagrams of member 3 take Δ, so its last frames arrive long after the JOIN of its next incarnation."""
    network = adversarial_network(
        (1, 2, 3), delay_per_link({(3, 1): TIMING.delta_ns, (3, 2): TIMING.delta_ns}), TIMING.delta_ns, fifo=False
    )
    group = GapGroup(TIMING, fixed({1: 0, 2: 0, 3: HALF}), network, max_frame=256)
    chatter(group, 4, 40)
    for slot in range(8, 14):
        group.crash(group.slot_start_ns(3, slot) + 4 * MS, 3)
        group.restart(group.slot_start_ns(3, slot) + 4 * MS, 3)
    group.run(group.slot_start_ns(1, 50))
    assert max(incarnation for member, incarnation in group.records if member == 3) == 7
    for member in (1, 2):
        incarnations = [message[1] for message in group.latest_record(member).delivered if message[0] == 3]
        assert incarnations == sorted(incarnations)
    assert not group.undelivered()
    assert_in_order(group)


# -- 001-5: leave ----------------------------------------------------------------------------------------------------


def test_001_5_a_leave_ends_its_slot_and_all_members_see_it_at_the_same_position() -> None:
    group = group_of(3, delay_ns=TIMING.delta_ns, offsets={1: -HALF, 3: HALF})
    chatter(group, 5, 20)
    group.leave(group.slot_start_ns(2, 10) + 3 * MS, 2)
    group.run(group.slot_start_ns(1, 30))
    left = group.latest_record(2).left
    assert left is not None
    assert left.final_slot == group.slot_number(10)
    assert group.latest_record(1).removed() == group.latest_record(3).removed() == [(left.final_slot + 1, 2)]
    assert not group.undelivered(), "the leaving member delivers its last slot, and all deliver its messages of it"
    assert group.latency() < BOUND_NS
    assert_in_order(group)


@pytest.mark.parametrize("away_ns", [0, 1, 20 * MS])
def test_001_5_a_member_may_return_after_a_leave_whose_end_mark_ends_no_slot_of_the_new_incarnation(
    away_ns: int,
) -> None:
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


def test_001_5_a_leave_while_joining_takes_effect_after_the_announced_first_slot() -> None:
    group = group_of(3, starts_ns={3: FIRST + 50 * MS})
    chatter(group, 5, 30, 1, 2)
    group.leave(FIRST + 52 * MS, 3)
    group.run(group.slot_start_ns(1, 40))
    record = group.latest_record(3)
    assert record.left is not None
    assert record.left.final_slot == record.first_slot
    assert (
        group.latest_record(1).removed()[-1] == group.latest_record(2).removed()[-1] == (record.left.final_slot + 1, 3)
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


def test_section_6_6_both_sides_of_a_partition_meet_the_bound_and_merge_after_it_heals() -> None:
    group = partitioned(((1, 2), (3, 4, 5)), 50 * MS, 200 * MS)
    chatter(group, 4, 100)
    group.run(group.slot_start_ns(1, 120))
    assert_in_order(group)
    healed = group.slot_number(41 + TIMING.smax(0) + 2)
    for record in group.records.values():
        between = {
            m[0] for m, (slot, _) in record.delivered.items() if group.slot_number(16) <= slot < group.slot_number(39)
        }
        assert between == ({1, 2} if record.member < 3 else {3, 4, 5})
        after = [m for m, (slot, _) in record.delivered.items() if slot >= healed]
        assert len(after) == 5 * (group.slot_number(100) - healed), "no message is missing after the merge"
    assert group.latency() <= BOUND_NS, "view changes block no delivery"


@pytest.mark.parametrize("delay_ns", [MS, TIMING.delta_ns])
def test_000_27_a_merge_takes_at_most_two_requests_and_two_answers_per_pair_and_then_ends(
    delay_ns: int,
) -> None:
    group = partitioned(((1, 2), (3, 4, 5)), 50 * MS, 200 * MS, delay_ns)
    group.run(FIRST + 199 * MS)
    before = {record.member: record.joins_sent for record in group.records.values()}
    assert before == dict.fromkeys(group.members, 1)
    group.run(FIRST + 300 * MS)
    after = {record.member: record.joins_sent - 1 for record in group.records.values()}
    assert 6 <= sum(after.values()) <= 6 * 4, "the partition separated six pairs"
    group.run(FIRST + 600 * MS)
    assert {record.member: record.joins_sent - 1 for record in group.records.values()} == after
    assert all(record.order.view.members == group.members for record in group.records.values())


@pytest.mark.parametrize("delay_ns", [0, TIMING.delta_ns])
def test_section_6_6_a_one_sided_suspicion_is_repaired(delay_ns: int) -> None:
    """For a while member 2 receives nothing from member 1, while member 1 receives everything."""
    network = adversarial_network((1, 2, 3), constant_delay(delay_ns), TIMING.delta_ns)
    span = Span(50 * MS, 90 * MS)
    loss = Loss(span, 1.0, senders=(1,), receivers=(2,))
    network.faults = (LossFault((loss,), FIRST, RandomStreams(1).stream("loss")),)
    group = GapGroup(TIMING, fixed({1: 0, 2: 0, 3: 0}), network)
    chatter(group, 4, 60)
    group.run(group.slot_start_ns(1, 80))
    assert [removed for _, removed in group.latest_record(2).removed()] == [1]
    assert not group.latest_record(1).removed()
    assert not group.latest_record(3).removed()
    assert group.latest_record(2).order.view.members == (1, 2, 3)
    assert_in_order(group)
    after = {m for m, (slot, _) in group.latest_record(1).delivered.items() if slot > group.slot_number(30)}
    assert after <= group.latest_record(2).delivered.keys()
    assert sum(record.joins_sent for record in group.records.values()) <= 3 + 2


# -- clocks that are off by more than Γ ------------------------------------------------------------------------------


def with_clock(
    offset_ns: int,
    *,
    members: int = 4,
    since_ns: int | None = None,
    delay_ns: int = MS,
    run_ns: int = 400 * MS,
) -> GapGroup:
    """The clock of member 2 is wrong, from the start or after a jump. Members probe clocks as in real groups."""
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
def test_bad_input_all_members_detect_a_clock_that_is_ahead_and_fence_its_member(
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
    assert max(right) <= BOUND_NS, "the other members meet the latency bound"
    assert set(range(1, 5)) - {2} == {message[0] for message in group.latest_record(1).delivered} - {2}


@pytest.mark.parametrize("offset_ns", [4 * MS, 50 * MS])
def test_bad_input_a_member_ahead_of_all_others_learns_that_its_own_clock_is_wrong(offset_ns: int) -> None:
    """The answers to its probes show a time before the probes were sent."""
    group = with_clock(offset_ns, since_ns=120 * MS, delay_ns=0)
    assert "own_clock" in kinds(group, 2)
    assert group.latest_record(2).left is not None


@pytest.mark.parametrize("offset_ns", [-4 * MS, -50 * MS, -900 * MS])
@pytest.mark.parametrize("delay_ns", [0, MS])
def test_bad_input_a_member_whose_clock_is_behind_detects_it_and_leaves(offset_ns: int, delay_ns: int) -> None:
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
def test_bad_input_a_wrong_clock_is_detected_at_any_delay_unless_all_datagrams_seem_on_time(
    offset_ns: int, delay_ns: int
) -> None:
    """If two clocks differ by o, datagrams that take d seem to take d+o in one direction and d-o in the other."""
    group = with_clock(offset_ns, delay_ns=delay_ns, run_ns=1200 * MS)
    off = abs(offset_ns)
    hidden = delay_ns - off >= -TIMING.gamma_ns and delay_ns + off <= TIMING.delta_ns + TIMING.gamma_ns
    assert not group.unordered()
    if hidden:
        assert not group.violations()
        assert not group.undelivered()
        assert all(record.order.view.members == group.members for record in group.records.values())
        return
    right = [member for member in group.members if member != 2]
    found = {m: [v for v in group.latest_record(m).violations if isinstance(v, ClockViolation)] for m in right}
    assert sum(len(reported) for reported in found.values()) >= 2, "one member may start after it has left"
    for member in right:
        assert len(found[member]) <= 1
        assert all(v.kind == "clock" and v.member == 2 and abs(v.off_ns) <= off for v in found[member])
        assert group.latest_record(member).order.view.members == (1, 3, 4)
        assert sum(at > FIRST + 900 * MS for at, _ in group.latest_record(member).views) == 0, "the view changes end"
        assert {(m, 1) for m in right} <= {
            message[:2] for message, (_, at) in group.latest_record(member).delivered.items()
        }
    assert kinds(group, 2)[-1] == "own_clock"
    assert group.latest_record(2).left is not None
    took = [took for took, message, member in group.latencies() if message[0] != 2 and member != 2]
    assert max(took) <= BOUND_NS, "the other members meet the latency bound"


@pytest.mark.parametrize("offset_ns", [TIMING.gamma_ns, -TIMING.gamma_ns])
@pytest.mark.parametrize("delay_ns", [0, TIMING.delta_ns // 2, TIMING.delta_ns])
def test_bad_input_a_clock_off_by_exactly_gamma_causes_no_violation(offset_ns: int, delay_ns: int) -> None:
    group = with_clock(offset_ns, delay_ns=delay_ns, run_ns=800 * MS)
    assert not group.violations()
    assert not group.undelivered()


def test_bad_input_in_a_group_of_two_each_reports_the_other_and_neither_leaves() -> None:
    group = with_clock(30 * MS, members=2)
    assert "clock" in kinds(group, 1)
    assert "clock" in kinds(group, 2)
    assert group.latest_record(1).order.view.members == (1,)
    assert group.latest_record(2).order.view.members == (2,)
    assert len(group.latest_record(1).delivered) > 20


def test_bad_input_a_clock_within_gamma_is_never_reported() -> None:
    group = with_clock(TIMING.gamma_ns, delay_ns=TIMING.delta_ns)
    assert not any(v.kind == "clock" for record in group.records.values() for v in record.violations)


def test_bad_input_a_fenced_member_is_added_again_when_it_restarts_with_a_correct_clock() -> None:
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
def test_bad_input_a_paused_member_returns_in_order_and_sends_all_messages_that_it_accepted(
    pause_ns: int,
) -> None:
    group = group_of(4, max_frame=256, max_message=100)
    begins = group.slot_start_ns(2, 10) + MS
    ends = begins + pause_ns
    chatter(group, 5, 10)
    group.send(begins - 1, 2, 30, 40)  # accepted, and kept until the end of the slot
    for slot in range(12, 60 + pause_ns // TIMING.theta_ns):
        group.send(group.slot_start_ns(3, slot), 3, 10)
    group.pause(begins, ends, 2)
    group.send(begins + 1, 2, 50)  # submitted during the pause
    group.run(ends + 200 * MS)
    paused = group.latest_record(2)
    assert [violation.kind for violation in paused.violations] == ["paused"]
    assert len(paused.sent_ns) == 5 + 3
    for member in (1, 3, 4):
        mine = [message for message in group.latest_record(member).delivered if message[0] == 2]
        assert mine == [(2, 1, sequence) for sequence in range(8)], "it sends the kept messages after it has rejoined"
        assert group.latest_record(member).order.view.members == (1, 2, 3, 4), "it is in the view again"
    assert not group.unordered()
    assert not group.failed_checks(ignore=("latency",))
    last = max(slot for slot, _ in group.latest_record(1).delivered.values())
    assert max(slot for slot, _ in paused.delivered.values()) == last
    heard = {message for message in paused.delivered if message[0] == 3}
    assert heard == {message for message in group.latest_record(1).delivered if message[0] == 3}, (
        "it delivers the messages that arrived during the pause"
    )


# -- planted bugs ----------------------------------------------------------------------------------------------------


class TimesOutEarly(VbrGaps):
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
    """Adds a joining member one slot after the announced one."""

    def _expect(self, now: int, peer: int, incarnation: int, slot: int) -> None:
        super()._expect(now, peer, incarnation, slot + 1)


def found_by(bug: type[VbrGaps], seeds: range) -> set[str]:
    """The names of the checks that find a bug in one member."""
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
    ("bug", "check"),
    [
        (TimesOutEarly, "wrongly removed"),
        (WaitsLonger, "late"),
        (SwapsMembers, "total_order"),
        (JoinsLate, "undelivered"),
    ],
)
def test_a_planted_bug_is_caught(bug: type[VbrGaps], check: str) -> None:
    with unchecked_members():
        assert check in found_by(bug, range(40))


class NeverFences(VbrGaps):
    """Accepts a wrong clock."""

    def _fence(self, now: int, peer: int, incarnation: int, difference_ns: int) -> bool:
        return False


@pytest.mark.parametrize("order", [VbrGaps, NeverFences])
def test_a_planted_bug_that_never_fences_is_caught(order: type[VbrGaps]) -> None:
    """Figure 9 with a sender 4 ms ahead, twice Γ: unless it is fenced, its messages take longer than the bound."""
    clocks = fixed({1: 0, 2: 4 * MS, 3: 0})
    network = adversarial_network((1, 2, 3), constant_delay(MS), TIMING.delta_ns)
    group = GapGroup(TIMING, clocks, network, orders=dict.fromkeys((1, 2, 3), order))
    group.crash(group.slot_start_ns(1, 10) + MS, 1)
    group.send(group.slot_start_ns(2, 10), 2, 10)
    group.run(group.slot_start_ns(1, 20))
    took = [ns for ns, _, member in group.latencies() if member == 3]
    assert took == ([BOUND_NS + 2 * MS] if order is NeverFences else [])
    assert not group.unordered(), "the members still agree on one order"
