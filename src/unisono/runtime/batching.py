"""Many datagrams per system call: UDP_SEGMENT on the way out, UDP_GRO on the way in; plain calls without them.

`Outbox` never blocks and never drops what the socket cannot take yet: it keeps it, in order, until the socket can.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from unisono.stack import Datagram

Address = tuple[str, int] | tuple[str, int, int, int]
Receive = Callable[[bytes, int, int, int, bool], None]
"""Takes the datagrams in data[start:end], the size of each but the last, and whether they came by multicast."""

SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
LARGEST_UDP = 65_507
_SEGMENTS = 64
_TRUNCATED = int(socket.MSG_TRUNC)
"""A plain number: arithmetic on the socket module's enumerations costs more than the rest of a read."""
_READ_BYTES = 65_536
_GRO_SPACE = socket.CMSG_SPACE(4) if hasattr(socket, "CMSG_SPACE") else 0
_NO_OFFLOAD = frozenset({errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.ENOPROTOOPT, errno.EOPNOTSUPP})
_FULL = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS})
_FLUSHES_PER_WAKE = 64
_NO_BUFFERS_RETRY_S = 0.001
_LEAST_CHARGE = 256
"""The kernel charges a receive buffer more than this even for an empty datagram."""


@dataclass(slots=True)
class Traffic:
    """What went through one side of a transport."""

    datagrams: int = 0
    bytes: int = 0
    syscalls: int = 0


@dataclass(slots=True)
class Run:
    """Datagrams for one destination that one call can carry: all of `segment` bytes, the last perhaps shorter."""

    address: Address
    buffers: list[bytes]
    segment: int
    size: int


def cut_runs(datagrams: Sequence[Datagram], largest_segment: int) -> Iterator[tuple[Datagram, list[bytes], int]]:
    """Neighbours with one destination that fit in one segmented call: the first, their bytes, their total size."""
    index, count = 0, len(datagrams)
    while index < count:
        first = datagrams[index]
        buffers, segment = [first.data], len(first.data)
        size = segment
        index += 1
        if size <= largest_segment:
            while index < count and len(buffers) < _SEGMENTS:
                following = datagrams[index]
                length = len(following.data)
                if (
                    following.to != first.to
                    or following.multicast != first.multicast
                    or not 0 < length <= segment
                    or size + length > LARGEST_UDP
                ):
                    break
                buffers.append(following.data)
                size += length
                index += 1
                if length < segment:
                    break
        yield first, buffers, size


def _apart(run: Run) -> list[Run]:
    return [Run(run.address, [data], len(data), len(data)) for data in run.buffers]


class Outbox:
    """The sending side of one non-blocking socket."""

    def __init__(self, sock: socket.socket, errors: Counter[str], *, offload: bool = True) -> None:
        self.traffic = Traffic()
        self.backlog_bytes = 0
        self.gso = offload and _has_option(sock, UDP_SEGMENT)
        self._socket = sock
        self._errors = errors
        self._backlog: deque[Run] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._after: Callable[[], None] | None = None
        self._watching = False
        self._retry: asyncio.TimerHandle | None = None
        self._segment_control: dict[int, list[tuple[int, int, bytes]]] = {}

    @property
    def waiting(self) -> bool:
        """Whether something is kept until the socket has room."""
        return bool(self._backlog)

    def attach(self, loop: asyncio.AbstractEventLoop, after: Callable[[], None]) -> None:
        """Flush the backlog from this loop, and call `after` when it is empty again."""
        self._loop, self._after = loop, after
        if self._backlog:
            self._wait(errno.EAGAIN)

    def send(self, run: Run) -> None:
        """Send now, or as soon as what was given earlier is out and the socket has room."""
        if self._backlog or (refused := self._try(run)) is None:
            self._keep(run)
        elif refused:
            for part in refused:
                self.send(part)

    def flush(self, most: int = sys.maxsize) -> bool:
        """Send from the backlog what the socket takes now; whether nothing is left."""
        backlog = self._backlog
        while backlog and most > 0:
            refused = self._try(backlog[0])
            if refused is None:
                return False
            most -= 1
            done = backlog.popleft()
            self.backlog_bytes -= done.size
            for part in reversed(refused):
                backlog.appendleft(part)
                self.backlog_bytes += part.size
        return not backlog

    def close(self) -> None:
        """Forget the loop; the socket is the owner's to close."""
        self._stop_waiting()
        self._loop = self._after = None

    def _try(self, run: Run) -> Sequence[Run] | None:
        """Make the call. None: the socket is full. Otherwise what is to be sent instead, which is mostly nothing."""
        buffers = run.buffers
        if len(buffers) > 1 and not self.gso:
            return _apart(run)
        self.traffic.syscalls += 1
        try:
            if len(buffers) == 1:
                self._socket.sendto(buffers[0], run.address)
            else:
                self._socket.sendmsg(buffers, self._control(run.segment), 0, run.address)
        except OSError as error:
            if error.errno in _FULL:
                self._wait(error.errno)
                return None
            if len(buffers) > 1 and error.errno in _NO_OFFLOAD:
                # This kernel or device does not segment; it will not learn to, so it is not asked again.
                self.gso = False
                return _apart(run)
            self._errors[error_name(error)] += len(buffers)
            return ()
        self.traffic.datagrams += len(buffers)
        self.traffic.bytes += run.size
        return ()

    def _control(self, segment: int) -> list[tuple[int, int, bytes]]:
        control = self._segment_control.get(segment)
        if control is None:
            if len(self._segment_control) > 1000:
                self._segment_control.clear()
            control = self._segment_control[segment] = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", segment))]
        return control

    def _keep(self, run: Run) -> None:
        self._backlog.append(run)
        self.backlog_bytes += run.size

    # -- waiting for room ------------------------------------------------------------------------------------

    def _wait(self, why: int | None) -> None:
        if self._loop is None or self._retry is not None:
            return
        if why == errno.ENOBUFS:
            # The device is full, not the socket, which therefore counts as writable all the time.
            self._stop_waiting()
            self._retry = self._loop.call_later(_NO_BUFFERS_RETRY_S, self._on_retry)
        elif not self._watching:
            self._loop.add_writer(self._socket.fileno(), self._on_writable)
            self._watching = True

    def _stop_waiting(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._watching and self._loop is not None:
            self._loop.remove_writer(self._socket.fileno())
            self._watching = False

    def _on_retry(self) -> None:
        self._retry = None
        self._on_writable()

    def _on_writable(self) -> None:
        if self.flush(_FLUSHES_PER_WAKE):
            self._stop_waiting()
            if self._after is not None:
                self._after()
        else:
            self._wait(errno.EAGAIN)


class Inbox:
    """The receiving side of one non-blocking socket."""

    def __init__(self, sock: socket.socket, errors: Counter[str], *, multicast: bool, offload: bool = True) -> None:
        self.traffic = Traffic()
        self.fileno = sock.fileno()
        self.gro = offload and _set_option(sock, UDP_GRO)
        self.stopped = False
        """Set to end a `read` that is under way."""
        self._socket = sock
        self._errors = errors
        self._multicast = multicast

    def read(self, receive: Receive, *, most_calls: int, most_bytes: int) -> int:
        """Hand over what has arrived until there is no more or a limit is reached; how many datagrams."""
        before = self.traffic.datagrams
        while most_calls > 0 and most_bytes > 0 and not self.stopped:
            most_calls -= 1
            size = self._read_one(receive)
            if size is None:
                break
            most_bytes -= max(size, _LEAST_CHARGE)
        return self.traffic.datagrams - before

    def _read_one(self, receive: Receive) -> int | None:
        """How many bytes one call gave; None if there was nothing to read."""
        segment = 0
        self.traffic.syscalls += 1
        try:
            if self.gro:
                data, control, flags, _ = self._socket.recvmsg(_READ_BYTES, _GRO_SPACE)
                if flags & _TRUNCATED:
                    self._errors["TRUNCATED"] += 1
                for level, kind, value in control:
                    if level == SOL_UDP and kind == UDP_GRO:
                        segment = int.from_bytes(value, sys.byteorder)
            else:
                data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            # Mostly the echo of an earlier send, such as ECONNREFUSED: the port had no process then.
            self._errors[error_name(error)] += 1
            return 0
        size = len(data)
        traffic = self.traffic
        traffic.bytes += size
        if not 0 < segment < size:
            segment = max(size, 1)  # an empty datagram is one, too
        traffic.datagrams += max(1, -(-size // segment))
        receive(data, 0, size, segment, self._multicast)
        return size


def error_name(error: OSError) -> str:
    """ECONNREFUSED and the like."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def _has_option(sock: socket.socket, option: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        sock.getsockopt(SOL_UDP, option)
    except OSError:
        return False
    return True


def _set_option(sock: socket.socket, option: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        sock.setsockopt(SOL_UDP, option, 1)
    except OSError:
        return False
    return True
