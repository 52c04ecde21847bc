"""Chance in blocks: many delays at once from one generator, each by inverting its model at one random number."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from unisono.model.delays import Constant, DelayModel, Empirical, Exponential, Uniform

Shares = npt.NDArray[np.float64]
Delays = npt.NDArray[np.int64]


def generator(seed: int, *name: str | int) -> np.random.Generator:
    """A stream of its own for each name under a seed."""
    label = repr((seed, *name)).encode()
    return np.random.Generator(np.random.PCG64(int.from_bytes(blake2b(label, digest_size=16).digest())))


def delays(model: DelayModel, shares: Shares) -> Delays:
    """The delay of each share: what `model.quantile` says, for a whole array."""
    match model:
        case Exponential(mean_ns=mean):
            drawn: Delays = np.ceil(-mean * np.log1p(-shares)).astype(np.int64)
        case Uniform(low_ns=low):
            drawn = low + np.maximum(np.ceil(shares * model.steps).astype(np.int64) - 1, 0)
        case Constant(ns=ns):
            drawn = np.full(shares.shape, ns, dtype=np.int64)
        case Empirical():
            ranks = np.searchsorted(np.asarray(model.up_to), shares * model.up_to[-1], side="left")
            drawn = np.asarray(model.delays_ns, dtype=np.int64)[np.minimum(ranks, len(model.up_to) - 1)]
        case _:
            each = [model.quantile(share) for share in shares.ravel().tolist()]
            drawn = np.array(each, dtype=np.int64).reshape(shares.shape)
    return drawn
