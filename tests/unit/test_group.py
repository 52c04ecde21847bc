"""Options that `join` refuses before it opens a socket: each error names the field and a possible value."""

import asyncio
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.joining import join_group

import unisono
from unisono.cluster.supervisor import free_addresses
from unisono.errors import MissingDependency
from unisono.group import PendingJoin
from unisono.net.fec import layer
from unisono.runtime.environment import UdpEnvironment

PAIR = unisono.Topology({"a": (1,), "b": (2,)}, {"a": ("a", "b"), "b": ("a", "b")})
PEERS = {1: "127.0.0.1:9001", 2: "127.0.0.1:9002", 3: "127.0.0.1:9003"}


def join(**options: Any) -> PendingJoin:
    return join_group("table", **{"member": 1, "peers": PEERS, "max_message": 500, **options})


def slot_ns(joining: PendingJoin) -> int:
    return joining._setup.plan.timing.theta_ns


def test_join_opens_nothing_before_it_is_awaited() -> None:
    link = unisono.Link("100Mbit/s")
    join(link=link)
    assert link.free_bytes_per_s == link.capacity_bytes_per_s


def test_a_deadline_chooses_the_longest_slot_that_keeps_it() -> None:
    assert slot_ns(join(deadline="60ms", delta="20ms", gamma="2ms")) == 38_000_000
    assert slot_ns(join(deadline="25ms", delta="20ms", gamma="2ms")) == 3_000_000
    assert slot_ns(join(deadline="10s", delta="20ms", gamma="2ms")) == 50_000_000, "no slot is longer than that"
    assert slot_ns(join(deadline="60ms", slot="5ms")) == 5_000_000, "a slot that was asked for stays"
    assert slot_ns(join()) == 5_000_000
    assert slot_ns(join(deadline="22.5ms", delta="20ms", gamma="2ms")) == 500_000


def test_the_error_for_an_impossible_deadline_states_the_best_bound() -> None:
    with pytest.raises(unisono.Infeasible, match=r"Δ\+Γ\+Θ = 20ms \+ 2ms \+ 500us; the best offer is 22\.5 ms") as no:
        join(deadline="22ms", delta="20ms", gamma="2ms")
    assert (no.value.asked_ns, no.value.offered_ns) == (22_000_000, 22_500_000)
    join(deadline=f"{no.value.offered_ns}ns", delta="20ms", gamma="2ms")
    with pytest.raises(unisono.Infeasible, match="the best offer is 32 ms"):
        join(deadline="30ms", slot="10ms", delta="20ms", gamma="2ms")


def test_the_error_for_a_rate_above_the_link_states_the_free_capacity() -> None:
    link = unisono.Link("10Mbit/s")
    with pytest.raises(unisono.ReservationRefused, match="1,250,000 B/s free") as no:
        join(link=link, rate=unisono.Rate(avg=50, burst=8), max_message=4096)
    assert no.value.free_bytes_per_s == 1_250_000
    assert link.free_bytes_per_s == 1_250_000
    join(link=link, rate=unisono.Rate(avg=40, burst=2), slot="50ms")


def test_multicast_leaves_in_one_copy() -> None:
    rate, link = unisono.Rate(avg=50, burst=2), unisono.Link("700kB/s")
    options: dict[str, Any] = {"rate": rate, "link": link, "max_message": 1000, "slot": "5ms"}
    join(**options, multicast="239.1.2.3:9000")
    with pytest.raises(unisono.ReservationRefused):
        join(**options)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"member": 4}, "peers"),
        ({"peers": {1: "127.0.0.1"}}, "peers[1]"),
        ({"peers": {1: "127.0.0.1:"}}, "peers[1]"),
        ({"peers": {1: "127.0.0.1:70000"}}, "peers[1]"),
        ({"peers": {1: "127.0.0.1:port"}}, "peers[1]"),
        ({"peers": {1: ":9001"}}, "peers[1]"),
        ({"peers": {1: ("127.0.0.1", 0)}}, "peers[1]"),
        ({"peers": {1: ("127.0.0.1", 65536)}}, "peers[1]"),
        ({"peers": {1: "127.0.0.1:9001", 2: ("127.0.0.1", 9001)}}, "peers"),
        ({"peers": {0: "127.0.0.1:9001"}, "member": 0}, "member"),
        ({"order": "chaos"}, "order"),
        ({"multicast": "239.1.1.1"}, "multicast"),
        ({"deadline": "soon"}, "deadline"),
        ({"slot": "5"}, "slot"),
        ({"slot": "10ns"}, "slot"),
        ({"delta": "-1ms"}, "delta"),
        ({"gamma": "2 parsecs"}, "gamma"),
        ({"timeout": "never"}, "timeout"),
        ({"max_message": 0}, "max_message"),
        ({"max_frame": 100}, "max_frame"),
        ({"queue_messages": 0}, "queue_messages"),
        ({"incarnation": -1}, "incarnation"),
        ({"rate": unisono.Rate(avg=1, burst=1, burst_bytes=10)}, "rate.burst_bytes"),
    ],
)
def test_the_error_for_a_bad_option_names_its_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(unisono.InvalidOption) as no:
        join(**options)
    assert no.value.field == field
    assert str(no.value).startswith(f"{field}: ")


@pytest.mark.parametrize("field", ["deadline", "slot", "delta", "gamma", "timeout", "processing"])
def test_a_duration_without_a_unit_is_refused(field: str) -> None:
    with pytest.raises(TypeError, match=rf"^{field}=60 has no unit; write '60ms'$"):
        join(**{field: 60}, **({"order": "leader"} if field == "processing" else {}))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda number: unisono.Redundancy(1, eta=number), "redundancy.eta"),
        (lambda number: unisono.Redundancy(1, eta="1ms", omega=number), "redundancy.omega"),
        (lambda number: unisono.Multigroup(PAIR, barrier_threshold=number), "barrier_threshold"),
        (lambda number: unisono.Multigroup(PAIR, window=number), "window"),
    ],
)
def test_a_duration_of_an_option_class_needs_a_unit(make: Callable[[Any], object], field: str) -> None:
    with pytest.raises(TypeError, match=rf"^{re.escape(field)}=60 has no unit; write '60ms'$"):
        make(60)
    with pytest.raises(unisono.InvalidOption, match=rf"^{re.escape(field)}: expected a duration with a unit"):
        make("60")


def test_equal_durations_of_option_classes_are_equal() -> None:
    assert unisono.Redundancy(2, eta="4ms", omega="1ms") == unisono.Redundancy(2, eta="4000us", omega="1000us")
    assert unisono.Redundancy(2, eta="4ms") != unisono.Redundancy(2, eta="5ms")
    assert unisono.Multigroup(PAIR, window="1s") == unisono.Multigroup(PAIR, window="1000ms")
    assert unisono.Multigroup(PAIR, window="1s") != unisono.Multigroup(PAIR, window="2s")


@pytest.mark.parametrize(
    "peers", [["127.0.0.1:9001", "127.0.0.1:9002"], ("127.0.0.1:9001",), {"127.0.0.1:9001"}, 9001, b"dns:table:9001"]
)
def test_peers_that_are_no_dict_are_refused_with_an_example(peers: object) -> None:
    with pytest.raises(
        unisono.InvalidOption, match=r"^peers: expected a dict .* \{1: '10\.0\.0\.7:9001', .*, got "
    ) as no:
        join(peers=peers)
    assert no.value.field == "peers"


@pytest.mark.parametrize(
    ("peers", "field"),
    [
        ({"1": "127.0.0.1:9001"}, "peers"),
        ({True: "127.0.0.1:9001"}, "peers"),
        ({1: 9001}, "peers[1]"),
        ({1: None}, "peers[1]"),
        ({1: ("127.0.0.1",)}, "peers[1]"),
        ({1: ("127.0.0.1", 9001, 0)}, "peers[1]"),
        ({1: (9001, "127.0.0.1")}, "peers[1]"),
        ({}, "peers"),
    ],
)
def test_peers_of_a_wrong_form_are_refused(peers: object, field: str) -> None:
    with pytest.raises(unisono.InvalidOption) as no:
        join(peers=peers)
    assert no.value.field == field


@pytest.mark.parametrize("missing", [True, False])
def test_an_sla_file_that_cannot_be_read_is_named(tmp_path: Path, missing: bool) -> None:
    path = tmp_path / "missing.toml" if missing else tmp_path
    with pytest.raises(unisono.InvalidOption, match=rf"^sla: cannot read {path} \(.*\); ") as no:
        join(sla=path)
    assert isinstance(no.value.__cause__, OSError)


def test_nothing_stays_reserved_when_the_stack_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order has reserved its rate when the FEC layer is built, and building that fails."""

    def fail(originals: int, redundant: int) -> None:
        raise RuntimeError(f"no code for {originals}+{redundant} shares")

    monkeypatch.setattr(layer, "prepare_coder", fail)
    link = unisono.Link("100Mbit/s")
    with pytest.raises(RuntimeError, match=r"no code for 4\+1 shares"):
        join(link=link, fec=(1, 5), failures=True)
    assert link.free_bytes_per_s == link.capacity_bytes_per_s


def test_bracketed_addresses_are_parsed() -> None:
    assert join(peers={1: "[::1]:9001"})._setup.place.addresses == {1: ("::1", 9001)}


@pytest.mark.parametrize("rate", [(0, 1), (float("nan"), 1), (50, 0), (float("inf"), 1)])
def test_impossible_rates_are_refused(rate: tuple[float, int]) -> None:
    with pytest.raises(unisono.InvalidOption, match=r"^rate\."):
        unisono.Rate(*rate)


# -- names ---------------------------------------------------------------------------------------------------------


def named(monkeypatch: pytest.MonkeyPatch, answer: Any) -> dict[int, tuple[str, int]]:
    """Members 1 and 2; `answer` resolves the host name of member 2."""
    peers = free_addresses((1, 2))
    look_up = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *rest: Any, **more: Any) -> Any:
        return answer(port) if host == "two.example" else look_up(host, port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return {1: peers[1], 2: ("two.example", peers[2][1])}


def loopback(port: int) -> Any:
    return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", port))]


def test_a_slow_name_server_does_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def slowly(port: int) -> Any:
        asked.set()
        may_answer.wait(30)
        return loopback(port)

    peers = named(monkeypatch, slowly)

    async def scene() -> None:
        async with asyncio.timeout(30):
            opening = [asyncio.ensure_future(join_group("table", member=m, peers=peers)._open()) for m in (1, 2)]
            while not asked.is_set():
                await asyncio.sleep(0.001)
            for _ in range(10):  # the loop goes on while the join waits
                await asyncio.sleep(0.001)
            assert not any(task.done() for task in opening)
            may_answer.set()
            groups = await asyncio.gather(*opening)
            assert [group.members for group in groups] == [(1, 2), (1, 2)]
            await asyncio.gather(*(group.leave() for group in groups))

    asyncio.run(scene())


def test_the_error_for_an_unknown_host_name_names_its_member(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(port: int) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    peers = named(monkeypatch, unknown)

    async def scene() -> None:
        with pytest.raises(MissingDependency, match=r"'two\.example' of member 2 cannot be resolved.*not known"):
            await join_group("table", member=1, peers=peers)

    asyncio.run(scene())


def test_the_error_for_a_name_server_timeout_names_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    may_answer = threading.Event()

    def never(port: int) -> Any:
        may_answer.wait(30)
        return loopback(port)

    peers = named(monkeypatch, never)

    async def scene() -> None:
        before = time.monotonic()
        try:
            with pytest.raises(MissingDependency, match=r"'two\.example' of member 2 .*no answer within 0\.1 s"):
                await join_group("table", member=1, peers=peers, timeout="100ms")
            assert time.monotonic() - before < 20
        finally:
            may_answer.set()

    asyncio.run(scene())


def test_a_cancelled_join_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def part() -> None:
        entered = asyncio.Event()

        async def endless(*_: object) -> None:
            entered.set()
            await asyncio.Event().wait()

        peers, link = free_addresses((1,)), unisono.Link("1Gbit/s")
        with monkeypatch.context() as patch:
            patch.setattr(UdpEnvironment, "serve_status", endless)
            joining = asyncio.ensure_future(join_group("table", member=1, peers=peers, link=link)._open())
            await asyncio.wait_for(entered.wait(), 30)
            joining.cancel()
            with pytest.raises(asyncio.CancelledError):
                await joining
        assert link.free_bytes_per_s == link.capacity_bytes_per_s
        async with join_group("table", member=1, peers=peers):  # its port is free again
            pass

    asyncio.run(part())
