"""Many datagrams per system call: UDP_SEGMENT for sending, UDP_GRO for receiving; plain calls where they are missing.

`Outbox` never blocks. It keeps datagrams that the socket cannot accept yet, in order, until the socket can.
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

from unisono.model.effects import Datagram

Address = tuple[str, int] | tuple[str, int, int, int]
ReceiveCallback = Callable[[bytes, int, int, int, bool], None]
"""Receives the datagrams in data[start:end], the size of each but the last, and whether they came by multicast."""

SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
MAX_UDP_PAYLOAD = 65_507
_MAX_SEGMENTS = 64
_TRUNCATED = int(socket.MSG_TRUNC)
"""A plain number: arithmetic on the socket module's enumerations costs more than the rest of a read."""
_READ_BYTES = 65_536
_GRO_SPACE = socket.CMSG_SPACE(4) if hasattr(socket, "CMSG_SPACE") else 0
_NO_OFFLOAD_ERRORS = frozenset({errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.ENOPROTOOPT, errno.EOPNOTSUPP})
_SOCKET_FULL_ERRORS = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS})
_FLUSHES_PER_WAKE = 64
_NO_BUFFERS_RETRY_S = 0.001
_MIN_CHARGE_BYTES = 256
"""The kernel charges a receive buffer more than this even for an empty datagram."""


@dataclass(slots=True)
class Traffic:
    """Counters of one direction of a transport."""

    datagrams: int = 0
    bytes: int = 0
    syscalls: int = 0


@dataclass(slots=True)
class DatagramRun:
    """Datagrams for one destination that one call can send: all of `segment_bytes`, the last perhaps shorter."""

    address: Address
    buffers: list[bytes]
    segment_bytes: int
    total_bytes: int


def split_into_runs(datagrams: Sequence[Datagram], largest_segment: int) -> Iterator[tuple[Datagram, list[bytes], int]]:
    """Consecutive datagrams to one destination that fit in one call: the first, the bytes of each, their total size."""
    index, count = 0, len(datagrams)
    while index < count:
        first = datagrams[index]
        buffers, segment = [first.data], len(first.data)
        size = segment
        index += 1
        if size <= largest_segment:
            while index < count and len(buffers) < _MAX_SEGMENTS:
                following = datagrams[index]
                length = len(following.data)
                if (
                    following.destinations != first.destinations
                    or following.multicast != first.multicast
                    or not 0 < length <= segment
                    or size + length > MAX_UDP_PAYLOAD
                ):
                    break
                buffers.append(following.data)
                size += length
                index += 1
                if length < segment:
                    break
        yield first, buffers, size


def _split_run(run: DatagramRun) -> list[DatagramRun]:
    return [DatagramRun(run.address, [data], len(data), len(data)) for data in run.buffers]


class Outbox:
    """The sending side of one non-blocking socket."""

    def __init__(self, sock: socket.socket, errors: Counter[str], *, offload: bool = True) -> None:
        self.traffic = Traffic()
        self.backlog_bytes = 0
        self.gso = offload and _has_option(sock, UDP_SEGMENT)
        self._socket = sock
        self._errors = errors
        self._backlog: deque[DatagramRun] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_empty: Callable[[], None] | None = None
        self._watching = False
        self._retry: asyncio.TimerHandle | None = None
        self._segment_control: dict[int, list[tuple[int, int, bytes]]] = {}

    @property
    def has_backlog(self) -> bool:
        """Whether datagrams wait until the socket has room."""
        return bool(self._backlog)

    def attach(self, loop: asyncio.AbstractEventLoop, on_empty: Callable[[], None]) -> None:
        """Flush the backlog from this loop, and call `on_empty` when it is empty again."""
        self._loop, self._on_empty = loop, on_empty
        if self._backlog:
            self._wait_for_room(errno.EAGAIN)

    def send(self, run: DatagramRun) -> None:
        """Send now, or as soon as all earlier datagrams are out and the socket has room."""
        if self._backlog or (refused := self._try_send(run)) is None:
            self._enqueue(run)
        elif refused:
            for part in refused:
                self.send(part)

    def flush(self, max_calls: int = sys.maxsize) -> bool:
        """Send from the backlog as much as the socket accepts now; return whether the backlog is empty."""
        backlog = self._backlog
        while backlog and max_calls > 0:
            refused = self._try_send(backlog[0])
            if refused is None:
                return False
            max_calls -= 1
            done = backlog.popleft()
            self.backlog_bytes -= done.total_bytes
            for part in reversed(refused):
                backlog.appendleft(part)
                self.backlog_bytes += part.total_bytes
        return not backlog

    def close(self) -> None:
        """Forget the loop. The owner closes the socket."""
        self._stop_waiting()
        self._loop = self._on_empty = None

    def _try_send(self, run: DatagramRun) -> Sequence[DatagramRun] | None:
        """Make the call; return None if the socket is full, else the smaller runs to send instead, mostly none."""
        buffers = run.buffers
        if len(buffers) > 1 and not self.gso:
            return _split_run(run)
        self.traffic.syscalls += 1
        try:
            if len(buffers) == 1:
                self._socket.sendto(buffers[0], run.address)
            else:
                self._socket.sendmsg(buffers, self._control(run.segment_bytes), 0, run.address)
        except OSError as error:
            if error.errno in _SOCKET_FULL_ERRORS:
                self._wait_for_room(error.errno)
                return None
            if len(buffers) > 1 and error.errno in _NO_OFFLOAD_ERRORS:
                # This kernel or device cannot segment: do not try again.
                self.gso = False
                return _split_run(run)
            self._errors[error_name(error)] += len(buffers)
            return ()
        self.traffic.datagrams += len(buffers)
        self.traffic.bytes += run.total_bytes
        return ()

    def _control(self, segment: int) -> list[tuple[int, int, bytes]]:
        control = self._segment_control.get(segment)
        if control is None:
            if len(self._segment_control) > 1000:
                self._segment_control.clear()
            control = self._segment_control[segment] = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", segment))]
        return control

    def _enqueue(self, run: DatagramRun) -> None:
        self._backlog.append(run)
        self.backlog_bytes += run.total_bytes

    # -- waiting for room ------------------------------------------------------------------------------------

    def _wait_for_room(self, error_number: int | None) -> None:
        if self._loop is None or self._retry is not None:
            return
        if error_number == errno.ENOBUFS:
            # The device is full, not the socket, so the socket counts as writable all the time.
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
            if self._on_empty is not None:
                self._on_empty()
        else:
            self._wait_for_room(errno.EAGAIN)


class Inbox:
    """The receiving side of one non-blocking socket."""

    def __init__(self, sock: socket.socket, errors: Counter[str], *, multicast: bool, offload: bool = True) -> None:
        self.traffic = Traffic()
        self.fileno = sock.fileno()
        self.gro = offload and _set_option(sock, UDP_GRO)
        self.stopped = False
        """Set this to end a `read` in progress."""
        self._socket = sock
        self._errors = errors
        self._multicast = multicast

    def read(self, receive: ReceiveCallback, *, max_calls: int, max_bytes: int) -> int:
        """Hand over arrived datagrams until there are no more or a limit is reached; return how many."""
        before = self.traffic.datagrams
        while max_calls > 0 and max_bytes > 0 and not self.stopped:
            max_calls -= 1
            size = self._read_one(receive)
            if size is None:
                break
            max_bytes -= max(size, _MIN_CHARGE_BYTES)
        return self.traffic.datagrams - before

    def _read_one(self, receive: ReceiveCallback) -> int | None:
        """Make one call; return how many bytes it read, None if there was nothing to read."""
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
            # Mostly the result of an earlier send, such as ECONNREFUSED: no process had the port open.
            self._errors[error_name(error)] += 1
            return 0
        size = len(data)
        traffic = self.traffic
        traffic.bytes += size
        if not 0 < segment < size:
            segment = max(size, 1)  # an empty datagram counts, too
        traffic.datagrams += max(1, -(-size // segment))
        receive(data, 0, size, segment, self._multicast)
        return size


def error_name(error: OSError) -> str:
    """The symbolic name of an error, such as ECONNREFUSED."""
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
