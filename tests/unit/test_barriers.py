"""The parts of a quasi-genuine group on their own: barrier queue, log, pending proposals, early delivery."""

from __future__ import annotations

from unisono.model.timing import Timing
from unisono.orders.packing import Bundle
from unisono.orders.quasi_genuine.barriers import BarrierQueue
from unisono.orders.quasi_genuine.group_log import GroupLog, PendingProposals
from unisono.orders.quasi_genuine.messages import Cast, GroupState, Null, StampedEntry, encode_value, stamp_of
from unisono.orders.quasi_genuine.optimistic import OptimisticDelivery, WaitWindow
from unisono.orders.quasi_genuine.topology_change import IncomingLink
from unisono.wire.frame import OutgoingMessages

HERE, THERE, BEYOND = 0, 1, 2


def bundle_of(sender: int, serial: int) -> Bundle:
    return Bundle(sender, 1, serial, serial, 0, b"".join(OutgoingMessages([b"m"], same_size=True).parts()))


def entry(stamp: int) -> StampedEntry:
    return StampedEntry(stamp, 1 << HERE, bundle_of(1, stamp))


def cast(ts: int, sender: int, serial: int, mask: int = 1 << HERE) -> Cast:
    return Cast(ts, mask, bundle_of(sender, serial))


def delivered_stamps(queue: BarrierQueue, own_last_stamp: int = 100) -> list[int]:
    return [delivered.stamp for _, delivered in queue.pop_deliverable(own_last_stamp)]


def test_a_message_pending_here_and_in_a_restored_snapshot_is_delivered_once() -> None:
    other, queue = BarrierQueue(HERE, (THERE,)), BarrierQueue(HERE, (THERE,))
    for each in (other, queue):
        each.receive(THERE, 1, (entry(5), entry(6)))
    queue.receive(THERE, 3, (entry(9),))
    state = GroupState()
    other.save(state)
    assert not queue.restore(state)
    assert delivered_stamps(queue) == [5, 6, 9]
    assert delivered_stamps(queue) == []


def test_restoring_a_snapshot_ahead_of_the_deliveries_skips_and_reports_it() -> None:
    other, queue = BarrierQueue(HERE, (THERE,)), BarrierQueue(HERE, (THERE,))
    other.receive(THERE, 1, (entry(5), entry(6)))
    queue.receive(THERE, 1, (entry(5),))
    assert delivered_stamps(other, own_last_stamp=5) == [5]
    state = GroupState()
    other.save(state)
    assert queue.restore(state)
    assert delivered_stamps(queue) == [6]


def test_equal_stamps_are_delivered_by_group_number_and_none_is_lost() -> None:
    queue = BarrierQueue(HERE, (THERE,))
    queue.add_own(entry(5))
    queue.promise(THERE, 0, 5)
    assert delivered_stamps(queue) == [5]
    queue.receive(THERE, 1, (entry(5),))
    assert delivered_stamps(queue) == [5]


def test_a_group_that_stops_sending_blocks_up_to_its_last_entry() -> None:
    queue = BarrierQueue(HERE, (THERE,))
    queue.add_own(entry(50))
    queue.update_sources({THERE: IncomingLink(1, open=False, head=2)})
    queue.receive(THERE, 1, (entry(5),))
    assert delivered_stamps(queue) == [5]
    assert queue.blockers() == [THERE]
    queue.receive(THERE, 2, (entry(6),))
    assert delivered_stamps(queue) == [6, 50]
    assert queue.blockers() == []


def test_a_stream_drops_only_entries_that_all_receivers_have() -> None:
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


def test_the_messages_of_a_sender_count_once_and_in_order() -> None:
    log = GroupLog(HERE, (HERE,))
    assert log.apply(encode_value([cast(10, 1, 1)])) == [], "the first message of this sender is missing"
    entries = log.apply(encode_value([cast(10, 1, 1), cast(9, 1, 0), cast(11, 2, 0)]))
    assert [found.stamp for found in entries] == [stamp_of(9, 1), stamp_of(10, 1), stamp_of(11, 2)]
    assert log.apply(encode_value([cast(9, 1, 0)])) == []


def test_the_first_null_of_each_number_counts() -> None:
    log = GroupLog(HERE, (HERE,))
    for number, ts in ((0, 10), (0, 20), (2, 30)):
        log.apply(encode_value([Null(number, stamp_of(ts, 0))]))
    assert (log.null_count, log.last_stamp) == (1, stamp_of(10, 0))


def test_a_new_leader_proposes_undecided_messages_again() -> None:
    proposals = PendingProposals()
    for serial in range(3):
        assert proposals.add(cast(10 + serial, 1, serial), 0)
    assert [item.ts for item in proposals.pop_until(100, 10_000)[0]] == [10, 11, 12]
    proposals.discard_decided(1, 1, 1)
    assert proposals.pop_until(100, 10_000)[0] == []
    proposals.propose_again_from(1, 1)
    assert [item.ts for item in proposals.pop_until(100, 10_000)[0]] == [11, 12]


def test_early_deliveries_follow_timestamps_and_precede_the_final_ones() -> None:
    early = OptimisticDelivery(WaitWindow(50, 0), Timing(1000, 0, 1000))
    first, late, final = bundle_of(1, 0), bundle_of(2, 0), bundle_of(3, 0)
    early.add(100, stamp_of(100, 1), first)
    assert len(early.pop_due(151)) == 1
    early.add(140, stamp_of(99, 2), late)
    assert early.late_bundles == 1, "a message with a larger timestamp was delivered early before"
    early.add(160, stamp_of(155, 3), final)
    early.mark_final(final)
    assert early.pop_due(300) == []
