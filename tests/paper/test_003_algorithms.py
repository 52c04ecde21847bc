"""Paper 003, Algorithms 1 to 3, §3.1 and §3.1.1: each line with a rule, shown on the production automaton."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.paper.multigroup_003 import TWO_GROUPS, ImplementedGroup, Message

from unisono.check.latency import latency
from unisono.check.multigroup import genuineness
from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.errors import DestinationNotAllowed
from unisono.model.delays import ConstantDelay
from unisono.model.events import View
from unisono.model.faults import Crash, Partition, Span
from unisono.model.policy import Policy
from unisono.model.scenario import Clocks, Expectation, Network, Scenario, Send, Workload
from unisono.model.timing import Timing
from unisono.model.topology import LIVENESS, Liveness, Multigroup, Topology
from unisono.model.units import NS_PER_MS, Rate, UnlimitedNetwork
from unisono.orders.packing import Bundle
from unisono.orders.quasi_genuine.barriers import BarrierRequests
from unisono.orders.quasi_genuine.group_log import PendingProposals
from unisono.orders.quasi_genuine.messages import Cast, stamp_of
from unisono.orders.quasi_genuine.order import QuasiGenuineOrder
from unisono.sim.result import Result
from unisono.sim.run import run
from unisono.wire.codec import control_frame

MS = NS_PER_MS
DELTA = 5 * MS
WARM = 300 * MS
"""By this time all leaders are elected and known."""


def scripted(
    multigroup: Multigroup, sends: dict[int, list[int]], routes: dict[int, tuple[str, ...]], run_ms: int = 500
) -> Result:
    """Run: members send at these times, each to one set of groups. Delays are constant, clocks are perfect."""
    members = multigroup.topology.members
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
        multigroup=multigroup,
        routes={
            member: (routes.get(member, multigroup.topology.receivers_from(multigroup.topology.group_of(member))),)
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
    ours.barrier_queue.promise(1, 0, stamp_of(5000, 9))
    ours.deliver()
    assert ours.delivered == ["m"]


def test_lines_8_to_13_the_first_copy_counts_and_raises_the_barrier() -> None:
    ours, theirs = ImplementedGroup("0"), ImplementedGroup("1")
    theirs.decide(Message("m", 5, 4), Message("n", 6, 5))
    ours.decide(Message("own", 9, 1))
    for _ in range(3):  # three members of the other group send it
        ours.receive_from(theirs, upto=2)
    assert ours.delivered == ["m", "n"]
    assert ours.barrier_queue.sources[1].applied == 2


def test_lines_14_to_18_undecided_messages_are_proposed_as_a_batch() -> None:
    ours, proposals = ImplementedGroup("0"), PendingProposals()
    for serial in range(4):
        cast = ours.cast(Message(f"m{serial}", serial, 1, serial))
        proposals.add(cast, 0)
    proposals.discard_decided(1, 1, 2)
    proposed, largest_stamp = proposals.pop_until(horizon=10_000, max_bytes=1000)
    assert [cast.bundle.serial for cast in proposed] == [2, 3]
    assert largest_stamp == stamp_of(3000, 1)
    assert proposals.pop_until(horizon=10_000, max_bytes=1000) == ([], 0)


def test_lines_21_to_25_a_decided_batch_is_sent_in_ascending_order() -> None:
    ours = ImplementedGroup("0")
    ours.decide(Message("c", 9, 3), Message("a", 2, 1), Message("b", 2, 2, to=("1",)))
    theirs = ImplementedGroup("1")
    theirs.decide(Message("own", 30, 4))
    theirs.barrier_queue.promise(0, 3, stamp_of(30_000, 9))
    theirs.receive_from(ours)
    assert theirs.delivered == ["a", "b", "c", "own"]


def test_messages_to_the_own_group_to_others_and_to_both() -> None:
    """The three cases of §3.1. A message to another group alone is also decided in its source group."""
    multigroup = Multigroup(TWO_GROUPS)
    result = scripted(multigroup, {1: [WARM], 2: [WARM + 1], 3: [WARM + 2]}, {1: ("0",), 2: ("0", "1"), 3: ("1",)})
    deliveries = result.trace.deliveries()
    senders_seen = {
        member: [int(s) for s, m in zip(deliveries.sender, deliveries.member, strict=True) if m == member]
        for member in TWO_GROUPS.members
    }
    assert senders_seen == {1: [1, 2], 2: [1, 2], 3: [1, 2], 4: [2, 3], 5: [2, 3], 6: [2, 3]}


def test_a_message_outside_the_topology_is_an_error_at_the_sender() -> None:
    one_way = Topology(TWO_GROUPS.groups, {"0": ("0", "1"), "1": ("1",)})
    policy = Policy(
        "g",
        4,
        View(one_way.members),
        Timing(DELTA, 0, DELTA),
        Rate(100, 9),
        "quasi_genuine",
        multigroup=Multigroup(one_way),
    )
    order = QuasiGenuineOrder(policy, UnlimitedNetwork())
    with pytest.raises(DestinationNotAllowed, match="'1' may not send to 0"):
        order.submit_to(0, [b"m"], ("0", "1"))


@pytest.mark.parametrize(("sender", "deltas"), [(1, 2), (2, 3)])
def test_section_3_1_time_to_decide(sender: int, deltas: int) -> None:
    """The leader needs δ + T_cons with T_cons = 2δ; its own message needs no δ. Pipelining saves the second T_cons.

    Two of three members are a majority: a follower that accepts the leader's proposal knows at once that it is decided.
    """
    alone = Multigroup(Topology({"0": (1, 2, 3)}, {"0": ("0",)}))
    result = scripted(alone, {sender: [WARM, WARM + MS, WARM + 2 * MS]}, {})
    deliveries = result.trace.deliveries()
    latencies = {
        member: (deliveries.real_ns[deliveries.member == member] - (result.scenario.epoch_ns + WARM)).tolist()
        for member in (1, 2, 3)
    }
    assert latencies[1] == [deltas * DELTA, deltas * DELTA + MS, deltas * DELTA + 2 * MS]
    assert latencies[2] == latencies[3] == [latency_ns - DELTA for latency_ns in latencies[1]]


# -- §3.1.1: Algorithm 2 and Algorithm 3 ----------------------------------------------------------------------------


@pytest.mark.parametrize("liveness", LIVENESS)
def test_a_single_message_is_delivered_while_no_other_member_sends(liveness: Liveness) -> None:
    multigroup = Multigroup(TWO_GROUPS, liveness, "20ms")
    result = scripted(multigroup, {2: [WARM]}, {})
    assert result.delivered == dict.fromkeys(TWO_GROUPS.members, 1)
    largest = latency(result.trace).figures["max_ns"]
    assert largest <= (4 * DELTA if liveness == "on_demand" else 20 * MS + 4 * DELTA)


def test_on_demand_idle_groups_exchange_no_datagrams() -> None:
    """Periodic barriers never stop; on demand, idle groups are silent."""
    groups = TWO_GROUPS
    between = {}
    for liveness in LIVENESS:
        result = scripted(Multigroup(groups, liveness, "20ms"), {2: [WARM]}, {}, run_ms=1_500)
        between[liveness] = sum(
            count for (a, b), count in result.datagrams_by_pair.items() if groups.group_of(a) != groups.group_of(b)
        )
    assert between["on_demand"] < 40
    assert between["periodic"] > 10 * between["on_demand"]


def test_algorithm_3_line_7_the_sender_notifies_its_destinations_and_blockers() -> None:
    """The sender notifies those blockers(m) that its group is linked to; the destination asks the others."""
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


def test_the_bound_holds_if_a_blocker_is_not_linked_to_the_sender() -> None:
    three = Topology({"a": (1, 2, 3), "b": (4, 5, 6), "c": (7, 8, 9)}, {"a": ("b",), "b": ("b",), "c": ("b",)})
    result = scripted(Multigroup(three), {2: [WARM]}, {})
    assert genuineness(three, result.datagrams_by_pair).status is Status.VALID
    assert latency(result.trace).figures["max_ns"] == 4 * DELTA


def test_algorithm_3_lines_15_to_24_early_delivery_by_timestamp_then_final() -> None:
    multigroup = Multigroup(TWO_GROUPS, window="12ms", optimistic=True)
    result = scripted(multigroup, {1: [WARM, WARM + 4 * MS], 4: [WARM + 1 * MS], 6: [WARM + 2 * MS]}, {})
    early, final = (result.trace.with_grade(grade).deliveries() for grade in ("early", "final"))
    assert early.sender.tolist() == final.sender.tolist() == [1, 4, 6, 1] * 6
    sent = {1: WARM, 4: WARM + MS, 6: WARM + 2 * MS}
    first = early.select(early.member == 5)
    waited = [
        int(at) - result.scenario.epoch_ns - sent[int(s)] for at, s in zip(first.real_ns, first.sender, strict=True)
    ]
    assert waited[:3] == [12 * MS + 1] * 3


def test_a_retransmission_does_not_lengthen_the_measured_window() -> None:
    """Otherwise the longer window would delay the message until it is retransmitted again, and so on forever."""
    policy = Policy(
        "g",
        2,
        View(TWO_GROUPS.members),
        Timing(DELTA, 0, DELTA),
        Rate(100, 9),
        "quasi_genuine",
        multigroup=Multigroup(TWO_GROUPS, window=None),
    )
    order = QuasiGenuineOrder(policy, UnlimitedNetwork())
    cast = Cast(WARM, 1, Bundle(1, 1, 0, 0, 0, b""))
    for retransmitted_after_ns in (0, 10 * DELTA):
        sent_ns = WARM + retransmitted_after_ns
        order.from_below(sent_ns + 4 * MS, control_frame(cast, 1, 1, policy.epoch, sent_ns=sent_ns))
        assert order.wait_window.ns == 5 * MS


def test_a_window_removes_the_cost_of_contention() -> None:
    """All members send at once. Without a window some messages get later stamps; with w = δ all take at most w + 3δ."""
    sends = {member: [WARM + 700_000 * member + 3 * MS * n for n in range(8)] for member in TWO_GROUPS.members}
    largest = {}
    for window in (0, DELTA + 1):
        result = scripted(Multigroup(TWO_GROUPS, window=f"{window}ns"), sends, {})
        largest[window] = latency(result.trace).figures["max_ns"]
    assert largest[DELTA + 1] <= 4 * DELTA + 1
    assert 4 * DELTA < largest[0] <= 8 * DELTA


def test_datagrams_per_multicast_do_not_grow_with_a_ring() -> None:
    """16 groups of 3, each sending to 2 others: as many datagrams per multicast as with 8, all between linked ones."""
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


def test_a_fragmented_message_is_delivered_whole() -> None:
    result = scripted(Multigroup(TWO_GROUPS), {2: [WARM]}, {})
    scenario = replace(
        result.scenario,
        max_frame=300,
        workloads={**result.scenario.workloads, 2: Workload("script", sends=(Send(WARM, (3000, 10)),))},
    )
    again = run(scenario, 1, compare_payloads=True)
    assert again.delivered == dict.fromkeys(TWO_GROUPS.members, 2)


@pytest.mark.parametrize("crashes", [True, False])
def test_003_16_validity_holds_for_senders_that_do_not_crash(crashes: bool) -> None:
    """Member 2 sends while it is cut off. All others deliver its message if it survives, and none if it crashes."""
    scenario = scripted(Multigroup(TWO_GROUPS), {2: [WARM]}, {}).scenario
    others = tuple(member for member in TWO_GROUPS.members if member != 2)
    partition = Partition(Span(WARM - MS, WARM + 60 * MS), ((2,), others))
    faults = (partition, Crash(2, WARM + 30 * MS)) if crashes else (partition,)
    result = run(replace(scenario, faults=faults, expect=Expectation(bound_ns=400 * MS)), 1, compare_payloads=True)
    assert result.sent[2] == 1
    assert {result.delivered[member] for member in others} == {0 if crashes else 1}
    verdicts = check_all(result.trace, until_ns=result.until_ns)
    assert {verdicts[name].status for name in ("validity", "uniform_agreement", "integrity")} == {Status.VALID}
