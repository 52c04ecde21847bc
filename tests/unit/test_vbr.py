"""The VBR automaton of paper 000 §5, one member at a time; the test makes the frames of its peers by hand."""

import random
from collections import Counter
from itertools import permutations, product
from typing import Any

import pytest
from tests.full_rate import full_rate

from unisono.errors import InvalidOption, MessageTooLarge, ReservationRefused
from unisono.model.events import POSITIONS_PER_SENDER, Batch, LeaveComplete, StackEvent, View, ViewChange, Violation
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import BandwidthReservation, Rate, members_key
from unisono.orders.contract import ACCEPTED_INPUTS, Input, Mode
from unisono.orders.packing import reservation
from unisono.orders.vbr.order import HORIZON_NS, VbrOrder
from unisono.wire.codec import control_frame
from unisono.wire.control import Hello
from unisono.wire.frame import (
    END_OF_SLOT,
    FIRST_FRAGMENT,
    FRAGMENT,
    LEAVING,
    MORE_FRAGMENTS,
    Frame,
    Kind,
    OutgoingMessages,
)

MS = 1_000_000
T0 = 10**18
TIMING = Timing(10 * MS, 2 * MS, 5 * MS)
FIRST = TIMING.smax(T0)
THETA = TIMING.theta_ns


def start(slot: int) -> int:
    return TIMING.start_of(slot)


def end(slot: int) -> int:
    return TIMING.end_of(slot)


class Network:
    """Records reservations; refuses them while `full`."""

    def __init__(self) -> None:
        self.reserved: list[BandwidthReservation] = []
        self.full = False

    def reserve(self, asked: BandwidthReservation) -> None:
        if self.full:
            raise ReservationRefused(asked.avg_bytes_per_s, 1, 2)
        self.reserved.append(asked)


class Probe:
    """A VbrOrder and its network, with short helpers."""

    def __init__(self, me: int = 1, members: tuple[int, ...] = (1, 2), **changes: Any) -> None:
        fields: dict[str, Any] = {"timing": TIMING, "rate": full_rate(3, TIMING), "max_message": 1000, "max_frame": 256}
        fields.update(changes)
        self.policy = Policy("g", me, View(members), **fields)
        self.network = Network()
        self.vbr = VbrOrder(self.policy, self.network)

    def hello(self, sender: int, theta_ns: int = THETA, incarnation: int = 1, complete: bool = True) -> Frame:
        key = members_key(self.policy.view.members)
        hello = Hello(theta_ns, TIMING.delta_ns, TIMING.gamma_ns, key, 50.0, 3, 3000, FIRST, complete, ())
        return control_frame(hello, sender, incarnation, 0)

    def begin(self) -> "Probe":
        """Into DeliverMessages, before slot FIRST; discards the events and frames of the start."""
        self.vbr.wake(T0)
        for member in self.policy.view.members:
            if member != self.policy.member:
                self.vbr.from_below(T0, self.hello(member))
        assert self.vbr.mode is Mode.DELIVER_MESSAGES
        (view,) = self.events()
        assert view == ViewChange(View(self.policy.view.members, FIRST), joined=self.policy.view.members)
        self.vbr.wake(start(FIRST))
        self.sent()
        return self

    def sent(self) -> list[Frame]:
        """The data frames sent since the last call."""
        frames, self.vbr.down[:] = self.vbr.down[:], []
        return [frame for frame in frames if frame.kind is Kind.DATA]

    def events(self) -> list[StackEvent]:
        events, self.vbr.events[:] = self.vbr.events[:], []
        return events

    def delivered(self) -> list[bytes]:
        return [m for event in self.events() if isinstance(event, Batch) for m in event.messages]

    def peer(
        self, sender: int, slot: int, *messages: bytes, number: int = 0, flags: int = END_OF_SLOT, now: int = 0
    ) -> None:
        """A frame of a peer arrives."""
        self.vbr.from_below(now or end(slot), data(sender, slot, *messages, number=number, flags=flags))

    def wake(self, now: int) -> None:
        self.vbr.wake(now)
        due = self.vbr.wake_at()
        assert due is None or due > now, "a wake makes progress"


def data(sender: int, slot: int, *messages: bytes, number: int = 0, flags: int = END_OF_SLOT, burst: int = 3) -> Frame:
    packed = OutgoingMessages(list(messages), False) if messages else None
    return Frame(Kind.DATA, sender, 1, 0, slot, number, flags, burst, 100 * slot, 0, packed)


def fragment(sender: int, slot: int, body: bytes, number: int, flags: int) -> Frame:
    return Frame(Kind.DATA, sender, 1, 0, slot, number, flags | FRAGMENT, 3, 0, 0, None, body)


# -- modes and inputs ------------------------------------------------------------------------------------------------


def in_mode(mode: Mode) -> Probe:
    probe = Probe()
    if mode is Mode.DET_RATE:
        probe.vbr.wake(T0)
    elif mode is Mode.DELIVER_MESSAGES:
        probe.begin()
    elif mode is Mode.LEFT:
        probe.begin().vbr.leave(start(FIRST))
        probe.peer(2, FIRST)
    assert probe.vbr.mode is mode
    probe.sent()
    probe.events()
    return probe


@pytest.mark.parametrize(("mode", "given"), list(product(Mode, Input)))
def test_each_input_has_an_effect_in_exactly_the_modes_of_the_table(mode: Mode, given: Input) -> None:
    probe = in_mode(mode)
    vbr, now = probe.vbr, start(FIRST) + 1
    reservations = len(probe.network.reserved)
    if given is Input.SUBMIT:
        effect = vbr.submit(now, [b"x"]) > 0
    elif given is Input.HELLO:
        vbr.from_below(now, probe.hello(2, theta_ns=THETA + 1))
        effect = 2 in vbr.exchange.problems
    elif given is Input.DATA:
        vbr.exchange.incarnations[2] = 1
        vbr.from_below(now, data(2, FIRST, b"x"))
        effect = not vbr.ignored
    elif given is Input.NEW_RATE:
        vbr.change_rate(now, Rate(10, 2))
        effect = len(probe.network.reserved) > reservations
    else:
        vbr.leave(now)
        vbr.from_below(now, data(2, FIRST))
        effect = any(isinstance(event, LeaveComplete) for event in probe.events())
    assert effect == (given in ACCEPTED_INPUTS[mode])
    assert set(ACCEPTED_INPUTS) == set(Mode)


@pytest.mark.parametrize("mode", Mode)
def test_a_wake_makes_progress_in_every_mode(mode: Mode) -> None:
    probe = in_mode(mode)
    for now in (T0, start(FIRST), end(FIRST), end(FIRST) + 20 * MS, end(FIRST + 5)):
        probe.wake(now)
    assert (probe.vbr.wake_at() is None) == (mode is Mode.LEFT)


def test_a_departed_member_does_nothing_more() -> None:
    probe = in_mode(Mode.LEFT)
    probe.vbr.wake(end(FIRST + 9))
    probe.peer(2, FIRST + 1, b"x")
    probe.vbr.leave(end(FIRST + 9))
    assert probe.sent() == []
    assert probe.events() == []
    assert not probe.vbr.running()


# -- sending ---------------------------------------------------------------------------------------------------------


def test_a_slot_without_messages_is_one_empty_mark() -> None:
    probe = Probe().begin()
    probe.wake(end(FIRST) - 1)
    assert probe.sent() == [], "not before the slot is over"
    probe.wake(end(FIRST))
    (mark,) = probe.sent()
    assert (mark.slot, mark.number, mark.flags, mark.packed_messages, mark.body) == (
        FIRST,
        0,
        END_OF_SLOT,
        None,
        b"",
    )
    probe.wake(end(FIRST) + 1)
    assert probe.sent() == []


def test_a_slot_with_messages_needs_no_empty_mark() -> None:
    probe = Probe().begin()
    probe.vbr.submit(start(FIRST), [b"a", b"b"])
    assert probe.sent() == [], "held back for the end-of-slot mark"
    probe.wake(end(FIRST))
    (frame,) = probe.sent()
    assert frame.flags == END_OF_SLOT
    assert frame.packed_messages is not None
    assert frame.packed_messages.messages() == [b"a", b"b"]


@pytest.mark.parametrize(
    "sizes", [[1, 1, 1], [0, 0, 0], [200, 200, 200], [600, 600, 600], [1, 1, 600], [204, 209, 210]]
)
@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_used_up_burst_ends_its_slot_without_an_extra_frame(sizes: list[int], one_by_one: bool) -> None:
    """Theorem 3: NetMaxBurst = AppMaxBurst."""
    probe = Probe().begin()
    messages = [bytes(size) for size in sizes]
    now = start(FIRST) + 1
    if one_by_one:
        assert [probe.vbr.submit(now, [message]) for message in messages] == [1, 1, 1]
    else:
        assert probe.vbr.submit(now, [*messages, b"more"]) == 3
    frames = probe.sent()
    assert [frame.flags & END_OF_SLOT for frame in frames] == [0] * (len(frames) - 1) + [END_OF_SLOT]
    assert all(frame.packed_messages is not None or frame.body for frame in frames), "no frame without a body"
    assert probe.vbr.submit(now, [b"more"]) == 0
    probe.wake(end(FIRST))
    assert probe.sent() == [], "the mark has left already"
    assert probe.vbr.submit(end(FIRST), [b"more"]) == 1


def test_a_late_wake_ends_each_past_slot_once() -> None:
    probe = Probe().begin()
    probe.vbr.submit(start(FIRST), [b"a"])
    probe.wake(start(FIRST + 4) + 1)
    assert [(f.slot, f.number, f.flags, f.packed_messages is not None) for f in probe.sent()] == [
        (FIRST, 0, END_OF_SLOT, True),
        (FIRST + 1, 0, END_OF_SLOT, False),
        (FIRST + 2, 0, END_OF_SLOT, False),
        (FIRST + 3, 0, END_OF_SLOT, False),
    ]
    assert probe.vbr.submit(start(FIRST + 4) + 1, [b"b"]) == 1


def test_a_late_submission_belongs_to_the_slot_of_its_clock_reading() -> None:
    probe = Probe((1), (1,)).begin()
    probe.vbr.submit(start(FIRST), [b"a"])
    assert probe.vbr.submit(start(FIRST + 3) + 7, [b"b"]) == 1
    probe.wake(end(FIRST + 3))
    slots = [(e.slot, e.messages) for e in probe.events() if isinstance(e, Batch)]
    assert slots == [(FIRST, [b"a"]), (FIRST + 3, [b"b"])]


def test_a_submission_that_is_not_accepted_still_delivers_the_slots_that_are_due() -> None:
    """The submission ends the slot before the driver wakes: a delivery that waited for our mark must go on."""
    probe = Probe(rate=Rate(3 * 1000 / 5 / 1000, 3)).begin()  # one burst, then nothing for a long time
    assert probe.vbr.submit(start(FIRST), [b"a", b"b"]) == 2
    probe.peer(2, FIRST, b"peer", now=start(FIRST) + 1)
    assert probe.vbr.submit(start(FIRST), [b"c"]) == 1
    assert probe.delivered() == [b"a", b"b", b"c", b"peer"]
    probe.peer(2, FIRST + 1, b"next", now=start(FIRST + 1))
    assert probe.vbr.submit(end(FIRST + 1), [b"d"]) == 0, "the average is used up"
    assert probe.delivered() == [b"next"]


def test_a_late_rate_change_still_delivers_the_slots_that_are_due() -> None:
    probe = Probe().begin()
    probe.peer(2, FIRST, b"peer", now=start(FIRST) + 1)
    probe.vbr.change_rate(end(FIRST), Rate(10, 2))
    assert probe.delivered() == [b"peer"]


def test_no_message_is_accepted_before_the_first_slot() -> None:
    probe = Probe().begin()
    assert probe.vbr.submit(start(FIRST) - 1, [b"x"]) == 0
    assert probe.vbr.submit(start(FIRST), [b"x"]) == 1


def test_a_message_that_is_too_large_is_an_error_and_nothing_is_accepted() -> None:
    probe = Probe().begin()
    with pytest.raises(MessageTooLarge):
        probe.vbr.submit(start(FIRST), [b"", bytes(1001)])
    assert probe.vbr.submit(start(FIRST), [bytes(1000)]) == 1


def test_a_sender_keeps_to_its_bytes_per_slot() -> None:
    probe = Probe(rate=full_rate(10, TIMING, 1000)).begin()
    assert probe.vbr.submit(start(FIRST), [bytes(400)] * 5) == 2
    assert probe.vbr.submit(start(FIRST), [bytes(201)]) == 0
    assert probe.vbr.submit(start(FIRST), [b"", bytes(200), b"", b"x"]) == 3
    assert probe.vbr.submit(end(FIRST), [bytes(1000)]) == 1


def test_sequence_numbers_count_messages_across_slots_and_fragments() -> None:
    probe = Probe(1, (1,)).begin()
    sizes = [[1, 1], [600, 1], [], [600, 700, 1]]
    for ahead, slot_sizes in enumerate(sizes):
        probe.vbr.submit(start(FIRST + ahead), [bytes(size) for size in slot_sizes])
    probe.wake(end(FIRST + 3))
    deliveries = [d for e in probe.events() if isinstance(e, Batch) for d in e.deliveries()]
    assert [(d.sequence, d.slot - FIRST, len(d.payload)) for d in deliveries] == [
        (0, 0, 1),
        (1, 0, 1),
        (2, 1, 600),
        (3, 1, 1),
        (4, 3, 600),
        (5, 3, 700),
        (6, 3, 1),
    ]


# -- errata 000-13 to 000-17 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("burst", [1, 2, 3])
@pytest.mark.parametrize("changing", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_at_full_load_every_message_is_delivered_in_the_slot_of_its_submission(
    burst: int, changing: bool, seed: int
) -> None:
    """000-15, -16, -17: counted as in the paper, 12 of 12 (max=2) or 16 of 18 (max=3) land in another slot."""
    chance = random.Random(seed)
    probe = Probe(1, (1, 2), rate=full_rate(burst, TIMING)).begin()
    bursts = burst
    misattributed = accepted = 0
    for slot in range(FIRST, FIRST + 30):
        label = str(slot).encode()
        offered, got, now = [label] * 10, 0, start(slot)
        for _ in range(chance.randint(1, 4)):
            got += probe.vbr.submit(now, offered)
            now += chance.randint(0, MS)
        assert got == bursts, "the whole burst, and all of it in its own slot"
        accepted += got
        assert probe.vbr.max_send() == bursts
        if changing:
            bursts = burst + slot % 2
            probe.vbr.change_rate(now, full_rate(bursts, TIMING))
        probe.vbr.wake(end(slot))
        probe.peer(2, slot, label, label)
        assert probe.vbr.max_rate(1) == got, "Lemma 5.1: the burst in the headers of this slot"
    batches = [event for event in probe.events() if isinstance(event, Batch)]
    for batch in batches:
        misattributed += sum(message != str(batch.slot).encode() for message in batch.messages)
    assert misattributed == 0
    assert sum(batch.count for batch in batches if batch.sender == 1) == accepted
    assert [(b.slot, b.sender) for b in batches] == [(s, m) for s in range(FIRST, FIRST + 30) for m in (1, 2)]


def test_every_member_is_delivered_whatever_the_member_numbers_are() -> None:
    """000-13: `(current + 1) mod n` never reaches the last member."""
    members = (3, 4, 9, 65535)
    probe = Probe(4, members).begin()
    for slot in (FIRST, FIRST + 1):
        probe.vbr.submit(start(slot), [b"4"])
        probe.wake(end(slot))
        for sender in (65535, 9, 3):
            probe.peer(sender, slot, str(sender).encode())
    assert probe.delivered() == [b"3", b"4", b"9", b"65535"] * 2


# -- rates -----------------------------------------------------------------------------------------------------------


def test_a_new_rate_takes_effect_at_the_next_slot() -> None:
    """Erratum 000-18: not in the slot of the request, even if nothing has been sent in it."""
    probe = Probe().begin()
    probe.vbr.change_rate(start(FIRST) + 1, full_rate(5, TIMING))
    assert probe.vbr.max_send() == 3
    assert probe.vbr.submit(start(FIRST) + 1, [b"x"] * 9) == 3
    assert {frame.burst for frame in probe.sent()} == {3}
    assert probe.vbr.submit(start(FIRST + 1), [b"x"] * 9) == 5
    assert {frame.burst for frame in probe.sent()} == {5}


def test_a_late_rate_change_does_not_affect_past_slots_or_the_present_one() -> None:
    """The driver is late: by the clock the request belongs to slot FIRST+2, which still has the old rate."""
    probe = Probe().begin()
    probe.vbr.change_rate(start(FIRST + 2) + 1, full_rate(5, TIMING))
    assert [(frame.slot, frame.burst) for frame in probe.sent()] == [(FIRST, 3), (FIRST + 1, 3)]
    assert probe.vbr.submit(start(FIRST + 2) + 1, [b"x"] * 9) == 3
    assert probe.vbr.submit(start(FIRST + 3), [b"x"] * 9) == 5


@pytest.mark.parametrize("burst", [1, 9])
def test_the_larger_of_both_rates_is_reserved_until_the_new_one_takes_effect(burst: int) -> None:
    probe = Probe().begin()
    old = reservation(probe.policy, probe.policy.rate)
    new = reservation(probe.policy, Rate(20, burst))
    assert probe.network.reserved == [old]
    probe.vbr.change_rate(start(FIRST) + 1, Rate(20, burst))
    (between,) = probe.network.reserved[1:]
    assert between.burst_bytes_per_slot == max(old.burst_bytes_per_slot, new.burst_bytes_per_slot)
    assert between.avg_bytes_per_s == max(old.avg_bytes_per_s, new.avg_bytes_per_s)
    probe.wake(end(FIRST) - 1)
    assert len(probe.network.reserved) == 2
    probe.wake(end(FIRST))
    assert probe.network.reserved[2:] == [new]
    probe.wake(end(FIRST + 1))
    assert len(probe.network.reserved) == 3


def test_after_a_refused_rate_the_old_one_stays_in_effect() -> None:
    probe = Probe().begin()
    probe.network.full = True
    with pytest.raises(ReservationRefused):
        probe.vbr.change_rate(start(FIRST) + 1, full_rate(5, TIMING))
    probe.network.full = False
    assert probe.vbr.submit(start(FIRST + 1), [b"x"] * 9) == 3
    assert probe.vbr.submit(start(FIRST + 2), [b"x"] * 9) == 3
    assert len(probe.network.reserved) == 1


def test_a_rate_too_small_for_the_largest_message_is_refused() -> None:
    """Otherwise a message of that size would wait forever."""
    probe = Probe().begin()
    with pytest.raises(InvalidOption, match=r"burst_bytes"):
        probe.vbr.change_rate(start(FIRST) + 1, full_rate(5, TIMING, 999))
    assert probe.vbr.submit(start(FIRST + 1), [b"x"] * 9) == 3
    assert len(probe.network.reserved) == 1


def test_the_last_of_several_new_rates_counts() -> None:
    probe = Probe().begin()
    probe.vbr.change_rate(start(FIRST) + 1, full_rate(9, TIMING))
    probe.vbr.change_rate(start(FIRST) + 2, full_rate(2, TIMING))
    assert probe.vbr.submit(start(FIRST + 1), [b"x"] * 20) == 2
    assert probe.network.reserved[-1] == reservation(probe.policy, full_rate(2, TIMING))


def test_a_peers_burst_is_known_from_its_frames() -> None:
    probe = Probe().begin()
    probe.wake(end(FIRST))
    probe.vbr.from_below(end(FIRST), data(2, FIRST, burst=7))
    assert probe.vbr.max_rate(2) == 7


# -- delivering ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(range(5))))
def test_any_order_of_arrival_gives_one_order_of_delivery(order: tuple[int, ...]) -> None:
    """Lemma 5.2, without the FIFO network that the paper assumes."""
    probe = Probe(2, (1, 2, 3)).begin()
    probe.vbr.submit(start(FIRST), [b"2"])
    probe.vbr.wake(end(FIRST + 1))
    frames = [
        data(1, FIRST, b"1a", number=0, flags=0),
        data(1, FIRST, b"1b", number=1),
        data(3, FIRST, b"3"),
        data(1, FIRST + 1, b"1c"),
        data(3, FIRST + 1, b"3b"),
    ]
    for position in order:
        probe.vbr.from_below(end(FIRST + 1), frames[position])
    batches = [event for event in probe.events() if isinstance(event, Batch)]
    assert [divmod(b.first_position, POSITIONS_PER_SENDER) for b in batches if b.sender != 1] == [
        (2, 0),
        (3, 0),
        (3, 0),
    ]
    assert [m for b in batches for m in b.messages] == [b"1a", b"1b", b"2", b"3", b"1c", b"3b"]
    places = [(b.slot, b.first_position + i) for b in batches for i in range(b.count)]
    assert places == sorted(places)
    assert [b.first_index for b in batches] == [sum(c.count for c in batches[:n]) for n in range(len(batches))]
    assert places[1] == (FIRST, POSITIONS_PER_SENDER + 1)
    assert not probe.vbr.ignored


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_fragments_are_reassembled_in_any_order_of_arrival(order: tuple[int, ...]) -> None:
    probe = Probe().begin()
    probe.wake(end(FIRST))
    frames = [
        fragment(2, FIRST, b"one ", 0, MORE_FRAGMENTS | FIRST_FRAGMENT),
        fragment(2, FIRST, b"two ", 1, MORE_FRAGMENTS),
        fragment(2, FIRST, b"three", 2, 0),
        data(2, FIRST, b"tail", number=3),
    ]
    for position in order:
        probe.vbr.from_below(end(FIRST), frames[position])
    assert probe.delivered() == [b"one two three", b"tail"]


def test_duplicates_are_counted_and_delivered_once() -> None:
    probe = Probe(3, (1, 2, 3)).begin()
    probe.vbr.wake(end(FIRST))
    for _ in range(3):
        probe.peer(1, FIRST, b"1")
    assert probe.vbr.ignored == {"duplicate": 2}
    probe.peer(2, FIRST, b"2")
    assert probe.delivered() == [b"1", b"2"]
    probe.peer(1, FIRST, b"1")
    assert probe.vbr.ignored == {"duplicate": 2, "slot already delivered": 1}
    assert probe.delivered() == []


def test_delivered_slots_are_not_kept() -> None:
    """Memory use does not grow with time, even if the network duplicates datagrams."""
    probe = Probe(3, (1, 2, 3)).begin()
    for slot in range(FIRST, FIRST + 20):
        probe.vbr.wake(end(slot))
        for sender in (1, 1, 2, 1, 2):
            probe.peer(sender, slot, b"x")
    kept = {member: sorted(queue.slots) for member, queue in probe.vbr._rqueues.items()}
    assert kept == {1: [], 2: [], 3: []}


@pytest.mark.parametrize(
    "changes", [{"incarnation": 2}, {"epoch": 1}, {"incarnation": 0}], ids=["restarted", "another epoch", "older"]
)
def test_frames_of_another_incarnation_are_not_delivered(changes: dict[str, int]) -> None:
    probe = Probe().begin()
    probe.wake(end(FIRST))
    frame = data(2, FIRST, b"ghost")
    for name, value in changes.items():
        setattr(frame, name, value)
    probe.vbr.from_below(end(FIRST), frame)
    assert probe.delivered() == []
    assert probe.vbr.ignored == {"another incarnation or epoch": 1}


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in {Kind.DATA, Kind.HELLO}])
def test_frames_of_other_orders_do_not_occupy_a_frame_number(kind: Kind) -> None:
    probe = Probe().begin()
    probe.wake(end(FIRST))
    probe.vbr.from_below(end(FIRST), Frame(kind, 2, 1, 0, FIRST, 0, body=b"anything"))
    assert probe.vbr.ignored.total() == 1
    probe.peer(2, FIRST, b"data")
    assert probe.delivered() == [b"data"]


def test_data_before_the_last_hello_waits_for_it() -> None:
    probe = Probe(1, (1, 2, 3))
    probe.vbr.wake(T0)
    probe.vbr.from_below(T0, probe.hello(2))
    probe.peer(2, FIRST - 1, b"of a slot before the first")
    probe.peer(2, FIRST, b"early")
    probe.vbr.from_below(end(FIRST), probe.hello(3))
    first = probe.vbr.view.first_slot
    assert first > FIRST, "this member could name its slot only now"
    assert probe.vbr.ignored == {}
    assert sorted(probe.vbr._rqueues[2].slots) == [], "frames of earlier slots are not delivered"


def test_a_group_of_one_member_delivers_its_own_messages() -> None:
    probe = Probe(7, (7,)).begin()
    for slot in range(FIRST, FIRST + 3):
        assert probe.vbr.submit(start(slot), [b"a", b"b"]) == 2
    probe.wake(end(FIRST + 2))
    assert probe.delivered() == [b"a", b"b"] * 3
    assert probe.vbr.running()
    assert probe.vbr.waiting_for() == ()
    assert probe.vbr.bound_ns() == 17 * MS


def test_the_order_names_the_members_that_the_start_waits_for() -> None:
    probe = Probe(1, (1, 2, 3))
    probe.vbr.wake(T0)
    probe.vbr.from_below(T0, probe.hello(3))
    assert probe.vbr.waiting_for() == (2,)
    assert not probe.vbr.running()
    probe.vbr.from_below(T0, probe.hello(2, theta_ns=THETA + 1))
    assert probe.vbr.waiting_for() == (2,)
    assert probe.vbr.peer_problems() == {2: "joined with other options"}


def test_hellos_end_when_the_first_slot_is_delivered() -> None:
    """A member that sends marks knows all first slots, so a lost answer does not keep HELLOs going forever."""
    probe = Probe()
    probe.vbr.wake(T0)
    probe.vbr.from_below(T0, probe.hello(2, complete=False))
    probe.vbr.wake(end(FIRST))
    probe.vbr.down.clear()
    for slot in range(FIRST, FIRST + 100):
        probe.peer(2, slot)
        probe.wake(end(slot + 1))
    assert {frame.kind for frame in probe.vbr.down} == {Kind.DATA}


def test_slots_too_far_ahead_for_a_correct_sender_are_refused() -> None:
    probe = Probe()
    now = start(FIRST)
    ahead = TIMING.slot_of(now + TIMING.gamma_ns + HORIZON_NS)
    assert probe.vbr.latest_slot(now) in {ahead, ahead + 1}
    assert probe.vbr.latest_slot(now) >= TIMING.slot_of(now + TIMING.gamma_ns)


# -- window ----------------------------------------------------------------------------------------------------------


def test_a_sender_never_has_more_slots_in_flight_than_the_window() -> None:
    probe = Probe().begin()
    window = probe.vbr.window_slots
    assert window == 3 + 3  # (Δ + Γ) / Θ rounded up, and 3
    accepted = {slot: probe.vbr.submit(start(slot), [b"x"]) for slot in range(FIRST, FIRST + 2 * window)}
    assert [slot - FIRST for slot, count in accepted.items() if count] == list(range(window))
    marks = [frame.slot for frame in probe.sent()]
    assert marks == list(range(FIRST, FIRST + 2 * window - 1)), "marks go on, otherwise no member could deliver"
    # The peer returns: as it catches up, the sender may send again.
    slot = FIRST + 2 * window
    assert probe.vbr.submit(start(slot), [b"y"]) == 0
    probe.peer(2, FIRST)
    assert probe.vbr.submit(start(slot), [b"y"]) == 1


def test_marks_stop_two_windows_ahead_so_that_queues_stay_bounded() -> None:
    probe = Probe().begin()
    window = probe.vbr.window_slots
    for slot in range(FIRST, FIRST + 10 * window):
        probe.vbr.wake(end(slot))
    marks = [frame.slot for frame in probe.sent()]
    assert marks == list(range(FIRST, FIRST + 2 * window))
    assert probe.vbr.wake_at() is None, "nothing is due before a frame of the peer arrives"
    probe.peer(2, FIRST, now=end(FIRST + 10 * window))
    assert [frame.slot for frame in probe.sent()] == [FIRST + 2 * window], "as it catches up, marks go on"


def test_the_window_does_not_limit_senders_while_delays_stay_within_delta() -> None:
    """The slowest correct peer: its clock is Γ behind, and its marks travel for Δ."""
    probe = Probe().begin()
    late = TIMING.delta_ns + TIMING.gamma_ns
    for slot in range(FIRST, FIRST + 20):
        for behind in range(FIRST, slot):
            if end(behind) + late <= start(slot) < end(behind) + late + THETA:
                probe.peer(2, behind, now=end(behind) + late)
        assert probe.vbr.submit(start(slot), [b"x"]) == 1


# -- lateness --------------------------------------------------------------------------------------------------------


def test_a_late_member_is_reported_with_its_missing_frames() -> None:
    probe = Probe(1, (1, 2, 3)).begin()
    late = end(FIRST) + TIMING.delta_ns + TIMING.gamma_ns
    probe.vbr.wake(end(FIRST))
    probe.peer(2, FIRST)
    probe.peer(3, FIRST, b"z", number=4)
    probe.peer(3, FIRST, b"y", number=1, flags=0)
    probe.wake(late)
    assert not [e for e in probe.events() if isinstance(e, Violation)], "an arrival at that instant is in time (000-22)"
    assert probe.vbr.wake_at() is not None
    probe.wake(late + 1)
    (violation,) = [e for e in probe.events() if isinstance(e, Violation)]
    assert (violation.kind, violation.member, violation.slot) == ("late", 3, FIRST)
    assert f"slot {FIRST} is late, frames [0, 2, 3] have not arrived" in violation.text
    probe.wake(late + 2)
    assert not [e for e in probe.events() if isinstance(e, Violation)], "once per slot"


def test_a_member_without_an_end_of_slot_mark_is_late_even_if_no_frame_is_known_to_be_missing() -> None:
    for frames in ((), (0,)):
        probe = Probe().begin()
        for number in frames:
            probe.peer(2, FIRST, b"x", number=number, flags=0, now=start(FIRST))
        probe.wake(end(FIRST) + 12 * MS + 1)
        (violation,) = [e for e in probe.events() if isinstance(e, Violation)]
        assert (violation.member, violation.slot) == (2, FIRST)
        assert f"slot {FIRST} is late, its end-of-slot mark has not arrived" in violation.text


def test_of_consecutive_late_slots_only_the_first_is_reported() -> None:
    probe = Probe().begin()
    violations: Counter[int | None] = Counter()
    again = FIRST + 4 + 10**9 // TIMING.theta_ns
    for slot in range(FIRST, again + 2):
        if FIRST + 4 <= slot < again:
            probe.wake(end(slot))
            probe.peer(2, slot, now=end(slot))
            continue
        due = end(slot) + 12 * MS + 1
        probe.wake(due)
        probe.peer(2, slot, now=due)
        violations.update(e.slot for e in probe.events() if isinstance(e, Violation))
    assert violations == {FIRST: 1, again: 1}, "and again after a second without late slots"


def test_wake_at_names_the_end_of_each_slot_and_the_time_of_lateness() -> None:
    probe = Probe().begin()
    now, woken = start(FIRST), []
    while now < end(FIRST + 4):
        due = probe.vbr.wake_at()
        assert due is not None
        assert due > now
        now = due
        woken.append(now)
        probe.wake(now)
    assert [end(slot) for slot in range(FIRST, FIRST + 5)] == [at for at in woken if at % THETA == 0]
    assert end(FIRST) + 12 * MS + 1 in woken


# -- leaving ---------------------------------------------------------------------------------------------------------


def test_a_leaving_member_ends_with_its_present_slot() -> None:
    probe = Probe().begin()
    probe.vbr.submit(start(FIRST), [b"last words"])
    probe.vbr.leave(start(FIRST) + 1)
    (frame,) = probe.sent()
    assert frame.flags == END_OF_SLOT | LEAVING
    assert frame.packed_messages is not None
    assert frame.packed_messages.messages() == [b"last words"], "accepted messages are sent"
    assert probe.vbr.submit(start(FIRST) + 2, [b"x"]) == 0
    probe.peer(2, FIRST, b"answer")
    batch, answer, left = probe.events()
    assert isinstance(batch, Batch)
    assert isinstance(answer, Batch)
    assert left == LeaveComplete(FIRST)
    assert probe.vbr.mode is Mode.LEFT


@pytest.mark.parametrize("me", [1, 2])
def test_a_leaving_member_sends_nothing_after_its_final_slot(me: int) -> None:
    """It waits for the others' marks of that slot as long as they take, without a busy loop."""
    probe = Probe(me).begin()
    probe.vbr.leave(start(FIRST) + 1)
    assert [(f.slot, f.flags) for f in probe.sent()] == [(FIRST, END_OF_SLOT | LEAVING)]
    now = start(FIRST) + 1
    for _ in range(10):
        due = probe.vbr.wake_at()
        if due is None:
            break
        assert due > now
        now = due
        probe.wake(now)
    assert due is None, "nothing is left to do but receive"
    assert probe.sent() == []
    (violation,) = [e for e in probe.events() if isinstance(e, Violation)]
    assert violation.slot == FIRST
    probe.peer(3 - me, FIRST)
    assert probe.events()[-1] == LeaveComplete(FIRST)


def test_a_late_leave_call_ends_the_slot_of_its_clock_reading() -> None:
    probe = Probe().begin()
    probe.vbr.leave(start(FIRST + 2) + 1)
    assert [(f.slot - FIRST, f.flags) for f in probe.sent()] == [
        (0, END_OF_SLOT),
        (1, END_OF_SLOT),
        (2, END_OF_SLOT | LEAVING),
    ]


def test_a_leave_after_the_mark_makes_the_next_slot_the_last() -> None:
    probe = Probe().begin()
    assert probe.vbr.submit(start(FIRST), [b"x"] * 3) == 3
    probe.vbr.leave(start(FIRST) + 1)
    assert [(f.slot, f.flags) for f in probe.sent()] == [(FIRST, END_OF_SLOT)]
    for slot in (FIRST, FIRST + 1, FIRST + 2):
        probe.wake(end(slot))
    assert [(f.slot, f.flags) for f in probe.sent()] == [(FIRST + 1, END_OF_SLOT | LEAVING)]
    probe.peer(2, FIRST)
    probe.peer(2, FIRST + 1)
    assert probe.events()[-1] == LeaveComplete(FIRST + 1)


def test_a_leave_before_the_first_slot_makes_that_slot_the_last() -> None:
    probe = Probe()
    probe.vbr.wake(T0)
    probe.vbr.from_below(T0, probe.hello(2))
    probe.vbr.leave(T0 + 1)
    probe.vbr.leave(T0 + 2)
    probe.wake(end(FIRST))
    assert [(f.slot, f.flags) for f in probe.sent()] == [(FIRST, END_OF_SLOT | LEAVING)]


def test_the_others_go_on_without_a_departed_member() -> None:
    probe = Probe(2, (1, 2, 3)).begin()
    probe.vbr.submit(start(FIRST), [b"a"])
    probe.vbr.wake(end(FIRST))
    probe.peer(1, FIRST, b"bye", flags=END_OF_SLOT | LEAVING)
    probe.peer(3, FIRST, b"c")
    bye, own, third, change = probe.events()
    assert isinstance(bye, Batch)
    assert isinstance(own, Batch)
    assert isinstance(third, Batch)
    assert change == ViewChange(View((2, 3), FIRST + 1), left=(1,)), "after the slot, before the next"
    probe.peer(1, FIRST + 1, b"ghost")
    assert probe.vbr.ignored == {"slot already delivered": 1}
    probe.vbr.submit(start(FIRST + 1), [b"d"])
    probe.vbr.wake(end(FIRST + 1))
    probe.peer(3, FIRST + 1, b"e")
    assert probe.delivered() == [b"d", b"e"]


def test_the_last_member_goes_on_alone() -> None:
    probe = Probe(2, (1, 2, 3)).begin()
    probe.vbr.wake(end(FIRST))
    probe.peer(1, FIRST, flags=END_OF_SLOT | LEAVING)
    probe.peer(3, FIRST, flags=END_OF_SLOT | LEAVING)
    assert probe.events() == [ViewChange(View((2,), FIRST + 1), left=(1, 3))]
    assert probe.vbr.submit(start(FIRST + 1), [b"alone"]) == 1
    probe.wake(end(FIRST + 1))
    assert probe.delivered() == [b"alone"]
    probe.vbr.leave(start(FIRST + 2))
    assert probe.events() == [LeaveComplete(FIRST + 2)]


def test_all_members_leave_in_one_slot() -> None:
    probe = Probe().begin()
    probe.vbr.leave(start(FIRST))
    probe.peer(2, FIRST, flags=END_OF_SLOT | LEAVING)
    assert probe.events() == [LeaveComplete(FIRST)]


@pytest.mark.parametrize("mode", [Mode.GET_RATE, Mode.DET_RATE])
def test_a_leave_before_the_group_begins_is_complete_at_once(mode: Mode) -> None:
    probe = in_mode(mode)
    probe.vbr.leave(T0)
    assert probe.events() == [LeaveComplete(TIMING.slot_of(T0))]
    assert probe.vbr.mode is Mode.LEFT
