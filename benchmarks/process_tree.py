"""Processor time and memory of a process and all its descendants, from /proc."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Self

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """The process and its running descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += parents.get(pid, [])
    return found


def cpu_s(root: int) -> float:
    """Processor seconds that the tree has used so far, those of ended children included."""
    return sum(sum(map(int, fields[11:15])) for pid in tree(root) if (fields := _stat(pid))) * _TICK_S


def memory_bytes(root: int) -> int:
    """The memory that the tree uses now; shared pages are counted once."""
    return sum(map(_proportional_bytes, tree(root)))


class Peak:
    """The largest memory use of a tree, sampled four times a second."""

    def __init__(self, root: int) -> None:
        self.bytes = 0
        self._root = root
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(0.25):
            self.bytes = max(self.bytes, memory_bytes(self._root))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _stat(pid: int) -> list[str]:
    """The fields from the state on; the name before them may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def peak_rss_mb() -> float:
    """The largest resident size of this process so far. `getrusage` would count its parent's before the start, too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024
