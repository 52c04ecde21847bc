"""Stable storage: records are read back, a torn end is cut off, damage is refused, errors say what to do."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from unisono.errors import InvalidOption, StorageError
from unisono.model.effects import Write
from unisono.runtime.storage import BATCH_SYNC_INTERVAL_NS, Storage

ACTED = 24
"""The size of the commit header in bytes."""


def opened(path: Path, fsync: str = "never", member: int = 3) -> Storage:
    return Storage(path, group="table", member=member, fsync=fsync)


def filled(path: Path, count: int = 5) -> bytes:
    made = opened(path)
    made.apply([Write((b"record %d" % number,)) for number in range(count)])
    made.close()
    return path.read_bytes()


def test_records_are_read_back_with_the_same_storage_id(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first = opened(path)
    number = first.stored_records.storage_id
    first.apply([Write((b"a", b"")), Write((b"b" * 100_000,), may_be_lost=True)])
    first.close()
    again = opened(path)
    assert again.stored_records.storage_id == number
    assert again.stored_records.records == (b"a", b"", b"b" * 100_000)
    again.apply([Write((b"c",))])
    again.close()
    assert opened(path).stored_records.records[-1] == b"c"


def test_two_files_have_different_storage_ids(tmp_path: Path) -> None:
    assert opened(tmp_path / "a").stored_records.storage_id != opened(tmp_path / "b").stored_records.storage_id


def test_a_replacement_leaves_only_its_own_and_later_records(tmp_path: Path) -> None:
    path = tmp_path / "log"
    made = opened(path)
    number = made.stored_records.storage_id
    made.apply([Write((b"x" * 1000,))])
    made.apply([Write((b"lost",)), Write((b"all", b"there is"), replaces_all=True), Write((b"and this",))])
    made.close()
    again = opened(path)
    assert again.stored_records.records == (b"all", b"there is", b"and this")
    assert again.stored_records.storage_id == number
    assert path.stat().st_size < 500
    assert os.listdir(tmp_path) == ["log"]


def unfinished(path: Path) -> bytes:
    """A file with four records that the member has acted on, and a fifth from the moment of the crash."""
    begun = filled(path, 4)
    made = opened(path)
    made.apply([Write((b"record 4",))])
    made.close()
    return begun[:ACTED] + path.read_bytes()[ACTED:]


def test_an_end_torn_at_any_byte_is_cut_and_writing_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = unfinished(path)
    start = data.rindex(b"\xa7rec")
    for end in range(start + 1, len(data)):
        path.write_bytes(data[:end])
        made = opened(path)
        assert made.stored_records.records == tuple(b"record %d" % number for number in range(4))
        assert made.truncated_bytes == end - start
        made.apply([Write((b"next",))])
        made.close()
        again = opened(path)
        assert again.stored_records.records[-1] == b"next"
        assert again.truncated_bytes == 0
        again.close()


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """A file without records that the member has acted on is refused: promises would be lost."""
    path = tmp_path / "log"
    data = filled(path)
    for end in range(ACTED, len(data)):
        path.write_bytes(data[:end])
        with pytest.raises(StorageError, match="must not take part"):
            opened(path)
        assert path.read_bytes() == data[:end], "and left as it is"


def test_an_older_file_with_the_newer_commit_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    filled(path)
    beginning = path.read_bytes()[:ACTED]
    path.unlink()
    filled(path)
    path.write_bytes(beginning + path.read_bytes()[ACTED:])
    with pytest.raises(StorageError, match="replaced by another file"):
        opened(path)


def test_blocks_that_were_never_written_are_a_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = unfinished(path)
    path.write_bytes(data + bytes(4096))
    made = opened(path)
    assert len(made.stored_records.records) == 5
    assert made.counters()["truncated_bytes"] == 4096
    made.close()
    path.write_bytes(data[:-8] + bytes(8))
    made = opened(path)
    assert len(made.stored_records.records) == 4
    made.close()


def test_a_changed_byte_is_always_detected(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = filled(path)
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(StorageError):
            opened(path)


@pytest.mark.parametrize("change", ["exchanged", "left out", "said twice"])
def test_records_cannot_change_places(tmp_path: Path, change: str) -> None:
    path = tmp_path / "log"
    data = filled(path)
    parts = [b"\xa7rec" + part for part in data.split(b"\xa7rec")[1:]]
    if change == "exchanged":
        parts[2], parts[3] = parts[3], parts[2]
    elif change == "left out":
        del parts[2]
    else:
        parts.insert(2, parts[2])
    path.write_bytes(data[:ACTED] + b"".join(parts))
    with pytest.raises(StorageError, match="damaged"):
        opened(path)


def test_a_file_without_a_complete_heading_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = filled(path, 0)
    path.write_bytes(bytes(ACTED) + data[ACTED : len(data) // 2])
    made = opened(path)
    assert made.stored_records.records == ()
    made.apply([Write((b"a",))])
    made.close()
    assert opened(path).stored_records.records == (b"a",)


def test_another_members_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    filled(path)
    with pytest.raises(StorageError, match="belongs to member 3 of 'table', not to member 4"):
        opened(path, member=4)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"#!/bin/sh\nexit 0\n" * 20)
    with pytest.raises(StorageError, match="damaged"):
        opened(path)
    assert path.read_bytes().startswith(b"#!/bin/sh")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no folder"):
        opened(tmp_path / "nowhere" / "log")


def test_a_folder_instead_of_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="give the path of a file in it"):
        opened(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = opened(tmp_path / "log")
    with pytest.raises(StorageError, match="another process has this file open"):
        opened(tmp_path / "log")
    first.apply([Write((b"a",), replaces_all=True)])
    with pytest.raises(StorageError, match="another process has this file open"):
        opened(tmp_path / "log")
    first.close()
    opened(tmp_path / "log").close()


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EIO, "put/output")]
)
def test_a_failed_write_says_why_and_later_writes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    made = opened(tmp_path / "log")

    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", fails)
    with pytest.raises(StorageError, match=words):
        made.apply([Write((b"a",))])
    monkeypatch.undo()
    with pytest.raises(StorageError, match=words):
        made.apply([Write((b"b",))])


@pytest.mark.parametrize("fsync", ["always", "batch", "never"])
@pytest.mark.parametrize("replaces_all", [False, True])
def test_a_record_that_is_too_large_is_refused_and_the_file_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: str, replaces_all: bool
) -> None:
    monkeypatch.setattr("unisono.runtime.storage.MAX_RECORD_BYTES", 200)
    path = tmp_path / "log"
    made = opened(path, fsync)
    made.apply([Write((b"before",), may_be_lost=True)])
    with pytest.raises(StorageError, match="expected a record of at most 200 bytes, got 201"):
        made.apply([Write((b"refused",)), Write((b"refused", b"x" * 201), replaces_all=replaces_all)])
    made.close()
    again = opened(path, fsync)
    assert again.stored_records.records == (b"before",)
    with pytest.raises(StorageError, match="at most 200 bytes"):
        again.apply([Write((b"refused", b"x" * 201), replaces_all=replaces_all)])
    again.apply([Write((b"after",))])
    again.close()
    assert opened(path).stored_records.records == (b"before", b"after")
    assert os.listdir(tmp_path) == ["log"]


def test_a_read_only_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write to every file, so the error is simulated."""

    def refuses(*_: object) -> int:
        raise PermissionError(errno.EACCES, "no")

    with monkeypatch.context() as planted:
        planted.setattr(os, "open", refuses)
        with pytest.raises(StorageError, match="may not write there"):
            opened(tmp_path / "log")


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []

    def spy(name: str, real: Callable[..., int | None]) -> Callable[..., int | None]:
        def call(*arguments: int) -> int | None:
            calls.append(name)
            return real(*arguments)

        return call

    for name, word in (("fdatasync", "sync"), ("fsync", "sync"), ("pwrite", "write")):
        monkeypatch.setattr(os, name, spy(word, getattr(os, name)))
    return calls


def test_always_syncs_after_each_write_and_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = opened(tmp_path / "log", "always")
    calls = counting(monkeypatch)
    made.apply([Write((b"a",)), Write((b"b",))])
    made.apply([Write((b"c",))])
    assert calls == ["write", "sync", "write"] * 2, "the record, durable, and then that it may be acted upon"


def test_records_that_may_be_lost_wait_for_the_next_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = opened(tmp_path / "log", "always")
    calls = counting(monkeypatch)
    made.apply([Write((b"a",), may_be_lost=True)])
    made.apply([Write((b"b",))])
    assert calls == ["write", "write", "sync", "write"]


def test_never_never_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counting(monkeypatch)
    made = opened(tmp_path / "log", "never")
    made.apply([Write((b"a",)), Write((b"b",), replaces_all=True)])
    made.close()
    assert "sync" not in calls


def test_batch_syncs_at_most_once_per_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = opened(tmp_path / "log", "batch")
    now = 10**12
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    calls = counting(monkeypatch)
    for _ in range(5):
        made.apply([Write((b"a",))])
    assert calls.count("sync") == 1
    now += BATCH_SYNC_INTERVAL_NS
    made.apply([Write((b"a",))])
    assert calls.count("sync") == 2
    made.apply([Write((b"a",))])
    made.close()
    assert calls.count("sync") == 3


def test_an_unknown_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="always, batch, never"):
        opened(tmp_path / "log", "sometimes")
