"""Random numbers: named streams that all come from one seed, and arrays of delays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from unisono.model.delays import ConstantDelay, DelayModel, EmpiricalDelay, ExponentialDelay, UniformDelay

_Item = TypeVar("_Item")


class RandomStreams:
    """Independent random streams by name: drawing more numbers from one stream does not change the others."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, *name: str | int) -> Random:
        """The stream of this name from its beginning: two calls return streams of the same numbers.

        Draw only with `random()`: Python guarantees that it stays the same from version to version.
        """
        # ASCII JSON is unambiguous and the same on every Python; hash() and repr() are not.
        label = json.dumps([self.seed, *name], ensure_ascii=True)
        return Random(int.from_bytes(blake2b(label.encode("ascii"), digest_size=32).digest()))


def random_below(chance: Random, limit: int) -> int:
    """An integer in [0, limit), from one `random()`."""
    return int(chance.random() * limit)


def random_int(chance: Random, low: int, high: int) -> int:
    """An integer in [low, high]."""
    return low + random_below(chance, high - low + 1)


def random_bool(chance: Random, probability: float) -> bool:
    """True with this probability."""
    return chance.random() < probability


def random_choice(chance: Random, items: Sequence[_Item]) -> _Item:
    """One of the items, each with the same probability."""
    return items[random_below(chance, len(items))]


UniformSamples = npt.NDArray[np.float64]
Delays = npt.NDArray[np.int64]


def generator(seed: int, *name: str | int) -> np.random.Generator:
    """The numpy generator of this name under a seed; independent of all other names."""
    label = repr((seed, *name)).encode()
    return np.random.Generator(np.random.PCG64(int.from_bytes(blake2b(label, digest_size=16).digest())))


def sample_delays(model: DelayModel, uniforms: UniformSamples) -> Delays:
    """The delay `model.quantile(u)` for each u of an array. Uniformly random numbers give delays of the model."""
    match model:
        case ExponentialDelay(mean_ns=mean):
            drawn: Delays = np.ceil(-mean * np.log1p(-uniforms)).astype(np.int64)
        case UniformDelay(low_ns=low):
            drawn = low + np.maximum(np.ceil(uniforms * model.steps).astype(np.int64) - 1, 0)
        case ConstantDelay(ns=ns):
            drawn = np.full(uniforms.shape, ns, dtype=np.int64)
        case EmpiricalDelay():
            ranks = np.searchsorted(
                np.asarray(model.cumulative_counts), uniforms * model.cumulative_counts[-1], side="left"
            )
            drawn = np.asarray(model.delays_ns, dtype=np.int64)[np.minimum(ranks, len(model.cumulative_counts) - 1)]
        case _:
            each = [model.quantile(share) for share in uniforms.ravel().tolist()]
            drawn = np.array(each, dtype=np.int64).reshape(uniforms.shape)
    return drawn
