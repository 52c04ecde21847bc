"""Injected losses: bounds hold for several faults together; members inject the faults of a scenario."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.model.faults import Duplication, Fault, Loss, LossModel, Partition, Pause, Span, fault_to_row, max_lost
from unisono.model.units import group_key
from unisono.runtime.fault_injection import FaultInjection
from unisono.wire.frame import Frame, Kind, encode

KEY = group_key("table")


def losses_of(faults: Sequence[Loss], count: int = 400, seed: int = 1, step_ns: int = 1) -> list[bool]:
    model = LossModel(faults, Random(seed))
    return [model.is_lost(1, 2, number * step_ns) for number in range(count)]


def most_lost(lost: list[bool], of: int) -> int:
    return max(sum(lost[at : at + of]) for at in range(len(lost)))


def test_the_given_share_is_lost() -> None:
    assert sum(losses_of([Loss(Span(), 0.2)], 5000)) / 5000 == pytest.approx(0.2, abs=0.02)


@given(
    st.lists(st.tuples(st.floats(0.05, 1), st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=3),
    st.integers(0, 2**32),
)
def test_bounds_hold_for_overlapping_faults(parts: list[tuple[float, int, int]], seed: int) -> None:
    """Every loss is within the bound of at least one active fault, counted over all losses of the link."""
    faults = [Loss(Span(100 * n, 100 * n + 150), share, min(most, of), of) for n, (share, most, of) in enumerate(parts)]
    lost = losses_of(faults, 500, seed)
    for number, is_lost in enumerate(lost):
        if is_lost:
            within_bound = [
                sum(lost[max(0, number - fault.of + 1) : number + 1]) <= fault.at_most
                for fault in faults
                if fault.span.contains(number) and fault.of is not None and fault.at_most is not None
            ]
            assert any(within_bound)


def test_the_bound_holds_where_one_fault_follows_another() -> None:
    """With separate histories, two losses before the change and two after it would be adjacent."""
    for seed in range(50):
        lost = losses_of([Loss(Span(0, 50), 0.9, 2, 3), Loss(Span(50), 0.9, 2, 3)], 100, seed)
        assert most_lost(lost, 3) == 2


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
def test_max_lost_is_the_largest_number_of_losses(loss: Loss, consecutive: int, most: int) -> None:
    assert max_lost(loss, consecutive) == most
    if loss.probability:
        harsh = Loss(Span(), 1.0, loss.at_most, loss.of)
        assert most_lost(losses_of([harsh]), consecutive) == most


def test_a_fault_is_stored_as_plain_values() -> None:
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
    """A member's fault injection with a settable time, and the datagrams that pass it."""

    def __init__(self, *faults: Fault, member: int = 9, seed: int = 1) -> None:
        self.now = 1_000
        self.injection = FaultInjection(member, faults, seed=seed, time_ns=lambda: self.now)
        self.got: list[bytes] = []
        self._inject = self.injection.wrap(self._receive)

    def _receive(self, data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
        self.got.append(data[start:end])

    def arrive(self, sender: int, count: int = 1) -> int:
        """The number of these datagrams that pass."""
        before = len(self.got)
        for number in range(count):
            datagram = encode(Frame(Kind.DATA, sender, 1, 0, 1, number % 60_000), KEY)
            self._inject(b"in front" + datagram + b"behind", 8, 8 + len(datagram), len(datagram), False)
            assert self.got[before:] == [] or self.got[-1][:2] == datagram[:2]
        return len(self.got) - before


def test_datagrams_of_one_read_are_lost_individually() -> None:
    receiver = Receiver(Loss(Span(0), 0.5))
    datagrams = [encode(Frame(Kind.DATA, 1, 1, 0, 1, number), KEY) for number in range(64)]
    read, size = b"".join(datagrams) + b"short", len(datagrams[0])
    receiver._inject(read, 0, len(read), size, False)
    assert receiver.injection.datagrams == 64, "a datagram too short for a header is not counted"
    assert receiver.injection.lost == 64 + 1 - len(receiver.got)
    assert 10 < receiver.injection.lost < 54
    assert [datagram for datagram in (*datagrams, b"short") if datagram in receiver.got] == receiver.got


def test_the_receive_function_is_not_wrapped_without_network_faults() -> None:
    def receive(data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
        raise NotImplementedError

    assert FaultInjection(1, [Pause(1, 0, 5)]).wrap(receive) is receive


def test_losses_are_counted_and_equal_for_equal_seeds() -> None:
    first, again, other = (Receiver(Loss(Span(), 0.3), seed=seed) for seed in (1, 1, 2))
    for receiver in (first, again, other):
        receiver.arrive(1, 1000)
    assert first.got == again.got != other.got
    assert (first.injection.datagrams, first.injection.lost) == (1000, 1000 - len(first.got))
    assert first.injection.lost == pytest.approx(300, abs=50)


def test_time_counts_from_the_start_of_the_run_and_is_zero_before() -> None:
    receiver = Receiver(Loss(Span(0, 100), 1.0), Loss(Span(200), 1.0))
    receiver.now += 150
    assert receiver.arrive(1) == 0  # the run has not started: the time is 0
    receiver.injection.start_run()
    assert receiver.arrive(1) == 0
    receiver.now += 100
    assert receiver.arrive(1) == 1
    receiver.now += 100
    assert receiver.arrive(1) == 0
    receiver.injection.start_run(receiver.now - 150)
    assert receiver.arrive(1) == 1


def test_own_and_malformed_datagrams_are_never_lost() -> None:
    receiver = Receiver(Loss(Span(), 1.0))
    assert receiver.arrive(9) == 1
    receiver._inject(b"noise", 0, 5, 5, False)
    assert receiver.got[-1] == b"noise"
    assert receiver.injection.datagrams == 0


def test_only_the_given_links_lose_datagrams() -> None:
    receiver = Receiver(Loss(Span(), 1.0, senders=(1,)), Loss(Span(), 1.0, receivers=(8,)))
    assert [receiver.arrive(sender) for sender in (1, 2)] == [0, 1]


def test_a_partition_begins_and_heals() -> None:
    receiver = Receiver(Partition(Span(0, 100), ((1, 2), (3,))))
    receiver.injection.start_run()
    assert [receiver.arrive(sender) for sender in (1, 3, 4)] == [0, 0, 1]
    receiver.now += 100
    assert [receiver.arrive(sender) for sender in (1, 3, 4)] == [1, 1, 1]


def test_duplicates_arrive() -> None:
    assert Receiver(Duplication(Span(), 1.0)).arrive(1, 3) == 6
