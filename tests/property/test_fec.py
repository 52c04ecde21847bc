"""Forward error correction under random input: losses within the bound are repaired, corrupt shares do no harm."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.test_fec import GROUP, ME, MEMBERS, SLOT, T0, Receiver, Seen, Sender, seen, slot_frames

from unisono.net.fec.layer import datagrams_per_slot
from unisono.net.fec.shares import Share, missing_originals, redundant_shares
from unisono.wire.codec import control_frame
from unisono.wire.control import Probe
from unisono.wire.frame import HEADER_BYTES, Frame, Kind, encode

PROBE = encode(control_frame(Probe(5), 2, 3, 0, slot=SLOT), GROUP)

redundancies = st.tuples(st.integers(1, 8), st.integers(1, 12)).map(lambda ab: (ab[0], ab[0] + ab[1]))


def within_bound(chance: Random, datagrams: list[bytes], a: int, b: int) -> list[bytes]:
    """The datagrams that arrive when many are lost, but at most a of any b consecutive ones."""
    recent: deque[bool] = deque(maxlen=b - 1)
    arrived = []
    for data in datagrams:
        lost = sum(recent) < a and chance.random() < 0.8
        recent.append(lost)
        if not lost:
            arrived.append(data)
    return arrived


@given(redundancies, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_losses_within_the_bound_are_repaired_across_slots_and_blocks(fec: tuple[int, int], chance: Random) -> None:
    """Slots of any length, control frames between blocks, shares reordered and duplicated."""
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
    arrived = within_bound(chance, datagrams, *fec)
    arrived += chance.choices(arrived, k=chance.randint(0, 5))
    if chance.random() < 0.5:
        chance.shuffle(arrived)
    receiver = Receiver()
    up = [frame for frame in receiver.receive(arrived) if frame[0] is Kind.DATA]
    assert sorted(up) == sorted(expected)
    assert receiver.fec.held_bytes() == 0
    assert receiver.fec.ignored.keys() <= {"duplicate"}
    assert not receiver.door.refused


@given(st.lists(st.binary(min_size=1, max_size=80), min_size=1, max_size=12), st.integers(1, 8), st.data())
def test_any_k_shares_restore_the_exact_bytes(originals: list[bytes], redundant: int, data: st.DataObject) -> None:
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
        mutation = chance.randrange(6)
        if mutation == 0 and datagram:
            datagram[at] ^= 1 << chance.randrange(8)
        elif mutation == 1 and datagram:
            # Wrong positions, sizes and flags can do the most harm.
            field = chance.choice((2, 3, 6, 7, *range(32, 40), HEADER_BYTES + 2, HEADER_BYTES + 7))
            datagram[min(field, len(datagram) - 1)] = chance.choice([0, 1, 2, 3, 4, 5, 0xFF])
        elif mutation == 2:
            del datagram[at:]
        elif mutation == 3:
            datagram += chance.randbytes(chance.randint(1, 40))
        elif mutation == 4:
            other = chance.choice(valid)
            datagram[at:] = other[at:]
        elif len(datagram) > 2 * HEADER_BYTES:
            datagram[chance.randrange(2 * HEADER_BYTES, len(datagram))] = chance.randrange(256)
    return bytes(datagram)


@pytest.mark.parametrize("seed", range(12))
def test_corrupt_shares_are_refused_or_valid_and_never_raise(seed: int) -> None:
    """Mutated shares among valid ones: nothing raises, and only frames of other members go up."""
    chance = Random(seed)
    valid: list[bytes] = []
    genuine: set[Seen] = set()
    for member in (2, 3):
        for fec in ((1, 3), (2, 5), (3, 4)):
            sender = Sender(member, fec)
            for slot in range(SLOT, SLOT + 3):
                frames = slot_frames([chance.choice((0, 3, 90)) for _ in range(chance.randint(1, 7))], slot, member)
                genuine |= {seen(frame) for frame in frames}
                valid += sender.send(frames)
    receiver, admitted, up = Receiver(held_bytes_max=30_000), 0, []
    for number in range(2500):
        datagram = mutated(chance, valid) if chance.random() < 0.8 else chance.choice(valid)
        refused = receiver.door.refused.total()
        up += receiver.receive([datagram], T0 + number * 100_000)
        admitted += receiver.door.refused.total() == refused
        assert receiver.fec.held_bytes() <= 2 * 30_000, "at most the limit for each of two senders"
        assert sum(len(stream.slots) for stream in receiver.fec._streams.values()) < 500
    assert 400 < admitted < 2400
    assert len(receiver.door.refused) >= 5
    assert len(genuine & set(up)) > 20
    for frame in up:
        assert frame[1] in MEMBERS
        assert frame[1] != ME
