"""Stable storage: an append-only file of checksummed records, one per member and group.

What an automaton wants to survive is here before its frames go out. The file begins with how much of it has been acted
upon, and whose it is; each record has a mark, its length and a checksum over its length, its content and the checksum
before it, so that records can be neither altered nor exchanged nor left out unseen, nor taken from the end.

Policies for fsync: "always", before anything that rests on a write is said: it survives the machine; "batch", at most
once every BATCH_NS: it survives the process at once and the machine after that; "never": it survives the process.

An end that is torn, as a crash leaves it, is cut off if it lies behind what was acted upon. A record that is whole but
wrong, anything wrong before the end, and a file that is shorter than what was acted upon are refused: some promise
would be forgotten. After a power failure that can be so with "batch" and "never".
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from unisono.errors import InvalidPolicy, StorageError
from unisono.model.durations import NS_PER_MS
from unisono.model.stored_records import Memory, Write

Fsync: TypeAlias = Literal["always", "batch", "never"]
BATCH_NS = 20 * NS_PER_MS
RECORD_MAX = 1 << 28
_MARK = b"\xa7rec"
_HEAD = struct.Struct("!4sII")
_ACTED = struct.Struct("!8sQI")
"""At the beginning of the file: up to which size, and which checksum, it has been acted upon; a checksum follows."""
_NAME = b"\xa7unisono"
_START = _ACTED.size + 4
_VERSION = 2


def check_fsync(fsync: str) -> None:
    """Refuse a policy that there is not."""
    if fsync not in get_args(Fsync):
        raise InvalidPolicy("fsync", f"one of {', '.join(get_args(Fsync))} is possible, not {fsync!r}")


class Storage:
    """One member's file, open for one process at a time."""

    def __init__(self, path: str | os.PathLike[str], *, group: str, member: int, fsync: str = "always") -> None:
        """Open the file, or begin it; raises StorageError if it is not this member's, damaged, in use or read-only."""
        check_fsync(fsync)
        self.path = Path(path)
        self.fsync = fsync
        self.syncs = 0
        """How often the file was made durable."""
        self.cut_bytes = 0
        """How much of a torn end was cut off when it was opened."""
        self._group, self._member = group, member
        self._synced_at = 0
        self._unsynced = False
        self._sum = self._size = 0
        self._broken: StorageError | None = None
        if not self.path.parent.is_dir():
            raise StorageError(f"{self.path}: there is no folder {self.path.parent}; create it, or name another")
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._failed("open", error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.memory = self._read() if os.fstat(self._file).st_size else self._begin()
        except BlockingIOError as error:
            os.close(self._file)
            raise StorageError(f"{self.path}: another process has it open; a member runs once at a time") from error
        except OSError as error:
            os.close(self._file)
            raise self._failed("read", error) from error
        except StorageError:
            os.close(self._file)
            raise

    # -- writing ---------------------------------------------------------------------------------------------

    def apply(self, writes: Sequence[Write]) -> None:
        """Make writes durable, as the policy has it, in order; StorageError says that nothing may rest on them."""
        if self._broken is not None:
            raise self._broken
        if not writes:
            return
        try:
            parts: list[bytes] = []
            for write in writes:
                if write.replace:
                    parts.clear()  # what it replaces need not be written any more
                    self._replace(write.records)
                else:
                    parts += [self._record(record) for record in write.records]
            self._append(b"".join(parts))
            self._sync(urgent=any(not write.lazy for write in writes))
            self._mark_acted()
        except OSError as error:
            self._broken = self._failed("write", error)
            raise self._broken from error

    def close(self) -> None:
        """Let go of the file; what is in it is durable unless the policy is "never"."""
        if self._file < 0:
            return
        try:
            if self._unsynced and self.fsync != "never" and self._broken is None:
                os.fsync(self._file)
                self._unsynced = False
                self._mark_acted()
        except OSError as error:
            raise self._failed("write", error) from error
        finally:
            os.close(self._file)
            self._file = -1
            self._broken = StorageError(f"{self.path}: it is closed")

    def _record(self, record: bytes) -> bytes:
        if len(record) > RECORD_MAX:
            raise StorageError(f"{self.path}: a record of {len(record):,} bytes is larger than {RECORD_MAX:,}")
        self._sum = _checksum(self._sum, record)
        return _HEAD.pack(_MARK, len(record), self._sum) + record

    def _append(self, data: bytes) -> None:
        if data:
            _overwrite(self._file, data, self._size)
            self._size += len(data)
            self._unsynced = True

    def _mark_acted(self) -> None:
        """From now on things may rest on what is in the file, as far as the policy has made it durable."""
        if self.fsync != "always" or not self._unsynced:
            _overwrite(self._file, _acted(self._size, self._sum), 0)

    def _sync(self, *, urgent: bool) -> None:
        if not self._unsynced or self.fsync == "never" or not urgent:
            return
        now = time.monotonic_ns()
        if self.fsync == "batch" and now < self._synced_at + BATCH_NS:
            return
        os.fdatasync(self._file)
        self.syncs += 1
        self._synced_at, self._unsynced = now, False

    def _replace(self, records: Sequence[bytes]) -> None:
        """A new file in place of the old one: either is there after a crash, whole."""
        new = self.path.with_name(self.path.name + ".new")
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._sum = 0
            data = b"".join([self._record(self._heading(self.memory.number)), *map(self._record, records)])
            self._size = _START + len(data)
            _overwrite(file, _acted(self._size, self._sum) + data, 0)
            if self.fsync != "never":
                os.fsync(file)
                self.syncs += 1
            os.replace(new, self.path)
            if self.fsync != "never":
                _sync_folder(self.path.parent)
        except BaseException:
            os.close(file)
            raise
        os.close(self._file)
        self._file, self._unsynced = file, False

    # -- reading ---------------------------------------------------------------------------------------------

    def _heading(self, number: int) -> bytes:
        heading = {"unisono": _VERSION, "group": self._group, "member": self._member, "memory": number}
        return json.dumps(heading, sort_keys=True).encode()

    def _begin(self) -> Memory:
        number = int.from_bytes(os.urandom(4))
        self._sum, self._size = 0, _START
        self._append(self._record(self._heading(number)))
        if self.fsync != "never":
            os.fsync(self._file)
            _sync_folder(self.path.parent)
        _overwrite(self._file, _acted(self._size, self._sum), 0)
        self._unsynced = False
        return Memory(number)

    def _read(self) -> Memory:
        data = _read_all(self._file)
        if not data[:_START].strip(b"\0") and data.count(_MARK) <= 1:
            # Nothing was ever said by whoever began this file: it did not get to the end of its heading.
            self._cut(data, 0)
            return self._begin()
        acted_size, acted_sum = self._acted_upon(data)
        records: list[bytes] = []
        at, sums = _START, {_START: 0}
        while at < len(data):
            record = self._at(data, at)
            if record is None:
                self._judge_end(data, at, len(records), acted_size)
                break
            records.append(record)
            self._sum = sums[at + _HEAD.size + len(record)] = _checksum(self._sum, record)
            at += _HEAD.size + len(record)
        if at < acted_size or sums.get(acted_size) != acted_sum or not records:
            raise StorageError(
                f"{self.path}: it ends at byte {at:,}, and this member has acted upon {acted_size:,} bytes of it: it "
                f"was cut, or is not the file that it was. {_REFUSED}"
            )
        self._size = at
        if at < len(data):
            self._cut(data, at)
        return Memory(self._number(records[0]), tuple(records[1:]))

    def _acted_upon(self, data: bytes) -> tuple[int, int]:
        """Up to which size the file was acted upon, and the checksum there."""
        if data.startswith(_MARK):
            raise StorageError(f"{self.path}: it is of version 1, this is version {_VERSION}")
        head = data[: _ACTED.size]
        if len(data) < _START or zlib.crc32(head) != int.from_bytes(data[_ACTED.size : _START]):
            raise StorageError(f"{self.path}: its beginning is damaged. {_REFUSED}")
        name, size, checksum = _ACTED.unpack(head)
        if name != _NAME:
            raise StorageError(f"{self.path}: its beginning is damaged. {_REFUSED}")
        return size, checksum

    def _at(self, data: bytes, at: int) -> bytes | None:
        """The record at an offset, if it is whole and follows those before it."""
        if at + _HEAD.size > len(data):
            return None
        mark, length, checksum = _HEAD.unpack_from(data, at)
        record = data[at + _HEAD.size : at + _HEAD.size + length]
        if mark != _MARK or length > RECORD_MAX or len(record) != length:
            return None
        return record if _checksum(self._sum, record) == checksum else None

    def _judge_end(self, data: bytes, at: int, number: int, acted_size: int) -> None:
        """What is wrong from `at` on is a torn end that nobody acted upon, or this raises."""
        rest = data[at:]
        later = data.find(_MARK, at + 1)
        mark, length, _ = _HEAD.unpack_from(rest.ljust(_HEAD.size, b"\0"))
        torn_head = len(rest) < _HEAD.size and _MARK.startswith(rest[: len(_MARK)])
        torn_body = mark == _MARK and _HEAD.size + length > len(rest)
        unwritten = not rest.strip(b"\0") or (mark == _MARK and len(rest) > _HEAD.size and rest.endswith(bytes(8)))
        if at >= acted_size and later < 0 and (torn_head or torn_body or unwritten):
            return
        raise StorageError(
            f"{self.path}: record {number} at byte {at:,} is damaged, and not as an end that a crash tears. {_REFUSED}"
        )

    def _cut(self, data: bytes, at: int) -> None:
        self.cut_bytes = len(data) - at
        os.ftruncate(self._file, at)
        os.fsync(self._file)
        self._size = at

    def _number(self, heading: bytes) -> int:
        try:
            said = json.loads(heading)
            group, member, number = str(said["group"]), int(said["member"]), int(said["memory"])
            version = int(said["unisono"])
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{self.path}: its heading is not that of a member's storage") from error
        if version != _VERSION:
            raise StorageError(f"{self.path}: it is of version {version}, this is version {_VERSION}")
        if (group, member) != (self._group, self._member):
            raise StorageError(
                f"{self.path}: it belongs to member {member} of {group!r}, not to member {self._member} of "
                f"{self._group!r}; each member has a file of its own"
            )
        return number

    def _failed(self, what: str, error: OSError) -> StorageError:
        hints = {
            errno.ENOSPC: "the disk is full: make room",
            errno.EDQUOT: "the quota is used up: make room",
            errno.EROFS: "it is on a file system that is read-only",
            errno.EACCES: "this process may not write there",
            errno.EPERM: "this process may not write there",
            errno.EISDIR: "it is a folder: name a file in it",
        }
        hint = hints.get(error.errno or 0, error.strerror or str(error))
        return StorageError(f"{self.path}: cannot {what} it: {hint}. Without it this member cannot keep its promises")


_REFUSED = (
    "Promises of this member may be lost, so it must not take part. Restore the file, or give this member a new number"
)


def _acted(size: int, checksum: int) -> bytes:
    head = _ACTED.pack(_NAME, size, checksum)
    return head + zlib.crc32(head).to_bytes(4)


def _checksum(before: int, record: bytes) -> int:
    return zlib.crc32(record, zlib.crc32(len(record).to_bytes(4), before))


def _read_all(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    parts = []
    while part := os.read(file, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _overwrite(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        at, view = at + written, view[written:]


def _sync_folder(folder: Path) -> None:
    """The name of a new file is durable when its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
