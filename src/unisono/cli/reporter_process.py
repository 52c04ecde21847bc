"""Connects the measurement service to a group.

It starts an SLA reporter process, sends SLA verdicts to it, and records which of them the group has delivered.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from unisono.cluster.sla_reporter import estimate_to_json, verdict_to_json
from unisono.model.addresses import parse_address

if TYPE_CHECKING:
    from unisono.pipeline.measurement import MeasuredBatch
    from unisono.pipeline.measurement_store import MeasurementStore

LEAVE_TIMEOUT_S = 5.0
"""How many seconds the SLA reporter may take to leave the group."""


class ReporterProcess:
    """Starts the SLA reporter process of one group and exchanges lines of JSON with it."""

    def __init__(
        self,
        group: str,
        scenario: tuple[str, str],
        slas: tuple[str, str],
        member: int,
        peers: Mapping[int, str],
        *,
        on_status: Callable[[str], None] | None = None,
    ) -> None:
        """`on_status` is called with a text when the reporter has joined the group, and when the group excluded it."""
        self.group = group
        addresses = {number: parse_address("--peers", address) for number, address in peers.items()}
        self._setup = {"scenario": scenario, "slas": slas, "member": member, "peers": addresses}
        self._on_status = on_status
        self._store: MeasurementStore | None = None
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lock = threading.Lock()

    def send_unreported_verdicts(self, store: MeasurementStore) -> None:
        """Send the stored SLA verdicts that the group has not delivered yet, such as those from before a restart."""
        self._store = store
        self._send_line(
            {
                "verdicts": [
                    verdict_to_json(v.event) for v in store.verdicts() if v.group == self.group and not v.reported
                ]
            }
        )

    def send_measured(self, measured: MeasuredBatch) -> None:
        """Send the SLA verdicts and the estimate of the network from one batch of measurements."""
        verdicts = [verdict_to_json(v.event) for v in measured.verdicts if v.group == self.group]
        network = [estimate for (_, group), estimate in measured.network.items() if group == self.group]
        if verdicts or network:
            self._send_line({"verdicts": verdicts, "network": estimate_to_json(network[-1]) if network else None})

    def _send_line(self, line: Mapping[str, Any]) -> None:
        with self._lock, suppress(OSError):  # a dead reporter shows in its stderr; unsent verdicts stay queued
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(json.dumps(line) + "\n")
                self._process.stdin.flush()

    def _read_replies(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            reply = json.loads(line)
            if reply["kind"] == "told" and self._store is not None:
                self._store.mark_reported(reply["id"])
            elif reply["kind"] == "ready" and self._on_status is not None:
                self._on_status(
                    f"the SLA reporter joined {self.group!r}; members: {', '.join(map(str, reply['members']))}"
                )
            elif reply["kind"] == "out" and self._on_status is not None:
                self._on_status(f"the SLA reporter lost {self.group!r} and joins again: {reply['why']}")

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "unisono.cluster.sla_reporter"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(
            target=self._read_replies, args=(self._process,), name="sla-reporter", daemon=True
        )
        self._reader.start()
        self._send_line(self._setup)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            process, self._process = self._process, None  # later batches are not sent
        if process is None:
            return
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(LEAVE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.join()
        if process.stdout is not None:
            process.stdout.close()
