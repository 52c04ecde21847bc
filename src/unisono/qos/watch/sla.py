"""Evaluation and violation detection (paper 002 §2.4, §4): agreements against windows of metrics.

Rows of metrics go in, verdicts come out: one per agreement and window, held, violated or unknown. The rows may be one
member's as they are collected, or a whole system's from its metric streams: the arithmetic is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, exp, lgamma, log, log1p

from unisono.model.durations import duration_text
from unisono.model.events import Notice, NoticeKind, SlaCleared, SlaVerdict, SlaViolation, Violation, ViolationKind
from unisono.model.histogram import Histogram
from unisono.model.metrics import EVERY_LINK, MetricRow, Shape, Side
from unisono.model.sla import Sla, value_text

ROUNDING_TOLERANCE = 1e-9
"""What rounding may add to a share."""
BISECTION_STEPS = 30
"""So often a bound is narrowed down: to a billionth."""


class SlaStatus(StrEnum):
    """Whether a window kept an agreement."""

    HELD = "held"
    VIOLATED = "violated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a window showed of an agreement, at its worst link."""

    sla: Sla
    window_start_ns: int
    status: SlaStatus
    measured: float
    """Of a spread the share of values within the bound; of levels the share of intervals; else the share itself."""
    reported_value: float
    """The value to tell: the quantile asked for, the share, or the largest level."""
    count: int
    link: int

    def text(self) -> str:
        """The finding in words."""
        sla = self.sla
        window, worst = duration_text(sla.window_ns), value_text(sla.metric, self.reported_value)
        where = f" from member {self.link}" if self.link != EVERY_LINK else ""
        if sla.shape is Shape.SHARE:
            return f"{sla.metric}{where} was {worst} of {self.count:,} in {window}; agreed was {sla.bound_text()}"
        share = f"{self.measured:.4%} of {self.count:,} within {sla.bound_text()}"
        seen = f"{sla.probability:.4%} were within {worst}" if sla.shape is Shape.SPREAD else f"worst {worst}"
        return f"{sla.metric}{where}: {share} in {window}, where {sla.probability:.4%} was agreed; {seen}"


def collector_of(sla: Sla) -> tuple[str, Side]:
    """Whose rows an agreement is about: a service's are its consumer's, a usage's its provider's."""
    side = sla.kind.side
    return (sla.consumer if side is Side.BELOW else sla.provider), side


def evaluate(sla: Sla, rows: Iterable[MetricRow], window_start_ns: int, links_evaluated: int = 0) -> Finding:
    """What one window's rows show of an agreement; the rows may be of several members.

    `judged` is of how many links the worst is told, if of more than these rows are about.
    """
    by_link = _by_link(sla, rows)
    links_evaluated = max(links_evaluated, evaluable_links(by_link.values(), sla))
    findings = [_evaluate_link(sla, window_start_ns, link, by_link[link], links_evaluated) for link in sorted(by_link)]
    if not findings:
        return Finding(sla, window_start_ns, SlaStatus.UNKNOWN, 0.0, 0.0, 0, EVERY_LINK)
    return max(findings, key=severity)


def evaluable_links_of(sla: Sla, rows: Iterable[MetricRow]) -> int:
    """Of how many links one window's rows say enough for a verdict."""
    return evaluable_links(_by_link(sla, rows).values(), sla)


def evaluable_links(rows_by_link: Iterable[Sequence[MetricRow]], sla: Sla) -> int:
    """How many of these links have observations enough."""
    return sum(sum(row.count for row in rows) >= sla.observations for rows in rows_by_link)


def _by_link(sla: Sla, rows: Iterable[MetricRow]) -> dict[int, list[MetricRow]]:
    layer, side = collector_of(sla)
    by_link: dict[int, list[MetricRow]] = {}
    for row in rows:
        if row.layer == layer and row.side is side and row.metric == sla.metric:
            if sla.links and row.link not in sla.links:
                continue
            by_link.setdefault(EVERY_LINK if sla.together else row.link, []).append(row)
    return by_link


def severity(finding: Finding) -> tuple[int, float]:
    """By this the worst of several findings of one agreement is the largest."""
    rank = (SlaStatus.UNKNOWN, SlaStatus.HELD, SlaStatus.VIOLATED).index(finding.status)
    return rank, finding.measured if finding.sla.shape is Shape.SHARE else -finding.measured


def _evaluate_link(sla: Sla, start_ns: int, link: int, rows: Sequence[MetricRow], links_evaluated: int) -> Finding:
    match sla.shape:
        case Shape.SPREAD:
            values = Histogram()
            for row in rows:
                values.merge_pairs(row.buckets, row.largest)
            count, over = values.total, values.count_above(int(sla.bound))
            measured = 1 - over / count if count else 0.0
            worst = float(values.quantile(sla.probability))
            kept = _status(measured + ROUNDING_TOLERANCE >= sla.probability, count, sla)
        case Shape.SHARE:
            count = sum(row.count for row in rows)
            hits = sum(row.value * row.count for row in rows)
            measured = worst = hits / count if count else 0.0
            chance = binomial_tail(hits, count, sla.bound)
            kept = _status(chance > 1 - confidence_per_link(links_evaluated, sla.probability), count, sla)
        case Shape.LEVEL:
            # One figure per collecting interval: the intervals are the observations.
            count = len(rows)
            measured = sum(row.value <= sla.bound for row in rows) / count
            worst = max(row.value for row in rows)
            kept = SlaStatus.HELD if measured + ROUNDING_TOLERANCE >= sla.probability else SlaStatus.VIOLATED
    return Finding(sla, start_ns, kept, measured, worst, count, link)


def _status(within: bool, count: int, sla: Sla) -> SlaStatus:
    if count < sla.observations:
        return SlaStatus.UNKNOWN
    return SlaStatus.HELD if within else SlaStatus.VIOLATED


def confidence_per_link(links: int, confidence: float) -> float:
    """How sure one verdict must be for all of `judged` independent ones together to be so with `confidence` (Šidák).

    The worst of many links is told, and of many that keep a promise one looks bad by chance.
    """
    return float(confidence ** (1 / max(links, 1)))


def binomial_tail(hits: float, count: int, share: float) -> float:
    """How likely `hits` or more of `count` are if each is one with probability `share`: the binomial's tail, exactly.

    1 where no more were seen than were to be expected. An approximation by a normal distribution would be far too bold
    where many links are judged: what counts there is the end of the tail, and losses are few.
    """
    least = ceil(hits - ROUNDING_TOLERANCE * max(count, 1))
    if least <= count * share:
        return 1.0
    if share <= 0:
        return 0.0
    ways = lgamma(count + 1) - lgamma(least + 1) - lgamma(count - least + 1)
    term = exp(ways + least * log(share) + (count - least) * log1p(-share))
    odds, total = share / (1 - share), 0.0
    for number in range(least, count + 1):
        total += term
        if term <= total * ROUNDING_TOLERANCE:
            break
        term *= (count - number) / (number + 1) * odds
    return min(total, 1.0)


def share_lower_bound(hits: float, count: int, confidence: float) -> float:
    """The lower bound of a share of which `hits` of `count` were seen, one-sided, at this confidence (Clopper-Pearson).

    The largest share with which so many would be by chance no more often than is left to chance. Never above the share
    that was seen.
    """
    if not count:
        return 0.0
    low, high = 0.0, hits / count
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_tail(hits, count, middle) <= 1 - confidence else (low, middle)
    return low


class MemberEvaluation:
    """The agreements of one member while it runs: gathers rows into each agreement's windows, tells of changes."""

    def __init__(self, slas: Sequence[Sla], member: int) -> None:
        self._slas = tuple(slas)
        self._member = member
        self._rows: dict[str, list[MetricRow]] = {sla.name: [] for sla in slas}
        self._window: dict[str, int] = {}
        self._violated: dict[str, bool] = dict.fromkeys(self._rows, False)
        self.latest: dict[str, Finding] = {}
        """By agreement, its last window's finding."""

    def add_rows(self, rows: Sequence[MetricRow], until_ns: int) -> tuple[list[Finding], list[Violation | Notice]]:
        """Rows of a collecting interval that ended at `until_ns`: the findings of windows that are over, the events."""
        findings: list[Finding] = []
        events: list[Violation | Notice] = []
        for sla in self._slas:
            layer, side = collector_of(sla)
            kept = self._rows[sla.name]
            kept.extend(row for row in rows if row.metric == sla.metric and row.layer == layer and row.side is side)
            starts = min((row.window_start_ns for row in rows), default=until_ns - 1)
            window = self._window.setdefault(sla.name, starts // sla.window_ns)
            if until_ns // sla.window_ns > window:
                finding = evaluate(sla, kept, window * sla.window_ns)
                self._window[sla.name] = until_ns // sla.window_ns
                kept.clear()
                findings.append(finding)
                events.extend(self._status_events(finding))
        return findings, events

    def _status_events(self, finding: Finding) -> list[Violation | Notice]:
        name = finding.sla.name
        self.latest[name] = finding
        event = status_change(finding, self._violated[name], self._member)
        if event is None:
            return []
        self._violated[name] = isinstance(event, SlaViolation)
        return [event]

    def violated_slas(self) -> tuple[str, ...]:
        """The agreements that are not kept at the moment."""
        return tuple(name for name, is_broken in self._violated.items() if is_broken)


def status_change(finding: Finding, was_violated: bool, member: int | None) -> SlaVerdict | None:
    """A violation when an agreement breaks, a notice when it is kept again; nothing in between."""
    sla = finding.sla
    is_broken = finding.status is SlaStatus.VIOLATED
    if finding.status is SlaStatus.UNKNOWN or was_violated == is_broken:
        return None
    if is_broken:
        return violation_event(finding, member)
    text = f"{sla.name!r} is kept again: {finding.text()}"
    start_ns, window_ns = finding.window_start_ns, sla.window_ns
    return SlaCleared(NoticeKind.SLA_CLEARED, text, member, sla=sla.name, window_start_ns=start_ns, window_ns=window_ns)


def violation_event(finding: Finding, member: int | None, possible_guarantee: str = "") -> SlaViolation:
    """The event that tells of a broken agreement."""
    sla = finding.sla
    text = f"{sla.name!r} between {sla.provider} and {sla.consumer}: {finding.text()}"
    return SlaViolation(
        ViolationKind.SLA,
        f"{text}; {possible_guarantee}" if possible_guarantee else text,
        member,
        sla=sla.name,
        metric=sla.metric,
        bound=sla.bound,
        measured=finding.measured,
        probability=sla.probability,
        link=finding.link,
        window_start_ns=finding.window_start_ns,
        window_ns=sla.window_ns,
        offered=possible_guarantee,
    )
