"""Draws figures from the rows of an experiment's table. matplotlib is imported only when a figure is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from unisono.errors import MissingDependency
from unisono.experiments.experiment import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_T = TypeVar("_T")
_COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#7a5195", "#8d6b00")


def save_figure(
    draw: Callable[[Figure, Sequence[Row]], None], rows: Sequence[Row], title: str, stem: Path
) -> list[Path]:
    """Draw a figure and write it as PNG and SVG."""
    try:
        from matplotlib import rc_context  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise MissingDependency("figures need matplotlib: pip install 'unisono[pipeline]'") from None
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    # Without these settings the SVG differs from run to run.
    with rc_context({"svg.hashsalt": "unisono", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        draw(figure, rows)
        figure.suptitle(title, fontsize=10)
        figure.savefig(paths[0], dpi=120)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def column(rows: Iterable[Row], name: str) -> list[float]:
    """One column of the rows as numbers; missing values are NaN."""
    return [float("nan") if (value := row.get(name)) is None else float(cast("float", value)) for row in rows]


def draw_curves(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw the simulated curves of r_D or u_S with their confidence intervals, and the formula as a dashed line."""
    axes = figure.subplots()
    x, y = ("d", "r_d") if "r_d" in rows[0] else ("s", "u_s")
    axes.plot(*_curve(rows, rows[0], x, "analytic"), color="black", linestyle="--", label="formula")
    for colour, key in zip(_COLOURS, _series(rows), strict=False):
        mine = [row for row in rows if _series_key(row) == key]
        label = _point_label(mine[0])
        if "relative_to" in mine[0] and not mine[0]["direct"]:
            label += f", from {'a' if 'given' in str(mine[0]['relative_to']) else 'the'} {mine[0]['relative_to']}"
        axes.plot(column(mine, x), column(mine, y), color=colour, label=label)
        axes.fill_between(
            column(mine, x), column(mine, f"{y}_low"), column(mine, f"{y}_high"), color=colour, alpha=0.25
        )
    _label_axes(axes, x.upper(), "probability", top=1.02)


def draw_errors(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw the relative errors of the formulas over the group size, in one panel per loss and kind of latency."""
    panels = sorted({(float(cast("float", row["loss"])), str(row["latency"])) for row in rows})
    figure.set_size_inches(10, 5.5)
    for axes, (loss, latency) in zip(figure.subplots(2, len(panels) // 2, sharex=True).flat, panels, strict=True):
        for colour, target in zip(
            _COLOURS, sorted({float(cast("float", row["target"])) for row in rows}), strict=False
        ):
            mine = [row for row in rows if (row["loss"], row["latency"], row["target"]) == (loss, latency, target)]
            axes.plot(column(mine, "n"), column(mine, "error"), "o-", color=colour, label=f"{target:g}")
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_title(f"{latency}, {loss:g} lost", fontsize=9)
        _label_axes(axes, "members", "relative error")


def draw_failures(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw f_n, the probability that members disagree, over the group size (paper 002, Figure 17).

    The left panel has rare crashes. The right panel has frequent ones, with the simulated share of disagreements.
    """
    left, right = figure.subplots(1, 2)
    left.plot(column(rows, "n"), column(rows, "f_n"), "o-", color=_COLOURS[0], label="f_n")
    _label_axes(left, "members", "probability of failure")
    right.plot(column(rows, "n"), column(rows, "f_n_many_crashes"), color="black", linestyle="--", label="formula")
    _error_bars(right, column(rows, "n"), rows, "failed", colour=_COLOURS[1], label="simulated")
    _label_axes(right, "members", "")


def draw_broadcasts(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw the mean number of broadcasts with its confidence interval over the group size.

    If there is only one size, draw it per point. Published values are crosses.
    """
    axes = figure.subplots()
    sizes = sorted({int(cast("int", row["n"])) for row in rows})
    labels = sorted({_point_label(row) for row in rows}) if len(sizes) == 1 else []
    for colour, rule in zip(_COLOURS, _unique(str(row["adaptive"]) for row in rows), strict=False):
        mine = [row for row in rows if row["adaptive"] == rule]
        x = [float(labels.index(_point_label(row))) for row in mine] if labels else column(mine, "n")
        _error_bars(axes, x, mine, "broadcasts", colour=colour, label=rule, line="" if labels else "-")
        if any(row["paper"] is not None for row in mine):
            axes.plot(x, column(mine, "paper"), "x", color=colour, label=f"{rule}, published")
    if labels:
        axes.set_xticks(range(len(labels)), labels)
    _label_axes(axes, "" if labels else "members", "broadcasts", bottom=0)


def draw_lines(
    axes: Axes, rows: Sequence[Row], x: str, y: str, *, series: str | None = None, reference: str | None = None
) -> None:
    """Draw the column `y` with its confidence interval over the parameter `x`, one line per value of `series`.

    The column `reference` is drawn as a dashed line.
    """
    ticks = _unique(str(row[x]) for row in sorted(rows, key=lambda row: _numeric_value(row[x])))
    for number, name in enumerate(_unique(str(row[series]) if series else "" for row in rows)):
        mine = [row for row in rows if series is None or str(row[series]) == name]
        mine.sort(key=lambda row: _numeric_value(row[x]))
        places, colour = [float(ticks.index(str(row[x]))) for row in mine], _COLOURS[number % len(_COLOURS)]
        marker = "" if number < len(_COLOURS) else ":"
        _error_bars(axes, places, mine, y, colour=colour, label=name or y, line=marker or "-")
        if reference is not None and all(row.get(reference) is not None for row in mine):
            axes.plot(places, column(mine, reference), linestyle="--", linewidth=0.8, color=colour)
    axes.set_xticks(range(len(ticks)), ticks)
    _label_axes(axes, x, y)


def _numeric_value(value: object) -> float:
    """A parameter as a number. Of a duration such as "5ms", it is the number of milliseconds."""
    return float(str(value).removesuffix("ms"))


def _point_label(row: Row) -> str:
    direct = row.get("direct")
    return f"{direct} direct receiver{'s' if direct != 1 else ''}" if direct else str(row["scenario"])


def _error_bars(
    axes: Axes, x: list[float], rows: Sequence[Row], name: str, *, colour: str, label: str, line: str = "-"
) -> None:
    middle = column(rows, f"{name}_mean" if f"{name}_mean" in rows[0] else name)
    low, high = column(rows, f"{name}_low"), column(rows, f"{name}_high")
    below, above = ([abs(a - b) for a, b in zip(middle, end, strict=True)] for end in (low, high))
    axes.errorbar(x, middle, yerr=[below, above], fmt=f"o{line}", markersize=3, capsize=2, color=colour, label=label)


def _curve(rows: Sequence[Row], reference_row: Row, x: str, y: str) -> tuple[list[float], list[float]]:
    mine = [row for row in rows if _series_key(row) == _series_key(reference_row)]
    return column(mine, x), column(mine, y)


def _series_key(row: Row) -> tuple[object, ...]:
    return row["scenario"], row["direct"], row.get("relative_to")


def _series(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    return _unique(_series_key(row) for row in rows)


def _unique(values: Iterable[_T]) -> list[_T]:
    return list(dict.fromkeys(values))


def _label_axes(axes: Axes, x: str, y: str, *, bottom: float | None = None, top: float | None = None) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=bottom, top=top)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
