"""Forward error correction under anything: losses within the bound lose nothing, rubbish does no harm."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.test_fec import GROUP, ME, MEMBERS, SLOT, T0, Receiver, Seen, Sender, seen, slot_frames

from unisono.net.fec.layer import datagrams_per_slot
from unisono.net.fec.shares import Share, missing_originals, redundant_shares
from unisono.wire.control import encode_probe
from unisono.wire.frame import HEADER_BYTES, Frame, Kind, encode

PROBE = encode(Frame(Kind.PROBE, 2, 3, 0, SLOT, 0, body=encode_probe(5)), GROUP)

redundancies = st.tuples(st.integers(1, 8), st.integers(1, 12)).map(lambda ab: (ab[0], ab[0] + ab[1]))


def within_bound(chance: Random, datagrams: list[bytes], a: int, b: int) -> list[bytes]:
    """What is left when as many as possible are lost, but at most a of any b consecutive ones."""
    recent: deque[bool] = deque(maxlen=b - 1)
    left = []
    for data in datagrams:
        lost = sum(recent) < a and chance.random() < 0.8
        recent.append(lost)
        if not lost:
            left.append(data)
    return left


@given(redundancies, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_losses_within_the_bound_across_all_borders_lose_nothing(fec: tuple[int, int], chance: Random) -> None:
    """Slots of any length, control frames wherever they may stand, shares reordered within reason and doubled."""
    sender, expected, datagrams = Sender(fec=fec), [], []
    for slot in range(SLOT, SLOT + chance.randint(1, 6)):
        sizes = [chance.choice((0, 1, 300, chance.randint(0, 1300))) for _ in range(chance.randint(1, 3 * fec[1]))]
        if chance.random() < 0.3:
            sizes[-1] = -1
        frames = slot_frames(sizes, slot)
        expected += [seen(frame) for frame in frames]
        count = 0
        for frame in frames:
            sent = sender.send([frame])
            count += len(sent)
            datagrams += sent + [PROBE] * (chance.random() < 0.2)
        assert count == datagrams_per_slot(len(frames), *fec)
    left = within_bound(chance, datagrams, *fec)
    left += chance.choices(left, k=chance.randint(0, 5))
    if chance.random() < 0.5:
        chance.shuffle(left)
    receiver = Receiver()
    up = [frame for frame in receiver.take(left) if frame[0] is Kind.DATA]
    assert sorted(up) == sorted(expected)
    assert receiver.fec.held_bytes() == 0
    assert receiver.fec.ignored.keys() <= {"duplicate"}
    assert not receiver.door.refused


@given(st.lists(st.binary(min_size=1, max_size=80), min_size=1, max_size=12), st.integers(1, 8), st.data())
def test_any_k_shares_give_back_the_exact_bytes(originals: list[bytes], redundant: int, data: st.DataObject) -> None:
    count = len(originals)
    coded = [(len(each), each) for each in originals] + redundant_shares(originals, redundant)
    kept = data.draw(st.permutations(range(count + redundant)))[:count]
    shares = {}
    for index in kept:
        size, body = coded[index]
        original = Frame(Kind.DATA, 2, 3, 0, SLOT, index) if index < count else None
        frame = Share(Kind.FEC, 2, 3, 0, SLOT, index, body=body, size=size, index=index, original=original)
        frame.originals, frame.redundant = count, redundant
        shares[index] = frame
    found = missing_originals(shares)
    assert found is not None
    assert {index: bytes(whole[:size]) for index, (whole, size) in found.items()} == {
        index: original for index, original in enumerate(originals) if index not in kept
    }


def mutated(chance: Random, valid: list[bytes]) -> bytes:
    datagram = bytearray(chance.choice(valid))
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        at = chance.randrange(len(datagram)) if datagram else 0
        what = chance.randrange(6)
        if what == 0 and datagram:
            datagram[at] ^= 1 << chance.randrange(8)
        elif what == 1 and datagram:
            # Where the share stands, the sizes and the flags are where a lie could do harm.
            where = chance.choice((2, 3, 6, 7, *range(32, 40), HEADER_BYTES + 2, HEADER_BYTES + 7))
            datagram[min(where, len(datagram) - 1)] = chance.choice([0, 1, 2, 3, 4, 5, 0xFF])
        elif what == 2:
            del datagram[at:]
        elif what == 3:
            datagram += chance.randbytes(chance.randint(1, 40))
        elif what == 4:
            other = chance.choice(valid)
            datagram[at:] = other[at:]
        elif len(datagram) > 2 * HEADER_BYTES:
            datagram[chance.randrange(2 * HEADER_BYTES, len(datagram))] = chance.randrange(256)
    return bytes(datagram)


@pytest.mark.parametrize("seed", range(12))
def test_rubbish_is_refused_or_makes_sense_and_never_raises(seed: int) -> None:
    """Mutated shares among good ones: nothing raises, everything that goes up is a frame of a member's slot."""
    chance = Random(seed)
    valid: list[bytes] = []
    true: set[Seen] = set()
    for member in (2, 3):
        for fec in ((1, 3), (2, 5), (3, 4)):
            sender = Sender(member, fec)
            for slot in range(SLOT, SLOT + 3):
                frames = slot_frames([chance.choice((0, 3, 90)) for _ in range(chance.randint(1, 7))], slot, member)
                true |= {seen(frame) for frame in frames}
                valid += sender.send(frames)
    receiver, let_in, up = Receiver(held_bytes_max=30_000), 0, []
    for number in range(2500):
        datagram = mutated(chance, valid) if chance.random() < 0.8 else chance.choice(valid)
        refused = receiver.door.refused.total()
        up += receiver.take([datagram], T0 + number * 100_000)
        let_in += receiver.door.refused.total() == refused
        assert receiver.fec.held_bytes() <= 2 * 30_000, "of each of two senders at most the limit"
        assert sum(len(stream.slots) for stream in receiver.fec._streams.values()) < 500
    assert 400 < let_in < 2400
    assert len(receiver.door.refused) >= 5
    assert len(true & set(up)) > 20
    for frame in up:
        assert frame[1] in MEMBERS
        assert frame[1] != ME
