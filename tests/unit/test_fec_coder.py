"""The erasure code: its field, its shares bit by bit, every pattern of lost shares, and its limits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from random import Random

import pytest
from tests.unit.test_fec import Receiver, Sender, seen, slot_frames
from tests.worlds.coders import forget_coders

from unisono.model.policy import SHARES_MAX
from unisono.net.fec import coder, shares
from unisono.net.fec.coder import BuiltInCoder, Coder, ZfecCoder, interpolation_factors, multiples, new_coder

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
def zfec() -> None:
    """Skip the test on a machine without zfec."""
    pytest.importorskip("zfec")


def small_shapes(most: int) -> list[tuple[int, int]]:
    """Every (originals, redundant) with at most `most` shares."""
    return [(count, total - count) for total in range(1, most + 1) for count in range(1, total + 1)]


def block(originals: int, size: int) -> list[bytes]:
    chance = Random(f"{originals} {size}")
    return [chance.randbytes(size) for _ in range(originals)]


def encoded(kind: Callable[[int, int], Coder], originals: list[bytes], redundant: int) -> list[bytes]:
    """All shares of a block, originals first."""
    total = len(originals) + redundant
    return originals + list(kind(len(originals), total).encode(originals, range(len(originals), total)))


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
    for factor in range(1, 256):
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
    for factor in range(1, 256):
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
    assert [share.hex() for share in encoded(BuiltInCoder, originals, shape[1])[shape[0] :]] == expected


@pytest.mark.usefixtures("zfec")
def test_every_small_block_has_the_shares_of_zfec() -> None:
    for originals, redundant in small_shapes(12):
        for size in (0, 1, 2, 7):
            whole = block(originals, size)
            assert encoded(BuiltInCoder, whole, redundant) == encoded(ZfecCoder, whole, redundant)


@pytest.mark.usefixtures("zfec")
@pytest.mark.parametrize(("originals", "redundant"), LARGEST)
def test_the_largest_blocks_have_the_shares_of_zfec(originals: int, redundant: int) -> None:
    whole = block(originals, 3)
    assert encoded(BuiltInCoder, whole, redundant) == encoded(ZfecCoder, whole, redundant)


def test_only_the_wanted_shares_are_computed() -> None:
    whole = block(4, 6)
    coded = encoded(BuiltInCoder, whole, 5)
    assert BuiltInCoder(4, 9).encode(whole, (7, 5)) == [coded[7], coded[5]]
    assert BuiltInCoder(4, 9).encode(whole, ()) == []


# -- decoding ------------------------------------------------------------------------------------------------------


def test_every_k_shares_of_a_small_block_restore_it() -> None:
    for originals, redundant in small_shapes(9):
        whole = block(originals, 5)
        coded = encoded(BuiltInCoder, whole, redundant)
        decoder = BuiltInCoder(originals, originals + redundant)
        for kept in combinations(range(originals + redundant), originals):
            assert decoder.decode([coded[index] for index in kept], kept) == whole


@pytest.mark.parametrize(("originals", "redundant"), LARGEST)
def test_the_largest_blocks_are_restored(originals: int, redundant: int) -> None:
    whole, total = block(originals, 3), originals + redundant
    kept = range(redundant, total)
    coded = encoded(BuiltInCoder, whole, redundant)
    assert BuiltInCoder(originals, total).decode([coded[index] for index in kept], kept) == whole


@pytest.mark.usefixtures("zfec")
@pytest.mark.parametrize("kinds", [(ZfecCoder, BuiltInCoder), (BuiltInCoder, ZfecCoder)])
def test_members_with_and_without_zfec_understand_each_other(
    monkeypatch: pytest.MonkeyPatch, kinds: tuple[Callable[[int, int], Coder], Callable[[int, int], Coder]]
) -> None:
    frames = slot_frames([90, 0, 300, 1, 70, 1200, 30])
    forget_coders()
    monkeypatch.setattr(shares, "new_coder", kinds[0])
    datagrams = Sender(fec=(2, 5)).send(frames)
    forget_coders()
    monkeypatch.setattr(shares, "new_coder", kinds[1])
    receiver = Receiver()
    up = receiver.receive([data for position, data in enumerate(datagrams) if position % 5 > 1])
    forget_coders()
    assert sorted(up) == sorted(seen(frame) for frame in frames)
    assert receiver.fec.recovered_originals > 0


# -- which coder, and its limits -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("zfec")
def test_zfec_is_used_if_it_is_installed() -> None:
    assert isinstance(new_coder(4, 5), ZfecCoder)


@pytest.mark.usefixtures("without_zfec")
def test_the_built_in_code_is_used_without_zfec() -> None:
    assert isinstance(new_coder(4, 5), BuiltInCoder)
    frames = slot_frames([90, 0, 300, 1, 70])
    datagrams = Sender(fec=(2, 7)).send(frames)
    receiver = Receiver()
    up = receiver.receive(datagrams[2:])
    assert sorted(up) == sorted(seen(frame) for frame in frames)
    assert receiver.fec.recovered_originals == 2


@pytest.mark.parametrize(("originals", "total"), [(0, 1), (1, 257), (257, 257), (3, 2), (-1, 2), (10**9, 2 * 10**9)])
def test_impossible_shapes_are_refused(originals: int, total: int) -> None:
    with pytest.raises(
        ValueError, match=f"at most 256 shares in a block, got {originals} originals and {total} shares"
    ):
        BuiltInCoder(originals, total)


@pytest.mark.parametrize("indices", [(), (0, 1), (0, 1, 2, 3), (0, 1, 5), (-1, 0, 1), (0, 1, 1), (0, 1, 10**9)])
def test_the_wrong_shares_for_a_block_are_refused(indices: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected 3 of 5 shares to decode"):
        BuiltInCoder(3, 5).decode([b"x"] * len(indices), indices)


@pytest.mark.parametrize(("originals", "wanted"), [(2, (3,)), (4, (3,)), (3, (2,)), (3, (5,)), (3, (-1,))])
def test_the_wrong_originals_or_wanted_shares_are_refused(originals: int, wanted: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"a block of 3 originals of 5 shares: got {originals} originals"):
        BuiltInCoder(3, 5).encode([b"x"] * originals, wanted)


def test_shares_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one length, got \[2, 3\]"):
        BuiltInCoder(2, 3).encode([b"abc", b"ab"], (2,))
    with pytest.raises(ValueError, match=r"one length, got \[2, 3\]"):
        BuiltInCoder(2, 3).decode([b"abc", b"ab"], (0, 2))


def test_kept_factors_stay_few_whatever_blocks_arrive() -> None:
    """A peer chooses the shapes and the missing shares of the blocks that it sends."""
    decoder = BuiltInCoder(40, 42)
    for missing in combinations(range(40), 2):
        kept = [index for index in range(42) if index not in missing]
        decoder.decode([b"x"] * 40, kept)
    info = coder._decoding_factors.cache_info()
    assert info.currsize == info.maxsize == 512
    assert coder._encoding_factors.cache_info().maxsize == 512
    most = max(
        sum(map(len, interpolation_factors(range(count), range(count, SHARES_MAX)))) for count in range(64, 256, 32)
    )
    assert most == 16 * 1024, "for 128 originals"
