"""The stack: inputs and steps, the layers in their order, no effect returned twice."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from tests.stepping import events, outgoing, wake_at

from unisono.errors import InvalidOption, MessageTooLarge, ReservationRefused
from unisono.model.effects import Datagram
from unisono.model.events import Batch, LeaveComplete, View, ViewChange
from unisono.model.policy import Policy, Redundancy
from unisono.model.timing import Timing
from unisono.model.units import BandwidthReservation, Rate, UnlimitedNetwork, group_key
from unisono.net.clock_check import ClockCheck
from unisono.net.layer import Layer
from unisono.orders.vbr.order import VbrOrder
from unisono.stack import ORDERS, Stack, build
from unisono.wire.door import Refusal
from unisono.wire.frame import Frame, Kind, encode

MS = 1_000_000
T0 = 10**18
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)


def policy(member: int = 1, members: tuple[int, ...] = (1, 2), **changes: Any) -> Policy:
    fields: dict[str, Any] = {"rate": Rate(1000, 8), "max_message": 100}
    fields.update(changes)
    return Policy("g", member, View(members), TIMING, **fields)


def carry(stacks: dict[int, Stack], now: int) -> None:
    """Deliver every datagram at once, until there is none."""
    moved = True
    while moved:
        moved = False
        for sender, stack in stacks.items():
            for datagram in outgoing(stack):
                for member, other in stacks.items():
                    if member != sender and member in datagram.destinations:
                        other.receive(now, datagram.data, multicast=datagram.multicast)
                        moved = True


def formed(members: tuple[int, ...] = (1, 2), **changes: Any) -> tuple[dict[int, Stack], int]:
    stacks = {m: build(policy(m, members, **changes)) for m in members}
    for stack in stacks.values():
        stack.wake(T0)
    carry(stacks, T0)
    assert all(stack.order.running() for stack in stacks.values())
    return stacks, TIMING.smax(T0)


def test_inputs_and_steps_carry_a_message_from_one_member_to_the_other() -> None:
    stacks, first = formed()
    now = TIMING.start_of(first)
    for stack in stacks.values():
        stack.wake(now)
    assert stacks[1].submit(now, [b"hello", b"world"]) == 2
    end = TIMING.end_of(first)
    assert wake_at(stacks[1]) == end
    for stack in stacks.values():
        stack.wake(end)
    carry(stacks, end)
    for stack in stacks.values():
        view, batch = events(stack)
        assert isinstance(view, ViewChange)
        assert isinstance(batch, Batch)
        assert (batch.sender, batch.slot, batch.messages) == (1, first, [b"hello", b"world"])
        assert events(stack) == [], "handed out once"
        assert outgoing(stack) == []
    stacks[2].leave(end)
    for stack in stacks.values():
        stack.wake(end + TIMING.theta_ns)
    carry(stacks, end + TIMING.theta_ns)
    assert events(stacks[2]) == [LeaveComplete(first + 1)]
    (change,) = events(stacks[1])
    assert change == ViewChange(View((1,), first + 2), left=(2,))


def test_an_unknown_order_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(InvalidOption, match="vbr") as caught:
        build(policy(order="chaos"))
    assert caught.value.field == "order"
    assert "chaos" in str(caught.value)
    assert "vbr" in ORDERS


def test_with_a_message_too_large_no_message_of_the_call_is_accepted() -> None:
    stacks, first = formed((1,))
    outgoing(stacks[1])
    now = TIMING.start_of(first)
    with pytest.raises(MessageTooLarge) as caught:
        stacks[1].submit(now, [b"x", bytes(101)])
    assert (caught.value.size, caught.value.limit) == (101, 100)
    assert stacks[1].submit(now, [b"y", bytes(100)]) == 2
    stacks[1].wake(TIMING.end_of(first))
    batch = events(stacks[1])[-1]
    assert isinstance(batch, Batch)
    assert batch.messages == [b"y", bytes(100)]


def test_a_network_without_room_refuses_the_stack() -> None:
    class Full:
        def reserve(self, reservation: BandwidthReservation) -> None:
            raise ReservationRefused(reservation.avg_bytes_per_s, 5, 10)

    with pytest.raises(ReservationRefused, match="5 B/s free"):
        build(policy(), Full())


def test_refused_datagrams_are_counted_and_not_processed() -> None:
    stacks, _ = formed()
    events(stacks[1])
    stacks[1].receive(T0, b"rubbish")
    stacks[1].receive(T0, b"")
    assert stacks[1].door.refused == {Refusal.TRUNCATED: 2}
    assert events(stacks[1]) == []
    assert stacks[1].delays.total == 0


def test_a_datagram_may_lie_anywhere_in_the_buffer() -> None:
    stacks, first = formed()
    now = TIMING.end_of(first)
    stacks[2].wake(now)
    (mark,) = outgoing(stacks[2])
    buffer = b"before" + mark.data + b"behind"
    stacks[1].wake(now)
    stacks[1].receive(now + 3, buffer, 6, 6 + len(mark.data))
    assert not stacks[1].door.refused
    assert (stacks[1].delays.total, stacks[1].delays.largest) == (1, 3)


def test_probes_measure_clocks_below_the_order() -> None:
    stacks, _ = formed(probe_every_ns=1_000 * MS)
    for stack in stacks.values():
        stack.wake(T0 + 1)
    carry(stacks, T0 + 1)
    assert stacks[1].clock_check.gamma_ns() == 0
    due = wake_at(stacks[1])
    assert due is not None
    assert due > T0 + 1


class Tag:
    """A layer that logs passing frames and their times."""

    name: ClassVar[str] = "tag"

    def __init__(self, name: str, log: list[str], kinds: frozenset[Kind] = frozenset(Kind)) -> None:
        self.wraps = self.opens = kinds
        self.down: list[Frame] = []
        self.up: list[Frame] = []
        self._name = name
        self._log = log

    def counters(self) -> dict[str, int]:
        return {}

    def from_above(self, now: int, frame: Frame) -> None:
        self._log.append(f"{self._name} down {frame.number}")
        self.down.append(frame)

    def from_below(self, now: int, frame: Frame) -> None:
        self._log.append(f"{self._name} up {frame.number}")
        self.up.append(frame)

    def wake(self, now: int) -> None:
        self._log.append(f"{self._name} wake")

    def wake_at(self) -> int | None:
        return 5 if self._name == "b" else None


def tagged(names: str, log: list[str]) -> Stack:
    here = policy(members=(1,)) if not names else policy()
    layers: list[Layer] = [Tag(name, log) for name in names]
    return Stack(here, VbrOrder(here, UnlimitedNetwork()), layers, ClockCheck(here))


def test_frames_pass_the_layers_in_order_both_ways() -> None:
    log: list[str] = []
    stack = tagged("abc", log)
    stack.wake(T0)
    assert log == ["a wake", "b wake", "c wake", "a down 0", "b down 0", "c down 0"]
    assert len(outgoing(stack)) == 1
    log.clear()
    for number in (4, 5):
        frame = Frame(Kind.DATA, 2, 1, 0, 7, number, 1)
        stack.receive(T0, encode(frame, group_key("g")))
    assert log == ["c up 4", "b up 4", "a up 4", "c up 5", "b up 5", "a up 5"]
    assert wake_at(stack) == 5, "the earliest of all parts"


def test_frames_of_other_kinds_bypass_a_layer() -> None:
    log: list[str] = []
    layers: list[Layer] = [Tag("a", log, frozenset({Kind.DATA})), Tag("b", log, frozenset({Kind.HELLO})), Tag("c", log)]
    stack = Stack(policy(), VbrOrder(policy(), UnlimitedNetwork()), layers, ClockCheck(policy()))
    stack.wake(T0)
    assert [line for line in log if "down" in line] == ["b down 0", "c down 0"], "the order says HELLO"
    log.clear()
    stack.receive(T0, encode(Frame(Kind.DATA, 2, 1, 0, 7, 4, 1), group_key("g")))
    assert log == ["c up 4", "a up 4"]


def test_a_stack_without_layers_is_the_order_alone() -> None:
    stack = tagged("", [])
    stack.wake(T0)
    outgoing(stack)
    now = TIMING.start_of(TIMING.smax(T0))
    stack.submit(now, [b"x"])
    stack.wake(now + TIMING.theta_ns)
    (datagram,) = outgoing(stack)
    assert isinstance(datagram, Datagram)
    assert datagram.to_group
    assert not datagram.multicast
    stack.receive(now, datagram.data)
    assert stack.door.refused == {Refusal.OWN_DATAGRAM: 1}


@pytest.mark.parametrize("order", ["vbr", "leader", "timestamp", "consensus", "priority", "priority_coordinator"])
def test_an_average_above_one_burst_per_slot_is_refused(order: str) -> None:
    """8 messages per slot of 5 ms are 1,600/s. An average of exactly that is accepted, rounded or not."""
    with pytest.raises(InvalidOption) as refused:
        build(policy(rate=Rate(10_000_000, 8), order=order))
    assert str(refused.value) == (
        "rate.avg: burst = 8 messages per slot of 5ms is 1,600 messages/s, less than avg = 10,000,000 messages/s; "
        "lower avg, raise burst or use shorter slots"
    )
    with pytest.raises(InvalidOption, match=r"rate\.avg"):
        build(policy(rate=Rate(1600.001, 8), order=order))
    build(policy(rate=Rate(1600 * (1 + 1e-12), 8), order=order))


@pytest.mark.parametrize(
    "order", ["vbr", "cbr", "leader", "timestamp", "consensus", "priority", "priority_coordinator"]
)
def test_a_member_alone_waits_for_the_others_and_never_for_itself(order: str) -> None:
    stack = build(policy(2, (1, 2, 3), rate=Rate(50, 1), order=order))
    stack.wake(T0)
    assert stack.waiting_for() == (1, 3)
    assert stack.why_not_formed() == ""


def test_a_member_in_no_view_names_the_members_that_it_hears() -> None:
    one, two = (build(policy(member, (1, 2, 3, 4), order="priority")) for member in (1, 2))
    for stack in (one, two):
        stack.wake(T0)
    for datagram in outgoing(one):
        two.receive(T0 + 1, datagram.data)
    assert two.waiting_for() == (3, 4)
    assert two.why_not_formed() == "this member hears member 1, but no view that includes it is agreed"


def test_cbr_accepts_every_average_because_it_has_no_bursts() -> None:
    build(policy(rate=Rate(10_000, 1), order="cbr"))


@pytest.mark.parametrize("order", ["vbr", "leader", "consensus", "priority"])
def test_a_new_average_above_one_burst_per_slot_is_refused_and_changes_nothing(order: str) -> None:
    stack = build(policy(members=(1,), rate=Rate(1000, 8), order=order))
    stack.wake(T0)
    with pytest.raises(InvalidOption, match=r"rate\.avg: burst = 2 messages per slot of 5ms is 400 messages/s"):
        stack.change_rate(T0, Rate(401, 2))
    stack.change_rate(T0, Rate(400, 2))


def test_a_rate_for_other_slots_must_fit_those_slots() -> None:
    stacks, first = formed((1,))
    now = TIMING.start_of(first)
    with pytest.raises(InvalidOption, match=r"rate\.avg: burst = 8 messages per slot of 10ms is 800 messages/s"):
        stacks[1].change_slot(now, 10 * MS, Rate(1000, 8))
    stacks[1].change_slot(now, 2 * MS, Rate(4000, 8))


def test_a_new_rate_goes_through_the_stack() -> None:
    stacks, first = formed((1,))
    now = TIMING.start_of(first)
    stacks[1].change_rate(now, Rate(400, 2))
    assert stacks[1].submit(now, [b""] * 20) == 8
    assert stacks[1].submit(now + TIMING.theta_ns, [b""] * 20) == 2


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, set()),
        ({"fec": (1, 4), "failures": True}, {"fec.recovered", "fec.surplus", "fec.given_up", "fec.ignored"}),
        (
            {"order": "uniform_causal", "reliable": Redundancy.of_ns(1, 5 * MS, 10 * MS)},
            {"uniform.dropped", "uniform.ignored", "causal.skipped", "causal.ignored"}
            | {"rmcast.taken_over", "rmcast.lost", "rmcast.ignored"},
        ),
        (
            {"order": "fifo", "reliable": Redundancy.of_ns(1, 5 * MS, 10 * MS)},
            {"fifo.skipped", "fifo.ignored", "rmcast.taken_over", "rmcast.lost", "rmcast.ignored"},
        ),
    ],
)
def test_counters_are_named_after_their_layer(changes: dict[str, Any], names: set[str]) -> None:
    counters = build(policy(**changes)).counters()
    assert set(counters) == names
    assert not any(counters.values())
