"""The faults of a scenario as plain values. Times count from the start of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias, assert_never


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the run; without `to_ns`, it lasts until the end of the run."""

    from_ns: int = 0
    to_ns: int | None = None

    def contains(self, elapsed_ns: int) -> bool:
        """Whether a time is in the span. `to_ns` itself is not."""
        return elapsed_ns >= self.from_ns and (self.to_ns is None or elapsed_ns < self.to_ns)


@dataclass(frozen=True, slots=True)
class Loss:
    """Each datagram is lost with `probability`, but at most `at_most` of any `of` consecutive datagrams of a link."""

    kind: ClassVar[str] = "loss"
    span: Span
    probability: float
    at_most: int | None = None
    of: int | None = None
    senders: tuple[int, ...] = ()
    receivers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Duplication:
    """A datagram arrives twice with `probability`, the copy after a delay of its own."""

    kind: ClassVar[str] = "duplication"
    span: Span
    probability: float


@dataclass(frozen=True, slots=True)
class Reordering:
    """With `probability`, a datagram leaves the FIFO order of its link and gets any delay within Δ."""

    kind: ClassVar[str] = "reordering"
    span: Span
    probability: float


@dataclass(frozen=True, slots=True)
class Partition:
    """Members reach only members of their own part. Members in none of `groups` form one more part."""

    kind: ClassVar[str] = "partition"
    span: Span
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Crash:
    """A member stops for good."""

    kind: ClassVar[str] = "crash"
    member: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Pause:
    """A member is suspended; it processes its datagrams and timers after the end of the pause."""

    kind: ClassVar[str] = "pause"
    member: int
    from_ns: int
    to_ns: int


Fault: TypeAlias = Loss | Duplication | Reordering | Partition | Crash | Pause


def fault_to_row(fault: Fault) -> dict[str, object]:
    """A fault as a row of plain values under the names that `meta.json` stores."""
    match fault:
        case Loss():
            row = {
                **_stored_span(fault.span),
                "probability": fault.probability,
                "at_most": fault.at_most,
                "of": fault.of,
                "senders": list(fault.senders),
                "receivers": list(fault.receivers),
            }
        case Duplication() | Reordering():
            row = {**_stored_span(fault.span), "probability": fault.probability}
        case Partition():
            row = {**_stored_span(fault.span), "groups": [list(group) for group in fault.groups]}
        case Crash():
            row = {"member": fault.member, "at_ns": fault.at_ns}
        case Pause():
            row = {"member": fault.member, "from_ns": fault.from_ns, "to_ns": fault.to_ns}
        case _:
            assert_never(fault)
    return {"kind": fault.kind, **row}


def _stored_span(span: Span) -> dict[str, object]:
    return {"from_ns": span.from_ns, "to_ns": span.to_ns}
