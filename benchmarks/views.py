"""How long after a kill the survivors are in the next view, in failure-detection times; the target is three.

Five processes send and pull in the priority order; one is killed with SIGKILL, comes back under its number, and then it
is the next one's turn. The failure-detection time is the longest silence after which a survivor suspects the dead, as
its detector had it before the kill; it depends on the machine and its load.
"""

from __future__ import annotations

import json
import os
import threading
import time
from statistics import median
from typing import Any

from benchmarks.progress import Say, silence
from benchmarks.throughput import Stalled, _start
from unisono.cluster.supervisor import free_addresses

MEMBERS = (1, 2, 3, 4, 5)
PATIENCE_S = 60.0
SETTLE_S = 1.5
"""Between two kills: what detectors have measured settles, and so does a machine that has started a process."""


class Member:
    """A process, and the views that it has reported."""

    def __init__(self, member: int, peers: dict[int, tuple[str, int]]) -> None:
        self.member = member
        (self.process,) = _start("benchmarks.viewing", [{"member": member, "peers": peers}])
        self.views: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.views.extend(json.loads(line) for line in self.process.stdout if line.endswith("\n"))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _wait(members: list[Member], present: tuple[int, ...]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not all(m.views and tuple(m.views[-1]["members"]) == present for m in members):
        if time.monotonic() > give_up:
            raise Stalled(f"{present} are not in one view: {[m.views[-1:] for m in members]}")
        time.sleep(0.005)


def _next_view(member: Member, dead: int, since_ns: int) -> dict[str, Any] | None:
    """The first view without the killed member."""
    views = [view for view in list(member.views) if view["at_ns"] > since_ns and dead not in view["members"]]
    return views[0] if views else None


def _kill(members: dict[int, Member], dead: int) -> dict[str, Any]:
    survivors = [member for number, member in members.items() if number != dead]
    load, at_ns, give_up = os.getloadavg()[0], time.time_ns(), time.monotonic() + PATIENCE_S
    members[dead].kill()
    while not all(_next_view(member, dead, at_ns) for member in survivors):
        if time.monotonic() > give_up:
            raise Stalled(f"no view without {dead}: {[member.views[-1:] for member in survivors]}")
        time.sleep(0.005)
    views = [view for member in survivors if (view := _next_view(member, dead, at_ns)) is not None]
    detection_ns = max(int(view["timeouts_ns"][str(dead)]) for view in views)
    taken_ns = max(int(view["at_ns"]) for view in views) - at_ns
    return {
        "killed": dead,
        "detection_ms": detection_ns / 1e6,
        "in_view_ms": taken_ns / 1e6,
        "detection_times": taken_ns / detection_ns,
        "gap_ms": max(int(view["gap_ns"]) for view in views) / 1e6,
        "load_before": round(load, 2),
    }


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """One row per kill, then the median and the largest."""
    peers = free_addresses(MEMBERS)
    members: dict[int, Member] = {}
    found: list[dict[str, Any]] = []
    try:
        members |= {number: Member(number, peers) for number in MEMBERS}
        for number in range(2 if quick else 10):
            say(f"views: kill {number + 1} of {2 if quick else 10}")
            _wait(list(members.values()), MEMBERS)
            time.sleep(SETTLE_S)
            dead = MEMBERS[number % len(MEMBERS)]
            found.append({"run": number + 1, **_kill(members, dead)})
            members[dead] = Member(dead, peers)
            members = dict(sorted(members.items()))
    finally:
        for member in members.values():
            member.kill()
    names = ("detection_ms", "in_view_ms", "detection_times", "gap_ms")
    for word, of in (("median", median), ("largest", max)):
        found.append({"run": word, **{name: of([row[name] for row in found if "killed" in row]) for name in names}})
    return [{n: round(v, 2) if isinstance(v, float) else v for n, v in row.items()} for row in found]
