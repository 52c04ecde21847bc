"""Consensus among real processes that are killed, paused for a long time, and restarted, also with damaged storage.

The checkers judge the sends and deliveries that the processes report.
"""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.process.member_process import Process

from unisono.check.suite import check_all
from unisono.check.verdict import Status
from unisono.cluster.supervisor import free_addresses
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import OBSERVER, EventKind, RunMeta

PATIENCE_S = 60.0
SCRIPT = Path(__file__).with_name("consensus_member.py")


class ConsensusGroup:
    """Three members, each with its own storage file."""

    def __init__(self, folder: Path, *, fsync: str = "never", every_s: float = 0.02) -> None:
        self.folder, self.fsync, self.every_s = folder, fsync, every_s
        self.peers = free_addresses((1, 2, 3))
        self.runs: dict[int, list[Process]] = {member: [] for member in self.peers}

    def storage(self, member: int) -> Path:
        return self.folder / f"member-{member}"

    def start(self, member: int) -> Process:
        incarnation = len(self.runs[member]) + 1
        setup = {
            "member": member,
            "incarnation": incarnation,
            "peers": self.peers,
            "storage": str(self.storage(member)),
            "fsync": self.fsync,
            "every_s": self.every_s,
        }
        process = Process(SCRIPT, member, incarnation, setup)
        self.runs[member].append(process)
        return process

    def current(self, member: int) -> Process:
        return self.runs[member][-1]

    def wait(self, condition: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            last = [process.lines[-3:] for runs in self.runs.values() for process in runs]
            assert time.monotonic() < deadline, f"{problem}: {last}"
            time.sleep(0.02)

    def progress(self, members: tuple[int, ...], more: int = 20) -> None:
        """Wait until each of these members has delivered this many more messages."""
        before = {member: self.current(member).count("delivered") for member in members}
        self.wait(
            lambda: all(self.current(m).count("delivered") >= before[m] + more for m in members),
            f"members {members} make no progress",
        )

    def verdicts(self) -> dict[str, Status]:
        """The checkers' verdicts on all messages sent and delivered by all incarnations."""
        trace_in_memory = MemoryTrace("process", "table")
        for member, runs in self.runs.items():
            for process in runs:
                recorder = trace_in_memory.recorder(member, incarnation=process.incarnation)
                for at, line in zip(process.times, process.lines, strict=True):
                    if line[0] == "sent":
                        recorder.sent(
                            first_sequence=line[1], count=1, sizes=1, slot=0, first_place=0, real_ns=at, local_ns=at
                        )
                    elif line[0] == "delivered":
                        _, sender, incarnation, sequence, slot, position, index = line
                        recorder.delivered(
                            sender=sender,
                            sender_incarnation=incarnation,
                            first_sequence=sequence,
                            count=1,
                            sizes=1,
                            slot=slot,
                            first_place=position,
                            first_index=index,
                            real_ns=at,
                            local_ns=at,
                        )
                if process.killed_ns is not None:
                    last = max((line[4] for line in process.lines if line[0] == "delivered"), default=0)
                    trace_in_memory.recorder(OBSERVER).event(
                        EventKind.CRASH,
                        slot=last,
                        real_ns=process.killed_ns,
                        local_ns=process.killed_ns,
                        subject=member,
                        subject_incarnation=process.incarnation,
                    )
        meta = RunMeta(
            run="process",
            group="table",
            order="consensus",
            members=tuple(self.peers),
            delta_ns=1,
            gamma_ns=1,
            theta_ns=1,
            bound_ns=None,
            reliable=True,
            source="process",
        )
        # A killed process may have sent a message without reporting it, so its log may be incomplete at the end.
        killed = {(p.member, p.incarnation) for runs in self.runs.values() for p in runs if p.killed_ns is not None}
        trace = trace_in_memory.trace(meta)
        logs = tuple(replace(log, closed=(log.member, log.incarnation) not in killed) for log in trace.logs)
        return {name: verdict.status for name, verdict in check_all(replace(trace, logs=logs)).items()}

    def one_log(self) -> list[tuple[int, int, int]]:
        """The longest log. Asserts that every incarnation of every member delivered a prefix of it."""
        logs = [
            [(line[1], line[2], line[3]) for line in process.lines if line[0] == "delivered"]
            for runs in self.runs.values()
            for process in runs
        ]
        longest = max(logs, key=len)
        for log in logs:
            assert log == longest[: len(log)]
        return longest


@contextmanager
def running_group(folder: Path, **options: Any) -> Iterator[ConsensusGroup]:
    group = ConsensusGroup(folder, **options)
    try:
        for member in group.peers:
            group.start(member)
        group.wait(lambda: all(group.current(m).count("up") for m in group.peers), "the group did not form")
        yield group
    finally:
        for runs in group.runs.values():
            for process in runs:
                if process.popen.poll() is None:
                    process.signal(signal.SIGCONT)
                process.end()


def test_members_killed_at_random_moments_return_with_the_same_number(tmp_path: Path) -> None:
    chance = Random(5)
    with running_group(tmp_path) as group:
        group.progress((1, 2, 3))
        for member in (1, 3, 2, chance.choice((1, 2, 3))):
            time.sleep(chance.random() * 0.3)
            group.current(member).end()
            others = tuple(m for m in group.peers if m != member)
            group.progress(others)
            group.start(member)
            group.wait(lambda m=member: group.current(m).count("up") == 1, f"member {member} did not return")  # type: ignore[misc]
            group.progress((1, 2, 3))
    log = group.one_log()
    assert {sender for sender, _, _ in log} == {1, 2, 3}
    assert len(log) == len(set(log)), "delivered twice"
    for runs in group.runs.values():
        for process in runs:
            own = [entry[2] for entry in log if entry[:2] == (process.member, process.incarnation)]
            assert own == list(range(len(own))), "a sender's messages are not in order without gaps"
    verdicts = group.verdicts()
    assert {name: verdicts[name] for name in ("total_order", "fifo")} == {
        "total_order": Status.VALID,
        "fifo": Status.VALID,
    }
    assert Status.VIOLATED not in verdicts.values()


def test_members_paused_for_longer_than_the_timeout_return(tmp_path: Path) -> None:
    with running_group(tmp_path) as group:
        group.progress((1, 2, 3))
        for member in (1, 2):
            others = tuple(m for m in group.peers if m != member)
            group.current(member).signal(signal.SIGSTOP)
            group.progress(others, 60)
            group.current(member).signal(signal.SIGCONT)
            group.progress((1, 2, 3))
        assert any(line[:2] == ["violation", "leader_lost"] for m in group.peers for line in group.current(m).lines)
    group.one_log()
    assert Status.VIOLATED not in group.verdicts().values()


def test_without_a_majority_nothing_is_delivered_and_the_member_reports_it(tmp_path: Path) -> None:
    with running_group(tmp_path) as group:
        group.progress((1, 2, 3))
        group.current(2).end()
        group.current(3).end()
        group.wait(lambda: ["violation", "blocked"] in group.current(1).lines, "the minority reported nothing")
        delivered = group.current(1).count("delivered")
        group.start(2)
        group.wait(lambda: group.current(1).count("delivered") > delivered, "no progress with a majority back")
        group.progress((1, 2))
    group.one_log()


@pytest.mark.parametrize("damage", ["corrupted", "truncated", "another member's", "a folder", "no folder"])
def test_a_member_with_damaged_storage_does_not_start(tmp_path: Path, damage: str) -> None:
    with running_group(tmp_path) as group:
        group.progress((1, 2, 3))
        group.current(3).end()
        path = group.storage(3)
        if damage == "corrupted":
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        elif damage == "truncated":
            path.write_bytes(path.read_bytes()[:-3])
        elif damage == "another member's":
            path.write_bytes(group.storage(1).read_bytes())
        elif damage == "a folder":
            path.unlink()
            path.mkdir()
        else:
            group.storage = lambda member: tmp_path / "missing" / str(member)  # type: ignore[method-assign]
        restarted = group.start(3)
        group.wait(lambda: restarted.count("error") == 1, "the damaged storage was not refused")
        text = restarted.lines[0][1]
        assert text.startswith("StorageError: "), text
        assert str(group.storage(3)) in text
        group.progress((1, 2))
    group.one_log()


def test_a_torn_last_record_is_dropped_and_the_member_returns(tmp_path: Path) -> None:
    with running_group(tmp_path) as group:
        group.progress((1, 2, 3))
        group.current(3).end()
        with group.storage(3).open("ab") as file:
            file.write(b"\xa7rec\0\0\1\0 a record that was being written")
        group.start(3)
        group.wait(lambda: group.current(3).count("up") == 1, "it did not return")
        group.progress((1, 2, 3))
    group.one_log()


def test_a_member_that_lost_its_storage_is_refused_and_this_is_reported(tmp_path: Path) -> None:
    with running_group(tmp_path) as group:
        group.progress((1, 2, 3))
        group.current(3).end()
        group.storage(3).unlink()
        group.start(3)
        lost = ["violation", "memory_lost"]
        group.wait(lambda: any(lost in group.current(m).lines for m in (1, 2)), "no member reported the lost storage")
        group.wait(lambda: group.current(3).popen.poll() is not None, "the member itself keeps running")
        assert (
            lost in group.current(3).lines or "the storage of member 3 does not match" in group.current(3).lines[-1][1]
        )
        group.progress((1, 2))
        assert group.current(3).count("delivered") == 0
    group.one_log()


def test_a_killed_member_returns_with_fsync_always(tmp_path: Path) -> None:
    with running_group(tmp_path, fsync="always", every_s=0.05) as group:
        group.progress((1, 2, 3), 10)
        group.current(1).end()
        group.progress((2, 3), 10)
        group.start(1)
        group.wait(lambda: group.current(1).count("up") == 1, "it did not return")
        group.progress((1, 2, 3), 10)
    group.one_log()


def test_a_full_disk_ends_the_member_with_a_storage_error(tmp_path: Path) -> None:
    """A file-size limit simulates the full disk: the write fails in the same call."""

    with running_group(tmp_path) as group:
        group.progress((1, 2, 3), 5)
        pid = group.current(3).popen.pid
        size = group.storage(3).stat().st_size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 200, size + 200))
        group.wait(lambda: group.current(3).count("error") == 1, "the full disk was not noticed")
        assert group.current(3).lines[-1][1].startswith("StorageError: ")
        group.progress((1, 2))
    group.one_log()
