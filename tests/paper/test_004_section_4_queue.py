"""Paper 004 §4: Figures 1 to 3, equations (2) to (6), cases A and B, and the three steps of an insertion."""

import pytest

from unisono.model.message_set import MessageRef, MessageSet
from unisono.orders.priority.consumable_queue import (
    TAIL,
    ConsumableQueue,
    InsertionPointMissing,
    PriorityMessage,
    urgency,
)
from unisono.orders.priority.insertion import DecisionMode, Insertion
from unisono.orders.priority.messages import Ack

LOW, MEDIUM, HIGH = 0, 1, 2
NOTHING_CONSUMED: frozenset[MessageRef] = frozenset()


def message(name: int, priority: int, *, stamp: int | None = None, previous: int | None = None) -> PriorityMessage:
    """A message with its own sender, so that only priorities decide."""
    ref = MessageRef(name, 1, 0)
    return PriorityMessage(
        ref, priority, name if stamp is None else stamp, ref.sequence if previous is None else previous, b""
    )


def queue_of(*messages: PriorityMessage) -> ConsumableQueue:
    """A queue that holds these messages in this order, unlocked."""
    queue = ConsumableQueue()
    for one in messages:
        queue.insert(one, TAIL, frozenset(other.ref for other in messages))
    assert names(queue) == [one.ref.sender for one in messages]
    return queue


def names(queue: ConsumableQueue) -> list[int]:
    return [item.ref.sender for item in queue]


def locks(queue: ConsumableQueue) -> list[list[int]]:
    """The lock set of each message, and of the tail at the end."""
    found = [sorted(ref.sender for ref in item.locks) for item in queue]
    return [*found, sorted(ref.sender for ref in queue.tail_locks)]


# -- Figure 1 ----------------------------------------------------------------------------------------------------


def test_figure_1_consume_returns_the_first_message_unless_it_is_locked_or_missing() -> None:
    queue = queue_of(message(1, LOW), message(2, LOW))
    first = queue.consume()
    assert first is not None
    assert first.ref.sender == 1
    queue.lock(message(3, HIGH))
    assert queue.consume() is None, "the first message is locked"
    assert ConsumableQueue().consume() is None


def test_figure_1_a_message_behind_a_locked_one_is_not_consumed() -> None:
    queue = queue_of(message(1, LOW), message(2, LOW))
    queue.lock(message(3, MEDIUM))
    queue.insert(message(4, HIGH), TAIL, {MessageRef(1, 1, 0), MessageRef(2, 1, 0)})
    queue.tail_locks.clear()
    assert names(queue) == [1, 2, 4]
    assert queue.consume() is not None, "step 3 has dropped the lesser locks before message 4"
    queue.lock(message(5, HIGH + 1))
    assert queue.consume() is None


# -- equations (2) and (3) -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queued", "priority", "tail"),
    [
        ([], HIGH, []),
        ([LOW, LOW], HIGH, [1, 2]),
        ([HIGH, LOW, LOW], HIGH, [2, 3]),
        ([LOW, HIGH, LOW], HIGH, [3]),
        ([LOW, HIGH], HIGH, []),
        ([HIGH, MEDIUM, LOW], MEDIUM, [3]),
        ([HIGH, MEDIUM, LOW], LOW, []),
    ],
)
def test_equation_2_the_target_tail_ends_at_the_first_message_that_is_not_less_urgent(
    queued: list[int], priority: int, tail: list[int]
) -> None:
    queue = queue_of(*(message(name, level) for name, level in enumerate(queued, 1)))
    found = queue.target_tail(urgency(message(9, priority)))
    assert [item.ref.sender for item in found] == tail


def test_equation_3_exactly_the_target_tail_is_locked() -> None:
    queue = queue_of(message(1, HIGH), message(2, LOW), message(3, LOW))
    assert [ref.sender for ref in queue.lock(message(4, HIGH))] == [2, 3]
    assert locks(queue) == [[], [4], [4], [4]]
    assert queue.locked_by(MessageRef(4, 1, 0)) == [MessageRef(2, 1, 0), MessageRef(3, 1, 0)]


def test_erratum_004_8_the_tail_itself_can_be_locked() -> None:
    queue = ConsumableQueue()
    assert queue.lock(message(1, HIGH)) == []
    assert locks(queue) == [[1]]
    queue.insert(message(2, LOW), TAIL, NOTHING_CONSUMED)
    assert locks(queue) == [[1], [1]], "a message inserted before TAIL inherits its locks"
    assert queue.consume() is None


# -- equations (4) and (5) -----------------------------------------------------------------------------------------


def acks_of(ref: MessageRef, *contents: tuple[list[int], list[int]]) -> dict[tuple[int, int], Ack]:
    """One acknowledgment per member, with its target tail and its history."""

    def refs(senders: list[int]) -> MessageSet:
        return MessageSet.of(MessageRef(sender, 1, 0) for sender in senders)

    return {(member, 1): Ack(ref, refs(tail), refs(history)) for member, (tail, history) in enumerate(contents, 1)}


def test_equation_4_the_common_set_is_the_intersection_of_the_target_tails() -> None:
    core = Insertion(1, 1, DecisionMode.ALL, report_every=100)
    ref = MessageRef(9, 1, 0)
    decision = core.decide(ref, acks_of(ref, ([1, 2, 3], []), ([2, 3, 4], [1]), ([2, 3, 5], [1])))
    assert [one.sender for one in decision.common] == [2, 3]


def test_equation_5_the_history_set_is_the_union_of_the_histories() -> None:
    core = Insertion(1, 1, DecisionMode.ALL, report_every=100)
    ref = MessageRef(9, 1, 0)
    decision = core.decide(ref, acks_of(ref, ([], [1]), ([], [1, 2]), ([], [5])))
    assert [one.sender for one in decision.history] == [1, 2, 5]


def test_the_insertion_point_is_the_first_of_the_common_set_in_the_queue_or_the_tail() -> None:
    queue = queue_of(message(1, LOW), message(2, LOW), message(3, LOW))
    itself = MessageRef(9, 1, 0)
    common = MessageSet.of([MessageRef(3, 1, 0), MessageRef(2, 1, 0)])
    assert queue.insertion_point(common, itself) == MessageRef(2, 1, 0)
    assert queue.insertion_point(MessageSet.of([]), itself) == TAIL


def test_the_insertion_point_is_behind_the_senders_previous_message() -> None:
    queue = queue_of(message(1, LOW), message(2, MEDIUM), message(3, LOW))
    assert queue.insertion_point(
        MessageSet.of([MessageRef(1, 1, 0), MessageRef(3, 1, 0)]), MessageRef(2, 1, 0)
    ) == MessageRef(3, 1, 0)


# -- Figure 2 ------------------------------------------------------------------------------------------------------


def test_figure_2_the_urgent_message_goes_before_the_messages_that_no_process_has_consumed() -> None:
    m, n, o = (message(name, LOW) for name in (1, 2, 3))
    queues = [queue_of(m, n, o) for _ in range(3)]
    assert queues[0].consume() == m, "process 1 is faster"
    h = message(9, HIGH)
    tails = [MessageSet.of(queue.lock(h)) for queue in queues]
    assert [list(tail) for tail in tails] == [[n.ref, o.ref], [m.ref, n.ref, o.ref], [m.ref, n.ref, o.ref]]
    assert all(queue.consume() is None for queue in queues)
    common = tails[0] & tails[1] & tails[2]
    for queue in queues:
        point = queue.insertion_point(common, h.ref)
        assert point == n.ref
        assert queue.insert(h, point, frozenset({m.ref})) == n.ref
    assert [names(queue) for queue in queues] == [[9, 2, 3], [1, 9, 2, 3], [1, 9, 2, 3]]
    assert [locks(queue) for queue in queues] == [[[]] * 4, [[]] * 5, [[]] * 5]
    assert queues[0].consume() == h


# -- Figure 3, cases A and B, equation (6) -----------------------------------------------------------------------


def figure_3() -> tuple[PriorityMessage, PriorityMessage, PriorityMessage, ConsumableQueue, ConsumableQueue]:
    """3.i: both queues hold l, which both m and h have locked."""
    low, m, h = message(1, LOW), message(2, MEDIUM), message(3, HIGH)
    first, second = queue_of(low), queue_of(low)
    for queue in (first, second):
        assert queue.lock(m) == [low.ref]
        assert queue.lock(h) == [low.ref]
        assert locks(queue) == [[2, 3], [2, 3]]
    return low, m, h, first, second


def test_figure_3_iii_case_a_the_lock_set_of_the_insertion_point_is_inherited() -> None:
    low, m, _, first, _ = figure_3()
    first.insert(m, low.ref, NOTHING_CONSUMED)
    assert names(first) == [2, 1]
    assert locks(first) == [[3], [3], [3]], "m is held by h, and no longer holds l"
    assert first.consume() is None


def test_figure_3_ii_locks_of_less_urgent_messages_are_not_inherited() -> None:
    low, _, h, _, second = figure_3()
    second.insert(h, low.ref, NOTHING_CONSUMED)
    assert names(second) == [3, 1]
    assert locks(second) == [[], [2], [2]]
    assert second.consume() == h


def test_figure_3_iv_and_v_case_b_the_locking_interval_puts_both_queues_in_one_order() -> None:
    low, m, h, first, second = figure_3()
    first.insert(m, low.ref, NOTHING_CONSUMED)
    assert first.insert(h, low.ref, NOTHING_CONSUMED) == m.ref, "the locking interval of h at process 1 is [m … l]"
    second.insert(h, low.ref, NOTHING_CONSUMED)
    assert second.insert(m, low.ref, NOTHING_CONSUMED) == low.ref, "the locking interval of m at process 2 is [l]"
    assert names(first) == names(second) == [3, 2, 1]
    assert locks(first) == locks(second) == [[], [], [], []]


def test_equation_6_the_interval_stops_at_a_consumed_message() -> None:
    low, m, h = message(1, LOW), message(2, MEDIUM), message(3, HIGH)
    queue = queue_of(m, low)
    assert queue.insert(h, low.ref, {m.ref}) == low.ref
    assert names(queue) == [2, 3, 1]


def test_equation_6_the_interval_stops_at_a_more_urgent_message() -> None:
    low, m, h = message(1, LOW), message(2, MEDIUM), message(3, HIGH)
    queue = queue_of(h, low)
    assert queue.insert(m, low.ref, NOTHING_CONSUMED) == low.ref
    assert names(queue) == [3, 2, 1]


def test_step_3_a_new_message_is_not_delayed_by_less_urgent_ones() -> None:
    """Erratum 004-7: the step only reduces delay. Without it, process 1 would wait for m before it consumes a."""
    a, m, h = message(1, LOW), message(2, MEDIUM), message(3, HIGH)
    queue = queue_of(a)
    queue.lock(m)
    queue.lock(h)
    queue.insert(h, TAIL, {a.ref})
    assert names(queue) == [1, 3]
    assert locks(queue) == [[], [], [2]]
    assert queue.consume() == a


def test_a_missing_insertion_point_is_an_error() -> None:
    queue = queue_of(message(1, LOW))
    with pytest.raises(InsertionPointMissing, match=r"\(7,0\)"):
        queue.insert(message(2, HIGH), MessageRef(7, 1, 0), NOTHING_CONSUMED)


def test_equal_priorities_are_ordered_by_the_logical_clock_and_then_by_sender() -> None:
    queue = queue_of(message(5, LOW, stamp=7))
    assert queue.insert(message(4, LOW, stamp=8), TAIL, NOTHING_CONSUMED) == TAIL
    assert queue.insert(message(6, LOW, stamp=6), TAIL, NOTHING_CONSUMED) == MessageRef(5, 1, 0)
    assert queue.insert(message(3, LOW, stamp=7), TAIL, NOTHING_CONSUMED) == MessageRef(5, 1, 0)
    assert names(queue) == [6, 3, 5, 4]
