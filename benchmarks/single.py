"""The ordinary API: `await group.send(m)` and `async for event in group`, against plain UDP in the same run.

Four processes, all sending. Both sides count only messages from the other three, each as an object of its own. The
reference packs messages as in (a) and slices them in Python. PySyncObj takes its turn, too, if it is installed: it is
no dependency. The peak memory is measured in the same runs, and by the batch API, where it is larger.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.progress import Say, silence
from benchmarks.throughput import Load, Stalled, begun_together, cpu_us, ordered, per_process, raw

SIZE = 100
LOAD = Load(SIZE, 5_000, 10_000_000, 50_000_000)
ORDERS: dict[str, dict[str, Any]] = {
    "vbr": {},
    "vbr with failures": {"failures": True},
    "leader": {"order": "leader"},
    "timestamp": {"order": "timestamp"},
    "consensus": {"order": "consensus"},
    "quasi_genuine": {"order": "quasi_genuine"},
    "vbr, both grades": {"grades": "both"},
}
SINGLE = ("vbr", "leader", "consensus")
"""The orders that are measured by the single API; all are by the batch API."""
TARGETS = {"vbr": 0.09, "leader": 0.08}
"""The least ratio to plain UDP."""
PEER = "PySyncObj"
PEER_TARGET = 10.0
"""The least ratio of consensus to PySyncObj."""
MEMORY_TARGET_MB = 100

Runs = list[list[dict[str, Any]]]


@dataclass
class Measured:
    """The runs of one system, and why others failed."""

    runs: Runs = field(default_factory=list)
    stalls: list[str] = field(default_factory=list)

    def add(self, seconds: float, name: str, **more: Any) -> None:
        """Run once."""
        try:
            self.runs.append(peer(seconds) if name == PEER else ordered(LOAD, seconds, **more, **ORDERS[name]))
        except Stalled as stall:
            self.stalls.append(str(stall))

    def rate(self) -> float:
        """Messages of others per second and member: the median of the runs."""
        return median(map(per_process, self.runs)) if self.runs else 0.0

    def peak_mb(self) -> int:
        """The largest memory of any process in any run."""
        return round(max((member["peak_rss_mb"] for run in self.runs for member in run), default=0.0))


def peer(seconds: float) -> list[dict[str, Any]]:
    """The figures of a group of PySyncObj."""
    return begun_together("benchmarks.pysyncobj_peer", SIZE, seconds)


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """One row per system and API; all take turns, and a ratio is that of the medians."""
    seconds, rounds = (1.5, 1) if quick else (4.0, 3)
    names = [*SINGLE, PEER] if importlib.util.find_spec("pysyncobj") else [*SINGLE]
    plain: Runs = []
    single = {name: Measured() for name in names}
    batch = {name: Measured() for name in ORDERS}
    for number in range(rounds):
        say(f"single API: round {number + 1} of {rounds}, raw")
        plain.append(raw(SIZE, seconds))
        for name in names:
            say(f"single API: round {number + 1} of {rounds}, {name}")
            single[name].add(seconds, name, **({} if name == PEER else {"single": True}))
    for name in list(ORDERS)[:1] if quick else ORDERS:
        say(f"batch API: {name}")
        batch[name].add(seconds, name)
    found = [
        {
            "system": "raw UDP",
            "messages_per_s": round(median(map(per_process, plain))),
            "cpu_us_per_message": round(median(map(cpu_us, plain)), 3),
        }
    ]
    found += [_row(name, "single", measured, plain) for name, measured in single.items()]
    if PEER in single and single[PEER].runs:
        consensus = next(row for row in found if row["system"] == "consensus")
        ratio = single["consensus"].rate() / single[PEER].rate()
        consensus |= {"peer_ratio": round(ratio, 1), "peer_target": PEER_TARGET}
    return found + [_row(name, "batch", measured, plain) for name, measured in batch.items() if measured.runs]


def _row(name: str, api: str, measured: Measured, plain: Runs) -> dict[str, Any]:
    row: dict[str, Any] = {"system": name, "api": api, "stalled": len(measured.stalls)}
    if measured.stalls:
        row["why"] = measured.stalls[0]
    if measured.runs:
        cpu = median(map(cpu_us, measured.runs))
        row |= {
            "messages_per_s": round(measured.rate()),
            "ratio": round(measured.rate() / median(map(per_process, plain)), 3),
            "cpu_us_per_message": round(cpu, 2),
            "cpu_ratio": round(median(map(cpu_us, plain)) / cpu, 3),
            "peak_mb": measured.peak_mb(),
        }
    if api == "single" and name in TARGETS:
        row["target"] = TARGETS[name]
    if name != PEER:
        row["peak_target_mb"] = MEMORY_TARGET_MB
    return row
