"""The parts of a quasi-genuine group on their own: what waits, what is restored, what is proposed again."""

from __future__ import annotations

from unisono.model.timing import Timing
from unisono.orders.multigroup.barriers import BarrierQueue
from unisono.orders.multigroup.group_log import GroupLog, PendingProposals
from unisono.orders.multigroup.messages import Cast, GroupState, Null, StampedEntry, encode_value, stamp_of
from unisono.orders.multigroup.order import OptimisticDelivery, WaitWindow
from unisono.orders.multigroup.topology_change import IncomingLink
from unisono.wire.bundles import Bundle, encode_bundle
from unisono.wire.packed_messages import OutgoingMessages

HERE, THERE, BEYOND = 0, 1, 2


def parcel(sender: int, serial: int) -> Bundle:
    return Bundle(sender, 1, serial, serial, 0, b"".join(OutgoingMessages([b"m"], same_size=True).parts()))


def entry(stamp: int) -> StampedEntry:
    return StampedEntry(stamp, 1 << HERE, b"%d" % stamp)


def cast(ts: int, sender: int, serial: int, mask: int = 1 << HERE) -> Cast:
    return Cast(ts, mask, encode_bundle(parcel(sender, serial)))


def stamps(gate: BarrierQueue, own_last: int = 100) -> list[int]:
    return [delivered.stamp for _, delivered in gate.pop_deliverable(own_last)]


def test_what_waits_here_and_in_the_state_that_is_restored_is_delivered_once() -> None:
    other, gate = BarrierQueue(HERE, (THERE,)), BarrierQueue(HERE, (THERE,))
    for each in (other, gate):
        each.receive(THERE, 1, (entry(5), entry(6)))
    gate.receive(THERE, 3, (entry(9),))
    state = GroupState()
    other.save(state)
    assert not gate.restore(state)
    assert stamps(gate) == [5, 6, 9]
    assert stamps(gate) == []


def test_who_is_given_a_state_beyond_its_deliveries_goes_on_behind_them_and_says_so() -> None:
    other, gate = BarrierQueue(HERE, (THERE,)), BarrierQueue(HERE, (THERE,))
    other.receive(THERE, 1, (entry(5), entry(6)))
    gate.receive(THERE, 1, (entry(5),))
    assert stamps(other, own_last=5) == [5]
    state = GroupState()
    other.save(state)
    assert gate.restore(state)
    assert stamps(gate) == [6]


def test_of_equal_stamps_that_of_the_group_with_the_larger_number_comes_behind_and_is_not_lost() -> None:
    gate = BarrierQueue(HERE, (THERE,))
    gate.add_own(entry(5))
    gate.promise(THERE, 0, 5)
    assert stamps(gate) == [5]
    gate.receive(THERE, 1, (entry(5),))
    assert stamps(gate) == [5]


def test_a_group_that_stops_is_waited_for_up_to_its_last_entry() -> None:
    gate = BarrierQueue(HERE, (THERE,))
    gate.add_own(entry(50))
    gate.update_sources({THERE: IncomingLink(1, open=False, head=2)})
    gate.receive(THERE, 1, (entry(5),))
    assert stamps(gate) == [5]
    assert gate.blockers() == [THERE]
    gate.receive(THERE, 2, (entry(6),))
    assert stamps(gate) == [6, 50]
    assert gate.blockers() == []


def test_a_stream_forgets_what_everybody_has_and_no_more() -> None:
    log = GroupLog(HERE, (HERE, THERE))
    for serial in range(3):
        log.apply(encode_value([cast(10 * serial + 10, 1, serial, 1 << THERE)]))
    stream = log.streams[THERE]
    stream.drop(1)
    assert (stream.first, stream.head, len(stream.entries)) == (2, 3, 2)
    stream.drop(1)
    assert stream.first == 2


def test_a_message_goes_to_all_its_destinations_or_to_none() -> None:
    log = GroupLog(HERE, (HERE, THERE))
    assert log.apply(encode_value([cast(10, 1, 0, 1 << HERE | 1 << THERE | 1 << BEYOND)])) == []
    assert log.streams[THERE].head == 0
    assert log.refused == [(1, 1, 0, 1 << BEYOND)]


def test_a_sender_s_messages_count_in_their_order_and_once() -> None:
    log = GroupLog(HERE, (HERE,))
    assert log.apply(encode_value([cast(10, 1, 1)])) == [], "its first is missing"
    taken = log.apply(encode_value([cast(10, 1, 1), cast(9, 1, 0), cast(11, 2, 0)]))
    assert taken is not None
    assert [found.stamp for found in taken] == [stamp_of(9, 1), stamp_of(10, 1), stamp_of(11, 2)]
    assert log.apply(encode_value([cast(9, 1, 0)])) == []


def test_of_nulls_with_one_number_the_first_counts() -> None:
    log = GroupLog(HERE, (HERE,))
    for number, ts in ((0, 10), (0, 20), (2, 30)):
        log.apply(encode_value([Null(number, stamp_of(ts, 0))]))
    assert (log.null_count, log.last_stamp) == (1, stamp_of(10, 0))


def test_a_new_leader_proposes_again_what_has_no_place() -> None:
    proposals = PendingProposals()
    for serial in range(3):
        assert proposals.add(parcel(1, serial), cast(10 + serial, 1, serial), 0)
    assert [item.ts for item in proposals.pop_until(100, 10_000)[0]] == [10, 11, 12]
    proposals.discard_decided(1, 1, 1)
    assert proposals.pop_until(100, 10_000)[0] == []
    proposals.propose_again_from(1, 1)
    assert [item.ts for item in proposals.pop_until(100, 10_000)[0]] == [11, 12]


def test_early_deliveries_are_in_the_order_of_time_stamps_and_none_follows_its_final_one() -> None:
    early = OptimisticDelivery(WaitWindow(50, 0), Timing(1000, 0, 1000))
    first, behind, final = parcel(1, 0), parcel(2, 0), parcel(3, 0)
    early.add(100, stamp_of(100, 1), first, encode_bundle(first))
    assert len(early.pop_due(151)) == 1
    early.add(140, stamp_of(99, 2), behind, encode_bundle(behind))
    assert early.late_bundles == 1, "one with a larger time stamp was early already"
    early.add(160, stamp_of(155, 3), final, encode_bundle(final))
    early.mark_final(encode_bundle(final))
    assert early.pop_due(300) == []
