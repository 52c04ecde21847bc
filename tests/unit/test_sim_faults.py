"""Faults of links: each fault alone, and several together."""

from itertools import pairwise
from random import Random

import pytest

from unisono.model.faults import Duplication, Loss, Partition, Reordering, Span
from unisono.sim.faults import LinkFault, link_fault
from unisono.sim.network import SimulatedLink, SimulatedNetwork

DELTA = 1000
START = 10**6


def part(fault: Loss | Duplication | Reordering | Partition) -> LinkFault:
    return link_fault(fault, START, DELTA, Random(1))


def ways(*faults: Loss | Duplication | Reordering | Partition, sends: int = 400) -> list[list[int]]:
    link = SimulatedLink(1, 2, lambda _now: 500)
    network = SimulatedNetwork([link], [part(fault) for fault in faults])
    return [network.arrival_times(link, START + 10 * number) for number in range(sends)]


def test_loss_has_its_probability() -> None:
    arrived = ways(Loss(Span(), 0.25))
    assert sum(not times for times in arrived) / len(arrived) == pytest.approx(0.25, abs=0.06)


@pytest.mark.parametrize("burst", [0, 1, 2])
def test_bounded_loss_reaches_its_bound_and_never_exceeds_it(burst: int) -> None:
    lost = [not times for times in ways(Loss(Span(), 0.7, burst, burst + 1))]
    runs, run = [], 0
    for gone in lost:
        run = run + 1 if gone else 0
        runs.append(run)
    assert max(runs) == burst


def test_loss_bounded_in_a_window_keeps_the_bound_in_every_window() -> None:
    lost = [not times for times in ways(Loss(Span(), 0.9, 2, 7))]
    assert max(sum(lost[at : at + 7]) for at in range(len(lost))) == 2


def test_loss_can_be_limited_to_some_links() -> None:
    assert all(ways(Loss(Span(), 1.0, receivers=(3,))))
    assert not any(ways(Loss(Span(), 1.0, senders=(1,), receivers=(2,))))


def test_faults_keep_to_their_span() -> None:
    arrived = ways(Loss(Span(100, 200), 1.0), sends=30)
    assert [number for number, times in enumerate(arrived) if not times] == list(range(10, 20))


def test_duplicates_arrive_too() -> None:
    assert all(len(times) == 2 for times in ways(Duplication(Span(), 1.0)))


def test_reordering_lets_datagrams_overtake_within_delta() -> None:
    arrived = [times[0] for times in ways(Reordering(Span(), 0.5))]
    assert any(a > b for a, b in pairwise(arrived))
    assert all(0 <= at - (START + 10 * number) <= DELTA for number, at in enumerate(arrived))


def test_a_partition_cuts_between_groups_and_not_within() -> None:
    fault = part(Partition(Span(0, 100), ((1, 2), (3,))))
    flight = [(5, False)]

    def passes(sender: int, receiver: int, now: int) -> bool:
        return bool(fault.apply(SimulatedLink(sender, receiver, lambda _now: 0), now, flight))

    assert passes(1, 2, START)
    assert passes(4, 5, START)
    assert not passes(1, 3, START)
    assert not passes(3, 1, START)
    assert not passes(4, 1, START)
    assert passes(1, 3, START + 100)
    assert fault.hits == 3


def test_faults_apply_in_their_order() -> None:
    # A duplicate made before the loss is lost with its original; each fault counts the datagrams it affects.
    assert not any(ways(Duplication(Span(), 1.0), Loss(Span(), 1.0)))
    both = ways(Duplication(Span(), 1.0), Reordering(Span(), 1.0))
    assert all(len(times) == 2 for times in both)
