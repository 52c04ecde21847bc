"""What consensus hands out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Decision:
    """Decide(k, value)."""

    k: int
    value: bytes


@dataclass(frozen=True, slots=True)
class RestoredState:
    """`state` stands for all decisions up to k, which do not come one by one."""

    k: int
    state: bytes


@dataclass(frozen=True, slots=True)
class ForwardedValue:
    """A value that somebody sent to the leader's caller, to be proposed as the caller sees fit."""

    sender: int
    incarnation: int
    value: bytes


ConsensusOutput: TypeAlias = Decision | RestoredState
