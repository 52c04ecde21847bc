"""Paper 000, figures: the interfaces (1), the two automata (3, 4, 6, 7) and Update (5).

The tests of section 4 cover figure 2. Figures 8 and 9 are in the tests of the theorems that they illustrate.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product

import pytest
from tests.stepping import events, outgoing

from unisono.model.events import Batch, View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import BandwidthReservation, Rate
from unisono.orders import contract
from unisono.orders.cbr.order import CbrAction, CbrInput, CbrMode, CbrOrder
from unisono.orders.cbr.turns import CYCLE_NS, initial_porder, porder_by_sorting, update_porder
from unisono.orders.vbr.order import VbrOrder
from unisono.stack import Stack, build
from unisono.wire.frame import END_OF_SLOT, Kind, unpack_header

MS = 1_000_000
START = 1_700_000_000 * 1000 * MS
TIMING = Timing(2 * MS, 0, 5 * MS)
MEMBERS = (1, 2, 3)
KIND, FLAGS = 1, 2
"""Positions of the kind and the flags among the fields of a header."""


class Network:
    """Grants and records every reservation, and carries each multicast to all other members within a millisecond."""

    def __init__(self, order: str, *, failures: bool = False) -> None:
        self.reserved: list[BandwidthReservation] = []
        self.multicast: Counter[Kind] = Counter()
        self.delivered: dict[int, list[bytes]] = {member: [] for member in MEMBERS}
        self.now = START
        self.stacks = {
            member: build(
                Policy("figure", member, View(MEMBERS), TIMING, Rate(10, 1), order=order, failures=failures),
                self if member == 1 else None,
            )
            for member in MEMBERS
        }

    def reserve(self, reservation: BandwidthReservation) -> None:
        self.reserved.append(reservation)

    def pass_time(self, ns: int) -> None:
        end = self.now + ns
        while self.now < end:
            self.now += MS
            sent = []
            for member, stack in self.stacks.items():
                stack.wake(self.now)
                sent += [(member, datagram) for datagram in outgoing(stack)]
            for sender, datagram in sent:
                self.multicast[Kind(unpack_header(datagram.data, 0)[KIND])] += 1
                for member, stack in self.stacks.items():
                    if member != sender and member in datagram.destinations:
                        stack.receive(self.now, datagram.data)
            for member, stack in self.stacks.items():
                self.delivered[member] += [m for e in events(stack) if isinstance(e, Batch) for m in e.messages]

    def until_running(self) -> Stack:
        while not all(stack.order.running() for stack in self.stacks.values()):
            self.pass_time(MS)
        return self.stacks[1]


@pytest.mark.parametrize(
    ("order", "failures"), [("cbr", False), ("vbr", False), ("vbr", True), ("leader", False), ("timestamp", False)]
)
def test_figure_1_the_network_and_to_service_interfaces(order: str, failures: bool) -> None:
    """Inputs init-rate, new-rate, app-mcast and net-receive; outputs reserve, net-mcast and deliver.

    A member also delivers its own messages.
    """
    network = Network(order, failures=failures)
    assert len(network.reserved) == 1, "init-rate reserves"
    stack = network.until_running()
    network.pass_time(2100 * MS)
    assert stack.submit(network.now, [b"m"]) == 1
    network.pass_time(1200 * MS)
    assert network.delivered == {member: [b"m"] for member in MEMBERS}
    assert network.multicast[Kind.HELLO], "members announce their rates in band"
    stack.change_rate(network.now, Rate(20, 2 if order != "cbr" else 1))
    network.pass_time(1200 * MS)
    assert len(network.reserved) >= 2, "new-rate reserves"
    assert network.reserved[-1].avg_bytes_per_s > network.reserved[0].avg_bytes_per_s


# -- Figures 3 and 4: CBR ------------------------------------------------------------------------------------------


def test_figure_3_signature_and_variables() -> None:
    """Initially Squeue and the Rqueues are empty, no rate is known, Porder has length 0 and the mode is GetRate."""
    order = build(Policy("figure", 1, View(MEMBERS), TIMING, Rate(2, 1), order="cbr")).order
    assert isinstance(order, CbrOrder)
    assert order.mode is CbrMode.GET_RATE
    assert (order.porder, order.current, order.rate) == ((), 0, {})
    assert order._squeue is None
    assert all(not queue.slots for queue in order._rqueues.values())
    figure_3 = {"app-mcast", "new-rate", "net-receive"}
    assert figure_3 <= {str(each) for each in CbrInput}
    assert {"init-rate", "reserve", "start-deliver"} <= {str(each) for each in CbrAction}


def test_figure_4_transitions() -> None:
    """deliver and handle-dummy advance current by one, modulo the length of Porder; only deliver delivers a message."""
    network = Network("cbr")
    stack = network.until_running()
    order = stack.order
    assert isinstance(order, CbrOrder)
    assert len(order.porder) == 30, "start-deliver: every rate is known"
    network.pass_time(2 * CYCLE_NS // MS * MS)
    before = order.processed
    assert stack.submit(network.now, [b"first"]) == 1
    assert stack.submit(network.now, [b"second"]) == 0, "at most one message per 1/rate"
    network.pass_time(CYCLE_NS)
    assert order.processed - before == pytest.approx(30, abs=3), "turns without a message carry dummies"
    assert order.current == order.processed % len(order.porder)
    assert network.delivered == {member: [b"first"] for member in MEMBERS}, "dummies are discarded"
    stack.change_rate(network.now, Rate(5, 1))
    network.pass_time(2 * CYCLE_NS)
    assert [len(s.order.porder) for s in network.stacks.values() if isinstance(s.order, CbrOrder)] == [25] * 3, (
        "change-rate"
    )


def test_figure_5_update_puts_turns_in_the_order_of_k_over_rate() -> None:
    """(i,k) comes before (i',k') if k/rate[i] < k'/rate[i'], for all rates, and after any member changes its rate."""
    for rates in product(range(1, 5), repeat=3):
        rate = dict(zip(MEMBERS, rates, strict=True))
        porder = initial_porder(rate)
        assert porder == porder_by_sorting(rate)
        instants = [Fraction(porder[:at].count(m), rate[m]) for at, m in enumerate(porder)]
        assert instants == sorted(instants)
        assert Counter(porder) == rate, "each member has as many turns as its rate"
        for member, new in product(MEMBERS, range(1, 5)):
            assert update_porder(porder, 0, rate, member, new)[0] == initial_porder(rate | {member: new})


# -- Figures 6 and 7: VBR ------------------------------------------------------------------------------------------


def test_figure_6_signature_and_variables() -> None:
    order = build(Policy("figure", 1, View(MEMBERS), TIMING, Rate(400, 2))).order
    assert isinstance(order, VbrOrder)
    assert str(order.mode) == "GetRate"
    assert order.max_send() == 2
    assert all(not queue.slots for queue in order._rqueues.values())
    assert {"app-mcast", "new-rate", "net-receive"} <= {str(each) for each in contract.Input}
    order.wake(START)
    assert str(order.mode) == "DetRate"


def test_figure_7_transitions() -> None:
    """dummy ends a slot that is not full, next-slot a full one; deliver goes by slots, and by members within a slot."""
    network = Network("vbr")
    stack = network.until_running()
    order = stack.order
    assert isinstance(order, VbrOrder)
    network.pass_time(1000 * MS)
    marks, slot = network.multicast[Kind.DATA], order._send_slot
    network.pass_time(100 * MS)
    assert network.multicast[Kind.DATA] - marks == 3 * (order._send_slot - slot) == 60, (
        "one dummy per member and slot without messages"
    )
    assert stack.submit(network.now, [b"full"]) == 1
    (datagram,) = outgoing(stack)
    assert unpack_header(datagram.data, 0)[FLAGS] & END_OF_SLOT, "AppMaxBurst messages need no dummy"
    for member, other in network.stacks.items():
        if member != 1:
            other.receive(network.now, datagram.data)
            assert other.submit(network.now, [b"of %d" % member]) == 1
    network.pass_time(50 * MS)
    assert network.delivered == {member: [b"full", b"of 2", b"of 3"] for member in MEMBERS}
