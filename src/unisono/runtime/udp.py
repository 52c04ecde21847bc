"""UDP between the members: IP multicast if it is available, else one unicast copy per member.

One system call sends or receives many datagrams if the system has the options UDP_SEGMENT and UDP_GRO, else only one.
`Outbox` never blocks. It keeps datagrams that the socket cannot accept yet, in order, until the socket can.
"""

from __future__ import annotations

import asyncio
import errno
import selectors
import socket
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from unisono.errors import InvalidOption, MissingDependency
from unisono.model.addresses import is_unspecified
from unisono.model.effects import Datagram
from unisono.runtime.fault_injection import FaultInjection
from unisono.runtime.socket_setup import (
    MAX_UDP_PAYLOAD,
    Address,
    Addresses,
    ReceiveCallback,
    grow_buffers,
    kernel_drops,
    local_address,
    max_frame_to,
    open_bound_socket,
    open_multicast_socket,
    probe_address,
    resolve_all,
)

SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
_MAX_SEGMENTS = 64
_TRUNCATED = int(socket.MSG_TRUNC)
"""MSG_TRUNC as a plain int: arithmetic on the socket module's enumerations costs more than the rest of a read."""
_READ_BYTES = 65_536
_GRO_SPACE = socket.CMSG_SPACE(4) if hasattr(socket, "CMSG_SPACE") else 0
_NO_OFFLOAD_ERRORS = frozenset({errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.ENOPROTOOPT, errno.EOPNOTSUPP})
_SOCKET_FULL_ERRORS = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS})
_FLUSHES_PER_WAKE = 64
_NO_BUFFERS_RETRY_S = 0.001
_MIN_CHARGE_BYTES = 256
"""A lower limit of the memory that a received datagram takes in the receive buffer: an empty one takes more."""


@dataclass(slots=True)
class Traffic:
    """Counters of the datagrams and bytes that a transport has sent, or that it has received."""

    datagrams: int = 0
    bytes: int = 0
    syscalls: int = 0


@dataclass(slots=True)
class DatagramRun:
    """Datagrams to one destination that one system call can send. Each has `segment_bytes`; the last may be shorter."""

    address: Address
    buffers: list[bytes]
    segment_bytes: int
    total_bytes: int


def split_into_runs(datagrams: Sequence[Datagram], largest_segment: int) -> Iterator[tuple[Datagram, list[bytes], int]]:
    """Split datagrams into runs, each of which one system call can send.

    Yields for each run: its first datagram, the bytes of all its datagrams, and their total size.
    """
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
    """Sends datagrams through one non-blocking socket, and keeps those for which the socket has no room."""

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
        """Whether datagrams are waiting for room in the socket."""
        return bool(self._backlog)

    @property
    def backlog_datagrams(self) -> int:
        """How many datagrams are waiting for room in the socket."""
        return sum(len(run.buffers) for run in self._backlog)

    def attach(self, loop: asyncio.AbstractEventLoop, on_empty: Callable[[], None]) -> None:
        """Let this event loop send waiting datagrams, and call `on_empty` whenever all of them are sent."""
        self._loop, self._on_empty = loop, on_empty
        if self._backlog:
            self._wait_for_room(errno.EAGAIN)

    def send(self, run: DatagramRun) -> None:
        """Send a run now, or as soon as all earlier datagrams are sent and the socket has room."""
        if self._backlog or (refused := self._try_send(run)) is None:
            self._enqueue(run)
        elif refused:
            for part in refused:
                self.send(part)

    def flush(self, max_calls: int = sys.maxsize) -> bool:
        """Send as many waiting datagrams as the socket accepts now; return whether none is left."""
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
        """Detach from the event loop. The owner of the socket closes the socket."""
        self._stop_waiting()
        self._loop = self._on_empty = None

    def _try_send(self, run: DatagramRun) -> Sequence[DatagramRun] | None:
        """Try to send a run. Return None if the socket has no room, and an empty sequence if the run is done.

        If the kernel cannot send so much in one call, nothing is sent: return smaller runs to send instead.
        """
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
                # This kernel or device cannot segment datagrams: do not try again.
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
    """Reads datagrams from one non-blocking socket."""

    def __init__(self, sock: socket.socket, errors: Counter[str], *, multicast: bool, offload: bool = True) -> None:
        self.traffic = Traffic()
        self.fileno = sock.fileno()
        self.gro = offload and _set_option(sock, UDP_GRO)
        self.stopped = False
        """Set this to end a `read` in progress."""
        self._socket = sock
        self._errors = errors
        self._multicast = multicast

    def read(self, receive: ReceiveCallback, *, max_bytes: int, max_s: float | None) -> int:
        """Pass arrived datagrams to `receive` until there are no more or a limit is reached; return how many.

        Processing the datagrams counts against `max_s`, too; None is no limit. At least one datagram is read.
        """
        before, ends_at = self.traffic.datagrams, None if max_s is None else time.monotonic() + max_s
        while max_bytes > 0 and not self.stopped:
            size = self._read_one(receive)
            if size is None or (ends_at is not None and time.monotonic() >= ends_at):
                break
            max_bytes -= max(size, _MIN_CHARGE_BYTES)
        return self.traffic.datagrams - before

    def _read_one(self, receive: ReceiveCallback) -> int | None:
        """Make one system call; return how many bytes it read, or None if there was nothing to read."""
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
            # Usually an earlier send failed, for example with ECONNREFUSED: no process had the port open.
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


BUFFER_BYTES = 32 * 1024 * 1024
_BYTES_PER_WAKE = 1024 * 1024
_READ_S = 0.002
"""Reading pauses after this many bytes or this long, so that a flood of datagrams does not delay timers or the
application."""
_CLOSE_GRACE_S = 0.1


class UdpTransport:
    """Sends and receives one member's datagrams over UDP.

    The unicast socket sends everything, multicast included, so datagrams leave in the order of the calls.
    """

    def __init__(
        self,
        member: int,
        peers: Mapping[int, tuple[str, int]] | Addresses,
        *,
        bind: tuple[str, int] | None = None,
        multicast: tuple[str, int] | None = None,
        multicast_ttl: int = 1,
        receive_buffer: int = BUFFER_BYTES,
        send_buffer: int = BUFFER_BYTES,
        offload: bool = True,
        injection: FaultInjection | None = None,
        bound_socket: socket.socket | None = None,
    ) -> None:
        """`bound_socket` is a socket already bound to this member's address, if there is one; `close` closes it."""
        known = peers.by_member if isinstance(peers, Addresses) else peers
        if member not in known:
            raise InvalidOption(
                "peers", f"expected an address for every member, got none for member {member}, this process"
            )
        self.member = member
        self.errors: Counter[str] = Counter()
        """How many system calls failed, by the name of the error."""
        self.injection = injection
        """The faults to inject into received datagrams; None to inject none."""
        self.multicast_error: str | None = None
        """Why multicast does not work; None if it works or was not requested."""
        resolved = peers if isinstance(peers, Addresses) else resolve_all(peers)
        self._family, self._addresses = resolved.family, resolved.by_member
        here = self._addresses[member]
        if bind is not None:
            here = local_address(bind, self._family)
        sock = bound_socket if bound_socket is not None else open_bound_socket(self._family, here)
        self._sockets = [sock]
        self._multicast_address: Address | None = None
        self._interface = here[0]
        if multicast is not None:
            self._join_multicast(sock, multicast, here[0], multicast_ttl)
        granted = [grow_buffers(each, receive_buffer, send_buffer) for each in self._sockets]
        self.receive_buffer_granted = min(receive for receive, _ in granted)
        self.send_buffer_granted = granted[0][1]
        self._outbox = Outbox(sock, self.errors, offload=offload)
        self._inboxes = [
            Inbox(each, self.errors, multicast=each is not sock, offload=offload) for each in self._sockets
        ]
        self._routes: dict[tuple[int, ...], tuple[Address, ...]] = {}
        """The addresses to send to, by the member numbers of the destinations."""
        self._largest_segment = self.max_frame()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receive: ReceiveCallback | None = None
        self._on_batch_done: Callable[[], None] | None = None
        self._paused = self._closed = self._reading = False
        self._dropped = 0

    def _join_multicast(self, sender: socket.socket, group: tuple[str, int], bound_to: str, ttl: int) -> None:
        # A socket that is bound to all addresses receives the group on the interface where the peers reach this member.
        interface = self._addresses[self.member][0] if is_unspecified(bound_to) else bound_to
        try:
            receiver, self._multicast_address = open_multicast_socket(sender, group, interface, ttl)
        except (OSError, MissingDependency) as error:
            self.multicast_error = f"multicast to {group[0]} port {group[1]} at {interface}: {error}"
            return
        self._interface = interface
        self._sockets.append(receiver)

    # -- properties and counters -----------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        """The address that the unicast socket is bound to."""
        host, port = self._sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def gso(self) -> bool:
        """Whether one system call can send many datagrams (UDP_SEGMENT)."""
        return self._outbox.gso

    @property
    def gro(self) -> bool:
        """Whether one system call can receive many datagrams (UDP_GRO)."""
        return self._inboxes[0].gro

    @property
    def sent(self) -> Traffic:
        """Counters of sent datagrams."""
        return self._outbox.traffic

    @property
    def received(self) -> Traffic:
        """Counters of received datagrams, by unicast and multicast together."""
        parts = [inbox.traffic for inbox in self._inboxes]
        return Traffic(sum(p.datagrams for p in parts), sum(p.bytes for p in parts), sum(p.syscalls for p in parts))

    def dropped(self) -> int:
        """How many datagrams the kernel dropped because the receive buffers were full."""
        if not self._closed:
            self._dropped = sum(map(kernel_drops, self._sockets))
        return self._dropped

    def counters(self) -> Mapping[str, int]:
        """The sizes of the granted socket buffers and of the datagrams that wait for room, in bytes, by name."""
        return {
            "receive_buffer_bytes": self.receive_buffer_granted,
            "send_buffer_bytes": self.send_buffer_granted,
            "send_backlog_bytes": self._outbox.backlog_bytes,
        }

    def max_frame(self) -> int:
        """The size in bytes of the largest datagram that reaches every peer, and the multicast group, unfragmented."""
        sizes = [max_frame_to(self._family, address) for address in self._addresses.values()]
        if self._multicast_address is not None:
            sizes.append(max_frame_to(self._family, self._multicast_address, self._interface))
        return min(sizes)

    # -- sending ---------------------------------------------------------------------------------------------

    def send(self, datagrams: Sequence[Datagram]) -> None:
        """Send datagrams in order, or keep them until the socket has room. Never blocks."""
        outbox = self._outbox
        for first, buffers, size in split_into_runs(datagrams, self._largest_segment if outbox.gso else -1):
            segment = len(buffers[0])
            for address in self._addresses_of(first, len(buffers)):
                outbox.send(DatagramRun(address, buffers, segment, size))

    def _addresses_of(self, datagram: Datagram, count: int) -> tuple[Address, ...]:
        """The addresses that a datagram goes to. If a member has no address, count an error for `count` datagrams."""
        if datagram.multicast and self._multicast_address is not None:
            return (self._multicast_address,)
        addresses = self._routes.get(datagram.destinations)
        if addresses is None:
            known = self._addresses
            addresses = tuple(known[member] for member in datagram.destinations if member in known)
            self._routes[datagram.destinations] = addresses
        missing = len(datagram.destinations) - len(addresses)
        if missing:
            self.errors["NO_ADDRESS"] += count * missing
        return addresses

    def writable(self) -> bool:
        """Whether no datagram waits for room in the socket. If one does, send no more until `on_batch_done`."""
        return not self._outbox.has_backlog

    # -- receiving -------------------------------------------------------------------------------------------

    def attach(
        self, loop: asyncio.AbstractEventLoop, receive: ReceiveCallback, on_batch_done: Callable[[], None]
    ) -> None:
        """Start to read in this event loop.

        Call `receive` with datagrams as they arrive. Call `on_batch_done` after each batch of them, and when datagrams
        that waited for room are sent.
        """
        self._receive = receive if self.injection is None else self.injection.wrap(receive, on_batch_done)
        self._loop, self._on_batch_done = loop, on_batch_done
        self._outbox.attach(loop, on_batch_done)
        if not self._paused:
            self._watch()

    def drain(self) -> int:
        """Pass all datagrams that have arrived to `receive`, without calling `on_batch_done`; return how many.

        Read nothing while reading is paused. Stop after as much as the receive buffer can hold: that is everything that
        arrived before this call, and a flood of datagrams cannot keep this function busy for ever. There is no limit in
        time. A timer that fires while an earlier datagram waits would take its sender for silent.
        """
        if self._receive is None or self._paused or self._closed or self._reading:
            return 0
        # The kernel stores up to twice the granted size, and one more datagram.
        room = 2 * self.receive_buffer_granted + 65_536
        return sum(self._read(inbox, self._receive, room, None) for inbox in self._inboxes)

    def pause_reading(self) -> None:
        """Leave arriving datagrams in the kernel's receive buffer until `resume_reading`."""
        if not self._paused:
            self._paused = True
            self._unwatch()

    def resume_reading(self) -> None:
        """Read datagrams again, after `pause_reading`."""
        if self._paused and not self._closed:
            self._paused = False
            self._watch()

    def _on_readable(self, inbox: Inbox) -> None:
        if self._receive is None or self._on_batch_done is None:
            return
        self._read(inbox, self._receive, _BYTES_PER_WAKE, _READ_S)
        if not self._closed:
            self._on_batch_done()

    def _read(self, inbox: Inbox, receive: ReceiveCallback, max_bytes: int, max_s: float | None) -> int:
        self._reading = True
        try:
            return inbox.read(receive, max_bytes=max_bytes, max_s=max_s)
        finally:
            self._reading = False

    def _watch(self) -> None:
        for inbox in self._inboxes:
            inbox.stopped = False
            if self._loop is not None:
                self._loop.add_reader(inbox.fileno, self._on_readable, inbox)

    def _unwatch(self) -> None:
        for inbox in self._inboxes:
            inbox.stopped = True
            if self._loop is not None:
                self._loop.remove_reader(inbox.fileno)

    async def unreachable(self, members: Sequence[int]) -> Mapping[int, int]:
        """Probe the addresses of these members; return the number (errno) of the network's answer, by member."""
        answers = await asyncio.gather(*(probe_address(self._family, self._addresses[member]) for member in members))
        return {member: number for member, number in zip(members, answers, strict=True) if number is not None}

    def close(self) -> None:
        """Send waiting datagrams for at most a tenth of a second, and close the sockets."""
        if self._closed:
            return
        self.dropped()  # stores the count, which a closed socket cannot report
        self._closed = True
        self._unwatch()
        self._outbox.close()
        if self.injection is not None:
            self.injection.close()
        give_up = time.monotonic() + _CLOSE_GRACE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._sockets[0], selectors.EVENT_WRITE)
            while not self._outbox.flush() and (left := give_up - time.monotonic()) > 0:
                selector.select(left)
        if self._outbox.has_backlog:
            self.errors["UNSENT_AT_CLOSE"] += self._outbox.backlog_datagrams
        for sock in self._sockets:
            sock.close()
