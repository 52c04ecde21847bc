"""Counts the mistakes of early delivery in a trace, and shows them over the window w(p) (paper 003 §3.2).

The window is how long a message is held before early delivery.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unisono.experiments.drawing import draw_lines
from unisono.experiments.experiment import Row
from unisono.trace.table import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EARLY, FINAL = "early", "final"


@dataclass(frozen=True, slots=True)
class EarlyDeliveryMistakes:
    """Counts of a run with both grades: final deliveries, and how many of them were mistakes."""

    deliveries: int
    out_of_order: int
    """Mistakes whose message was delivered early, but after another message that was not final yet."""
    lost: int
    """Mistakes whose message had not been delivered early before it was delivered finally."""

    @property
    def share(self) -> float:
        """The share of final deliveries that were mistakes."""
        return (self.out_of_order + self.lost) / self.deliveries if self.deliveries else 0.0

    @property
    def lost_share(self) -> float:
        """The share of final deliveries whose message was not delivered early."""
        return self.lost / self.deliveries if self.deliveries else 0.0


def count_mistakes(trace: Trace) -> EarlyDeliveryMistakes:
    """Count mistakes: final deliveries whose message is not the first of those delivered early and not yet final."""
    queues: dict[int, deque[tuple[int, int]]] = {}
    counts: Counter[str] = Counter()
    deliveries = trace.deliveries()
    final = deliveries.grades.index(FINAL)
    # At the same time, a member makes its final deliveries before its early ones.
    order = np.lexsort((deliveries.index, deliveries.grade != final, deliveries.real_ns))
    columns = (deliveries.member, deliveries.sender, deliveries.sequence, deliveries.grade)
    for member, sender, sequence, grade in zip(*(column[order].tolist() for column in columns), strict=True):
        queue = queues.setdefault(member, deque())
        message = (sender, sequence)
        if grade != final:
            queue.append(message)
            continue
        counts["final"] += 1
        if queue and queue[0] == message:
            queue.popleft()
        elif message in queue:
            queue.remove(message)
            counts["out of order"] += 1
        else:
            counts["lost"] += 1
    return EarlyDeliveryMistakes(counts["final"], counts["out of order"], counts["lost"])


MISTAKES_SCENARIO = """
[group]
name = "mistakes"
order = "quasi_genuine"
members = 6
slot = "5ms"
delta = "5ms"
[topology]
optimistic = true
window = "7ms"
[topology.groups]
a = [1, 2, 3]
b = [4, 5, 6]
[topology.sends]
a = ["a", "b"]
b = ["a", "b"]
[topology.to]
a = [["a", "b"]]
b = [["a", "b"]]
[rate]
avg = 1000
burst = 100
[workload]
kind = "poisson"
rate = 50
size = 50
[network]
[clocks]
kind = "fixed"
[run]
seconds = 1
"""
GAMMAS = ("0ms", "2ms")
DELAYS = ("uniform:0ms..5ms", "exponential:1ms")
WINDOWS = tuple(f"{window}ms" for window in range(1, 9))


def draw_mistakes(figure: Figure, rows: Sequence[Row]) -> None:
    """Plot the share of mistakes against the window length: a panel per delay distribution, a line per Γ."""
    figure.set_size_inches(10, 6.5)
    panels = figure.subplots(2, len(DELAYS))
    for column, delay in enumerate(DELAYS):
        mine: list[Row] = [{**row, "clocks": f"Γ = {row['gamma']}"} for row in rows if row["delay"] == delay]
        for axes, name in zip(panels[:, column], ("mistakes_share", "final_ms"), strict=True):
            draw_lines(axes, mine, "window", name, series="clocks")
            axes.set_xlabel("w(p)")
            axes.set_title(delay, fontsize=9)
