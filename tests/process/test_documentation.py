"""The Python examples of the documentation run: README's first program as two processes, the others in memory."""

from __future__ import annotations

import asyncio
import re
import sys
import textwrap
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import unisono
from unisono import testing
from unisono.cluster.supervisor import free_addresses

PROJECT = Path(__file__).parents[2]
PATIENCE_S = 60
_EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PEERS = {1: "10.0.0.1:9001", 2: "10.0.0.2:9001"}


def example(page: str) -> str:
    """The first Python example of a page."""
    found = _EXAMPLE.search((PROJECT / page).read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def executed(source: str, page: str, **names: Any) -> dict[str, Any]:
    """Execute an example with these names, and return all names that it then has."""
    space = dict(names)
    exec(compile(source, page, "exec"), space)
    return space


def run_in_memory(main: Coroutine[Any, Any, object]) -> None:
    """Run an example in virtual time, on a network in memory."""

    async def with_network() -> None:
        async with asyncio.timeout(PATIENCE_S), testing.network(members=0):
            await main

    testing.run(with_network())


async def run_for_a_while(*members: Awaitable[None]) -> None:
    """Run members that never end by themselves."""
    tasks = [asyncio.ensure_future(member) for member in members]
    done, running = await asyncio.wait(tasks, timeout=5)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for task in done:
        task.result()


# -- README ----------------------------------------------------------------------------------------------------


async def lines_until(process: Process, wanted: set[str]) -> list[str]:
    """The lines that a process prints until all wanted ones are among them."""
    assert process.stdout is not None
    seen: list[str] = []
    while not wanted <= set(seen):
        line = await process.stdout.readline()
        assert line, f"the program ended; it printed {seen}"
        seen.append(line.decode().rstrip())
    return seen


def test_the_first_program_of_the_readme_runs_in_two_processes(tmp_path: Path) -> None:
    addresses = free_addresses((1, 2))
    program = example("README.md")
    for member, (host, port) in addresses.items():
        assert f"127.0.0.1:{9000 + member}" in program
        program = program.replace(f"127.0.0.1:{9000 + member}", f"{host}:{port}")
    path = tmp_path / "table.py"
    path.write_text(program, encoding="utf-8")
    wanted = {f"{member} b'e2e4'" for member in (1, 2)}

    async def both() -> list[list[str]]:
        started = [
            await asyncio.create_subprocess_exec(sys.executable, "-u", str(path), str(member), stdout=PIPE)
            for member in addresses
        ]
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.gather(*(lines_until(process, wanted) for process in started))
        finally:
            for process in started:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    printed = asyncio.run(both())
    for lines in printed:
        assert "order vbr, slots of 20ms, every delivery within 80ms" in lines[0]
        assert {*lines[1:]} == wanted
        assert len(lines) == 3, "each message comes once"
    assert printed[0][1:] == printed[1][1:]


# -- complete programs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("docs/vbr.md", ["member 1 delivers b'hello from 2' in slot ", "member 2 delivers b'hello from 1' in slot "]),
        ("docs/priority.md", ["1 b'stop the press' 9", "2 b'report' 0"]),
        ("docs/quasi_genuine.md", [f"member {member} delivers b'crosses the border'" for member in range(1, 7)]),
        ("docs/rmcast.md", []),
    ],
)
def test_a_program_of_the_documentation_runs(
    page: str,
    printed: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(asyncio, "run", run_in_memory)
    executed(example(page), page, __name__="__main__")
    said = capsys.readouterr().out
    for line in printed:
        assert line in said


# -- functions and statements ----------------------------------------------------------------------------------


def test_the_example_of_consensus_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = example("docs/consensus.md").replace("/var/lib/ledger", str(tmp_path))
    take_part = executed(source, "docs/consensus.md")["take_part"]
    run_in_memory(run_for_a_while(*(take_part(member, PEERS) for member in PEERS)))
    assert capsys.readouterr().out.count("payload=b'credit 7'") == 4
    assert len(list(tmp_path.iterdir())) == 2


def test_the_example_of_membership_runs(capsys: pytest.CaptureFixture[str]) -> None:
    take_part = executed(example("docs/membership.md"), "docs/membership.md")["take_part"]
    run_in_memory(run_for_a_while(*(take_part(member, PEERS) for member in PEERS)))
    assert "members (1, 2)" in capsys.readouterr().out


def test_the_example_of_replicas_runs(capsys: pytest.CaptureFixture[str]) -> None:
    keep_scores = executed(example("docs/replica.md"), "docs/replica.md")["keep_scores"]

    async def both() -> None:
        await asyncio.gather(*(keep_scores(PEERS, member) for member in PEERS))

    run_in_memory(both())
    assert capsys.readouterr().out.count("b'4' b'4'") == 2


def test_the_example_of_renegotiation_runs() -> None:
    evening = executed(example("docs/renegotiation.md"), "docs/renegotiation.md")["evening"]

    async def main() -> None:
        async with testing.network(members=2, gaps="allowed") as net:
            await evening(net[1])
            async with asyncio.timeout(PATIENCE_S):
                async for event in net[2]:
                    if isinstance(event, unisono.TimingChange) and event.timing.theta_ns == 10_000_000:
                        break

    testing.run(main())


def test_the_example_of_grades_runs() -> None:
    auction = executed(example("docs/grades.md"), "docs/grades.md")["auction"]

    async def main() -> None:
        async with testing.network(members=3, gaps="repaired") as net:
            closes_at_ns = net.clock.now_ns() + 1_000_000_000
            winners = asyncio.gather(*(auction(group, closes_at_ns) for group in net.groups.values()))
            await net[1].send(b"2")
            await net[2].send(b"3")
            await asyncio.sleep(2)
            await net[3].send(b"4")
            async with asyncio.timeout(PATIENCE_S):
                assert await winners == [b"3"] * 3

    testing.run(main())


@pytest.mark.parametrize("page", ["docs/monitoring.md", "docs/sla.md"])
def test_statements_of_the_documentation_run(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(PROJECT)
    source = f"async def main():\n{textwrap.indent(example(page), '    ')}"
    main = executed(source, page, asyncio=asyncio, unisono=unisono, PEERS=PEERS)["main"]

    async def other() -> None:
        async with unisono.join("table-7", member=2, peers=PEERS) as group:
            async for _ in group:
                pass

    run_in_memory(run_for_a_while(main(), other()))
    if page == "docs/monitoring.md":
        assert "network" in capsys.readouterr().out
