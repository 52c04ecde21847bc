"""Metric rows as they are kept and streamed: which run, group, member and life they come from, in one schema.

Two forms of the same records, beside the trace of the run:

    DIR/run=R/group=G/metrics/member=M.LIFE.jsonl         appended to as the group runs, one record per line
    DIR/run=R/group=G/metrics/member=M.LIFE.parquet       all of them, written when the recording is closed

The stream is text because its readers tail it while it grows: a line is whole when its newline is there, a spread's
histogram has as many buckets as it needs, and a reader of an older version skips fields that it does not know. Parquet
is for whoever reads a finished run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as fields_of
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Final

from unisono.model.metrics import METRICS, MetricRow, Shape, Side

METRIC_VERSION: Final = 1
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
"""What is written beside a spread's buckets, for readers that do not add histograms up."""


RowValues = tuple[str, Side, int, str, int, int, int, float, int, tuple[tuple[int, int], ...]]
"""The fields of a `MetricRow`."""


@dataclass(frozen=True, slots=True)
class MetricRecord:
    """One row and where it comes from."""

    run: str
    group: str
    member: int
    incarnation: int
    row: MetricRow


def to_fields(record: MetricRecord) -> dict[str, Any]:
    """The record's columns, in the schema's order."""
    row = record.row
    quantiles: dict[str, int | None] = dict.fromkeys(QUANTILES)
    if METRICS[row.metric].shape is Shape.SPREAD and row.count:
        histogram = row.histogram()
        quantiles = {name: histogram.quantile(q) for name, q in QUANTILES.items()}
    return {
        "version": METRIC_VERSION,
        "run": record.run,
        "group": record.group,
        "member": record.member,
        "life": record.incarnation,
        "layer": row.layer,
        "side": row.side.value,
        "link": row.link,
        "metric": row.metric,
        "window_start_ns": row.window_start_ns,
        "window_ns": row.window_ns,
        "count": row.count,
        "value": float(row.value),
        **quantiles,
        "largest": row.largest,
        "buckets": [list(pair) for pair in row.buckets],
    }


def from_fields(fields: Mapping[str, Any]) -> MetricRecord:
    """The record whose columns these are; ValueError names what is wrong with them."""
    if fields.get("version") != METRIC_VERSION:
        raise ValueError(f"metric version {fields.get('version')!r} is unknown, this release reads {METRIC_VERSION}")
    try:
        row = MetricRow(
            layer=str(fields["layer"]),
            side=Side(fields["side"]),
            link=int(fields["link"]),
            metric=str(fields["metric"]),
            window_start_ns=int(fields["window_start_ns"]),
            window_ns=int(fields["window_ns"]),
            count=int(fields["count"]),
            value=float(fields["value"]),
            largest=int(fields["largest"]),
            buckets=tuple([(int(bucket), int(times)) for bucket, times in fields["buckets"]]),
        )
        record = MetricRecord(str(fields["run"]), str(fields["group"]), int(fields["member"]), int(fields["life"]), row)
    except KeyError as error:
        raise ValueError(f"the field {error.args[0]} is missing") from error
    except TypeError as error:
        raise ValueError(f"a field has the wrong type: {error}") from error
    if row.metric not in METRICS:
        raise ValueError(f"metric: {row.metric!r} is not known")
    return record


def parse_rows(text: str) -> list[RowValues] | None:
    """The fields of the `MetricRow` of each line, if every line is as `to_line` writes it; None: look at each line.

    A stream is read in stretches of thousands of lines. Parsed as one, and checked but not converted, they take half
    the time that they take one by one.
    """
    try:
        records = json.loads(f"[{text.replace(chr(10), ',')}]")
        return list(map(_checked_row_values, records)) if len(records) == text.count("\n") + 1 else None
    except (ValueError, KeyError, TypeError):
        return None


def _checked_row_values(fields: dict[str, Any]) -> RowValues:
    """The row's fields, if all fields have just the types that they should have; an error if not."""
    words, numbers, value, buckets = _WORDS(fields), _NUMBERS(fields), fields["value"], fields["buckets"]
    layer, side, metric, _, _ = words
    link, window_start_ns, window_ns, count, largest, _, _, version = numbers
    if set(map(type, words)) != _STR or set(map(type, numbers)) != _INT or type(value) is not float:
        raise TypeError
    if version != METRIC_VERSION or metric not in METRICS:
        raise ValueError
    if buckets:
        pairs = tuple(map(tuple, buckets))
        if set(map(len, pairs)) != _TWO or set(map(type, chain.from_iterable(pairs))) != _INT:
            raise TypeError
    else:
        pairs = ()
    return layer, _SIDES[side], link, metric, window_start_ns, window_ns, count, value, largest, pairs


_WORDS = itemgetter("layer", "side", "metric", "run", "group")
_NUMBERS = itemgetter("link", "window_start_ns", "window_ns", "count", "largest", "member", "life", "version")
_STR, _INT, _TWO = {str}, {int}, {2}
_SIDES = {side.value: side for side in Side}


row_values = attrgetter(*(field.name for field in fields_of(MetricRow)))
"""The `RowValues` of a row."""


def to_line(record: MetricRecord) -> str:
    """The record as one line of the stream, newline included."""
    return json.dumps(to_fields(record), separators=(",", ":")) + "\n"


def from_line(line: str) -> MetricRecord:
    """The record of one line; ValueError if it is none."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("a JSON object is needed")
    return from_fields(fields)
