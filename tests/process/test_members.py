"""`unisono member` as processes: a chat in one order, signals, ports in use, killed peers."""

import asyncio
import json
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from typing import Any

from unisono.cli.member import RELIABLE_EXAMPLE
from unisono.cluster.supervisor import free_addresses

COMMAND = (sys.executable, "-c", "from unisono.cli.main import run; run()", "member")
PATIENCE_S = 60


def peers_text(peers: dict[int, tuple[str, int]]) -> str:
    return ",".join(f"{member}={host}:{port}" for member, (host, port) in peers.items())


class Member:
    """One `unisono member` process, in the order vbr unless its options say otherwise."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.lines: list[str] = []

    @classmethod
    async def start(cls, member: int, peers: dict[int, tuple[str, int]], *options: str) -> "Member":
        order = () if {"--order", "--gaps"} & {*options} else ("--order", "vbr")
        arguments = (*COMMAND, "--id", str(member), "--peers", peers_text(peers), *order, *options)
        return cls(await asyncio.create_subprocess_exec(*arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE))

    def write(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())

    async def until_running(self) -> None:
        """Wait for the notice that lists the members: the group runs."""
        assert self.process.stderr is not None
        while b"; every delivery within" not in (line := await self.process.stderr.readline()):
            assert line, "the member ended before its group ran"

    async def read(self, count: int) -> list[str]:
        """The next lines of its output."""
        assert self.process.stdout is not None
        for _ in range(count):
            line = await self.process.stdout.readline()
            assert line, f"the member ended after {self.lines}"
            self.lines.append(line.decode().rstrip("\n"))
        return self.lines[-count:]

    async def end(self) -> tuple[int, list[str], str]:
        """Close its input and wait; return the exit status, the output and the standard error."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        out, err = await self.process.communicate()
        self.lines += out.decode().splitlines()
        assert self.process.returncode is not None
        return self.process.returncode, self.lines, err.decode()


def scene(part: Callable[[list[Member]], Awaitable[None]]) -> None:
    async def play() -> None:
        started: list[Member] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                await part(started)
        finally:
            for member in started:
                if member.process.returncode is None:
                    member.process.kill()
                    await member.process.communicate()

    asyncio.run(play())


async def start_pair(started: list[Member], *options: str) -> tuple[Member, Member]:
    peers = free_addresses((1, 2))
    for member in peers:
        started.append(await Member.start(member, peers, *options))  # noqa: PERF401 - each is ended on an error
    one, two = started
    await asyncio.gather(one.until_running(), two.until_running())
    return one, two


def test_two_terminals_chat_in_one_order() -> None:
    async def part(started: list[Member]) -> None:
        one, two = await start_pair(started, "--rate", "1000")
        one.write(*(f"a{n}" for n in range(50)))
        two.write(*(f"b{n}" for n in range(50)), "", "ünïcode → ✓", "x" * 5000, "after")
        await asyncio.gather(one.read(103), two.read(103))
        assert one.lines == two.lines
        assert [line for line in one.lines if line.startswith("1: ")] == [f"1: a{n}" for n in range(50)]
        said = [*(f"b{n}" for n in range(50)), "", "ünïcode → ✓", "after"]
        assert [line for line in one.lines if line.startswith("2: ")] == [f"2: {text}" for text in said]
        status, _, err = await one.end()
        assert (status, "did not answer" in err) == (0, False)
        two.write("alone now")
        assert await two.read(1) == ["2: alone now"]
        status, _, err = await two.end()
        assert status == 0
        assert "members are now 2" in err
        assert "message of 5,000 bytes is larger than the declared maximum of 4,096" in err

    scene(part)


def test_end_of_input_sends_the_last_line_even_without_its_newline() -> None:
    async def part(started: list[Member]) -> None:
        one, two = await start_pair(started)
        assert one.process.stdin is not None
        one.process.stdin.write(b"first\nlast")
        status, lines, _ = await one.end()
        assert (status, lines) == (0, ["1: first", "1: last"])
        assert await two.read(2) == ["1: first", "1: last"]
        assert (await two.end())[0] == 0

    scene(part)


def test_json_lines() -> None:
    async def part(started: list[Member]) -> None:
        peers = free_addresses((1,))
        started.append(await Member.start(1, peers, "--json"))
        started[0].write("hello")
        status, lines, err = await started[0].end()
        rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        assert (status, err) == (0, "")
        assert (rows[0]["event"], rows[0]["members"]) == ("view", [1])
        said = next(row for row in rows if row["event"] == "delivery")
        assert (said["sender"], said["sequence"], said["text"]) == (1, 0, "hello")
        assert (rows[-1]["event"], rows[-1]["sent"], rows[-1]["delivered"]) == ("end", 1, 1)

    scene(part)


def test_each_line_in_both_grades() -> None:
    async def part(started: list[Member]) -> None:
        one, two = await start_pair(started, "--grades", "both")
        one.write("first")
        two.write("second")
        await asyncio.gather(one.read(4), two.read(4))
        for grade in ("early", "final"):
            lines = [[line for line in member.lines if line.startswith(f"{grade}  ")] for member in (one, two)]
            assert lines[0] == lines[1]
            assert sorted(lines[0]) == [f"{grade}  1: first", f"{grade}  2: second"]
        assert (await one.end())[0] == 0
        assert (await two.end())[0] == 0

    scene(part)


def test_a_signal_sends_what_was_accepted_and_leaves() -> None:
    async def part(started: list[Member]) -> None:
        peers = free_addresses((1, 2))
        for member in peers:
            started.append(await Member.start(member, peers, "--json"))  # noqa: PERF401 - each is ended on an error
        one, two = started
        one.write(*(f"{n}" for n in range(20)))
        await asyncio.gather(*(_delivered(member, 1) for member in (one, two)))
        one.process.send_signal(signal.SIGTERM)
        status, _, _ = await one.end()
        assert status == 130
        first = [json.loads(line) for line in one.lines]
        accepted = first[-1]["sent"]
        assert first[-1]["event"] == "end"
        while not any(row["event"] == "view" and row["left"] for row in map(json.loads, two.lines)):
            await two.read(1)
        heard = [row["text"] for row in map(json.loads, two.lines) if row["event"] == "delivery"]
        assert heard == [f"{n}" for n in range(accepted)]
        two.process.send_signal(signal.SIGINT)
        assert (await two.end())[0] == 130

    scene(part)


def test_a_second_signal_ends_a_member_that_waits_for_a_silent_peer() -> None:
    async def part(started: list[Member]) -> None:
        one, two = await start_pair(started)
        two.process.send_signal(signal.SIGSTOP)
        assert one.process.stderr is not None
        one.process.send_signal(signal.SIGTERM)
        while b"another signal ends" not in (line := await one.process.stderr.readline()):
            assert line, "the member ended with the first signal"
        one.process.send_signal(signal.SIGTERM)
        out, err = await one.process.communicate()
        assert one.process.returncode == 130
        assert out == b""
        assert b"did not answer" not in err, "it does not wait for the answer of the other member"

    scene(part)


def test_members_repeat_datagrams_as_the_help_shows() -> None:
    async def part(started: list[Member]) -> None:
        peers = free_addresses((1, 2, 3, 4, 5))
        for member in peers:
            started.append(await Member.start(member, peers, *RELIABLE_EXAMPLE.split()))  # noqa: PERF401
        await asyncio.gather(*(member.until_running() for member in started))
        started[0].write("hello")
        assert {tuple(await member.read(1)) for member in started} == {("1: hello",)}
        assert [status for status, _, _ in await asyncio.gather(*(member.end() for member in started))] == [0] * 5

    scene(part)


async def _delivered(member: Member, count: int) -> None:
    while sum(json.loads(line)["event"] == "delivery" for line in member.lines) < count:
        await member.read(1)


def test_a_signal_while_waiting_for_the_others() -> None:
    async def part(started: list[Member]) -> None:
        started.append(await Member.start(1, free_addresses((1, 2))))
        assert started[0].process.stderr is not None
        assert b"waiting for the other members" in await started[0].process.stderr.readline()
        started[0].process.send_signal(signal.SIGTERM)
        assert (await started[0].end())[0] == 130

    scene(part)


def test_a_port_in_use_is_status_3_with_advice() -> None:
    async def part(started: list[Member]) -> None:
        peers = free_addresses((1,))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
            holder.bind(peers[1])
            started.append(await Member.start(1, peers))
            status, lines, err = await started[0].end()
        assert (status, lines) == (3, [])
        assert f"UDP port {peers[1][1]} of 127.0.0.1 is in use" in err
        assert "another port" in err
        assert "Traceback" not in err

    scene(part)


def test_missing_peers_are_status_3_and_named() -> None:
    async def part(started: list[Member]) -> None:
        started.append(await Member.start(1, free_addresses((1, 2)), "--timeout", "300ms"))
        status, _, err = await started[0].end()
        assert status == 3
        assert "missing: member 2" in err

    scene(part)


def test_a_peer_that_is_killed_is_reported_and_leaving_does_not_hang() -> None:
    async def part(started: list[Member]) -> None:
        one, two = await start_pair(started)
        two.write("before")
        await one.read(1)
        two.process.kill()
        await two.end()
        assert one.process.stderr is not None
        while b"waiting for member 2" not in (line := await one.process.stderr.readline()):
            assert line
        status, lines, err = await one.end()
        assert (status, lines) == (0, ["2: before"])
        assert "the other members did not answer" in err

    scene(part)


def test_a_closed_pipe_ends_the_member_quietly() -> None:
    async def part(started: list[Member]) -> None:
        started.append(await Member.start(1, free_addresses((1,))))
        await started[0].until_running()
        transport: Any = started[0].process._transport  # type: ignore[attr-defined]
        transport.get_pipe_transport(1).close()
        started[0].write("into the void")
        status, _, err = await started[0].end()
        assert status == 130
        assert "Traceback" not in err
        assert "Exception ignored" not in err

    scene(part)
