"""A running member serves its status as JSON through a Unix socket, and `unisono status` reads all of them.

The sockets are in one folder per user, which only that user can open. A connection gets one JSON object and is closed.
The socket of a process that was killed stays behind. It refuses connections, so readers skip it, and the next process
of the same member replaces it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from unisono.model.status import Status

SUFFIX = ".sock"
GROUP_NAME_MAX = 40
"""A longer group name is shortened in the name of a socket: the path of a socket has at most about 100 bytes."""
ANSWER_BYTES_MAX = 1 << 20
"""A longer answer is no status, and is not read to its end."""


def status_folder() -> Path:
    """The folder of this user's sockets: $XDG_RUNTIME_DIR/unisono, or unisono-UID in the temporary folder.

    The second one is used if the variable is not set, or names no folder in which this user can write.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.access(runtime, os.W_OK | os.X_OK):
        return Path(runtime) / "unisono"
    return Path(tempfile.gettempdir()) / f"unisono-{os.getuid()}"


def socket_name(group: str, member: int) -> str:
    """The file name of a member's socket, without characters that a path must not have."""
    name = quote(group, safe=" ")
    if len(name) > GROUP_NAME_MAX:
        digest = hashlib.sha256(group.encode()).hexdigest()[:8]
        name = f"{name[: GROUP_NAME_MAX - 9]}~{digest}"
    return f"{name}-{member}{SUFFIX}"


# -- serving ---------------------------------------------------------------------------------------------------------


class StatusServer:
    """Serves one member's status until it is closed."""

    def __init__(self, path: Path, server: asyncio.Server) -> None:
        self.path = path
        self._server = server
        self._file_id = _file_id(path)

    @classmethod
    async def open(cls, group: str, member: int, status: Callable[[], Status]) -> StatusServer:
        """Serve the result of `status` to every connection; raises OSError if there can be no such socket."""
        path = _own_folder() / socket_name(group, member)
        _remove_if_stale(path)
        bound = socket.socket(socket.AF_UNIX)
        try:
            bound.bind(os.fspath(path))
            path.chmod(0o600)
            server = await asyncio.start_unix_server(lambda _, writer: _answer(writer, status), sock=bound)
        except BaseException:
            bound.close()
            raise
        return cls(path, server)

    def close(self) -> None:
        """Stop serving, and remove the socket, unless another process has replaced it."""
        self._server.close()
        if _file_id(self.path) == self._file_id:
            self.path.unlink(missing_ok=True)


def _answer(writer: asyncio.StreamWriter, status: Callable[[], Status]) -> None:
    """Write the status and close the connection. The kernel or the writer's buffer holds it for a slow reader."""
    writer.write(json.dumps(status().as_json()).encode())
    writer.close()


def _own_folder() -> Path:
    """The folder of the sockets, which this creates; raises OSError if another user could change it."""
    folder = status_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_own(folder)
    return folder


def _check_own(folder: Path) -> None:
    """Raise PermissionError unless only this user can open the folder, so that all its sockets are this user's."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that only this user can open; remove it")


def _remove_if_stale(path: Path) -> None:
    """Remove the socket of a process that has ended; raises FileExistsError if a process still serves it."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # its queue of connections is full
    raise FileExistsError(f"another process serves {path}")


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


# -- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunningMembers:
    """The members of this user that run on this machine."""

    statuses: tuple[dict[str, Any], ...]
    """The JSON form of each member's `Status`, by group and member."""
    silent: tuple[str, ...]
    """The names of the sockets that accept connections and give no status: their processes are paused or overloaded."""


def read_statuses(timeout_s: float) -> RunningMembers:
    """Read the status of every member of this user on this machine. Wait for each at most `timeout_s` seconds.

    Raises PermissionError if another user could have put sockets into the folder.
    """
    statuses: list[dict[str, Any]] = []
    silent: list[str] = []
    folder = status_folder()
    try:
        _check_own(folder)
    except FileNotFoundError:
        return RunningMembers((), ())  # no member of this user has served its status here
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            statuses.append(_read_status(path, timeout_s))
        except (ConnectionError, FileNotFoundError):
            continue  # the process has ended
        except (OSError, ValueError):
            silent.append(path.name.removesuffix(SUFFIX))
    statuses.sort(key=lambda status: (status["group"], status["member"]))
    return RunningMembers(tuple(statuses), tuple(silent))


def _read_status(path: Path, timeout_s: float) -> dict[str, Any]:
    """Read one member's status; raises OSError or ValueError if the socket does not give one in time."""
    ends_at = time.monotonic() + timeout_s
    answer = bytearray()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(os.fspath(path))
        while part := connection.recv(65_536):
            answer += part
            if len(answer) > ANSWER_BYTES_MAX:
                raise ValueError(f"{path} answers with more than {ANSWER_BYTES_MAX:,} bytes")
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{path} did not end its answer within {timeout_s} s")
            connection.settimeout(left_s)
    found = json.loads(answer)
    match found:
        case {"group": str(), "member": int()}:
            return dict(found)
    raise ValueError(f"{path} answers with something else than a status")
