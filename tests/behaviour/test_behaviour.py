"""A few runs of each family behave as committed, and the hash covers exactly the intended values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.behaviour import baseline
from tests.behaviour.baseline import FamilyHash, RunHash
from tests.behaviour.families import FAMILIES, ROOT
from tests.behaviour.recording import STREAMS, Recording, played, recorded

from unisono.model.effects import Effects, Write
from unisono.model.text.scenario import parse_scenario
from unisono.sim import run
from unisono.sim.disk import SimDisk
from unisono.sim.random_streams import RandomStreams
from unisono.sim.swarm.vbr import churning
from unisono.stack import Stack
from unisono.trace.schema import EventKind
from unisono.trace.table import Trace


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.quick])
def test_the_first_runs_of_each_family_behave_as_committed(name: str) -> None:
    family, committed = FAMILIES[name], baseline.read()[name]
    for seed in family.seeds[: family.quick]:
        found = RunHash.of(played(family.play, seed)).short
        assert found == committed.runs[seed], (
            f"seed {seed} behaves differently; `make behaviour` shows the extent of the differences, and "
            f"`python -m tests.behaviour --seed '{name}' {seed}` prints the hashes of this run"
        )


def test_the_baseline_contains_the_runs_of_all_families() -> None:
    committed = baseline.read()
    assert {name: len(family.runs) for name, family in committed.items()} == {
        name: len(family.seeds) for name, family in FAMILIES.items()
    }
    assert sum(len(family.seeds) for family in FAMILIES.values()) >= 1000
    assert all(family.seeds == range(len(family.seeds)) for family in FAMILIES.values())


def trace() -> Trace:
    return run(churning(0), compare_payloads=True).trace


def rows_hash(rows: Trace) -> str:
    recording = Recording()
    recording.rows(rows)
    return recording.hexdigests()["rows"]


def test_neither_the_order_of_rows_nor_free_text_is_hashed() -> None:
    rows = trace()
    assert rows.notes
    assert rows_hash(replace(rows, notes=tuple("other words" for _ in rows.notes))) == rows_hash(rows)
    assert rows_hash(rows.select(np.arange(len(rows))[::-1])) == rows_hash(rows)


@pytest.mark.parametrize(
    "column",
    [
        *(
            "member",
            "recorder_incarnation",
            "sender",
            "sender_incarnation",
            "sequence",
            "slot",
            "place",
            "index",
            "real_ns",
            "local_ns",
        ),
        *("size", "priority", "view"),
    ],
)
def test_every_number_of_a_row_is_hashed(column: str) -> None:
    rows = trace()
    changed = getattr(rows, column).copy()
    changed[-1] += 1
    assert rows_hash(replace(rows, **{column: changed})) != rows_hash(rows)


def test_kinds_and_details_of_rows_are_hashed() -> None:
    rows = trace()
    other_members = tuple((*members, 39) for members in rows.member_lists)
    assert rows_hash(replace(rows, member_lists=other_members)) != rows_hash(rows)
    assert rows_hash(replace(rows, tokens=tuple(f"{token}_2" for token in rows.tokens))) != rows_hash(rows)
    kinds = rows.kind.copy()
    kinds[kinds == EventKind.START.code] = EventKind.LEAVE.code
    assert rows_hash(replace(rows, kind=kinds)) != rows_hash(rows)
    graded = replace(rows, grade=np.zeros(len(rows), dtype=np.int64), grades=("early",))
    assert len({rows_hash(rows), rows_hash(graded), rows_hash(replace(graded, grades=("final",)))}) == 3
    sent_to = replace(rows, destinations=np.zeros(len(rows), dtype=np.int64), destination_sets=((1, 2),))
    assert len({rows_hash(rows), rows_hash(sent_to), rows_hash(replace(sent_to, destination_sets=((1, 3),)))}) == 3


@pytest.mark.parametrize(
    ("scenario", "column", "changed"),
    [
        ("vbr_slot_change", "theta_ns", lambda column: column + 1),
        ("vbr_slot_change", "bound_ns", lambda column: column + 1),
        ("priority_churn", "incarnation_lists", lambda lists: tuple(tuple(n + 1 for n in each) for each in lists)),
        ("priority_churn", "message_texts", lambda texts: tuple(f"9.{9 + n}" for n, _ in enumerate(texts))),
        ("quasi_genuine_topology_change", "talk_lists", lambda lists: tuple((*each, "more") for each in lists)),
    ],
)
def test_structured_columns_are_hashed(scenario: str, column: str, changed: Callable[[Any], Any]) -> None:
    path = ROOT / "scenarios" / f"{scenario}.toml"
    rows = run(parse_scenario(path.read_text("utf-8"), path.name)).trace
    assert rows_hash(replace(rows, **{column: changed(getattr(rows, column))})) != rows_hash(rows)


def test_bytes_times_and_destinations_of_datagrams_are_hashed() -> None:
    def sent(now: int, member: int, to: int, multicast: bool, data: bytes) -> str:
        recording = Recording()
        recording.datagram(now, member, to, multicast, data)
        return recording.hexdigests()["datagrams"]

    ways = [(5, 1, 2, True, b"x"), (6, 1, 2, True, b"x"), (5, 2, 2, True, b"x"), (5, 1, 0, True, b"x")]
    ways += [(5, 1, 2, False, b"x"), (5, 1, 2, True, b"y")]
    assert len({sent(*way) for way in ways}) == len(ways)


def test_records_are_hashed_with_their_disk_but_without_their_grouping_into_writes() -> None:
    def stored(*turns: tuple[int, list[Write]]) -> dict[str, str]:
        with recorded() as recording:
            disks = [SimDisk(RandomStreams(1).stream("disk", number)) for number in range(2)]
            disks[0].apply([Write((b"first",))])
            for disk, writes in turns:
                disks[disk].apply(writes)
        return recording.hexdigests()

    one, two = Write((b"a", b"b")), [Write((b"a",)), Write((b"b",))]
    assert stored((0, [one])) == stored((0, two)) == stored((0, two[:1]), (0, two[1:]))
    others = [(1, [one]), (0, [Write((b"b", b"a"))]), (0, [Write((b"a", b"b"), may_be_lost=True)])]
    others.append((0, [Write((b"a", b"b"), replaces_all=True)]))
    assert len({stored(turn)["records"] for turn in [(0, [one]), *others]}) == 1 + len(others)


def test_a_changed_byte_on_the_wire_in_one_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES["churning"]
    right = [RunHash.of(played(family.play, seed)) for seed in range(2)]
    step, planted = Stack.step, False

    def changed(self: Stack) -> Effects:
        nonlocal planted
        effects = step(self)
        if effects.datagrams and not planted:
            planted = True
            first, *rest = effects.datagrams
            effects.datagrams = [replace(first, data=first.data[:-1] + bytes([first.data[-1] ^ 1])), *rest]
        return effects

    monkeypatch.setattr(Stack, "step", changed)
    wrong = [right[0], RunHash.of(played(family.play, 1))]
    assert planted
    found = baseline.differences({"churning": FamilyHash.of(right)}, {"churning": FamilyHash.of(wrong)})
    assert len(found) == 1
    assert found[0].endswith("differ in 1 of 2 runs: seeds 1")


def test_missing_families_and_runs_are_differences() -> None:
    one = FamilyHash(dict.fromkeys(STREAMS, "00"), ("0", "1"))
    fewer = FamilyHash(dict.fromkeys(STREAMS, "00"), ("0",))
    assert baseline.differences({"a": one}, {"a": one}) == []
    assert baseline.differences({"a": one}, {"a": fewer}) == ["a: 1 runs, but the baseline has 2"]
    assert baseline.differences({"a": one}, {"b": one}) == ["a: is only in the baseline", "b: is not in the baseline"]
