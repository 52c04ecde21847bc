"""Members that find each other: real processes, a beacon on loopback, no registry."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.joining import join_group

from unisono.cluster.supervisor import free_addresses
from unisono.errors import FormationTimeout, InvalidOption, MissingDependency
from unisono.runtime.discovery import DnsDiscovery, discover_by_dns

LOOPBACK = "127.0.0.1"


def beacon() -> str:
    """A beacon address for this test alone."""
    return f"239.255.77.76:{free_addresses((1,))[1][1]}"


def has_multicast() -> bool:
    """Whether multicast works on the loopback interface."""
    group, port = "239.255.77.75", free_addresses((1,))[1][1]
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hearing,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        try:
            hearing.bind((group, port))
            member = socket.inet_aton(group) + socket.inet_aton(LOOPBACK)
            hearing.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
            sender.sendto(b"?", (group, port))
            hearing.settimeout(2)
            return hearing.recv(16) == b"?"
        except OSError:
            return False


multicast_only = pytest.mark.skipif(not has_multicast(), reason="this machine's loopback carries no IP multicast")

MEMBER = """
import asyncio, json, sys, unisono
from tests.worlds.joining import join_group

async def main():
    setup = json.loads(sys.argv[1])
    group = await join_group("found", interface="127.0.0.1", timeout="25s", delta="200ms", slot="20ms", **setup)
    print(json.dumps({"member": group.member, "reference": group.reference}), flush=True)
    await group.send(b"I am %d" % group.member)
    seen = []
    async for event in group:
        if isinstance(event, unisono.Delivery):
            seen.append([list(event.id), event.payload.decode()])
            if len(seen) == len(group.members):
                break
    print(json.dumps(seen), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await group.leave()

asyncio.run(main())
"""


def start(**setup: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MEMBER, json.dumps(setup)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ, cwd=Path(__file__).parents[2]
    )


def line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said, f"the process ended with {process.wait(10)}"
    return json.loads(said)


@multicast_only
def test_processes_that_know_only_the_name_and_size_of_the_group_form_it() -> None:
    at = beacon()
    processes = [start(members=3, beacon=at) for _ in range(3)]
    try:
        firsts = [line(process) for process in processes]
        assert sorted(first["member"] for first in firsts) == [1, 2, 3]
        assert len({first["reference"] for first in firsts}) == 1
        seen = [line(process) for process in processes]
        assert seen[0] == seen[1] == seen[2]
        assert sorted(text for _, text in seen[0]) == ["I am 1", "I am 2", "I am 3"]
        assert len({tuple(number) for number, _ in seen[0]}) == 3, "every multicast has an id of its own"
        for process in processes:
            process.communicate("\n", timeout=30)
        assert [process.returncode for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@multicast_only
def test_a_restarted_member_learns_the_table_from_a_running_one(tmp_path: Path) -> None:
    at = beacon()
    processes = [start(members=3, beacon=at, failures=True) for _ in range(3)]
    try:
        firsts = [line(process) for process in processes]
        victim = firsts[2]["member"]
        processes[2].kill()
        processes[2].communicate()
        again = start(members=3, beacon=at, failures=True, member=victim)
        processes.append(again)
        back = line(again)
        assert back == {"member": victim, "reference": firsts[0]["reference"]}
    finally:
        for process in processes:
            process.kill()
            process.communicate()


async def _late(at: str) -> None:
    joins = [join_group("full", members=2, beacon=at, interface=LOOPBACK, timeout="20s") for _ in range(2)]
    groups = await asyncio.gather(*joins)
    try:
        with pytest.raises(MissingDependency, match=r"the group is complete without this process: 1 at 127\.0\.0\.1"):
            await join_group("full", members=2, beacon=at, interface=LOOPBACK, timeout="20s")
    finally:
        await asyncio.gather(*(group.leave() for group in groups))


@multicast_only
def test_a_process_too_many_gets_an_error_that_lists_the_members() -> None:
    asyncio.run(_late(beacon()))


def test_a_lone_member_gives_up_with_an_explanation() -> None:
    async def alone() -> None:
        with pytest.raises(FormationTimeout, match="1 of 2 processes known"):
            await join_group("alone", members=2, beacon=beacon(), interface=LOOPBACK, timeout="600ms")

    asyncio.run(alone())


def test_a_reference_is_all_that_another_member_needs() -> None:
    async def both() -> None:
        peers = {number: f"{host}:{port}" for number, (host, port) in free_addresses((1, 2)).items()}
        one = join_group("by reference", member=1, peers=peers, delta="200ms", slot="20ms")
        reference = f"unisono://by%20reference?peers=1@{peers[1]},2@{peers[2]}"
        two = join_group(reference, member=2, delta="200ms", slot="20ms")
        groups = await asyncio.gather(one, two)
        assert groups[0].reference == groups[1].reference == reference
        await asyncio.gather(*(group.leave() for group in groups))

    asyncio.run(both())


def test_members_behind_a_dns_name_find_their_own_addresses() -> None:
    port = free_addresses((1,))[1][1]
    answers = [["127.0.0.3", "127.0.0.1"], ["127.0.0.3", "127.0.0.1", "127.0.0.2"]]

    async def resolve(name: str, at: int) -> list[str]:
        assert (name, at) == ("table.example", port)
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def all_three() -> None:
        place = DnsDiscovery("g", "table.example", port, member_count=3)
        found = [await discover_by_dns(place, 5, resolve) for _ in range(3)]
        try:
            assert [each.member for each in found] == [1, 2, 3]
            wanted = {1: ("127.0.0.1", port), 2: ("127.0.0.2", port), 3: ("127.0.0.3", port)}
            assert all(each.addresses == wanted for each in found)
            assert len({each.salt for each in found}) == 1
            with pytest.raises(MissingDependency, match=r"none of the addresses of table\.example can be bound"):
                await discover_by_dns(place, 5, resolve)
        finally:
            for each in found:
                each.close()

    asyncio.run(all_three())


def test_a_member_waits_until_the_dns_name_has_all_addresses() -> None:
    async def resolve(name: str, at: int) -> list[str]:
        return ["127.0.0.1"]

    async def wait() -> None:
        with pytest.raises(FormationTimeout, match=r"table.example has 1 addresses \(127.0.0.1\), expected 2"):
            await discover_by_dns(DnsDiscovery("g", "table.example", 9, member_count=2), 0.2, resolve)

    asyncio.run(wait())


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "peers"),
        ({"members": 0}, "members"),
        ({"members": 3, "member": 4}, "member"),
        ({"peers": {1: "127.0.0.1:9"}}, "member"),
        ({"peers": "127.0.0.1:9"}, "peers"),
        ({"members": 0, "peers": "dns:name:9"}, "peers.members"),
        ({"members": 2, "beacon": "here"}, "peers.address"),
    ],
)
def test_missing_arguments_are_refused_at_once(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        join_group("g", **arguments)
    assert caught.value.field == field
