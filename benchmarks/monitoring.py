"""(e) What the metric collectors cost: the throughput benchmark's group with and without them, by turns.

Two frame sizes: large frames, where the group's throughput is highest, and frames of an Ethernet's size, where the work
per datagram weighs most and so does the collectors' part of it. The group runs on while its members turn their
collectors on and off, all at one time, four times a second: what drifts on the machine falls on both alike. A phase
with collectors is compared with the ones before and after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from benchmarks.progress import Say, silence
from benchmarks.throughput import CANDIDATES, MEMBERS, Load, Stalled, ordered

FRAMES = {60_000: CANDIDATES[100][-1], 1_400: Load(100, 500, 5_000_000, 5_000_000)}


@dataclass(frozen=True, slots=True)
class Phase:
    """What all members did between two turns of the switch."""

    messages_per_s: float
    """Per member."""
    messages: int
    datagrams: int
    cpu_s: float

    @property
    def cpu_us(self) -> float:
        """Processor time per message."""
        return 1e6 * self.cpu_s / self.messages


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """A row per frame size: figures without and with collectors, and the medians of the phases' costs."""
    seconds, rounds = (4.0, 1) if quick else (10.0, 5)
    return [_row(frame, load, seconds, rounds, say) for frame, load in FRAMES.items()]


def phases_of(results: list[dict[str, Any]]) -> dict[int, Phase]:
    """By number, the phases that every member has been through from beginning to end."""
    found = {}
    for number in sorted({phase["number"] for result in results for phase in result["phases"]}):
        parts = [phase for result in results for phase in result["phases"] if phase["number"] == number]
        messages = sum(part["messages"] for part in parts)
        if len(parts) == len(MEMBERS) and messages:
            found[number] = Phase(
                fmean(part["messages"] / part["seconds"] for part in parts),
                messages,
                sum(part["datagrams"] for part in parts),
                sum(part["cpu_s"] for part in parts),
            )
    return found


def _row(frame: int, load: Load, seconds: float, rounds: int, say: Say) -> dict[str, Any]:
    off: list[Phase] = []
    on: list[Phase] = []
    slower: list[float] = []
    dearer: list[float] = []
    stalls = 0
    for number in range(rounds):
        say(f"monitoring, frames of {frame:,} B: round {number + 1} of {rounds}")
        try:
            phases = phases_of(ordered(load, seconds, max_frame=frame, monitor=True))
        except Stalled:
            stalls += 1
            continue
        for at, phase in phases.items():
            before, after = phases.get(at - 1), phases.get(at + 1)
            if at % 2 and before is not None and after is not None:
                off += (before, after)
                on.append(phase)
                slower.append(1 - 2 * phase.messages_per_s / (before.messages_per_s + after.messages_per_s))
                dearer.append(2 * phase.cpu_us / (before.cpu_us + after.cpu_us) - 1)
    if not on:
        raise Stalled(f"all {rounds} rounds with frames of {frame:,} B stalled")
    return {
        "frame_bytes": frame,
        "messages_per_s_off": round(median(phase.messages_per_s for phase in off)),
        "messages_per_s_on": round(median(phase.messages_per_s for phase in on)),
        "throughput_lost": round(median(slower), 4),
        **_interval("throughput_lost", slower),
        "cpu_us_off": round(median(phase.cpu_us for phase in off), 4),
        "cpu_us_on": round(median(phase.cpu_us for phase in on), 4),
        "cpu_added": round(median(dearer), 4),
        **_interval("cpu_added", dearer),
        "cpu_us_per_datagram": round(median(1e6 * phase.cpu_s / phase.datagrams for phase in off), 2),
        "phases": len(on),
        "stalled": stalls,
    }


def _interval(name: str, values: list[float]) -> dict[str, float]:
    """The 95 % confidence interval of the median, by ranks; it assumes only that phases are alike."""
    ranked = sorted(values)
    reach = 0.98 * len(ranked) ** 0.5
    low, high = max(0, round(len(ranked) / 2 - reach) - 1), min(len(ranked) - 1, round(len(ranked) / 2 + reach))
    return {f"{name}_low": round(ranked[low], 4), f"{name}_high": round(ranked[high], 4)}
