"""Which datagrams are lost, within bounds that hold (paper 000 §7: at most x in a row; 001 §3: a of any b).

The simulator and real processes lose by this one rule; chance and time are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from unisono.model.delays import RandomSource
from unisono.model.faults import Loss


class LossModel:
    """Decides for each datagram of a link in turn.

    Several losses, such as one that grows worse under way, share a history: a bound counts what any of them took, so it
    holds also where the span of one ends and that of the next begins.
    """

    def __init__(self, faults: Sequence[Loss], rng: RandomSource) -> None:
        self._faults = tuple(faults)
        self._rng = rng
        self._history_length = max((fault.of - 1 for fault in faults if fault.of is not None), default=0)
        self._recent_losses: dict[tuple[int, int], deque[bool]] = {}
        """By link, whether its latest datagrams were lost, the last one last."""

    def is_lost(self, sender: int, receiver: int, elapsed_ns: int) -> bool:
        """Whether the datagram that this link carries now is lost; time counts from the start of the run."""
        fates = self._recent_losses.get((sender, receiver))
        if fates is None:
            fates = self._recent_losses[sender, receiver] = deque(maxlen=self._history_length)
        lost = False
        for fault in self._faults:
            applies = (
                fault.span.contains(elapsed_ns)
                and (not fault.senders or sender in fault.senders)
                and (not fault.receivers or receiver in fault.receivers)
            )
            if applies and self._rng.random() < fault.probability and _within_bound(fault, fates):
                lost = True
        fates.append(lost)
        return lost


def _within_bound(fault: Loss, recent: deque[bool]) -> bool:
    """Whether one more loss keeps to the bound: the last of-1 fates and this one are `of` consecutive datagrams."""
    if fault.at_most is None or fault.of is None:
        return True
    before = len(recent) - (fault.of - 1)
    return sum(lost for place, lost in enumerate(recent) if place >= before) < fault.at_most


def max_lost(fault: Loss, consecutive: int) -> int:
    """The most that this loss takes of so many consecutive datagrams of a link."""
    if fault.probability <= 0:
        return 0
    if fault.at_most is None or fault.of is None:
        return consecutive
    whole, rest = divmod(consecutive, fault.of)
    return min(consecutive, whole * fault.at_most + min(rest, fault.at_most))
