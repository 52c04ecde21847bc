"""Foreign and malformed datagrams at a live member's port: counted by reason, and the group goes on."""

import asyncio
import random
import socket
from collections import Counter
from typing import Any

from tests.worlds.joining import join_group

import unisono
from unisono.cluster.supervisor import free_addresses
from unisono.model.units import group_key
from unisono.runtime.timers import new_incarnation
from unisono.wire.frame import END_OF_SLOT, FRAGMENT, VERSION, Frame, Kind, encode

GROUP = "besieged"
EACH = 20


def frame(**changes: Any) -> Frame:
    fields = {
        "kind": Kind.DATA,
        "sender": 1,
        "incarnation": 1,
        "epoch": 0,
        "slot": 1,
        "number": 0,
        "flags": END_OF_SLOT,
    }
    return Frame(**{**fields, **changes})


def malformed() -> dict[str, bytes]:
    """One datagram per reason for refusal."""
    group = group_key(GROUP)
    good = encode(frame(), group)
    return {
        "truncated": good[:30],
        "wrong version": bytes([VERSION + 1]) + good[1:],
        "unknown kind": good[:1] + b"\xee" + good[2:],
        "unknown flags": encode(frame(flags=0x80), group),
        "wrong group": encode(frame(), group ^ 1),
        "not a member": encode(frame(sender=77), group),
        "own datagram": encode(frame(sender=2), group),
        "implausible slot": encode(frame(slot=2**62), group),
        "inconsistent lengths": encode(frame(flags=0, body=b"\x00\x09\x00\x09liar"), group),
        "bad fragment": encode(frame(flags=FRAGMENT), group),
        "bad control message": encode(frame(kind=Kind.HELLO, flags=0, body=b"hi"), group),
    }


def test_malformed_and_foreign_datagrams_are_counted_and_the_group_goes_on() -> None:
    async def scene() -> None:
        peers = free_addresses((1, 2))
        rate = unisono.Rate(avg=3200, burst=16)
        joined = await asyncio.gather(*(join_group(GROUP, member=m, peers=peers, rate=rate) for m in peers))
        before = Counter(joined[1].stats().refused)
        chance = random.Random(7)
        sending = [asyncio.create_task(group.send_many([b"%d" % n for n in range(100)])) for group in joined]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as enemy:
            for _ in range(EACH):
                for datagram in malformed().values():
                    enemy.sendto(datagram, peers[2])
                # Noise begins with an unknown version, so the reason for its refusal is known.
                enemy.sendto(b"\xff" + chance.randbytes(chance.randrange(100, 1400)), peers[2])
                enemy.sendto(b"", peers[2])
                await asyncio.sleep(0)
        expected = Counter(dict.fromkeys(malformed(), EACH)) + Counter({"wrong version": EACH, "truncated": EACH})
        while Counter(joined[1].stats().refused) - before != expected:
            await asyncio.sleep(0.01)
        await asyncio.gather(*sending)
        while any(group.stats().delivered < 200 for group in joined):
            await asyncio.sleep(0.01)
        assert await joined[0].leave()
        assert await joined[1].leave()
        found = [[e async for e in group if isinstance(e, unisono.Delivery)] for group in joined]
        assert found[0] == found[1]
        assert len(found[0]) == 200
        assert Counter(joined[0].stats().refused) == Counter()

    async def in_time() -> None:
        async with asyncio.timeout(60):
            await scene()

    asyncio.run(in_time())


def test_frames_of_an_earlier_incarnation_and_of_old_slots_are_ignored() -> None:
    """They are well formed and of the right group, so the order ignores them, not the door."""

    async def scene() -> None:
        peers = free_addresses((1, 2))
        life = new_incarnation()
        one, two = await asyncio.gather(
            *(join_group(GROUP, member=m, peers=peers, incarnation=life if m == 1 else None) for m in peers)
        )
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as enemy:
            for slot in (1, 2):
                enemy.sendto(encode(frame(slot=slot), group_key(GROUP)), peers[2])
            enemy.sendto(encode(frame(slot=3, incarnation=life), group_key(GROUP)), peers[2])
        while sum(two.stats().ignored.values()) < 3:
            await asyncio.sleep(0.01)
        await one.send(b"x")
        while two.stats().delivered < 1:
            await asyncio.sleep(0.01)
        assert [await one.leave(), await two.leave()] == [True, True]

    async def in_time() -> None:
        async with asyncio.timeout(60):
            await scene()

    asyncio.run(in_time())
