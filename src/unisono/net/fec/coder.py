"""The erasure code of a block: a built-in Reed–Solomon code, or zfec, which computes the same shares faster.

Share i of a block belongs to the point x_i of the field GF(2⁸) with the polynomial x⁸+x⁴+x³+x²+1: x_0 = 0 and
x_i = 2^(i-1). For each byte position there is one polynomial of degree below k whose values at the points of the k
originals are the bytes of the originals. A redundant share holds its values at a further point. Any k shares determine
the polynomial, so they give its value at every other point (Lagrange interpolation). The code of zfec, a Vandermonde
matrix multiplied by the inverse of its upper square, is the same function, so members with and without zfec understand
each other.

A share is multiplied by a constant with `bytes.translate`, and shares are added as large integers with xor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Protocol

from unisono.model.policy import SHARES_MAX

_POLYNOMIAL = 0x11D
_NONZERO = 255
"""The number of field elements other than 0; each of them is a power of 2."""
_KEPT = 512
"""The most block shapes, and the most patterns of missing originals, whose factors are kept: at most 16 KB each."""


class Coder(Protocol):
    """An erasure code for blocks of equally long shares. All coders compute the same bytes."""

    def prepare(self, originals: int, redundant: int) -> None:
        """Compute in advance all that encoding a block of this shape needs apart from its shares."""

    def encode(self, originals: Sequence[bytes], redundant: int) -> list[bytes]:
        """The redundant shares of a block with these originals."""

    def decode(self, shares: Mapping[int, bytes | memoryview], originals: int, redundant: int) -> dict[int, bytes]:
        """The missing originals by index, computed from as many shares, by index, as the block has originals."""


# -- the field -------------------------------------------------------------------------------------------------------


def _powers_of_two() -> bytes:
    powers, power = bytearray(), 1
    for _ in range(_NONZERO):
        powers.append(power)
        power <<= 1
        if power > _NONZERO:
            power ^= _POLYNOMIAL
    return bytes(powers)


_POWERS = _powers_of_two()
_LOGARITHMS = bytes([0, *(_POWERS.index(element) for element in range(1, SHARES_MAX))])
"""The exponent of each element as a power of 2; 0 for the element 0, which is no power."""
_POINTS = b"\0" + _POWERS
"""The point of each share of a block."""


@cache
def multiples(factor: int) -> bytes:
    """The product of each field element with `factor`, as a table for `bytes.translate`."""
    if factor == 0:
        return bytes(SHARES_MAX)
    exponent = _LOGARITHMS[factor]
    products = (_POWERS[(exponent + _LOGARITHMS[element]) % _NONZERO] for element in range(1, SHARES_MAX))
    return bytes([0, *products])


# -- interpolation ---------------------------------------------------------------------------------------------------


def interpolation_factors(known: Sequence[int], wanted: Sequence[int]) -> list[bytes]:
    """For each wanted share, the factors with which the known shares add up to it.

    The factor of known share j in wanted share w is the Lagrange polynomial ∏ (x_w-x_i)/(x_j-x_i) over the known i≠j.
    In this field subtraction is xor, and products are sums of logarithms.
    """
    points = [_POINTS[index] for index in known]
    # The logarithm of 0 counts as 0, which leaves out i = j.
    divisors = [sum(_LOGARITHMS[point ^ other] for other in points) for point in points]
    rows = []
    for index in wanted:
        distances = [_LOGARITHMS[_POINTS[index] ^ point] for point in points]
        product = sum(distances)
        terms = zip(distances, divisors, strict=True)
        rows.append(bytes(_POWERS[(product - distance - divisor) % _NONZERO] for distance, divisor in terms))
    return rows


def _combine(shares: Sequence[bytes], rows: Sequence[bytes]) -> list[bytes]:
    """For each row of factors, the sum of the shares multiplied by their factors."""
    size = len(shares[0])
    if any(len(share) != size for share in shares):
        raise ValueError(f"the shares of a block need one length, got {sorted(map(len, shares))}")
    combined = []
    for row in rows:
        total = 0
        for share, factor in zip(shares, row, strict=True):
            total ^= int.from_bytes(share.translate(multiples(factor)), "little")
        combined.append(total.to_bytes(size, "little"))
    return combined


# -- the coders ------------------------------------------------------------------------------------------------------


def _check_shape(originals: int, redundant: int) -> None:
    if originals < 1 or redundant < 0 or originals + redundant > SHARES_MAX:
        given = f"{originals} originals and {redundant} redundant shares"
        raise ValueError(f"a block has at least 1 original and at most {SHARES_MAX} shares, got {given}")


@lru_cache(_KEPT)
def _encoding_factors(originals: int, redundant: int) -> list[bytes]:
    _check_shape(originals, redundant)
    return interpolation_factors(range(originals), range(originals, originals + redundant))


@lru_cache(_KEPT)
def _decoding_factors(known: bytes, missing: bytes) -> list[bytes]:
    return interpolation_factors(known, missing)


class BuiltInCoder:
    """The code in Python alone."""

    def prepare(self, originals: int, redundant: int) -> None:
        """Compute the factors of this shape, which the cache keeps."""
        _encoding_factors(originals, redundant)

    def encode(self, originals: Sequence[bytes], redundant: int) -> list[bytes]:
        """The redundant shares of a block with these originals."""
        return _combine(originals, _encoding_factors(len(originals), redundant))

    def decode(self, shares: Mapping[int, bytes | memoryview], originals: int, redundant: int) -> dict[int, bytes]:
        """The missing originals by index, computed from as many shares, by index, as the block has originals."""
        _check_shape(originals, redundant)
        known = sorted(shares)
        if len(known) != originals or known[0] < 0 or known[-1] >= originals + redundant:
            raise ValueError(f"expected {originals} shares of {originals + redundant} to decode, got {known}")
        missing = bytes(index for index in range(originals) if index not in shares)
        rows = _decoding_factors(bytes(known), missing)
        return dict(zip(missing, _combine([bytes(shares[index]) for index in known], rows), strict=True))


class ZfecCoder:
    """The code by zfec, a compiled library, which is given as the argument."""

    def __init__(self, zfec: Any) -> None:
        self._encoder = lru_cache(_KEPT)(zfec.Encoder)
        self._decoder = lru_cache(_KEPT)(zfec.Decoder)

    def prepare(self, originals: int, redundant: int) -> None:
        """Create the encoder for this shape, which the cache keeps."""
        self._encoder(originals, originals + redundant)

    def encode(self, originals: Sequence[bytes], redundant: int) -> list[bytes]:
        """The redundant shares of a block with these originals."""
        total = len(originals) + redundant
        coded: list[bytes] = self._encoder(len(originals), total).encode(originals, range(len(originals), total))
        return coded

    def decode(self, shares: Mapping[int, bytes | memoryview], originals: int, redundant: int) -> dict[int, bytes]:
        """The missing originals by index, computed from as many shares, by index, as the block has originals."""
        spare = iter([index for index in shares if index >= originals])
        # zfec expects each original at its own index; redundant shares fill the gaps.
        indices = [index if index in shares else next(spare) for index in range(originals)]
        decoder = self._decoder(originals, originals + redundant)
        whole = decoder.decode([shares[index] for index in indices], indices)
        return {index: whole[index] for index in range(originals) if index not in shares}


@cache
def installed_coder() -> Coder:
    """The coder of this process: zfec's if it is installed, otherwise the built-in one."""
    try:
        import zfec  # noqa: PLC0415  a compiled library that only groups with redundancy use
    except ImportError:
        return BuiltInCoder()
    return ZfecCoder(zfec)
