"""The reliable multicast layer: fields, exactly-once delivery, take-over, incarnations, losses, bounded state."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.worlds.rmcast_state import held_counts

from unisono.errors import InvalidOption
from unisono.model.capabilities import CAPABILITIES
from unisono.model.delays import SplitMix64
from unisono.model.events import View
from unisono.model.policy import Policy, Redundancy
from unisono.model.timing import Timing
from unisono.model.units import BandwidthReservation, Rate, group_key
from unisono.net.layer import LostMessages
from unisono.net.rmcast import layer as rmcast
from unisono.net.rmcast.copies import RMCAST_BYTES, RmcastCopy
from unisono.net.rmcast.layer import Rmcast, copies_reservation
from unisono.stack import build
from unisono.wire.door import Door, Refusal
from unisono.wire.frame import END_OF_SLOT, Frame, Kind, OutgoingMessages, encode

MS = 1_000_000
T0 = 10**18
GROUP = group_key("g")
MEMBERS = (1, 2, 3, 4)
TIMING = Timing(30 * MS, 2 * MS, 5 * MS)
ETA, OMEGA = 10 * MS, 2 * MS
REDUNDANCY = Redundancy.of_ns(2, ETA, OMEGA)
LIFETIME = REDUNDANCY.message_lifetime_ns(len(MEMBERS), TIMING.delta_ns)
OPENS = frozenset({Kind.RMCAST})


def policy(member: int, **changes: Any) -> Policy:
    fields: dict[str, Any] = {"rate": Rate(1000, 8), "max_message": 100, "reliable": REDUNDANCY, "incarnation": 5}
    fields.update(changes)
    return Policy("g", member, View(MEMBERS), TIMING, **fields)


class HalfRandom:
    """ζ is always half of η."""

    def random(self) -> float:
        return 0.5


class Process:
    """The layer and the door of one member."""

    def __init__(self, member: int, **changes: Any) -> None:
        self.policy = policy(member, **changes)
        self.layer = Rmcast(self.policy, HalfRandom())
        self.door = Door(GROUP, member, MEMBERS, OPENS)
        self.sent = 0

    def multicast(self, now: int = T0, payload: bytes = b"x") -> list[bytes]:
        """Send a frame of the order."""
        p, n = self.policy, self.sent
        packed = OutgoingMessages([payload], same_size=True)
        slot = TIMING.slot_of(now)
        frame = Frame(Kind.DATA, p.member, p.incarnation, p.epoch, slot, n, END_OF_SLOT, 8, n, now, packed)
        self.sent += 1
        self.layer.from_above(now, frame)
        return self.out()

    def out(self) -> list[bytes]:
        datagrams = [encode(frame, GROUP) for frame in self.layer.down]
        self.layer.down.clear()
        return datagrams

    def receive(self, datagrams: list[bytes], now: int = T0) -> list[tuple[int, bytes]]:
        """The senders and payloads that go up; losses as (originator, b"lost count")."""
        for data in datagrams:
            frame = self.door.admit(b"??" + data, 2, 2 + len(data), 2**40)
            if frame is not None:
                self.layer.from_below(now, frame)
        return self.up()

    def up(self) -> list[tuple[int, bytes]]:
        passed_up = []
        for frame in self.layer.up:
            if isinstance(frame, LostMessages):
                passed_up.append((frame.sender, b"lost %d" % frame.count))
            elif frame.packed_messages is None:  # a kind whose body only its own order reads
                passed_up.append((frame.sender, bytes(frame.body)))
            else:
                passed_up.append((frame.sender, frame.packed_messages.messages()[0]))
        self.layer.up.clear()
        return passed_up

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


def test_copies_of_a_message_differ_only_in_their_headers() -> None:
    one, two = Process(1), Process(2)
    copies = one.all_copies()
    two.receive(copies[0])
    two.wake(T0 + ETA + OMEGA)
    (taken_over,) = two.wake(T0 + ETA + OMEGA + ETA // 2)
    assert fields(taken_over) == (0, 1, 2, 0, 2, ETA, 5)
    assert len({data[48:] for data in [*(d for c in copies for d in c), taken_over]}) == 1


def test_frames_of_the_order_leave_room_for_the_rmcast_header() -> None:
    assert rmcast.order_policy(policy(1)).max_frame == policy(1).max_frame - RMCAST_BYTES
    (datagram,) = Process(1).multicast(payload=b"")
    assert len(datagram) == RMCAST_BYTES + 48 + 4


@pytest.mark.parametrize("at", [48, 51, 56, 64, 65, 68, 72])
def test_invalid_copies_are_refused_or_ignored(at: int) -> None:
    """Changes in the originator, a reserved byte, η, or the inner frame's version, kind, sender or group."""
    (datagram,) = Process(1).multicast()
    two = Process(2)
    broken = datagram[:at] + bytes([datagram[at] ^ 0xFF]) + datagram[at + 1 :]
    assert two.receive([broken]) == []
    assert two.door.refused.total() + sum(two.layer.ignored.values()) == 1
    assert two.receive([datagram]) == [(1, b"x")]


def test_a_truncated_copy_and_a_copy_number_beyond_rho_are_refused() -> None:
    (datagram,) = Process(1).multicast()
    two = Process(2)
    assert two.receive([datagram[:100]]) == []
    assert two.receive([datagram[:6] + b"\0\3" + datagram[8:]]) == []
    assert two.door.refused == {Refusal.BAD_COPY: 2}


def test_mutated_copies_never_raise() -> None:
    chance, two = Random(7), Process(2)
    datagram = Process(1).multicast()[0]
    for _ in range(3000):
        data = bytearray(datagram)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        two.receive(
            [bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])], T0 + chance.randrange(LIFETIME)
        )
    assert two.door.refused.total() > 500


# -- exactly once, take-over ---------------------------------------------------------------------------------


def test_each_message_goes_up_once_for_any_order_of_copies() -> None:
    one, two = Process(1), Process(2)
    datagrams = [d for n in range(20) for copy in one.all_copies(T0 + n * MS) for d in copy]
    for seed in range(20):
        shuffled = datagrams * 2
        Random(seed).shuffle(shuffled)
        two = Process(2)
        assert len(two.receive(shuffled)) == 20
        assert held_counts(two.layer)[1] == 0


def test_the_originator_ignores_its_own_message() -> None:
    """Erratum 002-14, also for a message of its earlier incarnation."""
    one, two = Process(1), Process(2)
    two.receive(one.multicast())
    two.wake(T0 + ETA + OMEGA)
    back = two.wake(T0 + 2 * ETA + OMEGA)
    assert one.receive(back) == []
    assert Process(1, incarnation=6).receive(back) == []


def test_a_frame_for_one_member_is_repeated_unchanged() -> None:
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


def test_a_restarted_originator_numbers_from_0_and_its_earlier_incarnation_ends() -> None:
    before, after, two = Process(1), Process(1, incarnation=6), Process(2)
    old = before.multicast(payload=b"old")
    assert two.receive(old) == [(1, b"old")]
    assert two.receive(after.multicast(payload=b"new")) == [(1, b"new")]
    assert two.receive(before.multicast(payload=b"late")) == []
    two.wake(T0 + ETA + OMEGA)
    assert two.wake(T0 + 4 * ETA), "the message of the later incarnation is taken over"
    assert two.layer.counters()["taken_over"] == 1


def test_each_message_carries_its_own_rho_and_eta() -> None:
    """A member with other parameters takes over with those of the originator."""
    one, two = Process(1, reliable=Redundancy.of_ns(1, 4 * MS, OMEGA)), Process(2)
    two.receive(one.multicast())
    assert two.wake(T0 + 4 * MS + OMEGA) == []
    assert fields(two.wake(T0 + 4 * MS + OMEGA + 2 * MS)[0])[:5] == (0, 1, 2, 0, 1)
    assert fields(two.wake(T0 + 4 * MS + OMEGA + 6 * MS)[0])[:5] == (1, 1, 2, 0, 1)


# -- losses and kept state -----------------------------------------------------------------------------------


def test_a_lost_message_is_reported_and_late_copies_are_refused() -> None:
    one, two = Process(1), Process(2)
    first, second, third = one.multicast(payload=b"1"), one.multicast(payload=b"2"), one.multicast(payload=b"3")
    assert two.receive(first + third) == [(1, b"1"), (1, b"3")]
    two.wake(T0 + LIFETIME - 1)
    assert two.up() == []
    two.wake(T0 + LIFETIME)
    assert two.up() == [(1, b"lost 1")]
    assert two.layer.lost == {1: 1}
    assert two.receive(second, T0 + LIFETIME) == []


def test_messages_before_the_first_arrival_are_lost_unless_members_may_join() -> None:
    for failures, reported in ((False, [(1, b"lost 2")]), (True, [])):
        one, two = Process(1), Process(2, failures=failures)
        one.multicast()
        one.multicast()
        assert two.receive(one.multicast(payload=b"3")) == [(1, b"3")]
        two.wake(T0 + LIFETIME)
        assert two.up() == reported


def test_a_late_message_within_its_lifetime_is_not_lost() -> None:
    one, two = Process(1), Process(2)
    first, second = one.multicast(payload=b"1"), one.multicast(payload=b"2")
    assert two.receive(second) == [(1, b"2")]
    assert two.receive(first, T0 + LIFETIME - 1) == [(1, b"1")]
    two.wake(T0 + 2 * LIFETIME)
    assert two.up() == []


def test_all_state_is_released_after_a_messages_lifetime() -> None:
    """Only the floors of the streams remain, even after losses and take-overs."""
    chance, one, two = Random(3), Process(1), Process(2)
    peak = 0
    for n in range(400):
        now = T0 + n * MS
        datagrams = [d for d in one.multicast(now) + one.wake(now) if chance.random() < 0.3]
        two.receive(datagrams, now)
        two.wake(now)
        two.out()
        peak = max(peak, held_counts(two.layer)[0])
    end = T0 + 400 * MS + 2 * LIFETIME
    while (due := two.layer.wake_at()) is not None and due <= end:
        two.wake(due)
    assert peak > 10
    assert held_counts(two.layer) == (0, 0)
    assert two.layer.wake_at() is None
    stream = two.layer._streams[1]
    assert (len(stream.held), len(stream.received.seen), stream.received.next_loss_at(), two.layer._deadlines) == (
        0,
        0,
        None,
        [],
    )


def test_with_infinite_omega_the_buffer_is_released_after_the_lifetime() -> None:
    """A message without a deadline is released when its lifetime ends."""
    two, one = Process(2), Process(1)
    two.receive(one.multicast())
    held = two.layer._streams[1].held[0]
    held.deadline = 2**63 - 1
    two.wake(T0 + ETA + OMEGA)
    assert held_counts(two.layer) == (1, 0)
    two.wake(T0 + LIFETIME)
    assert held_counts(two.layer) == (0, 0)
    assert held.body == b""


def test_the_state_behind_a_missing_message_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.net.layer.WINDOW", 8)
    one, two = Process(1), Process(2)
    one.multicast()
    for n in range(7):
        assert len(two.receive(one.multicast(T0 + n))) == 1
        assert held_counts(two.layer)[1] <= 8
    assert two.receive(one.multicast(T0 + 9), T0 + 9) == [(1, b"lost 1"), (1, b"x")]
    assert two.layer.lost == {1: 1}
    assert held_counts(two.layer)[1] == 0


def test_the_number_of_cached_rules_is_bounded() -> None:
    two = Process(2)
    for n in range(rmcast.RULES_MAX + 5):
        assert two.receive(Process(1, incarnation=n, reliable=Redundancy.of_ns(1, MS + n)).multicast())
        assert len(two.layer._rules) <= rmcast.RULES_MAX


# -- in a stack ----------------------------------------------------------------------------------------------


def test_reservation_counts_the_copies() -> None:
    once = BandwidthReservation(1000, 300, 5 * MS)
    assert copies_reservation(once, Redundancy.of_ns(2, ETA)) == BandwidthReservation(3000, 1500, 5 * MS)

    class RecordingReserver:
        def reserve(self, reservation: BandwidthReservation) -> None:
            self.last = reservation

    plain, copied = RecordingReserver(), RecordingReserver()
    build(policy(1, reliable=None), plain)
    build(policy(1), copied)
    assert copied.last.avg_bytes_per_s > 3 * plain.last.avg_bytes_per_s
    assert copied.last.burst_bytes_per_slot > 5 * plain.last.burst_bytes_per_slot


@pytest.mark.parametrize("changes", [{"fec": (1, 3)}, {"loss_burst": 1, "failures": True}])
def test_only_one_mechanism_against_loss_is_allowed(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="cannot be combined with fec or loss_burst"):
        build(policy(1, **changes))


def test_the_orders_of_papers_000_and_001_run_over_it() -> None:
    assert all("reliable" in CAPABILITIES[order].options for order in ("cbr", "leader", "timestamp", "vbr"))
    with pytest.raises(InvalidOption, match="expected Redundancy"):
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
