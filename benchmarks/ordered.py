"""One member of the throughput benchmark: sends as fast as the group accepts, and counts deliveries.

With `single` in its configuration, the member sends by `send` and iterates over single events; else by `send_many` and
over batches.

With UNISONO_PROFILE set to a folder, the counted time of one member is profiled and the profile left there.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from tests.worlds.joining import join_group

import unisono
from benchmarks.process_tree import peak_rss_mb
from benchmarks.switching import Switch

WARM_S = 0.5
"""Left out at the start, while processes and caches warm up."""
STALL_S = 5.0
"""Without any delivery for this long the group has stopped: something was lost, or no process gets to run."""
GATHER_S = 20.0
CHECK_TIME_EVERY = 64
PROFILED = 1
"""The member to profile; profiling all would slow the group down too much."""


class MemberRun:
    """One member: a task that sends, one that counts, and one that watches for a stall."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.setup = setup
        self.me = int(setup["member"])
        self.seconds = float(setup["seconds"])
        self.from_others = self.own = self.batches = self.given_up = 0
        self.counted_from = self.counted_to = self.last = 0.0
        self.violations: list[str] = []
        self.stalled = False
        self._begin = 0.0
        self._before: resource.struct_rusage | None = None
        self._after: resource.struct_rusage | None = None
        folder = os.environ.get("UNISONO_PROFILE") if self.me == PROFILED else None
        self._profile_at = Path(folder) if folder else None
        self._profile = cProfile.Profile()
        self._switch: Switch | None = None

    async def run(self) -> dict[str, Any]:
        """Join, send and count for the given time, leave; the figures."""
        setup = self.setup
        burst, slot_ns, size = int(setup["burst"]), int(setup["slot_ns"]), int(setup["size"])
        group = await join_group(
            "throughput",
            member=self.me,
            peers={int(m): (a[0], int(a[1])) for m, a in setup["peers"].items()},
            rate=unisono.Rate(avg=burst * 1e9 / slot_ns, burst=burst),
            slot=f"{slot_ns}ns",
            delta=f"{setup['delta_ns']}ns",
            gamma="1ms",
            max_message=size,
            max_frame=int(setup["max_frame"]),
            link=unisono.Link("400Gbit/s"),
            metrics=bool(setup.get("monitor")),
            **_order_options(setup),
        )
        if setup.get("failures"):
            await self._gather(group)
        transport = group._driver.transport
        if setup.get("monitor"):
            self._switch = Switch(group)
        self._begin = self.last = time.monotonic()
        if setup.get("single"):
            parts = (self._count_each(group), self._send_each(group, size))
        else:
            parts = (self._count(group), self._send(group, burst, size))
        tasks = [asyncio.create_task(part) for part in parts]
        watching = asyncio.create_task(self._watch())
        await asyncio.wait({*tasks, watching}, timeout=WARM_S + self.seconds + 1, return_when=asyncio.FIRST_COMPLETED)
        for done in tasks:
            if done.done() and done.exception() is not None:
                done.result()
        self._finish()
        dropped, received, order = transport.dropped(), transport.received, group._stack.order
        state = {name: getattr(order, name, None) for name in ("_send_slot", "_deliver_slot", "_slot_closed")}
        tasks[1].cancel()
        watching.cancel()
        in_order = await group.leave()
        await tasks[0]
        return {
            **self._figures(),
            "dropped": dropped,
            "datagrams_per_read": received.datagrams / max(1, received.syscalls),
            "in_order": in_order,
            "errors": dict(transport.errors),
            "state": state,
            "lateness_max_ms": group.stats().lateness.largest / 1e6,
            "refused": dict(group.stats().refused),
            "ignored": dict(group.stats().ignored),
            "given_up": self.given_up,
            "phases": [] if self._switch is None else self._switch.phases,
        }

    async def _gather(self, group: unisono.Group) -> None:
        """Wait for all members: with failures, a group starts with the members that are up."""
        async with asyncio.timeout(GATHER_S):
            while len(group.members) < len(self.setup["peers"]):
                await asyncio.sleep(0.01)

    async def _send(self, group: unisono.Group, burst: int, size: int) -> None:
        messages = [bytes([n % 256]) * size for n in range(burst)]
        # Send a little longer than the counted time, so that no member counts while others have stopped.
        while time.monotonic() - self._begin < WARM_S + self.seconds + 0.5:
            await group.send_many(messages)
            await asyncio.sleep(0)

    async def _send_each(self, group: unisono.Group, size: int) -> None:
        message = bytes(size)
        while time.monotonic() - self._begin < WARM_S + self.seconds + 0.5:
            for _ in range(CHECK_TIME_EVERY):
                await group.send(message)

    async def _count_each(self, group: unisono.Group) -> None:
        """Count single deliveries; look at the clock once per CHECK_TIME_EVERY events, as an application would."""
        end, me, others, skipped, delivery = self._begin + WARM_S + self.seconds, self.me, 0, 0, unisono.Delivery
        async for event in group:
            if not isinstance(event, delivery):
                if isinstance(event, unisono.Violation):
                    self.violations.append(f"{event.kind}: {event.text}")
                continue
            if event.sender == me:
                continue
            others += 1
            if others % CHECK_TIME_EVERY:
                continue
            self.last = now = time.monotonic()
            if self._before is None:
                if now - self._begin > WARM_S:
                    self._start_counting(now)
                    skipped = others
            elif now <= end:
                self.counted_to, self.from_others = now, others - skipped
            else:
                self._finish()

    async def _count(self, group: unisono.Group) -> None:
        end = self._begin + WARM_S + self.seconds
        async for event in group.batches():
            if isinstance(event, unisono.Violation):
                self.violations.append(f"{event.kind}: {event.text}")
            if isinstance(event, unisono.ViewChange) and time.monotonic() < end:
                self.given_up += len(event.left)
            if not isinstance(event, unisono.Batch):
                continue
            number = len(event.messages)
            self.last = now = time.monotonic()
            if self._before is None:
                if now - self._begin > WARM_S:
                    self._start_counting(now)
                continue
            if now > end:
                self._finish()
                continue
            self.counted_to = now
            self.batches += 1
            if self._switch is not None:
                self._switch.counted(now, 0 if event.sender == self.me else number)
            if event.sender == self.me:
                self.own += number
            else:
                self.from_others += number

    async def _watch(self) -> None:
        while time.monotonic() - self.last < STALL_S:
            await asyncio.sleep(0.1)
        self.stalled = True

    def _start_counting(self, now: float) -> None:
        self._before, self.counted_from = resource.getrusage(resource.RUSAGE_SELF), now
        if self._profile_at is not None:
            self._profile.enable()

    def _finish(self) -> None:
        if self._after is None:
            self._profile.disable()
            self._after = resource.getrusage(resource.RUSAGE_SELF)

    def _figures(self) -> dict[str, Any]:
        if self._profile_at is not None:
            self._profile.dump_stats(self._profile_at / f"{self.setup['size']}B.prof")
        before, after = self._before, self._after
        user = after.ru_utime - before.ru_utime if before and after else 0.0
        system = after.ru_stime - before.ru_stime if before and after else 0.0
        faults = after.ru_minflt - before.ru_minflt if before and after else 0
        return {
            "received": self.from_others,
            "own": self.own,
            "batches": self.batches,
            "seconds": max(self.counted_to - self.counted_from, 1e-9),
            "user_s": user,
            "system_s": system,
            "page_faults": faults,
            "peak_rss_mb": peak_rss_mb(),
            "stalled": self.stalled,
            "violations": self.violations[:3],
        }


def _order_options(setup: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `join` that choose the order and its variant; plain VBR without any."""
    order = setup.get("order", "vbr")
    options: dict[str, Any] = {"order": order, "failures": bool(setup.get("failures"))}
    if setup.get("grades"):
        options["grades"] = setup["grades"]
    if setup.get("reliable"):
        options["reliable"] = unisono.Redundancy.of_ns(1, int(setup["delta_ns"]) // 10)
    if order == "quasi_genuine":
        options["topology"] = unisono.Topology({"a": [int(m) for m in setup["peers"]]}, {"a": ["a"]})
    return options


def main() -> None:
    """Configuration on standard input, one line of JSON with the figures out."""
    figures = asyncio.run(MemberRun(json.loads(sys.stdin.readline())).run())
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
