"""Counting copies: a process that knows of ρ+2 broadcasts of a message makes none itself."""

import pytest

from unisono.model.policy import Adaptive, Redundancy
from unisono.net.rmcast.message import DONE, NO_COPY, WAITING, RmcastMessage, RmcastRules

ETA, RHO = 10_000, 2


def message(adaptive: Adaptive = "counting", member: int = 5) -> RmcastMessage:
    return RmcastMessage(RmcastRules(member, 9, Redundancy.of_ns(RHO, ETA, 0, adaptive), lambda _: 100), 0)


def test_rho_plus_2_broadcasts_by_any_processes_are_enough() -> None:
    m = message()
    assert m.on_copy(0, 0, 0)
    assert not m.on_copy(1, 0, 7)
    assert not m.on_copy(2, 0, 8)
    assert m.phase == WAITING
    assert not m.on_copy(3, 0, 6)
    assert m.phase == DONE


def test_without_counting_they_are_not_enough() -> None:
    m = message("heuristic")
    for now, broadcaster in enumerate((0, 7, 8, 6)):
        m.on_copy(now, 0, broadcaster)
    assert m.phase == WAITING


def test_the_same_copy_twice_counts_once() -> None:
    m = message()
    m.on_copy(0, 0, 0)
    for now in range(1, 9):
        m.on_copy(now, 0, 7)
    assert m.phase == WAITING


def test_an_overtaken_copy_does_not_lower_the_count() -> None:
    m = message()
    m.on_copy(0, 1, 7)
    m.on_copy(1, 0, 7)
    m.on_copy(2, 0, 8)
    m.on_copy(3, 0, 6)
    assert m.phase == WAITING
    m.on_copy(4, 0, 4)
    assert m.phase == DONE


def test_earlier_copies_of_the_originator_count_even_if_lost() -> None:
    m = message()
    assert m.on_copy(0, 1, 0)  # so copy 0 was broadcast too
    m.on_copy(1, 0, 7)
    assert m.phase == WAITING
    m.on_copy(2, 0, 8)
    assert m.phase == DONE


def test_earlier_copies_of_a_process_that_took_over_do_not_count() -> None:
    m = message()
    assert m.on_copy(0, 1, 7)  # process 7 may have started with copy 1
    m.on_copy(1, 0, 8)
    m.on_copy(2, 0, 6)
    assert m.phase == WAITING
    m.on_copy(3, 0, 4)
    assert m.phase == DONE


def test_copies_below_the_largest_count_too() -> None:
    m = message()
    m.on_copy(0, 1, 0)
    m.on_copy(1, 0, 7)
    m.on_copy(2, 0, 8)
    assert m.phase == DONE


def test_own_broadcasts_count() -> None:
    m = message()
    m.on_copy(0, 0, 0)
    m.on_copy(1, 0, 7)
    assert m.wake(m.deadline) == NO_COPY  # ζ starts
    assert m.wake(m.deadline) == 0
    assert m.phase != DONE
    m.on_copy(m.deadline - 1, 0, 8)
    assert m.phase == DONE


def test_an_originator_makes_all_its_broadcasts() -> None:
    m = message(member=0)
    sent = [m.originate(0)]
    for broadcaster in (3, 4, 5, 6):
        m.on_copy(1, 0, broadcaster)
    while m.phase != DONE:
        sent.append(m.wake(m.deadline))
    assert sent == [0, 1, 2]


def test_a_first_copy_that_is_enough_is_still_delivered() -> None:
    m = RmcastMessage(RmcastRules(5, 9, Redundancy.of_ns(0, ETA, 0, "counting"), lambda _: 100), 0)
    assert m.on_copy(0, 0, 0)
    assert m.phase == DONE


@pytest.mark.parametrize("adaptive", ["heuristic", "counting"])
def test_counting_uses_the_omega_of_the_heuristic(adaptive: Adaptive) -> None:
    m = message(adaptive)
    m.on_copy(0, 1, 0)
    assert m.deadline == ETA + ETA
