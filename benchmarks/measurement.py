"""The measurement stream: from a row written to a violation delivered at a member, and how many rows it keeps up with.

Latency: a group of real processes with the SLA reporter in it. Rows are written as if by other members; their losses
change from window to window, so that each window is a verdict. The clock runs from the write of the rows that end a
window until a member process has delivered the verdict; the next follows after a random while, so that verdicts fall on
any part of the trigger interval.

Throughput: a process of its own appends what a group of 32 members collects four times a second.

Each with Spark and, beside it, with the same job in one thread without Spark.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import queue
import random
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from benchmarks.progress import Say, silence
from unisono.cli.reporter_process import ReporterProcess
from unisono.cluster.supervisor import LocalCluster, ProcessReport, free_addresses
from unisono.model.delays import Histogram
from unisono.model.sla import EVERY_LINK, MetricRow, Side
from unisono.model.text.sla import parse_slas
from unisono.model.units import NS_PER_S
from unisono.pipeline.measurement import (
    MeasuredBatch,
    MeasurementJob,
    RunningMeasurement,
    measure_in_process,
    measure_in_session,
)
from unisono.pipeline.session import SparkChoice, spark_session
from unisono.trace.metrics import MetricRecord, metrics_folder, to_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MS = 1_000_000
COLLECT_NS = 250 * MS
BEGIN_NS = 1_000_000 * NS_PER_S
TRIGGERS_NS = (200 * MS, NS_PER_S)
WRITERS = (1, 2, 3)
LISTENERS = (1, 2)
CROWD = 32
"""32 members' 31 links with five metrics each, and one more row, four times a second: 19,968 rows/s."""
WARM = 3
"""Verdicts that do not count: the stream's first batches are its slowest."""
SLA = """
collect = "250ms"

[[sla]]
name = "few losses"
provider = "network"
consumer = "order"
metric = "loss"
bound = 0.05
probability = 0.95
window = "250ms"

[[sla]]
name = "quick"
provider = "network"
consumer = "order"
metric = "delay"
bound = "50ms"
probability = 0.9
window = "1s"
together = true
"""

Start = Callable[[MeasurementJob, Callable[[MeasuredBatch], None]], AbstractContextManager[RunningMeasurement]]


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """A row per kind of work, engine and trigger."""
    samples, seconds = (8, 6.0) if quick else (40, 30.0)
    found = []
    with spark_session(SparkChoice("local[2]"), "unisono benchmark") as session:
        for engine, start in (("spark", _on(session)), ("no spark", measure_in_process)):
            for trigger_ns in TRIGGERS_NS:
                say(f"measurement, {engine}, trigger {trigger_ns // MS} ms: latency")
                found.append({"work": "latency", "engine": engine, **_latency(start, trigger_ns, samples)})
                say(f"measurement, {engine}, trigger {trigger_ns // MS} ms: throughput")
                found.append({"work": "throughput", "engine": engine, **_throughput(start, trigger_ns, seconds)})
    return found


def _on(session: SparkSession) -> Start:
    return lambda job, take: measure_in_session(job, session, take)


@contextmanager
def _job(trigger_ns: int) -> Iterator[MeasurementJob]:
    with tempfile.TemporaryDirectory(prefix="unisono-bench-") as folder:
        trace = Path(folder) / "trace"
        trace.mkdir()
        yield MeasurementJob(trace, parse_slas(SLA, "the benchmark's"), Path(folder) / "keep", trigger_ns)


def _interval(members: tuple[int, ...], member: int, number: int, loss: float) -> list[MetricRow]:
    """What a member's collectors give for one interval."""
    when = BEGIN_NS + number * COLLECT_NS, COLLECT_NS
    delays = Histogram()
    for delay in range(20):
        delays.add(MS + delay * MS // 10, 5)
    pairs = tuple(delays.to_pairs())
    found = [MetricRow("vbr", Side.ABOVE, EVERY_LINK, "held_back", *when, 10, 0.0)]
    for peer in members:
        if peer != member:
            where = "vbr", Side.BELOW, peer
            found += [
                MetricRow(*where, "loss", *when, 200, loss),
                MetricRow(*where, "delay", *when, delays.total, delays.mean(), delays.largest, pairs),
                MetricRow(*where, "jitter", *when, 50, 1e5),
                MetricRow(*where, "gamma", *when, 1, 2e5),
                MetricRow(*where, "silence", *when, 50, 3e5),
            ]
    return found


def _text(group: str, member: int, found: list[MetricRow]) -> str:
    return "".join(to_line(MetricRecord("bench", group, member, 1, row)) for row in found)


# -- latency -------------------------------------------------------------------------------------------------


def _scenario(seconds: float) -> str:
    return f"""
[group]
name = "bench"
members = {len(LISTENERS) + 1}
failures = true
slot = "10ms"
delta = "60ms"
gamma = "10ms"

[rate]
avg = 50
burst = 8

[workload]
kind = "poisson"
rate = 5

[network]
delay = "uniform:100us..1ms"

[run]
seconds = {seconds}
"""


def _latency(start: Start, trigger_ns: int, samples: int) -> dict[str, Any]:
    delivered: queue.Queue[tuple[str, int, int]] = queue.Queue()
    found: list[float] = []
    with _job(trigger_ns) as job, tempfile.TemporaryDirectory(prefix="unisono-bench-") as elsewhere:
        text = _scenario(3600)
        peers = free_addresses((*LISTENERS, len(LISTENERS) + 1))
        seat = {member: f"{host}:{port}" for member, (host, port) in peers.items()}
        messenger = ReporterProcess("bench", (text, "bench"), (SLA, "bench"), len(LISTENERS) + 1, seat)
        group = _Group(text, peers, elsewhere, delivered)
        with start(job, messenger.send_measured) as running, messenger:
            messenger.send_unreported_verdicts(running.store)
            with group:
                for number in range(samples + WARM):
                    written_ns = _write(job.directory, number)
                    latency_ns = _awaited(running, delivered, number) - written_ns
                    if number >= WARM:
                        found.append(latency_ns / MS)
                    time.sleep(random.random() * trigger_ns / NS_PER_S)
    low, high = quantiles(found, n=10)[0], quantiles(found, n=10)[-1]
    return {
        "trigger_ms": trigger_ns // MS,
        "verdicts": len(found),
        "p50_ms": round(median(found)),
        "p10_ms": round(low),
        "p90_ms": round(high),
        "max_ms": round(max(found)),
        "target_ms": 1000 if trigger_ns < NS_PER_S else 3000,
    }


def _write(directory: Path, number: int) -> int:
    """Write one interval of every writer, with or without losses; returns the time of writing."""
    folder = metrics_folder(directory, "bench", "bench")
    folder.mkdir(parents=True, exist_ok=True)
    for member in WRITERS:
        text = _text("bench", member, _interval(WRITERS, member, number, 0.0 if number % 2 else 0.3))
        with (folder / f"member={member}.1.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(text)
    return time.time_ns()


def _awaited(running: RunningMeasurement, delivered: queue.Queue[tuple[str, int, int]], number: int) -> int:
    """When the first member delivered the verdict with this number; reports of earlier ones are skipped."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        running.wait(0)
        try:
            verdict, _, at_ns = delivered.get(timeout=0.05)
        except queue.Empty:
            continue
        verdicts = running.store.verdicts()
        if len(verdicts) > number and verdict == verdicts[number].id:
            return at_ns
    raise TimeoutError("a verdict was not delivered within two minutes")


class _Group:
    """Real members that deliver verdicts."""

    def __init__(
        self,
        text: str,
        peers: dict[int, tuple[str, int]],
        folder: str,
        delivered: queue.Queue[tuple[str, int, int]],
    ) -> None:
        common = {"scenario": text, "source": "bench", "trace": folder, "run": "live", "peers": peers}
        setups = {m: {**common, "member": m, "expected": list(LISTENERS), "slas": (SLA, "bench")} for m in LISTENERS}
        self._cluster = LocalCluster(setups, self._note)
        self._delivered = delivered
        self._begun = threading.Semaphore(0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="group", daemon=True)

    def _note(self, member: int, report: ProcessReport) -> None:
        if report["kind"] == "begun":
            self._begun.release()
        elif report["kind"] == "qos" and report.get("id"):
            self._delivered.put((report["id"], member, report["at_ns"]))

    def _run(self) -> None:
        async def play() -> None:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            await self._cluster.run(3600)

        try:
            asyncio.run(play())
        except asyncio.CancelledError:
            return

    def __enter__(self) -> None:
        self._thread.start()
        for _ in LISTENERS:
            if not self._begun.acquire(timeout=120):
                raise TimeoutError("the group did not begin within two minutes")

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()


# -- throughput ----------------------------------------------------------------------------------------------


def _throughput(start: Start, trigger_ns: int, seconds: float) -> dict[str, Any]:
    with _job(trigger_ns) as job:
        began = multiprocessing.get_context("spawn").Event()
        process = multiprocessing.get_context("spawn").Process(
            target=_crowd, args=(str(job.directory), seconds, began), daemon=True
        )
        lags: list[float] = []
        per_interval = CROWD * (1 + 5 * (CROWD - 1))

        def take(measured: MeasuredBatch) -> None:
            """The age of the newest evaluated row; the number of its interval says when it was written."""
            if measured.rows and began.is_set():
                intervals = running.service.rows / per_interval
                lags.append(time.monotonic() - first - (intervals - 1) * COLLECT_NS / NS_PER_S)

        with start(job, take) as running:
            process.start()
            began.wait(120)
            first = time.monotonic()
            before = _cpu_s()
            process.join()
            written = time.monotonic() - first
            total = int(seconds * NS_PER_S / COLLECT_NS) * per_interval
            while running.service.rows < total:
                running.wait(1)
            caught_up = time.monotonic() - first - written
            cpu = _cpu_s() - before
    steady = lags[len(lags) // 3 :]
    return {
        "trigger_ms": trigger_ns // MS,
        "events_per_s": round(total / (written + caught_up)),
        "offered_per_s": round(total / written),
        "lag_p50_ms": round(1000 * median(steady)),
        "lag_max_ms": round(1000 * max(steady)),
        "caught_up_ms": round(1000 * caught_up),
        "driver_cores": round(cpu / (written + caught_up), 2),
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _crowd(directory: str, seconds: float, began: Any) -> None:
    """Append what all members collect, an interval at a time, at its time."""
    folder = metrics_folder(directory, "bench", "crowd")
    folder.mkdir(parents=True, exist_ok=True)
    members = tuple(range(1, CROWD + 1))
    mark = json.dumps(BEGIN_NS)
    texts = {m: _text("crowd", m, _interval(members, m, 0, 0.0)) for m in members}
    streams = {m: (folder / f"member={m}.1.jsonl").open("a", encoding="utf-8") for m in members}
    began.set()
    first = time.monotonic()
    for number in range(int(seconds * NS_PER_S / COLLECT_NS)):
        time.sleep(max(0.0, first + number * COLLECT_NS / NS_PER_S - time.monotonic()))
        at = str(BEGIN_NS + number * COLLECT_NS)
        for member, stream in streams.items():
            stream.write(texts[member].replace(mark, at))
            stream.flush()
    for stream in streams.values():
        stream.close()
