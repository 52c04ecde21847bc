"""The measurement service over growing files, without Spark: restarts anywhere lose and double nothing."""

from __future__ import annotations

import itertools
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.metric_streams import SLA, append_rows, interval_rows, lossy_between, write_run

from unisono.errors import InvalidOption, UnisonoError
from unisono.model.text.sla import parse_slas
from unisono.pipeline.measurement import (
    MAX_RESTARTS,
    MeasuredBatch,
    MeasurementJob,
    MeasurementService,
    RunningMeasurement,
    _RestartingQuery,
    measure_in_process,
)
from unisono.pipeline.measurement_store import MeasurementStore, StoredSlaVerdict
from unisono.qos.watch.sla_evaluation import LinkEstimate
from unisono.trace.metrics import MetricBlock, read_block, readable_offsets, slices_between

SLAS = parse_slas(SLA, "sla.toml")
LOSS = lossy_between(4, 8)
_numbers = itertools.count()


def blocks(directory: Path, service: MeasurementService) -> list[MetricBlock]:
    return [read_block(s) for s in slices_between(service.offsets, readable_offsets(directory, service.offsets))]


def judged_at_once(directory: Path, keep: Path) -> list[StoredSlaVerdict]:
    with MeasurementStore(keep / "whole.sqlite") as store:
        service = MeasurementService(SLAS, store)
        service.process(blocks(directory, service))
        return store.verdicts()


def test_a_run_has_its_verdicts_and_estimates(tmp_path: Path) -> None:
    write_run(tmp_path, 16, LOSS)
    with MeasurementStore(tmp_path / "keep" / "x.sqlite") as store:
        service = MeasurementService(SLAS, store)
        measured = service.process(blocks(tmp_path, service))
        assert [(v.run, v.group, v.violated, v.event.sla) for v in store.verdicts()] == [
            ("r", "g", True, "few losses"),
            ("r", "g", False, "few losses"),
        ]
        assert tuple(store.verdicts()) == measured.verdicts
        assert measured.rows == service.rows == 16 * 3 * 11
        assert len(service.latest_estimates) == 6
        assert service.violated_slas == []
        assert measured.network["r", "g"].loss == 0
        store.mark_reported(store.verdicts()[0].id)
        assert [v.reported for v in store.verdicts()] == [True, False]


def every_other_second(member: int, peer: int, number: int) -> float:
    """Each window has a verdict; its figures show whether a row is missing or counts twice."""
    return 0.1 + 0.01 * number if (member, peer) == (2, 1) and number // 4 % 2 else 0.0


def test_restarts_between_batches_leave_no_row_out_and_count_none_twice(tmp_path: Path) -> None:
    """Every figure of every link and window is what it is without them."""

    def found(restarts: bool) -> tuple[list[LinkEstimate], list[StoredSlaVerdict]]:
        folder = tmp_path / str(restarts)
        estimates: list[LinkEstimate] = []
        store = MeasurementStore(folder / "x.sqlite")
        service = MeasurementService(SLAS, store)
        for number in range(17):
            if restarts:
                store.close()
                store = MeasurementStore(folder / "x.sqlite")
                service = MeasurementService(SLAS, store)
            for member in (1, 2, 3):
                append_rows(folder, member, interval_rows(member, (1, 2, 3), number, every_other_second))
            estimates += service.process(blocks(folder, service)).estimates.get(("r", "g"), ())
        with store:
            return estimates, store.verdicts()

    assert found(restarts=True) == found(restarts=False)


def test_a_batch_counts_as_read_when_what_follows_from_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, 16, LOSS)
    with MeasurementStore(tmp_path / "x.sqlite") as store:
        service, ends, seen = MeasurementService(SLAS, store), readable_offsets(tmp_path, {}), []
        running, commit = RunningMeasurement(service, store), store.commit

        def looked_at(state: dict[str, object], verdicts: tuple[StoredSlaVerdict, ...]) -> None:
            seen.append(running.has_processed(ends))
            commit(state, verdicts)

        monkeypatch.setattr(store, "commit", looked_at)
        service.process(blocks(tmp_path, service))
        assert seen == [False]
        assert running.has_processed(ends)


def test_damage_is_counted_once_and_remembered(tmp_path: Path) -> None:
    write_run(tmp_path, 4, LOSS)
    path = append_rows(tmp_path, 2, interval_rows(2, (1, 2, 3), 4, LOSS))
    with path.open("a", encoding="utf-8") as stream:
        stream.write("no row\nnor this\n")
    with MeasurementStore(tmp_path / "x.sqlite") as store:
        service = MeasurementService(SLAS, store)
        first = blocks(tmp_path, service)
        service.process(first)
        service.process(first)
    with MeasurementStore(tmp_path / "x.sqlite") as store:
        service = MeasurementService(SLAS, store)
    assert (service.damaged_lines, service.rows) == (2, (3 * 4 + 1) * 11)
    assert service.first_problem.startswith(f"{path}: line ")


@pytest.mark.parametrize(("patience_ns", "judged"), [(10**15, 0), (10**9, 2)])
def test_a_job_waits_for_a_silent_member_as_long_as_it_was_told(patience_ns: int, judged: int, tmp_path: Path) -> None:
    write_run(tmp_path, 1, LOSS)
    for number in range(1, 20):
        for member in (1, 2):
            append_rows(tmp_path, member, interval_rows(member, (1, 2, 3), number, LOSS))
    job = MeasurementJob(tmp_path, SLAS, tmp_path, patience_ns=patience_ns)
    with MeasurementStore(tmp_path / "x.sqlite") as store:
        service = job.service(store)
        service.process(blocks(tmp_path, service))
        assert len(store.verdicts()) == judged


def test_a_verdict_that_is_found_again_stays_told_and_in_its_place(tmp_path: Path) -> None:
    write_run(tmp_path, 16, LOSS)
    with MeasurementStore(tmp_path / "x.sqlite") as store:
        service = MeasurementService(SLAS, store)
        verdicts = service.process(blocks(tmp_path, service)).verdicts
        store.mark_reported(verdicts[0].id)
        store.commit({"places": {}}, verdicts)
        assert [(v.id, v.reported) for v in store.verdicts()] == [(verdicts[0].id, True), (verdicts[1].id, False)]


def test_the_state_and_the_verdicts_of_a_batch_are_kept_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, 16, LOSS)

    def breaks(event: object) -> str:
        raise OSError("the disk is gone")

    monkeypatch.setattr("unisono.pipeline.measurement_store.event_text", breaks)
    with MeasurementStore(tmp_path / "x.sqlite") as store:
        service = MeasurementService(SLAS, store)
        with pytest.raises(OSError, match="the disk is gone"):
            service.process(blocks(tmp_path, service))
    with MeasurementStore(tmp_path / "x.sqlite") as store:
        assert (store.state, store.verdicts()) == (None, [])


class Query:
    """A stream of Spark's that has ended with this problem; without one, it runs."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.stopped = False
        self.isActive = not problem

    def exception(self) -> str | None:
        return self.problem or None

    def stop(self) -> None:
        self.stopped = True


def test_a_stream_restarts_after_a_worker_crash_a_limited_number_of_times() -> None:
    failing = "… Python worker exited unexpectedly (crashed) …"
    started: list[Query] = []
    problems = iter([failing, failing, "", failing, failing])

    def start() -> Query:
        started.append(Query(next(problems)))
        return started[-1]

    query = _RestartingQuery(start)
    assert [query.failure() for _ in range(4)] == [""] * 4
    assert len(started) == MAX_RESTARTS == 3
    started[-1].isActive, started[-1].problem = False, failing
    assert query.failure() == "", "the last chance"
    assert len(started) == 4
    assert query.failure() == failing
    query.stop()
    assert [one.stopped for one in started] == [False, False, False, True]


def test_a_stream_that_failed_by_itself_does_not_restart() -> None:
    started: list[Query] = []

    def start() -> Query:
        started.append(Query("KeyError: 'places'"))
        return started[-1]

    assert _RestartingQuery(start).failure() == "KeyError: 'places'"
    assert len(started) == 1


Act = str | int
ACTS = st.lists(
    st.sampled_from(
        [1, 2, 3, "take", "again", "from the start", "kill", "kill before the end", "kill, and go on behind"]
    ),
    min_size=20,
    max_size=90,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=ACTS)
def test_killed_anywhere_it_finds_what_it_finds_in_one_go(acts: list[Act], tmp_path: Path) -> None:
    """Members write at their own pace, batches come when they come, and are handed in again; the job dies at will.

    Spark hands in what lies behind its own checkpoint, which may be ahead of what was kept, or gone.
    """
    folder = tmp_path / str(next(_numbers))
    written = dict.fromkeys((1, 2, 3), 0)
    last: list[MetricBlock] = []
    handed: dict[str, int] = {}
    store = MeasurementStore(folder / "x.sqlite")
    service = MeasurementService(SLAS, store, patience_ns=10**15)

    def batch() -> list[MetricBlock]:
        nonlocal handed, last
        behind, handed = handed, readable_offsets(folder, handed)
        last = [read_block(stretch) for stretch in slices_between(behind, handed)]
        return last

    # The service does not wait for members that have never written, so each member starts with one interval.
    # It rereads a lost block only when a later one of the stream arrives, so each member writes once more at the end.
    for number, act in enumerate([1, 2, 3, "take", *acts, *[m for m in written for _ in range(17)], "take"]):
        if isinstance(act, int):
            if written[act] < (16 if number < len(acts) + 4 else 17):
                append_rows(folder, act, interval_rows(act, (1, 2, 3), written[act], every_other_second))
                written[act] += 1
        elif act == "take":
            service.process(batch())
        elif act == "again":
            service.process(last)  # Spark, which has not heard that it was done
        elif act == "from the start":
            handed = {}  # its checkpoint is gone
            service.process(batch())
        else:
            if act != "kill":
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(store, "commit", lambda *_: None)
                    behind = handed
                    service.process(batch())
                    if act == "kill before the end":
                        handed = behind
            store.close()
            store = MeasurementStore(folder / "x.sqlite")
            service = MeasurementService(SLAS, store, patience_ns=10**15)
    found = store.verdicts()
    store.close()
    assert found == judged_at_once(folder, folder)
    assert len(found) == 3
    assert service.rows == 17 * 3 * 11
    assert service.late_rows == 0


def test_without_spark_a_thread_follows_the_files(tmp_path: Path) -> None:
    write_run(tmp_path, 6, LOSS)
    batches: list[MeasuredBatch] = []
    job = MeasurementJob(tmp_path, SLAS, tmp_path / "keep", trigger_ns=1_000_000)
    with measure_in_process(job, batches.append) as running:
        for number in range(6, 16):
            for member in (1, 2, 3):
                append_rows(tmp_path, member, interval_rows(member, (1, 2, 3), number, LOSS))
            while not running.has_processed(readable_offsets(tmp_path, {})):
                running.wait(1)
        assert [v.violated for v in running.store.verdicts()] == [True, False]
    assert [v for batch in batches for v in batch.verdicts] == judged_at_once(tmp_path, tmp_path)


def test_a_state_is_refused_where_it_does_not_belong(tmp_path: Path) -> None:
    job = MeasurementJob(tmp_path, SLAS, tmp_path / "keep")
    with measure_in_process(job, lambda _: None):
        pass
    with measure_in_process(job, lambda _: None):
        pass
    (tmp_path / "elsewhere").mkdir()
    others = [
        replace(job, slas=parse_slas(SLA.replace("0.05", "0.07"), "sla.toml")),
        replace(job, slas=parse_slas(SLA.replace('window = "1s"', 'window = "2s"'), "sla.toml")),
        replace(job, directory=tmp_path / "elsewhere"),
        replace(job, window_ns=10**9),
    ]
    for other in others:
        with (
            pytest.raises(InvalidOption, match="has the state of another"),
            measure_in_process(other, lambda _: None),
        ):
            pass
    with MeasurementStore(tmp_path / "x.sqlite") as store:
        store.commit({"places": {}}, ())
    with sqlite3.connect(tmp_path / "x.sqlite") as raw:
        raw.execute("UPDATE state SET version = 99")
    raw.close()
    with pytest.raises(InvalidOption, match="version 99, but this release reads version 1"):
        MeasurementStore(tmp_path / "x.sqlite")


def test_one_job_at_a_time_works_with_a_folder(tmp_path: Path) -> None:
    job = MeasurementJob(tmp_path, SLAS, tmp_path / "keep")
    with (
        measure_in_process(job, lambda _: None),
        pytest.raises(InvalidOption, match="another measurement uses this folder"),
        measure_in_process(job, lambda _: None),
    ):
        pass
    with measure_in_process(job, lambda _: None):
        pass  # a measurement that has ended releases the folder


def test_a_damaged_state_is_an_error_and_never_treated_as_new(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "measurement.sqlite").write_bytes(b"no database at all, but long enough to be looked at" * 20)
    with pytest.raises(InvalidOption, match="is not a readable measurement state"):
        MeasurementStore(keep / "measurement.sqlite")
    (keep / "measurement.sqlite").unlink()
    (keep / "measures.json").write_text("", encoding="utf-8")
    with (
        pytest.raises(UnisonoError, match="is not readable JSON"),
        measure_in_process(MeasurementJob(tmp_path, SLAS, keep), lambda _: None),
    ):
        pass
