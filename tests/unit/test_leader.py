"""Leader broadcast as an automaton: modes, rate, refused input, terms and votes, wire form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.full_rate import full_rate
from tests.stepping import events, outgoing

from unisono.errors import MessageTooLarge, ReservationRefused
from unisono.model.events import Batch, LeaveComplete, View, ViewChange, Violation
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import BandwidthReservation, Rate, UnlimitedNetwork, group_key
from unisono.net.layer import NO_ROOM
from unisono.orders.contract import ACCEPTED_INPUTS, Input, Mode
from unisono.orders.leader.base import LeaderOrderBase
from unisono.orders.leader.broadcast import MAX_PENDING_BYTES, LeaderBroadcast
from unisono.orders.leader.election import heartbeat_timeout_ns, leader_change_bound_ns, outage_ns, vote_wait_ns
from unisono.orders.leader.messages import (
    MEMBER_LIST,
    ORDERED_BYTES,
    TERM_MAX,
    EntryHeader,
    EntryType,
    LastFrames,
    MemberList,
    MissingKind,
    Ordered,
    RetransmitRequest,
    StampRequest,
    StreamHeartbeat,
    Vote,
    VoteRequest,
    decode_entry_header,
    encode_entry_header,
)
from unisono.orders.leader.stream import (
    MAX_REQUESTED_HOLES,
    MAX_RESENT_BYTES,
    MAX_RESENT_ENTRIES,
    RETAINED_ENTRIES,
    WINDOW,
    OrderedStream,
    RetransmitTimer,
    read_entry,
)
from unisono.orders.leader.timestamp import TimestampLeader
from unisono.stack import ORDERS, Stack, build
from unisono.wire.codec import Unreadable, control_frame, decode_message, encode_message
from unisono.wire.door import Door, Refusal
from unisono.wire.frame import END_OF_SLOT, LEAVING, Frame, Kind, encode

MS = 1_000_000
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
START = 1_700_000_000_000 * MS


def policy(member: int, members: int = 3, order: str = "leader", rate: Rate | None = None) -> Policy:
    view = View(tuple(range(1, members + 1)))
    return Policy("unit", member, view, TIMING, rate or full_rate(4, TIMING), order=order, max_message=100)


HEADER = EntryHeader(3, 7, 2, 1, EntryType.RELAY, 2, 1, 40, 0, 9)


class Bench:
    """Stacks that exchange datagrams without delay, unless a test keeps some back."""

    def __init__(self, members: int = 3, order: str = "leader", rate: Rate | None = None) -> None:
        self.now = START
        self.stacks: dict[int, Stack] = {m: build(policy(m, members, order, rate)) for m in range(1, members + 1)}
        self.isolated: set[int] = set()
        """Members that neither send nor receive; `wait` does not wake them either."""
        self.events: dict[int, list[object]] = {m: [] for m in self.stacks}
        for stack in self.stacks.values():
            stack.wake(self.now)
            stack.wake(self.now)
        self.exchange()

    def order(self, member: int) -> LeaderOrderBase:
        order = self.stacks[member].order
        assert isinstance(order, LeaderOrderBase)
        return order

    def exchange(self) -> None:
        """Transmit datagrams until no stack sends any more, and collect the events."""
        sent = True
        while sent:
            sent = False
            for member, stack in self.stacks.items():
                for datagram in outgoing(stack):
                    for other in datagram.destinations:
                        if other != member and not {member, other} & self.isolated:
                            self.stacks[other].receive(self.now, datagram.data)
                    sent = True
                self.events[member] += events(stack)

    def wait(self, until: int) -> None:
        """Advance to `until` after the start, in steps of a quarter of a slot."""
        while self.now < START + until:
            self.now = min(self.now + TIMING.theta_ns // 4, START + until)
            for member, stack in self.stacks.items():
                if member not in self.isolated:
                    stack.wake(self.now)
            self.exchange()

    def wait_with_late_timers(self, until: int, late_ns: int) -> None:
        """Advance to `until` after the start; every timer of the election is late by `late_ns`."""
        while self.now < START + until:
            running = [m for m in self.stacks if m not in self.isolated]
            due = [at for m in running if (at := self.order(m).election.wake_at()) is not None]
            self.now = max(self.now, min(due)) + late_ns
            for member in running:
                self.stacks[member].wake(self.now)
            self.exchange()

    def texts(self, member: int) -> list[bytes]:
        return [text for event in self.events[member] if isinstance(event, Batch) for text in event.messages]

    def violations(self, member: int) -> list[str]:
        return [event.kind for event in self.events[member] if isinstance(event, Violation)]


@pytest.mark.parametrize("order", ["leader", "timestamp"])
def test_members_deliver_in_one_order(order: str) -> None:
    bench = Bench(order=order)
    assert bench.stacks[2].submit(bench.now, [b"a", b"b"]) == 2
    assert bench.stacks[1].submit(bench.now, [b"c"]) == 1
    bench.exchange()
    bench.wait(30 * MS)
    assert len(bench.texts(1)) == 3
    assert bench.texts(1) == bench.texts(2) == bench.texts(3)


@pytest.mark.parametrize("order", ["leader", "timestamp"])
def test_a_group_of_one_works_alone(order: str) -> None:
    bench = Bench(1, order)
    assert bench.stacks[1].submit(bench.now, [b"alone"]) == 1
    bench.exchange()
    bench.wait(10 * MS)
    assert bench.texts(1) == [b"alone"]
    bench.stacks[1].leave(bench.now)
    bench.exchange()
    assert isinstance(bench.events[1][-1], LeaveComplete)


def test_every_mode_accepts_the_inputs_of_the_table() -> None:
    def fresh(mode: Mode) -> LeaderBroadcast:
        order = LeaderBroadcast(policy(1, 1), UnlimitedNetwork())
        if mode is Mode.DET_RATE:
            order = LeaderBroadcast(policy(1, 2), UnlimitedNetwork())
            order.wake(START)
        if mode in {Mode.DELIVER_MESSAGES, Mode.LEFT}:
            order.wake(START)
        if mode is Mode.LEFT:
            order.leave(START)
        assert order.mode is mode
        return order

    for mode, accepted in ACCEPTED_INPUTS.items():
        assert bool(fresh(mode).submit(START, [b"x"])) == (Input.SUBMIT in accepted)
        order = fresh(mode)
        order.change_rate(START, full_rate(2, TIMING))
        assert (order._pacer.next_rate is not None) == (Input.NEW_RATE in accepted)
        order = fresh(mode)
        before = len(order.events)
        order.leave(START)
        assert (len(order.events) > before) == (Input.LEAVE in accepted)


def test_a_slot_accepts_the_burst_and_no_more() -> None:
    bench = Bench()
    assert bench.stacks[2].submit(bench.now, [b"x"] * 9) == 4
    assert bench.stacks[2].submit(bench.now, [b"x"]) == 0
    bench.exchange()
    bench.wait(5 * MS)
    assert bench.stacks[2].submit(bench.now, [b"x"] * 9) == 4


@pytest.mark.parametrize("order", [LeaderBroadcast, TimestampLeader])
def test_a_message_larger_than_declared_is_refused(order: type[LeaderOrderBase]) -> None:
    with pytest.raises(MessageTooLarge):
        order(policy(1), UnlimitedNetwork()).submit(START, [b"x" * 101])


class FullNetwork:
    def reserve(self, reservation: BandwidthReservation) -> None:
        raise ReservationRefused(reservation.needed_bytes_per_s, 0, 1)


class RecordingReserver:
    def __init__(self) -> None:
        self.reserved: list[BandwidthReservation] = []

    def reserve(self, reservation: BandwidthReservation) -> None:
        self.reserved.append(reservation)


@pytest.mark.parametrize("order", [LeaderBroadcast, TimestampLeader])
def test_a_network_without_bandwidth_is_not_joined(order: type[LeaderOrderBase]) -> None:
    with pytest.raises(ReservationRefused):
        order(policy(1), FullNetwork())
    first, second = RecordingReserver(), RecordingReserver()
    order(policy(1), first)
    order(policy(2), second)
    assert first.reserved[0].burst_bytes_per_slot > second.reserved[0].burst_bytes_per_slot, "the leader sends for all"


def test_without_a_leader_submit_applies_back_pressure() -> None:
    bench = Bench()
    bench.isolated = {1, 3}
    accepted = 0
    for _ in range(100):
        accepted += bench.stacks[2].submit(bench.now, [b"x"])
        bench.wait(bench.now - START + 5 * MS)
    assert accepted <= bench.order(2).window_slots + 2
    assert bench.stacks[2].submit(bench.now, [b"x"]) == 0
    assert "late" in bench.violations(2)


@pytest.mark.parametrize("order", ["leader", "timestamp"])
def test_the_lowest_live_member_leads_next_and_old_frames_are_ignored(order: str) -> None:
    bench = Bench(4, order)
    bench.stacks[1].submit(bench.now, [b"first"])
    stale = outgoing(bench.stacks[1])
    bench.isolated = {1}
    bench.wait(leader_change_bound_ns(TIMING) + 10 * MS)
    assert [bench.order(m).election.leader for m in (2, 3, 4)] == [2, 2, 2]
    assert bench.order(2).election.term == 1
    assert bench.violations(3) == ["leader_lost"]
    assert [e.left for e in bench.events[4] if isinstance(e, ViewChange)][-1] == (1,)
    before = bench.order(3).ignored["an old term"]
    ordered = [datagram.data for datagram in stale if datagram.data[1] in {Kind.ORDERED, Kind.STREAM_HEARTBEAT}]
    for data in ordered:
        bench.stacks[3].receive(bench.now, data)
    assert ordered
    assert bench.order(3).ignored["an old term"] == before + len(ordered)


def test_a_member_votes_only_after_the_leader_timed_out_and_once_per_term() -> None:
    bench = Bench(4)
    voter = bench.order(3).election

    def answers_to_request(term: int, sender: int) -> list[Kind]:
        frame = control_frame(VoteRequest(term), sender, 1, 0, sent_ns=bench.now)
        bench.order(3).from_below(bench.now, frame)
        kinds = [frame.kind for frame in bench.order(3).down]
        bench.order(3).down.clear()
        return kinds

    assert Kind.VOTE not in answers_to_request(1, 2), "the leader is alive"
    bench.isolated = {1, 2, 4}
    bench.now += 2 * TIMING.delta_ns
    while voter.promised_term == 0 and bench.now < START + 200 * MS:
        bench.now += MS
        bench.order(3).wake(bench.now)
    assert voter.promised_term == 1, "the leader timed out: it answers the deferred request"
    bench.order(3).down.clear()
    assert Kind.VOTE not in answers_to_request(1, 3), "term 1 does not belong to member 3"
    assert answers_to_request(1, 2) == [Kind.VOTE], "the same vote again, in case it was lost"
    assert Kind.VOTE not in answers_to_request(0, 1)


def test_each_term_belongs_to_one_member() -> None:
    election = Bench(4).order(1).election
    assert [election.membership.leader_of(term) for term in range(6)] == [1, 2, 3, 4, 1, 2]


def test_a_leader_without_a_majority_orders_nothing() -> None:
    bench = Bench(2)
    bench.isolated = {2}
    bench.wait(100 * MS)
    assert bench.stacks[1].submit(bench.now, [b"x"]) == 1
    bench.exchange()
    assert bench.texts(1) == []
    assert "no_majority" in bench.violations(1)
    bench.isolated = set()
    bench.wait(200 * MS)
    assert bench.texts(1) == bench.texts(2) == [b"x"]


@pytest.mark.parametrize("late_ms", [3, 6, 11])
def test_members_with_late_timers_replace_a_crashed_leader(late_ms: int) -> None:
    """Timers that are always later than Γ delay the time-out. They do not restart it each time."""
    bench = Bench(3)
    bench.isolated = {1}
    bench.wait_with_late_timers(500 * MS, late_ms * MS)
    assert [bench.order(m).election.leader for m in (2, 3)] == [2, 2]


def test_after_a_pause_a_member_waits_a_whole_timeout_for_its_leader() -> None:
    bench = Bench(3)
    bench.wait(50 * MS)
    bench.isolated, bench.now = {1, 3}, START + 500 * MS
    bench.stacks[2].wake(bench.now)
    bench.wait(500 * MS + heartbeat_timeout_ns(TIMING))
    assert bench.order(2).election.leader == 1
    bench.wait(501 * MS + heartbeat_timeout_ns(TIMING))
    assert bench.order(2).election.leader is None


@pytest.mark.parametrize("crashed", [{3}, {2, 3}])
def test_a_leader_with_late_timers_notices_crashed_followers(crashed: set[int]) -> None:
    bench = Bench(3)
    bench.isolated = crashed
    bench.wait_with_late_timers(500 * MS, 3 * MS)
    standing = bench.stacks[1].standing(bench.now)
    assert standing.majority is (len(crashed) == 1)
    if len(crashed) == 1:
        assert bench.order(1).election.membership.current_members == (1, 2)
    else:
        assert "no_majority" in bench.violations(1)


@pytest.mark.parametrize("order", ["leader", "timestamp"])
def test_a_follower_of_a_leader_without_a_majority_has_none(order: str) -> None:
    bench = Bench(5, order)
    bench.wait(50 * MS)
    bench.isolated = {3, 4, 5}
    bench.wait(200 * MS)
    assert bench.order(2).election.leader == 1
    assert [bench.stacks[m].standing(bench.now).majority for m in (1, 2)] == [False, False]
    assert bench.violations(2).count("no_majority") == 1
    bench.isolated = {4, 5}
    bench.wait(400 * MS)
    assert [bench.stacks[m].standing(bench.now).majority for m in (1, 2, 3)] == [True, True, True]


def test_a_forged_term_ends_no_member() -> None:
    bench = Bench(3)
    for term in (2**32 - 1, TERM_MAX):
        forged = encode(control_frame(VoteRequest(term), 2, 1, 0, sent_ns=bench.now), group_key("unit"))
        bench.stacks[3].receive(bench.now, forged)
    bench.isolated = {1, 2}  # member 3 becomes a candidate for the term after the forged one
    bench.wait(500 * MS)
    assert bench.order(3).election.promised_term > TERM_MAX
    assert bench.stacks[3].door.refused[Refusal.BAD_CONTROL] == 1


@pytest.mark.parametrize(
    ("order", "foreign"), [("leader", HEADER._replace(entry_type=EntryType.GRANT, stamps=1)), ("timestamp", HEADER)]
)
def test_an_entry_of_the_other_leader_order_is_ignored(order: str, foreign: EntryHeader) -> None:
    bench = Bench(3, order)
    position = bench.order(2).election.stream.position + 1
    header = foreign._replace(term=0, position=position, entry_term=0, previous_term=0, origin=1)
    body = encode_entry_header(header) + (b"" if header.stamps else b"\0\1\0\3abc")
    bench.stacks[2].receive(
        bench.now, encode(Frame(Kind.ORDERED, 1, 1, 0, 5, 0, sent_ns=bench.now, body=body), group_key("unit"))
    )
    bench.exchange()
    assert bench.order(2).ignored["entry type not used by this order"] == 1
    assert bench.texts(2) == []


def test_the_leader_is_ahead_of_the_slowest_member_by_at_most_the_window() -> None:
    order = Bench(3).order(1)
    assert order.election.may_order(START + MS)
    order.election.stream.position = WINDOW
    assert not order.election.may_order(START + MS)


def ordered_without(member: int, slots: int) -> Bench:
    """A group whose leader orders 500 frames in each of `slots` slots; this member is cut off in that time."""
    bench = Bench(3, rate=Rate(100_000, 500))
    bench.wait(30 * MS)
    bench.isolated = {member}
    bench.wait(80 * MS)
    assert bench.order(1).view.members == tuple(m for m in (1, 2, 3) if m != member)
    for slot in range(slots):
        for _ in range(500):
            assert bench.stacks[1].submit(bench.now, [b"entry"]) == 1
        bench.exchange()
        bench.wait((85 + 5 * slot) * MS)
    bench.isolated = set()
    return bench


def test_a_member_that_lacks_many_entries_has_them_within_three_slots() -> None:
    """It requests 512 entries at a time, and more as soon as it has them."""
    bench = ordered_without(3, slots=6)
    bench.wait(bench.now - START + 3 * TIMING.theta_ns)
    assert bench.texts(3) == bench.texts(1) == [b"entry"] * 3000
    bench.wait(bench.now - START + TIMING.theta_ns)
    assert bench.order(1).view.members == (1, 2, 3)
    assert bench.violations(3) == []


def test_a_member_leaves_if_the_leader_no_longer_retains_what_it_lacks() -> None:
    bench = ordered_without(3, slots=RETAINED_ENTRIES // 500 + 1)
    bench.wait(bench.now - START + 2 * TIMING.theta_ns)
    assert bench.violations(3) == ["fenced_out"]
    assert bench.order(3).mode is Mode.LEFT


def test_an_answer_to_a_request_is_bounded_in_entries_and_bytes() -> None:
    def answered(size: int, count: int) -> int:
        stream, frame = OrderedStream(), Frame(Kind.ORDERED, 1, 1, 0, 0, 0, body=bytes(ORDERED_BYTES + size))
        for position in range(1, 1001):
            stream.accept(read_entry(frame, Ordered(HEADER._replace(position=position))))
        return len(list(stream.retained_entries(10, count)))

    assert answered(0, 20) == 20
    assert answered(0, 900) == MAX_RESENT_ENTRIES
    assert answered(60_000, 900) == -(-MAX_RESENT_BYTES // 60_000)


@pytest.mark.parametrize("last_is_lost", [False, True])
def test_the_leader_requests_frames_that_it_lacks(last_is_lost: bool) -> None:
    """Two frames of a member are lost. If the last one is lost, too, the member sends it again after 2Δ+p+Γ."""
    bench = Bench(3)
    for text in (b"first", b"second", b"third"):
        bench.isolated = {2} if last_is_lost or text != b"third" else set()
        assert bench.stacks[2].submit(bench.now, [text]) == 1
        bench.exchange()
    bench.isolated = set()
    assert bench.texts(1) == []
    overdue = bench.order(2).bound_ns() + TIMING.gamma_ns if last_is_lost else 0
    bench.wait(overdue + 3 * TIMING.theta_ns)
    assert bench.texts(1) == bench.texts(3) == [b"first", b"second", b"third"]
    assert bench.order(1).ignored["duplicate"] == 0


def test_missing_data_are_requested_again_after_about_a_round_trip() -> None:
    """Slots take 5 ms, and the longest round trip takes 24 ms."""
    timer = RetransmitTimer(TIMING)

    def asked_at(missing: int, slots: range) -> list[int]:
        asked = []
        for slot in slots:
            if timer.is_due(slot * TIMING.theta_ns, missing):
                timer.record_asked(slot * TIMING.theta_ns)
                asked.append(slot)
        return asked

    assert asked_at(7, range(30)) == [1, 2, 4, 8, 14, 20, 26]
    assert asked_at(9, range(30, 40)) == [31, 36], "the last answer took at least four slots"
    assert asked_at(10, range(40, 43)) == [41]
    assert asked_at(11, range(43, 48)) == [44, 47], "the last answer took two slots"
    timer.expect(None)
    assert not timer.is_due(200 * TIMING.theta_ns, None)


def test_holes_of_the_stream_are_requested_up_to_a_limit() -> None:
    def holes(*arrived: int) -> list[tuple[int, int]]:
        stream = OrderedStream()
        for position in arrived:
            ordered = Ordered(HEADER._replace(position=position))
            assert stream.store_ahead(read_entry(Frame(Kind.ORDERED, 1, 1, 0, 0, 0), ordered))
        return list(stream.holes(2000))

    assert holes(2, 3, 6) == [(1, 1), (4, 2), (7, MAX_RESENT_ENTRIES - 3)]
    assert holes(*range(2, 100, 2)) == [(position, 1) for position in range(1, 2 * MAX_REQUESTED_HOLES, 2)]
    assert holes(*range(1, 2001)) == []


def test_leaving_before_the_start_departs_at_once() -> None:
    order = LeaderBroadcast(policy(1), UnlimitedNetwork())
    order.leave(START)
    assert order.mode is Mode.LEFT
    assert order.wake_at() is None


def test_timeouts_and_bounds_have_their_stated_values() -> None:
    assert heartbeat_timeout_ns(TIMING) == 21 * MS
    assert vote_wait_ns(TIMING) == 24 * MS
    assert leader_change_bound_ns(TIMING) == 69 * MS
    assert outage_ns(TIMING, MS) == 80 * MS, "the crashed leader's last message had waited for Δ+p"


@pytest.mark.parametrize(
    ("order", "crashed", "outage_ms"),
    [
        ("leader", (), 0),
        ("leader", (3, 4), 0),
        ("leader", (1,), 79),
        ("leader", (3, 1), 79 + 24),
        ("leader", (1, 2), 2 * 79),
        ("timestamp", (), 0),
        ("timestamp", (3,), 79),
        ("timestamp", (1, 3), 79 + 24),
        ("vbr", (1, 2), 0),
    ],
)
def test_the_outage_after_crashes_is_stated(order: str, crashed: tuple[int, ...], outage_ms: int) -> None:
    stack = build(Policy("led", 2, View((1, 2, 3, 4, 5)), TIMING, Rate(1000, 8), order=order))
    assert stack.outage_ns(crashed) == outage_ms * MS


def test_both_orders_are_registered() -> None:
    assert {"leader", "timestamp"} <= ORDERS.keys()


# -- wire --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Kind.STREAM_HEARTBEAT, StreamHeartbeat(1, 2, 3, 4, 5, True, False)),
        (Kind.VOTE_REQUEST, VoteRequest(7)),
        (Kind.VOTE, Vote(5, 6, 4)),
        (Kind.RETRANSMIT_REQUEST, RetransmitRequest(1, MissingKind.FRAMES, 2, 3, 4, 5)),
        (Kind.STAMP_REQUEST, StampRequest(1, 2, 3)),
    ],
)
def test_control_messages_round_trip(kind: Kind, message: object) -> None:
    encoded_as, body = encode_message(message)
    assert encoded_as is kind
    assert decode_message(kind, body) == message


def test_the_parts_of_an_entry_round_trip() -> None:
    assert decode_header(encode_entry_header(HEADER)) == HEADER
    member_list = MemberList((1, 5, 9), (LastFrames(2, 3, 4), LastFrames(3, 1, 0)))
    assert MEMBER_LIST.decode(MEMBER_LIST.encode(member_list)) == member_list


def decode_header(body: bytes) -> EntryHeader:
    """The header of an entry, decoded at an offset."""
    return decode_entry_header(b"before" + body, len(b"before"), len(b"before") + len(body))


def body_of(message: object) -> bytes:
    return encode_message(message)[1]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.STREAM_HEARTBEAT, b""),
        (Kind.STREAM_HEARTBEAT, body_of(StreamHeartbeat(1, 2**63, 0, 0, 0, False, False))),
        (Kind.STREAM_HEARTBEAT, body_of(StreamHeartbeat(1, 0, 2**63, 0, 0, False, False))),
        (Kind.STREAM_HEARTBEAT, body_of(StreamHeartbeat(1, 0, 0, 2**63, 0, False, False))),
        (Kind.STREAM_HEARTBEAT, body_of(StreamHeartbeat(1, 0, 0, 0, 2**63, False, False))),
        (Kind.STREAM_HEARTBEAT, body_of(StreamHeartbeat(1, 2, 3, 4, 5, False, False))[:-1] + b"\2"),
        (Kind.STREAM_HEARTBEAT, body_of(StreamHeartbeat(1, 2, 3, 4, 5, False, False))[:-2] + b"\2\0"),
        (Kind.STREAM_HEARTBEAT, body_of(StreamHeartbeat(1, 2, 3, 4, 5, False, False)) + b"\0"),
        (Kind.VOTE_REQUEST, b"123"),
        (Kind.VOTE_REQUEST, b"12345"),
        (Kind.VOTE, body_of(Vote(5, 6, 5))),
        (Kind.VOTE, body_of(Vote(5, 2**63, 4))),
        (Kind.VOTE, b"x"),
        (
            Kind.RETRANSMIT_REQUEST,
            body_of(RetransmitRequest(1, MissingKind.FRAMES, 2, 3, 4, 5)).replace(b"\1\0", b"\7\0", 2),
        ),
        (Kind.RETRANSMIT_REQUEST, body_of(RetransmitRequest(1, MissingKind.ENTRIES, 2**63, 0, 0, 1))),
        (Kind.RETRANSMIT_REQUEST, body_of(RetransmitRequest(1, MissingKind.ENTRIES, 2, 0, 0, 0))),
        (Kind.RETRANSMIT_REQUEST, b""),
        (Kind.STAMP_REQUEST, body_of(StampRequest(1, 2, 0))),
        (Kind.STAMP_REQUEST, body_of(StampRequest(2**63, 2, 1))),
        (Kind.STAMP_REQUEST, b"?"),
    ],
)
def test_malformed_and_contradictory_control_messages_are_unreadable(kind: Kind, body: bytes) -> None:
    with pytest.raises(Unreadable):
        decode_message(kind, body)


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        (MEMBER_LIST.decode, b""),
        (MEMBER_LIST.decode, MEMBER_LIST.encode(MemberList(()))),
        (MEMBER_LIST.decode, MEMBER_LIST.encode(MemberList((2, 1)))),
        (MEMBER_LIST.decode, MEMBER_LIST.encode(MemberList((1, 1)))),
        (MEMBER_LIST.decode, MEMBER_LIST.encode(MemberList((0, 1)))),
        (MEMBER_LIST.decode, MEMBER_LIST.encode(MemberList((1, 2)))[:-1]),
        (MEMBER_LIST.decode, MEMBER_LIST.encode(MemberList((1, 2), (LastFrames(3, 1, 0),)))[:-1]),
        (MEMBER_LIST.decode, MEMBER_LIST.encode(MemberList((1, 2), (LastFrames(3, 2**63, 0),)))),
        (decode_header, b""),
        (decode_header, encode_entry_header(HEADER)[:-1]),
        (decode_header, encode_entry_header(HEADER).replace(b"\1\0\2", b"\5\0\2", 1)),
        (decode_header, encode_entry_header(HEADER._replace(term=1))),
        (decode_header, encode_entry_header(HEADER._replace(previous_term=3))),
        (decode_header, encode_entry_header(HEADER._replace(position=0))),
        (decode_header, encode_entry_header(HEADER._replace(entry_type=EntryType.COPY))),
        (decode_header, encode_entry_header(HEADER._replace(entry_type=EntryType.GRANT))),
        (decode_header, encode_entry_header(HEADER._replace(stamps=1))),
        (decode_header, encode_entry_header(HEADER._replace(position=2**63))),
        (decode_header, encode_entry_header(HEADER._replace(ordinal=2**63))),
        (decode_header, encode_entry_header(HEADER._replace(request=2**63))),
    ],
)
def test_malformed_and_contradictory_parts_of_an_entry_are_unreadable(
    decode: Callable[[bytes], object], body: bytes
) -> None:
    with pytest.raises(Unreadable):
        decode(body)


def admitted(body: bytes, flags: int = 0, kind: Kind = Kind.ORDERED) -> Frame | Refusal:
    door = Door(group_key("unit"), 3, (1, 2, 3))
    frame = Frame(kind, 1, 1, 0, 5, 0, flags, sent_ns=1, body=body)
    found = door.admit(data := encode(frame, group_key("unit")), 0, len(data), 10)
    return found if found is not None else next(iter(door.refused))


def test_the_door_checks_an_entry_before_it_admits_it() -> None:
    packed_messages = b"\0\1\0\3abc"
    frame = admitted(encode_entry_header(HEADER) + packed_messages)
    assert isinstance(frame, Frame)
    assert frame.packed_messages is not None
    assert frame.packed_messages.messages() == [b"abc"]
    assert bytes(frame.body[ORDERED_BYTES:]) == packed_messages
    assert frame.message == Ordered(HEADER)
    assert isinstance(admitted(encode_entry_header(HEADER), END_OF_SLOT | LEAVING), Frame)
    assert admitted(encode_entry_header(HEADER) + b"\0\2\0\3abc") is Refusal.INCONSISTENT_LENGTHS
    assert admitted(encode_entry_header(HEADER)) is Refusal.TRUNCATED
    assert admitted(b"short") is Refusal.BAD_CONTROL
    stranger = EntryHeader(3, 7, 2, 1, EntryType.RELAY, 9, 1, 40, 0, 9)
    assert admitted(encode_entry_header(stranger) + packed_messages) is Refusal.NOT_A_MEMBER
    grant = encode_entry_header(EntryHeader(3, 7, 2, 1, EntryType.GRANT, 2, 1, 40, 8, 9))
    assert isinstance(admitted(grant), Frame)
    assert admitted(grant + b"x") is Refusal.BAD_CONTROL
    assert admitted(grant, END_OF_SLOT) is Refusal.BAD_CONTROL
    list_header = HEADER._replace(entry_type=EntryType.MEMBER_LIST)
    list_bytes, member_list = encode_entry_header(list_header), MemberList((1, 3))
    list_frame = admitted(list_bytes + MEMBER_LIST.encode(member_list))
    assert isinstance(list_frame, Frame)
    assert list_frame.message == Ordered(list_header, member_list)
    assert admitted(list_bytes + MEMBER_LIST.encode(member_list), END_OF_SLOT) is Refusal.BAD_CONTROL
    assert admitted(list_bytes + MEMBER_LIST.encode(MemberList((1, 4)))) is Refusal.BAD_CONTROL
    assert admitted(list_bytes + b"\0") is Refusal.BAD_CONTROL
    assert admitted(b"", kind=Kind.STREAM_HEARTBEAT) is Refusal.BAD_CONTROL


def test_undelivered_frames_of_a_member_are_bounded() -> None:
    """Without an answer of the leader, a member accepts messages up to the limit and one burst more."""
    bench = Bench(rate=Rate(200, 1))
    order = bench.order(2)
    assert isinstance(order, LeaderBroadcast)
    assert order.room(START) != NO_ROOM
    order._pending_bytes = MAX_PENDING_BYTES
    assert order.room(START) == NO_ROOM
    assert bench.stacks[2].submit(bench.now, [b"x"]) == 0
    order._pending_bytes = 0
    assert bench.stacks[2].submit(bench.now, [b"x" * 50]) == 1
    assert order._pending_bytes == 50
    bench.exchange()
    assert bench.texts(2) == [b"x" * 50]
    assert order._pending_bytes == 0
