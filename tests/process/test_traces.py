"""Traces that real groups record: valid as they are, and a planted swap is found with both messages and members."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.worlds.joining import join_group

import unisono
from unisono.check.suite import check_all
from unisono.check.verdict import Status, overall
from unisono.cluster.supervisor import free_addresses
from unisono.runtime.timers import new_incarnation
from unisono.trace.files import ParquetWriter, find_group, read_part, read_trace, stamp, write_part
from unisono.trace.schema import EventKind, RunMeta, write_meta
from unisono.trace.table import Trace

MEMBERS = (1, 2, 3)
RUN, GROUP = "run", "taped"


def record(directory: Path) -> Trace:
    """Three groups that send at once, each with a recorder of its own."""

    async def member(number: int, peers: dict[int, tuple[str, int]]) -> int:
        life = new_incarnation()
        with ParquetWriter(directory, RUN, GROUP, number, incarnation=life) as writer:
            joining = join_group(
                GROUP,
                member=number,
                peers=peers,
                slot="20ms",
                rate=unisono.Rate(avg=200, burst=4),
                recorder=writer.recorder(),
                incarnation=life,
            )
            group = await joining
            await group.send_many([b"%d" % n for n in range(40)])
            while group.stats().delivered < 120:
                await asyncio.sleep(0.01)
            assert await group.leave()
        assert writer.error is None
        assert writer.dropped == 0
        return group.bound_ns

    async def all_members() -> int:
        peers = free_addresses(MEMBERS)
        async with asyncio.timeout(60):
            bounds = await asyncio.gather(*(member(number, peers) for number in MEMBERS))
        return bounds[0]

    bound_ns = asyncio.run(all_members())
    meta = RunMeta(RUN, GROUP, "vbr", MEMBERS, 20_000_000, 2_000_000, 20_000_000, bound_ns, True, "runtime")
    write_meta(directory, meta)
    return read_trace(directory)


def order_verdicts(trace: Trace) -> dict[str, Status]:
    return {name: verdict.status for name, verdict in check_all(trace).items() if name != "latency"}


def swap_two_members_in_one_slot(directory: Path, member: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """In one member's file, exchange the places in the order of two neighbours of one slot and different senders."""
    for path in sorted((find_group(directory) / f"member={member}").glob("*.parquet")):
        rows = read_part(path)
        delivered = np.flatnonzero(rows.kind == EventKind.DELIVER.code)
        for first, second in zip(delivered.tolist(), delivered[1:].tolist(), strict=False):
            if rows.slot[first] == rows.slot[second] and rows.sender[first] != rows.sender[second]:
                index = rows.index.copy()
                index[[first, second]] = index[[second, first]]
                write_part(path, replace(rows, index=index), RUN, GROUP)
                restamp(path)
                one, two = ((int(rows.sender[row]), int(rows.sequence[row])) for row in (first, second))
                return one, two
    raise AssertionError("no slot has messages of two members")


def restamp(part: Path) -> None:
    """Put the new size and hash of a part into its end record, as a recorder that recorded this order would have."""
    for end in part.parent.glob("end.*.json"):
        record = json.loads(end.read_text("utf-8"))
        if part.name in record["files"]:
            now = stamp(part)
            record["files"][part.name] = {"bytes": now.size_bytes, "sha256": now.sha256}
            end.write_text(json.dumps(record), encoding="utf-8")


def test_a_planted_swap_is_named(tmp_path: Path) -> None:
    """A swap of two members in one slot is caught, with a witness that names messages and members."""
    trace = record(tmp_path)
    assert overall({name: v for name, v in check_all(trace).items() if name != "latency"}) is Status.VALID
    assert len(trace.deliveries()) == 360
    assert len(trace.sends()) == 120
    earlier, later = swap_two_members_in_one_slot(tmp_path, member=3)
    verdict = check_all(read_trace(tmp_path))["total_order"]
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert {(m.sender, m.sequence) for m in verdict.witness.messages} == {earlier, later}
    assert 3 in verdict.witness.members
    assert len(verdict.witness.members) == 2
    for sender, sequence in (earlier, later):
        assert f"({sender},{sequence})" in verdict.witness.text
    assert "member 3" in verdict.witness.text


def test_sends_and_deliveries_tell_the_same(tmp_path: Path) -> None:
    """A message's slot and place in its slot are the same where it was sent and where it was delivered."""
    trace = record(tmp_path)
    sends, found = trace.sends(), trace.deliveries()
    sent = {
        (int(s), int(q)): (int(slot), int(place), int(size))
        for s, q, slot, place, size in zip(
            sends.sender, sends.sequence, sends.slot, sends.place, sends.size, strict=True
        )
    }
    for s, q, slot, place, size in zip(found.sender, found.sequence, found.slot, found.place, found.size, strict=True):
        assert sent[int(s), int(q)] == (int(slot), int(place), int(size))
