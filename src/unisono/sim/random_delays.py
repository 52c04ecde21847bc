"""Chance in blocks: many delays at once from one generator, each by inverting its model at one random number."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from unisono.model.delays import ConstantDelay, DelayModel, EmpiricalDelay, ExponentialDelay, UniformDelay

UniformSamples = npt.NDArray[np.float64]
Delays = npt.NDArray[np.int64]


def generator(seed: int, *name: str | int) -> np.random.Generator:
    """A stream of its own for each name under a seed."""
    label = repr((seed, *name)).encode()
    return np.random.Generator(np.random.PCG64(int.from_bytes(blake2b(label, digest_size=16).digest())))


def sample_delays(model: DelayModel, uniforms: UniformSamples) -> Delays:
    """The delay of each share: what `model.quantile` says, for a whole array."""
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
