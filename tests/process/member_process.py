"""One incarnation of one member as a process: it reads its configuration and prints one line per event."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
"""The folder in which member processes run, so that they find the package `tests`."""


class Process:
    """One incarnation of one member; each line of its output is a JSON list."""

    def __init__(self, script: Path, member: int, incarnation: int, setup: dict[str, Any]) -> None:
        self.member, self.incarnation = member, incarnation
        self.lines: list[list[Any]] = []
        self.times: list[int] = []
        self.killed_ns: int | None = None
        self.finished = False
        self.popen = subprocess.Popen(
            [sys.executable, "-m", f"tests.process.{script.stem}"],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(setup) + "\n")
        self.popen.stdin.flush()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.endswith("\n"):
                self.lines.append(json.loads(line))
                self.times.append(time.time_ns())

    def lines_of(self, kind: str) -> list[list[Any]]:
        return [line for line in list(self.lines) if line[0] == kind]

    def count(self, kind: str) -> int:
        return len(self.lines_of(kind))

    def signal(self, number: int) -> None:
        os.kill(self.popen.pid, number)

    def finish(self, patience_s: float) -> None:
        """Close its input, so that it leaves in order, and wait for its end."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        self.popen.wait(patience_s)
        self.finished = True
        self._reader.join()

    def end(self) -> None:
        """Kill the process, as a power failure would, if it still runs."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        if not self.finished:
            self.killed_ns = self.killed_ns or time.time_ns()
        self._reader.join()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()
