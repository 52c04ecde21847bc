"""Forward error correction part by part: blocks, reconstruction, kept state, the door, the cost of redundancy."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import pytest
from tests.worlds.fec_rates import net_avg_per_slot

from unisono.errors import InvalidOption
from unisono.model.events import View
from unisono.model.offers import Ask, Offer
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import Rate, group_key
from unisono.net.fec.layer import (
    HELD_BYTES_MAX,
    SENDER_TIMEOUT_NS,
    Fec,
    ask_above_fec,
    checked_fec,
    datagrams_per_slot,
    net_max_burst,
    offer_through_fec,
    order_policy,
    residual_loss,
)
from unisono.net.fec.shares import Share, pack_share_position, redundant_shares, unpack_share_position
from unisono.wire.codec import control_frame
from unisono.wire.control import Probe
from unisono.wire.door import Door, Refusal
from unisono.wire.frame import (
    END_OF_SLOT,
    FIRST_FRAGMENT,
    FRAGMENT,
    HEADER_BYTES,
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
SLOT = TIMING.slot_of(T0)
MEMBERS = (1, 2, 3)
ME = 1
GROUP = group_key("g")
SMALL = [(a, b) for b in range(2, 7) for a in range(1, b)]

Seen = tuple[int | bytes, ...]
"""All fields of a frame that an order sees."""


def policy(member: int = ME, fec: tuple[int, int] | None = (2, 5), **changes: Any) -> Policy:
    return Policy("g", member, View(MEMBERS), TIMING, Rate(1000, 8), fec=fec, **changes)


def slot_frames(sizes: Sequence[int], slot: int = SLOT, sender: int = 2, **fields: Any) -> list[Frame]:
    """A slot as an order sends it: one message of each size, the last with the end-of-slot mark; -1 is no message."""
    chance = Random(f"{slot} {sender}")
    frames = []
    for number, size in enumerate(sizes):
        packed = OutgoingMessages([chance.randbytes(size)], same_size=True) if size >= 0 else None
        flags = END_OF_SLOT if number == len(sizes) - 1 else 0
        frames.append(Frame(Kind.DATA, sender, 3, 0, slot, number, flags, 8, 7 * number, T0 + number, packed))
    return [replace(frame, **fields) for frame in frames]


def seen(frame: Frame) -> Seen:
    """The fields of a frame that the order sees, at the sender or at a receiver."""
    payload = b"\0".join(frame.packed_messages.messages()) if frame.packed_messages is not None else bytes(frame.body)
    head = (frame.kind, frame.sender, frame.incarnation, frame.epoch, frame.slot, frame.number, frame.flags)
    return (*head, frame.burst, frame.first_sequence, frame.sent_ns, frame.packed_messages is None, payload)


class Sender:
    """The layer of a sending member, and the datagrams that it produces."""

    def __init__(self, member: int = 2, fec: tuple[int, int] = (2, 5)) -> None:
        self.fec = Fec(policy(member, fec))

    def send(self, frames: Iterable[Frame], now: int = T0) -> list[bytes]:
        for frame in frames:
            self.fec.from_above(now, frame)
        datagrams = [encode(frame, GROUP) for frame in self.fec.down]
        self.fec.down.clear()
        return datagrams


class Receiver:
    """Door and layer of a receiving member, and the frames that its order sees."""

    def __init__(self, **changes: Any) -> None:
        self.door = Door(GROUP, ME, MEMBERS, layered=frozenset({Kind.FEC}))
        self.fec = Fec(policy(), **changes)

    def receive(self, datagrams: Iterable[bytes], now: int = T0, multicast: bool = False) -> list[Seen]:
        """The frames that go up, in order."""
        for data in datagrams:
            frame = self.door.admit(b"before" + data + b"behind", 6, 6 + len(data), SLOT + 1000)
            if frame is not None:
                frame.multicast = multicast
                self.fec.from_below(now, frame)
        up = [seen(frame) for frame in self.fec.up]
        self.fec.up.clear()
        return up


def blocks(datagrams: Sequence[bytes]) -> list[list[bytes]]:
    """Datagrams by block; each block starts with index 0."""
    found: list[list[bytes]] = []
    for data in datagrams:
        if unpack_share_position(struct.unpack_from("!Q", data, 32)[0])[2] == 0:
            found.append([])
        found[-1].append(data)
    return found


def losses(total: int, most: int) -> Iterator[tuple[int, ...]]:
    """Every set of at most `most` of `total` datagrams."""
    for lost in range(most + 1):
        yield from combinations(range(total), lost)


# -- blocks --------------------------------------------------------------------------------------------------


def test_a_block_leaves_when_one_more_original_waits_or_the_slot_ends() -> None:
    sender, frames = Sender(fec=(2, 5)), slot_frames([10, 20, 30, 40, 50])
    assert [len(sender.send([frame])) for frame in frames] == [0, 0, 0, 5, 4]
    empty = sender.send(slot_frames([-1], SLOT + 1))
    assert len(empty) == 3, "one dummy and a redundant shares"
    full = sender.send(slot_frames([1] * 3, SLOT + 2))
    assert len(full) == 5, "exactly b-a originals are one block, which is the last"
    assert [len(block) for block in blocks(sender.send(slot_frames([1] * 7, SLOT + 3)))] == [5, 5, 3]


def test_the_layout_of_a_share() -> None:
    frames = slot_frames([3, 1])
    first, second, redundant = Sender(fec=(1, 3)).send(frames, T0 + 9)
    assert first[:4].hex() == "03050100", "version, kind, END_OF_SLOT on all shares of the last block"
    assert [struct.unpack_from("!H", data, 6)[0] for data in (first, second, redundant)] == [0, 1, 2]
    assert first[HEADER_BYTES:] == encode(frames[0], GROUP), "an original travels unchanged"
    assert second[HEADER_BYTES:] == encode(frames[1], GROUP)
    assert len(redundant) == len(first), "as long as the longest original"
    assert first[32:40].hex() == "00003700" + "00" + "00" + "02" + "01"  # size; block, index, originals, redundant
    assert second[32:40].hex() == "00003500" + "00" + "01" + "02" + "01"
    assert redundant[35:40].hex() == "0000" + "02" + "02" + "01", "after the code over the sizes"
    assert struct.unpack_from("!Q", first, 40)[0] == T0 + 9, "the time at which the block was sent"
    assert struct.unpack_from("!I", first, 20)[0] == 8, "the burst is in every header"
    position = (51_000, 65_535, 255, 200, 56)
    assert unpack_share_position(pack_share_position(*position)) == position


def test_shares_go_by_multicast_only_if_their_whole_block_may() -> None:
    fec, frames = Fec(policy(2, (1, 3))), slot_frames([1, 2, 3])
    for frame, may in zip(frames, (True, False, True), strict=True):
        frame.multicast = may
        fec.from_above(T0, frame)
    assert [share.multicast for share in fec.down] == [False] * 3 + [True] * 2


def test_other_frames_pass_at_once_between_blocks() -> None:
    fec, frames = Fec(policy(2, (1, 4))), slot_frames([1] * 5)
    probe = control_frame(Probe(5), 2, 3, 0, slot=SLOT)
    unicast = replace(frames[0], to=3)
    for frame in [*frames[:2], probe, *frames[2:4], unicast, frames[4], probe]:
        fec.from_above(T0, frame)
    assert [f.kind.name[0] for f in fec.down] == list("PFFFFDFFFP"), "never between the shares of a block"
    receiver = Receiver()
    assert len(receiver.receive([encode(probe, GROUP), encode(unicast, GROUP)])) == 2
    assert not receiver.fec.held_bytes()


def test_a_slot_without_an_end_of_slot_mark_is_sent_when_the_next_slot_starts() -> None:
    """After a pause an order may open a later slot; the frames that it sent before must not stay in the layer."""
    sender = Sender(fec=(1, 4))
    early, later = slot_frames([1, 2, 3]), slot_frames([4], SLOT + 9)
    assert sender.send(early[:2]) == []
    datagrams = sender.send(later)
    assert [len(block) for block in blocks(datagrams)] == [3, 2]
    receiver = Receiver()
    assert receiver.receive(datagrams[1:]) == [seen(early[1]), seen(early[0]), seen(later[0])]


# -- reconstruction ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), SMALL)
def test_every_loss_of_at_most_a_shares_of_a_block_is_repaired(a: int, b: int) -> None:
    """Exhaustive: every number of originals up to three blocks, every block, every loss pattern."""
    chance = Random(f"{a} {b}")
    for count in range(1, 2 * (b - a) + 2):
        sizes = [chance.choice((0, 1, 40, 1300)) for _ in range(count)]
        sizes[-1] = chance.choice((-1, 5))
        frames = slot_frames(sizes)
        expected = [seen(frame) for frame in frames]
        sent = blocks(Sender(fec=(a, b)).send(frames))
        assert sum(map(len, sent)) == datagrams_per_slot(count, a, b)
        assert len(sent[-1]) > a, "the last block is never empty"
        for lossy, block in enumerate(sent):
            for lost in losses(len(block), a):
                receiver = Receiver()
                arrived = [
                    data for n, each in enumerate(sent) for i, data in enumerate(each) if n != lossy or i not in lost
                ]
                up = receiver.receive(arrived)
                assert sorted(up) == sorted(expected), (sizes, lossy, lost)
                assert receiver.fec.recovered_originals == sum(index < len(block) - a for index in lost)
                assert receiver.fec.held_bytes() == 0
                assert not receiver.fec.ignored


def test_originals_go_up_as_they_arrive_and_missing_ones_once_reconstructed() -> None:
    frames = slot_frames([5, 6, 7])
    o0, o1, o2, r0, r1 = Sender(fec=(2, 5)).send(frames)
    receiver = Receiver()
    assert receiver.receive([o0]) == [seen(frames[0])]
    assert receiver.receive([o2]) == [seen(frames[2])], "even behind a gap"
    assert receiver.receive([r1]) == [seen(frames[1])]
    assert receiver.receive([r0, o1]) == [], "shares of a complete block are discarded"
    assert receiver.fec.counters()["surplus"] == 2


def test_with_more_than_a_losses_only_the_originals_that_arrived_go_up() -> None:
    frames = slot_frames([5, 0, 900, 7, 8, -1])
    expected = [seen(frame) for frame in frames]
    first, second = blocks(Sender(fec=(1, 4)).send(frames))
    for lost in losses(4, 4):
        if len(lost) < 2:
            continue
        receiver = Receiver()
        up = receiver.receive([data for index, data in enumerate(first) if index not in lost] + second)
        assert up == [each for index, each in enumerate(expected) if index >= 3 or index not in lost]
        assert receiver.fec.recovered_originals == 0


def test_reordered_and_duplicated_shares_of_two_senders_and_several_slots() -> None:
    chance = Random(5)
    for _ in range(40):
        expected, datagrams = [], []
        for member in (2, 3):
            sender = Sender(member, (2, 6))
            for slot in range(SLOT, SLOT + 4):
                frames = slot_frames([chance.choice((0, 9, 300)) for _ in range(chance.randint(1, 9))], slot, member)
                expected += [seen(frame) for frame in frames]
                for block in blocks(sender.send(frames)):
                    lost = chance.sample(range(len(block)), chance.randint(0, 2))
                    datagrams += [data for index, data in enumerate(block) if index not in lost]
        datagrams += chance.choices(datagrams, k=20)
        chance.shuffle(datagrams)
        receiver = Receiver()
        assert sorted(receiver.receive(datagrams)) == sorted(expected), "each frame once"
        assert receiver.fec.held_bytes() == 0
        assert receiver.fec.ignored.keys() <= {"duplicate"}


def test_a_reconstructed_frame_has_its_fragments_and_flags() -> None:
    flags = (FRAGMENT | FIRST_FRAGMENT | MORE_FRAGMENTS, FRAGMENT | MORE_FRAGMENTS, FRAGMENT, END_OF_SLOT | LEAVING)
    frames = [replace(frame, flags=flag) for frame, flag in zip(slot_frames([-1] * 4), flags, strict=True)]
    for frame, body in zip(frames, (b"x" * 300, b"y\0\0", b"\0", b""), strict=True):
        frame.body = body
    datagrams = Sender(fec=(4, 8)).send(frames)
    receiver = Receiver()
    assert receiver.receive(datagrams[4:], multicast=True) == [seen(frame) for frame in frames]
    receiver.receive(datagrams[4:7])
    assert receiver.fec.counters()["recovered"] == 4


def test_frames_keep_whether_they_arrived_by_multicast() -> None:
    datagrams = Sender(fec=(1, 3)).send(slot_frames([1, 2]))
    receiver = Receiver()
    for data, multicast in ((datagrams[0], False), (datagrams[2], True)):
        frame = receiver.door.admit(data, 0, len(data), SLOT)
        assert frame is not None
        frame.multicast = multicast
        receiver.fec.from_below(T0, frame)
    assert [frame.multicast for frame in receiver.fec.up] == [False, True]


@pytest.mark.parametrize(("a", "b"), [(1, 256), (255, 256), (128, 256), (56, 256)])
def test_the_largest_blocks(a: int, b: int) -> None:
    frames = slot_frames([n % 50 for n in range(b - a + 1)])
    first, last = blocks(Sender(fec=(a, b)).send(frames))
    lost = Random(a).sample(range(b), a)
    up = Receiver().receive([data for index, data in enumerate(first) if index not in lost] + last[a:])
    assert sorted(up) == sorted(seen(frame) for frame in frames)


# -- kept state ----------------------------------------------------------------------------------------------


def test_no_state_is_kept_of_finished_slots() -> None:
    receiver, sender = Receiver(), Sender(fec=(1, 3))
    for slot in range(SLOT, SLOT + 900):
        receiver.receive(sender.send(slot_frames([1, 2, 3], slot))[1:], TIMING.start_of(slot))
    (stream,) = receiver.fec._streams.values()
    assert (stream.slots, stream.finished, stream.held_bytes) == ({}, set(), 0)
    assert stream.floor == SLOT + 900


def test_a_share_of_an_implausible_slot_does_not_expire_the_others() -> None:
    """Its original goes up, since the order decides; the other slots can still be repaired."""
    receiver, sender = Receiver(), Sender(fec=(1, 3))
    receiver.door = Door(GROUP, ME, MEMBERS, frozenset({Kind.FEC}))
    far = sender.send(slot_frames([1, 2], SLOT + 10**6))
    for data in far:
        frame = receiver.door.admit(data, 0, len(data), 2**62)
        assert frame is not None
        receiver.fec.from_below(T0, frame)
    assert receiver.fec.ignored == {"slot ahead of any clock": len(far)}
    assert len(receiver.fec.up) == 2
    receiver.fec.up.clear()
    assert receiver.fec._streams == {}
    frames = slot_frames([1, 2])
    assert receiver.receive(sender.send(frames)[1:]) != []
    assert receiver.fec.recovered_originals == 1, "the lost original is reconstructed"


def test_incomplete_blocks_are_dropped_when_their_sender_is_far_ahead() -> None:
    receiver, sender = Receiver(), Sender(fec=(1, 3))
    kept = receiver.fec.kept_slots(SLOT)
    assert kept * TIMING.theta_ns >= TIMING.delta_ns + TIMING.gamma_ns + 10**9
    incomplete = sender.send(slot_frames([1, 2]))
    assert len(receiver.receive(incomplete[:1])) == 1
    for slot in range(SLOT + 1, SLOT + kept + 1):
        receiver.receive(sender.send(slot_frames([1], slot)), TIMING.start_of(slot))
    assert (receiver.fec.incomplete_blocks, receiver.fec.held_bytes() > 0) == (0, True)
    receiver.receive(sender.send(slot_frames([1], SLOT + kept + 1)), TIMING.start_of(SLOT + kept + 1))
    assert (receiver.fec.incomplete_blocks, receiver.fec.held_bytes()) == (1, 0)
    assert len(receiver.receive(incomplete[1:2])) == 1, "a late original goes up; the order decides"
    assert receiver.receive(incomplete[2:]) == []


def test_a_pause_of_the_receiver_drops_nothing_that_is_still_in_the_socket() -> None:
    receiver = Receiver()
    datagrams = Sender(fec=(1, 3)).send(slot_frames([1, 2]))
    receiver.receive(datagrams[:1])
    later = T0 + 3 * 10**9
    receiver.fec.wake(later)
    assert len(receiver.receive(datagrams[2:], later)) == 1
    assert receiver.fec.recovered_originals == 1


def test_the_blocks_of_a_silent_sender_are_dropped_after_a_timeout() -> None:
    receiver = Receiver()
    receiver.fec.wake(T0)
    receiver.receive(Sender(fec=(1, 3)).send(slot_frames([1, 2]))[:1])
    assert receiver.fec.wake_at() is None
    receiver.fec.wake(T0 + SENDER_TIMEOUT_NS // 2)
    assert receiver.fec.held_bytes() > 0
    receiver.fec.wake(T0 + 2 * SENDER_TIMEOUT_NS)
    assert (receiver.fec.incomplete_blocks, receiver.fec.held_bytes()) == (1, 0)


def test_the_state_of_a_sender_is_bounded_and_the_oldest_slot_is_dropped_first() -> None:
    assert HELD_BYTES_MAX < 2**30
    receiver, sender = Receiver(held_bytes_max=20_000), Sender(fec=(2, 10))
    second_halves = []
    for slot in range(SLOT, SLOT + 20):
        datagrams = sender.send(slot_frames([1000] * 8, slot))
        second_halves.append(datagrams[5:])
        assert len(receiver.receive(datagrams[:5])) == 5
        assert receiver.fec.held_bytes() <= 20_000
    assert receiver.fec.counters()["given_up"] == 18
    ups = [len(receiver.receive(half[1:])) for half in second_halves]
    assert ups == [2] * 18 + [3] * 2, "only the last two slots can still be reconstructed; originals go up in any case"


def test_a_new_incarnation_resets_the_state_and_old_originals_pass() -> None:
    receiver = Receiver()
    old, new = slot_frames([1, 2]), slot_frames([3, 4], incarnation=4)
    sent_old, sent_new = Sender(fec=(1, 3)).send(old), Sender(fec=(1, 3)).send(new)
    assert receiver.receive(sent_old[:1]) == [seen(old[0])]
    assert receiver.receive(sent_new[1:]) == [seen(new[1]), seen(new[0])], "incarnations are not mixed"
    assert receiver.receive(sent_old[1:]) == [seen(old[1])]
    assert receiver.fec.recovered_originals == 1


# -- the door, and forged shares -----------------------------------------------------------------------------


def valid_shares() -> list[bytes]:
    return Sender(fec=(1, 4)).send(slot_frames([9, 8, 7, 6, 5]))


def with_position(share: int, **changes: int) -> Callable[[], bytes]:
    def make() -> bytes:
        data = bytearray(valid_shares()[share])
        names = ("size", "block", "index", "originals", "redundant")
        fields = dict(zip(names, unpack_share_position(struct.unpack_from("!Q", data, 32)[0]), strict=True)) | changes
        struct.pack_into("!Q", data, 32, pack_share_position(*(fields[name] for name in names)))
        return bytes(data)

    return make


def with_field(share: int, offset: int, layout: str, value: int) -> Callable[[], bytes]:
    def make() -> bytes:
        data = bytearray(valid_shares()[share])
        struct.pack_into(layout, data, offset, value)
        return bytes(data)

    return make


INNER = HEADER_BYTES
FORGED: list[tuple[str, Refusal, Callable[[], bytes]]] = [
    ("without a share", Refusal.BAD_SHARE, lambda: valid_shares()[0][:HEADER_BYTES]),
    ("half a header inside", Refusal.BAD_SHARE, lambda: valid_shares()[3][: HEADER_BYTES + 47]),
    ("a flag that shares do not have", Refusal.BAD_SHARE, with_field(0, 2, "!B", LEAVING)),
    ("no originals", Refusal.BAD_SHARE, with_position(3, originals=0)),
    ("no redundant shares", Refusal.BAD_SHARE, with_position(0, redundant=0)),
    ("index beyond the block", Refusal.BAD_SHARE, with_position(3, index=4)),
    ("a block too long", Refusal.BAD_SHARE, with_position(3, originals=255, redundant=2)),
    ("number 1, index 0, block 0", Refusal.BAD_SHARE, with_field(0, 6, "!H", 1)),
    ("number before its index", Refusal.BAD_SHARE, with_field(4, 6, "!H", 0)),
    ("blocks of two and a half shares", Refusal.BAD_SHARE, with_position(3, block=2)),
    ("a block longer than those before", Refusal.BAD_SHARE, with_position(4, originals=4)),
    ("an original of another size", Refusal.BAD_SHARE, with_position(0, size=60)),
    ("a size beyond 16 bits", Refusal.BAD_SHARE, with_field(3, 32, "!B", 1)),
    ("an original cut short", Refusal.BAD_SHARE, lambda: valid_shares()[0][:-1]),
    ("an original of another version", Refusal.BAD_SHARE, with_field(0, INNER, "!B", 9)),
    ("an original of another kind than DATA", Refusal.BAD_SHARE, with_field(0, INNER + 1, "!B", Kind.PROBE)),
    ("a share in a share", Refusal.BAD_SHARE, with_field(0, INNER + 1, "!B", Kind.FEC)),
    ("an end-of-slot mark before the end", Refusal.BAD_SHARE, with_field(0, INNER + 2, "!B", END_OF_SLOT)),
    ("a last original without an end-of-slot mark", Refusal.BAD_SHARE, with_field(5, INNER + 2, "!B", 0)),
    ("unknown flags inside", Refusal.BAD_SHARE, with_field(0, INNER + 2, "!B", 0x80)),
    ("a reserved byte that is not 0", Refusal.BAD_SHARE, with_field(0, INNER + 3, "!B", 1)),
    ("another sender inside", Refusal.BAD_SHARE, with_field(0, INNER + 4, "!H", 3)),
    ("another group inside", Refusal.BAD_SHARE, with_field(0, INNER + 8, "!I", 3)),
    ("another epoch inside", Refusal.BAD_SHARE, with_field(0, INNER + 12, "!I", 3)),
    ("another incarnation inside", Refusal.BAD_SHARE, with_field(0, INNER + 16, "!I", 9)),
    ("another slot inside", Refusal.BAD_SHARE, with_field(0, INNER + 24, "!Q", SLOT - 1)),
    ("an impossible sequence inside", Refusal.BAD_SHARE, with_field(0, INNER + 32, "!Q", 2**63)),
    ("an impossible time inside", Refusal.BAD_SHARE, with_field(0, INNER + 40, "!Q", 2**63)),
    ("wrong lengths inside", Refusal.INCONSISTENT_LENGTHS, with_field(0, INNER + 48, "!H", 2)),
    ("a slot in the far future", Refusal.IMPLAUSIBLE_SLOT, with_field(0, 24, "!Q", SLOT + 1001)),
    ("a sender that is not a member", Refusal.NOT_A_MEMBER, with_field(0, 4, "!H", 77)),
]


@pytest.mark.parametrize(("refusal", "make"), [case[1:] for case in FORGED], ids=[name for name, _, _ in FORGED])
def test_the_door_refuses_forged_shares(refusal: Refusal, make: Callable[[], bytes]) -> None:
    receiver = Receiver()
    assert receiver.receive([make()]) == []
    assert receiver.door.refused == {refusal: 1}
    assert receiver.fec.held_bytes() == 0


def test_without_the_layer_the_door_refuses_shares() -> None:
    door, data = Door(GROUP, ME, MEMBERS), valid_shares()[0]
    assert door.admit(data, 0, len(data), SLOT) is None
    assert door.refused == {Refusal.UNKNOWN_KIND: 1}


def test_an_admitted_share_has_its_position() -> None:
    data = valid_shares()[6]
    share = Door(GROUP, ME, MEMBERS, layered=frozenset({Kind.FEC})).admit(data, 0, len(data), SLOT)
    assert isinstance(share, Share)
    assert (share.block, share.index, share.originals, share.redundant) == (1, 2, 2, 1)
    assert (share.number, share.is_end_of_slot, share.original) == (6, True, None)


def test_shares_that_contradict_their_block_or_slot_are_not_used() -> None:
    frames = slot_frames([9, 8, 7, 6, 5])
    first, last = blocks(Sender(fec=(1, 4)).send(frames))
    other_block = blocks(Sender(fec=(1, 5)).send(frames))[0]
    ended = Sender(fec=(1, 4)).send(slot_frames([1, 2, 3]))
    middle = blocks(Sender(fec=(1, 4)).send(slot_frames([1] * 7)))[1]
    for valid, contradicting in (
        ([first[0]], other_block[4]),  # a redundant share of a longer block
        ([first[0]], ended[1]),  # the same block, but as the last of the slot
        ([first[0], last[1]], ended[1]),
        ([last[0]], ended[0]),  # another last block
        ([middle[0]], ended[0]),  # a last block before one that has arrived
        ([*ended[:2]], last[0]),  # a block after the last one
    ):
        receiver = Receiver()
        receiver.receive(valid)
        before = receiver.fec.held_bytes()
        assert receiver.receive([contradicting]) == []
        assert receiver.fec.held_bytes() == before
        assert receiver.fec.ignored == {"contradicts its block or slot": 1}
    receiver = Receiver()
    assert len(receiver.receive([first[0], other_block[4], *first[2:], *last[:2]])) == 5, "the valid shares still count"


@pytest.mark.parametrize("forgery", ["size code", "bytes", "too short", "too long"])
def test_a_forged_redundant_share_does_not_create_frames(forgery: str) -> None:
    frames = slot_frames([90, 80, 70])
    datagrams = Sender(fec=(1, 4)).send(frames)
    forged = bytearray(datagrams[3])
    if forgery == "size code":
        forged[33] ^= 0xFF
    elif forgery == "bytes":
        forged[HEADER_BYTES + 8] ^= 0x40
    elif forgery == "too short":
        del forged[HEADER_BYTES + 60 :]
    else:
        forged += bytes(9)
    receiver = Receiver()
    up = receiver.receive([*datagrams[1:3], bytes(forged)])
    assert up[:2] == [seen(frame) for frame in frames[1:]]
    if forgery == "too long":
        assert len(up) == 2 or up[2] == seen(frames[0])
    else:
        assert len(up) == 2
        assert receiver.fec.ignored.total() >= 1
    assert receiver.fec.held_bytes() == 0


def test_redundant_shares_of_different_lengths_are_not_decoded() -> None:
    datagrams = Sender(fec=(2, 4)).send(slot_frames([90, 80]))
    receiver = Receiver()
    assert receiver.receive([datagrams[2], datagrams[3] + b"\0"]) == []
    assert receiver.fec.ignored == {"shares of different blocks": 2}


# -- the cost of redundancy ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fec", [(0, 3), (3, 3), (4, 3), (-1, 2), (1, 257)])
def test_an_impossible_redundancy_is_refused_with_its_field(fec: tuple[int, int]) -> None:
    with pytest.raises(InvalidOption, match=f"{fec[0]}/{fec[1]}") as caught:
        checked_fec(fec)
    assert caught.value.field == "fec"
    with pytest.raises(InvalidOption):
        Fec(replace(policy(), fec=fec))
    with pytest.raises(InvalidOption):
        Sender().fec.change_code(fec, SLOT + 1)


def test_the_layer_needs_a_redundancy() -> None:
    with pytest.raises(InvalidOption, match="fec"):
        Fec(policy(fec=None))


def test_datagrams_per_slot_matches_the_layer() -> None:
    for a, b in SMALL:
        for count in range(1, 20):
            assert len(Sender(fec=(a, b)).send(slot_frames([0] * count))) == datagrams_per_slot(count, a, b)
        assert datagrams_per_slot(0, a, b) == datagrams_per_slot(1, a, b) == 1 + a, "a dummy fills an empty slot"
    assert net_max_burst(8, 2, 10) == 10
    assert net_max_burst(9, 2, 10) == 13
    with pytest.raises(InvalidOption, match="65,535"):
        net_max_burst(50_000, 2, 5)


OFFER = Offer("vbr", True, 17 * MS, 250.0, 8, 48, True, "none", 1.0, ("Theorem 3",))


def test_an_offer_through_the_layer() -> None:
    theta_s = 0.005
    offer = replace(OFFER, avg_rate=50 + 1 / theta_s)
    through = offer_through_fec(offer, (2, 10), 5 * MS)
    assert through.avg_rate * theta_s == pytest.approx(net_avg_per_slot(50 * theta_s, 2, 10))
    assert (through.max_burst, through.header_bytes) == (10, 96)
    assert through.latency_bound_ns == offer.latency_bound_ns, "001-7"
    assert (through.feasible, through.gap_free) == (True, True)
    assert through.loss_tolerance == "at most 2 of any 10 consecutive datagrams of a sender"
    assert through.reasons[0] == "Theorem 3"
    assert "8 + 2·⌈8/8⌉ = 10" in through.reasons[1]
    crowded = offer_through_fec(replace(OFFER, max_burst=50_000), (2, 5), 5 * MS)
    assert not crowded.feasible
    assert "65,535" in crowded.reasons[-1]
    with pytest.raises(InvalidOption):
        offer_through_fec(OFFER, (5, 5), 5 * MS)


def test_the_order_above_sees_only_the_residual_loss() -> None:
    ask = Ask(5, Rate(50, 8), TIMING, loss=0.01, fec=(2, 10))
    above = ask_above_fec(ask)
    # An original stays lost if it and at least two of the other nine shares are lost.
    assert above.loss == pytest.approx(0.01 * (1 - 0.99**9 - 9 * 0.01 * 0.99**8))
    assert (above.fec, above.rate, above.members) == (None, ask.rate, 5)
    plain = replace(ask, fec=None)
    assert ask_above_fec(plain) is plain
    assert residual_loss(0, 1, 2) == 0
    assert residual_loss(0.5, 1, 2) == pytest.approx(0.25), "both copies lost"


def test_frames_of_the_order_leave_room_for_the_share_header() -> None:
    above = order_policy(policy(max_frame=1400))
    assert above.max_frame == 1352
    frames = slot_frames([above.max_frame - HEADER_BYTES - 4, 5])
    assert max(map(len, Sender(fec=(1, 3)).send(frames))) == 1400
    with pytest.raises(InvalidOption, match="max_frame"):
        order_policy(policy(max_frame=256))


def test_shares_of_equal_frames_are_made_without_padding() -> None:
    originals = [bytes([n]) * 100 for n in range(3)]
    shares = redundant_shares(originals, 2)
    assert [(size, len(data)) for size, data in shares] == [(100, 100), (100, 100)], "equal sizes give equal codes"
