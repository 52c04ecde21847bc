"""The measurement service over growing files, without Spark: restarts anywhere lose and double nothing."""

from __future__ import annotations

import itertools
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.measured import SLA, append, interval, worse_between, write_run

from unisono.errors import InvalidPolicy, UnisonoError
from unisono.model.sla_text import parse_slas
from unisono.pipeline.measurement import Job, Measured, Service, in_process
from unisono.pipeline.measurement_store import MeasurementStore, Verdict
from unisono.trace.tails import Block, latest, read_block, stretches

SLAS = parse_slas(SLA, "sla.toml")
LOSS = worse_between(4, 8)
_numbers = itertools.count()


def blocks(directory: Path, service: Service) -> list[Block]:
    return [read_block(s) for s in stretches(service.places, latest(directory, service.places))]


def judged_at_once(directory: Path, keep: Path) -> list[Verdict]:
    with MeasurementStore(keep / "whole.sqlite") as store:
        service = Service(SLAS, store)
        service.take(blocks(directory, service))
        return store.verdicts()


def test_a_run_has_its_verdicts_and_estimates(tmp_path: Path) -> None:
    write_run(tmp_path, 16, LOSS)
    with MeasurementStore(tmp_path / "keep" / "x.sqlite") as store:
        service = Service(SLAS, store)
        measured = service.take(blocks(tmp_path, service))
        assert [(v.run, v.group, v.violated, v.event.sla) for v in store.verdicts()] == [
            ("r", "g", True, "few losses"),
            ("r", "g", False, "few losses"),
        ]
        assert tuple(store.verdicts()) == measured.verdicts
        assert measured.rows == service.rows == 16 * 3 * 11
        assert len(service.latest) == 6
        assert service.broken == []
        assert measured.network["r", "g"].loss == 0
        store.told(store.verdicts()[0].id)
        assert [v.told for v in store.verdicts()] == [True, False]


Act = str | int
ACTS = st.lists(
    st.sampled_from(
        [1, 2, 3, "take", "again", "from the start", "kill", "kill before the end", "kill, and go on behind"]
    ),
    min_size=20,
    max_size=90,
)


def every_other_second(member: int, peer: int, number: int) -> float:
    """Each window has a verdict; its figures show whether a row is missing or counts twice."""
    return 0.1 + 0.01 * number if (member, peer) == (2, 1) and number // 4 % 2 else 0.0


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=ACTS)
def test_killed_anywhere_it_finds_what_it_finds_in_one_go(acts: list[Act], tmp_path: Path) -> None:
    """Members write at their own pace, batches come when they come, and are handed in again; the job dies at will.

    Spark hands in what lies behind its own checkpoint, which may be ahead of what was kept, or gone.
    """
    folder = tmp_path / str(next(_numbers))
    written = dict.fromkeys((1, 2, 3), 0)
    last: list[Block] = []
    handed: dict[str, int] = {}
    store = MeasurementStore(folder / "x.sqlite")
    service = Service(SLAS, store, patience_ns=10**15)

    def batch() -> list[Block]:
        nonlocal handed, last
        behind, handed = handed, latest(folder, handed)
        last = [read_block(stretch) for stretch in stretches(behind, handed)]
        return last

    # Who has never written is not known, and not waited for: each member's first interval is there.
    # Each writes at least once more at the end: what nobody hands in any more is not missed.
    for number, act in enumerate([1, 2, 3, "take", *acts, *[m for m in written for _ in range(17)], "take"]):
        if isinstance(act, int):
            if written[act] < (16 if number < len(acts) + 4 else 17):
                append(folder, act, interval(act, (1, 2, 3), written[act], every_other_second))
                written[act] += 1
        elif act == "take":
            service.take(batch())
        elif act == "again":
            service.take(last)  # Spark, which has not heard that it was done
        elif act == "from the start":
            handed = {}  # its checkpoint is gone
            service.take(batch())
        else:
            if act != "kill":
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(store, "commit", lambda *_: None)
                    behind = handed
                    service.take(batch())
                    if act == "kill before the end":
                        handed = behind
            store.close()
            store = MeasurementStore(folder / "x.sqlite")
            service = Service(SLAS, store, patience_ns=10**15)
    found = store.verdicts()
    store.close()
    assert found == judged_at_once(folder, folder)
    assert len(found) == 3
    assert service.rows == 17 * 3 * 11
    assert service.late == 0


def test_without_spark_a_thread_follows_the_files(tmp_path: Path) -> None:
    write_run(tmp_path, 6, LOSS)
    batches: list[Measured] = []
    job = Job(tmp_path, SLAS, tmp_path / "keep", trigger_ns=1_000_000)
    with in_process(job, batches.append) as running:
        for number in range(6, 16):
            for member in (1, 2, 3):
                append(tmp_path, member, interval(member, (1, 2, 3), number, LOSS))
            while not running.read(latest(tmp_path, {})):
                running.wait(1)
        assert [v.violated for v in running.store.verdicts()] == [True, False]
    assert [v for batch in batches for v in batch.verdicts] == judged_at_once(tmp_path, tmp_path)


def test_a_state_is_refused_where_it_does_not_belong(tmp_path: Path) -> None:
    job = Job(tmp_path, SLAS, tmp_path / "keep")
    with in_process(job, lambda _: None):
        pass
    other = parse_slas(SLA.replace("0.05", "0.07"), "sla.toml")
    with (
        pytest.raises(InvalidPolicy, match="holds the state of another"),
        in_process(Job(tmp_path, other, tmp_path / "keep"), lambda _: None),
    ):
        pass
    with MeasurementStore(tmp_path / "x.sqlite") as store:
        store.commit({"places": {}}, ())
    with sqlite3.connect(tmp_path / "x.sqlite") as raw:
        raw.execute("UPDATE state SET version = 99")
    raw.close()
    with pytest.raises(InvalidPolicy, match="version 99 is unknown"):
        MeasurementStore(tmp_path / "x.sqlite")


def test_one_job_at_a_time_works_with_a_folder(tmp_path: Path) -> None:
    job = Job(tmp_path, SLAS, tmp_path / "keep")
    with (
        in_process(job, lambda _: None),
        pytest.raises(InvalidPolicy, match="another measurement works"),
        in_process(job, lambda _: None),
    ):
        pass
    with in_process(job, lambda _: None):
        pass  # who has ended holds it no longer


def test_a_damaged_state_is_told_and_never_taken_for_a_new_one(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "measurement.sqlite").write_bytes(b"no database at all, but long enough to be looked at" * 20)
    with pytest.raises(InvalidPolicy, match="is no readable state of a measurement"):
        MeasurementStore(keep / "measurement.sqlite")
    (keep / "measurement.sqlite").unlink()
    (keep / "measures.json").write_text("", encoding="utf-8")
    with (
        pytest.raises(UnisonoError, match="is not readable JSON"),
        in_process(Job(tmp_path, SLAS, keep), lambda _: None),
    ):
        pass
