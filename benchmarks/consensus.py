"""Batches decided per second by consensus among three processes: without storage, and with each fsync policy.

A batch is an instance: all bundles that the leader has when it proposes, up to the size limit. The members submit
batches as fast as they are accepted; instances are pipelined.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.progress import Say, silence
from benchmarks.throughput import _results, _start
from unisono.cluster.supervisor import free_addresses

MEMBERS = (1, 2, 3)
SIZE = 100
BATCH = 10
WAYS = ("no storage", "never", "batch", "always")


def measure(way: str, seconds: float, folder: Path) -> dict[str, Any]:
    """One run with one kind of storage."""
    peers = free_addresses(MEMBERS)
    setups = [
        {
            "member": member,
            "peers": peers,
            "size": SIZE,
            "batch": BATCH,
            "seconds": seconds,
            "storage": None if way == "no storage" else str(folder / f"{way}-{member}"),
            "fsync": "always" if way == "no storage" else way,
        }
        for member in MEMBERS
    ]
    found = _results(_start("benchmarks.agreeing", setups), seconds)
    leader = max(found, key=lambda row: bool(row["leads"]))
    batches, cpu = min(row["batches_per_s"] for row in found), sum(row["cpu_s"] for row in found)
    return {
        "fsync": way,
        "batches_per_s": round(batches),
        "messages_per_s": round(min(row["messages_per_s"] for row in found)),
        "batches_per_cpu_s": round(batches / cpu),
        "leader_us": round(leader["cpu_s"] * 1e6 / batches, 1),
        "follower_us": round((cpu - leader["cpu_s"]) * 1e6 / batches / (len(found) - 1), 1),
        "cpu": round(cpu, 2),
        "syncs_per_s": round(leader["syncs_per_s"]),
        "leaders": max(row["reigns"] for row in found),
    }


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """One row per kind of storage: the best of three runs, since other work on the machine only slows them."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            runs = []
            for round_ in range(1 if quick else 3):
                say(f"consensus, {way}, round {round_ + 1}")
                runs.append(measure(way, 1.0 if quick else 4.0, Path(tempfile.mkdtemp(dir=folder))))
            found.append(max(runs, key=lambda row: row["batches_per_s"]))
    return found
