"""The erasure code under random input: the built-in coder and zfec compute the same bytes, and any k shares suffice."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.model.policy import SHARES_MAX
from unisono.net.fec.coder import BuiltInCoder, ZfecCoder

BUILT_IN = BuiltInCoder()

shapes = st.integers(1, 40).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, 20)))
wide_shapes = st.integers(1, SHARES_MAX).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, SHARES_MAX - k)))
randoms = st.randoms(use_true_random=False)


def block(chance: Random, originals: int, size: int) -> list[bytes]:
    return [chance.randbytes(size) for _ in range(originals)]


@given(shapes, st.integers(0, 1500), randoms)
def test_the_shares_equal_those_of_zfec_bit_for_bit(shape: tuple[int, int], size: int, chance: Random) -> None:
    by_zfec = ZfecCoder(pytest.importorskip("zfec"))
    originals, redundant = shape
    whole = block(chance, originals, size)
    coded = BUILT_IN.encode(whole, redundant)
    assert coded == list(by_zfec.encode(whole, redundant))
    everything = dict(enumerate(whole + coded))
    kept = {index: everything[index] for index in chance.sample(sorted(everything), originals)}
    assert BUILT_IN.decode(kept, originals, redundant) == by_zfec.decode(kept, originals, redundant)


@given(wide_shapes, randoms)
@settings(max_examples=30)
def test_blocks_of_any_shape_equal_those_of_zfec(shape: tuple[int, int], chance: Random) -> None:
    by_zfec = ZfecCoder(pytest.importorskip("zfec"))
    whole = block(chance, shape[0], 2)
    assert BUILT_IN.encode(whole, shape[1]) == list(by_zfec.encode(whole, shape[1]))


@given(shapes, st.integers(0, 1500), st.booleans(), randoms)
def test_any_k_shares_restore_the_originals(shape: tuple[int, int], size: int, as_views: bool, chance: Random) -> None:
    originals, redundant = shape
    whole = block(chance, originals, size)
    everything = dict(enumerate(whole + BUILT_IN.encode(whole, redundant)))
    kept: dict[int, bytes | memoryview] = {}
    for index in chance.sample(sorted(everything), originals):
        kept[index] = memoryview(everything[index]) if as_views else everything[index]
    assert BUILT_IN.decode(kept, originals, redundant) == {
        index: whole[index] for index in range(originals) if index not in kept
    }
