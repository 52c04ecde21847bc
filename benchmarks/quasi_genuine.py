"""Multicasts to all of three groups of three, in nine processes over loopback: delivered by every member per second."""

from __future__ import annotations

from typing import Any

from benchmarks.progress import Say, silence
from benchmarks.throughput import _results, _start
from unisono.cluster.supervisor import free_addresses

GROUPS = {"a": (1, 2, 3), "b": (4, 5, 6), "c": (7, 8, 9)}
MEMBERS = tuple(member for members in GROUPS.values() for member in members)
SENDERS = (2, 5, 8)
"""One of each group that need not lead it."""
SIZE = 100
RATES = (2_000, 5_000, 8_000, 12_000)
BATCH = 50


def measure(rate: int, seconds: float) -> dict[str, Any]:
    """One run: `rate` multicasts per second are submitted in total."""
    peers = free_addresses(MEMBERS)
    setups = [
        {
            "member": member,
            "peers": peers,
            "groups": GROUPS,
            "size": SIZE,
            "batch": BATCH,
            "rate": rate / len(SENDERS) if member in SENDERS else 0,
            "seconds": seconds,
        }
        for member in MEMBERS
    ]
    found = _results(_start("benchmarks.multicasting", setups), seconds)
    return {
        "offered_per_s": rate,
        "delivered_per_s": round(min(row["multicasts_per_s"] for row in found)),
        "cpu": round(sum(row["cpu_s"] for row in found), 2),
    }


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """One row per submitted rate."""
    found = []
    for rate in RATES[1:2] if quick else RATES:
        say(f"three groups of three, {rate} multicasts per second")
        found.append(measure(rate, 2.0 if quick else 5.0))
    return found
