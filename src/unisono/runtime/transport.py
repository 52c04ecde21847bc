"""UDP between the members: IP multicast if it is available, else one unicast copy per member."""

from __future__ import annotations

import asyncio
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from unisono.errors import InvalidOption, MissingDependency
from unisono.model.effects import Datagram
from unisono.runtime.batching import Address, DatagramRun, Inbox, Outbox, ReceiveCallback, Traffic, split_into_runs
from unisono.runtime.fault_injection import FaultInjection
from unisono.runtime.sockets import (
    Addresses,
    address_in_family,
    grow_buffers,
    kernel_drops,
    max_frame_to,
    open_bound_socket,
    open_multicast_socket,
    resolve_all,
    resolve_host,
)

BUFFER_BYTES = 32 * 1024 * 1024
_READS_PER_WAKE = 64
_BYTES_PER_WAKE = 1024 * 1024
"""Reading pauses after this many bytes, so that a flood delays timers by well under a millisecond."""
_CLOSE_GRACE_S = 0.1


class UdpTransport:
    """One member's sockets. The unicast socket sends everything, so all datagrams leave in one order."""

    def __init__(
        self,
        member: int,
        peers: Mapping[int, tuple[str, int]] | Addresses,
        *,
        bind: tuple[str, int] | None = None,
        multicast: tuple[str, int] | None = None,
        receive_buffer: int = BUFFER_BYTES,
        send_buffer: int = BUFFER_BYTES,
        offload: bool = True,
        injection: FaultInjection | None = None,
        bound_socket: socket.socket | None = None,
    ) -> None:
        """`bound_socket` is an open socket at this member's address, if there is one; `close` closes it."""
        known = peers.by_member if isinstance(peers, Addresses) else peers
        if member not in known:
            raise InvalidOption("peers", f"there is no address for member {member} itself; add it")
        self.member = member
        self.errors: Counter[str] = Counter()
        """How many system calls failed, by the name of the error."""
        self.injection = injection
        """Faults to inject into received datagrams."""
        self.multicast_error: str | None = None
        """Why multicast does not work although the application asked for it."""
        resolved = peers if isinstance(peers, Addresses) else resolve_all(peers)
        self._family, self._addresses = resolved.family, resolved.by_member
        here = self._addresses[member]
        if bind is not None:
            here = address_in_family(resolve_host(bind, "the socket to bind"), self._family) or bind
        sock = bound_socket if bound_socket is not None else open_bound_socket(self._family, here)
        self._sockets = [sock]
        self._multicast_address: Address | None = None
        self._interface = here[0]
        if multicast is not None:
            self._join_multicast(sock, multicast, here[0])
        granted = [grow_buffers(each, receive_buffer, send_buffer) for each in self._sockets]
        self.receive_buffer_granted = min(receive for receive, _ in granted)
        self.send_buffer_granted = granted[0][1]
        self._outbox = Outbox(sock, self.errors, offload=offload)
        self._inboxes = [
            Inbox(each, self.errors, multicast=each is not sock, offload=offload) for each in self._sockets
        ]
        self._routes: dict[tuple[int, ...], tuple[Address, ...]] = {}
        """By destinations, their addresses."""
        self._largest_segment = self.max_frame()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receive: ReceiveCallback | None = None
        self._on_batch_done: Callable[[], None] | None = None
        self._paused = self._closed = self._reading = False
        self._dropped = 0

    def _join_multicast(self, sender: socket.socket, group: tuple[str, int], bound_to: str) -> None:
        # A socket that is bound to all addresses receives the group on the interface where the peers reach this member.
        interface = self._addresses[self.member][0] if bound_to in {"0.0.0.0", "::"} else bound_to
        try:
            receiver, self._multicast_address = open_multicast_socket(sender, group, interface)
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
    def multicasting(self) -> bool:
        """Whether datagrams to the whole group can go by IP multicast."""
        return self._multicast_address is not None

    @property
    def gso(self) -> bool:
        """Whether the kernel splits one call into many datagrams."""
        return self._outbox.gso

    @property
    def gro(self) -> bool:
        """Whether the kernel hands over many datagrams in one call."""
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
        """The sizes of the socket buffers that the kernel granted, in bytes."""
        return {"receive_buffer_bytes": self.receive_buffer_granted, "send_buffer_bytes": self.send_buffer_granted}

    def max_frame(self) -> int:
        """The largest datagram that reaches every peer, and the multicast group, unfragmented."""
        sizes = [max_frame_to(self._family, address) for address in self._addresses.values()]
        if self._multicast_address is not None:
            sizes.append(max_frame_to(self._family, self._multicast_address, self._interface))
        return min(sizes)

    # -- sending ---------------------------------------------------------------------------------------------

    def send(self, datagrams: Sequence[Datagram]) -> None:
        """Send datagrams, or keep them until the socket has room; never blocks, keeps the order to each destination."""
        outbox = self._outbox
        for first, buffers, size in split_into_runs(datagrams, self._largest_segment if outbox.gso else -1):
            segment = len(buffers[0])
            for address in self._addresses_of(first, len(buffers)):
                outbox.send(DatagramRun(address, buffers, segment, size))

    def _addresses_of(self, datagram: Datagram, count: int) -> tuple[Address, ...]:
        """The addresses that a datagram goes to; counts errors for `count` datagrams if a member has no address."""
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

    @property
    def backlog_bytes(self) -> int:
        """How many bytes wait for room in the socket."""
        return self._outbox.backlog_bytes

    def writable(self) -> bool:
        """Whether no datagram waits. While one waits, send no more; `on_batch_done` is called when all have gone."""
        return not self._outbox.has_backlog

    # -- receiving -------------------------------------------------------------------------------------------

    def attach(
        self, loop: asyncio.AbstractEventLoop, receive: ReceiveCallback, on_batch_done: Callable[[], None]
    ) -> None:
        """Call `receive` with datagrams as they arrive, and `on_batch_done` after each batch and each sent backlog."""
        self._receive = receive if self.injection is None else self.injection.wrap(receive)
        self._loop, self._on_batch_done = loop, on_batch_done
        self._outbox.attach(loop, on_batch_done)
        if not self._paused:
            self._watch()

    def drain(self) -> int:
        """Hand over all datagrams that have arrived, without calling `on_batch_done`; return how many.

        Read nothing while reading is paused. A flood does not keep this function busy for ever: it stops when it has
        read as much as the receive buffer can hold.
        """
        if self._receive is None or self._paused or self._closed or self._reading:
            return 0
        # The kernel allows twice the size that it calls granted, and one more datagram.
        room = 2 * self.receive_buffer_granted + 65_536
        return sum(self._read(inbox, self._receive, room, room) for inbox in self._inboxes)

    def pause_reading(self) -> None:
        """Leave arriving datagrams in the kernel's buffer."""
        if not self._paused:
            self._paused = True
            self._unwatch()

    def resume_reading(self) -> None:
        """Read again."""
        if self._paused and not self._closed:
            self._paused = False
            self._watch()

    def _on_readable(self, inbox: Inbox) -> None:
        if self._receive is None or self._on_batch_done is None:
            return
        self._read(inbox, self._receive, _READS_PER_WAKE, _BYTES_PER_WAKE)
        if not self._closed:
            self._on_batch_done()

    def _read(self, inbox: Inbox, receive: ReceiveCallback, max_calls: int, max_bytes: int) -> int:
        self._reading = True
        try:
            return inbox.read(receive, max_calls=max_calls, max_bytes=max_bytes)
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

    def close(self) -> None:
        """Send waiting datagrams, for a tenth of a second at most, and close the sockets."""
        if self._closed:
            return
        self.dropped()  # the sockets can be asked for the count only while they are open
        self._closed = True
        self._unwatch()
        self._outbox.close()
        give_up = time.monotonic() + _CLOSE_GRACE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._sockets[0], selectors.EVENT_WRITE)
            while not self._outbox.flush() and (left := give_up - time.monotonic()) > 0:
                selector.select(left)
        if self._outbox.has_backlog:
            self.errors["UNSENT_AT_CLOSE"] += 1
        for sock in self._sockets:
            sock.close()
