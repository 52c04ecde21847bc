"""Evaluation and violation detection (paper 002 §2.4, §4): agreements against windows of metrics.

Rows of metrics go in, verdicts come out: one per agreement and window, held, violated or unknown. The rows may be one
member's as they are collected, or a whole system's from its metric streams: the arithmetic is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from typing import Any

from unisono.model.durations import duration_text
from unisono.model.events import Notice, NoticeKind, SlaCleared, SlaVerdict, SlaViolation, Violation, ViolationKind
from unisono.model.histogram import Histogram
from unisono.model.metrics import APPLICATION, EVERY_LINK, NETWORK, MetricRow, Shape, Side
from unisono.model.sla import Sla, value_text
from unisono.qos.adapt.estimate import Estimate, LinkTally, combine_links
from unisono.qos.confidence import ROUNDING_TOLERANCE, binomial_tail, confidence_per_link


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


PATIENCE_NS = 2_000_000_000
ORDER = "order"
_ORDER_ONLY_METRIC = "held_back"
"""The metric by which the order shows among the layers: its own collector alone has it."""
_NETWORK_ONLY_METRIC = "silence"
"""The metric that only the layer has that watches the network, for each link and interval."""


@dataclass(frozen=True, slots=True)
class LinkEstimate:
    """What one member saw of the link from one peer, at one layer, in one window; None where nothing was seen."""

    member: int
    link: int
    layer: str
    window_start_ns: int
    window_ns: int
    loss: float | None = None
    datagrams: int = 0
    """Of how many `loss` is the share."""
    delay_p50_ns: int | None = None
    delay_p99_ns: int | None = None
    delay_p999_ns: int | None = None
    jitter_ns: float | None = None
    loss_burst: int = 0
    """The most in a row that were lost."""
    gamma_ns: float | None = None


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What came of taking rows."""

    estimates: tuple[LinkEstimate, ...] = ()
    network: Estimate | None = None
    """The links of the last window in one estimate, pessimistically, as adaptation needs it."""
    findings: tuple[tuple[Finding, int | None], ...] = ()
    """Of each window that is over, what it showed, and the member at which it was worst."""
    verdicts: tuple[SlaVerdict, ...] = ()
    late: int = 0


@dataclass(slots=True)
class _PendingRows:
    """The rows of windows that are not judged yet."""

    window_ns: int
    first_window: int | None = None
    """The first window that is not judged."""
    rows: dict[int, dict[int, list[MetricRow]]] = field(default_factory=dict)
    """By window and member."""
    last_bucket: tuple[int, int, list[MetricRow]] = field(default_factory=lambda: (-1, -1, []))
    """The window, the member and the rows of the last row, which most often are the next one's."""

    def add(self, member: int, row: MetricRow) -> bool:
        """False if the row's window was judged."""
        window = row.window_start_ns // self.window_ns
        last_window, last_member, rows = self.last_bucket
        if window != last_window or member != last_member:
            if self.first_window is not None and window < self.first_window:
                return False
            rows = self.rows.setdefault(window, {}).setdefault(member, [])
            self.last_bucket = window, member, rows
        rows.append(row)
        return True

    def pop_windows_before(self, horizon_ns: int) -> list[tuple[int, dict[int, list[MetricRow]]]]:
        """The windows that ended by then: when each began, and its rows."""
        until = horizon_ns // self.window_ns
        done = sorted(window for window in self.rows if window < until)
        self.first_window = until if self.first_window is None else max(self.first_window, until)
        self.last_bucket = (-1, -1, [])
        return [(window * self.window_ns, self.rows.pop(window)) for window in done]


class GroupEvaluation:
    """One group in one run."""

    def __init__(
        self,
        slas: Sequence[Sla],
        window_ns: int | None = None,
        patience_ns: int = PATIENCE_NS,
        state: dict[str, Any] | None = None,
    ) -> None:
        """Estimates are of windows of `window_ns`; unless told, of the shortest that an agreement has."""
        self.slas = tuple(slas)
        self.late = 0
        self._patience_ns = patience_ns
        self._order = ""
        self._network_layers: set[str] = set()
        self._layers = {APPLICATION, NETWORK}
        """Who is there to agree on anything."""
        self._evaluated: set[str] = set()
        """The agreements of which a window has said whether they are kept."""
        self._progress: dict[int, tuple[int, int, bool]] = {}
        """By member: its life, how far its rows go, and whether that is all there was."""
        self._violated = dict.fromkeys((sla.name for sla in slas), False)
        self._pending_links = _PendingRows(window_ns or min(sla.window_ns for sla in slas))
        self._pending_by_sla = {sla.name: _PendingRows(sla.window_ns) for sla in slas}
        self._pending_by_metric: dict[tuple[str, Side, str], list[_PendingRows]] = {}
        if state is not None:
            self._restore(state)

    # -- what is kept ----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All but the pending rows, for JSON."""
        return {
            "order": self._order,
            "parties": sorted(self._layers),
            "judged": sorted(self._evaluated),
            "late": self.late,
            "reached": {str(member): list(reached) for member, reached in self._progress.items()},
            "broken": self._violated,
            "links": [self._pending_links.window_ns, self._pending_links.first_window],
            "agreed": {
                name: [pending.window_ns, pending.first_window] for name, pending in self._pending_by_sla.items()
            },
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.late = state["late"]
        self._layers.update(state.get("parties", ()))
        self._evaluated.update(state.get("judged", ()))
        self._progress = {int(member): (at[0], at[1], at[2]) for member, at in state["reached"].items()}
        for name in self._violated:
            self._violated[name] = state["broken"].get(name, False)
        kept = {"": state["links"], **state["agreed"]}
        for name, pending in {"": self._pending_links, **self._pending_by_sla}.items():
            window_ns, first = kept.get(name, (0, None))
            if window_ns == pending.window_ns:
                pending.first_window = first
        self._name_order(state["order"])

    @property
    def evaluated_until_ns(self) -> int:
        """Everything before this was judged."""
        return min((p.first_window or 0) * p.window_ns for p in (self._pending_links, *self._pending_by_sla.values()))

    @property
    def violated_slas(self) -> tuple[str, ...]:
        """The agreements that are not kept at the moment."""
        return tuple(name for name, is_broken in self._violated.items() if is_broken)

    @property
    def unevaluated_slas(self) -> tuple[str, ...]:
        """The agreements of which no window has said anything: too little was seen, or a party is not there."""
        return tuple(sla.name for sla in self.slas if sla.name not in self._evaluated)

    # -- rows ------------------------------------------------------------------------------------------------

    def add_rows(
        self, member: int, incarnation: int, rows: Sequence[MetricRow], all_read: bool, replayed: bool = False
    ) -> None:
        """Rows of one member, in the order of their windows. `again`: they were taken before `state` was."""
        self._layers.update({row.layer for row in rows})
        if not self._order:
            self._name_order(next((row.layer for row in rows if row.metric == _ORDER_ONLY_METRIC), ""))
        for row in rows:
            in_time = True
            if row.side is Side.BELOW and row.link != EVERY_LINK and row.metric != "latency":
                in_time = self._pending_links.add(member, row)
                if row.metric == _NETWORK_ONLY_METRIC:
                    self._network_layers.add(row.layer)
            for pending in self._pending_by_metric.get((row.layer, row.side, row.metric), ()):
                in_time = pending.add(member, row) and in_time
            self.late += not in_time and not replayed
        if rows and not replayed:
            until = rows[-1].window_start_ns + rows[-1].window_ns
            known = self._progress.get(member)
            if known is None or incarnation >= known[0]:
                self._progress[member] = incarnation, until, all_read

    def _name_order(self, order: str) -> None:
        """From now on it is known which layer the agreements mean by `order`."""
        self._order = order
        if order:
            named = [_with_order_name(sla, order) for sla in self.slas]
            self.slas = tuple(named)
            for sla in named:
                self._pending_by_metric.setdefault((*collector_of(sla), sla.metric), []).append(
                    self._pending_by_sla[sla.name]
                )

    # -- windows ---------------------------------------------------------------------------------------------

    def _horizon_ns(self) -> int:
        """How far everybody has got who is waited for."""
        foremost = max(until for _, until, _ in self._progress.values())
        return min(
            until
            for _, until, all_read in self._progress.values()
            if not all_read or foremost - until <= self._patience_ns
        )

    def evaluate(self) -> EvaluationResult:
        """Judge the windows that are over."""
        if not self._progress or not self._order:
            return EvaluationResult(late=self.late)
        horizon_ns = self._horizon_ns()
        findings: list[tuple[Finding, int | None]] = []
        verdicts: list[SlaVerdict] = []
        for sla in self.slas:
            there = {sla.provider, sla.consumer} <= self._layers
            for start_ns, by_member in self._pending_by_sla[sla.name].pop_windows_before(horizon_ns):
                if not there:  # what was collected is about another's promise
                    continue
                finding, member = worst_finding(sla, by_member, start_ns)
                if finding.status is not SlaStatus.UNKNOWN:
                    self._evaluated.add(sla.name)
                findings.append((finding, member))
                verdict = status_change(finding, self._violated[sla.name], member)
                if verdict is not None:
                    self._violated[sla.name] = isinstance(verdict, SlaViolation)
                    verdicts.append(_of_the_group(verdict))
        estimates: list[LinkEstimate] = []
        network = None
        for start_ns, by_member in self._pending_links.pop_windows_before(horizon_ns):
            links = link_tallies(by_member)
            for (member, layer, link), tally in sorted(links.items(), key=lambda found: found[0]):
                estimates.append(_link_estimate(member, layer, link, (start_ns, self._pending_links.window_ns), tally))
            network = (
                combine_links([tally for (_, layer, _), tally in links.items() if layer in self._network_layers])
                or network
            )
        return EvaluationResult(tuple(estimates), network, tuple(findings), tuple(verdicts), self.late)


def _with_order_name(sla: Sla, order: str) -> Sla:
    parties = {ORDER: order}
    provider, consumer = parties.get(sla.provider, sla.provider), parties.get(sla.consumer, sla.consumer)
    return replace(sla, provider=provider, consumer=consumer)


def worst_finding(sla: Sla, by_member: dict[int, list[MetricRow]], window_start_ns: int) -> tuple[Finding, int | None]:
    """What one window's rows of all members show of an agreement, and at whom; nobody where all are judged as one."""
    if sla.together:
        rows = (row for member in sorted(by_member) for row in by_member[member])
        return evaluate(sla, rows, window_start_ns), None
    judged = sum(evaluable_links_of(sla, rows) for rows in by_member.values())
    each = [(evaluate(sla, by_member[member], window_start_ns, judged), member) for member in sorted(by_member)]
    return max(each, key=lambda found: severity(found[0]))


def link_tallies(by_member: dict[int, list[MetricRow]]) -> dict[tuple[int, str, int], LinkTally]:
    """By member, layer and peer, what the rows of one window add up to."""
    links: dict[tuple[int, str, int], LinkTally] = {}
    for member, rows in by_member.items():
        for row in rows:
            key = member, row.layer, row.link
            tally = links.get(key)
            if tally is None:
                tally = links[key] = LinkTally()
            tally.add_row(row)
    return links


def _link_estimate(member: int, layer: str, link: int, window: tuple[int, int], tally: LinkTally) -> LinkEstimate:
    delays = tally.delays
    p50, p99, p999 = (delays.quantile(q) if delays.total else None for q in (0.5, 0.99, 0.999))
    return LinkEstimate(
        *(member, link, layer, *window),
        loss=tally.lost / tally.datagrams if tally.datagrams else None,
        datagrams=tally.datagrams,
        delay_p50_ns=p50,
        delay_p99_ns=p99,
        delay_p999_ns=p999,
        jitter_ns=tally.jitter_ns,
        loss_burst=tally.loss_burst,
        gamma_ns=tally.gamma_ns,
    )


def _of_the_group(verdict: SlaVerdict) -> SlaVerdict:
    """The same verdict as one on the whole group."""
    if isinstance(verdict, SlaViolation):
        return replace(verdict, kind=ViolationKind.SYSTEM_SLA)
    return replace(verdict, kind=NoticeKind.SYSTEM_SLA_CLEARED)


def verdict_id(run: str, group: str, verdict: SlaVerdict) -> str:
    """The same for the same verdict whoever finds it, and however often: what tells a repetition from another one."""
    # These words are part of ids that releases exchange: they are not the tokens of the kinds.
    word = "system sla" if isinstance(verdict, SlaViolation) else "system sla cleared"
    words = (run, group, verdict.sla, word, str(verdict.window_start_ns), str(verdict.window_ns))
    return sha256("\0".join(words).encode()).hexdigest()[:16]
