"""Membership and the priority order among real processes: killed at any moment, paused for longer than anybody waits,
started again with the same number, cut off from the majority. The checkers judge the traces that the processes write.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from tests.process.member_process import Process

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.cluster.supervisor import free_addresses
from unisono.runtime.clock import new_incarnation
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import OBSERVER, EventKind, RunMeta

PATIENCE_S = 90.0
SCRIPT = Path(__file__).with_name("priority_member.py")
JUDGED = ("total_order", "integrity", "fifo", "priority_accounting", "view_atomicity", "gap_freedom")


class Table:
    """Members of one group, and their traces."""

    def __init__(self, folder: Path, members: tuple[int, ...], order: str) -> None:
        self.folder, self.order = folder, order
        self.peers = free_addresses(members)
        self.processes: list[Process] = []

    def start(self, member: int) -> Process:
        earlier = [process.incarnation for process in self.processes if process.member == member]
        life = max([new_incarnation(), *(life + 1 for life in earlier)])
        setup = {
            "member": member,
            "life": life,
            "peers": self.peers,
            "order": self.order,
            "trace": str(self.folder),
            "every_s": 0.02,
            "pause_s": 0.002 * member,
        }
        process = Process(SCRIPT, member, life, setup)
        self.processes.append(process)
        return process

    def now(self, member: int) -> Process:
        return next(process for process in reversed(self.processes) if process.member == member)

    def wait(self, what: Callable[[], bool], why: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            last = {process.member: process.lines[-3:] for process in self.processes}
            assert time.monotonic() < deadline, f"{why}: {last}"
            time.sleep(0.02)

    def view(self, member: int) -> tuple[int, ...]:
        views = self.now(member).lines_of("view")
        return tuple(views[-1][2]) if views else ()

    def together(self, *members: int) -> None:
        """Until these are in a view of their own, and each has delivered more from each of them."""
        self.wait(lambda: all(self.view(m) == members for m in members), f"{members} are not together")
        before = {m: self.now(m).count("got") for m in members}

        def talk(member: int) -> bool:
            fresh = self.now(member).lines_of("got")[before[member] :]
            return {line[1] for line in fresh} >= set(members)

        self.wait(lambda: all(map(talk, members)), f"{members} do not deliver")

    def states_agree(self) -> None:
        """Whoever goes on has the same state at the same place in the order, whether it was there or was given it.

        What a life consumed that has ended by a crash or by exclusion binds nobody.
        """
        states: dict[int, set[str]] = {}
        for process in self.processes:
            if process.killed_ns is None and process.lines_of("up"):
                ups = [at for at, line in enumerate(process.lines) if line[0] == "up"]
                for line in process.lines[ups[-1] :]:
                    if line[0] == "got":
                        states.setdefault(line[4], set()).add(line[5])
        differing = [place for place, found in sorted(states.items()) if len(found) > 1]
        assert states, "nobody has consumed anything"
        assert not differing, f"states differ from place {differing[:1]} on"

    def judged(self) -> dict[str, Status]:
        """Everybody who is up leaves; then the checkers read what all lives have recorded."""
        for process in self.processes:
            if process.popen.poll() is None:
                process.finish(PATIENCE_S)
        memory = MemoryTrace("run", "table")
        for path in sorted(self.folder.glob("*.jsonl")):
            member, life = map(int, path.stem.split("."))
            runs = [json.loads(line) for line in path.read_text().splitlines()]
            memory.packed_rows[member, life] = [(*run[:-1], run[-1] and tuple(run[-1])) for run in runs]
        for process in self.processes:
            # Whoever was not let go in time is gone all the same, and nobody knows of its end but those who see it.
            ended_ns = process.killed_ns if process.lines_of("left") != [["left", False]] else process.times[-1]
            if ended_ns is None:
                continue
            life = (
                process.lines_of("up")[-1][1] if process.count("up") else process.incarnation
            )  # it may have begun another
            slot = max((line[4] for line in process.lines_of("got")), default=-1) + 1
            memory.recorder(OBSERVER).event(
                EventKind.CRASH,
                slot=slot,
                real_ns=ended_ns,
                local_ns=ended_ns,
                subject=process.member,
                subject_incarnation=life,
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
        told = {name: (verdicts[name].witness, verdicts[name].reason) for name in JUDGED}
        assert Status.VIOLATED not in {verdicts[name].status for name in JUDGED}, told
        return {name: verdicts[name].status for name in JUDGED}


@contextmanager
def table(folder: Path, members: tuple[int, ...], order: str) -> Iterator[Table]:
    made = Table(folder, members, order)
    try:
        for member in members:
            made.start(member)
        made.together(*members)
        yield made
    finally:
        for process in made.processes:
            if process.popen.poll() is None:
                process.signal(signal.SIGCONT)
            process.end()


@pytest.mark.parametrize("order", ["priority", "priority_coordinator"])
def test_killed_at_random_moments_and_back_with_the_same_number(tmp_path: Path, order: str) -> None:
    chance = Random(5)
    with table(tmp_path, (1, 2, 3), order) as made:
        for member in (1, 3):
            time.sleep(chance.random() * 0.3)
            made.now(member).end()
            # Once with the others in a view of their own meanwhile, once back before anybody may have noticed.
            if member == 1:
                made.together(2, 3)
            made.start(member)
            made.together(1, 2, 3)
        verdicts = made.judged()
        made.states_agree()
        gaps_ns = [line[3] for process in made.processes for line in process.lines_of("view")]
    assert verdicts["view_atomicity"] is Status.VALID
    assert verdicts["total_order"] is Status.VALID
    assert max(gaps_ns) > 0, "the gap that a view change makes is told with the view"


def test_paused_for_longer_than_the_detector_waits(tmp_path: Path) -> None:
    with table(tmp_path, (1, 2, 3), "priority") as made:
        made.now(1).signal(signal.SIGSTOP)
        made.together(2, 3)
        made.now(1).signal(signal.SIGCONT)
        made.together(1, 2, 3)
        assert any(line[1] == "excluded" for line in made.now(1).lines_of("said")), "who was left out is told so"
        assert made.now(1).count("up") >= 2, "and joins again by itself, in another life"
        assert len(made.processes) == 3
        verdicts = made.judged()
        made.states_agree()
    assert verdicts["view_atomicity"] is Status.VALID
    assert verdicts["total_order"] is Status.VALID


def test_the_minority_stops_delivering_says_so_and_goes_on_with_the_others(tmp_path: Path) -> None:
    with table(tmp_path, (1, 2, 3), "priority") as made:
        alone = made.now(3)
        for member in (1, 2):
            made.now(member).signal(signal.SIGSTOP)
        stopped_ns = time.time_ns()

        def since(kind: str) -> list[int]:
            """When it has said something of this kind since the others were stopped."""
            said = [line[1] if line[0] == "said" else line[0] for line in list(alone.lines)]
            return [at for what, at in zip(said, alone.times, strict=False) if what == kind and at > stopped_ns]

        made.wait(lambda: bool(since("blocked")), "the minority says nothing")
        told_ns = since("blocked")[-1]
        time.sleep(0.5)
        assert not [at for at in since("got") if at > told_ns], "it delivers although it is alone"
        for member in (1, 2):
            made.now(member).signal(signal.SIGCONT)
        made.together(1, 2, 3)
        verdicts = made.judged()
    assert verdicts["view_atomicity"] is Status.VALID
    assert verdicts["total_order"] is Status.VALID
