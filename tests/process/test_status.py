"""`unisono status` on real members: what it shows, killed processes, restarts, and who may read the sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from unisono.cluster.supervisor import free_addresses

COMMAND = (sys.executable, "-c", "from unisono.cli.main import run; run()")
PATIENCE_S = 60
GROUP = "table-7"


class Machine:
    """Member processes with a folder of sockets of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": os.fspath(folder)}
        self.members: dict[int, Process] = {}
        self._peers = ",".join(f"{m}={host}:{port}" for m, (host, port) in free_addresses((1, 2, 3)).items())

    async def start(self, member: int, *options: str) -> None:
        storage = ("--storage", str(self.folder / f"storage-{member}"), "--fsync", "never")
        arguments = ("member", "--group", GROUP, "--id", str(member), "--peers", self._peers, *storage, *options)
        self.members[member] = await asyncio.create_subprocess_exec(
            *COMMAND, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=self.environment
        )

    async def status(self, *arguments: str) -> tuple[int, str, str]:
        """The exit status, standard output and standard error of `unisono status`."""
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "status", *arguments, stdout=PIPE, stderr=PIPE, env=self.environment
        )
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def until(self, holds: Callable[[dict[int, dict[str, Any]]], bool]) -> dict[int, dict[str, Any]]:
        """Ask for the status until a condition on the members' answers holds; return these answers."""
        while True:
            code, out, _ = await self.status(GROUP, "--json")
            found = {each["member"]: each for each in json.loads(out)["running"]} if code == 0 else {}
            if holds(found):
                return found

    async def wait_for_line(self, member: int, text: bytes) -> None:
        """Wait for a line on the standard error of a member."""
        stderr = self.members[member].stderr
        assert stderr is not None
        while text not in (line := await stderr.readline()):
            assert line, f"member {member} ended before it wrote {text!r}"

    async def kill(self, member: int) -> None:
        process = self.members.pop(member)
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def machine(folder: Path) -> AsyncIterator[Machine]:
    found = Machine(folder)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield found
    finally:
        for member in list(found.members):
            await found.kill(member)


def test_status_shows_the_running_members_and_replaces_the_socket_of_a_killed_one(tmp_path: Path) -> None:
    async def scene() -> None:
        async with machine(tmp_path) as here:
            code, out, err = await here.status(GROUP)
            assert (code, out) == (2, "")
            assert f"no member of group '{GROUP}' of this user runs on this machine" in err
            for member in (1, 2, 3):
                await here.start(member)
            all_up = {1, 2, 3}
            found = await here.until(
                lambda up: (
                    up.keys() == all_up
                    and all(status["majority"] for status in up.values())
                    and [status["leader"] for status in up.values()] in ([1] * 3, [2] * 3, [3] * 3)
                )
            )
            leader = found[1]["leader"]  # usually member 1; on a busy machine another member may be the first
            assert {member: found[member]["role"] for member in all_up} == {
                member: "leader" if member == leader else "follower" for member in all_up
            }
            assert found[2]["members"] == [1, 2, 3]
            assert [peer["member"] for peer in found[2]["peers"]] == [1, 3]
            assert all(peer["last_heard_ms"] < 5000 for peer in found[2]["peers"])

            sockets = tmp_path / "unisono"
            assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
            assert {stat.S_IMODE(path.stat().st_mode) for path in sockets.iterdir()} == {0o600}
            assert sorted(path.name for path in sockets.iterdir()) == [f"{GROUP}-{member}.sock" for member in (1, 2, 3)]

            await here.kill(3)
            await here.kill(2)
            assert (sockets / f"{GROUP}-3.sock").exists(), "a killed process cannot remove its socket"
            found = await here.until(lambda up: up.keys() == {1} and up[1]["majority"] is False)
            assert found[1]["role"] == "blocked"
            assert {peer["member"]: peer["state"] for peer in found[1]["peers"]} == {2: "suspected", 3: "suspected"}
            await here.wait_for_line(1, b"member 1: blocked: ")
            code, out, _ = await here.status(GROUP)
            assert code == 0
            assert out.startswith(f"group {GROUP}, member 1: blocked, has no majority\n")

            await here.start(3, "--no-status-socket")
            await here.until(lambda up: up.keys() == {1} and up[1]["majority"] is True)
            await here.wait_for_line(1, b"this member has a majority again")
            await here.kill(3)
            await here.start(3)
            await here.until(lambda up: up.keys() == {1, 3})

    asyncio.run(scene())


def test_a_member_that_leaves_removes_its_socket_and_a_paused_one_is_named(tmp_path: Path) -> None:
    async def scene() -> None:
        async with machine(tmp_path) as here:
            for member in (1, 2, 3):
                await here.start(member)
            await here.until(lambda up: up.keys() == {1, 2, 3} and all(s["majority"] for s in up.values()))
            leaving = here.members.pop(2)
            leaving.send_signal(signal.SIGTERM)
            _, err = await leaving.communicate()
            assert b"member 2: this member has left the group" in err
            assert not (tmp_path / "unisono" / f"{GROUP}-2.sock").exists()
            here.members[3].send_signal(signal.SIGSTOP)
            code, out, _ = await here.status()
            assert code == 0
            assert f"{GROUP}-3 gives no status: its process is paused or overloaded" in out

    asyncio.run(scene())
