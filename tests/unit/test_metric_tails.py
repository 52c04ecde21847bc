"""Streams that are read while they grow: whole lines, no byte twice, damage counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.metric_streams import append_rows, interval_rows, lossy_between, stream_path, stream_text

from unisono.model.sla import MetricRow
from unisono.trace.metrics import (
    StreamSlice,
    balanced_parts,
    from_line,
    is_closed,
    metric_streams,
    parse_rows,
    read_block,
    readable_offsets,
    slices_between,
)

ROWS = interval_rows(1, (1, 2, 3), 0, lossy_between(0, 0))


def test_streams_are_found_from_every_folder_above_them(tmp_path: Path) -> None:
    path = append_rows(tmp_path, 1, ROWS)
    for folder in path.parents[:4]:
        assert metric_streams(folder) == [str(path)]
    assert not is_closed(str(path))
    path.with_suffix(".parquet").touch()
    assert is_closed(str(path))


def test_a_line_without_its_newline_is_left_for_later(tmp_path: Path) -> None:
    path = append_rows(tmp_path, 1, ROWS)
    whole = path.stat().st_size
    with path.open("a", encoding="utf-8") as stream:
        stream.write('{"half')
    assert readable_offsets(tmp_path, {}) == {str(path): whole}
    assert readable_offsets(tmp_path, {str(path): whole}) == {str(path): whole}
    block = read_block(StreamSlice(str(path), 0, whole))
    assert block.rows == tuple(ROWS)
    assert (block.run, block.group, block.member, block.incarnation, block.at_end) == ("r", "g", 1, 1, True)


def test_reading_in_parts_gives_the_same_rows_as_reading_at_once(tmp_path: Path) -> None:
    path = append_rows(tmp_path, 2, ROWS * 40)
    at: dict[str, int] = {}
    rows = []
    while found := slices_between(at, end := readable_offsets(tmp_path, at, budget=1)):
        blocks = [read_block(stretch) for stretch in found]
        rows += [row for block in blocks for row in block.rows]
        at = end
    assert at == {str(path): path.stat().st_size}
    assert rows == ROWS * 40


def test_slices_are_no_longer_than_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = append_rows(tmp_path, 2, ROWS * 20)
    monkeypatch.setattr("unisono.trace.metrics.LEAST_BYTES", 5000)
    end = readable_offsets(tmp_path, {}, budget=1)[str(path)]
    assert 0 < end <= 5000
    assert not read_block(StreamSlice(str(path), 0, end)).at_end


def test_all_streams_together_are_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = append_rows(tmp_path, 1, ROWS * 20).stat().st_size
    for member in (2, 3, 4):
        append_rows(tmp_path, member, ROWS * 20)
    monkeypatch.setattr("unisono.trace.metrics.LEAST_BYTES", 1000)
    first = readable_offsets(tmp_path, {}, budget=2 * size)
    assert 1.5 * size < sum(first.values()) <= 2 * size
    # What has been read takes no share of it.
    second = readable_offsets(tmp_path, {**dict.fromkeys(first, size), min(first): 0}, budget=2 * size)
    assert second == dict.fromkeys(first, size)


def test_damaged_lines_are_counted_and_the_first_is_described(tmp_path: Path) -> None:
    path = stream_path(tmp_path, 1, run="a run/with 100% odd=words.", group="ü")
    lines = stream_text(ROWS[:2], 1) + "nonsense\n" + stream_text(ROWS[2:3], 1).replace('"version":1', '"version":9')
    path.write_text(lines, encoding="utf-8")
    block = read_block(StreamSlice(str(path), 0, path.stat().st_size))
    assert block.rows == tuple(ROWS[:2])
    assert block.damaged_lines == 2
    assert block.first_problem.startswith(f"{path}: line 3 after byte 0: ")
    assert (block.run, block.group) == ("a run/with 100% odd=words.", "ü")


def test_lines_parsed_as_one_are_the_rows_that_they_are_one_by_one() -> None:
    text = stream_text(ROWS, 1)[:-1]
    values = parse_rows(text)
    assert values is not None
    assert [MetricRow(*each) for each in values] == [from_line(line).row for line in text.split("\n")] == ROWS
    assert any(row.buckets for row in ROWS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version":1', '"version":2'),
        ('"member":1', '"member":"x"'),
        ('"side":"below"', '"side":"beside"'),
        ('"metric":"loss"', '"metric":"luck"'),
        ('"count":', '"counted":'),
        ('"window_ns":250000000', '"window_ns":"250000000"'),
        ('"buckets":[[', '"buckets":[["1",'),
        ('"buckets":[[', '"buckets":[[1,2,3],['),
        ("}", ""),
        ("}", "},{}"),
        ("{", "[]{"),
        ("{", "7\n{"),
    ],
)
def test_lines_that_are_not_as_written_are_looked_at_one_by_one(old: str, new: str) -> None:
    text = stream_text(ROWS, 1)[:-1]
    assert old in text
    assert parse_rows(text.replace(old, new, 1)) is None


def test_work_is_shared_out_evenly() -> None:
    work = [StreamSlice(str(n), 0, size) for n, size in enumerate((50, 10, 10, 20, 10))]
    parts = balanced_parts(work, 2)
    assert sorted(sum(s.end for s in part) for part in parts) == [50, 50]
    assert balanced_parts(work[:1], 4) == [work[:1]]
    assert balanced_parts([], 4) == []
