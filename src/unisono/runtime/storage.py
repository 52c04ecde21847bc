"""Stable storage: an append-only file of checksummed records, one per member and group.

A durable order writes its records here before it sends the frames that depend on them. The file begins with a commit
header, which says up to where this member has acted on the file: it may have sent frames that depend on these records.
A heading follows, which names the group and the member. Each record has a magic number, its length, and a checksum over
its length, its content and the previous checksum. So a record that was changed, exchanged, left out or cut off at the
end is detected.

The values of `fsync`:

- "always": sync before sending anything that depends on a write. Records survive a failure of the machine.
- "batch": sync at most once every BATCH_SYNC_INTERVAL_NS. Records survive a failure of the process at once, and a
  failure of the machine after that interval.
- "never": do not sync. Records survive only a failure of the process.

A crash may tear the last record: only a part of it is in the file. Opening the file cuts a torn end off if this member
has not acted on it. Opening refuses a file with any other damage, and one shorter than the part that this member has
acted on, because a promise of this member would be lost. With "batch" and "never" a power failure can have that effect.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from unisono.errors import InvalidOption, StorageError
from unisono.model.effects import StoredRecords, Write
from unisono.model.units import NS_PER_MS

Fsync: TypeAlias = Literal["always", "batch", "never"]
BATCH_SYNC_INTERVAL_NS = 20 * NS_PER_MS
MAX_RECORD_BYTES = 1 << 28
_RECORD_MARK = b"\xa7rec"
_RECORD_HEAD = struct.Struct("!4sII")
_COMMIT_HEADER = struct.Struct("!8sQI")
"""A magic number, the size of the part that this member has acted on, and the checksum at its end.

A checksum over these three follows.
"""
_FILE_MAGIC = b"\xa7unisono"
_FIRST_RECORD_AT = _COMMIT_HEADER.size + 4
_VERSION = 2


def check_fsync(fsync: str) -> None:
    """Raise InvalidOption unless `fsync` is "always", "batch" or "never"."""
    if fsync not in get_args(Fsync):
        raise InvalidOption("fsync", f"expected one of {', '.join(get_args(Fsync))}, got {fsync!r}")


class Storage:
    """One member's storage file. Only one process at a time can have it open."""

    def __init__(self, path: str | os.PathLike[str], *, group: str, member: int, fsync: str = "always") -> None:
        """Open or create the file. Raises StorageError if it is another member's, damaged, in use or read-only."""
        check_fsync(fsync)
        self.path = Path(path)
        self.fsync = fsync
        self.sync_count = 0
        """How many times the file was synced."""
        self.truncated_bytes = 0
        """How many bytes of a torn end were cut off when the file was opened."""
        self._group, self._member = group, member
        self._last_sync_ns = 0
        self._unsynced = False
        self._last_checksum = self._size = 0
        self._failure: StorageError | None = None
        if not self.path.parent.is_dir():
            raise StorageError(
                f"{self.path}: there is no folder {self.path.parent}; create the folder, or give another path"
            )
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._os_failure("open", error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.stored_records = self._read() if os.fstat(self._file).st_size else self._create()
        except BlockingIOError as error:
            os.close(self._file)
            raise StorageError(
                f"{self.path}: another process has this file open; stop that process, or give each member its own file"
            ) from error
        except OSError as error:
            os.close(self._file)
            raise self._os_failure("read", error) from error
        except StorageError:
            os.close(self._file)
            raise

    # -- writing ---------------------------------------------------------------------------------------------

    def apply(self, writes: Sequence[Write]) -> None:
        """Write records, and sync them as `fsync` says. If this raises StorageError, the records may not be durable."""
        if self._failure is not None:
            raise self._failure
        if not writes:
            return
        self._check_sizes(writes)
        try:
            parts: list[bytes] = []
            for write in writes:
                if write.replaces_all:
                    parts.clear()  # the new file replaces these records
                    self._replace(write.records)
                else:
                    parts += [self._encode_record(record) for record in write.records]
            self._append(b"".join(parts))
            self._sync(urgent=any(not write.may_be_lost for write in writes))
            self._write_commit_mark()
        except OSError as error:
            self._failure = self._os_failure("write", error)
            raise self._failure from error

    def close(self) -> None:
        """Sync the file, unless `fsync` is "never", and close it."""
        if self._file < 0:
            return
        try:
            if self._unsynced and self.fsync != "never" and self._failure is None:
                os.fsync(self._file)
                self._unsynced = False
                self._write_commit_mark()
        except OSError as error:
            raise self._os_failure("write", error) from error
        finally:
            os.close(self._file)
            self._file = -1
            self._failure = StorageError(f"{self.path}: this storage is closed")

    def _check_sizes(self, writes: Sequence[Write]) -> None:
        """Raise StorageError if a record is too large. `apply` calls this before it changes anything."""
        largest = max((len(record) for write in writes for record in write.records), default=0)
        if largest > MAX_RECORD_BYTES:
            raise StorageError(f"{self.path}: expected a record of at most {MAX_RECORD_BYTES:,} bytes, got {largest:,}")

    def _encode_record(self, record: bytes) -> bytes:
        self._last_checksum = _checksum(self._last_checksum, record)
        return _RECORD_HEAD.pack(_RECORD_MARK, len(record), self._last_checksum) + record

    def _append(self, data: bytes) -> None:
        if data:
            _write_at(self._file, data, self._size)
            self._size += len(data)
            self._unsynced = True

    def _write_commit_mark(self) -> None:
        """Write the present size of the file to the commit header: from now on this member may act on all of it.

        With "always", this does nothing while the file is not synced.
        """
        if self.fsync != "always" or not self._unsynced:
            _write_at(self._file, _commit_header(self._size, self._last_checksum), 0)

    def counters(self) -> Mapping[str, int]:
        """How often the file was synced, and how many bytes of a torn end were cut off when it was opened."""
        return {"syncs": self.sync_count, "truncated_bytes": self.truncated_bytes}

    def _sync(self, *, urgent: bool) -> None:
        if not self._unsynced or self.fsync == "never" or not urgent:
            return
        now = time.monotonic_ns()
        if self.fsync == "batch" and now < self._last_sync_ns + BATCH_SYNC_INTERVAL_NS:
            return
        os.fdatasync(self._file)
        self.sync_count += 1
        self._last_sync_ns, self._unsynced = now, False

    def _replace(self, records: Sequence[bytes]) -> None:
        """Replace the file by a new one. After a crash, either the old file or the new one is there, complete."""
        new = self.path.with_name(self.path.name + ".new")
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._last_checksum = 0
            data = b"".join(
                [self._encode_record(self._heading(self.stored_records.storage_id)), *map(self._encode_record, records)]
            )
            self._size = _FIRST_RECORD_AT + len(data)
            _write_at(file, _commit_header(self._size, self._last_checksum) + data, 0)
            if self.fsync != "never":
                os.fsync(file)
                self.sync_count += 1
            os.replace(new, self.path)
            if self.fsync != "never":
                _sync_folder(self.path.parent)
        except BaseException:
            os.close(file)
            raise
        os.close(self._file)
        self._file, self._unsynced = file, False

    # -- reading ---------------------------------------------------------------------------------------------

    def _heading(self, storage_id: int) -> bytes:
        heading = {"unisono": _VERSION, "group": self._group, "member": self._member, "memory": storage_id}
        return json.dumps(heading, sort_keys=True).encode()

    def _create(self) -> StoredRecords:
        storage_id = int.from_bytes(os.urandom(4))
        self._last_checksum, self._size = 0, _FIRST_RECORD_AT
        self._append(self._encode_record(self._heading(storage_id)))
        if self.fsync != "never":
            os.fsync(self._file)
            _sync_folder(self.path.parent)
        _write_at(self._file, _commit_header(self._size, self._last_checksum), 0)
        self._unsynced = False
        return StoredRecords(storage_id)

    def _read(self) -> StoredRecords:
        data = _read_all(self._file)
        if not data[:_FIRST_RECORD_AT].strip(b"\0") and data.count(_RECORD_MARK) <= 1:
            # The process that created this file crashed before it finished the heading, so it sent nothing.
            self._truncate(data, 0)
            return self._create()
        committed_size, committed_checksum = self._read_commit_mark(data)
        records: list[bytes] = []
        at, checksums = _FIRST_RECORD_AT, {_FIRST_RECORD_AT: 0}
        while at < len(data):
            record = self._record_at(data, at)
            if record is None:
                self._check_torn_end(data, at, len(records), committed_size)
                break
            records.append(record)
            at += _RECORD_HEAD.size + len(record)
            self._last_checksum = checksums[at] = _checksum(self._last_checksum, record)
        if at < committed_size or checksums.get(committed_size) != committed_checksum or not records:
            raise StorageError(
                f"{self.path}: the file does not contain the {committed_size:,} bytes that this member has acted on; "
                f"its records end at byte {at:,}. It was cut, or replaced by another file. {_REFUSED_ADVICE}"
            )
        self._size = at
        if at < len(data):
            self._truncate(data, at)
        return StoredRecords(self._read_storage_id(records[0]), tuple(records[1:]))

    def _read_commit_mark(self, data: bytes) -> tuple[int, int]:
        """Read the commit header: the size of the part that this member has acted on, and the checksum at its end."""
        if data.startswith(_RECORD_MARK):
            raise StorageError(
                f"{self.path}: expected a file of version {_VERSION}, got version 1; "
                "use the release of unisono that wrote it"
            )
        head = data[: _COMMIT_HEADER.size]
        if len(data) < _FIRST_RECORD_AT or zlib.crc32(head) != int.from_bytes(
            data[_COMMIT_HEADER.size : _FIRST_RECORD_AT]
        ):
            raise StorageError(f"{self.path}: the beginning of the file is damaged. {_REFUSED_ADVICE}")
        name, size, checksum = _COMMIT_HEADER.unpack(head)
        if name != _FILE_MAGIC:
            raise StorageError(f"{self.path}: the beginning of the file is damaged. {_REFUSED_ADVICE}")
        return size, checksum

    def _record_at(self, data: bytes, at: int) -> bytes | None:
        """The record at offset `at` of `data`; None if it is incomplete or has a wrong checksum."""
        if at + _RECORD_HEAD.size > len(data):
            return None
        mark, length, checksum = _RECORD_HEAD.unpack_from(data, at)
        record = data[at + _RECORD_HEAD.size : at + _RECORD_HEAD.size + length]
        if mark != _RECORD_MARK or length > MAX_RECORD_BYTES or len(record) != length:
            return None
        return record if _checksum(self._last_checksum, record) == checksum else None

    def _check_torn_end(self, data: bytes, at: int, record_number: int, committed_size: int) -> None:
        """Raise StorageError unless the damage from `at` on is a torn end that this member has not acted on."""
        rest = data[at:]
        later = data.find(_RECORD_MARK, at + 1)
        mark, length, _ = _RECORD_HEAD.unpack_from(rest.ljust(_RECORD_HEAD.size, b"\0"))
        torn_head = len(rest) < _RECORD_HEAD.size and _RECORD_MARK.startswith(rest[: len(_RECORD_MARK)])
        torn_body = mark == _RECORD_MARK and _RECORD_HEAD.size + length > len(rest)
        unwritten = not rest.strip(b"\0") or (
            mark == _RECORD_MARK and len(rest) > _RECORD_HEAD.size and rest.endswith(bytes(8))
        )
        if at >= committed_size and later < 0 and (torn_head or torn_body or unwritten):
            return
        raise StorageError(
            f"{self.path}: record {record_number} at byte {at:,} is damaged, and a crash during the last write "
            f"does not explain the damage. {_REFUSED_ADVICE}"
        )

    def _truncate(self, data: bytes, at: int) -> None:
        self.truncated_bytes = len(data) - at
        os.ftruncate(self._file, at)
        os.fsync(self._file)
        self._size = at

    def _read_storage_id(self, heading: bytes) -> int:
        try:
            fields = json.loads(heading)
            group, member, storage_id = str(fields["group"]), int(fields["member"]), int(fields["memory"])
            version = int(fields["unisono"])
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{self.path}: this file is not the storage of a member: its heading has the wrong format; "
                "give another path"
            ) from error
        if version != _VERSION:
            raise StorageError(
                f"{self.path}: expected a file of version {_VERSION}, got {version}; "
                "use the release of unisono that wrote it"
            )
        if (group, member) != (self._group, self._member):
            raise StorageError(
                f"{self.path}: this file belongs to member {member} of {group!r}, not to member {self._member} of "
                f"{self._group!r}; give each member its own file"
            )
        return storage_id

    def _os_failure(self, operation: str, error: OSError) -> StorageError:
        hints = {
            errno.ENOSPC: "the disk is full: make room",
            errno.EDQUOT: "the quota is used up: make room",
            errno.EROFS: "the file system is read-only: give a path on another one",
            errno.EACCES: "this process may not write there: grant it write access, or give another path",
            errno.EPERM: "this process may not write there: grant it write access, or give another path",
            errno.EISDIR: "the path is a folder: give the path of a file in it",
        }
        hint = hints.get(error.errno or 0, error.strerror or str(error))
        return StorageError(
            f"{self.path}: cannot {operation} this file: {hint}. Without it this member cannot keep its promises"
        )


_REFUSED_ADVICE = (
    "Promises of this member may be lost, so it must not take part with this file. Restore the file only from a copy "
    "made after this member last stopped: an older copy lacks promises. Without such a copy, leave this member out, or "
    "start it with a new file under a number of this group that no member has used yet"
)


def _commit_header(size: int, checksum: int) -> bytes:
    head = _COMMIT_HEADER.pack(_FILE_MAGIC, size, checksum)
    return head + zlib.crc32(head).to_bytes(4)


def _checksum(previous: int, record: bytes) -> int:
    return zlib.crc32(record, zlib.crc32(len(record).to_bytes(4), previous))


def _read_all(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    parts = []
    while part := os.read(file, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _write_at(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        at, view = at + written, view[written:]


def _sync_folder(folder: Path) -> None:
    """Sync a folder, which makes the name of a new file durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
