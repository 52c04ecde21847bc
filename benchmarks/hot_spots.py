"""Where a member of benchmark (a) spends its time: cProfile within one member process, by its own time."""

from __future__ import annotations

import pstats
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.progress import Say, silence
from benchmarks.throughput import CANDIDATES, ordered


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """The ten functions with the most time of their own, for each message size; profiling slows Python code down."""
    found = []
    for load in (candidates[0] for candidates in CANDIDATES.values()):
        say(f"profile of a member, {load.size} B")
        with tempfile.TemporaryDirectory(prefix="unisono-profile-") as folder:
            ordered(load, 1.5 if quick else 4.0, profile_to=folder)
            stats = pstats.Stats(str(Path(folder) / f"{load.size}B.prof"))
        entries: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = stats.stats  # type: ignore[attr-defined]
        idle = ("epoll", "select")
        busy = {where: entry for where, entry in entries.items() if not any(word in where[2] for word in idle)}
        total = sum(entry[2] for entry in busy.values())
        for (file, line, name), (_, calls, own, whole, _) in sorted(busy.items(), key=lambda e: -e[1][2])[:10]:
            place = f"{_short(file)}:{line} {name}" if line else name
            found.append(
                {
                    "system": "unisono",
                    "work": f"profile {load.size} B",
                    "where": place,
                    "calls": calls,
                    "own_ms": round(own * 1e3, 1),
                    "with_callees_ms": round(whole * 1e3, 1),
                    "share": round(own / total, 3),
                }
            )
    return found


def _short(file: str) -> str:
    parts = Path(file).parts
    return "/".join(parts[parts.index("unisono") + 1 :]) if "unisono" in parts else "/".join(parts[-2:])
