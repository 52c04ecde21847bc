"""Paper 003 §3.2: recovering from mistakes of the optimistic delivery, sentence by sentence."""

from __future__ import annotations

from unisono.replica import Log, Replica

A, B, C = ((1, 1, 0), b"a"), ((2, 1, 0), b"b"), ((3, 1, 0), b"c")


def optimistic(replica: Replica) -> list[bytes]:
    return Log.entries(replica.optimistic(Log.KEY))


def conservative(replica: Replica) -> list[bytes]:
    return Log.entries(replica.conservative(Log.KEY))


def early(*commands: tuple[tuple[int, int, int], bytes]) -> Replica:
    replica = Replica(Log())
    for name, command in commands:
        replica.deliver_early(name, command)
    return replica


def test_whenever_a_command_is_optimistically_delivered_the_optimistic_state_is_updated() -> None:
    replica = early(A, B)
    assert (optimistic(replica), conservative(replica), replica.pending) == ([b"a", b"b"], [], 2)


def test_the_first_command_in_the_queue_is_simply_removed_and_the_execution_continues() -> None:
    replica = early(A, B)
    replica.deliver_final(*A)
    assert (optimistic(replica), conservative(replica), replica.pending) == ([b"a", b"b"], [b"a"], 1)
    assert replica.mistakes.rollbacks == 0


def test_one_delivered_out_of_order_is_removed_and_the_rest_is_executed_again_from_the_conservative_state() -> None:
    replica = early(A, B, C)
    replica.deliver_final(*B)
    assert replica.mistakes.out_of_order == 1
    assert (optimistic(replica), conservative(replica)) == ([b"b", b"a", b"c"], [b"b"])
    assert (replica.mistakes.rollbacks, replica.mistakes.reexecuted) == (1, 2)


def test_one_that_was_lost_rolls_back_too() -> None:
    replica = early(B, C)
    replica.deliver_final(*A)
    assert replica.mistakes.lost == 1
    assert (optimistic(replica), conservative(replica)) == ([b"a", b"b", b"c"], [b"a"])


def test_one_that_comes_early_after_it_was_final_is_only_discarded() -> None:
    """Footnote 8."""
    replica = early(B)
    replica.deliver_final(*A)
    replica.deliver_early(*A)
    assert replica.mistakes.late == 1
    assert (optimistic(replica), replica.pending) == ([b"a", b"b"], 1)
    replica.deliver_final(*B)
    assert conservative(replica) == optimistic(replica) == [b"a", b"b"]


def test_one_that_will_never_be_final_is_not_executed_again() -> None:
    """Erratum 003-17: the optimistic side is told about discards."""
    replica = early(A, B)
    replica.retract([A[0]])
    replica.deliver_final(*C)
    assert (optimistic(replica), conservative(replica)) == ([b"c", b"b"], [b"c"])
