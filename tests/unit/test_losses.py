"""Loss on purpose: bounds hold, together and where one loss follows another; members inject what a scenario says."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.model.faults import Duplication, Fault, Loss, Partition, Pause, Span, fault_to_row
from unisono.model.ids import group_key
from unisono.model.losses import LossModel, max_lost
from unisono.runtime.fault_injection import FaultInjection
from unisono.wire.frame import Frame, Kind, encode

KEY = group_key("table")


def fates(faults: Sequence[Loss], count: int = 400, seed: int = 1, step_ns: int = 1) -> list[bool]:
    losses = LossModel(faults, Random(seed))
    return [losses.is_lost(1, 2, number * step_ns) for number in range(count)]


def worst(lost: list[bool], of: int) -> int:
    return max(sum(lost[at : at + of]) for at in range(len(lost)))


def test_a_share_is_lost() -> None:
    assert sum(fates([Loss(Span(), 0.2)], 5000)) / 5000 == pytest.approx(0.2, abs=0.02)


@given(
    st.lists(st.tuples(st.floats(0.05, 1), st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=3),
    st.integers(0, 2**32),
)
def test_bounds_hold_together(parts: list[tuple[float, int, int]], seed: int) -> None:
    """Whatever the losses and wherever they follow one another: one that is open keeps to its bound on the link."""
    faults = [Loss(Span(100 * n, 100 * n + 150), share, min(most, of), of) for n, (share, most, of) in enumerate(parts)]
    lost = fates(faults, 500, seed)
    for number, gone in enumerate(lost):
        if gone:
            keeps = [
                sum(lost[max(0, number - fault.of + 1) : number + 1]) <= fault.at_most
                for fault in faults
                if fault.span.contains(number) and fault.of is not None and fault.at_most is not None
            ]
            assert any(keeps)


def test_a_loss_that_grows_worse_keeps_its_bound_across_the_change() -> None:
    """Each alone would start afresh, and two runs of two would meet."""
    for seed in range(50):
        lost = fates([Loss(Span(0, 50), 0.9, 2, 3), Loss(Span(50), 0.9, 2, 3)], 100, seed)
        assert worst(lost, 3) == 2


def test_links_do_not_share_a_bound() -> None:
    losses = LossModel([Loss(Span(), 1.0, 1, 2)], Random(1))
    assert [losses.is_lost(sender, 9, 0) for sender in (1, 2, 1, 2)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("loss", "consecutive", "most"),
    [
        (Loss(Span(), 0.5), 5, 5),
        (Loss(Span(), 0.0), 5, 0),
        (Loss(Span(), 0.5, 1, 5), 5, 1),
        (Loss(Span(), 0.5, 1, 5), 6, 2),
        (Loss(Span(), 0.5, 2, 3), 5, 4),
        (Loss(Span(), 0.5, 2, 3), 1, 1),
    ],
)
def test_the_most_that_is_lost_of_so_many(loss: Loss, consecutive: int, most: int) -> None:
    assert max_lost(loss, consecutive) == most
    if loss.probability:
        harsh = Loss(Span(), 1.0, loss.at_most, loss.of)
        assert worst(fates([harsh]), consecutive) == most


def test_a_fault_is_written_down_as_plain_values() -> None:
    assert fault_to_row(Loss(Span(5, None), 0.2, 1, 5, receivers=(3,))) == {
        "kind": "loss",
        "from_ns": 5,
        "to_ns": None,
        "probability": 0.2,
        "at_most": 1,
        "of": 5,
        "senders": [],
        "receivers": [3],
    }
    assert fault_to_row(Partition(Span(), ((1, 2), (3,))))["groups"] == [[1, 2], [3]]


# -- at a member ---------------------------------------------------------------------------------------------------


class Receiver:
    """A member's injection, with a time that is set, and what gets through it."""

    def __init__(self, *faults: Fault, member: int = 9, seed: int = 1) -> None:
        self.now = 1_000
        self.injection = FaultInjection(member, faults, seed=seed, time_ns=lambda: self.now)
        self.got: list[bytes] = []
        self._take = self.injection.wrap(self._receive)

    def _receive(self, data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
        self.got.append(data[start:end])

    def arrive(self, sender: int, count: int = 1) -> int:
        """How many of these came through."""
        before = len(self.got)
        for number in range(count):
            datagram = encode(Frame(Kind.DATA, sender, 1, 0, 1, number % 60_000), KEY)
            self._take(b"in front" + datagram + b"behind", 8, 8 + len(datagram), len(datagram), False)
            assert self.got[before:] == [] or self.got[-1][:2] == datagram[:2]
        return len(self.got) - before


def test_what_one_read_brought_is_lost_one_by_one() -> None:
    receiver = Receiver(Loss(Span(0), 0.5))
    datagrams = [encode(Frame(Kind.DATA, 1, 1, 0, 1, number), KEY) for number in range(64)]
    read, size = b"".join(datagrams) + b"short", len(datagrams[0])
    receiver._take(read, 0, len(read), size, False)
    assert receiver.injection.datagrams == 64, "what is too short to have a sender is none of its business"
    assert receiver.injection.lost == 64 + 1 - len(receiver.got)
    assert 10 < receiver.injection.lost < 54
    assert [one for one in (*datagrams, b"short") if one in receiver.got] == receiver.got


def test_nothing_stands_in_the_way_where_nothing_is_injected() -> None:
    def receive(data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
        raise NotImplementedError

    assert FaultInjection(1, [Pause(1, 0, 5)]).wrap(receive) is receive


def test_loss_is_counted_and_the_same_for_the_same_seed() -> None:
    first, again, other = (Receiver(Loss(Span(), 0.3), seed=seed) for seed in (1, 1, 2))
    for receiver in (first, again, other):
        receiver.arrive(1, 1000)
    assert first.got == again.got != other.got
    assert (first.injection.datagrams, first.injection.lost) == (1000, 1000 - len(first.got))
    assert first.injection.lost == pytest.approx(300, abs=50)


def test_time_counts_from_the_beginning_and_is_zero_before() -> None:
    receiver = Receiver(Loss(Span(0, 100), 1.0), Loss(Span(200), 1.0))
    receiver.now += 150
    assert receiver.arrive(1) == 0  # the run has not begun: its first instant
    receiver.injection.start_run()
    assert receiver.arrive(1) == 0
    receiver.now += 100
    assert receiver.arrive(1) == 1
    receiver.now += 100
    assert receiver.arrive(1) == 0
    receiver.injection.start_run(receiver.now - 150)
    assert receiver.arrive(1) == 1


def test_own_datagrams_and_noise_are_none_of_its_business() -> None:
    receiver = Receiver(Loss(Span(), 1.0))
    assert receiver.arrive(9) == 1
    receiver._take(b"noise", 0, 5, 5, False)
    assert receiver.got[-1] == b"noise"
    assert receiver.injection.datagrams == 0


def test_only_the_links_that_are_named_lose() -> None:
    receiver = Receiver(Loss(Span(), 1.0, senders=(1,)), Loss(Span(), 1.0, receivers=(8,)))
    assert [receiver.arrive(sender) for sender in (1, 2)] == [0, 1]


def test_a_partition_cuts_and_heals() -> None:
    receiver = Receiver(Partition(Span(0, 100), ((1, 2), (3,))))
    receiver.injection.start_run()
    assert [receiver.arrive(sender) for sender in (1, 3, 4)] == [0, 0, 1]
    receiver.now += 100
    assert [receiver.arrive(sender) for sender in (1, 3, 4)] == [1, 1, 1]


def test_copies_arrive() -> None:
    assert Receiver(Duplication(Span(), 1.0)).arrive(1, 3) == 6
