"""The faults of a scenario as plain values, and the rule that decides which datagrams are lost.

Times count from the start of the run. The simulator and real processes use the same rule for losses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, assert_never

from unisono.model.delays import RandomSource


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the run, from `from_ns` up to `to_ns`. If `to_ns` is None, it lasts until the end of the run."""

    from_ns: int = 0
    to_ns: int | None = None

    def contains(self, elapsed_ns: int) -> bool:
        """Whether a time since the start of the run is in the span. `to_ns` itself is not."""
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
    """With `probability`, a datagram arrives twice. The second copy has its own random delay."""

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
    """The group is divided: members reach only members of the same part.

    Each of `groups` is one part. Members in none of `groups` form one more part.
    """

    kind: ClassVar[str] = "partition"
    span: Span
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Crash:
    """A member crashes; it runs again only if a `Restart` follows."""

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


class LossModel:
    """Decides for each datagram of a link, in sending order, whether it is lost.

    Several faults share one history per link: a bound counts the datagrams lost by any of them. So it also holds where
    the span of one fault ends and the next begins.
    """

    def __init__(self, faults: Sequence[Loss], rng: RandomSource) -> None:
        self._faults = tuple(faults)
        self._rng = rng
        self._history_length = max((fault.of - 1 for fault in faults if fault.of is not None), default=0)
        self._recent_losses: dict[tuple[int, int], deque[bool]] = {}
        """For each link (sender, receiver), whether each of its latest datagrams was lost; the most recent one is
        last."""

    def is_lost(self, sender: int, receiver: int, elapsed_ns: int) -> bool:
        """Whether the next datagram of this link is lost. `elapsed_ns` counts from the start of the run."""
        recent = self._recent_losses.get((sender, receiver))
        if recent is None:
            recent = self._recent_losses[sender, receiver] = deque(maxlen=self._history_length)
        lost = False
        for fault in self._faults:
            applies = (
                fault.span.contains(elapsed_ns)
                and (not fault.senders or sender in fault.senders)
                and (not fault.receivers or receiver in fault.receivers)
            )
            if applies and self._rng.random() < fault.probability and _within_bound(fault, recent):
                lost = True
        recent.append(lost)
        return lost


def _within_bound(fault: Loss, recent: deque[bool]) -> bool:
    """Whether at most `at_most` of the last `of` datagrams of a link are lost if the next one is lost too."""
    if fault.at_most is None or fault.of is None:
        return True
    start = len(recent) - (fault.of - 1)
    return sum(lost for index, lost in enumerate(recent) if index >= start) < fault.at_most


def max_lost(fault: Loss, consecutive: int) -> int:
    """The most datagrams of a link that this fault can lose among `consecutive` datagrams in a row."""
    if fault.probability <= 0:
        return 0
    if fault.at_most is None or fault.of is None:
        return consecutive
    whole, rest = divmod(consecutive, fault.of)
    return min(consecutive, whole * fault.at_most + min(rest, fault.at_most))
