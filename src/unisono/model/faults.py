"""What can go wrong in a world, as plain values; times count from the start of the run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the run; without an end, to its end."""

    from_ns: int = 0
    to_ns: int | None = None

    def open(self, elapsed_ns: int) -> bool:
        """Whether it lasts: its end is no longer in it."""
        return elapsed_ns >= self.from_ns and (self.to_ns is None or elapsed_ns < self.to_ns)


@dataclass(frozen=True, slots=True)
class Loss:
    """Each datagram is lost with `probability`, but at most `at_most` of any `of` consecutive ones of a link."""

    span: Span
    probability: float
    at_most: int | None = None
    of: int | None = None
    senders: tuple[int, ...] = ()
    receivers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Duplication:
    """A datagram arrives twice with `probability`, the copy after a delay of its own."""

    span: Span
    probability: float


@dataclass(frozen=True, slots=True)
class Reordering:
    """A datagram is let out of its link's FIFO order with `probability`, with any delay within Δ."""

    span: Span
    probability: float


@dataclass(frozen=True, slots=True)
class Partition:
    """Members hear only their own group; those that are listed nowhere make up one more."""

    span: Span
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Crash:
    """A member stops for good."""

    member: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Pause:
    """A member stands still; what happens to it meanwhile is handled at the end."""

    member: int
    from_ns: int
    to_ns: int


Fault: TypeAlias = Loss | Duplication | Reordering | Partition | Crash | Pause


def described(fault: Fault) -> dict[str, object]:
    """A fault as a row of plain values, which a trace's parameters keep."""
    row: dict[str, object] = {"kind": type(fault).__name__.lower()}
    for name, value in asdict(fault).items():
        row |= value if name == "span" else {name: value}
    return {name: _listed(value) for name, value in row.items()}


def _listed(value: object) -> object:
    return [_listed(each) for each in value] if isinstance(value, tuple) else value
