"""Evaluation and violation detection (paper 002 §2.4, §4): agreements against windows of metrics.

Rows of metrics go in, verdicts come out: one per agreement and window, held, violated or unknown. The rows may be one
member's as they are collected, or a whole system's from its metric streams: the arithmetic is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import sqrt
from statistics import NormalDist

from unisono.model.durations import duration_text
from unisono.model.events import Notice, SlaCleared, SlaVerdict, SlaViolation, Violation
from unisono.model.histogram import Histogram
from unisono.model.metrics import EVERY_LINK, MetricRow, Shape, Side
from unisono.model.sla import Sla, value_text

CERTAIN_NOT = 1e-9
"""What rounding may add to a share."""


class Kept(StrEnum):
    """Whether a window kept an agreement."""

    HELD = "held"
    VIOLATED = "violated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a window showed of an agreement, at its worst link."""

    sla: Sla
    window_start_ns: int
    kept: Kept
    measured: float
    """Of a spread the share of values within the bound; of levels the share of intervals; else the share itself."""
    worst: float
    """The value to tell: the quantile asked for, the share, or the largest level."""
    count: int
    link: int

    def text(self) -> str:
        """The finding in words."""
        sla = self.sla
        window, worst = duration_text(sla.window_ns), value_text(sla.metric, self.worst)
        where = f" from member {self.link}" if self.link != EVERY_LINK else ""
        if sla.shape is Shape.SHARE:
            return f"{sla.metric}{where} was {worst} of {self.count:,} in {window}; agreed was {sla.bound_text()}"
        share = f"{self.measured:.4%} of {self.count:,} within {sla.bound_text()}"
        return f"{sla.metric}{where}: {share} in {window}, where {sla.probability:.4%} was agreed; worst {worst}"


def collector(sla: Sla) -> tuple[str, Side]:
    """Whose rows an agreement is about: a service's are its consumer's, a usage's its provider's."""
    side = sla.kind.side
    return (sla.consumer if side is Side.BELOW else sla.provider), side


def evaluate(sla: Sla, rows: Iterable[MetricRow], window_start_ns: int) -> Finding:
    """What one window's rows show of an agreement; the rows may be of several members."""
    layer, side = collector(sla)
    by_link: dict[int, list[MetricRow]] = {}
    for row in rows:
        if row.layer == layer and row.side is side and row.metric == sla.metric:
            if sla.links and row.link not in sla.links:
                continue
            by_link.setdefault(EVERY_LINK if sla.together else row.link, []).append(row)
    findings = [_of_link(sla, window_start_ns, link, by_link[link]) for link in sorted(by_link)]
    if not findings:
        return Finding(sla, window_start_ns, Kept.UNKNOWN, 0.0, 0.0, 0, EVERY_LINK)
    return max(findings, key=badness)


def badness(finding: Finding) -> tuple[int, float]:
    """By this the worst of several findings of one agreement is the largest."""
    rank = (Kept.UNKNOWN, Kept.HELD, Kept.VIOLATED).index(finding.kept)
    return rank, finding.measured if finding.sla.shape is Shape.SHARE else -finding.measured


def _of_link(sla: Sla, start_ns: int, link: int, rows: Sequence[MetricRow]) -> Finding:
    match sla.shape:
        case Shape.SPREAD:
            values = Histogram()
            for row in rows:
                values.merge_pairs(row.buckets, row.largest)
            count, over = values.total, values.above(int(sla.bound))
            measured = 1 - over / count if count else 0.0
            worst = float(values.quantile(sla.probability))
            kept = _judged(measured + CERTAIN_NOT >= sla.probability, count, sla)
        case Shape.SHARE:
            count = sum(row.count for row in rows)
            hits = sum(row.value * row.count for row in rows)
            measured = worst = hits / count if count else 0.0
            kept = _judged(surely_at_least(hits, count, sla.probability) <= sla.bound, count, sla)
        case Shape.LEVEL:
            # One figure per collecting interval: the intervals are the observations.
            count = len(rows)
            measured = sum(row.value <= sla.bound for row in rows) / count
            worst = max(row.value for row in rows)
            kept = Kept.HELD if measured + CERTAIN_NOT >= sla.probability else Kept.VIOLATED
    return Finding(sla, start_ns, kept, measured, worst, count, link)


def _judged(within: bool, count: int, sla: Sla) -> Kept:
    if count < sla.observations:
        return Kept.UNKNOWN
    return Kept.HELD if within else Kept.VIOLATED


@cache
def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf(confidence)


def surely_at_least(hits: float, count: int, confidence: float) -> float:
    """Wilson's lower bound of a share of which `hits` of `count` were seen, one-sided, at this confidence.

    Never below zero; the share itself where confidence is 1/2 or less.
    """
    if not count:
        return 0.0
    share = hits / count
    z = _quantile(confidence) if confidence > 0.5 else 0.0
    spread = z * sqrt((share * (1 - share) + z * z / (4 * count)) / count)
    return max(0.0, (share + z * z / (2 * count) - spread) / (1 + z * z / count))


class Evaluation:
    """The agreements of one member while it runs: gathers rows into each agreement's windows, tells of changes."""

    def __init__(self, slas: Sequence[Sla], member: int) -> None:
        self._slas = tuple(slas)
        self._member = member
        self._rows: dict[str, list[MetricRow]] = {sla.name: [] for sla in slas}
        self._window: dict[str, int] = {}
        self._broken: dict[str, bool] = dict.fromkeys(self._rows, False)
        self.latest: dict[str, Finding] = {}
        """By agreement, its last window's finding."""

    def take(self, rows: Sequence[MetricRow], until_ns: int) -> tuple[list[Finding], list[Violation | Notice]]:
        """Rows of a collecting interval that ended at `until_ns`: the findings of windows that are over, the events."""
        findings: list[Finding] = []
        events: list[Violation | Notice] = []
        for sla in self._slas:
            layer, side = collector(sla)
            kept = self._rows[sla.name]
            kept.extend(row for row in rows if row.metric == sla.metric and row.layer == layer and row.side is side)
            starts = min((row.window_start_ns for row in rows), default=until_ns - 1)
            window = self._window.setdefault(sla.name, starts // sla.window_ns)
            if until_ns // sla.window_ns > window:
                finding = evaluate(sla, kept, window * sla.window_ns)
                self._window[sla.name] = until_ns // sla.window_ns
                kept.clear()
                findings.append(finding)
                events.extend(self._told(finding))
        return findings, events

    def _told(self, finding: Finding) -> list[Violation | Notice]:
        name = finding.sla.name
        self.latest[name] = finding
        event = turn(finding, self._broken[name], self._member)
        if event is None:
            return []
        self._broken[name] = isinstance(event, SlaViolation)
        return [event]

    def broken(self) -> tuple[str, ...]:
        """The agreements that are not kept at the moment."""
        return tuple(name for name, is_broken in self._broken.items() if is_broken)


def turn(finding: Finding, was_broken: bool, member: int | None) -> SlaVerdict | None:
    """A violation when an agreement breaks, a notice when it is kept again; nothing in between."""
    sla = finding.sla
    is_broken = finding.kept is Kept.VIOLATED
    if finding.kept is Kept.UNKNOWN or was_broken == is_broken:
        return None
    if is_broken:
        return violation(finding, member)
    text = f"{sla.name!r} is kept again: {finding.text()}"
    start_ns, window_ns = finding.window_start_ns, sla.window_ns
    return SlaCleared("sla cleared", text, member, sla=sla.name, window_start_ns=start_ns, window_ns=window_ns)


def violation(finding: Finding, member: int | None, offered: str = "") -> SlaViolation:
    """The event that tells of a broken agreement."""
    sla = finding.sla
    text = f"{sla.name!r} between {sla.provider} and {sla.consumer}: {finding.text()}"
    return SlaViolation(
        "sla",
        f"{text}; {offered}" if offered else text,
        member,
        sla=sla.name,
        metric=sla.metric,
        bound=sla.bound,
        measured=finding.measured,
        probability=sla.probability,
        link=finding.link,
        window_start_ns=finding.window_start_ns,
        window_ns=sla.window_ns,
        offered=offered,
    )
