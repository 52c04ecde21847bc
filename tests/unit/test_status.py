"""A member says what happens: its status, its log lines, and calls that end without a majority. All in virtual time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.worlds.joining import group_config, memory_network

import unisono
from unisono import testing
from unisono.testing import MemoryNetwork, deliveries
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import EventKind, RunMeta

MS = 1_000_000
PATIENCE_S = 600
Part = Callable[[MemoryNetwork], Awaitable[None]]


def play(part: Part, members: int = 3, **options: Any) -> None:
    """Run `part` on a group in virtual time."""

    async def scene() -> None:
        async with asyncio.timeout(PATIENCE_S), memory_network(members, **options) as net:
            await part(net)

    testing.run(scene())


async def until(holds: Callable[[], bool]) -> None:
    """Wait in virtual time until a condition holds. The time-out of the scene ends a wait that is in vain."""
    while not holds():
        await asyncio.sleep(0.01)


def texts(caplog: pytest.LogCaptureFixture, level: int, member: int) -> list[str]:
    """The texts of a member's log lines of one level."""
    prefix = f"group 'test', member {member}: "
    found = [record.getMessage() for record in caplog.records if record.levelno == level]
    return [text.removeprefix(prefix) for text in found if text.startswith(prefix)]


# -- status --------------------------------------------------------------------------------------------------------


LED = ("consensus", "leader", "timestamp")


@pytest.mark.parametrize("order", ["vbr", "cbr", "priority", *LED])
def test_the_status_of_a_healthy_group(order: str) -> None:
    async def part(net: MemoryNetwork) -> None:
        net.delay("2ms")
        for member in (1, 2, 3):
            await net[member].send(b"x")
        for member in (1, 2, 3):
            await deliveries(net[member], 3)
        await asyncio.sleep(2)
        found = {member: net[member].status() for member in (1, 2, 3)}
        first = found[1]
        assert (first.group, first.member, first.order, first.members) == ("test", 1, order, (1, 2, 3))
        assert (first.sent, first.delivered, first.undelivered) == (1, 3, 0)
        assert (first.waiting_to_send, first.waiting_for_application) == (0, 0)
        assert [peer.member for peer in first.peers] == [2, 3]
        assert {peer.state for peer in first.peers} == {"up"}
        assert all(peer.delay_ns is not None and 0 <= peer.delay_ns <= 2_001_000 for peer in first.peers)
        assert all(peer.last_heard_ns is not None and peer.last_heard_ns < 1_000_000_000 for peer in first.peers)
        assert first.delta_ns is not None
        assert first.delta_ns < 5_000_000
        assert first.delta_ns >= 2_000_000 or order not in ("vbr", "cbr")
        assert first.gamma_ns is not None
        assert first.bound_ns == net[1].bound_ns
        assert first.plan == net[1].plan.text()
        assert {status.leader for status in found.values()} == ({1} if order in LED else {None})
        roles = ["leader", "follower", "follower"] if order in LED else ["member"] * 3
        assert [found[member].role for member in (1, 2, 3)] == roles
        needs_majority = order in LED or order == "priority"
        assert {status.majority for status in found.values()} == {True if needs_majority else None}
        assert net[1].has_majority is first.majority

    play(part, order=order)


def test_the_json_form_of_a_status_has_the_documented_fields() -> None:
    async def part(net: MemoryNetwork) -> None:
        shown = json.loads(json.dumps(net[1].status().as_json()))
        assert {"role", "leader", "members", "majority", "peers"} <= shown.keys()
        assert {"member", "state", "last_heard_ms", "delay_ms", "loss", "lag"} == shown["peers"][0].keys()

    play(part, order="consensus")


def test_a_member_that_left_has_the_state_left() -> None:
    async def part(net: MemoryNetwork) -> None:
        net.crash(3)
        await until(lambda: net[1].members == (1, 2))
        states = {peer.member: peer.state for peer in net[1].status().peers}
        assert states == {2: "up", 3: "left"}

    play(part, order="vbr", failures=True)


@pytest.mark.parametrize("order", ["vbr", "cbr", "reliable"])
def test_a_silent_peer_of_an_order_without_failure_detection_is_suspected(order: str) -> None:
    async def part(net: MemoryNetwork) -> None:
        net.crash(3)
        await until(lambda: net[1].status().peers[1].state == "suspected")
        assert net[1].status().peers[0].state == "up"

    play(part, order=order)


def test_a_follower_that_is_cut_off_suspects_all_peers() -> None:
    """It has a time-out for the leader only, and hears the other followers by their probes."""

    async def part(net: MemoryNetwork) -> None:
        net.cut(3, (1, 2))
        await until(lambda: {peer.state for peer in net[3].status().peers} == {"suspected"})

    play(part, order="leader")


def test_messages_to_other_groups_do_not_count_as_undelivered() -> None:
    topology = unisono.Topology({"a": (1, 2), "b": (3,)}, {"a": ("a", "b"), "b": ("a", "b")})

    async def part(net: MemoryNetwork) -> None:
        for groups in (["a"], ["b"], ["a", "b"]):
            await net[1].send(b"x", to=groups)
        await deliveries(net[1], 2)
        await deliveries(net[3], 2)
        found = net[1].status()
        assert (found.sent, found.delivered, found.undelivered) == (3, 2, 0)
        assert [peer.member for peer in found.peers] == [2, 3]

    play(part, order="quasi_genuine", topology=topology)


@pytest.mark.parametrize("order", ["vbr", "cbr"])
def test_with_two_grades_only_final_deliveries_count(order: str) -> None:
    async def part(net: MemoryNetwork) -> None:
        net.cut(1, (2, 3))
        await until(lambda: net[1].has_majority is False)
        await net[1].send(b"x")
        await until(lambda: net[1].status().delivered == 1)
        assert net[1].status().undelivered == 1, "it is delivered early, and not final without a majority"

    play(part, order=order, grades="both", **({"failures": True} if order == "vbr" else {}))


# -- without a majority --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["consensus", "leader", "timestamp", "priority"])
def test_a_member_without_a_majority_says_so_and_says_when_that_ends(
    order: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def part(net: MemoryNetwork) -> None:
        lost: list[str] = []
        net[1].on_majority_lost(lost.append)
        net.cut(1, (2, 3))
        await until(lambda: bool(lost))
        found = net[1].status()
        assert (found.role, found.majority) == ("blocked", False)
        blocked = [text for text in texts(caplog, logging.WARNING, 1) if text.startswith("blocked: ")]
        assert len(blocked) == len(lost) == 1
        net.heal()
        await until(lambda: net[1].has_majority is True)
        await until(lambda: any("has a majority again" in text for text in texts(caplog, logging.WARNING, 1)))

    with caplog.at_level(logging.INFO, "unisono"):
        play(part, order=order)


@pytest.mark.parametrize("order", ["leader", "timestamp"])
def test_flush_at_a_follower_ends_if_its_leader_has_no_majority(order: str) -> None:
    async def part(net: MemoryNetwork) -> None:
        lost: list[str] = []
        net[2].on_majority_lost(lost.append)
        for member in (3, 4, 5):
            net.crash(member)
        await until(lambda: net[1].has_majority is False)
        await net[2].send(b"x")
        with pytest.raises(unisono.NoMajority):
            await net[2].flush()
        await until(lambda: bool(lost))
        found = net[2].status()
        assert (found.role, found.leader, found.majority, len(lost)) == ("blocked", 1, False, 1)

    play(part, members=5, order=order)


def test_send_with_a_timeout_ends_without_a_majority() -> None:
    async def part(net: MemoryNetwork) -> None:
        net.cut(1, (2, 3))
        await until(lambda: net[1].has_majority is False)
        with pytest.raises(
            unisono.NoMajority, match=r"no room for the message within 2s, because .* no majority"
        ) as no:
            await net[1].send_many([b"x" * 100] * 100_000, timeout="2s")
        assert "messages were accepted; the others are not sent" in no.value.__notes__[0]
        assert net[1].status().undelivered > 0

    play(part, order="consensus", rate=unisono.Rate(avg=100_000, burst=1000), slot="10ms", max_message=100)


def test_send_with_a_timeout_raises_timeout_if_the_rate_has_no_room() -> None:
    async def part(net: MemoryNetwork) -> None:
        with pytest.raises(
            unisono.Timeout, match=r"^the group had no room for the message within 500ms\n2 of 50 messages"
        ) as no:
            await net[1].send_many([b"x"] * 50, timeout="500ms")
        assert not isinstance(no.value, unisono.NoMajority)
        assert net[1].status().waiting_to_send == 0
        await net[1].send(b"y", timeout="20s")

    play(part, order="vbr", rate=unisono.Rate(avg=1, burst=2))


def test_a_timeout_without_a_unit_is_refused() -> None:
    async def part(net: MemoryNetwork) -> None:
        with pytest.raises(TypeError, match=r"^timeout=2 has no unit"):
            await net[1].send(b"x", timeout=2)  # type: ignore[arg-type]

    play(part)


def test_a_member_that_leaves_without_a_majority_counts_its_undelivered_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def part(net: MemoryNetwork) -> None:
        await net[1].send(b"delivered")
        await deliveries(net[1], 1)
        net.cut(1, (2, 3))
        await net[1].send_many([b"lost"] * 3)
        assert await net[1].leave(timeout="4s") is False
        assert net[1].status().undelivered == 3
        text = "this member stops with 3 undelivered messages of the 4 that it accepted; it delivered the first 1"
        assert any(line.startswith(text) for line in texts(caplog, logging.WARNING, 1))

    with caplog.at_level(logging.INFO, "unisono"):
        play(part, order="consensus")


# -- log lines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["vbr", "cbr", "consensus", "leader", "timestamp", "priority"])
def test_normal_operation_writes_no_warning(order: str, caplog: pytest.LogCaptureFixture) -> None:
    async def part(net: MemoryNetwork) -> None:
        for _ in range(20):
            for member in (1, 2, 3):
                await net[member].send(b"x")
        await deliveries(net[2], 60)
        await asyncio.sleep(3)

    with caplog.at_level(logging.INFO, "unisono"):
        play(part, order=order)
    for member in (1, 2, 3):
        assert texts(caplog, logging.WARNING, member) == []
        lines = texts(caplog, logging.INFO, member)
        assert lines[0].startswith(f"joins with order {order}, ")
        assert any(line.startswith("the group has formed: members are now 1, 2, 3") for line in lines)
        assert lines[-1] == "this member has left the group"


def test_a_view_change_and_a_change_of_leader_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def part(net: MemoryNetwork) -> None:
        net.crash(1)
        await until(lambda: net[2].status().leader == 2)
        await until(lambda: net[2].members == (2, 3))

    with caplog.at_level(logging.INFO, "unisono"):
        play(part, order="leader")
    lines = texts(caplog, logging.INFO, 2)
    assert any(line.startswith("leader_lost: leader 1 failed and member 2 leads now") for line in lines)
    assert "members are now 2, 3 (left: 1)" in lines


def test_late_deliveries_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def part(net: MemoryNetwork) -> None:
        net.delay("300ms")  # more than Δ
        await net[1].send_many([b"x"] * 3)
        await deliveries(net[2], 3)
        await asyncio.sleep(1.5)
        assert net[2].status().late == net[2].stats().late == 3
        assert "late" in net[2].status().violations

    with caplog.at_level(logging.INFO, "unisono"):
        play(part, order="vbr", deadline="100ms", delta="50ms", gamma="2ms")
    found = [text for text in texts(caplog, logging.WARNING, 2) if "later than the deadline" in text]
    assert len(found) == 1
    assert found[0].startswith("3 deliveries were later than the deadline, the latest by at least ")


def test_late_deliveries_are_events() -> None:
    """The first late delivery is reported at once, then at most one event per sender and second."""
    memory = MemoryTrace("run", "test")

    async def part(net: MemoryNetwork) -> None:
        config = group_config(**options, recorder=memory.recorder(3, incarnation=7))
        *_, recorded = await asyncio.gather(net.join(1), net.join(2), net.join(3, config=config))
        net.delay("300ms")  # more than Δ
        for _ in range(100):
            await net[1].send(b"x")
            await asyncio.sleep(0.03)
        found: list[unisono.LateDeliveries] = []
        messages = 0
        while messages < 100:
            event = await recorded.next(timeout="10s")
            if isinstance(event, unisono.Delivery):
                messages += 1
            elif isinstance(event, unisono.LateDeliveries):
                found.append(event)
                if len(found) == 1:
                    assert messages == event.count, "it follows the first late delivery"
        while sum(each.count for each in found) < recorded.stats().late:
            event = await recorded.next(timeout="10s")
            if isinstance(event, unisono.LateDeliveries):
                found.append(event)
        assert 3 <= len(found) <= 6
        assert sum(each.count for each in found) == recorded.stats().late > 90
        assert {(each.kind, each.member) for each in found} == {(unisono.ViolationKind.LATE_DELIVERY, 1)}
        assert sorted(each.slot or 0 for each in found) == [each.slot for each in found]
        assert all(0 < each.late_by_ns <= 300 * MS for each in found)
        assert recorded.status().violations["late_delivery"].count == len(found)
        trace = memory.trace(RunMeta("run", "test", "vbr", (1, 2, 3), 50 * MS, 2 * MS, 50 * MS, None, True, "test"))
        rows = trace.of_kind(EventKind.VIOLATION)
        assert rows.with_token(unisono.ViolationKind.LATE_DELIVERY).sum() == len(found)

    options: dict[str, Any] = {"deadline": "100ms", "delta": "50ms", "gamma": "2ms"}

    async def scene() -> None:
        async with asyncio.timeout(PATIENCE_S), memory_network(0, later=(1, 2, 3), **options) as net:
            await part(net)

    testing.run(scene())


def test_refused_datagrams_are_logged_by_reason_at_most_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    async def part(net: MemoryNetwork) -> None:
        transport = net[1]._driver.transport
        for _ in range(15):
            transport.arrive(b"not a datagram of this group", False)  # type: ignore[attr-defined]
            await asyncio.sleep(1)
        assert net[1].status().refused == {"truncated": 15}

    with caplog.at_level(logging.INFO, "unisono"):
        play(part)
    found = [text for text in texts(caplog, logging.WARNING, 1) if text.startswith("refused ")]
    assert len(found) == 2
    assert found[0].startswith("refused 1 datagrams: truncated; ")


def test_a_slow_application_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def part(net: MemoryNetwork) -> None:
        sending = asyncio.create_task(net[1].send_many([b"x"] * 40))
        await until(lambda: net[1].status().waiting_for_application > 10)
        await asyncio.sleep(1)
        await deliveries(net[1], 20)
        await asyncio.sleep(1)
        await deliveries(net[1], 20)
        await sending

    with caplog.at_level(logging.INFO, "unisono"):
        play(part, members=1, order="vbr", queue_messages=10)
    assert any("messages wait for the application" in text for text in texts(caplog, logging.WARNING, 1))
    assert "this member receives again" in texts(caplog, logging.INFO, 1)


def test_many_repairs_in_a_second_are_a_repair_storm(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def part(net: MemoryNetwork) -> None:
        repaired = iter([100, 201, 500, 500, *[500] * 100])
        monkeypatch.setattr(net[1]._stack, "counters", lambda: {"fec.recovered": next(repaired), "fec.ignored": 9999})
        await asyncio.sleep(5)

    with caplog.at_level(logging.INFO, "unisono"):
        play(part, order="vbr")
    found = [text for text in texts(caplog, logging.WARNING, 1) if text.startswith("repair storm")]
    assert found == [
        "repair storm: 101 lost frames were repaired in the last second; the network loses many datagrams"
    ], "the next one follows too soon for a line of its own"


def test_a_member_that_stops_because_of_a_defect_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(*_: Any) -> Any:
        raise ZeroDivisionError("planted")

    async def part(net: MemoryNetwork) -> None:
        monkeypatch.setattr(net[1]._stack, "wake", planted)
        await until(lambda: net[1].status().role == "left")
        del net.groups[1]

    with caplog.at_level(logging.INFO, "unisono"):
        play(part, order="consensus")
    assert texts(caplog, logging.ERROR, 1) == ["this member stops because of an error: ZeroDivisionError('planted')"]
