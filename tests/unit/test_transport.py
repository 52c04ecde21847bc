"""UDP over the loopback interface: batching and its fallbacks, multicast, the backlog, and helpful errors."""

import asyncio
import errno
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import AddressInUse, InvalidOption, MissingDependency
from unisono.model.effects import Datagram
from unisono.runtime import udp as transport_module
from unisono.runtime.socket_setup import MAX_UDP_PAYLOAD, Address
from unisono.runtime.udp import DatagramRun, Inbox, Outbox, UdpTransport, split_into_runs

GROUP = "239.77.77.77"
Peers = dict[int, tuple[str, int]]


def free_peers(count: int, host: str = "127.0.0.1") -> Peers:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sockets = [socket.socket(family, socket.SOCK_DGRAM) for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind((host, 0))
        return {member: (host, sock.getsockname()[1]) for member, sock in enumerate(sockets, start=1)}
    finally:
        for sock in sockets:
            sock.close()


class Member:
    """A transport that keeps the datagrams it receives."""

    def __init__(self, me: int, peers: Peers, **options: Any) -> None:
        self.transport = UdpTransport(me, peers, **options)
        self.got: list[tuple[bytes, bool]] = []
        self.afters = 0
        self._event = asyncio.Event()
        self.transport.attach(asyncio.get_running_loop(), self._receive, self._after)

    def _receive(self, data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
        self.got += [(data[at : min(at + segment, end)], multicast) for at in range(start, max(end, 1), segment)]

    def _after(self) -> None:
        self.afters += 1
        self._event.set()

    @property
    def payloads(self) -> list[bytes]:
        return [data for data, _ in self.got]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._event.clear()
                await self._event.wait()

    async def until_got(self, count: int) -> None:
        await self.until(lambda: len(self.got) >= count)


@asynccontextmanager
async def members(count: int, *, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[list[Member]]:
    peers = free_peers(count, host)
    group: list[Member] = []
    try:
        for me in peers:
            group.append(Member(me, peers, **options))  # noqa: PERF401 - those opened so far are closed on an error
        yield group
    finally:
        for member in group:
            member.transport.close()


def to(members: int | tuple[int, ...], *payloads: bytes, multicast: bool = False) -> list[Datagram]:
    destinations = (members,) if isinstance(members, int) else members
    return [Datagram(destinations, payload, multicast=multicast) for payload in payloads]


MIXED = [
    *(bytes([n]) * 1400 for n in range(70)),  # more than one call carries
    b"short",
    b"s",
    *(bytes([n]) * 20_000 for n in range(5)),
    b"longer" * 1000,
    b"x" * 60_000,
    b"y" * 60_000,
    *(bytes([n]) * 9 for n in range(100)),
]

offload = pytest.mark.parametrize("offload", [True, False])


@offload
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_round_trip_of_equal_and_unequal_sizes(offload: bool, host: str) -> None:
    async def scene() -> None:
        async with members(3, host=host, offload=offload) as (one, two, three):
            one.transport.send(to(2, *MIXED))
            await two.until_got(len(MIXED))
            assert two.payloads == MIXED
            assert three.got == []
            assert not any(multicast for _, multicast in two.got)
            sent, received = one.transport.sent, two.transport.received
            assert sent.datagrams == received.datagrams == len(MIXED)
            assert sent.bytes == received.bytes == sum(map(len, MIXED))
            if one.transport.gso:
                assert sent.syscalls < len(MIXED) // 5
            else:
                assert sent.syscalls == len(MIXED)
            assert not one.transport.errors
            assert two.transport.dropped() == 0

    try:
        asyncio.run(scene())
    except (MissingDependency, OSError):
        if host == "::1" and not _has_ipv6():
            pytest.skip("no IPv6 on this machine")
        raise


def _has_ipv6() -> bool:
    try:
        free_peers(1, "::1")
    except OSError:
        return False
    return True


def test_segmented_calls_reach_a_receiver_without_offload_and_the_reverse() -> None:
    async def scene() -> None:
        peers = free_peers(2)
        one, two = Member(1, peers, offload=True), Member(2, peers, offload=False)
        assert not two.transport.gro
        one.transport.send(to(2, *MIXED))
        two.transport.send(to(1, *MIXED))
        await one.until_got(len(MIXED))
        await two.until_got(len(MIXED))
        assert one.payloads == two.payloads == MIXED
        one.transport.close()
        two.transport.close()

    asyncio.run(scene())


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's offloads")
def test_offload_is_used_where_the_kernel_has_it() -> None:
    async def scene() -> None:
        async with members(2) as (one, two):
            if not (one.transport.gso and two.transport.gro):
                pytest.skip("this kernel has no UDP offload")
            one.transport.send(to(2, *[b"z" * 1000] * 64))
            await two.until_got(64)
            assert one.transport.sent.syscalls == 1
            assert two.transport.received.syscalls <= 3

    asyncio.run(scene())


@offload
def test_unicast_copies_reach_the_destinations(offload: bool) -> None:
    async def scene() -> None:
        async with members(4, offload=offload) as (one, two, three, four):
            one.transport.send(
                to((2, 3, 4), b"a", b"b", multicast=True)
            )  # without multicast each member gets a unicast copy
            for member in (two, three, four):
                await member.until_got(2)
            one.transport.send([*to((2, 4), b"c"), *to(3, b"only you"), *to((2, 4), b"d")])
            for member in (two, four):
                await member.until_got(4)
            await three.until_got(3)
            assert two.payloads == four.payloads == [b"a", b"b", b"c", b"d"]
            assert three.payloads == [b"a", b"b", b"only you"]
            assert one.got == []

    asyncio.run(scene())


def free_group() -> tuple[str, int]:
    return (GROUP, free_peers(1)[1][1])


@offload
def test_multicast_round_trip(offload: bool) -> None:
    async def scene() -> None:
        async with members(3, multicast=free_group(), offload=offload) as (one, two, three):
            error = one.transport.multicast_error
            if error is not None:
                pytest.skip(error)
            payloads = [bytes([n]) * 1200 for n in range(30)]
            one.transport.send(to((2, 3), *payloads, multicast=True))
            two.transport.send([*to(1, b"directly"), *to((), b"to all", multicast=True)])
            for member in (two, three):
                await member.until_got(31)
                multicast = [data for data, by_multicast in member.got if by_multicast]
                assert [data for data in multicast if data != b"to all"] == payloads
            await one.until_got(32)  # the sender receives its own datagrams, which the door refuses
            assert (b"directly", False) in one.got
            assert (b"to all", True) in one.got
            assert one.transport.sent.datagrams == 30  # once, not once per peer

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("host", "group", "why"),
    [
        ("127.0.0.1", ("127.0.0.1", 5000), "not a multicast address"),
        ("127.0.0.1", ("no such name.invalid", 5000), "cannot be resolved"),
        ("::1", (GROUP, 5000), "IPv4"),
    ],
)
def test_without_multicast_unicast_is_used(host: str, group: tuple[str, int], why: str) -> None:
    async def scene() -> None:
        async with members(2, host=host, multicast=group) as (one, two):
            assert why in (one.transport.multicast_error or "")
            one.transport.send(to(2, b"hello", multicast=True))
            await two.until_got(1)
            assert two.got == [(b"hello", False)]

    if host == "::1" and not _has_ipv6():
        pytest.skip("no IPv6 on this machine")
    asyncio.run(scene())


def test_the_largest_frame_on_loopback_arrives() -> None:
    async def scene() -> None:
        async with members(2) as (one, two):
            size = one.transport.max_frame()
            assert 1400 <= size <= MAX_UDP_PAYLOAD
            one.transport.send(to(2, b"m" * size, b"n" * size))
            await two.until_got(2)
            assert two.payloads == [b"m" * size, b"n" * size]

    asyncio.run(scene())


def test_the_largest_frame_is_the_smallest_of_the_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = free_peers(3)
    mtu = {port: 1472 if member == 3 else 8972 for member, (_, port) in peers.items()}
    monkeypatch.setattr(transport_module, "max_frame_to", lambda family, address, interface=None: mtu[address[1]])
    transport = UdpTransport(1, peers)
    assert transport.max_frame() == 1472
    transport.close()


def test_buffers_are_granted_and_reported() -> None:
    transport = UdpTransport(1, free_peers(1), receive_buffer=100_000, send_buffer=50_000)
    assert transport.receive_buffer_granted == 100_000
    assert transport.counters()["send_buffer_bytes"] == 50_000
    transport.close()


# -- errors that help ----------------------------------------------------------------------------------------------


def test_the_error_for_a_port_in_use_says_what_to_do() -> None:
    peers = free_peers(1)
    first = UdpTransport(1, peers)
    with pytest.raises(AddressInUse, match=rf"port {peers[1][1]} of 127\.0\.0\.1 is in use.*another port") as refused:
        UdpTransport(1, peers)
    assert (refused.value.host, refused.value.port) == peers[1]
    assert not isinstance(refused.value, MissingDependency)
    first.close()
    UdpTransport(1, peers).close()


@pytest.mark.parametrize(
    ("host", "advice"),
    [("192.0.2.77", "not an address of this machine"), ("no-such-host.invalid", "member 1 cannot be resolved")],
)
def test_the_error_for_a_wrong_address_says_what_to_do(host: str, advice: str) -> None:
    with pytest.raises(MissingDependency, match=advice):
        UdpTransport(1, {1: (host, 4000)})


def test_members_need_addresses_in_one_family() -> None:
    with pytest.raises(MissingDependency, match="no address family in common"):
        UdpTransport(1, {1: ("127.0.0.1", 4000), 2: ("::1", 4000)})


def test_a_host_with_neither_family_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = socket.getaddrinfo

    def getaddrinfo(host: str, *rest: Any, **more: Any) -> Any:
        return [] if host == "odd.example" else look_up(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    expected = r"\(127\.0\.0\.1 of member 1 has IPv4 only, odd\.example of member 2 has neither IPv4 nor IPv6\)"
    with pytest.raises(MissingDependency, match=expected):
        UdpTransport(1, {1: ("127.0.0.1", 4000), 2: ("odd.example", 4000)})


def test_members_without_address_are_refused() -> None:
    with pytest.raises(InvalidOption, match="member 7"):
        UdpTransport(7, free_peers(1))
    transport = UdpTransport(1, free_peers(1))
    transport.send(to(9, b"no address", b"no address"))
    transport.send(to((8, 9), b"no address"))
    assert transport.errors == Counter({"NO_ADDRESS": 4})
    transport.close()


def test_the_bound_address_may_differ_from_the_address_that_peers_use() -> None:
    peers = free_peers(1)
    transport = UdpTransport(1, peers, bind=("0.0.0.0", peers[1][1]))
    assert transport.address == ("0.0.0.0", peers[1][1])
    transport.close()
    transport.close()


def test_errors_of_the_system_are_counted_and_not_raised() -> None:
    async def scene() -> None:
        async with members(2) as (one, two):
            one.transport.send(to(2, b"t" * 70_000, b"fine"))
            await two.until_got(1)
            assert two.payloads == [b"fine"]
            assert one.transport.errors == Counter({"EMSGSIZE": 1})

    asyncio.run(scene())


# -- reading -------------------------------------------------------------------------------------------------------


def test_drain_reads_arrived_datagrams_and_pausing_leaves_them() -> None:
    async def scene() -> None:
        async with members(2) as (one, two):
            two.transport.pause_reading()
            one.transport.send(to(2, *(bytes([n]) * (n + 1) for n in range(200))))
            assert two.transport.drain() == 0
            two.transport.resume_reading()
            assert two.transport.drain() == 200
            assert two.payloads == [bytes([n]) * (n + 1) for n in range(200)]
            assert two.transport.drain() == 0
            assert two.afters == 0

    asyncio.run(scene())


def test_a_flood_is_read_in_bounded_portions() -> None:
    async def scene() -> None:
        async with members(2, offload=False) as (one, two):
            one.transport.send(to(2, *[b"flood"] * 5000))
            await two.until_got(5000)
            assert two.afters >= 2, "the limit by size counts at least 256 bytes for a datagram"

    asyncio.run(scene())


def test_reading_is_bounded_in_time() -> None:
    """Slow processing of datagrams lets the event loop have its turn after about 2 ms."""

    def process_slowly(*_: object) -> None:
        ends_at = time.monotonic() + 0.001
        while time.monotonic() < ends_at:
            pass

    async def scene() -> None:
        async with members(2, offload=False) as (one, two):
            transport = two.transport
            read, portions = transport._read, list[int]()

            def counted(*arguments: Any) -> int:
                portions.append(read(*arguments))
                return portions[-1]

            transport._read = counted  # type: ignore[method-assign, assignment]
            transport._receive = process_slowly
            one.transport.send(to(2, *[b"flood"] * 20))
            async with asyncio.timeout(30):
                while sum(portions) < 20:
                    await asyncio.sleep(0)
            assert max(portions) <= 2

    asyncio.run(scene())


def test_drain_reads_all_arrived_datagrams_however_long_that_takes() -> None:
    """A timer fires after `drain`: it must not miss a datagram that arrived before it."""

    async def scene() -> None:
        async with members(2, offload=False) as (one, two):
            got: list[bytes] = []

            def process_slowly(data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
                got.append(data[start:end])
                ends_at = time.monotonic() + 0.002
                while time.monotonic() < ends_at:
                    pass

            two.transport._receive = process_slowly
            one.transport.send(to(2, *[b"datagram"] * 49, b"the mark that the timer waits for"))
            assert two.transport.drain() == 50, "the processing takes 100 ms"
            assert got[-1] == b"the mark that the timer waits for"

    asyncio.run(scene())


def test_drain_ends_during_a_flood() -> None:
    """Every datagram read brings a new one. `drain` reads as much as the receive buffer can hold, and returns."""

    async def scene() -> None:
        async with members(2, offload=False, receive_buffer=8192) as (one, two):
            room = 2 * two.transport.receive_buffer_granted + 65_536
            most = -(-room // 1000)
            read = 0

            def send_another(*_: object) -> None:
                nonlocal read
                read += 1
                if read <= 2 * most:
                    one.transport.send(to(2, bytes(1000)))

            two.transport._receive = send_another
            one.transport.send(to(2, bytes(1000)))
            assert two.transport.drain() == most

    asyncio.run(scene())


def test_pausing_within_a_portion_ends_it() -> None:
    async def scene() -> None:
        peers = free_peers(2)
        one = UdpTransport(1, peers, offload=False)
        two = UdpTransport(2, peers, offload=False)
        got: list[bytes] = []

        def receive(data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
            got.append(data[start:end])
            two.pause_reading()

        two.attach(asyncio.get_running_loop(), receive, lambda: None)
        one.send(to(2, b"1", b"2", b"3"))
        for expected in (1, 2, 3):
            assert two.drain() == 1
            assert len(got) == expected
            two.resume_reading()
        one.close()
        two.close()

    asyncio.run(scene())


def test_a_receiver_may_close_the_transport() -> None:
    async def scene() -> None:
        peers = free_peers(2)
        one, two = UdpTransport(1, peers), UdpTransport(2, peers)
        closed = asyncio.Event()

        def receive(data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
            two.close()
            closed.set()

        two.attach(asyncio.get_running_loop(), receive, lambda: None)
        one.send(to(2, b"1", b"22", b"333"))
        async with asyncio.timeout(10):
            await closed.wait()
        one.close()
        assert not two.errors

    asyncio.run(scene())


# -- sending when the socket is full -------------------------------------------------------------------------------


def _need_offload(transport: UdpTransport) -> None:
    if not transport.gso:
        pytest.skip("this kernel has no UDP offload")


class Gated(socket.socket):
    """A UDP socket that refuses to send while `refusal` is set, and segmented calls while `segmented_refusal` is."""

    refusal = 0
    segmented_refusal = 0

    def sendto(self, data: Any, address: Any) -> int:  # type: ignore[override]
        if self.refusal:
            raise OSError(self.refusal, "planted")
        return super().sendto(data, address)

    def sendmsg(self, buffers: Any, *rest: Any) -> int:
        if self.refusal or self.segmented_refusal:
            raise OSError(self.refusal or self.segmented_refusal, "planted")
        return super().sendmsg(buffers, *rest)


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> list[Gated]:
    opened: list[Gated] = []

    def open_gated(family: socket.AddressFamily, address: Address) -> socket.socket:
        sock = Gated(family, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.bind(address)
        opened.append(sock)
        return sock

    monkeypatch.setattr(transport_module, "open_bound_socket", open_gated)
    return opened


@offload
@pytest.mark.parametrize("refusal", [errno.EAGAIN, errno.ENOBUFS])
def test_a_full_socket_delays_and_keeps_the_order(gates: list[Gated], offload: bool, refusal: int) -> None:
    async def scene() -> None:
        async with members(2, offload=offload) as (one, two):
            gates[0].refusal = refusal
            one.transport.send(to(2, *MIXED[:80]))
            one.transport.send(to(2, *MIXED[80:]))
            assert one.transport.counters()["send_backlog_bytes"] == sum(map(len, MIXED))
            assert not one.transport.writable()
            gates[0].refusal = 0
            await one.until(one.transport.writable)
            assert one.transport.counters()["send_backlog_bytes"] == 0
            await two.until_got(len(MIXED))
            assert two.payloads == MIXED
            assert not one.transport.errors

    asyncio.run(scene())


@pytest.mark.parametrize("refusal", [errno.EIO, errno.EINVAL, errno.ENOPROTOOPT])
@pytest.mark.parametrize("delayed", [False, True])
def test_after_a_refused_segmented_call_no_other_is_made(gates: list[Gated], refusal: int, delayed: bool) -> None:
    async def scene() -> None:
        async with members(2) as (one, two):
            _need_offload(one.transport)
            gates[0].segmented_refusal = refusal
            gates[0].refusal = errno.EAGAIN if delayed else 0
            one.transport.send(to(2, *MIXED))
            gates[0].refusal = 0
            await two.until_got(len(MIXED))
            assert two.payloads == MIXED
            assert not one.transport.gso
            assert one.transport.sent.syscalls <= len(MIXED) + 2
            assert not one.transport.errors

    asyncio.run(scene())


def test_closing_sends_waiting_datagrams(gates: list[Gated]) -> None:
    async def scene() -> None:
        async with members(2) as (one, two):
            gates[0].refusal = errno.EAGAIN
            one.transport.send(to(2, b"last words"))
            gates[0].refusal = 0
            one.transport.close()
            await two.until_got(1)
            assert two.payloads == [b"last words"]

    asyncio.run(scene())


def test_datagrams_unsent_at_close_are_counted(gates: list[Gated]) -> None:
    async def scene() -> None:
        async with members(2) as (one, _):
            gates[0].refusal = errno.EAGAIN
            one.transport.send(to(2, b"lost words", b"as long!!!", b"other length"))
            one.transport.send(to(2, b"more"))
            one.transport.close()
            assert one.transport.errors == Counter({"UNSENT_AT_CLOSE": 4})

    asyncio.run(scene())


@pytest.mark.skipif(sys.platform != "linux", reason="buffer accounting as on Linux")
def test_backlog_under_a_tiny_send_buffer(tmp_path: Path) -> None:
    """Loopback UDP never fills a send buffer, a Unix datagram socket does: the same outbox, a truly full socket."""

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        errors: Counter[str] = Counter()
        flushed = asyncio.Event()
        got: list[bytes] = []
        with receiver, sender:
            path = str(tmp_path / "receiver")
            receiver.bind(path)
            for sock in (sender, receiver):
                sock.setblocking(False)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            outbox = Outbox(sender, errors, offload=False)
            inbox = Inbox(receiver, errors, multicast=False, offload=False)
            outbox.attach(loop, flushed.set)
            payloads = [bytes([n]) * 1000 for n in range(100)]
            for payload in payloads:
                outbox.send(DatagramRun(cast("Address", path), [payload], len(payload), len(payload)))
            assert 0 < outbox.traffic.datagrams < 100
            assert outbox.backlog_bytes == 1000 * (100 - outbox.traffic.datagrams)

            def read() -> None:
                inbox.read(lambda data, start, end, *_: got.append(data[start:end]), max_bytes=1 << 20, max_s=1.0)

            loop.add_reader(receiver.fileno(), read)
            async with asyncio.timeout(10):
                await flushed.wait()
            read()
            loop.remove_reader(receiver.fileno())
            assert got == payloads
            assert outbox.backlog_bytes == 0
            assert not errors

    asyncio.run(scene())


# -- cutting into runs ---------------------------------------------------------------------------------------------

datagrams = st.builds(
    Datagram,
    st.sampled_from([(1,), (2,), (1, 2)]),
    st.sampled_from([0, 1, 5, 5, 5, 1400, 1400, 30_000, 65_507]).map(bytes),
    multicast=st.booleans(),
)


@given(st.lists(datagrams, max_size=200), st.sampled_from([-1, 0, 5, 1400, 65_507]))
def test_runs_keep_every_datagram_and_the_kernels_rules(given: Sequence[Datagram], largest: int) -> None:
    again = []
    for first, buffers, size in split_into_runs(given, largest):
        lengths = [len(data) for data in buffers]
        assert size == sum(lengths)
        if len(buffers) > 1:
            assert len(buffers) <= 64
            assert size <= MAX_UDP_PAYLOAD
            assert lengths[0] <= largest
            assert set(lengths[:-1]) == {lengths[0]}
            assert 0 < lengths[-1] <= lengths[0]
        again += [Datagram(first.destinations, data, multicast=first.multicast) for data in buffers]
    assert again == list(given)
