"""The CBR automaton of paper 000 §4, one member at a time: the tests create the frames of its peers by hand."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import pytest

from unisono.errors import InvalidOption, MessageTooLarge, ReservationRefused
from unisono.model.events import Batch, LeaveComplete, StackEvent, View, ViewChange, Violation
from unisono.model.offers import Ask
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import BandwidthReservation, Rate, members_key
from unisono.orders.cbr.bounds import offer
from unisono.orders.cbr.order import (
    CBR_ACCEPTED_INPUTS,
    CBR_RUNNING,
    CBR_TRANSITIONS,
    HORIZON_NS,
    CbrAction,
    CbrInput,
    CbrMode,
    CbrOrder,
)
from unisono.orders.cbr.turns import (
    CYCLE_NS,
    RATE_MAX,
    cbr_reservation,
    cycle_and_turn,
    due_ns,
    porder_by_sorting,
    turn_number,
)
from unisono.stack import build
from unisono.wire.codec import control_frame, encode_message
from unisono.wire.control import Hello, NewRate, Reserved
from unisono.wire.door import Door, Refusal
from unisono.wire.frame import (
    END_OF_SLOT,
    FIRST_FRAGMENT,
    FRAGMENT,
    LEAVING,
    MORE_FRAGMENTS,
    Frame,
    Kind,
    OutgoingMessages,
    encode,
)

MS = 1_000_000
T0 = 10**18
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
CYCLE = T0 // CYCLE_NS + 1
EPOCH = CYCLE * CYCLE_NS


class Network:
    """Records reservations, and refuses them when `full`."""

    def __init__(self) -> None:
        self.reserved: list[BandwidthReservation] = []
        self.full = False

    def reserve(self, reservation: BandwidthReservation) -> None:
        if self.full:
            raise ReservationRefused(reservation.avg_bytes_per_s, 1, 2)
        self.reserved.append(reservation)


class Probe:
    """A CbrOrder and its network, with short methods for tests. The rate of the peers is 2."""

    def __init__(self, me: int = 1, members: tuple[int, ...] = (1, 2), **changes: Any) -> None:
        fields: dict[str, Any] = {"timing": TIMING, "rate": Rate(4, 1), "max_message": 1000, "max_frame": 256}
        fields.update(changes)
        self.policy = Policy("g", me, View(members), order="cbr", **fields)
        self.network = Network()
        self.cbr = CbrOrder(self.policy, self.network)

    def hello(self, sender: int, *, avg: float = 2.0, theta_ns: int = CYCLE_NS, incarnation: int = 1) -> Frame:
        key = members_key(self.policy.view.members)
        hello = Hello(theta_ns, TIMING.delta_ns, TIMING.gamma_ns, key, avg, 1, 1000, CYCLE, True, ())
        return control_frame(hello, sender, incarnation, 0)

    def begin(self) -> Probe:
        """Enter DeliverMessages before the epoch, and drop the frames and events of that."""
        self.cbr.wake(T0)
        for member in self.policy.view.members:
            if member != self.policy.member:
                self.cbr.from_below(T0, self.hello(member))
        assert self.cbr.mode in CBR_RUNNING
        (view,) = self.events()
        assert view == ViewChange(View(self.policy.view.members, TIMING.slot_of(EPOCH)), joined=(1, 2))
        self.sent()
        return self

    def sent(self, kind: Kind = Kind.DATA) -> list[Frame]:
        """The frames of one kind sent since the last call."""
        frames, self.cbr.down[:] = self.cbr.down[:], []
        return [frame for frame in frames if frame.kind is kind]

    def events(self) -> list[StackEvent]:
        events, self.cbr.events[:] = self.cbr.events[:], []
        return events

    def delivered(self) -> list[bytes]:
        return [m for event in self.events() if isinstance(event, Batch) for m in event.messages]

    def peer(self, *turns: int, cycle: int = CYCLE, now: int = EPOCH) -> None:
        """Dummies of member 2 arrive."""
        for turn in turns:
            self.cbr.from_below(now, data(2, turn, cycle=cycle))

    def wake(self, now: int) -> None:
        self.cbr.wake(now)
        due = self.cbr.wake_at()
        assert due is None or due > now, "a wake makes progress"


def data(
    sender: int,
    turn: int,
    *messages: bytes,
    cycle: int = CYCLE,
    number: int = 0,
    flags: int = END_OF_SLOT,
    burst: int = 2,
) -> Frame:
    packed = OutgoingMessages(list(messages), False) if messages else None
    return Frame(Kind.DATA, sender, 1, 0, turn_number(cycle, turn), number, flags, burst, 7, 0, packed)


def due(turn: int, rate: int = 4, cycle: int = CYCLE) -> int:
    return due_ns(cycle, turn, rate)


# -- modes and inputs ----------------------------------------------------------------------------------------------


def in_mode(mode: CbrMode) -> Probe:
    probe = Probe(reservation="receiver" if mode is CbrMode.FIRST_RESERVE else "sender")
    if mode in {CbrMode.FIRST_RESERVE, CbrMode.DET_ORDER}:
        probe.cbr.wake(T0)
    elif mode in CBR_RUNNING:
        probe.begin()
        if mode is CbrMode.RESERVE:
            probe.cbr.change_rate(T0, Rate(5, 1))
    elif mode is CbrMode.LEFT:
        probe.cbr.leave(T0)
    assert probe.cbr.mode is mode
    probe.sent()
    probe.events()
    return probe


@pytest.mark.parametrize(("mode", "given"), list(product(CbrMode, CbrInput)))
def test_each_input_has_an_effect_exactly_in_the_modes_of_the_table(mode: CbrMode, given: CbrInput) -> None:
    probe = in_mode(mode)
    cbr, now = probe.cbr, EPOCH + 1
    reservations = len(probe.network.reserved)
    if given is CbrInput.SUBMIT:
        effect = cbr.submit(now, [b"x"]) > 0
    elif given is CbrInput.HELLO:
        cbr.from_below(now, probe.hello(2, theta_ns=CYCLE_NS + 1))
        effect = 2 in cbr.exchange.problems
    elif given is CbrInput.DATA:
        cbr.exchange.incarnations[2] = 1
        cbr.from_below(now, data(2, 0))
        effect = not cbr.ignored
    elif given is CbrInput.RESERVATION:
        cbr.exchange.incarnations[2] = 1
        cbr.from_below(now, control_frame(NewRate(1, 9), 2, 1, 0))
        effect = bool(probe.sent(Kind.RESERVED))
    elif given is CbrInput.NEW_RATE:
        cbr.change_rate(now, Rate(3, 1))
        effect = len(probe.network.reserved) > reservations or cbr._renegotiation.requested_rate == 3
    else:
        cbr.leave(now)
        effect = cbr._leaving or any(isinstance(event, LeaveComplete) for event in probe.events())
    assert effect == (given in CBR_ACCEPTED_INPUTS[mode])
    assert set(CBR_ACCEPTED_INPUTS) == set(CbrMode)


@pytest.mark.parametrize("mode", CbrMode)
def test_a_wake_makes_progress_in_every_mode(mode: CbrMode) -> None:
    probe = in_mode(mode)
    for now in (T0, EPOCH, EPOCH + 1, due(1), due(0, cycle=CYCLE + 3)):
        probe.wake(now)
    assert (probe.cbr.wake_at() is None) == (mode is CbrMode.LEFT)


def test_every_mode_can_be_left_and_reached() -> None:
    assert {mode for mode, _ in CBR_TRANSITIONS} == set(CbrMode) - {CbrMode.LEFT}
    assert set(CBR_TRANSITIONS.values()) == set(CbrMode)
    assert all(CBR_TRANSITIONS[mode, CbrAction.LEAVE] is CbrMode.LEFT for mode in CbrMode if mode is not CbrMode.LEFT)


# -- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("avg", [0.5, 1.5, RATE_MAX + 1, 1e9])
def test_rates_are_whole_messages_per_second(avg: float) -> None:
    with pytest.raises(InvalidOption, match=r"rate\.avg: .*whole number"):
        Probe(rate=Rate(avg, 1))
    probe = Probe().begin()
    with pytest.raises(InvalidOption, match="whole number"):
        probe.cbr.change_rate(T0, Rate(avg, 1))
    assert probe.cbr.mode is CbrMode.DELIVER_MESSAGES


@pytest.mark.parametrize("asked", [{"failures": True}, {"loss_burst": 1}, {"fec": (1, 4)}])
def test_failures_and_loss_are_refused_at_once(asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="tolerates neither failures nor loss"):
        Probe(**asked)


def test_a_message_that_needs_too_many_frames_is_refused() -> None:
    with pytest.raises(InvalidOption, match="max_message: a turn would need"):
        Probe(max_message=16 * 1024 * 1024)


def test_reservation_is_by_sender_or_receiver() -> None:
    with pytest.raises(InvalidOption, match="reservation: expected sender or receiver, got 'both'"):
        Probe(reservation="both")


def test_the_stack_builds_it_by_name() -> None:
    stack = build(Policy("g", 1, View((1, 2)), TIMING, Rate(4, 1), "cbr"))
    assert isinstance(stack.order, CbrOrder)
    assert stack.order.bound_ns() == 12 * MS + 250 * MS
    assert stack.order.gap_free


# -- starting ------------------------------------------------------------------------------------------------------


def test_the_group_starts_with_a_cycle_and_porder_is_known() -> None:
    probe = Probe().begin()
    assert probe.cbr.porder == porder_by_sorting({1: 4, 2: 2})
    assert (probe.cbr.cycle, probe.cbr.current) == (CYCLE, 0)
    assert probe.cbr.wake_at() is not None
    probe.wake(EPOCH - 1)
    assert not probe.sent(), "init-rate is outside the cadence (000-7)"
    probe.wake(EPOCH)
    (first,) = probe.sent()
    assert cycle_and_turn(first.slot) == (CYCLE, 0)


@pytest.mark.parametrize("avg", [2.5, 0.25, RATE_MAX + 1.0])
def test_a_peer_with_an_impossible_rate_is_refused_once(avg: float) -> None:
    probe = Probe()
    probe.cbr.wake(T0)
    for _ in range(2):
        probe.cbr.from_below(T0, probe.hello(2, avg=avg))
    (violation,) = probe.events()
    assert isinstance(violation, Violation)
    assert violation.kind == "rate_refused"
    assert probe.cbr.mode is CbrMode.DET_ORDER
    assert probe.cbr.waiting_for() == (2,)
    assert probe.cbr.peer_problems()[2].startswith("declares")


def test_the_group_does_not_begin_with_a_member_of_another_slot_length() -> None:
    probe = Probe()
    probe.cbr.wake(T0)
    probe.cbr.from_below(T0, probe.hello(2, theta_ns=5 * MS))
    assert 2 in probe.cbr.waiting_for()
    assert probe.cbr.peer_problems() == {2: "joined with other options"}


def test_data_that_arrives_before_the_last_hello_is_kept() -> None:
    probe = Probe(members=(1, 2))
    probe.cbr.wake(T0)
    probe.cbr.exchange.incarnations[2] = 1
    probe.peer(0)
    probe.cbr.from_below(T0, probe.hello(2))
    probe.wake(EPOCH)
    assert probe.cbr.processed == 2


# -- sending -------------------------------------------------------------------------------------------------------


def test_a_message_leaves_with_the_next_turn_and_dummies_fill_the_others() -> None:
    probe = Probe().begin()
    probe.wake(EPOCH)
    assert probe.cbr.submit(EPOCH + 1, [b"a", b"b"]) == 1
    assert probe.cbr.submit(EPOCH + 2, [b"b"]) == 0, "one message per period"
    probe.wake(due(1))
    assert probe.cbr.submit(due(1), [b"b"]) == 1
    probe.wake(due(3))
    frames = probe.sent()
    assert [frame.packed_messages.messages() if frame.packed_messages else None for frame in frames] == [
        None,
        [b"a"],
        [b"b"],
        None,
    ]
    assert [frame.first_sequence for frame in frames] == [0, 0, 1, 2]
    assert all(frame.flags == END_OF_SLOT and frame.burst == 4 for frame in frames)


def test_a_message_submitted_at_the_instant_of_a_turn_does_not_wait() -> None:
    probe = Probe().begin()
    assert probe.cbr.submit(EPOCH, [b"a", b"b", b"c"]) == 2, "one for this turn, one for the next"
    (frame,) = probe.sent()
    assert frame.packed_messages is not None
    assert frame.packed_messages.messages() == [b"a"]


def test_no_message_is_accepted_more_than_a_period_before_its_turn() -> None:
    probe = Probe().begin()
    assert probe.cbr.submit(EPOCH - 250 * MS - 1, [b"a"]) == 0
    assert probe.cbr.submit(EPOCH - 250 * MS, [b"a"]) == 1


def test_after_a_clock_jump_every_due_turn_is_sent() -> None:
    probe = Probe().begin()
    probe.wake(due(1, cycle=CYCLE + 1))
    assert [cycle_and_turn(frame.slot) for frame in probe.sent()] == [
        *((CYCLE, turn) for turn in range(4)),
        *((CYCLE + 1, turn) for turn in range(2)),
    ]


def test_a_large_message_is_sent_in_fragments_in_one_turn() -> None:
    probe = Probe().begin()
    message = bytes(range(250)) * 4
    assert probe.cbr.submit(EPOCH, [message]) == 1
    frames = probe.sent()
    assert len({frame.slot for frame in frames}) == 1
    assert [frame.number for frame in frames] == list(range(5))
    assert frames[0].flags == FRAGMENT | FIRST_FRAGMENT | MORE_FRAGMENTS
    assert frames[-1].flags == FRAGMENT | END_OF_SLOT
    probe.peer(0)
    assert probe.delivered() == [message]


def test_too_large_a_message_is_refused() -> None:
    with pytest.raises(MessageTooLarge):
        Probe().begin().cbr.submit(EPOCH, [bytes(1001)])


def test_a_member_with_too_many_undelivered_turns_accepts_no_messages() -> None:
    probe = Probe().begin()
    accepted = sum(probe.cbr.submit(due(turn) + 1, [b"x"]) for turn in range(12))
    assert accepted == probe.cbr.window_slots == 4
    for cycle in range(CYCLE, CYCLE + 3):
        probe.peer(0, 1, cycle=cycle, now=due(12))
    assert probe.cbr.submit(due(12), [b"x"]) == 1


# -- delivering ----------------------------------------------------------------------------------------------------


def test_turns_are_delivered_in_the_order_of_porder() -> None:
    probe = Probe().begin()
    for turn in range(4):
        probe.cbr.submit(due(turn), [b"1.%d" % turn])
    for turn in range(2):
        probe.cbr.from_below(due(3), data(2, turn, b"2.%d" % turn))
    probe.wake(due(3))
    batches = [event for event in probe.events() if isinstance(event, Batch)]
    assert [batch.messages for batch in batches] == [[b"1.0"], [b"2.0"], [b"1.1"], [b"1.2"], [b"2.1"], [b"1.3"]]
    assert [batch.first_position for batch in batches] == list(range(6)), "the k of Lemma 4.1"
    assert [batch.first_index for batch in batches] == list(range(6))
    slots = [TIMING.slot_of(EPOCH + k * 250 * MS) for k in (0, 0, 1, 2, 2, 3)]
    assert [batch.slot for batch in batches] == slots


def test_dummies_are_not_delivered_but_have_positions() -> None:
    probe = Probe().begin()
    probe.peer(0)
    probe.cbr.submit(due(1), [b"x"])
    (batch,) = probe.events()
    assert isinstance(batch, Batch)
    assert (batch.first_position, batch.first_index) == (2, 0)


def test_frames_may_arrive_in_any_order_and_twice() -> None:
    frames = [data(2, 0, b"a"), data(2, 1, b"b"), data(2, 0, b"c", cycle=CYCLE + 1)]
    for order in permutations([*frames, frames[0]]):
        probe = Probe().begin()
        probe.wake(due(0, cycle=CYCLE + 1))
        for frame in order:
            probe.cbr.from_below(due(0, cycle=CYCLE + 1), frame)
        assert probe.delivered() == [b"a", b"b", b"c"]
        assert sum(probe.cbr.ignored.values()) == 1


def test_fragments_may_arrive_in_any_order() -> None:
    bodies = [b"aa", b"bb", b"c"]
    flags = [FRAGMENT | FIRST_FRAGMENT | MORE_FRAGMENTS, FRAGMENT | MORE_FRAGMENTS, FRAGMENT | END_OF_SLOT]
    fragments = [
        Frame(Kind.DATA, 2, 1, 0, turn_number(CYCLE, 0), number, flags[number], 2, 0, 0, None, bodies[number])
        for number in range(3)
    ]
    for order in permutations(fragments):
        probe = Probe().begin()
        probe.wake(EPOCH)
        for frame in order:
            probe.cbr.from_below(EPOCH, frame)
        assert probe.delivered() == [b"aabbc"]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (data(2, 0, b"a", b"b"), "not a turn of this order"),
        (data(2, 0, burst=0), "not a turn of this order"),
        (data(2, 0, burst=RATE_MAX + 1), "not a turn of this order"),
        (data(2, RATE_MAX), "not a turn of this order"),
        (data(2, 0, cycle=CYCLE - 1), "turn already delivered"),
        (Frame(Kind.DATA, 2, 9, 0, turn_number(CYCLE, 0), 0, END_OF_SLOT, 2), "another incarnation or epoch"),
        (Frame(Kind.DATA, 2, 1, 9, turn_number(CYCLE, 0), 0, END_OF_SLOT, 2), "another incarnation or epoch"),
        (Frame(Kind.JOIN, 2, 1, 0, 0, 0), "frame kind not used by this order"),
    ],
)
def test_ignored_frames_are_counted_by_reason(frame: Frame, reason: str) -> None:
    probe = Probe().begin()
    probe.wake(EPOCH)
    probe.cbr.from_below(EPOCH, frame)
    assert probe.cbr.ignored == {reason: 1}
    assert probe.cbr.processed == 1


def test_a_turn_is_late_only_after_delta_plus_gamma() -> None:
    probe = Probe().begin()
    probe.wake(EPOCH)
    probe.wake(EPOCH + 12 * MS)
    assert not probe.events()
    probe.wake(EPOCH + 12 * MS + 1)
    probe.wake(EPOCH + 12 * MS + 2)
    (violation,) = probe.events()
    assert isinstance(violation, Violation)
    assert (violation.kind, violation.member, violation.slot) == ("late", 2, TIMING.slot_of(EPOCH))


def test_turns_too_far_ahead_are_implausible() -> None:
    probe = Probe().begin()
    latest = probe.cbr.latest_slot(EPOCH)
    assert cycle_and_turn(latest)[0] == CYCLE + (TIMING.gamma_ns + HORIZON_NS) // CYCLE_NS + 1
    assert latest > TIMING.slot_of(EPOCH), "clock probes carry slots of length Θ, which must pass too"


# -- renegotiation -------------------------------------------------------------------------------------------------


def test_a_new_rate_is_declared_at_once_and_holds_from_the_next_cycle() -> None:
    probe = Probe().begin()
    probe.wake(EPOCH)
    probe.cbr.change_rate(EPOCH + 1, Rate(2, 1))
    assert probe.cbr.mode is CbrMode.RESERVE
    probe.wake(due(0, cycle=CYCLE + 1))
    frames = probe.sent()
    assert [frame.burst for frame in frames] == [4, 2, 2, 2, 2]
    assert [cycle_and_turn(frame.slot) for frame in frames][-1] == (CYCLE + 1, 0)
    reserved = [reservation.avg_bytes_per_s for reservation in probe.network.reserved]
    expected = [cbr_reservation(probe.policy, rate).avg_bytes_per_s for rate in (4, 4, 2)]
    assert reserved == expected, "the larger rate stays reserved until the smaller one is in force"


def test_the_last_of_several_new_rates_counts_and_a_refused_one_changes_nothing() -> None:
    probe = Probe().begin()
    probe.cbr.change_rate(EPOCH, Rate(9, 1))
    probe.network.full = True
    with pytest.raises(ReservationRefused):
        probe.cbr.change_rate(EPOCH, Rate(50, 1))
    probe.network.full = False
    probe.cbr.change_rate(EPOCH, Rate(6, 1))
    probe.wake(due(3))
    assert probe.sent()[-1].burst == 6


def test_receivers_change_porder_at_the_end_of_the_cycle() -> None:
    probe = Probe().begin()
    probe.cbr.from_below(EPOCH, data(2, 0, burst=5))
    probe.cbr.from_below(EPOCH, data(2, 1, burst=3))
    probe.wake(due(2))
    assert probe.cbr.porder == porder_by_sorting({1: 4, 2: 2})
    assert (probe.cbr.cycle, probe.cbr.processed) == (CYCLE, 5)
    probe.wake(due(3))
    assert (probe.cbr.cycle, probe.cbr.processed) == (CYCLE + 1, 6)
    assert probe.cbr.porder == porder_by_sorting({1: 4, 2: 3}), "the last turn decides"
    peer = probe.cbr.peer_rate(2)
    assert peer is not None
    assert peer.avg == 3
    assert probe.cbr.bound_ns() == 12 * MS + 333_333_334


def reserved_reply(probe: Probe, granted: bool = True, serial: int = 1) -> Frame:
    return control_frame(Reserved(serial, granted), 2, 1, 0)


def test_receiver_based_requests_repeat_each_cycle_until_confirmed() -> None:
    probe = Probe(reservation="receiver").begin()
    probe.cbr.change_rate(EPOCH, Rate(8, 1))
    (request,) = probe.sent(Kind.NEW_RATE)
    assert (request.to, request.message) == (2, NewRate(1, 8))
    probe.wake(due(0, cycle=CYCLE + 1))
    frames, probe.cbr.down[:] = probe.cbr.down[:], []
    assert [frame.burst for frame in frames if frame.kind is Kind.DATA] == [4] * 4
    assert [frame.kind for frame in frames].count(Kind.NEW_RATE) == 1
    probe.cbr.from_below(due(0, cycle=CYCLE + 1), reserved_reply(probe, serial=9))
    probe.wake(due(1, cycle=CYCLE + 1))
    assert probe.sent()[-1].burst == 4, "an answer to another request does not count"
    probe.cbr.from_below(due(1, cycle=CYCLE + 1), reserved_reply(probe))
    probe.wake(due(0, cycle=CYCLE + 2))
    assert [frame.burst for frame in probe.sent()] == [8, 8, 8]
    assert probe.cbr.mode is CbrMode.DELIVER_MESSAGES


def test_a_refusal_ends_the_renegotiation_and_releases_reservations() -> None:
    probe = Probe(reservation="receiver").begin()
    probe.cbr.change_rate(EPOCH, Rate(8, 1))
    probe.sent()
    probe.cbr.from_below(EPOCH, reserved_reply(probe, granted=False))
    (withdrawal,) = probe.sent(Kind.NEW_RATE)
    assert withdrawal.message == NewRate(2, 4)
    (violation,) = probe.events()
    assert isinstance(violation, Violation)
    assert violation.kind == "reservation_refused"
    assert probe.cbr.mode is CbrMode.DELIVER_MESSAGES


@pytest.mark.parametrize(
    ("by", "full", "granted"), [("receiver", False, 1), ("receiver", True, 0), ("sender", False, 0)]
)
def test_a_receiver_reserves_a_requested_rate_and_answers(by: str, full: bool, granted: int) -> None:
    probe = Probe(reservation=by).begin()
    probe.network.full = full
    probe.cbr.from_below(EPOCH, control_frame(NewRate(5, 6), 2, 1, 0))
    (answer,) = probe.sent(Kind.RESERVED)
    assert (answer.to, answer.message) == (2, Reserved(5, bool(granted)))
    if granted:
        assert probe.network.reserved[-1] == cbr_reservation(probe.policy, 6)
        probe.cbr.from_below(EPOCH, control_frame(NewRate(6, 2), 2, 1, 0))
        assert probe.network.reserved[-1] == cbr_reservation(probe.policy, 2), "a withdrawn request is released"


def test_a_receiver_without_bandwidth_for_a_first_rate_does_not_start() -> None:
    probe = Probe(reservation="receiver")
    probe.network.full = True
    probe.cbr.wake(T0)
    probe.cbr.from_below(T0, probe.hello(2))
    assert probe.cbr.mode is CbrMode.FIRST_RESERVE
    assert "no bandwidth to receive" in probe.cbr.peer_problems()[2]
    probe.network.full = False
    probe.cbr.from_below(T0, probe.hello(2))
    assert probe.cbr.running()


# -- leaving -------------------------------------------------------------------------------------------------------


def test_leaving_sends_accepted_messages_and_ends_with_the_cycle() -> None:
    probe = Probe().begin()
    probe.cbr.submit(EPOCH + 1, [b"last"])
    probe.cbr.leave(EPOCH + 2)
    assert probe.cbr.submit(due(1), [b"more"]) == 0
    probe.wake(due(3, cycle=CYCLE + 5))
    frames = probe.sent()
    assert [frame.flags for frame in frames] == [END_OF_SLOT, END_OF_SLOT, END_OF_SLOT, END_OF_SLOT | LEAVING]
    probe.peer(0, 1, now=due(3))
    events = probe.events()
    assert isinstance(events[0], Batch | Violation)
    assert events[-1] == LeaveComplete(TIMING.slot_of(due(0, cycle=CYCLE + 1) - 1))
    assert probe.cbr.wake_at() is None


def test_a_departed_peer_has_no_turns_from_the_next_cycle() -> None:
    probe = Probe().begin()
    probe.cbr.from_below(EPOCH, data(2, 0))
    probe.cbr.from_below(EPOCH, data(2, 1, flags=END_OF_SLOT | LEAVING))
    probe.wake(due(1, cycle=CYCLE + 1))
    change = probe.events()[-1]
    assert change == ViewChange(View((1,), TIMING.slot_of(due(0, cycle=CYCLE + 1))), left=(2,))
    assert probe.cbr.porder == (1,) * 4
    assert probe.cbr.processed == 8
    probe.peer(0, cycle=CYCLE + 2)
    probe.cbr.from_below(EPOCH, control_frame(NewRate(1, 9), 2, 1, 0))
    assert probe.cbr.ignored == {"sender has left": 2}
    assert not probe.sent(Kind.RESERVED), "a request of a departed sender gets no answer"


def test_a_departure_and_new_rates_at_the_same_cycle_boundary() -> None:
    """Regression: a rate of 0 among the others once broke the merge of a later change."""
    probe = Probe(members=(1, 2, 3))
    probe.cbr.wake(T0)
    for member in (2, 3):
        probe.cbr.from_below(T0, probe.hello(member))
    for turn, flags in ((0, END_OF_SLOT), (1, END_OF_SLOT | LEAVING)):
        probe.cbr.from_below(EPOCH, data(2, turn, flags=flags))
        probe.cbr.from_below(EPOCH, data(3, turn, burst=7))
    probe.wake(due(3))
    assert probe.cbr.porder == porder_by_sorting({1: 4, 3: 7})


# -- the wire ------------------------------------------------------------------------------------------------------


def test_valid_reservation_messages_pass_the_door_and_invalid_ones_do_not() -> None:
    door = Door(1, 1, (1, 2))

    def admitted(kind: Kind, body: bytes) -> Frame | None:
        datagram = encode(Frame(kind, 2, 1, 0, 5, 0, body=body), 1)
        return door.admit(datagram, 0, len(datagram), 10)

    for message in (NewRate(3, 70), Reserved(3, True), Reserved(3, False)):
        frame = admitted(*encode_message(message))
        assert frame is not None
        assert frame.message == message
    invalid = [
        encode_message(NewRate(3, 0)),
        (Kind.NEW_RATE, b"\0" * 7),
        (Kind.NEW_RATE, b"\1" * 9),
        (Kind.RESERVED, encode_message(Reserved(3, True))[1][:-1] + b"\2"),
        (Kind.RESERVED, b""),
    ]
    for kind, body in invalid:
        assert admitted(kind, body) is None
    assert door.refused == {Refusal.BAD_CONTROL: len(invalid)}


# -- the offer -----------------------------------------------------------------------------------------------------


def test_the_offer_has_theorem_1_a_period_per_burst_message_and_the_rate() -> None:
    result = offer(Ask(5, Rate(50, 1), TIMING))
    assert result.feasible
    assert result.latency_bound_ns == 12 * MS + 20 * MS
    assert (result.avg_rate, result.max_burst, result.gap_free, result.reliability) == (50.0, 1, True, 1.0)
    assert any("Δ+Γ = 10ms + 2ms = 12ms" in line for line in result.reasons)
    assert offer(Ask(5, Rate(50, 8), TIMING)).latency_bound_ns == 12 * MS + 160 * MS
    assert offer(Ask(64, Rate(50, 1), TIMING)).latency_bound_ns == result.latency_bound_ns
    assert offer(Ask(5, Rate(1000, 1), TIMING)).max_burst == 5


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"failures": 1}, "1 failures: none is tolerated"),
        ({"loss": 0.01}, "loss: none is tolerated"),
        ({"loss_burst": 2}, "loss: none is tolerated"),
        ({"fec": (1, 4)}, "loss: none is tolerated"),
        ({"rate": Rate(2.5, 1)}, "whole number of messages per second"),
    ],
)
def test_impossible_requests_are_refused_with_a_reason(asked: dict[str, Any], reason: str) -> None:
    result = offer(Ask(**{"members": 5, "rate": Rate(50, 1), "timing": TIMING, **asked}))
    assert not result.feasible
    assert reason in result.reasons[0]
