"""Spark's source of metric rows without Spark: offsets, parts, and blocks as they are sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.metric_streams import append_rows, interval_rows, lossy_between, write_run

from unisono.pipeline import metric_source
from unisono.pipeline.metric_source import MetricReader, MetricSource, decode_blocks
from unisono.trace.metrics import MetricBlock, read_block, readable_offsets, slices_between

LOSS = lossy_between(4, 8)


def batch(reader: MetricReader, start: dict[str, int], end: dict[str, int]) -> tuple[int, list[MetricBlock]]:
    """In how many parts a batch is read, and its blocks."""
    parts = reader.partitions(start, end)
    rows = [row for part in parts for sent in reader.read(part) for row in sent.to_pylist()]
    return len(parts), sorted(decode_blocks(rows), key=lambda block: block.stream_slice.path)


def test_a_batch_is_what_has_come_since_the_last_and_the_same_when_read_again(tmp_path: Path) -> None:
    write_run(tmp_path, 3, LOSS)
    reader = MetricSource({"path": str(tmp_path)}).streamReader(None)
    start = reader.initialOffset()
    assert start == {}
    first = reader.latestOffset(start)
    assert first == readable_offsets(tmp_path, {})
    assert batch(reader, start, first)[1] == [read_block(stretch) for stretch in slices_between({}, first)]
    for number in (3, 4):
        append_rows(tmp_path, 2, interval_rows(2, (1, 2, 3), number, LOSS))
    second = reader.latestOffset(first)
    (one,) = batch(reader, first, second)[1]
    assert (one.member, len(one.rows), one.stream_slice.start) == (2, 2 * 11, first[one.stream_slice.path])
    assert one.rows[0].window_start_ns > read_block(slices_between({}, first)[1]).rows[-1].window_start_ns
    again = batch(reader, start, first)[1]
    assert [block.rows for block in again] == [read_block(stretch).rows for stretch in slices_between({}, first)]
    assert [block.at_end for block in again] == [True, False, True], "more had come when it was read again"
    assert reader.latestOffset(second) == second
    assert batch(reader, second, second) == (0, [])


def test_what_is_more_than_a_batch_takes_is_taken_batch_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, 16, LOSS)
    monkeypatch.setattr("unisono.trace.metrics.LEAST_BYTES", 6000)
    monkeypatch.setattr(readable_offsets, "__defaults__", (1,))
    reader = MetricSource({"path": str(tmp_path)}).streamReader(None)
    at, rows, batches = reader.initialOffset(), 0, 0
    while (end := reader.latestOffset(at)) != at:
        rows += sum(len(block.rows) for block in batch(reader, at, end)[1])
        at, batches = end, batches + 1
    assert (rows, at) == (16 * 3 * 11, {str(path): path.stat().st_size for path in tmp_path.rglob("*.jsonl")})
    assert batches > 3


@pytest.mark.parametrize(("hands", "parts"), [("1", 1), ("2", 2), ("8", 3)])
def test_a_large_batch_is_shared_out(hands: str, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, 16, LOSS)
    reader = MetricSource({"path": str(tmp_path), "hands": hands}).streamReader(None)
    end = reader.latestOffset({})
    count, blocks = batch(reader, {}, end)
    assert (count, sum(len(block.rows) for block in blocks)) == (1, 16 * 3 * 11), "little is one task's work"
    monkeypatch.setattr(metric_source, "_PART_BYTES", 1000)
    assert batch(reader, {}, end) == (parts, blocks)
