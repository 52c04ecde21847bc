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

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Protocol

from unisono.model.policy import SHARES_MAX

_POLYNOMIAL = 0x11D
_NONZERO = 255
"""The number of field elements other than 0; each of them is a power of 2."""
_KEPT = 512
"""The most block shapes, and the most patterns of missing originals, whose factors are kept: at most 16 KB each."""


class Coder(Protocol):
    """The erasure code of blocks with a given number of originals and of shares. All coders compute the same bytes."""

    def encode(self, originals: Sequence[bytes], wanted: Sequence[int]) -> Sequence[bytes]:
        """The shares with the wanted indices of a block with these equally long originals."""

    def decode(self, shares: Sequence[bytes | memoryview], indices: Sequence[int]) -> Sequence[bytes]:
        """The originals, from as many equally long shares as there are originals; `indices` says which shares.

        An original must be at the position of its own index.
        """


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
_LOGARITHMS = bytes([0, *(_POWERS.index(element) for element in range(1, _NONZERO + 1))])
"""The exponent of each element as a power of 2; 0 for the element 0, which is no power."""
_POINTS = b"\0" + _POWERS
"""The point of each share of a block."""


@cache
def multiples(factor: int) -> bytes:
    """The product of each field element with `factor`, which is not 0, as a table for `bytes.translate`."""
    exponent = _LOGARITHMS[factor]
    products = (_POWERS[(exponent + _LOGARITHMS[element]) % _NONZERO] for element in range(1, _NONZERO + 1))
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


@lru_cache(_KEPT)
def _encoding_factors(originals: int, wanted: tuple[int, ...]) -> list[bytes]:
    return interpolation_factors(range(originals), wanted)


@lru_cache(_KEPT)
def _decoding_factors(known: bytes, missing: bytes) -> list[bytes]:
    return interpolation_factors(known, missing)


class BuiltInCoder:
    """The code in Python alone."""

    def __init__(self, originals: int, total: int) -> None:
        """Raises ValueError unless 1 <= originals <= total <= 256."""
        if not 1 <= originals <= total <= SHARES_MAX:
            text = f"expected at least 1 original and at most {SHARES_MAX} shares in a block"
            raise ValueError(f"{text}, got {originals} originals and {total} shares")
        self._originals, self._total = originals, total

    def encode(self, originals: Sequence[bytes], wanted: Sequence[int]) -> list[bytes]:
        """See `Coder`. Each wanted share must be redundant."""
        if len(originals) != self._originals or not all(self._originals <= index < self._total for index in wanted):
            shape = f"{self._originals} originals of {self._total} shares"
            raise ValueError(f"a block of {shape}: got {len(originals)} originals for the shares {list(wanted)}")
        return _combine(originals, _encoding_factors(self._originals, tuple(wanted)))

    def decode(self, shares: Sequence[bytes | memoryview], indices: Sequence[int]) -> list[bytes]:
        """See `Coder`."""
        by_index = {index: bytes(share) for index, share in zip(indices, shares, strict=True)}
        known = sorted(by_index)
        if not len(indices) == len(known) == self._originals or known[0] < 0 or known[-1] >= self._total:
            raise ValueError(f"expected {self._originals} of {self._total} shares to decode, got {list(indices)}")
        missing = bytes(index for index in range(self._originals) if index not in by_index)
        rows = _decoding_factors(bytes(known), missing)
        restored = _combine([by_index[index] for index in known], rows)
        by_index.update(zip(missing, restored, strict=True))
        return [by_index[index] for index in range(self._originals)]


class ZfecCoder:
    """The code by zfec, a compiled library. Creating one raises ImportError if zfec is not installed."""

    def __init__(self, originals: int, total: int) -> None:
        import zfec  # noqa: PLC0415  only groups with redundancy use it, and it need not be installed

        self.encode = zfec.Encoder(originals, total).encode
        self.decode = zfec.Decoder(originals, total).decode


def new_coder(originals: int, total: int) -> Coder:
    """A coder for blocks of this shape: that of zfec if it is installed, otherwise the built-in one."""
    try:
        return ZfecCoder(originals, total)
    except ImportError:
        return BuiltInCoder(originals, total)
