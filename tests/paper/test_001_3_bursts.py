"""Erratum 001-3: with redundancy, an interval of length Θ that is not a slot can contain more than NetMaxBurst.

Policing is per slot. A reservation covers one burst per slot length. That is enough for any such interval: at the
reserved peak rate, all datagrams of a slot have left at most one slot after its end.
"""

from itertools import pairwise

import pytest
from tests.full_rate import full_rate
from tests.stepping import outgoing, wake_at

from unisono.model.events import View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.net.fec.layer import net_max_burst, order_policy
from unisono.orders.packing import reservation
from unisono.stack import build
from unisono.wire.frame import UDP_IP_BYTES, Kind, unpack_header

MS = 1_000_000
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
T0 = 200_000_000_000 * TIMING.theta_ns
BURST, SIZE = 6, 160


@pytest.mark.parametrize("fec", [(1, 3), (2, 5), (3, 4)])
def test_001_3_an_interval_across_a_slot_boundary_has_two_bursts_and_the_reservation_covers_them(
    fec: tuple[int, int],
) -> None:
    policy = Policy("g", 1, View((1,)), TIMING, full_rate(BURST, TIMING), max_message=SIZE, max_frame=304, fec=fec)
    stack = build(policy)
    stack.wake(T0)
    now = wake_at(stack) or T0
    while not stack.order.running():
        stack.wake(now)
        now = max(now + 1, wake_at(stack) or 0)
    outgoing(stack)
    first = TIMING.slot_of(now) + 2
    sent: list[tuple[int, int, int]] = []
    """(time, slot, size on the wire) of each datagram."""

    def send(at: int) -> None:
        stack.wake(at)
        assert stack.submit(at, [bytes(SIZE)] * (BURST + 1)) == BURST, "a slot accepts at most its burst"
        for datagram in outgoing(stack):
            header = unpack_header(datagram.data, 0)
            if header[1] == Kind.FEC:
                sent.append((at, header[10], len(datagram.data) + UDP_IP_BYTES))

    # Send at the last instant of a slot and at the first of the next one, several times.
    for slot in range(first, first + 10, 2):
        send(TIMING.end_of(slot) - 1)
        send(TIMING.end_of(slot))
    sent = [entry for entry in sent if entry[1] >= first]
    most = net_max_burst(BURST, *fec)
    per_slot = {slot: [size for _, of, size in sent if of == slot] for slot in range(first, first + 10)}
    assert {len(sizes) for sizes in per_slot.values()} == {most}
    window = max(sum(at <= other < at + TIMING.theta_ns for other, _, _ in sent) for at, _, _ in sent)
    assert window == 2 * most, "twice the maximum of a slot"
    reserved = reservation(order_policy(policy), policy.rate)
    assert max(map(sum, per_slot.values())) <= reserved.burst_bytes_per_slot
    # A link that carries exactly the reserved peak rate.
    free_at, departures = 0.0, []
    for at, slot, size in sent:
        free_at = max(free_at, at) + size * 1e9 / reserved.needed_bytes_per_s
        departures.append((slot, free_at))
    assert all(left_at <= TIMING.end_of(slot) + TIMING.theta_ns for slot, left_at in departures)
    assert any(left_at > TIMING.end_of(slot) for (slot, left_at), _ in pairwise(departures)), "some leave later"
