"""Metric rows in files: the stream that is tailed, and Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.metric_streams import read_metrics

from unisono.model.sla import MetricRow, Side
from unisono.trace.metrics import (
    MetricRecord,
    MetricWriter,
    from_line,
    metrics_folder,
    read_stream,
    to_line,
)
from unisono.trace.schema import TraceDamaged

ROWS = [
    MetricRow("vbr", Side.BELOW, 2, "loss", 1000, 250, 40, 0.125),
    MetricRow("application", Side.BELOW, 1, "latency", 1000, 250, 3, 7.5, 9, ((5, 1), (9, 2))),
    MetricRow("network", Side.ABOVE, 0, "bandwidth", 1250, 250, 12, 1e6),
]


def test_a_line_is_its_record() -> None:
    for row in ROWS:
        record = MetricRecord("run 1", "tisch/7", 3, 99, row)
        line = to_line(record)
        assert line.count("\n") == 1
        assert from_line(line) == record
    fields = json.loads(to_line(MetricRecord("r", "g", 1, 2, ROWS[1])))
    assert (fields["p50"], fields["p99"], fields["largest"]) == (9, 9, 9)
    assert json.loads(to_line(MetricRecord("r", "g", 1, 2, ROWS[0])))["p50"] is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": 2}, "metric version 2 is unknown"),
        ({"metric": "mood"}, "metric 'mood' is unknown"),
        ({"side": "left"}, "'left'"),
        ({"buckets": [[1]]}, "not enough values"),
        ({"count": None}, "wrong type"),
    ],
)
def test_a_line_of_something_else_is_refused(change: dict[str, object], problem: str) -> None:
    fields = json.loads(to_line(MetricRecord("r", "g", 1, 2, ROWS[0])))
    with pytest.raises(ValueError, match=problem):
        from_line(json.dumps({**fields, **change}))
    del fields["window_ns"]
    with pytest.raises(ValueError, match="window_ns is missing"):
        from_line(json.dumps(fields))


def test_the_writer_streams_and_leaves_parquet(tmp_path: Path) -> None:
    with MetricWriter(tmp_path, "r", "g", 3, incarnation=7) as writer:
        writer.put(ROWS[:2])
        writer.put(ROWS[2:])
    path = metrics_folder(tmp_path, "r", "g") / "member=3.7.jsonl"
    assert writer.path == path
    expected = [MetricRecord("r", "g", 3, 7, row) for row in ROWS]
    assert list(read_stream(path)) == expected
    assert read_metrics(path.with_suffix(".parquet")) == expected
    assert (writer.written, writer.dropped, writer.error) == (3, 0, None)
    writer.put(ROWS)
    assert writer.dropped == 3, "closed"
    with pytest.raises(FileExistsError):
        MetricWriter(tmp_path, "r", "g", 3, incarnation=7)


def test_a_line_that_is_still_being_written_is_left_out_and_a_bad_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "stream.jsonl"
    line = to_line(MetricRecord("r", "g", 1, 2, ROWS[0]))
    path.write_text(line + line[:40], encoding="utf-8")
    assert len(list(read_stream(path))) == 1
    path.write_text(line + "{}\n", encoding="utf-8")
    with pytest.raises(TraceDamaged, match="line 2: metric version None is unknown"):
        list(read_stream(path))


def test_a_full_queue_refuses_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.trace.metrics._QUEUE_ROWS", 2)
    with MetricWriter(tmp_path, "r", "g", 3) as writer:
        writer.put(ROWS)
    assert writer.dropped == 3
    assert list(read_stream(writer.path)) == []
