"""A cluster of member processes on this machine: started, watched, and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
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

    def life(self) -> int | None:
        """The incarnation in which it took part, if it got that far."""
        return next((report["incarnation"] for report in self.reports if report["kind"] == "ready"), None)


class LocalCluster:
    """Runs `python -m unisono.cluster.node` once per member, each with its own configuration."""

    def __init__(
        self,
        configurations: Mapping[int, Mapping[str, Any]],
        on_report: Callable[[int, Report], None],
        *,
        starts_s: Mapping[int, float] | None = None,
        kills_s: Mapping[int, float] | None = None,
    ) -> None:
        """Members in `starts_s` are started, those in `kills_s` killed, that long after the first one is ready."""
        self._configurations = configurations
        self._on_report = on_report
        self._starts_s = dict(starts_s or {})
        self._kills_s = dict(kills_s or {})
        self._begun = asyncio.Event()
        self.nodes: dict[int, Node] = {}
        self.killed: dict[int, int] = {}
        """Members that were killed as asked, and when (ns since the Unix epoch)."""

    async def run(self, timeout_s: float) -> dict[int, Node]:
        """Start all, wait for all; on timeout or cancellation nobody is left behind."""
        watchers: list[asyncio.Task[None]] = []
        try:
            for member, configuration in self._configurations.items():
                watchers.append(asyncio.create_task(self._live(member, configuration)))
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*watchers)
        except TimeoutError:
            late = [str(m) for m, node in self.nodes.items() if node.process.returncode is None]
            raise EnvironmentLacks(
                f"member {', '.join(late)} did not finish within {timeout_s:g} s; this machine may be too busy for "
                "the rate asked for: try a longer slot or fewer members"
            ) from None
        finally:
            await self._end(watchers)
        return self.nodes

    async def _live(self, member: int, configuration: Mapping[str, Any]) -> None:
        """One member's whole life, begun and ended when it was asked for."""
        if member in self._starts_s:
            await self._begun.wait()
            await asyncio.sleep(self._starts_s[member])
        node = await self._start(member, configuration)
        killing = asyncio.create_task(self._kill(node)) if member in self._kills_s else None
        try:
            await self._watch(node)
        finally:
            if killing is not None:
                killing.cancel()

    async def _kill(self, node: Node) -> None:
        await self._begun.wait()
        await asyncio.sleep(self._kills_s[node.member])
        self.killed[node.member] = time.time_ns()
        with contextlib.suppress(ProcessLookupError):
            node.process.kill()

    async def _start(self, member: int, configuration: Mapping[str, Any]) -> Node:
        """Standard input stays open: a node that finds it closed knows that nobody watches it any more."""
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
        node = self.nodes[member] = Node(member, process)
        if process.stdin is not None:
            process.stdin.write(json.dumps(configuration).encode() + b"\n")
            with contextlib.suppress(ConnectionError):  # it has ended already, and its watcher will say why
                await process.stdin.drain()
        return node

    async def _watch(self, node: Node) -> None:
        """Follow one node to its end; one that ends without its last word ends the run, for nobody goes on without."""
        await asyncio.gather(self._watch_reports(node), self._watch_errors(node))
        status = await node.process.wait()
        if node.final() is not None or node.member in self.killed:
            return
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        last = node.errors.strip().splitlines()[-1:]
        raise EnvironmentLacks(f"member {node.member} {how}{': ' + last[0] if last else ''}")

    async def _watch_reports(self, node: Node) -> None:
        if node.process.stdout is None:
            return
        async for line in node.process.stdout:
            report = json.loads(line)
            if report["kind"] != "progress":
                node.reports.append(report)
            if report["kind"] == "ready":
                self._begun.set()
            self._on_report(node.member, report)

    async def _watch_errors(self, node: Node) -> None:
        if node.process.stderr is not None:
            node.errors = (await node.process.stderr.read()).decode(errors="replace")

    async def _end(self, watchers: list[asyncio.Task[None]]) -> None:
        for watcher in watchers:
            watcher.cancel()
        for node in self.nodes.values():
            if node.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    node.process.kill()
        await asyncio.gather(*watchers, *(node.process.wait() for node in self.nodes.values()), return_exceptions=True)
        for node in self.nodes.values():
            if node.process.stdin is not None:
                node.process.stdin.close()
