"""Decides which datagrams are lost, within strict bounds (paper 000 §7: at most x in a row; 001 §3: a of any b).

The simulator and real processes use the same rule. The random stream and the time are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from unisono.model.delays import RandomSource
from unisono.model.faults import Loss


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
        """By link, whether its latest datagrams were lost, the most recent last."""

    def is_lost(self, sender: int, receiver: int, elapsed_ns: int) -> bool:
        """Whether the next datagram of this link is lost. The time counts from the start of the run."""
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
    """Whether one more loss keeps the bound: the last of-1 datagrams and this one are `of` consecutive ones."""
    if fault.at_most is None or fault.of is None:
        return True
    start = len(recent) - (fault.of - 1)
    return sum(lost for index, lost in enumerate(recent) if index >= start) < fault.at_most


def max_lost(fault: Loss, consecutive: int) -> int:
    """The largest number of a link's `consecutive` datagrams that this fault can lose."""
    if fault.probability <= 0:
        return 0
    if fault.at_most is None or fault.of is None:
        return consecutive
    whole, rest = divmod(consecutive, fault.of)
    return min(consecutive, whole * fault.at_most + min(rest, fault.at_most))
