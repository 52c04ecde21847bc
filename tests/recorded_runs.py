"""Recorded runs of any size for tests: clean, in the trace's own layout, made with numpy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unisono.trace.files import member_folder, part_path, write_end, write_part
from unisono.trace.schema import CODED, NUMBER_COLUMNS, EventKind, RunMeta, write_meta
from unisono.trace.table import Rows, concatenated

SLOT_NS = 1_000_000
BOUND_NS = 8 * SLOT_NS
PLACES_PER_SENDER = 1 << 32
RANGE_SLOTS = 256


def record_run(
    directory: Path,
    *,
    members: int,
    slots: int,
    burst: int,
    range_slots: int = RANGE_SLOTS,
    run: str = "r",
    jitter_ns: int = 0,
    declare: bool = True,
) -> Path:
    """A run in which each member sends `burst` messages in every slot; gives the group's folder.

    With a jitter, latencies differ by up to that much, as those of a real run do. Unless told otherwise the members
    have declared just what they send.
    """
    chance = np.random.default_rng(slots)
    everyone = tuple(range(1, members + 1))
    rates = tuple((member, burst * 1e9 / SLOT_NS, burst) for member in everyone) if declare else ()
    meta = RunMeta(run, "g", "vbr", everyone, 2 * SLOT_NS, SLOT_NS, SLOT_NS, BOUND_NS, True, "made", rates=rates)
    folder = write_meta(directory, meta).parent
    written = dict.fromkeys(everyone, 0)
    for first in range(0, slots, range_slots):
        count = min(range_slots, slots - first)
        for member in everyone:
            delivered = deliveries(member, members, first, count, burst)
            if jitter_ns:
                late = chance.integers(0, jitter_ns, len(delivered))
                delivered = replace(delivered, real_ns=delivered.real_ns + late)
            rows = concatenated([sends(member, first, count, burst), delivered])
            path = part_path(member_folder(directory, run, "g", member), first, range_slots, 0, 0)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_part(path, rows, run, "g")
            written[member] += len(rows)
    for member in everyone:
        write_end(member_folder(directory, run, "g", member), 0, rows=written[member], dropped=0)
    return folder


def sends(member: int, first: int, slots: int, burst: int) -> Rows:
    """One member's sends in a range of slots."""
    slot = np.repeat(np.arange(first, first + slots), burst)
    number = np.tile(np.arange(burst), slots)
    return rows_of(
        EventKind.SEND,
        member=np.full(len(slot), member),
        sender=np.full(len(slot), member),
        sequence=slot * burst + number,
        slot=slot,
        place=member * PLACES_PER_SENDER + number,
        index=np.full(len(slot), -1),
        real_ns=slot * SLOT_NS + number,
    )


def deliveries(member: int, members: int, first: int, slots: int, burst: int) -> Rows:
    """One member's deliveries in a range of slots."""
    per_slot = members * burst
    slot = np.repeat(np.arange(first, first + slots), per_slot)
    sender = np.tile(np.repeat(np.arange(1, members + 1), burst), slots)
    number = np.tile(np.arange(burst), slots * members)
    return rows_of(
        EventKind.DELIVER,
        member=np.full(len(slot), member),
        sender=sender,
        sequence=slot * burst + number,
        slot=slot,
        place=sender * PLACES_PER_SENDER + number,
        index=np.arange(first * per_slot, (first + slots) * per_slot),
        real_ns=slot * SLOT_NS + number + 4 * SLOT_NS + member * 1000,
    )


def rows_of(kind: EventKind, **given: Any) -> Rows:
    """Rows of one kind; columns that are not given are zero."""
    count = len(given["slot"])
    columns: dict[str, Any] = {
        name: np.asarray(given.get(name, np.zeros(count)), dtype=dtype) for name, dtype in NUMBER_COLUMNS.items()
    }
    columns["kind"] = np.full(count, kind.code, dtype=np.int8)
    for name in ("theta_ns", "bound_ns", "configuration"):
        columns[name] = np.full(count, -1, dtype=np.int64)
    for name, table in CODED.items():
        columns[name], columns[table] = np.full(count, -1, dtype=np.int32), ()
    return Rows(**columns)


def listing(members: tuple[int, ...], incarnations: tuple[int, ...] = ()) -> dict[str, Any]:
    """The columns of one VIEW row that lists these members."""
    columns: dict[str, Any] = {"members": np.zeros(1, dtype=np.int32), "member_lists": (members,)}
    if incarnations:
        columns |= {"member_incarnations": np.zeros(1, dtype=np.int32), "incarnation_lists": (incarnations,)}
    return columns
