"""Synthetic metric streams: the files that the members of a group would have written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from unisono.model.delays import Histogram
from unisono.model.sla import EVERY_LINK, MetricRow, Side
from unisono.trace.metrics import MetricRecord, from_fields, metrics_folder, to_line

MS = 1_000_000
COLLECT_NS = 250 * MS
START_NS = 1_000_000 * 1000 * MS
SLA = """
collect = "250ms"

[[sla]]
name = "few losses"
provider = "network"
consumer = "order"
metric = "loss"
bound = 0.05
probability = 0.95
window = "1s"

[[sla]]
name = "all in all"
provider = "network"
consumer = "order"
metric = "delay"
bound = "20ms"
probability = 0.9
window = "500ms"
together = true
"""

LossByInterval = Callable[[int, int, int], float]
"""How much is lost at a member from a peer in an interval, by its number."""


def interval_rows(
    member: int, members: Sequence[int], number: int, loss: LossByInterval, delay_ns: int = MS
) -> list[MetricRow]:
    """What a member's collectors give for one interval."""
    when = START_NS + number * COLLECT_NS, COLLECT_NS
    delays = Histogram()
    delays.add(delay_ns, 50)
    rows = [MetricRow("vbr", Side.ABOVE, EVERY_LINK, "held_back", *when, 10, 0.0)]
    for peer in members:
        if peer == member:
            continue
        where = "vbr", Side.BELOW, peer
        pairs = tuple(delays.to_pairs())
        rows += [
            MetricRow(*where, "loss", *when, 100, loss(member, peer, number)),
            MetricRow(*where, "delay", *when, delays.total, delays.mean(), delays.largest, pairs),
            MetricRow(*where, "jitter", *when, 50, 1e5),
            MetricRow(*where, "gamma", *when, 1, 2e5),
            MetricRow(*where, "silence", *when, 50, 3e5),
        ]
    return rows


def stream_path(directory: Path, member: int, run: str = "r", group: str = "g", incarnation: int = 1) -> Path:
    folder = metrics_folder(directory, run, group)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"member={member}.{incarnation}.jsonl"


def stream_text(rows: Sequence[MetricRow], member: int, run: str = "r", group: str = "g", incarnation: int = 1) -> str:
    return "".join(to_line(MetricRecord(run, group, member, incarnation, row)) for row in rows)


def append_rows(
    directory: Path, member: int, rows: Sequence[MetricRow], *, run: str = "r", incarnation: int = 1
) -> Path:
    path = stream_path(directory, member, run, incarnation=incarnation)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(stream_text(rows, member, run, incarnation=incarnation))
    return path


def write_run(
    directory: Path, intervals: int, loss: LossByInterval, members: Sequence[int] = (1, 2, 3), run: str = "r"
) -> None:
    """A whole run."""
    for member in members:
        append_rows(
            directory, member, [r for n in range(intervals) for r in interval_rows(member, members, n, loss)], run=run
        )


def lossy_between(first: int, last: int, share: float = 0.2) -> LossByInterval:
    """The link from 1 to 2 loses in these intervals; all others, and at other times, nothing."""
    return lambda member, peer, number: share if (member, peer) == (2, 1) and first <= number < last else 0.0


def read_metrics(path: Path) -> list[MetricRecord]:
    """The records of a Parquet file of metrics."""
    table = pq.read_table(path)
    version = int(table.schema.metadata[b"unisono.metrics.version"])
    return [from_fields({"version": version, **fields}) for fields in table.to_pylist()]
