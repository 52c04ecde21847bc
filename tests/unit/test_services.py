"""FIFO, causal and uniform delivery above reliable multicast, and the unordered top of their stacks."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from tests.stepping import events, outgoing, wake_at

from unisono.errors import InvalidOption, MessageTooLarge
from unisono.model.capabilities import CAPABILITIES, SERVICES
from unisono.model.events import Batch, LeaveComplete, View, ViewChange, Violation
from unisono.model.policy import Policy, Redundancy
from unisono.model.timing import Timing
from unisono.model.units import Rate, group_key
from unisono.net.layer import LostMessages, Service
from unisono.net.services.causal import Causal
from unisono.net.services.fifo import Fifo
from unisono.net.services.uniform import HAVE, HAVE_REQUEST, Have, UniformDelivery, decode_haves, encode_haves
from unisono.stack import Stack, build
from unisono.wire.door import Door
from unisono.wire.frame import END_OF_SLOT, LEAVING, Frame, Kind, OutgoingMessages, encode

MS = 1_000_000
T0 = 10**18
GROUP = group_key("g")
MEMBERS = (1, 2, 3, 4)
TIMING = Timing(30 * MS, 2 * MS, 5 * MS)
ETA = 10 * MS
REDUNDANCY = Redundancy.of_ns(2, ETA, 0)
LIFETIME = REDUNDANCY.message_lifetime_ns(len(MEMBERS), TIMING.delta_ns)
KINDS = frozenset({Kind.FIFO, Kind.CAUSAL, Kind.UNIFORM})


def policy(member: int = 1, order: str = "fifo", members: tuple[int, ...] = MEMBERS, **changes: Any) -> Policy:
    fields: dict[str, Any] = {"rate": Rate(1000, 8), "max_message": 4000, "reliable": REDUNDANCY}
    return Policy("g", member, View(members), TIMING, order=order, **{**fields, **changes})


class Member:
    """The layer of one member, as seen by the layers above and below."""

    def __init__(
        self, kind: type[Service], member: int, members: tuple[int, ...] = MEMBERS, incarnation: int = 1
    ) -> None:
        self.member, self.incarnation = member, incarnation
        self.layer: Any = kind(policy(member, members=members, incarnation=incarnation))
        self.door = Door(GROUP, member, members, KINDS)

    def send(self, text: str, now: int = T0, flags: int = END_OF_SLOT) -> bytes:
        """Multicast a message. Returns the layer's frame as bytes."""
        packed = OutgoingMessages([text.encode()], same_size=True) if text else None
        frame = Frame(Kind.DATA, self.member, self.incarnation, 0, TIMING.slot_of(now), 0, flags, 8, 0, now, packed)
        self.layer.from_above(now, frame)
        return encode(next(f for f in self.pop(self.layer.down) if f.to == 0), GROUP)

    def receive(self, *datagrams: bytes, now: int = T0) -> list[str]:
        for data in datagrams:
            frame = self.door.admit(data, 0, len(data), 2**40)
            if frame is not None:
                self.layer.from_below(now, frame)
        return self.up()

    def up(self) -> list[str]:
        """The messages that have gone up; losses as "lost sender/number"."""
        texts = []
        for frame in self.pop(self.layer.up):
            if isinstance(frame, LostMessages):
                texts.append(f"lost {frame.sender}/{frame.first_sequence}")
            else:
                texts.append(frame.packed_messages.messages()[0].decode() if frame.packed_messages else "final")
        return texts

    def wake(self, now: int) -> list[str]:
        self.layer.wake(now)
        return self.up()

    def sent_haves(self) -> list[tuple[int, int, bytes]]:
        """(destination, message type, datagram) of each HAVE."""
        return [(frame.to, frame.number, encode(frame, GROUP)) for frame in self.pop(self.layer.down)]

    @staticmethod
    def pop(frames: list[Any]) -> list[Any]:
        popped, frames[:] = frames[:], []
        return popped


# -- FIFO ----------------------------------------------------------------------------------------------------


def test_fifo_order_for_any_order_of_arrival() -> None:
    one = Member(Fifo, 1)
    sent = [one.send(f"m{n}") for n in range(4)]
    for order in permutations(sent):
        two = Member(Fifo, 2)
        assert two.receive(*order) == ["m0", "m1", "m2", "m3"]
        assert two.receive(*order) == []
        assert two.layer.wake_at() is None


def test_fifo_senders_do_not_wait_for_each_other() -> None:
    one, three, two = Member(Fifo, 1), Member(Fifo, 3), Member(Fifo, 2)
    one.send("lost")
    assert two.receive(one.send("waits"), three.send("passes")) == ["passes"]


def test_fifo_skips_a_message_after_its_lifetime_for_good() -> None:
    one, two = Member(Fifo, 1), Member(Fifo, 2)
    late, waits, third = one.send("late"), one.send("waits"), one.send("third")
    assert two.receive(waits) == []
    assert two.layer.wake_at() == T0 + LIFETIME
    assert two.wake(T0 + LIFETIME - 1) == []
    assert two.wake(T0 + LIFETIME) == ["waits"]
    assert two.receive(late, third, now=T0 + LIFETIME) == ["third"]
    assert two.layer.counters()["skipped"] == 1


def test_the_number_of_waiting_fifo_frames_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.net.services.fifo.WAITING_MAX", 3)
    one, two = Member(Fifo, 1), Member(Fifo, 2)
    one.send("lost")
    assert [two.receive(one.send(f"m{n}")) for n in range(4)] == [[], [], [], ["m0", "m1", "m2", "m3"]]


# -- causal --------------------------------------------------------------------------------------------------


def test_an_answer_waits_for_the_question() -> None:
    one, two, three = Member(Causal, 1), Member(Causal, 2), Member(Causal, 3)
    question = one.send("question")
    assert two.receive(question) == ["question"]
    answer = two.send("answer")
    assert three.receive(answer) == []
    assert three.receive(question) == ["question", "answer"]


def test_a_frame_waits_for_indirect_causes_too() -> None:
    """Member 3 answers member 2, which has answered member 1; member 4 receives them in any order."""
    one, two, three = (Member(Causal, m) for m in (1, 2, 3))
    a = one.send("a")
    two.receive(a)
    b = two.send("b")
    three.receive(a, b)
    c = three.send("c")
    for order in permutations((a, b, c)):
        four = Member(Causal, 4)
        assert four.receive(*order) == ["a", "b", "c"]


def test_causal_order_is_fifo_and_concurrent_frames_do_not_wait() -> None:
    one, two, three = Member(Causal, 1), Member(Causal, 2), Member(Causal, 3)
    first, second = one.send("first"), one.send("second")
    assert three.receive(second) == []
    assert three.receive(two.send("beside")) == ["beside"]
    assert three.receive(first) == ["first", "second"]


def test_a_frame_does_not_wait_for_frames_of_its_receiver() -> None:
    one, two = Member(Causal, 1), Member(Causal, 2)
    two.receive(one.send("a"), one.send("b"))
    assert one.receive(two.send("answer")) == ["answer"]


def test_causal_skips_a_lost_cause_for_good() -> None:
    one, two, three = Member(Causal, 1), Member(Causal, 2), Member(Causal, 3)
    lost, seen = one.send("lost"), one.send("seen")
    two.receive(lost, seen)
    answer = two.send("answer")
    assert three.receive(answer, now=T0) == []
    assert three.receive(seen, now=T0 + 1) == []
    assert three.layer.wake_at() == T0 + LIFETIME
    assert three.wake(T0 + LIFETIME) == ["seen", "answer"], "a cause that has arrived comes before its effect"
    assert three.receive(lost, now=T0 + LIFETIME) == []
    assert three.layer.counters()["skipped"] == 1
    assert three.layer.wake_at() is None


def test_vector_clocks_work_beyond_32_bits() -> None:
    one, two, three = Member(Causal, 1), Member(Causal, 2), Member(Causal, 3)
    for member in (two, three):
        member.layer._passed_up[1] = 2**32 - 1
    one.layer._sequence = 2**32 - 1
    a, b = one.send("a"), one.send("b")
    two.receive(a, b)
    answer = two.send("answer")
    assert three.receive(answer, a) == ["a"]
    assert three.receive(b) == ["b", "answer"]


def test_the_number_of_waiting_causal_frames_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.net.services.causal.WAITING_MAX", 2)
    one, two = Member(Causal, 1), Member(Causal, 2)
    one.send("lost")
    assert [two.receive(one.send(f"m{n}")) for n in range(3)] == [[], [], ["m0", "m1", "m2"]]


# -- uniform -------------------------------------------------------------------------------------------------


def have_of(member: Member, now: int) -> bytes:
    """The HAVE of a member to member 1."""
    member.layer.wake(now)
    return next(data for to, _, data in member.sent_haves() if to == 1)


def test_uniform_waits_for_half_of_the_members() -> None:
    """Three of five members must have it: its sender, this member, and one that confirms it."""
    members = (1, 2, 3, 4, 5)
    one, two, three = (Member(UniformDelivery, m, members) for m in (1, 2, 3))
    message = two.send("m")
    assert one.receive(message) == []
    three.receive(message)
    assert one.receive(have_of(three, T0)) == ["m"]


def test_uniform_delivery_of_own_messages_waits_too() -> None:
    one, two = Member(UniformDelivery, 1), Member(UniformDelivery, 2)
    message = one.send("mine")
    assert one.up() == []
    two.receive(message)
    assert one.receive(have_of(two, T0)) == ["mine"]


def test_a_have_that_arrives_before_the_message_counts() -> None:
    members = (1, 2, 3, 4, 5)
    one, two, three = (Member(UniformDelivery, m, members) for m in (1, 2, 3))
    message = two.send("m")
    three.receive(message)
    assert one.receive(have_of(three, T0)) == []
    assert one.receive(message) == ["m"]


def test_uniform_keeps_the_order_of_arrival() -> None:
    members = (1, 2, 3, 4, 5)
    one, two, three, four = (Member(UniformDelivery, m, members) for m in (1, 2, 3, 4))
    first, second = two.send("first"), three.send("second")
    assert one.receive(first, second) == []
    four.receive(second)
    assert one.receive(have_of(four, T0)) == [], (
        "the second message has enough holders, but must not overtake the first"
    )
    four.receive(first, now=T0 + 9 * MS)
    assert one.receive(have_of(four, T0 + 10 * MS)) == ["first", "second"]


def test_a_have_is_sent_once_per_slot_repeated_rho_times_then_requested() -> None:
    members = (1, 2, 3, 4, 5)
    one, two = Member(UniformDelivery, 1, members), Member(UniformDelivery, 2, members)
    two.receive(one.send("a"))
    haves = []
    now = T0
    for _ in range(5):
        at = two.layer.wake_at()
        assert at is not None
        now = max(now, at)
        two.layer.wake(now)
        haves.append((now - T0, {number for _, number, _ in two.sent_haves()}))
    assert haves == [
        (0, {HAVE}),
        (ETA, {HAVE}),
        (2 * ETA, {HAVE_REQUEST}),
        (3 * ETA, {HAVE_REQUEST}),
        (4 * ETA, {HAVE_REQUEST}),
    ]
    two.receive(one.send("b"), now=now)
    assert two.layer.wake_at() == now + TIMING.theta_ns


def test_a_have_request_is_answered_at_once() -> None:
    members = (1, 2, 3, 4, 5)
    one, two = Member(UniformDelivery, 1, members), Member(UniformDelivery, 2, members)
    two.receive(one.send("a"))
    two.layer.wake(T0)
    two.layer.wake(T0 + ETA)
    two.sent_haves()
    two.layer.wake(T0 + 2 * ETA)
    request = next(data for to, number, data in two.sent_haves() if (to, number) == (1, HAVE_REQUEST))
    one.receive(request)
    ((to, number, _),) = one.sent_haves()
    assert (to, number) == (2, HAVE)


def test_a_have_does_not_claim_a_lost_message() -> None:
    members = (1, 2, 3, 4, 5)
    one, two, three = (Member(UniformDelivery, m, members) for m in (1, 2, 3))
    lifetime = REDUNDANCY.message_lifetime_ns(5, TIMING.delta_ns)
    missed, received = two.send("missed"), two.send("received")
    three.receive(received)
    three.layer.wake(T0 + lifetime)
    three.sent_haves()
    assert three.layer._have_of(2).floor == 2, "it no longer waits for the first one"
    one.receive(missed, received, now=T0 + lifetime)
    assert one.receive(have_of(three, T0 + lifetime + ETA), now=T0 + lifetime + ETA) == []
    four = Member(UniformDelivery, 4, members)
    four.receive(missed, now=T0 + lifetime)
    later = T0 + lifetime + 2 * ETA
    assert one.receive(have_of(four, later), now=later) == ["missed", "received"]


def test_a_message_with_too_few_holders_is_dropped_and_reported() -> None:
    members = (1, 2, 3, 4, 5)
    one, two = Member(UniformDelivery, 1, members), Member(UniformDelivery, 2, members)
    lifetime = REDUNDANCY.message_lifetime_ns(5, TIMING.delta_ns)
    one.receive(two.send("m"))
    assert one.wake(T0 + 2 * lifetime - 1) == []
    assert one.wake(T0 + 2 * lifetime) == ["lost 2/0"]
    assert one.layer.counters()["dropped"] == 1


def test_departed_members_no_longer_count() -> None:
    members = (1, 2, 3)
    one, two, three = (Member(UniformDelivery, m, members) for m in members)
    for member in (two, three):
        assert one.receive(member.send("", flags=END_OF_SLOT | LEAVING)) == ["final"]
    one.send("alone")
    assert one.up() == ["alone"]


def test_crashed_members_do_not_hold_up_a_departure() -> None:
    members = (1, 2, 3, 4, 5)
    one = Member(UniformDelivery, 1, members)
    lifetime = REDUNDANCY.message_lifetime_ns(5, TIMING.delta_ns)
    one.send("last")
    one.send("", flags=END_OF_SLOT | LEAVING)
    assert one.wake(T0 + 2 * lifetime) == ["lost 1/0", "final"]


@pytest.mark.parametrize("kind", [Fifo, Causal, UniformDelivery])
def test_a_stale_frame_of_an_earlier_incarnation_is_harmless(kind: type[Service]) -> None:
    """The stale frame is left over from an earlier group of the same name."""
    members = (1, 2, 3)
    old, new, two = Member(kind, 1, members), Member(kind, 1, members, incarnation=2), Member(kind, 2, members)
    old.send("-")
    stale, first = old.send("stale"), new.send("first")
    two.receive(stale)
    assert two.receive(first) == ["first"]
    assert two.receive(old.send("older")) == []


def test_haves_on_the_wire() -> None:
    haves = [Have(7, 0b101, frozenset({3})), Have(0, 0)]
    body = encode_haves(haves)
    assert decode_haves(body, 2) == haves
    assert decode_haves(body, 3) is None
    assert decode_haves(body[:-1], 2) is None
    assert decode_haves(b"", 2) is None
    assert [n for n in range(12) if haves[0].holds(n)] == [0, 1, 2, 4, 5, 6, 7, 9]


# -- the top and the stack -----------------------------------------------------------------------------------


class Group:
    """Stacks over a network without delay; datagrams between the pairs in `cut` are lost."""

    def __init__(self, order: str, members: tuple[int, ...] = (1, 2, 3), **changes: Any) -> None:
        self.stacks = {m: build(policy(m, order, members, **changes)) for m in members}
        self.cut: set[tuple[int, int]] = set()
        self.now = T0
        self.wake()
        self.first = TIMING.smax(T0)
        self.until(TIMING.start_of(self.first))

    def wake(self) -> None:
        for stack in self.stacks.values():
            stack.wake(self.now)
        self.carry()

    def until(self, now: int) -> None:
        """Advance the time in steps."""
        while self.now < now:
            self.now = min(now, self.now + MS)
            self.wake()

    def carry(self) -> None:
        moved = True
        while moved:
            moved = False
            for sender, stack in self.stacks.items():
                for datagram in outgoing(stack):
                    moved = True
                    for member, other in self.stacks.items():
                        if member != sender and member in datagram.destinations and (sender, member) not in self.cut:
                            other.receive(self.now, datagram.data)

    def send(self, member: int, *messages: bytes) -> int:
        accepted = self.stacks[member].submit(self.now, messages)
        self.carry()
        return accepted

    def delivered(self, member: int) -> list[bytes]:
        return [m for event in events(self.stacks[member]) if isinstance(event, Batch) for m in event.messages]


@pytest.mark.parametrize("order", sorted(SERVICES))
def test_a_service_delivers_messages_of_any_size_at_once(order: str) -> None:
    group = Group(order)
    messages = [b"small", bytes(range(256)) * 15, b"", b"last"]
    assert group.send(1, *messages) == 4
    group.until(group.now + 20 * MS)
    for member in (1, 2, 3):
        assert group.delivered(member) == messages
    assert group.stacks[2].delays.total == 1


@pytest.mark.parametrize("order", sorted(SERVICES))
def test_a_service_holds_its_members_to_their_rates(order: str) -> None:
    group = Group(order)
    assert group.send(1, *[b"m"] * 10) == 8
    due = wake_at(group.stacks[1])
    assert due is not None
    assert due <= TIMING.end_of(group.first), "the stack wakes when it has room for refused messages"
    group.until(TIMING.end_of(group.first))
    assert group.send(1, b"m", b"m") == 2
    with pytest.raises(MessageTooLarge):
        group.send(1, bytes(4001))


@pytest.mark.parametrize("order", sorted(SERVICES))
def test_leaving_a_service(order: str) -> None:
    group = Group(order)
    group.send(1, b"last words")
    group.stacks[1].leave(group.now)
    group.until(group.now + 100 * MS)
    assert isinstance(events(group.stacks[1])[-1], LeaveComplete)
    for member in (2, 3):
        reported = events(group.stacks[member])
        assert [m for e in reported if isinstance(e, Batch) for m in e.messages] == [b"last words"]
        (change,) = [e for e in reported if isinstance(e, ViewChange) and e.left]
        assert (change.left, change.view.members) == ((1,), (2, 3))
    group.send(2, b"continues")
    group.until(group.now + 20 * MS)
    assert group.delivered(3) == [b"continues"]


def test_a_leaving_member_stays_until_its_last_copies_are_sent() -> None:
    group = Group("fifo")
    group.stacks[1].leave(group.now)
    left_at = {}
    for step in range(40):
        if any(isinstance(event, LeaveComplete) for event in events(group.stacks[1])):
            left_at[1] = step
        group.until(group.now + MS)
    assert left_at == {1: REDUNDANCY.rho * ETA // MS}


def test_frames_that_arrive_before_the_group_starts_are_kept() -> None:
    """Member 3 does not have member 2's HELLO yet when member 1's first message arrives."""
    group = Group.__new__(Group)
    group.stacks = {m: build(policy(m, "fifo", (1, 2, 3))) for m in (1, 2, 3)}
    group.cut, group.now, group.first = set(), T0, TIMING.smax(T0)
    group.wake()
    late = build(policy(3, "fifo", (1, 2, 3)))
    group.stacks[3] = late
    group.cut = {(2, 3), (3, 2)}
    group.until(TIMING.start_of(group.first))
    assert not late.order.running()
    group.send(1, b"early")
    group.cut = set()
    group.until(group.now + 300 * MS)
    assert late.order.running()
    assert group.delivered(3) == [b"early"]


def test_a_message_lost_in_every_copy_is_reported() -> None:
    group = Group("fifo")
    group.cut = {(1, 3), (2, 3)}
    group.send(1, b"lost")
    group.until(group.now + 60 * MS)
    group.cut = set()
    group.send(1, b"found")
    lifetime = REDUNDANCY.message_lifetime_ns(3, TIMING.delta_ns)
    assert group.delivered(3) == []
    group.until(group.now + lifetime + MS)
    reported = events(group.stacks[3])
    (violation,) = [event for event in reported if isinstance(event, Violation)]
    assert (violation.kind, violation.member) == ("lost", 1)
    assert [m for e in reported if isinstance(e, Batch) for m in e.messages] == [b"found"]


@pytest.mark.parametrize(("order", "changes"), [("causal", {}), ("vbr", {}), ("vbr", {"reliable": None})])
def test_members_with_different_orders_do_not_begin(order: str, changes: dict[str, Any]) -> None:
    group = Group.__new__(Group)
    group.stacks = {1: build(policy(1, "fifo", (1, 2))), 2: build(policy(2, order, (1, 2), **changes))}
    group.cut, group.now = set(), T0
    group.wake()
    group.until(T0 + 50 * MS)
    assert group.stacks[1].peer_problems() == {2: "joined with other options"}
    assert not group.stacks[1].order.running()


def test_members_may_have_different_redundancy() -> None:
    group = Group.__new__(Group)
    other = Redundancy.of_ns(1, 2 * ETA, MS)
    group.stacks = {1: build(policy(1, "fifo", (1, 2))), 2: build(policy(2, "fifo", (1, 2), reliable=other))}
    group.cut, group.now = set(), T0
    group.wake()
    group.until(T0 + 50 * MS)
    assert group.stacks[1].order.running()


def test_a_service_without_reliable_multicast_is_refused() -> None:
    for order in SERVICES:
        with pytest.raises(InvalidOption, match="ρ, η and ω") as caught:
            build(policy(1, order, reliable=None))
        assert caught.value.field == "reliable"
    for kind in (Fifo, Causal, UniformDelivery):
        with pytest.raises(InvalidOption):
            kind(policy(1, reliable=None))


def test_too_small_frames_are_refused() -> None:
    with pytest.raises(InvalidOption, match="34 more bytes"):
        build(policy(1, "causal", max_frame=350))
    with pytest.raises(InvalidOption, match="uniform delivery to 80 members"):
        build(policy(1, "uniform", tuple(range(1, 81))))


def test_erratum_002_3_is_corrected_under_uniform_delivery_by_default() -> None:
    def last_copy(order: str, asked: bool | None) -> bool | None:
        stack: Stack = build(policy(1, order, reliable=replace(REDUNDANCY, last_copy=asked)))
        assert stack.policy.reliable is not None
        return stack.policy.reliable.last_copy

    assert [last_copy("fifo", None), last_copy("uniform", None), last_copy("uniform_fifo", False)] == [
        False,
        True,
        False,
    ]


def test_every_service_has_checks() -> None:
    assert all(CAPABILITIES[order].checks for order in SERVICES)
