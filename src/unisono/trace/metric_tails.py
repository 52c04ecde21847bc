"""Tails the streams of metric rows of running groups: where each of them ends, and what is between two places in one.

A place is a number of bytes, always behind a newline. What lies between two places never changes, since streams are
only appended to: whoever reads it again reads the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from pathlib import Path
from urllib.parse import unquote

from unisono.model.metrics import MetricRow
from unisono.trace.metrics import RowValues, from_line, parse_rows, row_values

_PATTERNS = ("member=*.jsonl", "metrics/*.jsonl", "group=*/metrics/*.jsonl", "run=*/group=*/metrics/*.jsonl")
_LOOK_BACK = 65_536
BUDGET_BYTES = 32 * 1024 * 1024
"""How much is read at once, of all streams together."""
LEAST_BYTES = 256 * 1024
"""How much of each stream is read at once at least; a line is far shorter."""

Offsets = Mapping[str, int]
"""By path, how far a stream was read."""


@dataclass(frozen=True, slots=True)
class StreamSlice:
    """Whole lines of one stream."""

    path: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MetricBlock:
    """What a stretch holds: one member's rows in the order of their windows."""

    stream_slice: StreamSlice
    run: str
    group: str
    member: int
    incarnation: int
    rows: tuple[MetricRow, ...]
    at_end: bool
    """Whether nothing further had been written when this was read."""
    damaged_lines: int = 0
    """How many lines are no rows."""
    first_problem: str = ""
    """What is wrong with the first of these."""


def metric_streams(directory: str | os.PathLike[str]) -> list[str]:
    """The paths of the streams in a folder of traces, or in one of its parts."""
    folder = Path(os.path.abspath(directory))
    return sorted(str(path) for pattern in _PATTERNS for path in folder.glob(pattern))


def is_closed(path: str) -> bool:
    """Whether the recording was closed: nothing more will be written."""
    return Path(path).with_suffix(".parquet").exists()


def readable_offsets(directory: str | os.PathLike[str], start: Offsets, budget: int = BUDGET_BYTES) -> dict[str, int]:
    """How far the streams can be read now: to the last whole line of each, or as far as the budget goes."""
    found = {path: os.stat(path).st_size for path in metric_streams(directory)}
    grown = [path for path, size in found.items() if size > start.get(path, 0)]
    each = max(LEAST_BYTES, budget // max(1, len(grown)))
    return {**start, **{path: _end_of_last_line(path, start.get(path, 0), found[path], each) for path in grown}}


def _end_of_last_line(path: str, start: int, size: int, most: int) -> int:
    """Where the last whole line ends that is behind `start`."""
    end = min(size, start + most)
    with open(path, "rb") as stream:
        while end > start:
            begin = max(start, end - _LOOK_BACK)
            stream.seek(begin)
            newline = stream.read(end - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
    return start


def slices_between(start: Offsets, end: Offsets) -> list[StreamSlice]:
    """What lies between two times."""
    return [StreamSlice(path, start.get(path, 0), to) for path, to in sorted(end.items()) if to > start.get(path, 0)]


def balanced_parts(slices: Sequence[StreamSlice], max_parts: int) -> list[list[StreamSlice]]:
    """Stretches in at most so many parts of about one size."""
    parts: list[list[StreamSlice]] = [[] for _ in range(min(max_parts, len(slices)))]
    sizes = [0] * len(parts)
    for stretch in sorted(slices, key=lambda s: s.start - s.end):
        least = sizes.index(min(sizes))
        parts[least].append(stretch)
        sizes[least] += stretch.end - stretch.start
    return parts


def read_block(stream_slice: StreamSlice) -> MetricBlock:
    """The rows of a stretch; lines that are none are counted."""
    return with_rows(*read_values(stream_slice))


def with_rows(block: MetricBlock, values: Sequence[RowValues]) -> MetricBlock:
    """The block with its rows, of which `read_values` gave the values."""
    return replace(block, rows=tuple(starmap(MetricRow, values)))


def read_values(stream_slice: StreamSlice) -> tuple[MetricBlock, list[RowValues]]:
    """A block without its rows, and their values: what another process can be sent at little cost."""
    path = Path(stream_slice.path)
    with path.open("rb") as stream:
        stream.seek(stream_slice.start)
        text = stream.read(stream_slice.end - stream_slice.start)
        to_the_end = b"\n" not in stream.read(_LOOK_BACK)
    lines, damaged, problem = text[:-1].decode("utf-8", errors="replace"), 0, ""
    values = parse_rows(lines)
    if values is None:
        values = []
        for number, line in enumerate(lines.split("\n"), start=1):
            try:
                values.append(row_values(from_line(line).row))
            except ValueError as error:
                damaged += 1
                problem = problem or f"{stream_slice.path}: line {number} after byte {stream_slice.start}: {error}"
    run, group = (_name(folder, kind) for folder, kind in ((path.parents[2], "run="), (path.parents[1], "group=")))
    member, incarnation = path.stem.removeprefix("member=").split(".")
    return MetricBlock(
        stream_slice, run, group, int(member), int(incarnation), (), to_the_end, damaged, problem
    ), values


def _name(folder: Path, kind: str) -> str:
    return unquote(folder.name.removeprefix(kind))
