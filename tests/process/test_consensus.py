"""Consensus among real processes: killed at any moment, paused for longer than anybody waits, started again with the
same number and the same storage, or with storage that is bad. The checkers judge what the processes say they did."""

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


class Table:
    """Three members, each with a file of its own."""

    def __init__(self, folder: Path, *, fsync: str = "never", every_s: float = 0.02) -> None:
        self.folder, self.fsync, self.every_s = folder, fsync, every_s
        self.peers = free_addresses((1, 2, 3))
        self.lives: dict[int, list[Process]] = {member: [] for member in self.peers}

    def storage(self, member: int) -> Path:
        return self.folder / f"member-{member}"

    def start(self, member: int) -> Process:
        life = len(self.lives[member]) + 1
        setup = {
            "member": member,
            "life": life,
            "peers": self.peers,
            "storage": str(self.storage(member)),
            "fsync": self.fsync,
            "every_s": self.every_s,
        }
        process = Process(SCRIPT, member, life, setup)
        self.lives[member].append(process)
        return process

    def now(self, member: int) -> Process:
        return self.lives[member][-1]

    def wait(self, what: Callable[[], bool], why: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            last = [process.lines[-3:] for lives in self.lives.values() for process in lives]
            assert time.monotonic() < deadline, f"{why}: {last}"
            time.sleep(0.02)

    def progress(self, members: tuple[int, ...], more: int = 20) -> None:
        """Until each of these has delivered so many more."""
        before = {member: self.now(member).count("got") for member in members}
        self.wait(
            lambda: all(self.now(m).count("got") >= before[m] + more for m in members), f"no progress of {members}"
        )

    def judged(self) -> dict[str, Status]:
        """What the checkers say of all that was sent and delivered in all lives."""
        memory = MemoryTrace("process", "table")
        for member, lives in self.lives.items():
            for process in lives:
                recorder = memory.recorder(member, incarnation=process.incarnation)
                for at, line in zip(process.times, process.lines, strict=True):
                    if line[0] == "sent":
                        recorder.sent(
                            first_sequence=line[1], count=1, sizes=1, slot=0, first_place=0, real_ns=at, local_ns=at
                        )
                    elif line[0] == "got":
                        _, sender, life, sequence, slot, place, index = line
                        recorder.delivered(
                            sender=sender,
                            sender_incarnation=life,
                            first_sequence=sequence,
                            count=1,
                            sizes=1,
                            slot=slot,
                            first_place=place,
                            first_index=index,
                            real_ns=at,
                            local_ns=at,
                        )
                if process.killed_ns is not None:
                    last = max((line[4] for line in process.lines if line[0] == "got"), default=0)
                    memory.recorder(OBSERVER).event(
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
        # One that is killed may have sent a message and not have said so yet: its log ends before its life does.
        killed = {(p.member, p.incarnation) for lives in self.lives.values() for p in lives if p.killed_ns is not None}
        trace = memory.trace(meta)
        logs = tuple(replace(log, closed=(log.member, log.incarnation) not in killed) for log in trace.logs)
        return {name: verdict.status for name, verdict in check_all(replace(trace, logs=logs)).items()}

    def one_log(self) -> list[tuple[int, int, int]]:
        """The longest log; every life of every member has delivered a beginning of it."""
        logs = [
            [(line[1], line[2], line[3]) for line in process.lines if line[0] == "got"]
            for lives in self.lives.values()
            for process in lives
        ]
        longest = max(logs, key=len)
        for log in logs:
            assert log == longest[: len(log)]
        return longest


@contextmanager
def table(folder: Path, **options: Any) -> Iterator[Table]:
    made = Table(folder, **options)
    try:
        for member in made.peers:
            made.start(member)
        made.wait(lambda: all(made.now(m).count("up") for m in made.peers), "the group did not form")
        yield made
    finally:
        for lives in made.lives.values():
            for process in lives:
                if process.popen.poll() is None:
                    process.signal(signal.SIGCONT)
                process.end()


def test_killed_at_random_moments_and_back_with_the_same_number(tmp_path: Path) -> None:
    chance = Random(5)
    with table(tmp_path) as made:
        made.progress((1, 2, 3))
        for member in (1, 3, 2, chance.choice((1, 2, 3))):
            time.sleep(chance.random() * 0.3)
            made.now(member).end()
            others = tuple(m for m in made.peers if m != member)
            made.progress(others)
            made.start(member)
            made.wait(lambda m=member: made.now(m).count("up") == 1, f"member {member} did not come back")  # type: ignore[misc]
            made.progress((1, 2, 3))
    log = made.one_log()
    assert {sender for sender, _, _ in log} == {1, 2, 3}
    assert len(log) == len(set(log)), "delivered twice"
    for lives in made.lives.values():
        for process in lives:
            mine = [entry[2] for entry in log if entry[:2] == (process.member, process.incarnation)]
            assert mine == list(range(len(mine))), "a sender's messages are not in order without gaps"
    verdicts = made.judged()
    assert {name: verdicts[name] for name in ("total_order", "fifo")} == {
        "total_order": Status.VALID,
        "fifo": Status.VALID,
    }
    assert Status.VIOLATED not in verdicts.values()


def test_paused_for_longer_than_anybody_waits(tmp_path: Path) -> None:
    with table(tmp_path) as made:
        made.progress((1, 2, 3))
        for member in (1, 2):
            others = tuple(m for m in made.peers if m != member)
            made.now(member).signal(signal.SIGSTOP)
            made.progress(others, 60)
            made.now(member).signal(signal.SIGCONT)
            made.progress((1, 2, 3))
        assert any(line[:2] == ["said", "leader_lost"] for m in made.peers for line in made.now(m).lines)
    made.one_log()
    assert Status.VIOLATED not in made.judged().values()


def test_without_a_majority_nothing_is_delivered_and_it_is_said(tmp_path: Path) -> None:
    with table(tmp_path) as made:
        made.progress((1, 2, 3))
        made.now(2).end()
        made.now(3).end()
        made.wait(lambda: ["said", "blocked"] in made.now(1).lines, "the minority said nothing")
        delivered = made.now(1).count("got")
        made.start(2)
        made.wait(lambda: made.now(1).count("got") > delivered, "no progress with a majority back")
        made.progress((1, 2))
    made.one_log()


@pytest.mark.parametrize("harm", ["corrupted", "cut short", "another member's", "a folder", "no folder"])
def test_bad_storage_is_refused_and_does_not_vote(tmp_path: Path, harm: str) -> None:
    with table(tmp_path) as made:
        made.progress((1, 2, 3))
        made.now(3).end()
        path = made.storage(3)
        if harm == "corrupted":
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        elif harm == "cut short":
            path.write_bytes(path.read_bytes()[:-3])
        elif harm == "another member's":
            path.write_bytes(made.storage(1).read_bytes())
        elif harm == "a folder":
            path.unlink()
            path.mkdir()
        else:
            made.storage = lambda member: tmp_path / "gone" / str(member)  # type: ignore[method-assign]
        back = made.start(3)
        made.wait(lambda: back.count("error") == 1, "bad storage was not refused")
        text = back.lines[0][1]
        assert text.startswith("StorageError: "), text
        assert str(made.storage(3)) in text
        made.progress((1, 2))
    made.one_log()


def test_a_torn_end_is_cut_and_the_member_is_back(tmp_path: Path) -> None:
    with table(tmp_path) as made:
        made.progress((1, 2, 3))
        made.now(3).end()
        with made.storage(3).open("ab") as file:
            file.write(b"\xa7rec\0\0\1\0 a record that was being written")
        made.start(3)
        made.wait(lambda: made.now(3).count("up") == 1, "it did not come back")
        made.progress((1, 2, 3))
    made.one_log()


def test_who_has_lost_its_storage_does_not_count_and_everybody_is_told_so(tmp_path: Path) -> None:
    with table(tmp_path) as made:
        made.progress((1, 2, 3))
        made.now(3).end()
        made.storage(3).unlink()
        made.start(3)
        told = ["said", "memory_lost"]
        made.wait(lambda: any(told in made.now(m).lines for m in (1, 2)), "nobody said that a memory is lost")
        made.wait(lambda: made.now(3).popen.poll() is not None, "the member itself goes on as if nothing were")
        assert told in made.now(3).lines or "not the storage that member 3 had" in made.now(3).lines[-1][1]
        made.progress((1, 2))
        assert made.now(3).count("got") == 0
    made.one_log()


def test_fsync_always_over_a_kill(tmp_path: Path) -> None:
    with table(tmp_path, fsync="always", every_s=0.05) as made:
        made.progress((1, 2, 3), 10)
        made.now(1).end()
        made.progress((2, 3), 10)
        made.start(1)
        made.wait(lambda: made.now(1).count("up") == 1, "it did not come back")
        made.progress((1, 2, 3), 10)
    made.one_log()


def test_a_disk_that_is_full_ends_the_member_with_its_reason(tmp_path: Path) -> None:
    """A file-size limit stands for the full disk: the write fails in the same call."""

    with table(tmp_path) as made:
        made.progress((1, 2, 3), 5)
        pid = made.now(3).popen.pid
        size = made.storage(3).stat().st_size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 200, size + 200))
        made.wait(lambda: made.now(3).count("error") == 1, "the full disk was not noticed")
        assert made.now(3).lines[-1][1].startswith("StorageError: ")
        made.progress((1, 2))
    made.one_log()
