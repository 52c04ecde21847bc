"""Where gaps are allowed, a `Gap` event names the sender and the missing messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.worlds.joining import memory_network

import unisono
from unisono.cli.member import event_json
from unisono.testing import MemoryNetwork, run

OPTIONS: dict[str, Any] = {"order": "vbr", "failures": True, "loss_burst": 8}
LAST = b"last"


def play(scene: Callable[[MemoryNetwork], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(120), memory_network(**{"members": 3, **OPTIONS, **options}) as net:
            await scene(net)

    run(whole())


async def events_until_last(group: unisono.Group, senders: int) -> list[unisono.Event]:
    """The events of a group until the early message `LAST` of each sender."""
    events: list[unisono.Event] = []
    async for event in group:
        events.append(event)
        if isinstance(event, unisono.Delivery) and event.payload == LAST and event.grade is not unisono.Grade.FINAL:
            senders -= 1
            if not senders:
                break
    return events


def missing(events: list[unisono.Event], sender: int) -> set[int]:
    """The numbers of a sender's messages up to its last early one that were not delivered early."""
    early = {
        event.sequence
        for event in events
        if isinstance(event, unisono.Delivery) and event.sender == sender and event.grade is not unisono.Grade.FINAL
    }
    return set(range(max(early))) - early


def reported(events: list[unisono.Event], sender: int) -> list[int]:
    """The numbers of a sender's messages that `Gap` events name, in the order of the events.

    All members are in the group before the first message, so an unknown first number is 0.
    """
    gaps = [event for event in events if isinstance(event, unisono.Gap) and event.sender == sender]
    return [n for gap in gaps if gap.last is not None for n in range(gap.first or 0, gap.last + 1)]


@pytest.mark.parametrize("options", [{}, {"grades": "both"}], ids=["one grade", "both grades"])
def test_the_gaps_reported_are_the_missing_messages(options: dict[str, Any]) -> None:
    async def scene(net: MemoryNetwork) -> None:
        net.lose(0.2, at_most=3, of=8)
        for number in range(60):
            # A message of 4,000 bytes travels in fragments.
            await asyncio.gather(*(net[m].send(b"x" * (4000 if number % 7 == m else 10)) for m in net.groups))
            await asyncio.sleep(0.013)
        net.heal()
        await asyncio.sleep(0.3)
        await asyncio.gather(*(group.send(LAST) for group in net.groups.values()))
        lost = 0
        for member, group in net.groups.items():
            events = await events_until_last(group, 3)
            for sender in net.groups:
                assert reported(events, sender) == sorted(missing(events, sender)), (member, sender)
                lost += len(missing(events, sender))
        assert lost > 20

    play(scene, **options)


def test_a_gap_comes_before_the_messages_that_follow_it() -> None:
    async def scene(net: MemoryNetwork) -> None:
        sender, receiver = net[1], net[2]
        await sender.send(b"before")
        await asyncio.sleep(0.2)
        net.cut(1, 2, one_way=True)
        await sender.send_many((b"lost", b"lost too"))
        await asyncio.sleep(0.02)
        net.heal()
        await asyncio.sleep(0.2)
        await sender.send(LAST)
        events = await events_until_last(receiver, 1)
        kinds = [event for event in events if isinstance(event, unisono.Gap | unisono.Delivery)]
        assert [type(event).__name__ for event in kinds] == ["Delivery", "Gap", "Delivery"]
        gap, after = kinds[1:]
        assert isinstance(gap, unisono.Gap)
        assert isinstance(after, unisono.Delivery)
        assert (gap.sender, gap.incarnation, gap.first, gap.last, gap.count) == (1, after.incarnation, 1, 2, 2)
        assert gap.slot < after.slot

    play(scene)


def test_a_gap_of_a_crashed_member_has_no_last_message() -> None:
    async def scene(net: MemoryNetwork) -> None:
        await net[1].send(b"before")
        await asyncio.sleep(0.2)
        net.crash(1)
        await asyncio.sleep(1)
        await net[3].send(LAST)
        events = await events_until_last(net[2], 1)
        gaps = [event for event in events if isinstance(event, unisono.Gap)]
        assert [(gap.sender, gap.first, gap.last, gap.count) for gap in gaps] == [(1, 1, None, None)]

    play(scene)


def test_a_member_that_was_cut_off_learns_the_numbers_of_all_messages_it_missed() -> None:
    async def scene(net: MemoryNetwork) -> None:
        await net[1].send(b"before")
        await asyncio.sleep(0.2)
        net.cut(2, (1, 3))
        for _ in range(50):
            await net[1].send(b"missed")
            await asyncio.sleep(0.02)
        net.heal()
        await asyncio.sleep(1)
        await net[1].send(LAST)
        events = await events_until_last(net[2], 1)
        assert reported(events, 1) == sorted(missing(events, 1))
        assert len(missing(events, 1)) >= 50

    play(scene)


def test_without_early_deliveries_there_are_no_gaps() -> None:
    async def scene(net: MemoryNetwork) -> None:
        await net[1].send(b"before")
        await asyncio.sleep(0.2)
        net.cut(1, 2, one_way=True)
        await net[1].send(b"recovered")
        await asyncio.sleep(0.02)
        net.heal()
        await net[1].send(LAST)
        events = []
        async for event in net[2]:
            events.append(event)
            if isinstance(event, unisono.Delivery) and event.payload == LAST:
                break
        assert [event.payload for event in events if isinstance(event, unisono.Delivery)] == [
            b"before",
            b"recovered",
            LAST,
        ]
        assert not [event for event in events if isinstance(event, unisono.Gap)]

    play(scene, grades="final")


@pytest.mark.parametrize(
    ("event", "row"),
    [
        (
            unisono.Gap(2, 1, 12, 5, 7),
            {"event": "gap", "sender": 2, "slot": 12, "first": 5, "last": 7, "count": 3},
        ),
        (
            unisono.Gap(2, 1, 12, 5, None),
            {"event": "gap", "sender": 2, "slot": 12, "first": 5, "last": None, "count": None},
        ),
        (
            unisono.LateDeliveries.of(2, 12, 3, 1_500_000),
            {
                "event": "violation",
                "violation": "late_delivery",
                "text": "late deliveries of messages of member 2: 3, the latest one at least 1.5ms after the deadline",
                "member": 2,
                "slot": 12,
                "count": 3,
                "late_by_ms": 1.5,
            },
        ),
        (
            unisono.Delivery(2, 5, 12, b"a", 1, None, unisono.Grade.FINAL, True),
            {"event": "delivery", "sender": 2, "sequence": 5, "slot": 12, "text": "a", "grade": "final", "late": True},
        ),
    ],
)
def test_the_command_member_prints_gaps_and_late_deliveries(event: unisono.Event, row: dict[str, object]) -> None:
    assert event_json(event) == row
