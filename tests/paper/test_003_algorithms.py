"""Paper 003, Algorithms 1 to 3, §3.1 and §3.1.1: the lines that carry a rule, on the automaton that runs everywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.paper.groups_003 import EVERYBODY, ImplementedGroup, Message

from unisono.check.multigroup import genuineness
from unisono.check.suite import check_all
from unisono.check.timing import latency
from unisono.check.verdict import Status
from unisono.errors import DestinationNotAllowed
from unisono.model.delays import ConstantDelay
from unisono.model.durations import NS_PER_MS
from unisono.model.faults import Crash, Partition, Span
from unisono.model.policy import Policy
from unisono.model.rates import Rate, UnlimitedNetwork
from unisono.model.scenario import Clocks, Expectation, Network, Scenario, Send, Workload
from unisono.model.timing import Timing
from unisono.model.topology import LIVENESS, Liveness, Multigroup, Topology
from unisono.model.views import View
from unisono.orders.multigroup.barrier_requests import BarrierRequests
from unisono.orders.multigroup.messages import Cast, checked_bundle, encode_cast, stamp_of
from unisono.orders.multigroup.order import QuasiGenuine
from unisono.orders.multigroup.proposals import PendingProposals
from unisono.sim.result import Result
from unisono.sim.run import run
from unisono.wire.bundles import Bundle, encode_bundle
from unisono.wire.frame import Frame, Kind

MS = NS_PER_MS
DELTA = 5 * MS
WARM = 300 * MS
"""By then leaders are chosen and known."""


def scripted(
    rules: Multigroup, sends: dict[int, list[int]], routes: dict[int, tuple[str, ...]], run_ms: int = 500
) -> Result:
    """Members send at these times, each to one set of groups; delays are constant and clocks perfect."""
    members = rules.topology.members
    scenario = Scenario(
        source="paper",
        group="paper",
        order="quasi_genuine",
        members=members,
        timing=Timing(DELTA, 0, 5 * MS),
        rates=dict.fromkeys(members, Rate(1000, 50)),
        workloads={
            member: Workload("script", sends=tuple(Send(at, (20,)) for at in sends.get(member, ())))
            for member in members
        },
        network=Network(ConstantDelay(DELTA)),
        run_ns=run_ms * MS,
        clocks=Clocks("perfect"),
        multigroup=rules,
        routes={
            member: (routes.get(member, rules.topology.receivers_from(rules.topology.group_of(member))),)
            for member in members
        },
        expect=Expectation(bound_ns=100 * MS),
    )
    result = run(scenario, 1, compare_payloads=True)
    verdicts = check_all(result.trace, until_ns=result.until_ns)
    assert {name: v.witness for name, v in verdicts.items() if v.status is not Status.VALID} == {}
    return result


# -- Algorithm 1 ----------------------------------------------------------------------------------------------------


def test_lines_2_to_4_nothing_is_delivered_before_every_sender_has_a_barrier() -> None:
    ours = ImplementedGroup("0")
    ours.decide(Message("m", 5, 1))
    assert ours.delivered == []
    ours.gate.promise(1, 0, stamp_of(5000, 9))
    ours.deliver()
    assert ours.delivered == ["m"]


def test_line_8_to_13_the_first_copy_counts_and_raises_the_barrier() -> None:
    ours, theirs = ImplementedGroup("0"), ImplementedGroup("1")
    theirs.decide(Message("m", 5, 4), Message("n", 6, 5))
    ours.decide(Message("own", 9, 1))
    for _ in range(3):  # three members of the other group have sent it
        ours.receive_from(theirs, upto=2)
    assert ours.delivered == ["m", "n"]
    assert ours.gate.sources[1].applied == 2


def test_lines_14_to_18_what_is_pending_is_proposed_as_a_batch_without_what_is_decided() -> None:
    ours, proposals = ImplementedGroup("0"), PendingProposals()
    for serial in range(4):
        cast = ours.cast(Message(f"m{serial}", serial, 1, serial))
        proposals.add(checked_bundle(cast.bundle), cast, 0)
    proposals.discard_decided(1, 1, 2)
    taken, top = proposals.pop_until(horizon=10_000, max_bytes=1000)
    assert [checked_bundle(cast.bundle).serial for cast in taken] == [2, 3]
    assert top == stamp_of(3000, 1)
    assert proposals.pop_until(horizon=10_000, max_bytes=1000) == ([], 0)


def test_lines_21_to_25_a_decided_batch_goes_out_in_ascending_order() -> None:
    ours = ImplementedGroup("0")
    ours.decide(Message("c", 9, 3), Message("a", 2, 1), Message("b", 2, 2, to=("1",)))
    theirs = ImplementedGroup("1")
    theirs.decide(Message("own", 30, 4))
    theirs.gate.promise(0, 3, stamp_of(30_000, 9))
    theirs.receive_from(ours)
    assert theirs.delivered == ["a", "b", "c", "own"]


def test_messages_to_the_own_group_to_others_and_to_both() -> None:
    """The three possibilities of §3.1; what is for another group alone is decided in its source group all the same."""
    rules = Multigroup(EVERYBODY)
    result = scripted(rules, {1: [WARM], 2: [WARM + 1], 3: [WARM + 2]}, {1: ("0",), 2: ("0", "1"), 3: ("1",)})
    deliveries = result.trace.deliveries()
    got = {
        member: [int(s) for s, m in zip(deliveries.sender, deliveries.member, strict=True) if m == member]
        for member in EVERYBODY.members
    }
    assert got == {1: [1, 2], 2: [1, 2], 3: [1, 2], 4: [2, 3], 5: [2, 3], 6: [2, 3]}


def test_a_message_outside_the_relation_is_an_error_at_the_sender() -> None:
    one_way = Topology(EVERYBODY.groups, {"0": ("0", "1"), "1": ("1",)})
    policy = Policy(
        "g",
        4,
        View(one_way.members),
        Timing(DELTA, 0, DELTA),
        Rate(100, 9),
        "quasi_genuine",
        multigroup=Multigroup(one_way),
    )
    order = QuasiGenuine(policy, UnlimitedNetwork())
    with pytest.raises(DestinationNotAllowed, match="'1' may not send to 0"):
        order.submit_to(0, [b"m"], ("0", "1"))


@pytest.mark.parametrize(("sender", "deltas"), [(1, 2), (2, 3)])
def test_section_3_1_the_time_to_decide(sender: int, deltas: int) -> None:
    """δ + T_cons at the leader, T_cons being 2δ; its own message needs no δ. Pipelining spares the second T_cons.

    Of three members two are a majority: whoever accepts what the leader has sent knows at once that it is decided.
    """
    alone = Multigroup(Topology({"0": (1, 2, 3)}, {"0": ("0",)}))
    result = scripted(alone, {sender: [WARM, WARM + MS, WARM + 2 * MS]}, {})
    deliveries = result.trace.deliveries()
    taken = {
        member: (deliveries.real_ns[deliveries.member == member] - (result.scenario.epoch_ns + WARM)).tolist()
        for member in (1, 2, 3)
    }
    assert taken[1] == [deltas * DELTA, deltas * DELTA + MS, deltas * DELTA + 2 * MS]
    assert taken[2] == taken[3] == [at - DELTA for at in taken[1]]


# -- §3.1.1: Algorithm 2 and Algorithm 3 ----------------------------------------------------------------------------


@pytest.mark.parametrize("liveness", LIVENESS)
def test_a_single_message_is_delivered_though_nobody_else_sends(liveness: Liveness) -> None:
    rules = Multigroup(EVERYBODY, liveness, 20 * MS)
    result = scripted(rules, {2: [WARM]}, {})
    assert result.delivered == dict.fromkeys(EVERYBODY.members, 1)
    most = latency(result.trace).figures["max_ns"]
    assert most <= (4 * DELTA if liveness == "on_demand" else 20 * MS + 4 * DELTA)


def test_on_demand_nothing_passes_between_groups_while_nobody_sends() -> None:
    """Periodic barriers go on and on; on demand, groups that have nothing to say are silent."""
    groups = EVERYBODY
    between = {}
    for liveness in LIVENESS:
        result = scripted(Multigroup(groups, liveness, 20 * MS), {2: [WARM]}, {}, run_ms=1_500)
        between[liveness] = sum(
            count for (a, b), count in result.datagrams_by_pair.items() if groups.group_of(a) != groups.group_of(b)
        )
    assert between["on_demand"] < 40
    assert between["periodic"] > 10 * between["on_demand"]


def test_algorithm_3_line_7_the_sender_tells_its_destinations_and_blockers() -> None:
    """blockers(m), as far as the sender's group is related to them; the others are asked by the destination."""
    line = Topology({"a": (1,), "b": (2,), "c": (3,), "d": (4,)}, {"a": ("b",), "b": ("a",), "c": ("b",), "d": ("a",)})
    assert line.blockers(("b",)) == ("a", "c")
    a, b = BarrierRequests(line, "a"), BarrierRequests(line, "b")
    assert [line.names[group] for group in a.groups_to_notify(line.mask(("b",)))] == ["b"]
    unreached = b.requested(line.index("a"), 77, line.mask(("b",)))
    assert [line.names[group] for group in unreached] == ["c"]
    assert b.largest_requested(0, 0) == 77
    c = BarrierRequests(line, "c")
    c.requested(line.index("b"), 77, line.mask(("b",)))
    assert c.largest_requested(0, 0) == 77
    assert [line.names[group] for group in c.due_receivers(77, {1: None})] == ["b"]
    assert c.due_receivers(99, {1: None}) == []


def test_the_bound_holds_where_a_blocker_is_not_related_to_the_sender() -> None:
    three = Topology({"a": (1, 2, 3), "b": (4, 5, 6), "c": (7, 8, 9)}, {"a": ("b",), "b": ("b",), "c": ("b",)})
    result = scripted(Multigroup(three), {2: [WARM]}, {})
    assert genuineness(three, result.datagrams_by_pair).status is Status.VALID
    assert latency(result.trace).figures["max_ns"] == 4 * DELTA


def test_algorithm_3_lines_15_to_24_early_by_time_stamp_then_for_good() -> None:
    rules = Multigroup(EVERYBODY, window_ns=12 * MS, optimistic=True)
    result = scripted(rules, {1: [WARM, WARM + 4 * MS], 4: [WARM + 1 * MS], 6: [WARM + 2 * MS]}, {})
    early, final = (result.trace.with_grade(grade).deliveries() for grade in ("early", "final"))
    assert early.sender.tolist() == final.sender.tolist() == [1, 4, 6, 1] * 6
    sent = {1: WARM, 4: WARM + MS, 6: WARM + 2 * MS}
    first = early.select(early.member == 5)
    waited = [
        int(at) - result.scenario.epoch_ns - sent[int(s)] for at, s in zip(first.real_ns, first.sender, strict=True)
    ]
    assert waited[:3] == [12 * MS + 1] * 3


def test_what_is_handed_in_again_does_not_lengthen_the_measured_window() -> None:
    """Else the longer window would hold it up until it had to be handed in once more, and so on for ever."""
    policy = Policy(
        "g",
        2,
        View(EVERYBODY.members),
        Timing(DELTA, 0, DELTA),
        Rate(100, 9),
        "quasi_genuine",
        multigroup=Multigroup(EVERYBODY, window_ns=None),
    )
    order = QuasiGenuine(policy, UnlimitedNetwork())
    cast = Cast(WARM, 1, encode_bundle(Bundle(1, 1, 0, 0, 0, b"")))
    for late_ns in (0, 10 * DELTA):
        sent_ns = WARM + late_ns
        order.from_below(
            sent_ns + 4 * MS, Frame(Kind.GROUP_CAST, 1, 1, policy.epoch, 0, 0, sent_ns=sent_ns, body=encode_cast(cast))
        )
        assert order.wait_window.ns == 5 * MS


def test_with_a_window_contention_costs_nothing() -> None:
    """Everybody sends at once. Without a window messages are bumped; with w = δ all are there in time: w + 3δ."""
    sends = {member: [WARM + 700_000 * member + 3 * MS * n for n in range(8)] for member in EVERYBODY.members}
    most = {}
    for window in (0, DELTA + 1):
        result = scripted(Multigroup(EVERYBODY, window_ns=window), sends, {})
        most[window] = latency(result.trace).figures["max_ns"]
    assert most[DELTA + 1] <= 4 * DELTA + 1
    assert 4 * DELTA < most[0] <= 8 * DELTA


def test_figures_of_a_ring_do_not_grow_with_it() -> None:
    """16 groups of 3, each sending to 2 others: no datagram between strangers, as many per multicast as with 8."""
    per_multicast = {}
    for count in (8, 16):
        names = [f"g{number:02}" for number in range(count)]
        ring = Topology(
            {name: range(3 * number + 1, 3 * number + 4) for number, name in enumerate(names)},
            {name: (names[(number + 1) % count], names[(number + 2) % count]) for number, name in enumerate(names)},
        )
        sends = {3 * number + 1: [WARM + 10 * MS * n + number * MS for n in range(3)] for number in range(count)}
        idle = scripted(Multigroup(ring), {}, {}, run_ms=360)
        result = scripted(Multigroup(ring), sends, {}, run_ms=360)
        assert genuineness(ring, result.datagrams_by_pair).status is Status.VALID
        per_multicast[count] = (sum(result.datagrams_by_pair.values()) - sum(idle.datagrams_by_pair.values())) / (
            3 * count
        )
    assert per_multicast[16] <= 1.05 * per_multicast[8]


def test_a_message_in_pieces_is_delivered_whole() -> None:
    rules = Multigroup(EVERYBODY)
    result = scripted(rules, {2: [WARM]}, {})
    scenario = replace(
        result.scenario,
        max_frame=300,
        workloads={**result.scenario.workloads, 2: Workload("script", sends=(Send(WARM, (3000, 10)),))},
    )
    again = run(scenario, 1, compare_payloads=True)
    assert again.delivered == dict.fromkeys(EVERYBODY.members, 2)


@pytest.mark.parametrize("crashes", [True, False])
def test_003_16_validity_is_promised_to_senders_that_do_not_crash(crashes: bool) -> None:
    """Member 2 sends while nobody hears it. Its message is due at all if it lives on, and at none if it crashes."""
    quiet = scripted(Multigroup(EVERYBODY), {2: [WARM]}, {}).scenario
    others = tuple(member for member in EVERYBODY.members if member != 2)
    alone = Partition(Span(WARM - MS, WARM + 60 * MS), ((2,), others))
    faults = (alone, Crash(2, WARM + 30 * MS)) if crashes else (alone,)
    result = run(replace(quiet, faults=faults, expect=Expectation(bound_ns=400 * MS)), 1, compare_payloads=True)
    assert result.sent[2] == 1
    assert {result.delivered[member] for member in others} == {0 if crashes else 1}
    verdicts = check_all(result.trace, until_ns=result.until_ns)
    assert {verdicts[name].status for name in ("validity", "uniform_agreement", "integrity")} == {Status.VALID}
