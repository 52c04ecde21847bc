"""A transport in memory: it replaces the sockets of `UdpTransport` by a queue."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from unisono.errors import GroupClosed
from unisono.model.effects import Datagram
from unisono.runtime.fault_injection import FaultInjection
from unisono.runtime.socket_setup import ReceiveCallback
from unisono.runtime.udp import Traffic

MAX_FRAME_BYTES = 1472
"""The size in bytes of the largest datagram, as on an Ethernet without fragmentation."""
RECEIVE_BUFFER_BYTES = 32 * 1024 * 1024

Address = tuple[str, int]
Carry = Callable[["MemoryTransport", Address, bytes, bool], None]
"""A function that carries a datagram.

Arguments: the sending transport, the destination address, the bytes, and whether the datagram goes by multicast.
"""
Refuses = Callable[["MemoryTransport", int, Address], bool]
"""A function that says whether the network refuses datagrams of a transport to this member at this address."""


class MemoryTransport:
    """Sends and receives the datagrams of one member on a network in memory."""

    multicast_error = None
    """None, because multicast always works in memory."""
    receive_buffer_granted = RECEIVE_BUFFER_BYTES

    def __init__(
        self,
        member: int,
        addresses: Mapping[int, Address],
        carry: Carry,
        on_close: Callable[[MemoryTransport], None],
        *,
        refuses: Refuses,
        injection: FaultInjection | None,
    ) -> None:
        self.member = member
        self.address = addresses[member]
        self.errors: Counter[str] = Counter()
        self.received = Traffic()
        self._addresses = dict(addresses)
        self._carry, self._on_close, self._injection = carry, on_close, injection
        self._refuses = refuses
        self._inbox: deque[tuple[bytes, bool]] = deque()
        self._inbox_bytes = self._dropped = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receive: ReceiveCallback | None = None
        self._on_batch_done: Callable[[], None] | None = None
        self._paused = self._stopped = self._closed = self._read_scheduled = self._reading = False

    # -- the interface that the driver uses --------------------------------------------------------------------

    def attach(
        self, loop: asyncio.AbstractEventLoop, receive: ReceiveCallback, on_batch_done: Callable[[], None]
    ) -> None:
        self._receive = receive if self._injection is None else self._injection.wrap(receive, on_batch_done)
        self._loop, self._on_batch_done = loop, on_batch_done
        self._schedule_read()

    def send(self, datagrams: Sequence[Datagram]) -> None:
        if self._closed:
            raise GroupClosed("this member's transport is closed")
        for datagram in datagrams:
            for destination in datagram.destinations:
                address = self._addresses.get(destination)
                if address is None:
                    self.errors["NO_ADDRESS"] += 1
                else:
                    self._carry(self, address, datagram.data, datagram.multicast)

    def writable(self) -> bool:
        return True

    def drain(self) -> int:
        count = 0
        if self._receive is None or not self._may_read() or self._reading:
            return 0
        self._reading = True
        try:
            while self._inbox and self._may_read():
                data, multicast = self._inbox.popleft()
                self._inbox_bytes -= len(data)
                self._receive(data, 0, len(data), max(1, len(data)), multicast)
                self.received.datagrams += 1
                self.received.bytes += len(data)
                count += 1
        finally:
            self._reading = False
        return count

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._schedule_read()

    def dropped(self) -> int:
        return self._dropped

    def counters(self) -> Mapping[str, int]:
        """Return no counters: a transport in memory has no socket buffers to report on."""
        return {}

    def max_frame(self) -> int:
        return MAX_FRAME_BYTES

    async def unreachable(self, members: Sequence[int]) -> Mapping[int, int]:
        """The members at whose address no transport is open, with ECONNREFUSED."""
        refused = [member for member in members if self._refuses(self, member, self._addresses[member])]
        return dict.fromkeys(refused, errno.ECONNREFUSED)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._inbox.clear()
            if self._injection is not None:
                self._injection.close()
            self._on_close(self)

    # -- the interface that the network uses -------------------------------------------------------------------

    def arrive(self, data: bytes, multicast: bool) -> None:
        """Store a datagram that has arrived, or drop it if the receive buffer is full, as a kernel does."""
        if self._closed:
            return
        if self._inbox_bytes + len(data) > RECEIVE_BUFFER_BYTES:
            self._dropped += 1
            return
        self._inbox.append((data, multicast))
        self._inbox_bytes += len(data)
        self._schedule_read()

    def stop(self) -> None:
        """Read no datagrams until `start`, because the member is paused."""
        self._stopped = True

    def start(self) -> None:
        """Read datagrams again, after `stop`."""
        self._stopped = False
        self._schedule_read()

    def _may_read(self) -> bool:
        return not (self._paused or self._stopped or self._closed)

    def _schedule_read(self) -> None:
        if self._inbox and self._loop is not None and not self._read_scheduled and self._may_read():
            self._read_scheduled = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._read_scheduled = False
        if self.drain() and self._on_batch_done is not None and not self._closed:
            self._on_batch_done()
