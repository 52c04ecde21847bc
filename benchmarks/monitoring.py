"""(e) What the metric collectors cost: the throughput benchmark's group with and without them, in turns.

Two frame sizes: large frames, where the group's throughput is highest, and frames of an Ethernet's size, where the work
per datagram weighs most and so does the collectors' part of it.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.progress import Say, silence
from benchmarks.throughput import CANDIDATES, Load, Stalled, cpu_us, ordered, per_process

FRAMES = {60_000: CANDIDATES[100][-1], 1_400: Load(100, 500, 5_000_000, 5_000_000)}


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """A row per frame size: figures without and with collectors, and the medians of the rounds' costs."""
    seconds, rounds = (1.5, 1) if quick else (3.0, 9)
    return [_row(frame, load, seconds, rounds, say) for frame, load in FRAMES.items()]


def _row(frame: int, load: Load, seconds: float, rounds: int, say: Say) -> dict[str, Any]:
    off, on, stalls = [], [], 0
    for number in range(rounds):
        say(f"monitoring, frames of {frame:,} B: round {number + 1} of {rounds}")
        # In turns, and each first in every other round: what drifts on the machine falls on both.
        runs: dict[bool, list[dict[str, Any]]] = {}
        try:
            for watched in (False, True) if number % 2 else (True, False):
                runs[watched] = ordered(load, seconds, max_frame=frame, monitor=watched)
        except Stalled:
            stalls += 1
            continue
        off.append(runs[False])
        on.append(runs[True])
    if not on:
        raise Stalled(f"all {rounds} rounds with frames of {frame:,} B stalled")
    slower = [1 - per_process(b) / per_process(a) for a, b in zip(off, on, strict=True)]
    dearer = [cpu_us(b) / cpu_us(a) - 1 for a, b in zip(off, on, strict=True)]
    return {
        "frame_bytes": frame,
        "messages_per_s_off": round(median(map(per_process, off))),
        "messages_per_s_on": round(median(map(per_process, on))),
        "throughput_lost": round(median(slower), 4),
        "throughput_lost_low": round(min(slower), 4),
        "throughput_lost_high": round(max(slower), 4),
        "cpu_us_off": round(median(map(cpu_us, off)), 4),
        "cpu_us_on": round(median(map(cpu_us, on)), 4),
        "cpu_added": round(median(dearer), 4),
        "rounds": len(on),
        "stalled": stalls,
    }
