"""The reliable multicast layer: fields, exactly once, take-over, lives, losses, bounded memory."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from unisono.errors import InvalidOption
from unisono.model.ids import group_key
from unisono.model.policy import Policy
from unisono.model.rates import BandwidthReservation, Rate
from unisono.model.redundancy import Redundancy
from unisono.model.seeded_stream import SplitMix64
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.net.layer import LostMessages
from unisono.net.rmcast import layer as rmcast
from unisono.net.rmcast.copies import RMCAST_BYTES, RmcastCopy
from unisono.net.rmcast.layer import Rmcast, copies_reservation
from unisono.orders.capabilities import CAPABILITIES
from unisono.stack import build
from unisono.wire.door import Door, Refusal
from unisono.wire.frame import END_OF_SLOT, Frame, Kind, encode
from unisono.wire.packed_messages import OutgoingMessages

MS = 1_000_000
T0 = 10**18
GROUP = group_key("g")
MEMBERS = (1, 2, 3, 4)
TIMING = Timing(30 * MS, 2 * MS, 5 * MS)
ETA, OMEGA = 10 * MS, 2 * MS
REDUNDANCY = Redundancy(2, ETA, OMEGA)
LIFE = REDUNDANCY.message_lifetime_ns(len(MEMBERS), TIMING.delta_ns)
OPENS = frozenset({Kind.RMCAST})


def policy(member: int, **changes: Any) -> Policy:
    fields: dict[str, Any] = {"rate": Rate(1000, 8), "max_message": 100, "reliable": REDUNDANCY, "incarnation": 5}
    fields.update(changes)
    return Policy("g", member, View(MEMBERS), TIMING, **fields)


class Halves:
    """ζ is always half of η."""

    def random(self) -> float:
        return 0.5


class Process:
    """One member's layer and door."""

    def __init__(self, member: int, **changes: Any) -> None:
        self.policy = policy(member, **changes)
        self.layer = Rmcast(self.policy, Halves())
        self.door = Door(GROUP, member, MEMBERS, OPENS)
        self.sent = 0

    def multicast(self, now: int = T0, payload: bytes = b"x") -> list[bytes]:
        """Send a frame of the order's."""
        p = self.policy
        run = OutgoingMessages([payload], same_size=True)
        slot = TIMING.slot_of(now)
        frame = Frame(Kind.DATA, p.member, p.incarnation, p.epoch, slot, self.sent, END_OF_SLOT, 8, self.sent, now, run)
        self.sent += 1
        self.layer.from_above(now, frame)
        return self.out()

    def out(self) -> list[bytes]:
        datagrams = [encode(frame, GROUP) for frame in self.layer.down]
        self.layer.down.clear()
        return datagrams

    def take(self, datagrams: list[bytes], now: int = T0) -> list[tuple[int, bytes]]:
        """What goes up: senders and payloads; losses as (originator, b"lost")."""
        for data in datagrams:
            frame = self.door.admit(b"??" + data, 2, 2 + len(data), 2**40)
            if frame is not None:
                self.layer.from_below(now, frame)
        return self.up()

    def up(self) -> list[tuple[int, bytes]]:
        found = []
        for frame in self.layer.up:
            if isinstance(frame, LostMessages):
                found.append((frame.sender, b"lost %d" % frame.count))
            elif frame.packed_messages is None:  # of a kind whose body only its own order reads
                found.append((frame.sender, bytes(frame.body)))
            else:
                found.append((frame.sender, frame.packed_messages.messages()[0]))
        self.layer.up.clear()
        return found

    def wake(self, now: int) -> list[bytes]:
        self.layer.wake(now)
        return self.out()

    def all_copies(self, now: int = T0) -> list[list[bytes]]:
        """The datagrams of one message, copy by copy."""
        return [self.multicast(now), *(self.wake(now + k * ETA) for k in range(1, REDUNDANCY.rho + 1))]


def fields(datagram: bytes) -> tuple[int, ...]:
    copy = Door(GROUP, 99, MEMBERS, OPENS).admit(datagram, 0, len(datagram), 2**40)
    assert isinstance(copy, RmcastCopy)
    return (
        copy.number,
        copy.originator,
        copy.sender,
        copy.first_sequence,
        copy.rho,
        copy.eta_ns,
        copy.originator_incarnation,
    )


# -- the wire ------------------------------------------------------------------------------------------------


def test_a_copy_carries_the_papers_fields() -> None:
    """Figure 12: copy, originator, broadcaster, sequence, ρ, η."""
    one = Process(1)
    for message in range(3):
        for k, (datagram,) in enumerate(one.all_copies(T0 + message * 40 * MS)):
            assert fields(datagram) == (k, 1, 1, message, 2, ETA, 5)


def test_copies_of_a_message_differ_in_their_header_alone_whoever_sends_them() -> None:
    one, two = Process(1), Process(2)
    copies = one.all_copies()
    two.take(copies[0])
    two.wake(T0 + ETA + OMEGA)
    (taken_over,) = two.wake(T0 + ETA + OMEGA + ETA // 2)
    assert fields(taken_over) == (0, 1, 2, 0, 2, ETA, 5)
    assert len({data[48:] for data in [*(d for c in copies for d in c), taken_over]}) == 1


def test_the_order_has_room_for_the_layers_header() -> None:
    assert rmcast.order_policy(policy(1)).max_frame == policy(1).max_frame - RMCAST_BYTES
    (datagram,) = Process(1).multicast(payload=b"")
    assert len(datagram) == RMCAST_BYTES + 48 + 4


@pytest.mark.parametrize("at", [48, 51, 56, 64, 65, 68, 72])
def test_what_makes_no_sense_is_refused_or_ignored(at: int) -> None:
    """Originator, a reserved byte, η, and the inner frame's version, kind, sender and group."""
    (datagram,) = Process(1).multicast()
    two = Process(2)
    broken = datagram[:at] + bytes([datagram[at] ^ 0xFF]) + datagram[at + 1 :]
    assert two.take([broken]) == []
    assert two.door.refused.total() + sum(two.layer.ignored.values()) == 1
    assert two.take([datagram]) == [(1, b"x")]


def test_a_truncated_copy_and_a_copy_number_beyond_rho_are_refused() -> None:
    (datagram,) = Process(1).multicast()
    two = Process(2)
    assert two.take([datagram[:100]]) == []
    assert two.take([datagram[:6] + b"\0\3" + datagram[8:]]) == []
    assert two.door.refused == {Refusal.BAD_COPY: 2}


def test_mutated_copies_never_raise() -> None:
    chance, two = Random(7), Process(2)
    datagram = Process(1).multicast()[0]
    for _ in range(3000):
        data = bytearray(datagram)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        two.take([bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])], T0 + chance.randrange(LIFE))
    assert two.door.refused.total() > 500


# -- exactly once, take-over ---------------------------------------------------------------------------------


def test_each_message_goes_up_once_in_whatever_order_copies_come() -> None:
    one, two = Process(1), Process(2)
    datagrams = [d for n in range(20) for copy in one.all_copies(T0 + n * MS) for d in copy]
    for seed in range(20):
        shuffled = datagrams * 2
        Random(seed).shuffle(shuffled)
        two = Process(2)
        assert len(two.take(shuffled)) == 20
        assert two.layer.held_counts()[1] == 0


def test_the_originator_ignores_its_own_message() -> None:
    """Erratum 002-14, also for a message of an incarnation that it no longer knows of."""
    one, two = Process(1), Process(2)
    two.take(one.multicast())
    two.wake(T0 + ETA + OMEGA)
    back = two.wake(T0 + 2 * ETA + OMEGA)
    assert one.take(back) == []
    assert Process(1, incarnation=6).take(back) == []


def test_a_frame_for_one_member_is_repeated_as_it_is() -> None:
    one = Process(1)
    frame = Frame(Kind.DATA, 1, 5, 0, 7, 0, END_OF_SLOT, to=3)
    one.layer.from_above(T0, frame)
    for k in (1, 2):
        assert one.layer.is_broadcasting()
        assert one.layer.wake_at() == T0 + k * ETA
        one.layer.wake(T0 + k * ETA)
    assert one.layer.down == [frame] * 3
    assert one.layer.wake_at() is None
    assert not one.layer.is_broadcasting()


def test_a_restarted_originator_counts_anew_and_its_earlier_life_is_over() -> None:
    before, after, two = Process(1), Process(1, incarnation=6), Process(2)
    old = before.multicast(payload=b"old")
    assert two.take(old) == [(1, b"old")]
    assert two.take(after.multicast(payload=b"new")) == [(1, b"new")]
    assert two.take(before.multicast(payload=b"late")) == []
    two.wake(T0 + ETA + OMEGA)
    assert two.wake(T0 + 4 * ETA), "the later life's message is taken over"
    assert two.layer.copies_taken_over == 1


def test_rho_and_eta_are_the_messages_own() -> None:
    """A member that was given other parameters takes over as the originator would have gone on."""
    one, two = Process(1, reliable=Redundancy(1, 4 * MS, OMEGA)), Process(2)
    two.take(one.multicast())
    assert two.wake(T0 + 4 * MS + OMEGA) == []
    assert fields(two.wake(T0 + 4 * MS + OMEGA + 2 * MS)[0])[:5] == (0, 1, 2, 0, 1)
    assert fields(two.wake(T0 + 4 * MS + OMEGA + 6 * MS)[0])[:5] == (1, 1, 2, 0, 1)


# -- losses and memory ---------------------------------------------------------------------------------------


def test_what_cannot_come_any_more_is_told_and_refused() -> None:
    one, two = Process(1), Process(2)
    first, second, third = one.multicast(payload=b"1"), one.multicast(payload=b"2"), one.multicast(payload=b"3")
    assert two.take(first + third) == [(1, b"1"), (1, b"3")]
    two.wake(T0 + LIFE - 1)
    assert two.up() == []
    two.wake(T0 + LIFE)
    assert two.up() == [(1, b"lost 1")]
    assert two.layer.lost == {1: 1}
    assert two.take(second, T0 + LIFE) == []


def test_the_first_message_counts_as_lost_too_unless_members_may_join() -> None:
    for failures, told in ((False, [(1, b"lost 2")]), (True, [])):
        one, two = Process(1), Process(2, failures=failures)
        one.multicast()
        one.multicast()
        assert two.take(one.multicast(payload=b"3")) == [(1, b"3")]
        two.wake(T0 + LIFE)
        assert two.up() == told


def test_a_message_that_comes_late_but_in_time_is_no_loss() -> None:
    one, two = Process(1), Process(2)
    first, second = one.multicast(payload=b"1"), one.multicast(payload=b"2")
    assert two.take(second) == [(1, b"2")]
    assert two.take(first, T0 + LIFE - 1) == [(1, b"1")]
    two.wake(T0 + 2 * LIFE)
    assert two.up() == []


def test_memory_is_free_again_when_a_messages_life_is_over() -> None:
    """Nothing but the numbers of the streams' ends is left, whatever was lost, and however often it was taken over."""
    chance, one, two = Random(3), Process(1), Process(2)
    peak = 0
    for n in range(400):
        now = T0 + n * MS
        datagrams = [d for d in one.multicast(now) + one.wake(now) if chance.random() < 0.3]
        two.take(datagrams, now)
        two.wake(now)
        two.out()
        peak = max(peak, two.layer.held_counts()[0])
    end = T0 + 400 * MS + 2 * LIFE
    while (due := two.layer.wake_at()) is not None and due <= end:
        two.wake(due)
    assert peak > 10
    assert two.layer.held_counts() == (0, 0)
    assert two.layer.wake_at() is None
    stream = two.layer._streams[1]
    assert (len(stream.held), len(stream.received.seen), stream.received.next_loss_at(), two.layer._deadlines) == (
        0,
        0,
        None,
        [],
    )


def test_with_omega_of_infinity_the_buffer_is_freed_at_the_end_of_life() -> None:
    """The heuristic gives a finite ω; a message that never comes to its end is freed all the same."""
    two, one = Process(2), Process(1)
    two.take(one.multicast())
    held = two.layer._streams[1].held[0]
    held.deadline = 2**63 - 1
    two.wake(T0 + ETA + OMEGA)
    assert two.layer.held_counts() == (1, 0)
    two.wake(T0 + LIFE)
    assert two.layer.held_counts() == (0, 0)
    assert held.body == b""


def test_a_stream_that_runs_ahead_of_a_missing_message_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.net.layer.WINDOW", 8)
    one, two = Process(1), Process(2)
    one.multicast()
    for n in range(7):
        assert len(two.take(one.multicast(T0 + n))) == 1
        assert two.layer.held_counts()[1] <= 8
    assert two.take(one.multicast(T0 + 9), T0 + 9) == [(1, b"lost 1"), (1, b"x")]
    assert two.layer.lost == {1: 1}
    assert two.layer.held_counts()[1] == 0


def test_peers_cannot_make_it_keep_rules_without_end() -> None:
    two = Process(2)
    for n in range(rmcast.RULES_MAX + 5):
        assert two.take(Process(1, incarnation=n, reliable=Redundancy(1, MS + n)).multicast())
        assert len(two.layer._rules) <= rmcast.RULES_MAX


# -- in a stack ----------------------------------------------------------------------------------------------


def test_reservation_counts_the_copies() -> None:
    once = BandwidthReservation(1000, 300, 5 * MS)
    assert copies_reservation(once, Redundancy(2, ETA)) == BandwidthReservation(3000, 1500, 5 * MS)

    class Asked:
        def reserve(self, reservation: BandwidthReservation) -> None:
            self.last = reservation

    plain, copied = Asked(), Asked()
    build(policy(1, reliable=None), plain)
    build(policy(1), copied)
    assert copied.last.avg_bytes_per_s > 3 * plain.last.avg_bytes_per_s
    assert copied.last.burst_bytes_per_slot > 5 * plain.last.burst_bytes_per_slot


@pytest.mark.parametrize("changes", [{"fec": (1, 3)}, {"loss_burst": 1, "failures": True}])
def test_one_remedy_against_loss_at_a_time(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="one remedy"):
        build(policy(1, **changes))


def test_the_orders_of_papers_000_and_001_can_be_had_over_it() -> None:
    assert all("reliable" in CAPABILITIES[order] for order in ("cbr", "leader", "timestamp", "vbr"))
    with pytest.raises(InvalidOption, match="needs"):
        Rmcast(replace(policy(1), reliable=None))


def test_zeta_is_uniform_and_differs_between_members() -> None:
    drawn = [SplitMix64(1, member).random() for member in range(1000)]
    assert len(set(drawn)) == 1000
    assert 0.45 < sum(drawn) / 1000 < 0.55
    stream = SplitMix64(9)
    values = [stream.random() for _ in range(10_000)]
    assert all(0 <= value < 1 for value in values)
    assert all(850 < sum(tenth <= value * 10 < tenth + 1 for value in values) < 1150 for tenth in range(10))
    assert SplitMix64().random() == (0xE220A8397B1DCDAF >> 11) / 2**53  # the published stream of seed 0
