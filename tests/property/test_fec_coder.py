"""The erasure code under random input: the built-in coder and zfec compute the same bytes, and any k shares suffice."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.model.policy import SHARES_MAX
from unisono.net.fec.coder import BuiltInCoder, ZfecCoder

shapes = st.tuples(st.integers(1, 40), st.integers(0, 20)).map(lambda shape: (shape[0], sum(shape)))
"""The number of originals of a block, and of all its shares."""
wide_shapes = st.integers(1, SHARES_MAX).flatmap(lambda k: st.tuples(st.just(k), st.integers(k, SHARES_MAX)))
randoms = st.randoms(use_true_random=False)


def block(chance: Random, originals: int, size: int) -> list[bytes]:
    return [chance.randbytes(size) for _ in range(originals)]


def arranged(chance: Random, originals: int, total: int) -> list[int]:
    """Some shares of a block, as many as it has originals, with each original at its own position."""
    kept = chance.sample(range(total), originals)
    spare = iter([index for index in kept if index >= originals])
    return [index if index in kept else next(spare) for index in range(originals)]


@given(shapes, st.integers(0, 1500), randoms)
def test_the_shares_equal_those_of_zfec_bit_for_bit(shape: tuple[int, int], size: int, chance: Random) -> None:
    pytest.importorskip("zfec")
    originals, total = shape
    whole = block(chance, originals, size)
    built_in, by_zfec = BuiltInCoder(*shape), ZfecCoder(*shape)
    coded = built_in.encode(whole, range(originals, total))
    assert coded == list(by_zfec.encode(whole, range(originals, total)))
    indices = arranged(chance, originals, total)
    kept = [(whole + coded)[index] for index in indices]
    assert built_in.decode(kept, indices) == list(by_zfec.decode(kept, indices)) == whole


@given(wide_shapes, randoms)
@settings(max_examples=30)
def test_blocks_of_any_shape_equal_those_of_zfec(shape: tuple[int, int], chance: Random) -> None:
    pytest.importorskip("zfec")
    whole = block(chance, shape[0], 2)
    assert BuiltInCoder(*shape).encode(whole, range(*shape)) == list(ZfecCoder(*shape).encode(whole, range(*shape)))


@given(shapes, st.integers(0, 1500), st.booleans(), randoms)
def test_any_k_shares_restore_the_originals(shape: tuple[int, int], size: int, views: bool, chance: Random) -> None:
    coder = BuiltInCoder(*shape)
    whole = block(chance, shape[0], size)
    coded = whole + coder.encode(whole, range(*shape))
    indices = chance.sample(range(shape[1]), shape[0])
    kept = [memoryview(coded[index]) if views else coded[index] for index in indices]
    assert coder.decode(kept, indices) == whole
