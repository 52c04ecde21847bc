"""Measurement as Structured Streaming (paper 002 §2.4, §4): members' metric rows in, estimates and verdicts out.

Spark tails the members' streams (`metric_source`), parses them on its executors and hands each micro-batch to
`Service`, which puts the rows of each group together (`qos.watch.group_sla`) and judges its agreements (`qos.watch.sla`, the one
implementation).

Why the state is not Spark's own: it is a few hundred bytes per group, since what is pending can be read again from the
streams; a stateful operator would add a shuffle, a Python task and a state commit to every trigger, and the verdicts
would still need a sink that knows doubles. In one transaction with the place that each stream was taken to, it is
exactly once (`measurement_store`): a batch that Spark hands in again, as it does after a crash, is skipped as far as
its bytes were taken, and bytes that Spark believes done and that were not taken are read again.
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

from unisono.errors import InvalidPolicy, UnisonoError
from unisono.model.durations import NS_PER_S
from unisono.model.sla import SlaSet
from unisono.pipeline.measurement_store import MeasurementStore, Verdict
from unisono.pipeline.session import SparkChoice, parallelism, spark_session
from unisono.qos.adapt.estimate import Estimate
from unisono.qos.watch.group_sla import PATIENCE_NS, LinkEstimate, System, verdict_id
from unisono.trace.meta import read_json, write_json
from unisono.trace.metric_tails import Block, Stretch, latest, read_block, stretches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMING = {
    "spark.sql.streaming.pollingDelay": "10ms",
    # The default one forks processes at each commit.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.minBatchesToRetain": "10",
}
"""What a stream at short intervals needs."""
CHANCES = 3
"""How often a stream is started anew that a worker process has failed."""
_PASSING = ("Python worker failed to connect back", "Python worker exited unexpectedly", "Timed out while waiting for")
"""What Spark says of worker processes that a busy machine has let down."""
STORE_NAME = "measurement.sqlite"
CHECKPOINT_NAME = "checkpoint"
_DESCRIPTION_NAME = "measures.json"
_LOCK_NAME = "lock"

Place = tuple[str, str]
"""A run and a group."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one batch has led to."""

    verdicts: tuple[Verdict, ...] = ()
    estimates: dict[Place, tuple[LinkEstimate, ...]] = field(default_factory=dict)
    network: dict[Place, Estimate] = field(default_factory=dict)
    """By group, its links in one estimate, where a window was over."""
    rows: int = 0


Pending = deque[tuple[Stretch, int]]
"""Of one stream, what holds rows of windows that are not judged yet, each with the end of its last window."""


class Service:
    """Takes blocks, batch by batch; keeps what must be kept."""

    def __init__(
        self,
        slas: SlaSet,
        store: MeasurementStore,
        window_ns: int | None = None,
        patience_ns: int = PATIENCE_NS,
    ) -> None:
        self._slas = slas
        self._store = store
        self._shape = window_ns, patience_ns
        self.systems: dict[Place, System] = {}
        self.latest: dict[tuple[Place, int, str, int], LinkEstimate] = {}
        """By group, member, layer and peer, the last window's."""
        self.damaged = 0
        self.problem = ""
        """What is wrong with the first damaged line."""
        self.rows = 0
        self.places: dict[str, int] = {}
        """How far each stream was taken."""
        self.done: dict[str, int] = {}
        """The same, when all that follows from it is kept: for whoever looks from another thread."""
        self._pending: dict[Place, dict[str, Pending]] = {}
        if store.state is not None:
            self._restore(store.state)

    @property
    def late(self) -> int:
        """Rows that came after their window was judged."""
        return sum(system.late for system in self.systems.values())

    @property
    def broken(self) -> list[tuple[Place, str]]:
        """The agreements that are not kept at the moment."""
        return [(place, name) for place, system in sorted(self.systems.items()) for name in system.broken]

    @property
    def unjudged(self) -> list[tuple[Place, str]]:
        """The agreements of which no window has said whether they are kept."""
        return [(place, name) for place, system in sorted(self.systems.items()) for name in system.unjudged]

    def take(self, blocks: Sequence[Block]) -> Measured:
        """One batch. What was taken before is left out, wherever the batch begins."""
        fresh = [taken for block in blocks if (taken := self._fresh(block)) is not None]
        for block in fresh:
            self._take(block, again=False)
        measured = self._judge({(block.run, block.group) for block in fresh})
        self._store.commit(self._state(), measured.verdicts)
        self.done = dict(self.places)
        return replace(measured, rows=sum(len(block.rows) for block in fresh))

    def _fresh(self, block: Block) -> Block | None:
        """The block from where its stream was taken to."""
        path, start, end = block.stretch.path, block.stretch.start, block.stretch.end
        place = self.places.get(path, 0)
        if end <= place:
            return None
        return block if start == place else read_block(Stretch(path, place, end))

    def _take(self, block: Block, again: bool) -> None:
        place, stretch = (block.run, block.group), block.stretch
        self._system(place).take(block.member, block.life, block.rows, block.to_the_end, again)
        if block.rows:
            until = max(row.window_start_ns + row.window_ns for row in block.rows)
            self._pending.setdefault(place, {}).setdefault(stretch.path, deque()).append((stretch, until))
        if not again:
            self.places[stretch.path] = stretch.end
            self.damaged += block.damaged
            self.problem = self.problem or block.problem
            self.rows += len(block.rows)

    def _system(self, place: Place, state: dict[str, Any] | None = None) -> System:
        if place not in self.systems:
            self.systems[place] = System(self._slas.slas, *self._shape, state)
        return self.systems[place]

    def _judge(self, places: set[Place]) -> Measured:
        measured = Measured()
        verdicts: list[Verdict] = []
        for place in sorted(places):
            system = self.systems[place]
            judged = system.judge()
            verdicts += [Verdict(*place, replace(e, id=verdict_id(*place, e))) for e in judged.verdicts]
            if judged.estimates:
                measured.estimates[place] = judged.estimates
                self.latest.update({(place, e.member, e.layer, e.link): e for e in judged.estimates})
            if judged.network is not None:
                measured.network[place] = judged.network
            settled_ns = system.settled_ns
            for pending in self._pending.get(place, {}).values():
                while pending and pending[0][1] <= settled_ns:
                    pending.popleft()
        return replace(measured, verdicts=tuple(verdicts))

    # -- what is kept ----------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        streams = (stream for streams in self._pending.values() for stream in streams.items())
        pending = {path: stretches[0][0].start for path, stretches in streams if stretches}
        return {
            "places": self.places,
            "pending": pending,
            "rows": self.rows,
            "damaged": self.damaged,
            "problem": self.problem,
            "systems": [[*place, system.state()] for place, system in sorted(self.systems.items())],
        }

    def _restore(self, state: dict[str, Any]) -> None:
        """Go on from there: rows of windows that were not judged yet are read again."""
        self.places, self.done = dict(state["places"]), dict(state["places"])
        self.rows, self.damaged, self.problem = state["rows"], state["damaged"], state["problem"]
        for run, group, kept in state["systems"]:
            self._system((run, group), kept)
        for path, start in state["pending"].items():
            self._take(read_block(Stretch(path, start, self.places[path])), again=True)


# -- running it ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """What is measured, where, and how."""

    directory: Path
    slas: SlaSet
    keep: Path
    """The folder of the job's state: with it, a job goes on where an earlier one stopped."""
    trigger_ns: int = NS_PER_S
    window_ns: int | None = None
    patience_ns: int = PATIENCE_NS

    def service(self, store: MeasurementStore) -> Service:
        """The part that judges."""
        self._check_description()
        return Service(self.slas, store, self.window_ns, self.patience_ns)

    def _check_description(self) -> None:
        """A state is of one folder and of agreements of one kind; another's would be nonsense."""
        path = self.keep / _DESCRIPTION_NAME
        agreed = [
            [s.name, s.provider, s.consumer, s.metric, s.bound, s.probability, s.window_ns] for s in self.slas.slas
        ]
        described = {"directory": str(self.directory.resolve()), "slas": agreed, "window_ns": self.window_ns}
        if not path.exists():
            write_json(path, described)
        elif read_json(path) != described:
            raise InvalidPolicy(
                str(self.keep), "holds the state of another measurement (folder or agreements differ); name another"
            )


Take = Callable[[Measured], None]
"""Told of each batch, in the job's thread."""


@contextmanager
def on_spark(job: Job, choice: SparkChoice, take: Take) -> Iterator[Running]:
    """The job on Spark, until the context ends."""
    if choice.connect:
        raise InvalidPolicy("--master", "a stream is judged where its session is: Spark Connect cannot do that")
    with spark_session(choice, "unisono monitor") as session, streaming(job, session, take) as running:
        yield running


@contextmanager
def _alone(keep: Path) -> Iterator[None]:
    """Nobody else may work with this folder meanwhile: two jobs would overwrite each other's state."""
    keep.mkdir(parents=True, exist_ok=True)
    with (keep / _LOCK_NAME).open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidPolicy(str(keep), "another measurement works with this folder; name another") from None
        yield


@contextmanager
def streaming(job: Job, session: SparkSession, take: Take) -> Iterator[Running]:
    """The job in a session that is there."""
    from unisono.pipeline.metric_source import NAME, MetricSource, blocks_of  # noqa: PLC0415 - needs pyspark

    with _alone(job.keep), MeasurementStore(job.keep / STORE_NAME) as store:
        service = job.service(store)
        running = Running(service, store)

        def each(frame: Any, batch: int) -> None:  # noqa: ARG001 - Spark's; where the streams are says more
            running.happened(service.take(blocks_of(frame.collect())), take)

        for name, value in STREAMING.items():
            session.conf.set(name, value)
        session.dataSource.register(MetricSource)
        source = session.readStream.format(NAME).option("path", str(job.directory.resolve()))
        writer = (
            source.option("hands", str(parallelism(session)))
            .load()
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", str((job.keep / CHECKPOINT_NAME).resolve()))
            .trigger(processingTime=f"{max(1, job.trigger_ns // 1_000_000)} milliseconds")
        )
        query = _Query(writer.start)
        running.failed = query.failure
        try:
            yield running
        finally:
            query.stop()


class _Query:
    """A stream that is started anew, from where it was, when a worker process of its was to blame."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._query = start()
        self._chances = CHANCES

    def failure(self) -> str:
        """Why it has ended by itself; empty while it has not."""
        problem = None if self._query.isActive else self._query.exception()
        if problem is None:
            return ""
        if self._chances and any(words in str(problem) for words in _PASSING):
            self._chances -= 1
            self._query = self._start()
            return ""
        return str(problem)

    def stop(self) -> None:
        """For good."""
        self._query.stop()


@contextmanager
def in_process(job: Job, take: Take) -> Iterator[Running]:
    """The same without Spark: one thread that reads and judges."""
    stop = threading.Event()
    with _alone(job.keep), MeasurementStore(job.keep / STORE_NAME) as store:
        service = job.service(store)
        running = Running(service, store)

        def work() -> None:
            try:
                while True:
                    began = time.monotonic()
                    ends = latest(job.directory, service.places)
                    if found := stretches(service.places, ends):
                        running.happened(service.take(list(map(read_block, found))), take)
                    elif stop.wait(max(0.0, began + job.trigger_ns / NS_PER_S - time.monotonic())):
                        return
                    if stop.is_set():
                        return
            except Exception as error:  # noqa: BLE001 - carried over to who waits, and raised there
                problem = repr(error)
                running.failed = lambda: problem

        thread = threading.Thread(target=work, name="measurement", daemon=True)
        thread.start()
        try:
            yield running
        finally:
            stop.set()
            thread.join()


class Running:
    """A job that runs."""

    def __init__(self, service: Service, store: MeasurementStore) -> None:
        self.service, self.store = service, store
        self.failed: Callable[[], str] = lambda: ""
        self._changed = threading.Condition()
        self._batches = 0

    def happened(self, measured: Measured, take: Take) -> None:
        """A batch is done."""
        take(measured)
        with self._changed:
            self._batches += 1
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Until a batch is done, or for so long; raises if there will be none any more."""
        with self._changed:
            self._changed.wait(seconds)
        problem = self.failed()
        if problem:
            raise UnisonoError(f"the measurement stopped: {problem}")

    def read(self, places: dict[str, int]) -> bool:
        """Whether all of this was taken, and what follows from it is known."""
        return all(self.service.done.get(path, 0) >= end for path, end in places.items())
