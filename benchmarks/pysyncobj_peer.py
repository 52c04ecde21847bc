"""One member of the reference for the single API: a group of PySyncObj, which replicates a log by Raft in Python.

Each process puts messages into the replicated log as long as few of its own are outstanding, and counts the messages
of others that were applied here. It ticks in the same thread, with batches of log entries: its fastest way.
"""

from __future__ import annotations

import importlib
import json
import resource
import select
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.process_tree import peak_rss_mb

WARM_S = 1.0
OUTSTANDING = 2_000
PUT_AT_ONCE = 200


def build(me: str, others: list[str]) -> Any:
    """A replicated log whose `put` counts what other members have put."""
    module = importlib.import_module("pysyncobj")

    class Log(module.SyncObj):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            conf = module.SyncObjConf(autoTick=False, appendEntriesUseBatch=True, commandsQueueSize=10 * OUTSTANDING)
            super().__init__(me, others, conf)
            self.own = self.from_others = 0

        @module.replicated  # type: ignore[untyped-decorator]
        def put(self, sender: str, message: bytes) -> None:
            if sender == me:
                self.own += 1
            else:
                self.from_others += 1

    return Log()


def _wait_until(log: Any, condition: Callable[[], bool]) -> None:
    """Take part in the group until the condition holds."""
    deadline = time.monotonic() + 30
    while not condition():
        log.doTick(0.01)
        if time.monotonic() > deadline:
            raise TimeoutError("the group was not ready within 30 s")


def main() -> None:
    """Configuration on standard input, one line of JSON with the figures out."""
    setup = json.loads(sys.stdin.readline())
    addresses = {int(member): f"{host}:{port}" for member, (host, port) in setup["peers"].items()}
    me = addresses.pop(setup["member"])
    log, message, outstanding, applied = build(me, list(addresses.values())), bytes(setup["size"]), 0, 0

    def done(_: Any, __: Any) -> None:
        nonlocal outstanding
        outstanding -= 1

    _wait_until(log, log.isReady)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    _wait_until(log, lambda: bool(select.select([sys.stdin], [], [], 0)[0]))
    begin, before, counted_from = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF), 0.0
    now = begin
    while now - begin < WARM_S + setup["seconds"]:
        for _ in range(min(PUT_AT_ONCE, OUTSTANDING - outstanding)):
            outstanding += 1
            log.put(me, message, callback=done)
        log.doTick(0.0 if outstanding < OUTSTANDING else 0.001)
        now = time.monotonic()
        if not counted_from and now - begin > WARM_S:
            before, counted_from, applied = resource.getrusage(resource.RUSAGE_SELF), now, log.from_others
    after = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "received": log.from_others - applied,
        "seconds": now - counted_from,
        "user_s": after.ru_utime - before.ru_utime,
        "system_s": after.ru_stime - before.ru_stime,
        "peak_rss_mb": peak_rss_mb(),
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
    ends_at = time.monotonic() + 1.0
    while time.monotonic() < ends_at:  # the others still need a majority
        log.doTick(0.01)


if __name__ == "__main__":
    main()
