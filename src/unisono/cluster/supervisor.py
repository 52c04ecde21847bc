"""Starts, watches and ends the member processes of a group on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from unisono.errors import MemberProcessFailed

ProcessReport = dict[str, Any]
"""One line of JSON from a member process; `member_process` documents the fields."""


def free_addresses(members: tuple[int, ...], host: str = "127.0.0.1") -> dict[int, tuple[str, int]]:
    """Find an address with a free UDP port for each member."""
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
class MemberProcess:
    """A started member process, with the reports that it has printed."""

    member: int
    process: asyncio.subprocess.Process
    reports: list[ProcessReport] = field(default_factory=list)
    stderr_text: str = ""
    killed_ns: int | None = None
    """When the schedule killed this process, in ns since the Unix epoch; None if it did not."""

    def final_report(self) -> ProcessReport | None:
        """The report `final` of the process; None unless the process ended normally."""
        return self.reports[-1] if self.reports and self.reports[-1].get("kind") == "final" else None

    def has_begun(self) -> bool:
        """Whether the member has heard all expected members and has begun to send."""
        return any(report["kind"] == "begun" for report in self.reports)

    def incarnation(self) -> int | None:
        """The last incarnation of the member in this process; None if it never joined."""
        incarnations = [report["incarnation"] for report in self.reports if report["kind"] in {"ready", "again"}]
        return incarnations[-1] if incarnations else None


@dataclass(frozen=True, slots=True)
class MemberSchedule:
    """When one member starts, is killed, pauses and restarts: in seconds after all initial members began to send."""

    start_s: float | None = None
    """When the member starts; None if it starts with the others."""
    kills_s: tuple[float, ...] = ()
    """The times at which the member is killed."""
    pauses_s: tuple[tuple[float, float], ...] = ()
    """The start and end of each pause of the member."""
    restarts_s: tuple[float, ...] = ()
    """The times at which the member starts again. A restart waits until the member's previous process has ended."""


class LocalCluster:
    """Runs `python -m unisono.cluster.member_process` once per member, each with its own configuration."""

    def __init__(
        self,
        configurations: Mapping[int, Mapping[str, Any]],
        on_report: Callable[[int, ProcessReport], None],
        *,
        schedules: Mapping[int, MemberSchedule] | None = None,
    ) -> None:
        self._configurations = configurations
        self._on_report = on_report
        self._schedules = dict(schedules or {})
        self._all_begun = asyncio.Event()
        self._begun_monotonic_s = 0.0
        self._begun_ns = 0
        self.processes: dict[int, MemberProcess] = {}
        """The latest process of each member, by member."""
        self._yet_to_join = sum(
            1 + len(self._schedules.get(member, MemberSchedule()).restarts_s) for member in configurations
        )
        """How many incarnations of members have not joined the group yet."""
        self._started: list[asyncio.subprocess.Process] = []
        """All processes, also those that wait for their configurations."""
        self.killed: list[MemberProcess] = []
        """The processes that the schedule killed."""

    async def run(self, timeout_s: float) -> dict[int, MemberProcess]:
        """Start all processes and wait for their end. After a time-out or a cancellation, no process is left behind.

        The time-out applies twice: to the time until all members have begun to send, which depends on the machine, and
        to the time from then to the end.
        """
        watchers: list[asyncio.Task[None]] = []
        try:
            for member, configuration in self._configurations.items():
                watchers.append(asyncio.create_task(self._run_member(member, configuration)))
            async with asyncio.timeout(timeout_s) as limit:
                beginning = asyncio.create_task(self._extend_deadline(limit, timeout_s))
                try:
                    await asyncio.gather(*watchers)
                finally:
                    beginning.cancel()
        except TimeoutError:
            late = [str(m) for m, node in self.processes.items() if node.process.returncode is None]
            raise MemberProcessFailed(
                f"these members did not {'finish' if self._all_begun.is_set() else 'begin'} within {timeout_s:g} s: "
                f"{', '.join(late)}; they wait for another member, or this machine is too busy for this rate; try a "
                "longer slot or fewer members"
            ) from None
        finally:
            await self._stop_all(watchers)
        return self.processes

    async def _extend_deadline(self, limit: asyncio.Timeout, timeout_s: float) -> None:
        await self._all_begun.wait()
        limit.reschedule(asyncio.get_running_loop().time() + timeout_s)

    async def _run_member(self, member: int, configuration: Mapping[str, Any]) -> None:
        """Run all incarnations of one member, as its schedule says.

        The processes of all incarnations start now and wait for their configurations: on a busy machine an interpreter
        takes seconds to start, which would delay the schedule.
        """
        schedule = self._schedules.get(member, MemberSchedule())
        starts_s = (schedule.start_s, *schedule.restarts_s)
        signals = [asyncio.create_task(send) for send in self._scheduled_signals(member, schedule)]
        try:
            started = [await self._start_process() for _ in starts_s]
            for process, start_s in zip(started, starts_s, strict=True):
                if start_s is not None:
                    await self._sleep_until(start_s)
                    configuration = self._late_configuration(configuration, start_s)
                member_process = await self._configure(member, process, configuration)
                await self._watch(member_process)
                if member_process.incarnation() is None:
                    self._on_joined()  # it was killed before, so no member has to wait for it
        finally:
            for task in signals:
                task.cancel()
            await asyncio.gather(*signals, return_exceptions=True)

    def _late_configuration(self, configuration: Mapping[str, Any], at_s: float) -> dict[str, Any]:
        """The configuration of a member that starts at `at_s`: such a member does not wait for other members."""
        return {**configuration, "late_ns": int(at_s * 1e9), "begun_ns": self._begun_ns, "expected": []}

    async def _sleep_until(self, at_s: float) -> None:
        await self._all_begun.wait()
        await asyncio.sleep(self._begun_monotonic_s + at_s - time.monotonic())

    def _scheduled_signals(self, member: int, schedule: MemberSchedule) -> Iterator[Coroutine[Any, Any, None]]:
        for at_s in schedule.kills_s:
            yield self._signal(member, at_s, signal.SIGKILL)
        for from_s, to_s in schedule.pauses_s:
            yield self._signal(member, from_s, signal.SIGSTOP)
            yield self._signal(member, to_s, signal.SIGCONT)

    async def _signal(self, member: int, at_s: float, number: signal.Signals) -> None:
        await self._sleep_until(at_s)
        node = self.processes.get(member)
        if node is None or node.process.returncode is not None:
            return
        if number is signal.SIGKILL:
            node.killed_ns = time.time_ns()
            self.killed.append(node)
        with contextlib.suppress(ProcessLookupError):
            node.process.send_signal(number)

    async def _start_process(self) -> asyncio.subprocess.Process:
        """Start a process that waits for the configuration of a member."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "unisono.cluster.member_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=16 * 1024 * 1024,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    async def _configure(
        self, member: int, process: asyncio.subprocess.Process, configuration: Mapping[str, Any]
    ) -> MemberProcess:
        """Let a waiting process become a member.

        Its standard input stays open: when that closes, the member leaves the group.
        """
        node = self.processes[member] = MemberProcess(member, process)
        if process.stdin is not None:
            process.stdin.write(json.dumps(configuration).encode() + b"\n")
            with contextlib.suppress(ConnectionError):  # it has already ended; its watcher reports why
                await process.stdin.drain()
        return node

    async def _watch(self, member_process: MemberProcess) -> None:
        """Watch one process to its end. An end without a final report ends the run: the others cannot continue."""
        await asyncio.gather(self._watch_reports(member_process), self._watch_errors(member_process))
        status = await member_process.process.wait()
        if member_process.final_report() is not None or member_process.killed_ns is not None:
            return
        ending = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        last = member_process.stderr_text.strip().splitlines()[-1:]
        raise MemberProcessFailed(f"member {member_process.member} {ending}{': ' + last[0] if last else ''}")

    async def _watch_reports(self, member_process: MemberProcess) -> None:
        if member_process.process.stdout is None:
            return
        async for line in member_process.process.stdout:
            report = json.loads(line)
            if report["kind"] != "progress":
                member_process.reports.append(report)
            if report["kind"] == "ready":
                self._on_joined()
            if report["kind"] == "begun":
                self._on_begun()
            self._on_report(member_process.member, report)

    def _on_joined(self) -> None:
        """If all incarnations of all members have joined, tell the members: from now on they may leave."""
        self._yet_to_join -= 1
        if self._yet_to_join == 0:
            for process in self._started:
                if process.returncode is None and process.stdin is not None:
                    process.stdin.write(b"\n")

    def _on_begun(self) -> None:
        """If all initial members have begun to send, record the time: schedules are relative to it."""
        first = [
            member for member in self._configurations if self._schedules.get(member, MemberSchedule()).start_s is None
        ]
        if not self._all_begun.is_set() and all(m in self.processes and self.processes[m].has_begun() for m in first):
            self._begun_monotonic_s, self._begun_ns = time.monotonic(), time.time_ns()
            self._all_begun.set()

    async def _watch_errors(self, member_process: MemberProcess) -> None:
        if member_process.process.stderr is not None:
            member_process.stderr_text = (await member_process.process.stderr.read()).decode(errors="replace")

    async def _stop_all(self, watchers: list[asyncio.Task[None]]) -> None:
        for watcher in watchers:
            watcher.cancel()
        for process in self._started:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        await asyncio.gather(*watchers, *(process.wait() for process in self._started), return_exceptions=True)
        for process in self._started:
            if process.stdin is not None:
                process.stdin.close()
