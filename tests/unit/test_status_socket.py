"""The status socket: names, stale sockets, folders of other users, and a member without a socket."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest
from tests.worlds.joining import join_group

import unisono
from unisono.cluster.supervisor import free_addresses
from unisono.runtime.status_socket import SUFFIX, read_statuses, socket_name, status_folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "unisono"


async def alone(**options: object) -> unisono.Group:
    """A group of one member."""
    return await join_group("one/group", member=1, peers=free_addresses((1,)), **options)


def test_the_name_of_a_socket_has_no_slash_and_is_short() -> None:
    assert socket_name("table-7", 2) == "table-7-2.sock"
    assert "/" not in socket_name("a/b/../c", 1)
    long = [socket_name("x" * 200 + end, 1) for end in "ab"]
    assert all(len(name) < 60 for name in long)
    assert long[0] != long[1]


def test_without_a_runtime_folder_the_temporary_folder_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nonexistent/folder")
    assert status_folder().name.startswith("unisono-")


def test_a_member_serves_its_status_until_it_leaves(folder: Path) -> None:
    async def scene() -> None:
        group = await alone()
        found = await asyncio.to_thread(read_statuses, 10.0)
        assert [(status["group"], status["member"], status["role"]) for status in found.statuses] == [
            ("one/group", 1, "member")
        ]
        assert found.silent == ()
        await group.leave()
        assert list(folder.iterdir()) == []

    asyncio.run(scene())


def test_a_stale_socket_is_skipped_by_readers_and_replaced_by_a_member(folder: Path) -> None:
    async def scene() -> None:
        folder.mkdir(mode=0o700)
        path = folder / socket_name("one/group", 1)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        assert read_statuses(10.0).statuses == ()
        group = await alone()
        found = await asyncio.to_thread(read_statuses, 10.0)
        assert len(found.statuses) == 1
        await group.leave()
        assert not path.exists()

    asyncio.run(scene())


def test_a_second_process_of_the_same_name_does_not_take_the_socket(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        first = await alone()
        with caplog.at_level(logging.INFO, "unisono"):
            second = await alone()
        await second.leave()
        found = await asyncio.to_thread(read_statuses, 10.0)
        assert len(found.statuses) == 1, "the first member still serves its own"
        await first.leave()

    asyncio.run(scene())
    lines = [record for record in caplog.records if "another process serves" in record.getMessage()]
    assert [record.levelno for record in lines] == [logging.INFO]


def test_a_folder_that_others_can_open_is_refused_and_the_group_runs(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        folder.mkdir()
        folder.chmod(0o755)
        group = await alone()
        await group.send(b"x")
        await group.leave()

    asyncio.run(scene())
    assert "is not a folder that only this user can open" in caplog.text


def test_the_socket_can_be_switched_off(folder: Path) -> None:
    async def scene() -> None:
        group = await alone(status_socket=False)
        assert not folder.exists()
        await group.leave()

    asyncio.run(scene())


def test_a_process_that_does_not_answer_is_named(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as paused:
        paused.bind(str(folder / f"slow-1{SUFFIX}"))
        paused.listen()
        assert read_statuses(0.05).silent == ("slow-1",)
