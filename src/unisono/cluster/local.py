"""A cluster of member processes on this machine: started, watched, and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unisono.errors import EnvironmentLacks

Report = dict[str, Any]
"""One line of JSON that a node has printed; `node.py` says what is in it."""


def free_addresses(members: tuple[int, ...], host: str = "127.0.0.1") -> dict[int, tuple[str, int]]:
    """An address with a free UDP port for each member."""
    sockets = []
    try:
        for _ in members:
            probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sockets.append(probe)
            probe.bind((host, 0))
        return {member: (host, probe.getsockname()[1]) for member, probe in zip(members, sockets, strict=True)}
    finally:
        for probe in sockets:
            probe.close()


@dataclass(slots=True)
class Node:
    """One member process."""

    member: int
    process: asyncio.subprocess.Process
    reports: list[Report] = field(default_factory=list)
    errors: str = ""

    def final(self) -> Report | None:
        """The node's last word, if it ended in order."""
        return self.reports[-1] if self.reports and self.reports[-1].get("kind") == "final" else None


class LocalCluster:
    """Runs `python -m unisono.cluster.node` once per member, each with its own configuration."""

    def __init__(
        self, configurations: Mapping[int, Mapping[str, Any]], on_report: Callable[[int, Report], None]
    ) -> None:
        self._configurations = configurations
        self._on_report = on_report
        self.nodes: dict[int, Node] = {}

    async def run(self, timeout_s: float) -> dict[int, Node]:
        """Start all, wait for all; on timeout or cancellation nobody is left behind."""
        watchers: list[asyncio.Task[None]] = []
        try:
            for member, configuration in self._configurations.items():
                node = await self._start(member, configuration)
                watchers.append(asyncio.create_task(self._watch_reports(node)))
                watchers.append(asyncio.create_task(self._watch_errors(node)))
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*watchers)
                await asyncio.gather(*(node.process.wait() for node in self.nodes.values()))
        except TimeoutError:
            late = [str(m) for m, node in self.nodes.items() if node.process.returncode is None]
            raise EnvironmentLacks(
                f"member {', '.join(late)} did not finish within {timeout_s:g} s; this machine may be too busy for "
                "the rate asked for: try a longer slot or fewer members"
            ) from None
        finally:
            await self._end(watchers)
        return self.nodes

    async def _start(self, member: int, configuration: Mapping[str, Any]) -> Node:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "unisono.cluster.node",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=16 * 1024 * 1024,
            start_new_session=True,
        )
        if process.stdin is None:
            raise EnvironmentLacks("a member process could not be given its configuration")
        process.stdin.write(json.dumps(configuration).encode() + b"\n")
        await process.stdin.drain()
        process.stdin.close()
        node = self.nodes[member] = Node(member, process)
        return node

    async def _watch_reports(self, node: Node) -> None:
        if node.process.stdout is None:
            return
        async for line in node.process.stdout:
            report = json.loads(line)
            if report["kind"] != "progress":
                node.reports.append(report)
            self._on_report(node.member, report)

    async def _watch_errors(self, node: Node) -> None:
        if node.process.stderr is not None:
            node.errors = (await node.process.stderr.read()).decode(errors="replace")

    async def _end(self, watchers: list[asyncio.Task[None]]) -> None:
        for node in self.nodes.values():
            if node.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    node.process.send_signal(signal.SIGKILL)
                await node.process.wait()
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
