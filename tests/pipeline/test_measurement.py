"""The measurement stream on Spark: it finds what is found without Spark, and goes on after it broke off anywhere."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.metric_streams import SLA, append_rows, interval_rows, lossy_between, write_run

from unisono.cli.reporter_process import ReporterProcess
from unisono.cluster.supervisor import LocalCluster, MemberProcess, ProcessReport, free_addresses
from unisono.errors import UnisonoError
from unisono.model.text.sla import parse_slas
from unisono.pipeline.measurement import (
    MeasuredBatch,
    MeasurementJob,
    RunningMeasurement,
    measure_in_process,
    measure_in_session,
)
from unisono.trace.metrics import readable_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLAS = parse_slas(SLA, "sla.toml")
LOSS = lossy_between(4, 8)
MEMBERS = (1, 2, 3)
PATIENCE_S = 180
PROJECT = Path(__file__).parents[2]
SCENARIO, SYSTEM_SLA = PROJECT / "scenarios" / "monitored.toml", PROJECT / "slas" / "system.toml"


def wait_until(running: RunningMeasurement, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, "the stream does not get there"
        running.wait(0.2)


def ids_without_spark(directory: Path, keep: Path) -> list[str]:
    with measure_in_process(MeasurementJob(directory, SLAS, keep, trigger_ns=1_000_000), lambda _: None) as running:
        wait_until(running, lambda: running.has_processed(readable_offsets(directory, {})))
        return [verdict.id for verdict in running.store.verdicts()]


class Breaks(Exception):
    """What is done to the job."""


def test_the_stream_goes_on_where_it_broke_off(spark: SparkSession, tmp_path: Path) -> None:
    """Stopped in order, broken off between judging a batch and Spark's hearing of it, and let down by a worker."""
    trace = tmp_path / "trace"
    job = MeasurementJob(trace, SLAS, tmp_path / "keep", trigger_ns=50_000_000)
    write_run(trace, 3, LOSS)
    write_run(trace, 16, LOSS, run="another")
    with measure_in_session(job, spark, lambda _: None) as running:
        wait_until(running, lambda: running.has_processed(readable_offsets(trace, {})))
        assert [v.run for v in running.store.verdicts()] == ["another", "another"]

    def grow(first: int, last: int) -> None:
        for number in range(first, last):
            for member in MEMBERS:
                append_rows(trace, member, interval_rows(member, MEMBERS, number, LOSS))

    def broken(measured: MeasuredBatch) -> None:
        if measured.verdicts:
            raise Breaks

    grow(3, 9)  # the window that is broken, and one interval more
    with pytest.raises(UnisonoError, match="Breaks"), measure_in_session(job, spark, broken) as running:
        wait_until(running, lambda: False)
    grow(9, 16)
    failures = iter([Breaks("Python worker failed to connect back")])

    def fails_once(_: MeasuredBatch) -> None:
        for failure in failures:
            raise failure

    with measure_in_session(job, spark, fails_once) as running:
        wait_until(running, lambda: running.has_processed(readable_offsets(trace, {})))
        found = running.store.verdicts()
        assert [(v.run, v.violated) for v in found[2:]] == [("r", True), ("r", False)]
        assert running.service.late_rows == running.service.damaged_lines == 0
        assert running.service.rows == 2 * 16 * 3 * 11
    assert sorted(v.id for v in found) == sorted(ids_without_spark(trace, tmp_path / "other"))


def lasting() -> str:
    """The scenario, for as long as a busy machine may need; the test ends it when it has seen enough."""
    return SCENARIO.read_text(encoding="utf-8").replace("seconds = 20", "seconds = 180")


def monitored(directory: Path, peers: dict[int, tuple[str, int]]) -> dict[int, dict[str, object]]:
    """What the five members of the scenario are started with; the sixth seat is the service's."""
    common = {
        "scenario": lasting(),
        "source": str(SCENARIO),
        "slas": (SYSTEM_SLA.read_text(encoding="utf-8"), str(SYSTEM_SLA)),
        "trace": str(directory),
        "run": "live",
        "peers": peers,
    }
    five = [1, 2, 3, 4, 5]
    return {member: {**common, "member": member, "expected": five} for member in five}


@pytest.mark.timeout(600)
def test_five_processes_break_the_agreement_get_the_verdict_adapt_and_keep_it_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The whole loop: members' metrics → stream → verdict → the group's total order → all adapt at one slot."""
    trace = tmp_path / "trace"
    slas = parse_slas(SYSTEM_SLA.read_text(encoding="utf-8"), str(SYSTEM_SLA))
    peers = free_addresses((1, 2, 3, 4, 5, 6))
    messenger = ReporterProcess(
        *("monitored", (lasting(), "monitored"), (SYSTEM_SLA.read_text(encoding="utf-8"), "system"), 6),
        {member: f"{host}:{port}" for member, (host, port) in peers.items()},
    )
    cluster: LocalCluster
    heard: dict[int, list[ProcessReport]] = {member: [] for member in range(1, 6)}

    def note(member: int, report: ProcessReport) -> None:
        if report["kind"] == "qos":
            heard[member].append(report)
            if all({"adapted", "system_sla_cleared"} <= {e["what"] for e in events} for events in heard.values()):
                for node in cluster.processes.values():
                    with suppress(ProcessLookupError):
                        node.process.send_signal(signal.SIGTERM)  # which leaves in order

    async def play() -> dict[int, MemberProcess]:
        nonlocal cluster
        cluster = LocalCluster(monitored(trace, peers), note)
        return await cluster.run(300)

    write_run(trace, 8, lossy_between(0, 0), run="before")  # the stream is warm when the group begins
    job = MeasurementJob(trace, slas, tmp_path / "keep", trigger_ns=200_000_000)
    with measure_in_session(job, spark, messenger.send_measured) as running:
        wait_until(running, lambda: running.has_processed(readable_offsets(trace, {})))
        with messenger:
            messenger.send_unreported_verdicts(running.store)
            finals = asyncio.run(play())
        wait_until(running, lambda: running.has_processed(readable_offsets(trace, {})))
        found = running.store.verdicts()
    # The stream has seen the agreement break and hold again, and the group received the verdicts.
    assert {verdict.run for verdict in found} == {"live"}
    assert [verdict.violated for verdict in found][:2] == [True, False], [verdict.event.text for verdict in found]
    assert found[0].reported
    told = {member: [e for e in events if e["what"] == "system_sla"] for member, events in heard.items()}
    # The members deliver the verdict at the same place in the order. If failures are allowed, a member that a busy
    # machine stopped may miss the marks of five slots in a row. It then receives the current state of the agreement
    # and adapts a few seconds later.
    places = [events[0]["slot"] for events in told.values() if events]
    assert max(map(places.count, places)) >= 3, told
    assert all(event["sla"] == "few gaps" for events in told.values() for event in events)
    # Only the service makes demands here, and all members have adapted to them.
    for member, events in heard.items():
        adapted = [event for event in events if event["what"] == "adapted"]
        assert adapted, (member, events)
        assert all("requested by member 6" in event["text"] for event in adapted)
        assert any(f"on: ρ = {rho}" in event["text"] for event in adapted for rho in range(2, 7)), adapted
        assert not any(event["what"] == "demand" for event in events)
        assert any(event["what"] == "system_sla_cleared" for event in events), events
    assert all(node.final_report() is not None for node in finals.values())
