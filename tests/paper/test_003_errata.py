"""Errata 003-1 to 003-18: the counterexample to the published algorithms, and our behaviour in the same schedule."""

from __future__ import annotations

from tests.paper.multigroup_003 import TWO_GROUPS, CorrectedGroup, ImplementedGroup, Message, PublishedGroup, agree

from unisono.model.events import View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.topology import Liveness, Multigroup, Topology
from unisono.model.units import NS_PER_MS, Rate, UnlimitedNetwork
from unisono.orders.quasi_genuine.barriers import BarrierRequests
from unisono.orders.quasi_genuine.group_log import GroupLog, GroupProposer, PendingProposals
from unisono.orders.quasi_genuine.messages import Null, encode_value, stamp_of, time_of
from unisono.orders.quasi_genuine.optimistic import OptimisticDelivery, WaitWindow
from unisono.orders.quasi_genuine.streams import MulticastSender

LATE, OTHER, X = Message("late", 10.0, 1), Message("other", 10.6, 2), Message("x", 10.3, 4)


def null(ts: float) -> Message:
    return Message("null", ts, 0, to=("0", "1"), null=True)


def published_pair() -> tuple[PublishedGroup, PublishedGroup]:
    return PublishedGroup("0", ("0", "1")), PublishedGroup("1", ("0", "1"))


def test_003_1_a_message_decided_after_a_larger_timestamp_breaks_the_barrier() -> None:
    zero, one = published_pair()
    one.decide(X)
    for sent in zero.decide(OTHER):
        one.receive("0", sent)
    for sent in zero.decide(LATE):
        one.receive("0", sent)
    zero.receive("1", X)
    zero.receive("1", null(20))
    one.receive("0", null(20))
    assert zero.delivered[:2] == ["late", "x"]
    assert one.delivered[:2] == ["x", "late"]
    ours, theirs = ImplementedGroup("0"), ImplementedGroup("1")
    theirs.decide(X)
    ours.decide(OTHER)
    theirs.receive_from(ours)
    ours.decide(LATE)
    for group in (ours, theirs):
        group.decide(null(20))
    ours.receive_from(theirs)
    theirs.receive_from(ours)
    assert ours.delivered == theirs.delivered == ["x", "other", "late"]


def test_003_2_a_slow_clock_inside_a_group_breaks_the_order() -> None:
    """A slow clock gives b the timestamp 17 when the barrier 20 has been announced."""
    a, b, x = Message("a", 20, 1), Message("b", 17, 2), Message("x", 18, 4)
    zero, one = published_pair()
    one.decide(x)
    for message in (a, b):
        for sent in zero.decide(message):
            one.receive("0", sent)
    zero.receive("1", x)
    zero.receive("1", null(30))
    one.receive("0", null(30))
    assert not agree(zero.delivered, one.delivered)
    ours, theirs = ImplementedGroup("0"), ImplementedGroup("1")
    theirs.decide(x)
    for message in (a, b):
        ours.decide(message)
        theirs.receive_from(ours)
    for group in (ours, theirs):
        group.decide(null(30))
    ours.receive_from(theirs)
    theirs.receive_from(ours)
    assert ours.delivered == theirs.delivered == ["x", "a", "b"]


def test_003_3_delivery_waits_for_the_own_group() -> None:
    """x (5) of the own group is not decided yet when all barriers have passed m (7)."""
    x, m = Message("x", 5, 1), Message("m", 7, 4)
    zero, one = published_pair()
    one.decide(m)
    zero.receive("1", m)
    zero.receive("1", null(9))
    zero.decide(x)
    one.receive("0", x)
    one.receive("0", null(9))
    assert not agree(zero.delivered, one.delivered)
    ours, theirs = ImplementedGroup("0"), ImplementedGroup("1")
    theirs.decide(m, null(9))
    ours.receive_from(theirs)
    assert ours.delivered == []
    ours.decide(x)
    assert ours.delivered == ["x"]
    ours.decide(null(9))
    theirs.receive_from(ours)
    assert ours.delivered == theirs.delivered == ["x", "m"]


def test_003_4_a_null_with_the_same_timestamp_lets_a_message_pass() -> None:
    m = Message("m", 7, 4, to=("0",))
    zero, _ = published_pair()
    zero.receive("1", m)
    zero.receive("1", null(7))
    assert zero.delivered == []
    ours, theirs = ImplementedGroup("0"), ImplementedGroup("1")
    theirs.decide(m)
    ours.receive_from(theirs)
    assert ours.delivered == []
    assert ours.log.apply(encode_value([Null(0, stamp_of(7000, 4))])) == []
    ours.deliver()
    assert ours.delivered == ["m"]


def test_003_5_equal_timestamps_get_different_stamps() -> None:
    """A batch 5, 5, 7 has no strict minimum, so as published nothing is sent. Our stamps are unique over all groups."""
    batch = Message("p", 5, 1), Message("q", 5, 2), Message("r", 7, 3)
    zero, _ = published_pair()
    assert zero.decide(*batch) == []
    ours, theirs = ImplementedGroup("0"), ImplementedGroup("1")
    ours.decide(*batch)
    theirs.decide(Message("s", 5, 4), null(8))
    ours.decide(null(8))
    theirs.receive_from(ours)
    ours.receive_from(theirs)
    assert ours.delivered == theirs.delivered == ["p", "q", "s", "r"]
    assert (
        len({entry.stamp for group in (ours, theirs) for s in group.log.streams.values() for entry in s.entries}) == 4
    )


def test_003_6_a_message_decided_after_a_larger_timestamp_is_not_discarded() -> None:
    ours, theirs = ImplementedGroup("0"), ImplementedGroup("1")
    ours.decide(OTHER)
    ours.decide(LATE)
    theirs.decide(null(11))
    ours.receive_from(theirs)
    assert ours.delivered == ["other", "late"]


def test_003_7_the_source_group_proposes_late_messages_and_messages_to_others() -> None:
    ours = ImplementedGroup("0")
    proposals = PendingProposals()
    away, late = Message("away", 5, 1, to=("1",)), Message("late", 1, 2)
    for message in (away, late):
        cast = ours.cast(message)
        assert proposals.add(cast, 0)
    proposed, _ = proposals.pop_until(horizon=9_000, max_bytes=1000)
    assert [cast.ts for cast in proposed] == [1000, 5000]


def patched_pair() -> tuple[CorrectedGroup, CorrectedGroup]:
    return CorrectedGroup("0", ("0", "1")), CorrectedGroup("1", ("0", "1"))


def test_003_8_with_two_patches_a_window_below_the_delays_loses_messages_and_fifo_order() -> None:
    """`late` takes longer than w to arrive: another message is proposed before it, and line 26 drops it."""
    after = Message("after", 11.0, 1, serial=1)
    zero, one = patched_pair()
    for pending in ((OTHER,), (LATE,), (after,)):
        for sent in zero.decide(*zero.propose(*pending)):
            one.receive("0", sent)
    zero.receive("1", null(20))
    one.receive("0", null(20))
    assert one.delivered == zero.delivered == ["other", "after"]
    ours, theirs = ImplementedGroup("0"), ImplementedGroup("1")
    for message in (OTHER, LATE, after):
        ours.decide(message)
    for group in (ours, theirs):
        group.decide(null(20))
    ours.receive_from(theirs)
    theirs.receive_from(ours)
    assert ours.delivered == theirs.delivered == ["other", "late", "after"]


def test_003_8_with_two_patches_a_slow_clock_breaks_the_total_order() -> None:
    """x has its timestamp from a slow clock. It still waits for its window when all barriers have passed m."""
    x, m = Message("x", 5, 1), Message("m", 7, 4)
    zero, one = patched_pair()
    for sent in one.decide(*one.propose(m)):
        zero.receive("1", sent)
    assert zero.delivered == ["m"]
    batch = zero.propose(x, null(7))
    assert x in batch
    for sent in zero.decide(*batch):
        one.receive("0", sent)
    zero.receive("1", null(20))
    assert (zero.delivered, one.delivered) == (["m", "x"], ["x", "m"])
    ours, theirs = ImplementedGroup("0"), ImplementedGroup("1")
    theirs.decide(m)
    ours.receive_from(theirs)
    assert ours.delivered == []
    ours.decide(x, null(7.1))
    theirs.receive_from(ours)
    assert ours.delivered == theirs.delivered == ["x", "m"]


def test_003_9_a_barrier_does_not_overtake_a_message() -> None:
    """A barrier counts once as many entries are here as it was announced with, whichever copy arrives first."""
    ours, theirs = ImplementedGroup("0"), ImplementedGroup("1")
    theirs.decide(Message("m", 5, 4), Message("n", 6, 5))
    ours.decide(Message("own", 15, 1), null(20))
    ours.barrier_queue.promise(theirs.number, 2, stamp_of(20_000, 0))
    assert ours.delivered == []
    ours.receive_from(theirs, upto=1)
    assert ours.delivered == ["m"]
    ours.receive_from(theirs)
    ours.receive_from(theirs)
    ours.deliver()
    assert ours.delivered == ["m", "n", "own"]


def leading_proposer(liveness: Liveness) -> tuple[GroupProposer, GroupLog, BarrierRequests]:
    multigroup = Multigroup(TWO_GROUPS, liveness, "10ns")
    requests, log = BarrierRequests(TWO_GROUPS, "0"), GroupLog(0, (0, 1))
    return GroupProposer(multigroup, log, PendingProposals(), requests), log, requests


def test_003_11_an_idle_group_raises_its_barrier() -> None:
    proposer, log, _ = leading_proposer("periodic")
    proposer.start_term(1000)
    assert proposer.next_items(1009, 0, 1000) == []
    assert proposer.due_at(0) == 1010
    items = proposer.next_items(1010, 0, 1000)
    assert len(items) == 1
    assert log.apply(encode_value(items)) == []
    assert time_of(log.last_stamp) == 1010


def test_003_12_stamps_always_grow() -> None:
    ours = ImplementedGroup("0")
    for number, ts in enumerate((9, 3, 7, 7, 12, 1)):
        ours.decide(Message(f"m{number}", ts, 1 + number % 3, number // 3))
    stamps = [entry.stamp for entry in ours.log.streams[1].entries]
    assert stamps == sorted(set(stamps))
    assert [time_of(stamp) for stamp in stamps][:1] == [9000]


def test_003_13_a_barrier_never_goes_down() -> None:
    ours, theirs = ImplementedGroup("0"), ImplementedGroup("1")
    ours.barrier_queue.promise(theirs.number, 0, 50)
    ours.barrier_queue.promise(theirs.number, 0, 40)
    assert ours.barrier_queue.sources[theirs.number].barrier == 50


def test_003_14_line_42_keeps_received_messages_and_nulls_never_wait() -> None:
    """Line 42 means m', not any m. In Algorithm 1 a null would enter barPending. `delivered` is empty at first."""
    ours, theirs = ImplementedGroup("0"), ImplementedGroup("1")
    assert ours.barrier_queue.last_delivered == (0, 0)
    theirs.decide(Message("first", 5, 4), Message("second", 6, 5), null(7))
    ours.decide(null(9))
    assert ours.barrier_queue.pending == []
    ours.receive_from(theirs)
    assert ours.delivered == ["first", "second"]
    assert ours.barrier_queue.pending == []


def test_003_14_a_group_waits_only_for_groups_that_send_to_it() -> None:
    """barrier(G', G) with G' in sendersTo(G): a sending group does not wait for groups that only receive from it."""
    one_way = Topology({"0": (1,), "1": (4,)}, {"0": ("0", "1"), "1": ("1",)})
    ours, theirs = ImplementedGroup("0", one_way), ImplementedGroup("1", one_way)
    assert (list(ours.barrier_queue.sources), list(theirs.barrier_queue.sources)) == ([], [ours.number])
    ours.decide(Message("m", 5, 1), null(6))
    theirs.decide(Message("n", 5.5, 4, to=("1",)), null(6))
    assert (ours.delivered, theirs.delivered) == (["m"], [])
    theirs.receive_from(ours)
    assert theirs.delivered == ["m", "n"]


def test_003_14_a_null_is_proposed_at_the_end_of_its_window() -> None:
    """As in line 19. The prose says null.ts > now - w(p), which would be earlier."""
    proposer, _, requests = leading_proposer("on_demand")
    proposer.start_term(0)
    requests.request(stamp_of(100, 1))
    assert proposer.next_items(104, 5, 1000) == []
    assert proposer.due_at(5) == 105
    assert proposer.next_items(105, 5, 1000) == [Null(0, stamp_of(100, 1))]


def test_003_14_the_window_is_measured_and_opt_pending_delivers_at_its_end() -> None:
    """w(p) is declared, or a quarter more than the longest recent delay. optPending delivers at its end."""
    window = WaitWindow(None, 10_000)
    assert window.ns == 10_000
    window.record_delay(4_000)
    assert window.ns == 5_000
    early = OptimisticDelivery(window, Timing(NS_PER_MS, 0, NS_PER_MS))
    cast = ImplementedGroup("0").cast(Message("m", 8, 1))
    early.add(9_000, stamp_of(cast.ts, 1), cast.bundle)
    assert early.pop_due(13_000) == []
    assert [batch.messages for batch in early.pop_due(13_001)] == [[b"m"]]


def test_003_15_timestamps_grow_even_if_the_clock_stops_or_goes_back() -> None:
    policy = Policy("g", 1, View((1,)), Timing(NS_PER_MS, 0, NS_PER_MS), Rate(1000, 100))
    sender = MulticastSender(policy, UnlimitedNetwork(), 1000)
    for now in (5_000_000, 5_000_000, 4_000_000):
        assert sender.submit(now, [b"m"], 1) == 1
    assert [undecided.cast.ts for undecided in sender.undecided] == [5_000_000, 5_000_001, 5_000_002]


def test_003_17_a_late_message_is_only_delivered_finally() -> None:
    """Late messages are not delivered early, so none of them stays in a replica's queue."""
    ours = ImplementedGroup("0")
    early = OptimisticDelivery(WaitWindow(5_000, 0), Timing(NS_PER_MS, 0, NS_PER_MS))
    late, fresh = ours.cast(Message("late", 1, 1)), ours.cast(Message("fresh", 8, 2))
    for cast in (late, fresh):
        early.add(9_000, stamp_of(cast.ts, cast.bundle.sender), cast.bundle)
    assert early.late_bundles == 1
    assert [batch.messages for batch in early.pop_due(13_001)] == [[b"fresh"]]


def test_003_18_nulls_of_two_leaders_are_equivalent() -> None:
    """Both propose the next null. The one that is decided second does not count."""
    first, log, _ = leading_proposer("periodic")
    second = leading_proposer("periodic")[0]
    first.start_term(0)
    second.start_term(0)
    proposals = [proposer.next_items(now, 0, 1000) for proposer, now in ((first, 50), (second, 60))]
    for items in proposals:
        assert [item.number for item in items if isinstance(item, Null)] == [0]
        log.apply(encode_value(items))
    assert (log.null_count, time_of(log.last_stamp)) == (1, 50)


def test_003_10_groups_in_a_cycle_do_not_deadlock() -> None:
    """a sends to b, b to c, c to a. Each delivers thanks to nulls, which do not wait for deliveries."""
    names = ("a", "b", "c")
    ring = Topology(
        {name: (number + 1,) for number, name in enumerate(names)},
        {"a": ("a", "b"), "b": ("b", "c"), "c": ("c", "a")},
    )
    groups = [ImplementedGroup(name, ring) for name in names]
    for number, group in enumerate(groups):
        group.decide(Message(names[number], number + 1, number + 1, to=ring.receivers_from(names[number])))
    for group in groups:
        group.decide(null(9))
    for number, group in enumerate(groups):
        group.receive_from(groups[number - 1])
    assert [group.delivered for group in groups] == [["a", "c"], ["a", "b"], ["b", "c"]]
