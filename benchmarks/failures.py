"""Throughput of the VBR order with failures, as a ratio to the order without failures in the same run.

No member fails: this measures the cost of being prepared. Every slot has a time-out, and no slot closes before its end.
Both sides declare the same Δ, longer than the scheduler's pauses; with a smaller Δ, a member that waits for a processor
would time out.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.progress import Say, silence
from benchmarks.throughput import Load, Stalled, cores, cpu_us, ordered, per_process

LOADS = (
    Load(100, 5_000, 5_000_000, 50_000_000),
    Load(1000, 500, 5_000_000, 50_000_000),
)
TARGET = 0.9


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """Two rows per message size; the two alternate, and the ratio is the median of the rounds' ratios."""
    seconds, rounds = (1.5, 1) if quick else (4.0, 7)
    found = []
    for load in LOADS:
        without, having, stalls = [], [], []
        for number in range(rounds):
            say(f"failures {load.size} B: round {number + 1} of {rounds}")
            # The first one runs on the machine as the previous round left it, so they take turns.
            first = number % 2 == 0
            try:
                pair = {failures: ordered(load, seconds, failures=failures) for failures in (first, not first)}
            except Stalled as stall:
                stalls.append(str(stall))
                continue
            without.append(pair[False])
            having.append(pair[True])
        found.extend(_rows(load, without, having, stalls))
    return found


def _rows(
    load: Load, without: list[list[dict[str, Any]]], having: list[list[dict[str, Any]]], stalls: list[str]
) -> list[dict[str, Any]]:
    work = f"throughput {load.size} B"
    if not having:
        return [{"system": "vbr with failures", "work": work, "stalled": len(stalls), "why": stalls[0]}]
    both: list[dict[str, Any]] = []
    for system, runs in (("vbr", without), ("vbr with failures", having)):
        both.append(
            {
                "system": system,
                "work": work,
                "messages_per_s": round(median(map(per_process, runs))),
                "cpu_us_per_message": round(median(map(cpu_us, runs)), 3),
                "cores_busy": round(median(map(cores, runs)), 2),
                "burst": load.burst,
                "slot_ms": load.slot_ns / 1e6,
                "delta_ms": load.delta_ns / 1e6,
            }
        )
    ratios = [per_process(h) / per_process(w) for w, h in zip(without, having, strict=True)]
    both[1] |= {
        "ratio": round(median(ratios), 2),
        "ratio_low": round(min(ratios), 2),
        "ratio_high": round(max(ratios), 2),
        "cpu_ratio": round(median(cpu_us(w) / cpu_us(h) for w, h in zip(without, having, strict=True)), 2),
        "target": TARGET,
        "given_up": sum(int(r["given_up"]) for run in having for r in run),
        "stalled": len(stalls),
    }
    return both
