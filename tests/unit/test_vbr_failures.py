"""The VBR automaton with failures (paper 000 §6, §7), one member at a time; the test makes its peers' frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.full_rate import full_rate

from unisono.model.events import Batch, ClockViolation, Gap, LeaveComplete, StackEvent, View, ViewChange, Violation
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import UnlimitedNetwork
from unisono.net.clock_check import ClockDifference
from unisono.orders.contract import Mode
from unisono.orders.vbr import order as vbr
from unisono.orders.vbr.failures import TIMEOUTS_BEFORE_REPORT, VbrGaps, latency_bound_ns
from unisono.wire.codec import control_frame, message_in
from unisono.wire.control import Join, JoinStep
from unisono.wire.frame import END_OF_SLOT, LEAVING, SLOTS_MAY_DIFFER, Frame, Kind, OutgoingMessages

MS = 1_000_000
T0 = 10**18
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
FIRST = TIMING.smax(T0)
CONFIRMED = T0 + 2 * (TIMING.delta_ns + TIMING.gamma_ns)


def start(slot: int) -> int:
    return TIMING.start_of(slot)


def end(slot: int) -> int:
    return TIMING.end_of(slot)


def time_out(slot: int) -> int:
    return TIMING.end_of(slot) + TIMING.delta_ns + TIMING.gamma_ns


class Probe:
    """A member, with short helpers."""

    def __init__(self, me: int = 1, members: tuple[int, ...] = (1, 2, 3), **changes: Any) -> None:
        fields: dict[str, Any] = {"timing": TIMING, "rate": full_rate(3, TIMING), "max_message": 1000, "max_frame": 256}
        fields |= {"failures": True, "incarnation": 5}
        self.policy = Policy("g", me, View(members), **(fields | changes))
        self.order = VbrGaps(self.policy, UnlimitedNetwork())

    def begin(self) -> Probe:
        """Into DeliverMessages at slot FIRST; discards the events and frames of the start."""
        self.wake(T0)
        assert not self.order.running()
        self.order._slots_confirmed_at_ns = 0  # its slots are confirmed when it begins
        self.wake(start(FIRST))
        assert self.order.running()
        self.events()
        self.sent()
        return self

    def wake(self, now: int) -> None:
        self.order.wake(now)
        due = self.order.wake_at()
        assert due is None or due > now, "a wake makes progress"

    def sent(self, kind: Kind = Kind.DATA) -> list[Frame]:
        frames, self.order.down[:] = self.order.down[:], []
        return [frame for frame in frames if frame.kind is kind]

    def joins(self) -> list[tuple[int, Join]]:
        """The JOINs sent since the last call, with their receivers."""
        return [(frame.to, message_in(frame, Join)) for frame in self.sent(Kind.JOIN)]

    def events(self) -> list[StackEvent]:
        events, self.order.events[:] = self.order.events[:], []
        return events

    def delivered(self) -> list[bytes]:
        return [m for event in self.events() if isinstance(event, Batch) for m in event.messages]

    def violations(self) -> list[str]:
        return [event.kind for event in self.events() if isinstance(event, Violation)]

    def peer(
        self,
        sender: int,
        slot: int,
        *messages: bytes,
        incarnation: int = 1,
        number: int = 0,
        flags: int = END_OF_SLOT,
        now: int = 0,
    ) -> None:
        """A data frame of a peer arrives."""
        now = now or end(slot)
        sent = min(now, end(slot))
        self.order.from_below(
            now, data(sender, slot, *messages, incarnation=incarnation, number=number, flags=flags, sent_ns=sent)
        )

    def join(
        self,
        sender: int,
        slot: int,
        *,
        now: int,
        incarnation: int = 1,
        step: JoinStep = JoinStep.JOIN,
        known: int = 0,
        sent_ns: int | None = None,
        answers_ns: int = 0,
        theta_ns: int = TIMING.theta_ns,
    ) -> None:
        """A JOIN of a peer arrives."""
        join = Join(theta_ns, TIMING.delta_ns, TIMING.gamma_ns, slot, 50.0, 3, 3000, step, known)
        sent = now if sent_ns is None else sent_ns
        slot = TIMING.slot_of(sent)
        frame = control_frame(join, sender, incarnation, 0, slot=slot, burst=3, first_sequence=answers_ns, sent_ns=sent)
        self.order.from_below(now, frame)

    def pass_slot(self, slot: int, *absent: int) -> None:
        """A slot passes; all peers in the view except `absent` end it with an empty mark."""
        self.wake(end(slot))
        for member in self.order.view.members:
            if member != self.policy.member and member not in absent:
                self.peer(member, slot)
        self.wake(time_out(slot))


def data(
    sender: int,
    slot: int,
    *messages: bytes,
    incarnation: int = 1,
    number: int = 0,
    flags: int = END_OF_SLOT,
    sent_ns: int = 0,
) -> Frame:
    packed = OutgoingMessages(list(messages), False) if messages else None
    return Frame(
        Kind.DATA, sender, incarnation, 0, slot, number, flags, 3, 100 * slot + number, sent_ns or end(slot), packed
    )


def test_the_bound_is_that_of_theorem_5_and_gaps_are_possible() -> None:
    order = Probe().order
    assert order.bound_ns() == latency_bound_ns(TIMING) == 19 * MS
    assert not order.gap_free
    assert order.waiting_for() == (), "a member alone is a group"


# -- time-outs -------------------------------------------------------------------------------------------------------


def test_only_a_timer_times_members_out() -> None:
    """000-22: received frames are read before the timer, however late both are."""
    probe = Probe().begin()
    probe.wake(end(FIRST))
    late = time_out(FIRST) + 40 * MS
    probe.peer(2, FIRST, b"a", now=late)
    assert probe.order.view.members == (1, 2, 3)
    probe.peer(3, FIRST, b"b", now=late)
    assert probe.delivered() == [b"a", b"b"]
    assert probe.order.view.members == (1, 2, 3)


@pytest.mark.parametrize("early_ns", [0, 1])
def test_the_time_out_is_delta_plus_gamma_after_the_slots_end(early_ns: int) -> None:
    probe = Probe().begin()
    probe.wake(end(FIRST))
    probe.peer(2, FIRST, b"a")
    probe.wake(time_out(FIRST) - early_ns)
    changes = [event for event in probe.events() if isinstance(event, ViewChange)]
    assert changes == ([] if early_ns else [ViewChange(View((1, 2), FIRST + 1), left=(3,))])


def test_000_26_queued_frames_of_a_failed_member_are_dropped_from_the_next_slot_on() -> None:
    probe = Probe().begin()
    probe.wake(end(FIRST))
    probe.peer(2, FIRST)
    probe.peer(3, FIRST, b"some", flags=0)  # without an end-of-slot mark
    probe.peer(3, FIRST + 1, b"more", now=end(FIRST))
    probe.wake(time_out(FIRST))
    assert probe.delivered() == [b"some"]
    probe.pass_slot(FIRST + 1)
    assert probe.delivered() == []
    assert not probe.order._rqueues[3].slots


def test_001_6_frames_behind_a_gap_are_delivered_at_the_time_out_in_order_and_at_their_positions() -> None:
    probe = Probe().begin()
    probe.wake(end(FIRST))
    probe.peer(2, FIRST)
    probe.peer(3, FIRST, b"fourth", number=3, flags=0)
    probe.peer(3, FIRST, b"second", number=1, flags=0)
    assert probe.delivered() == []
    probe.wake(time_out(FIRST))
    batches = [event for event in probe.events() if isinstance(event, Batch)]
    assert [batch.messages for batch in batches] == [[b"second"], [b"fourth"]]
    assert [batch.first_position - (3 << 32) for batch in batches] == [
        batch.first_sequence % (1 << 32) for batch in batches
    ]


def test_a_slot_is_not_finished_before_our_clock_has_passed_it() -> None:
    """000-24: all members have ended early, and a JOIN for the next slot is still in time."""
    probe = Probe(rate=full_rate(1, TIMING)).begin()
    now = start(FIRST) + MS
    assert probe.order.submit(now, [b"all"]) == 1
    probe.peer(2, FIRST, now=now)
    probe.peer(3, FIRST, now=now)
    assert probe.delivered() == [b"all"]
    assert probe.order.wake_at() == end(FIRST)
    probe.join(3, FIRST + 1, now=end(FIRST) - 1, incarnation=2)
    probe.wake(end(FIRST))
    assert probe.violations() == []
    probe.peer(3, FIRST + 1, b"new", incarnation=2)
    assert probe.order._incarnations[3] == 2


# -- joining ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss_burst", [0, 2])
def test_a_member_names_smax_when_it_wakes_and_begins_there(loss_burst: int) -> None:
    probe = Probe(loss_burst=loss_burst)
    probe.order.wake(T0)
    assert [(to, join.step, join.slot) for to, join in probe.joins()] == [(0, JoinStep.JOIN, FIRST)] * (loss_burst + 1)
    probe.wake(start(FIRST) - 1)
    assert not probe.order.running()
    assert probe.order.submit(start(FIRST) - 1, [b"x"]) == 0
    probe.wake(start(FIRST))
    assert probe.order.running()
    assert probe.events() == [], "an answer may still name another schedule"
    assert probe.order.submit(CONFIRMED - 1, [b"x"]) == 0
    assert (probe.order.wake_at() or 0) <= CONFIRMED
    probe.wake(CONFIRMED)
    assert probe.events() == [ViewChange(View((1, 2, 3), FIRST), joined=(1, 2, 3))]
    assert probe.order.submit(CONFIRMED, [b"x"]) == 1


def test_a_rate_change_before_the_first_slot_is_not_taken_for_a_pause() -> None:
    probe = Probe()
    probe.wake(T0)
    probe.sent()
    probe.order.change_rate(T0 + MS, full_rate(2, TIMING))
    assert probe.events() == []
    assert probe.joins() == []
    probe.wake(start(FIRST))
    assert probe.order.max_send() == 2


def test_repeated_joins_change_nothing() -> None:
    probe = Probe().begin()
    probe.pass_slot(FIRST, 3)
    assert probe.order.view.members == (1, 2)
    at = FIRST + 4
    for _ in range(3):
        probe.join(3, at, now=time_out(FIRST), incarnation=7)
    probe.events()
    for slot in range(FIRST + 1, at):
        probe.pass_slot(slot)
    # The marks of `data` count 100 messages per slot, which this member has not received.
    events = [event for event in probe.events() if not isinstance(event, Gap)]
    assert events == [ViewChange(View((1, 2, 3), at), joined=(3,))]
    probe.join(3, at, now=end(at) - 1, incarnation=7)
    probe.peer(3, at, b"hello", incarnation=7)
    assert probe.violations() == []
    assert probe.joins() == []


def test_a_late_join_is_reported_and_takes_effect_at_the_next_slot() -> None:
    probe = Probe().begin()
    probe.pass_slot(FIRST, 3)
    probe.events()
    probe.join(3, FIRST, now=time_out(FIRST), incarnation=7)
    (late,) = probe.events()
    assert isinstance(late, Violation)
    assert (late.kind, late.member, late.slot) == ("late_join", 3, FIRST + 2)


@pytest.mark.parametrize("early", [True, False])
def test_a_join_for_a_slot_far_ahead_is_ignored(early: bool) -> None:
    probe = Probe()
    probe.wake(T0)
    if not early:
        probe.wake(start(FIRST))
        probe.pass_slot(FIRST, 3)
    probe.join(3, FIRST + 10**6, now=time_out(FIRST), incarnation=7)
    assert probe.order.ignored["join at an absurd slot"] == 1
    assert not probe.order._pending_joins.pending


def test_a_join_with_another_timing_is_ignored() -> None:
    probe = Probe().begin()
    probe.join(3, FIRST + 3, now=start(FIRST), incarnation=7, theta_ns=TIMING.theta_ns + 1)
    assert not probe.order._pending_joins.pending


def test_frames_of_an_old_incarnation_in_flight_are_never_delivered() -> None:
    probe = Probe().begin()
    at = FIRST + 2
    probe.peer(3, FIRST, b"old", incarnation=1)
    probe.join(3, at, now=end(FIRST), incarnation=2)
    probe.peer(3, at, b"new", incarnation=2, now=end(at))
    probe.peer(3, at, b"stale", incarnation=1, now=end(at))
    probe.peer(3, FIRST + 1, b"too soon", incarnation=2, now=end(at))
    for slot in (FIRST, FIRST + 1, at):
        probe.wake(end(slot))
        probe.peer(2, slot)
        probe.wake(time_out(slot))
    assert probe.delivered() == [b"old", b"new"]
    probe.peer(3, at + 1, b"stale", incarnation=1, now=end(at + 1))
    assert probe.order.ignored["not in the list, or another incarnation"] == 3


class AcceptsAnyIncarnation(VbrGaps):
    """A planted bug: does not check incarnations."""

    def _is_deliverable(self, now: int, frame: Frame) -> bool:
        frame.incarnation = 2
        return super()._is_deliverable(now, frame)


@pytest.mark.parametrize("order", [VbrGaps, AcceptsAnyIncarnation])
def test_a_planted_bug_that_accepts_the_old_incarnation_is_caught(order: type[VbrGaps]) -> None:
    probe = Probe()
    probe.order = order(probe.policy, UnlimitedNetwork())
    probe.begin()
    at = FIRST + 1
    probe.join(3, at, now=start(FIRST), incarnation=2)
    probe.peer(3, at, b"stale", incarnation=1)
    probe.peer(3, at, b"new", incarnation=2)
    for slot in (FIRST, at):
        probe.wake(end(slot))
        probe.peer(2, slot)
        probe.wake(time_out(slot))
    assert probe.delivered() == ([b"new"] if order is VbrGaps else [b"stale"])


def test_an_incarnation_that_ended_before_our_first_slot_is_not_taken_for_the_present_one() -> None:
    """Its frames arrive while we join; the next incarnation sent its JOIN before we started."""
    probe = Probe()
    probe.wake(T0)
    probe.peer(3, FIRST - 2, b"old", incarnation=1, now=T0 + MS)
    probe.wake(start(FIRST))
    probe.wake(CONFIRMED)
    probe.events()
    probe.wake(end(FIRST))
    probe.peer(2, FIRST)
    probe.peer(3, FIRST, b"new", incarnation=2)
    assert probe.delivered() == [b"new"]


def test_000_25_a_joining_member_answers_a_member_that_begins_before_it() -> None:
    probe = Probe()
    probe.wake(T0)
    probe.sent()
    probe.join(2, FIRST - 1, now=T0 + MS)
    probe.join(2, FIRST - 1, now=T0 + MS)
    probe.join(3, FIRST + 1, now=T0 + MS)
    assert [(to, join.step, join.slot) for to, join in probe.joins()] == [(2, JoinStep.ANSWER, FIRST)]


def test_a_leave_while_joining_makes_the_first_slot_the_last() -> None:
    probe = Probe()
    probe.wake(T0)
    probe.order.leave(T0 + 1)
    probe.wake(start(FIRST))
    assert probe.order.submit(start(FIRST), [b"x"]) == 0
    probe.sent()
    probe.wake(end(FIRST))
    (mark,) = probe.sent()
    assert (mark.slot, mark.flags) == (FIRST, END_OF_SLOT | LEAVING | SLOTS_MAY_DIFFER)
    probe.wake(time_out(FIRST))
    assert probe.events()[-1] == LeaveComplete(FIRST)
    assert probe.order.wake_at() is None


# -- merging ---------------------------------------------------------------------------------------------------------


def alone() -> Probe:
    """A member whose peers have all timed out."""
    probe = Probe().begin()
    probe.pass_slot(FIRST, 2, 3)
    assert probe.order.view.members == (1,)
    probe.events()
    probe.sent()
    return probe


def test_000_27_a_member_outside_the_view_is_asked_once_until_its_answer_must_have_arrived() -> None:
    probe = alone()
    now = time_out(FIRST)
    for _ in range(5):
        probe.order.from_below(now, data(2, TIMING.slot_of(now), sent_ns=now))
    assert [(to, join.step, join.slot, join.receiver_incarnation) for to, join in probe.joins()] == [
        (2, JoinStep.MERGE, TIMING.smax(now), 0)
    ]
    later = now + 2 * TIMING.delta_ns
    probe.order.from_below(later, data(2, TIMING.slot_of(later), sent_ns=later))
    assert probe.joins() == []
    later = start(TIMING.smax(now)) + TIMING.delta_ns
    probe.order.from_below(later, data(2, TIMING.slot_of(later), sent_ns=later))
    assert len(probe.joins()) == 1


def test_000_27_a_request_is_answered_once_and_an_answer_is_not_answered() -> None:
    probe = alone()
    now = time_out(FIRST)
    at = TIMING.smax(now)
    for _ in range(3):
        probe.join(2, at, now=now, step=JoinStep.MERGE, known=5)
    assert [(to, join.step) for to, join in probe.joins()] == [(2, JoinStep.ANSWER)]
    probe.join(3, at, now=now, step=JoinStep.ANSWER, known=5)
    assert probe.joins() == []
    assert probe.order._pending_joins.pending == {2: [(at, 1)], 3: [(at, 1)]}


# -- two processes with one member number ----------------------------------------------------------------------------


def test_a_member_leaves_when_a_later_process_uses_its_number() -> None:
    probe = Probe().begin()
    probe.join(2, FIRST + 4, now=end(FIRST), step=JoinStep.MERGE, known=6)
    violation, left = probe.events()
    assert isinstance(violation, Violation)
    assert (violation.kind, violation.member) == ("number_taken", 1)
    assert isinstance(left, LeaveComplete)
    assert probe.joins() == []


def test_the_older_of_two_processes_with_one_number_is_answered_and_never_delivered() -> None:
    probe = Probe().begin()
    probe.peer(3, FIRST, b"newer", incarnation=9)
    probe.peer(3, FIRST, b"older", incarnation=8)
    assert [(to, join.step, join.receiver_incarnation) for to, join in probe.joins()] == [(3, JoinStep.MERGE, 9)]
    probe.wake(end(FIRST))
    probe.peer(2, FIRST)
    assert probe.delivered() == [b"newer"]


# -- clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beyond_ns", [0, 1])
def test_a_clock_may_be_ahead_by_gamma_but_not_by_more(beyond_ns: int) -> None:
    probe = Probe().begin()
    now = start(FIRST) + MS
    sent = now + TIMING.gamma_ns + beyond_ns
    probe.order.from_below(now, data(2, FIRST, b"x", sent_ns=sent))
    assert probe.violations() == ["clock"] * beyond_ns
    answers = [(f.to, f.first_sequence) for f in probe.sent(Kind.JOIN)]
    assert answers == [(2, sent)] * beyond_ns, "the answer carries the clock reading that shows it"
    probe.pass_slot(FIRST)
    assert probe.order.view.members == ((1, 3) if beyond_ns else (1, 2, 3))
    if beyond_ns:
        probe.join(2, FIRST + 6, now=time_out(FIRST), step=JoinStep.MERGE)
        assert not probe.order._pending_joins.pending, "this incarnation stays out"
        assert len(probe.joins()) == 1, "and gets an answer that shows why"
        probe.join(2, FIRST + 6, now=time_out(FIRST), incarnation=2)
        assert probe.order._pending_joins.pending == {2: [(FIRST + 6, 2)]}, "but the next incarnation may join"


@pytest.mark.parametrize("beyond_ns", [0, 1])
def test_an_answer_shows_a_clock_that_is_behind_by_more_than_gamma(beyond_ns: int) -> None:
    probe = Probe().begin()
    asked, now = end(FIRST), end(FIRST) + 4 * MS
    sent = asked - TIMING.gamma_ns - beyond_ns
    probe.join(2, FIRST + 5, now=now, step=JoinStep.ANSWER, sent_ns=sent, answers_ns=asked)
    assert probe.violations() == ["clock"] * beyond_ns


def test_a_member_from_which_most_clocks_differ_leaves() -> None:
    probe = Probe(members=(1, 2, 3, 4)).begin()
    now = start(FIRST)
    for member in (2, 3):
        probe.order.from_below(now, data(member, FIRST, sent_ns=now + 3 * MS))
    assert probe.violations() == ["clock", "clock", "own_clock"]
    assert probe.order.mode is Mode.LEFT
    probe.peer(4, FIRST)
    probe.join(4, FIRST + 5, now=now, step=JoinStep.MERGE)
    assert probe.events() == []


def difference(peer: int, difference_ns: int, incarnation: int = 1) -> ClockDifference:
    return ClockDifference(peer, incarnation, difference_ns)


def test_a_member_fenced_for_its_round_trips_is_informed() -> None:
    probe = Probe().begin()
    probe.peer(2, FIRST, now=start(FIRST) + MS)
    probe.order.on_clock_difference(start(FIRST) + MS, difference(2, -3 * MS))
    (violation,) = [event for event in probe.events() if isinstance(event, ClockViolation)]
    assert (violation.kind, violation.member, violation.off_ns) == ("clock", 2, -3 * MS)
    assert violation.text == "member 2's clock is 3ms behind ours, more than Γ = 2ms: it is left out"
    assert [(to, join.step, join.receiver_incarnation) for to, join in probe.joins()] == [(2, JoinStep.FENCED, 1)]
    probe.order.on_clock_difference(start(FIRST) + 2 * MS, difference(2, -4 * MS))
    assert (probe.violations(), probe.joins()) == ([], []), "reported once"
    probe.pass_slot(FIRST)
    assert probe.order.view.members == (1, 3)


@pytest.mark.parametrize("known", [0, 5])
def test_a_fenced_member_fences_the_sender_too(known: int) -> None:
    probe = Probe().begin()
    probe.join(2, FIRST + 5, now=start(FIRST) + MS, step=JoinStep.FENCED, known=known)
    (violation,) = [event for event in probe.events() if isinstance(event, ClockViolation)]
    assert violation.text == "member 2's clock differs from ours by more than Γ = 2ms: it is left out"
    assert probe.joins() == [], "the sender knows already"
    assert not probe.order._pending_joins.pending


def test_a_fence_of_an_earlier_incarnation_is_ignored() -> None:
    probe = Probe().begin()
    probe.join(2, FIRST + 5, now=start(FIRST) + MS, step=JoinStep.FENCED, known=4)
    assert probe.violations() == []
    probe.pass_slot(FIRST)
    assert probe.order.view.members == (1, 2, 3)


def test_a_member_with_a_wrong_clock_informs_all_members_before_it_leaves() -> None:
    probe = Probe(members=(1, 2, 3, 4)).begin()
    for member in (2, 3):
        probe.order.on_clock_difference(start(FIRST), difference(member, -3 * MS))
    assert probe.violations() == ["clock", "clock", "own_clock"]
    informed = [to for to, join in probe.joins() if join.step is JoinStep.FENCED]
    assert set(informed) == {2, 3, 4}
    probe.order.on_clock_difference(start(FIRST), difference(4, -3 * MS))
    assert probe.events() == []


def test_a_member_that_times_out_again_and_again_is_reported_once() -> None:
    probe = Probe(members=(1, 2)).begin()
    reported: list[Violation] = []
    slot = FIRST
    for _ in range(3 * TIMEOUTS_BEFORE_REPORT):
        probe.wake(time_out(slot))
        assert 2 not in probe.order.view.members
        probe.join(2, slot + 5, now=time_out(slot), step=JoinStep.ANSWER)
        while probe.order._deliver_slot < slot + 5:
            probe.wake(time_out(probe.order._deliver_slot))
        assert 2 in probe.order.view.members
        slot = probe.order._deliver_slot
        reported += [event for event in probe.events() if isinstance(event, Violation)]
    assert [(violation.kind, violation.member) for violation in reported] == [("unsteady", 2)]
    assert f"member 2 timed out and was added again {TIMEOUTS_BEFORE_REPORT} times in a row" in reported[0].text


def test_a_frame_of_a_slot_that_its_own_clock_has_not_reached_is_ignored() -> None:
    probe = Probe().begin()
    probe.order.from_below(end(FIRST), data(2, FIRST + 50, b"x", sent_ns=end(FIRST)))
    assert not probe.order._rqueues[2].slots


# -- pauses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beyond_ns", [0, 1])
def test_after_a_pause_longer_than_the_time_out_a_member_joins_again_and_holds_its_messages_until_then(
    beyond_ns: int,
) -> None:
    probe = Probe().begin()
    assert probe.order.submit(start(FIRST), [b"held"]) == 1
    now = time_out(FIRST) + beyond_ns
    probe.wake(now)
    if not beyond_ns:
        assert probe.sent()[0].slot == FIRST, "late, but not too late for a clock that jumped by Γ"
        return
    assert "paused" in probe.violations()
    at = TIMING.smax(now)
    (frame,) = [frame for frame in probe.order.down if frame.kind is Kind.JOIN]
    join = message_in(frame, Join)
    assert (join.step, join.slot) == (JoinStep.JOIN, at)
    assert probe.sent() == []
    assert probe.order.submit(start(at) - 1, [b"x"]) == 0
    assert probe.order.submit(start(at), [b"x", b"y", b"z"]) == 2, "messages held back count against the burst"
    (last,) = probe.sent()
    assert last.packed_messages is not None
    assert (last.slot, last.packed_messages.messages(), last.first_sequence) == (at, [b"held", b"x", b"y"], 0)


def test_a_paused_member_in_the_view_is_expected_again_at_the_slot_that_it_names() -> None:
    """Its JOIN arrives before it has timed out: the slots in between are its gap, and no merge is needed."""
    probe = Probe().begin()
    probe.peer(3, FIRST, b"before")
    at = FIRST + 5
    probe.join(3, at, now=end(FIRST) + MS)
    probe.pass_slot(FIRST)
    for slot in range(FIRST + 1, at):
        probe.pass_slot(slot, 3)
    removed = ViewChange(View((1, 2), FIRST + 2), left=(3,))
    added = ViewChange(View((1, 2, 3), at), joined=(3,))
    assert [event for event in probe.events() if isinstance(event, ViewChange)] == [removed, added]


# -- loss ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss_burst", [1, 2, 3])
def test_000_28_x_silent_slots_are_tolerated_and_one_more_is_not(loss_burst: int) -> None:
    probe = Probe(loss_burst=loss_burst).begin()
    for slot in range(FIRST, FIRST + loss_burst):
        probe.pass_slot(slot, 3)
    assert 3 in probe.order.view.members
    probe.pass_slot(FIRST + loss_burst, 3)
    assert 3 not in probe.order.view.members


def test_000_28_separate_silent_slots_do_not_add_up() -> None:
    probe = Probe(loss_burst=1).begin()
    for slot in range(FIRST, FIRST + 20, 2):
        probe.pass_slot(slot, 3)
        probe.pass_slot(slot + 1)
    assert probe.order.view.members == (1, 2, 3)


def test_section_7_a_frame_of_a_later_slot_ends_the_earlier_one() -> None:
    probe = Probe(loss_burst=1).begin()
    probe.wake(end(FIRST))
    probe.peer(2, FIRST, b"half", number=1, flags=0)
    probe.peer(3, FIRST, b"whole")
    assert probe.delivered() == []
    probe.peer(2, FIRST + 1, now=end(FIRST) + MS)
    assert probe.delivered() == [b"half", b"whole"], "without the time-out"


# -- documentation ---------------------------------------------------------------------------------------------------


def test_the_documented_trade_off_table_matches_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "vbr_failures.md").read_text(encoding="utf-8")
    shown = page.split("<!-- trade-off -->\n", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    expected = []
    for theta in (1, 2, 5, 10, 20, 50):
        timing = Timing(20 * MS, 2 * MS, theta * MS)
        bound, without = latency_bound_ns(timing) // MS, vbr.latency_bound_ns(timing) // MS
        # A member that crashes at the first instant of a slot, by a clock Γ ahead, times out with that slot.
        noticed = (timing.theta_ns + timing.delta_ns + 2 * timing.gamma_ns) // MS
        # Smax begins at most Δ+Γ+Θ after the clock reading that it is computed from.
        joins = max(timing.start_of(timing.smax(phase)) - phase for phase in range(0, timing.theta_ns, MS)) // MS
        expected.append(f"| {theta} ms | {bound} ms | {without} ms | {noticed} ms | {joins} ms | {1000 // theta} |")
    assert shown == expected
