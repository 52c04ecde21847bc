"""The built-in erasure coder beside zfec: microseconds of one core's time per block, and the ratio of the two.

Encoding computes all redundant shares of a block. Decoding restores as many originals as the block has redundant
shares, which is the most work. Run: python -m benchmarks --only coders
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from random import Random
from statistics import median
from typing import Any

from benchmarks.progress import Say, silence
from unisono.net.fec.coder import BuiltInCoder, Coder, ZfecCoder

SHARE_BYTES = 1400
SHAPES = ((4, 1), (20, 5))
"""Originals and redundant shares of a block."""
ROUNDS = 9
LEAST_S = 0.05
"""Each coder works for at least this long in each round."""


def microseconds(work: Callable[[], object]) -> float:
    """The processor time of one call."""
    calls, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < LEAST_S:
        for _ in range(10):
            work()
        calls += 10
    return spent / calls * 1e6


def works(coder: Coder, originals: int, redundant: int) -> dict[str, Callable[[], object]]:
    """Encoding and decoding of one block by this coder."""
    chance = Random(originals)
    block = [chance.randbytes(SHARE_BYTES) for _ in range(originals)]
    wanted = tuple(range(originals, originals + redundant))
    coded = coder.encode(block, wanted)
    return {
        "encode": partial(coder.encode, block, wanted),
        "decode": partial(coder.decode, [*coded, *block[redundant:]], [*wanted, *range(redundant, originals)]),
    }


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """One row per shape of a block, for encoding and for decoding. The coders take turns."""
    found = []
    for originals, redundant in SHAPES:
        by_coder = {
            "zfec": works(ZfecCoder(originals, originals + redundant), originals, redundant),
            "built_in": works(BuiltInCoder(originals, originals + redundant), originals, redundant),
        }
        for work in ("encode", "decode"):
            say(f"coders: {work} {originals}+{redundant} shares")
            rounds = [
                {name: microseconds(each[work]) for name, each in by_coder.items()}
                for _ in range(3 if quick else ROUNDS)
            ]
            ratios = [each["built_in"] / each["zfec"] for each in rounds]
            row: dict[str, Any] = {"work": f"{work} {originals}+{redundant}, {SHARE_BYTES:,} B"}
            row |= {f"{name}_us": round(median(each[name] for each in rounds), 1) for name in by_coder}
            row |= {"ratio": round(median(ratios), 1), "ratio_low": round(min(ratios), 1)}
            found.append(row | {"ratio_high": round(max(ratios), 1)})
    return found
