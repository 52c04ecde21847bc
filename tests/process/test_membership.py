"""Membership and the priority order among real processes that are killed, paused, restarted and left in a minority.

The checkers judge the traces that the processes write.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.process.member_process import Process

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.cluster.supervisor import free_addresses
from unisono.runtime.timers import new_incarnation
from unisono.trace.recorder import Extras, MemoryTrace
from unisono.trace.schema import OBSERVER, EventKind, RunMeta

PATIENCE_S = 90.0
SCRIPT = Path(__file__).with_name("priority_member.py")
CHECKED = ("total_order", "integrity", "fifo", "priority_accounting", "view_atomicity", "gap_freedom")


def read_extras(fields: list[Any] | None) -> Extras | None:
    """The extra columns of a row. JSON turns tuples into lists."""
    if fields is None:
        return None
    values: list[Any] = [tuple(field) if isinstance(field, list) else field for field in fields]
    return Extras(*values)


class PriorityGroup:
    """The processes of one group, and their traces."""

    def __init__(self, folder: Path, members: tuple[int, ...], order: str) -> None:
        self.folder, self.order = folder, order
        self.peers = free_addresses(members)
        self.processes: list[Process] = []

    def start(self, member: int) -> Process:
        earlier = [process.incarnation for process in self.processes if process.member == member]
        incarnation = max([new_incarnation(), *(number + 1 for number in earlier)])
        setup = {
            "member": member,
            "life": incarnation,
            "peers": self.peers,
            "order": self.order,
            "trace": str(self.folder),
            "every_s": 0.02,
            "pause_s": 0.002 * member,
        }
        process = Process(SCRIPT, member, incarnation, setup)
        self.processes.append(process)
        return process

    def current(self, member: int) -> Process:
        return next(process for process in reversed(self.processes) if process.member == member)

    def wait(self, condition: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            last = {process.member: process.lines[-3:] for process in self.processes}
            assert time.monotonic() < deadline, f"{problem}: {last}"
            time.sleep(0.02)

    def view(self, member: int) -> tuple[int, ...]:
        views = self.current(member).lines_of("view")
        return tuple(views[-1][2]) if views else ()

    def wait_for_view(self, *members: int) -> None:
        """Wait until exactly these members are in one view, and each has delivered new messages from each of them."""
        self.wait(lambda: all(self.view(m) == members for m in members), f"members {members} are not in one view")
        before = {m: self.current(m).count("got") for m in members}

        def delivers_from_all(member: int) -> bool:
            new_lines = self.current(member).lines_of("got")[before[member] :]
            return {line[1] for line in new_lines} >= set(members)

        self.wait(lambda: all(map(delivers_from_all, members)), f"members {members} do not deliver")

    def check_states_agree(self) -> None:
        """Assert that surviving members have the same state at the same position, whether computed or transferred.

        An incarnation that crashed or was excluded does not count.
        """
        states: dict[int, set[str]] = {}
        for process in self.processes:
            if process.killed_ns is None and process.lines_of("up"):
                ups = [at for at, line in enumerate(process.lines) if line[0] == "up"]
                for line in process.lines[ups[-1] :]:
                    if line[0] == "got":
                        states.setdefault(line[4], set()).add(line[5])
        differing = [position for position, found in sorted(states.items()) if len(found) > 1]
        assert states, "no member has consumed any message"
        assert not differing, f"states differ from position {differing[:1]} on"

    def verdicts(self) -> dict[str, Status]:
        """Let all running members leave, then check the traces of all incarnations. Asserts that none is violated."""
        for process in self.processes:
            if process.popen.poll() is None:
                process.finish(PATIENCE_S)
        memory = MemoryTrace("run", "table")
        for path in sorted(self.folder.glob("*.jsonl")):
            member, incarnation = map(int, path.stem.split("."))
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            memory.packed_rows[member, incarnation] = [(*row[:-1], read_extras(row[-1])) for row in rows]
        for process in self.processes:
            # A member that could not leave in time counts as crashed.
            ended_ns = process.killed_ns if process.lines_of("left") != [["left", False]] else process.times[-1]
            if ended_ns is None:
                continue
            # It may have rejoined as a later incarnation.
            incarnation = process.lines_of("up")[-1][1] if process.count("up") else process.incarnation
            slot = max((line[4] for line in process.lines_of("got")), default=-1) + 1
            memory.recorder(OBSERVER).event(
                EventKind.CRASH,
                slot=slot,
                real_ns=ended_ns,
                local_ns=ended_ns,
                subject=process.member,
                subject_incarnation=incarnation,
            )
        meta = RunMeta(
            run="run",
            group="table",
            order=self.order,
            members=tuple(self.peers),
            delta_ns=1,
            gamma_ns=1,
            theta_ns=1,
            bound_ns=None,
            reliable=True,
            source="process",
        )
        verdicts = check_all(memory.trace(meta))
        explanations = {name: (verdicts[name].witness, verdicts[name].reason) for name in CHECKED}
        assert Status.VIOLATED not in {verdicts[name].status for name in CHECKED}, explanations
        return {name: verdicts[name].status for name in CHECKED}


@contextmanager
def running_group(folder: Path, members: tuple[int, ...], order: str) -> Iterator[PriorityGroup]:
    group = PriorityGroup(folder, members, order)
    try:
        for member in members:
            group.start(member)
        group.wait_for_view(*members)
        yield group
    finally:
        for process in group.processes:
            if process.popen.poll() is None:
                process.signal(signal.SIGCONT)
            process.end()


@pytest.mark.parametrize("order", ["priority", "priority_coordinator"])
def test_members_killed_at_random_moments_return_with_the_same_number(tmp_path: Path, order: str) -> None:
    chance = Random(5)
    with running_group(tmp_path, (1, 2, 3), order) as group:
        for member in (1, 3):
            time.sleep(chance.random() * 0.3)
            group.current(member).end()
            # Once the others install a view without it first; once it returns before they may have detected the crash.
            if member == 1:
                group.wait_for_view(2, 3)
            group.start(member)
            group.wait_for_view(1, 2, 3)
        verdicts = group.verdicts()
        group.check_states_agree()
        gaps_ns = [line[3] for process in group.processes for line in process.lines_of("view")]
    assert verdicts["view_atomicity"] is Status.VALID
    assert verdicts["total_order"] is Status.VALID
    assert max(gaps_ns) > 0, "a view reports how long its members were blocked"


def test_a_member_paused_for_longer_than_the_timeout_rejoins(tmp_path: Path) -> None:
    with running_group(tmp_path, (1, 2, 3), "priority") as group:
        group.current(1).signal(signal.SIGSTOP)
        group.wait_for_view(2, 3)
        group.current(1).signal(signal.SIGCONT)
        group.wait_for_view(1, 2, 3)
        assert any(line[1] == "excluded" for line in group.current(1).lines_of("said")), "an excluded member reports it"
        assert group.current(1).count("up") >= 2, "it rejoins by itself, as another incarnation"
        assert len(group.processes) == 3
        verdicts = group.verdicts()
        group.check_states_agree()
    assert verdicts["view_atomicity"] is Status.VALID
    assert verdicts["total_order"] is Status.VALID


def test_a_minority_stops_delivering_reports_it_and_continues_with_the_others(tmp_path: Path) -> None:
    with running_group(tmp_path, (1, 2, 3), "priority") as group:
        minority = group.current(3)
        for member in (1, 2):
            group.current(member).signal(signal.SIGSTOP)
        stopped_ns = time.time_ns()

        def times_since(kind: str) -> list[int]:
            """When the minority has reported this kind since the others were stopped."""
            kinds = [line[1] if line[0] == "said" else line[0] for line in list(minority.lines)]
            return [at for found, at in zip(kinds, minority.times, strict=False) if found == kind and at > stopped_ns]

        group.wait(lambda: bool(times_since("blocked")), "the minority reports nothing")
        reported_ns = times_since("blocked")[-1]
        time.sleep(0.5)
        assert not [at for at in times_since("got") if at > reported_ns], "the minority delivers"
        for member in (1, 2):
            group.current(member).signal(signal.SIGCONT)
        group.wait_for_view(1, 2, 3)
        verdicts = group.verdicts()
    assert verdicts["view_atomicity"] is Status.VALID
    assert verdicts["total_order"] is Status.VALID
