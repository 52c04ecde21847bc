"""The erasure code: its field, its shares bit by bit, every pattern of lost shares, and its limits."""

from __future__ import annotations

from itertools import combinations
from random import Random
from typing import Any

import pytest
from tests.unit.test_fec import Receiver, Sender, seen, slot_frames

from unisono.model.policy import SHARES_MAX
from unisono.net.fec import coder, shares
from unisono.net.fec.coder import BuiltInCoder, Coder, ZfecCoder, installed_coder, interpolation_factors, multiples

BUILT_IN = BuiltInCoder()
LARGEST = [(1, 255), (255, 1), (128, 128), (256, 0)]
"""Shapes of blocks with all 256 shares, as originals and redundant shares."""

RECORDED = {
    (1, 2): ("00017f80ff", ["00017f80ff", "00017f80ff"]),
    (2, 1): ("00017f80ff102030405a", ["2043e11da8"]),
    (3, 3): ("00017f80ff102030405adeadbeef99", ["7edb81b1f7", "a7ee0779d8", "22c7d1396d"]),
    (5, 2): ("00017f80ff102030405adeadbeef99a5a5a5a5a5ffeeddccbb", ["0aa4cdb8d3", "09890af68d"]),
}
"""By originals and redundant shares: the originals of 5 bytes each, joined, and the redundant shares of zfec 1.6."""


@pytest.fixture
def zfec() -> Any:
    return pytest.importorskip("zfec")


def small_shapes(most: int) -> list[tuple[int, int]]:
    """Every (originals, redundant) with at most `most` shares."""
    return [(count, total - count) for total in range(1, most + 1) for count in range(1, total + 1)]


def block(originals: int, size: int) -> list[bytes]:
    chance = Random(f"{originals} {size}")
    return [chance.randbytes(size) for _ in range(originals)]


# -- the field -----------------------------------------------------------------------------------------------------


def product(one: int, other: int) -> int:
    """Multiply by the definition: as polynomials over GF(2), modulo x⁸+x⁴+x³+x²+1."""
    found = 0
    for bit in range(8):
        if other >> bit & 1:
            found ^= one << bit
    for bit in range(14, 7, -1):
        if found >> bit & 1:
            found ^= 0b1_0001_1101 << bit - 8
    return found


def test_the_tables_multiply_as_the_definition_does() -> None:
    for factor in range(256):
        assert multiples(factor) == bytes(product(element, factor) for element in range(256))


def test_every_factor_but_zero_has_an_inverse() -> None:
    for factor in range(1, 256):
        assert sorted(multiples(factor)) == list(range(256))
        inverse = multiples(factor).index(1)
        assert multiples(factor).translate(multiples(inverse)) == bytes(range(256))


def test_multiplication_distributes_over_addition() -> None:
    """Coding adds shares as integers, so the sum of the products must be the product of the sum."""
    chance = Random(1)
    one, other = chance.randbytes(500), chance.randbytes(500)
    added = bytes(a ^ b for a, b in zip(one, other, strict=True))
    for factor in range(256):
        products = zip(one.translate(multiples(factor)), other.translate(multiples(factor)), strict=True)
        assert bytes(a ^ b for a, b in products) == added.translate(multiples(factor))


def test_the_256_shares_of_a_block_have_different_points() -> None:
    assert sorted(coder._POINTS) == list(range(SHARES_MAX))


def test_no_factor_is_zero_so_every_share_depends_on_every_original() -> None:
    for originals, redundant in small_shapes(12):
        rows = interpolation_factors(range(originals), range(originals, originals + redundant))
        assert all(all(row) for row in rows)


# -- the shares ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", RECORDED)
def test_the_shares_are_the_recorded_ones(shape: tuple[int, int]) -> None:
    """This also holds on machines without zfec, where the comparison with it is skipped."""
    joined, expected = RECORDED[shape]
    whole = bytes.fromhex(joined)
    originals = [whole[at : at + 5] for at in range(0, len(whole), 5)]
    assert len(originals) == shape[0]
    assert [share.hex() for share in BUILT_IN.encode(originals, shape[1])] == expected


def test_every_small_block_has_the_shares_of_zfec(zfec: Any) -> None:
    by_zfec = ZfecCoder(zfec)
    for originals, redundant in small_shapes(12):
        for size in (1, 2, 7):
            shares_in = block(originals, size)
            assert BUILT_IN.encode(shares_in, redundant) == list(by_zfec.encode(shares_in, redundant))


@pytest.mark.parametrize(("originals", "redundant"), LARGEST)
def test_the_largest_blocks_have_the_shares_of_zfec(zfec: Any, originals: int, redundant: int) -> None:
    shares_in = block(originals, 3)
    assert BUILT_IN.encode(shares_in, redundant) == list(ZfecCoder(zfec).encode(shares_in, redundant))


# -- decoding ------------------------------------------------------------------------------------------------------


def test_every_k_shares_of_a_small_block_restore_it() -> None:
    for originals, redundant in small_shapes(9):
        whole = block(originals, 5)
        coded = whole + BUILT_IN.encode(whole, redundant)
        for kept in combinations(range(originals + redundant), originals):
            found = BUILT_IN.decode({index: coded[index] for index in kept}, originals, redundant)
            assert found == {index: whole[index] for index in range(originals) if index not in kept}


@pytest.mark.parametrize(("originals", "redundant"), LARGEST)
def test_the_largest_blocks_are_restored(originals: int, redundant: int) -> None:
    whole = block(originals, 3)
    coded = dict(enumerate(whole + BUILT_IN.encode(whole, redundant)))
    kept = {index: coded[index] for index in sorted(coded)[-originals:]}
    assert BUILT_IN.decode(kept, originals, redundant) == {
        index: whole[index] for index in range(originals) if index not in kept
    }


@pytest.mark.parametrize("sending", ["zfec", "built-in"])
def test_members_with_and_without_zfec_understand_each_other(
    zfec: Any, monkeypatch: pytest.MonkeyPatch, sending: str
) -> None:
    coders: dict[str, Coder] = {"zfec": ZfecCoder(zfec), "built-in": BUILT_IN}
    frames = slot_frames([90, 0, 300, 1, 70, 1200, 30])
    sender_coder = coders.pop(sending)
    (receiver_coder,) = coders.values()
    monkeypatch.setattr(shares, "installed_coder", lambda: sender_coder)
    datagrams = Sender(fec=(2, 5)).send(frames)
    monkeypatch.setattr(shares, "installed_coder", lambda: receiver_coder)
    receiver = Receiver()
    up = receiver.receive([data for position, data in enumerate(datagrams) if position % 5 > 1])
    assert sorted(up) == sorted(seen(frame) for frame in frames)
    assert receiver.fec.recovered_originals > 0


# -- which coder, and its limits -----------------------------------------------------------------------------------


def test_zfec_is_used_if_it_is_installed(zfec: Any) -> None:
    assert isinstance(installed_coder(), ZfecCoder)


@pytest.mark.usefixtures("without_zfec")
def test_the_built_in_code_is_used_without_zfec() -> None:
    assert isinstance(installed_coder(), BuiltInCoder)
    frames = slot_frames([90, 0, 300, 1, 70])
    datagrams = Sender(fec=(2, 7)).send(frames)
    receiver = Receiver()
    up = receiver.receive(datagrams[2:])
    assert sorted(up) == sorted(seen(frame) for frame in frames)
    assert receiver.fec.recovered_originals == 2


@pytest.mark.parametrize(("originals", "redundant"), [(0, 1), (1, 256), (256, 1), (2, -1), (10**9, 10**9)])
def test_impossible_shapes_are_refused_before_any_work(originals: int, redundant: int) -> None:
    with pytest.raises(ValueError, match="at most 256 shares"):
        BUILT_IN.prepare(originals, redundant)
    with pytest.raises(ValueError, match="at most 256 shares"):
        BUILT_IN.decode({0: b"x"}, originals, redundant)


@pytest.mark.parametrize("indices", [(), (0, 1), (0, 1, 2, 3), (0, 1, 5), (-1, 0, 1)])
def test_the_wrong_shares_for_a_block_are_refused(indices: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected 3 shares of 5 to decode"):
        BUILT_IN.decode(dict.fromkeys(indices, b"x"), 3, 2)


def test_shares_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one length, got \[2, 3\]"):
        BUILT_IN.encode([b"abc", b"ab"], 1)
    with pytest.raises(ValueError, match=r"one length, got \[2, 3\]"):
        BUILT_IN.decode({0: b"abc", 2: b"ab"}, 2, 1)


def test_kept_factors_stay_few_whatever_blocks_arrive() -> None:
    """A peer chooses the shapes and the missing shares of the blocks that it sends."""
    for missing in combinations(range(40), 2):
        kept = {index: b"x" for index in range(42) if index not in missing}
        BUILT_IN.decode(kept, 40, 2)
    for originals in range(1, 256):
        for redundant in (1, 2, 3):
            if originals + redundant <= SHARES_MAX:
                BUILT_IN.prepare(originals, redundant)
    for keeps in (coder._decoding_factors, coder._encoding_factors):
        info = keeps.cache_info()
        assert info.maxsize is not None
        assert info.currsize <= info.maxsize <= 512
    most = max(sum(map(len, coder._encoding_factors(count, SHARES_MAX - count))) for count in range(1, 257))
    assert most == 16 * 1024
