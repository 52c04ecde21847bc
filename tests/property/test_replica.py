"""A replica against its definition, step by step: commands come early, late, twice, out of order or not at all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from unisono.replica.replica import MessageName, Replica
from unisono.replica.state_machine import Key, ObjectView, UndeclaredObject
from unisono.replica.structures import Counter, Dict, Log, Set, pack, unpack


class Mixer:
    """Commands on several objects at once whose result depends on the order of all earlier commands."""

    def touches(self, command: bytes) -> Sequence[Key]:
        return list(command[1:].decode())

    def apply(self, view: ObjectView, command: bytes) -> int:
        total = sum(view[key] or 0 for key in command[1:].decode()) * 31 + command[0]
        for index, key in enumerate(command[1:].decode()):
            view[key] = (total + index) % 1_000_003 or None
        return total

    def dump(self, state: dict[Key, Any]) -> bytes:
        return pack(*(part for key in sorted(state) for part in (str(key).encode(), str(state[key]).encode())))  # type: ignore[type-var]

    def load(self, data: bytes) -> dict[Key, Any]:
        parts = unpack(data)
        return {k.decode(): int(v) for k, v in zip(parts[::2], parts[1::2], strict=True)}


def executed(commands: Sequence[bytes]) -> dict[Key, Any]:
    replica = Replica(Mixer(), two_grades=False)
    for number, command in enumerate(commands):
        replica.deliver_final((1, 0, number), command)
    return {key: replica.conservative(key) for key in replica.objects()}


@pytest.mark.parametrize("seed", range(150))
def test_the_optimistic_state_is_all_final_commands_and_then_the_early_ones(seed: int) -> None:
    chance = random.Random(seed)
    machine, objects = Mixer(), "abcdef"[: chance.randint(1, 6)]
    sent: list[tuple[MessageName, bytes]] = []
    for number in range(chance.randint(5, 40)):
        touched = "".join(chance.sample(objects, chance.randint(1, min(3, len(objects)))))
        sent.append(((chance.randint(1, 3), 0, number), bytes([chance.randrange(256)]) + touched.encode()))
    # The early order has jitter, losses and repetitions; the final order is the order of sending.
    early = sorted((entry for entry in sent * 2 if chance.random() < 0.6), key=lambda e: e[0][2] + chance.uniform(0, 4))
    never_final = {name for name, _ in sent if chance.random() < 0.1}
    steps = sorted(
        [(at + chance.uniform(0, 3), "early", entry) for at, entry in enumerate(early)]
        + [(at + chance.uniform(0, 12), "final", entry) for at, entry in enumerate(sent)],
        key=lambda step: step[0],
    )
    finals = iter([entry for entry in sent if entry[0] not in never_final])
    replica, final, queue = Replica(machine), [], {}  # type: ignore[var-annotated]
    done: set[MessageName] = set()
    last: dict[int, int] = {}
    for _, kind, entry in steps:
        if kind == "early":
            name, command = entry
            replica.deliver_early(name, command)
            if name not in done and last.get(name[0], -1) < name[2]:
                queue.setdefault(name, command)
        elif (following := next(finals, None)) is not None:
            name, command = following
            replica.deliver_final(name, command)
            final.append(command)
            done.add(name)
            last[name[0]] = name[2]
            queue.pop(name, None)
            retracted = [other for other in queue if other in never_final and other[2] <= name[2]]
            replica.retract(retracted)
            for other in retracted:
                del queue[other]
        agreed, expected = executed(final), executed([*final, *queue.values()])
        assert {key: replica.conservative(key) for key in replica.objects()} == agreed
        assert {key: replica.optimistic(key) for key in replica.objects(optimistic=True)} == expected
        assert replica.pending == len(queue)
    for name, command in finals:
        replica.deliver_final(name, command)
    replica.retract(list(queue))
    assert replica.pending == 0
    assert {key: replica.optimistic(key) for key in objects} == {key: replica.conservative(key) for key in objects}
    other = Replica(machine)
    other.restore(replica.snapshot())
    assert other.snapshot() == replica.snapshot()


def test_a_mistake_on_one_object_does_not_affect_the_others() -> None:
    replica = Replica(Dict())
    for number, key in enumerate((b"a", b"b", b"c")):
        replica.deliver_early((1, 0, number), Dict.put(key, b"1"))
    replica.deliver_final((2, 0, 0), Dict.put(b"b", b"2"))
    assert (replica.mistakes.lost, replica.mistakes.rollbacks, replica.mistakes.reexecuted) == (1, 1, 1)
    assert replica.optimistic(b"b") == b"1"
    assert replica.conservative(b"b") == b"2"


def test_a_correct_early_order_needs_no_rollback() -> None:
    replica = Replica(Counter())
    for number in range(100):
        replica.deliver_early((1, 0, number), Counter.add(number))
    assert replica.optimistic(Counter.KEY) == 4950
    for number in range(100):
        replica.deliver_final((1, 0, number), Counter.add(number))
    assert replica.conservative(Counter.KEY) == 4950
    assert replica.mistakes.rollbacks == replica.mistakes.lost == 0


def test_a_command_delivered_early_after_it_was_final_does_not_run_again() -> None:
    replica = Replica(Counter())
    replica.deliver_final((1, 0, 0), Counter.add(5))
    replica.deliver_early((1, 0, 0), Counter.add(5))
    assert replica.optimistic(Counter.KEY) == 5
    assert replica.mistakes.late == 1


def test_a_retracted_command_is_undone() -> None:
    replica = Replica(Set())
    assert replica.deliver_early((1, 0, 0), Set.add(b"x")) is True
    replica.deliver_early((2, 0, 0), Set.add(b"y"))
    replica.retract([(1, 0, 0)])
    assert replica.objects(optimistic=True) == [b"y"]


def test_a_log_takes_the_agreed_order_after_another_early_order() -> None:
    replica = Replica(Log())
    replica.deliver_early((2, 0, 0), b"second")
    replica.deliver_early((1, 0, 0), b"first")
    assert Log.entries(replica.optimistic(Log.KEY)) == [b"second", b"first"]
    assert replica.deliver_final((1, 0, 0), b"first") == 0
    assert Log.entries(replica.optimistic(Log.KEY)) == [b"first", b"second"]
    assert replica.mistakes.out_of_order == 1


def test_compare_and_swap_returns_whether_it_swapped() -> None:
    replica = Replica(Dict(), two_grades=False)
    assert replica.deliver_final((1, 0, 0), Dict.put(b"k", b"1")) is None
    assert replica.deliver_final((1, 0, 1), Dict.swap(b"k", b"1", b"2")) is True
    assert replica.deliver_final((1, 0, 2), Dict.swap(b"k", b"1", b"3")) is False
    assert replica.deliver_final((1, 0, 3), Dict.drop(b"k")) == b"2"
    assert replica.conservative(b"k") is None


def test_a_command_that_uses_an_undeclared_object_is_refused() -> None:
    class Greedy(Counter):
        def touches(self, command: bytes) -> Sequence[Key]:
            return ()

    with pytest.raises(UndeclaredObject, match="'count'"):
        Replica(Greedy()).deliver_final((1, 0, 0), Counter.add(1))


@pytest.mark.parametrize("machine", [Dict(), Set(), Counter(), Log()], ids=lambda machine: type(machine).__name__)
def test_a_snapshot_contains_the_whole_state(machine: Dict | Set | Counter | Log) -> None:
    commands = {
        Dict: [Dict.put(b"b", b""), Dict.put(b"a", b"x" * 70_000)],
        Set: [Set.add(b""), Set.add(b"\0")],
        Counter: [Counter.add(2**62)] * 3,
        Log: [b"one", b"", b"three"],
    }[type(machine)]
    replica, other = Replica(machine), Replica(machine)
    for number, command in enumerate(commands):
        replica.deliver_final((1, 7, number), command)
    other.restore(replica.snapshot())
    assert other.objects() == sorted(replica.objects(), key=repr)
    assert all(other.conservative(key) == replica.conservative(key) for key in other.objects())
    other.deliver_early((1, 7, len(commands) - 1), commands[-1])
    assert other.mistakes.late == 1


@pytest.mark.parametrize("damaged", [b"", b"\0" * 12 + b"\0\0\0\7", b"\0" * 11 + b"\1", pack(b"x")])
def test_a_damaged_snapshot_is_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError, match=r"snapshot|bytes at offset|truncated"):
        Replica(Dict()).restore(damaged)


@pytest.mark.parametrize(
    ("machine", "command"),
    [
        (Dict(), b"garbage"),
        (Dict(), b""),
        (Dict(), pack(b"+", b"key")),
        (Dict(), pack(b"!", b"key", b"value")),
        (Set(), Dict.put(b"key", b"value")),
        (Counter(), b"3"),
    ],
    ids=["not packed", "empty", "too few parts", "unknown action", "of another machine", "not a number"],
)
def test_touches_refuses_bytes_that_are_not_a_command(machine: Dict | Set | Counter, command: bytes) -> None:
    """`apply` can run every command that `touches` accepts."""
    with pytest.raises(ValueError, match="expected a command made by"):
        machine.touches(command)


def test_restore_keeps_only_the_early_commands_that_are_not_in_the_snapshot() -> None:
    """Early commands in the snapshot do not run again; the others do."""
    provider, receiver = Replica(Counter()), Replica(Counter())
    provider.deliver_final((1, 1, 0), Counter.add(5))
    provider.deliver_final((2, 1, 0), Counter.add(3))
    receiver.deliver_early((1, 1, 0), Counter.add(5))
    receiver.restore(provider.snapshot())
    assert (receiver.pending, receiver.optimistic(Counter.KEY), receiver.conservative(Counter.KEY)) == (0, 8, 8)
    receiver.deliver_early((1, 1, 1), Counter.add(1))
    receiver.restore(provider.snapshot())
    assert (receiver.pending, receiver.optimistic(Counter.KEY), receiver.conservative(Counter.KEY)) == (1, 9, 8)


def test_the_overlay_drops_objects_whose_commands_are_all_final() -> None:
    """Otherwise the overlay, and the cost of a rollback, would grow with the state."""
    replica = Replica(Dict())
    for number in range(10):
        replica.deliver_early((1, 1, number), Dict.put(b"%d" % number, b"value"))
    for number in range(10):
        assert len(replica._overlay) == 10 - number
        replica.deliver_final((1, 1, number), Dict.put(b"%d" % number, b"value"))
    assert replica._overlay == {}
