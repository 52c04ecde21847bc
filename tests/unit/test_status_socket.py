"""The status socket: names, stale sockets, folders of other users, and a member without a socket."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from contextlib import suppress
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


@pytest.mark.parametrize(
    "answer", [b"", b"[1]", b"{}", b'{"group": 1, "member": "x"}', b"\xff", b'"' + b"x" * (2 << 20) + b'"']
)
def test_an_answer_that_is_no_status_is_named(folder: Path, answer: bytes) -> None:
    def serve() -> None:
        connection, _ = foreign.accept()
        with (
            connection,
            suppress(BrokenPipeError, ConnectionResetError),
        ):  # the reader stops when the answer is too long
            connection.sendall(answer)

    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(folder / f"foreign-1{SUFFIX}"))
        foreign.listen()
        server = threading.Thread(target=serve)
        server.start()
        found = read_statuses(10.0)
        server.join()
    assert (found.statuses, found.silent) == ((), ("foreign-1",))


def test_an_answer_without_end_is_read_for_a_limited_time(folder: Path) -> None:
    """Each part arrives soon, so a time-out for each part alone would never pass."""
    ended = threading.Event()

    def serve() -> None:
        connection, _ = foreign.accept()
        with connection, suppress(BrokenPipeError, ConnectionResetError):
            while not ended.wait(0.01):
                connection.sendall(b" ")

    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(folder / f"endless-1{SUFFIX}"))
        foreign.listen()
        server = threading.Thread(target=serve)
        server.start()
        backstop = threading.Timer(10.0, ended.set)
        backstop.start()
        found = read_statuses(0.1)
        assert not ended.is_set(), "the reader gave up before the answer ended"
        ended.set()
        backstop.cancel()
        server.join()
    assert found.silent == ("endless-1",)


def test_a_process_that_ends_before_it_accepts_the_connection_is_skipped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(mode=0o700)
    ending = socket.socket(socket.AF_UNIX)
    ending.bind(str(folder / f"ending-1{SUFFIX}"))
    ending.listen()
    connect = socket.socket.connect

    def connect_and_end(self: socket.socket, address: str) -> None:
        connect(self, address)
        ending.close()

    monkeypatch.setattr(socket.socket, "connect", connect_and_end)
    found = read_statuses(10.0)
    assert (found.statuses, found.silent) == ((), ())


def test_sockets_that_another_user_may_have_put_there_are_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_statuses(10.0).statuses == (), "without a folder no member runs"
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="is not a folder that only this user can open"):
        read_statuses(10.0)
    folder.chmod(0o700)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(PermissionError, match="is not a folder that only this user can open"):
        read_statuses(10.0)
