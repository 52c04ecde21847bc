"""Evaluates the SLAs of running groups from their members' metric rows (paper 002 §2.4, §4), as a Spark stream.

Spark reads the members' metric streams as they grow and parses them on its executors (`metric_source`). It passes each
batch to `MeasurementService`, which evaluates the SLAs of each group with `qos.watch.sla_evaluation`.

The state is not kept in Spark. It is a few hundred bytes per group, because rows that wait for evaluation can be read
again from the streams. `measurement_store` writes the state, the verdicts, and the number of bytes processed of each
stream in one transaction. So every row is processed exactly once, also after a crash: bytes that Spark submits again
are skipped, and bytes that were not processed are read again.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.errors import InvalidOption, UnisonoError
from unisono.model.sla import SlaSet
from unisono.model.units import NS_PER_S
from unisono.pipeline.measurement_store import MeasurementStore, StoredSlaVerdict
from unisono.pipeline.session import SparkChoice, parallelism, spark_session
from unisono.qos.adapt.estimate import Estimate
from unisono.qos.watch.sla_evaluation import PATIENCE_NS, GroupEvaluation, LinkEstimate, verdict_id
from unisono.trace.metrics import MetricBlock, StreamSlice, read_block, readable_offsets, slices_between
from unisono.trace.schema import read_json, write_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMING_SETTINGS = {
    "spark.sql.streaming.pollingDelay": "10ms",
    # The default one forks processes at each commit.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.minBatchesToRetain": "10",
}
"""Spark settings for a stream with short intervals."""
MAX_RESTARTS = 3
"""How often a stream is restarted at most after failures of worker processes."""
_TRANSIENT_ERRORS = (
    "Python worker failed to connect back",
    "Python worker exited unexpectedly",
    "Timed out while waiting for",
)
"""Spark's messages about worker processes that failed on a busy machine."""
STORE_NAME = "measurement.sqlite"
CHECKPOINT_NAME = "checkpoint"
_DESCRIPTION_NAME = "measures.json"
_LOCK_NAME = "lock"

RunGroup = tuple[str, str]
"""The name of a run and the name of its group."""


@dataclass(frozen=True, slots=True)
class MeasuredBatch:
    """The results of one batch of metric rows: estimates and SLA verdicts."""

    verdicts: tuple[StoredSlaVerdict, ...] = ()
    estimates: dict[RunGroup, tuple[LinkEstimate, ...]] = field(default_factory=dict)
    network: dict[RunGroup, Estimate] = field(default_factory=dict)
    """For each group of which a window ended: one estimate over all its links."""
    rows: int = 0


PendingSlices = deque[tuple[StreamSlice, int]]
"""The slices of one metric stream that have rows of SLA windows not evaluated yet, each with its last window's end."""


class MeasurementService:
    """Evaluates the metric rows of all groups, batch by batch, and stores its state and the SLA verdicts."""

    def __init__(
        self,
        slas: SlaSet,
        store: MeasurementStore,
        window_ns: int | None = None,
        patience_ns: int = PATIENCE_NS,
    ) -> None:
        self._slas = slas
        self._store = store
        self._window_and_patience = window_ns, patience_ns
        self.systems: dict[RunGroup, GroupEvaluation] = {}
        self.latest_estimates: dict[tuple[RunGroup, int, str, int], LinkEstimate] = {}
        """The latest estimate for each group, member, layer and peer."""
        self.damaged_lines = 0
        self.first_problem = ""
        """What is wrong with the first damaged line of a metric stream; empty if no line is damaged."""
        self.rows = 0
        self.offsets: dict[str, int] = {}
        """How many bytes of each metric stream were processed."""
        self.committed_offsets: dict[str, int] = {}
        """How many bytes of each metric stream have their results stored; other threads read this."""
        self._pending: dict[RunGroup, dict[str, PendingSlices]] = {}
        if store.state is not None:
            self._restore(store.state)

    @property
    def late_rows(self) -> int:
        """The number of metric rows that came after their SLA window was evaluated."""
        return sum(system.late for system in self.systems.values())

    @property
    def violated_slas(self) -> list[tuple[RunGroup, str]]:
        """The SLAs that are currently violated, each with its run and group."""
        return [(place, name) for place, system in sorted(self.systems.items()) for name in system.violated_slas]

    @property
    def unevaluated_slas(self) -> list[tuple[RunGroup, str]]:
        """The SLAs for which no window was evaluated yet, each with its run and group."""
        return [(place, name) for place, system in sorted(self.systems.items()) for name in system.unevaluated_slas]

    def process(self, blocks: Sequence[MetricBlock]) -> MeasuredBatch:
        """Process one batch of metric rows. Parts that were processed before are skipped."""
        fresh = [taken for block in blocks if (taken := self._unprocessed(block)) is not None]
        for block in fresh:
            self._add_block(block, reread=False)
        measured = self._evaluate({(block.run, block.group) for block in fresh})
        self._store.commit(self._state(), measured.verdicts)
        self.committed_offsets = dict(self.offsets)
        return replace(measured, rows=sum(len(block.rows) for block in fresh))

    def _unprocessed(self, block: MetricBlock) -> MetricBlock | None:
        """The part of a block that was not processed before; None if all of it was."""
        path, start, end = block.stream_slice.path, block.stream_slice.start, block.stream_slice.end
        place = self.offsets.get(path, 0)
        if end <= place:
            return None
        return block if start == place else read_block(StreamSlice(path, place, end))

    def _add_block(self, block: MetricBlock, reread: bool) -> None:
        place, stretch = (block.run, block.group), block.stream_slice
        self._system(place).add_rows(block.member, block.incarnation, block.rows, block.at_end, reread)
        if block.rows:
            until = max(row.window_start_ns + row.window_ns for row in block.rows)
            self._pending.setdefault(place, {}).setdefault(stretch.path, deque()).append((stretch, until))
        if not reread:
            self.offsets[stretch.path] = stretch.end
            self.damaged_lines += block.damaged_lines
            self.first_problem = self.first_problem or block.first_problem
            self.rows += len(block.rows)

    def _system(self, run_group: RunGroup, state: dict[str, Any] | None = None) -> GroupEvaluation:
        if run_group not in self.systems:
            self.systems[run_group] = GroupEvaluation(self._slas.slas, *self._window_and_patience, state)
        return self.systems[run_group]

    def _evaluate(self, run_groups: set[RunGroup]) -> MeasuredBatch:
        measured = MeasuredBatch()
        verdicts: list[StoredSlaVerdict] = []
        for place in sorted(run_groups):
            system = self.systems[place]
            judged = system.evaluate()
            verdicts += [StoredSlaVerdict(*place, replace(e, id=verdict_id(*place, e))) for e in judged.verdicts]
            if judged.estimates:
                measured.estimates[place] = judged.estimates
                self.latest_estimates.update({(place, e.member, e.layer, e.link): e for e in judged.estimates})
            if judged.network is not None:
                measured.network[place] = judged.network
            settled_ns = system.evaluated_until_ns
            for pending in self._pending.get(place, {}).values():
                while pending and pending[0][1] <= settled_ns:
                    pending.popleft()
        return replace(measured, verdicts=tuple(verdicts))

    # -- stored state ----------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        streams = (stream for streams in self._pending.values() for stream in streams.items())
        pending = {path: stretches[0][0].start for path, stretches in streams if stretches}
        return {
            "places": self.offsets,
            "pending": pending,
            "rows": self.rows,
            "damaged": self.damaged_lines,
            "problem": self.first_problem,
            "systems": [[*place, system.state()] for place, system in sorted(self.systems.items())],
        }

    def _restore(self, state: dict[str, Any]) -> None:
        """Resume from a stored state, and read the rows of unevaluated windows again."""
        self.offsets, self.committed_offsets = dict(state["places"]), dict(state["places"])
        self.rows, self.damaged_lines, self.first_problem = state["rows"], state["damaged"], state["problem"]
        for run, group, kept in state["systems"]:
            self._system((run, group), kept)
        for path, start in state["pending"].items():
            self._add_block(read_block(StreamSlice(path, start, self.offsets[path])), reread=True)


# -- running it ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasurementJob:
    """The settings of a measurement job."""

    directory: Path
    slas: SlaSet
    state_folder: Path
    """The folder of the job's state, from which a later job resumes."""
    trigger_ns: int = NS_PER_S
    window_ns: int | None = None
    patience_ns: int = PATIENCE_NS

    def service(self, store: MeasurementStore) -> MeasurementService:
        """The measurement service of this job, which evaluates metric rows."""
        self._check_description()
        return MeasurementService(self.slas, store, self.window_ns, self.patience_ns)

    def _check_description(self) -> None:
        """Raise `InvalidOption` if the stored state belongs to a measurement of another folder or other SLAs."""
        path = self.state_folder / _DESCRIPTION_NAME
        agreed = [
            [s.name, s.provider, s.consumer, s.metric, s.bound, s.probability, s.window_ns] for s in self.slas.slas
        ]
        described = {"directory": str(self.directory.resolve()), "slas": agreed, "window_ns": self.window_ns}
        if not path.exists():
            write_json(path, described)
        elif read_json(path) != described:
            raise InvalidOption(
                str(self.state_folder),
                "has the state of another measurement, of another trace folder or other SLAs; use another state folder",
            )


OnBatch = Callable[[MeasuredBatch], None]
"""A function that the job calls, in its own thread, with the results of each batch."""


@contextmanager
def measure_on_spark(job: MeasurementJob, choice: SparkChoice, on_batch: OnBatch) -> Iterator[RunningMeasurement]:
    """Run the measurement job on Spark until the `with` block ends."""
    if choice.is_connect:
        raise InvalidOption(
            "--master", "measurement evaluates streams in this process, so it cannot use Spark Connect (sc://...)"
        )
    with spark_session(choice, "unisono monitor") as session, measure_in_session(job, session, on_batch) as running:
        yield running


@contextmanager
def _exclusive_folder(folder: Path) -> Iterator[None]:
    """Lock the folder: two jobs would overwrite each other's state."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK_NAME).open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidOption(str(folder), "another measurement uses this folder; use another one") from None
        yield


@contextmanager
def measure_in_session(job: MeasurementJob, session: SparkSession, on_batch: OnBatch) -> Iterator[RunningMeasurement]:
    """Run the measurement job in an existing Spark session until the `with` block ends."""
    from unisono.pipeline.metric_source import NAME, MetricSource, decode_blocks  # noqa: PLC0415 - needs pyspark

    with _exclusive_folder(job.state_folder), MeasurementStore(job.state_folder / STORE_NAME) as store:
        service = job.service(store)
        running = RunningMeasurement(service, store)

        def each(frame: Any, batch: int) -> None:  # noqa: ARG001 - Spark's; where the streams are says more
            running.on_batch_done(service.process(decode_blocks(frame.collect())), on_batch)

        for name, value in STREAMING_SETTINGS.items():
            session.conf.set(name, value)
        session.dataSource.register(MetricSource)
        source = session.readStream.format(NAME).option("path", str(job.directory.resolve()))
        writer = (
            source.option("hands", str(parallelism(session)))
            .load()
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", str((job.state_folder / CHECKPOINT_NAME).resolve()))
            .trigger(processingTime=f"{max(1, job.trigger_ns // 1_000_000)} milliseconds")
        )
        query = _RestartingQuery(writer.start)
        running.failure = query.failure
        try:
            yield running
        finally:
            query.stop()


class _RestartingQuery:
    """A Spark streaming query that restarts from its last position after a failure of a worker process."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._query = start()
        self._restarts_left = MAX_RESTARTS

    def failure(self) -> str:
        """Why the stream ended by itself; empty if it did not."""
        problem = None if self._query.isActive else self._query.exception()
        if problem is None:
            return ""
        if self._restarts_left and any(words in str(problem) for words in _TRANSIENT_ERRORS):
            self._restarts_left -= 1
            self._query = self._start()
            return ""
        return str(problem)

    def stop(self) -> None:
        """Stop the stream for good."""
        self._query.stop()


@contextmanager
def measure_in_process(job: MeasurementJob, on_batch: OnBatch) -> Iterator[RunningMeasurement]:
    """Run the measurement job without Spark until the `with` block ends: one thread reads and evaluates."""
    stop = threading.Event()
    with _exclusive_folder(job.state_folder), MeasurementStore(job.state_folder / STORE_NAME) as store:
        service = job.service(store)
        running = RunningMeasurement(service, store)

        def work() -> None:
            try:
                while True:
                    began = time.monotonic()
                    ends = readable_offsets(job.directory, service.offsets)
                    if found := slices_between(service.offsets, ends):
                        running.on_batch_done(service.process(list(map(read_block, found))), on_batch)
                    elif stop.wait(max(0.0, began + job.trigger_ns / NS_PER_S - time.monotonic())):
                        return
                    if stop.is_set():
                        return
            except Exception as error:  # noqa: BLE001 - raised again in the waiting thread
                problem = repr(error)
                running.failure = lambda: problem

        thread = threading.Thread(target=work, name="measurement", daemon=True)
        thread.start()
        try:
            yield running
        finally:
            stop.set()
            thread.join()


class RunningMeasurement:
    """A handle on a running measurement job, for the code that started it."""

    def __init__(self, service: MeasurementService, store: MeasurementStore) -> None:
        self.service, self.store = service, store
        self.failure: Callable[[], str] = lambda: ""
        self._changed = threading.Condition()

    def on_batch_done(self, measured: MeasuredBatch, on_batch: OnBatch) -> None:
        """Record that a batch is done, and call `on_batch` with its results."""
        on_batch(measured)
        with self._changed:
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until a batch is done or the time is up; raises if the job has stopped."""
        with self._changed:
            self._changed.wait(seconds)
        problem = self.failure()
        if problem:
            raise UnisonoError(f"the measurement stopped: {problem}")

    def has_processed(self, offsets: dict[str, int]) -> bool:
        """Whether all bytes of the metric streams up to these offsets were processed and their results are stored."""
        return all(self.service.committed_offsets.get(path, 0) >= end for path, end in offsets.items())
