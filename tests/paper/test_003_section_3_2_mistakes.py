"""Paper 003 §3.2, sentence by sentence: a replica recovers from mistakes of the optimistic delivery."""

from __future__ import annotations

from unisono.replica import Log, Replica

A, B, C = ((1, 1, 0), b"a"), ((2, 1, 0), b"b"), ((3, 1, 0), b"c")


def optimistic(replica: Replica) -> list[bytes]:
    return Log.entries(replica.optimistic(Log.KEY))


def conservative(replica: Replica) -> list[bytes]:
    return Log.entries(replica.conservative(Log.KEY))


def replica_with_early(*commands: tuple[tuple[int, int, int], bytes]) -> Replica:
    replica = Replica(Log())
    for name, command in commands:
        replica.deliver_early(name, command)
    return replica


def test_an_early_delivery_updates_the_optimistic_state() -> None:
    replica = replica_with_early(A, B)
    assert (optimistic(replica), conservative(replica), replica.pending) == ([b"a", b"b"], [], 2)


def test_a_final_delivery_of_the_first_queued_command_only_removes_it() -> None:
    replica = replica_with_early(A, B)
    replica.deliver_final(*A)
    assert (optimistic(replica), conservative(replica), replica.pending) == ([b"a", b"b"], [b"a"], 1)
    assert replica.mistakes.rollbacks == 0


def test_a_final_delivery_out_of_order_executes_the_queued_commands_again() -> None:
    replica = replica_with_early(A, B, C)
    replica.deliver_final(*B)
    assert replica.mistakes.out_of_order == 1
    assert (optimistic(replica), conservative(replica)) == ([b"b", b"a", b"c"], [b"b"])
    assert (replica.mistakes.rollbacks, replica.mistakes.reexecuted) == (1, 2)


def test_a_final_delivery_that_was_never_early_rolls_back() -> None:
    replica = replica_with_early(B, C)
    replica.deliver_final(*A)
    assert replica.mistakes.lost == 1
    assert (optimistic(replica), conservative(replica)) == ([b"a", b"b", b"c"], [b"a"])


def test_an_early_delivery_after_the_final_one_is_discarded() -> None:
    """Footnote 8."""
    replica = replica_with_early(B)
    replica.deliver_final(*A)
    replica.deliver_early(*A)
    assert replica.mistakes.late == 1
    assert (optimistic(replica), replica.pending) == ([b"a", b"b"], 1)
    replica.deliver_final(*B)
    assert conservative(replica) == optimistic(replica) == [b"a", b"b"]


def test_a_retracted_command_is_not_executed_again() -> None:
    """Erratum 003-17: the replica learns of commands that will never be final."""
    replica = replica_with_early(A, B)
    replica.retract([A[0]])
    replica.deliver_final(*C)
    assert (optimistic(replica), conservative(replica)) == ([b"c", b"b"], [b"c"])
