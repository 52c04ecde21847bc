"""Evaluation of service level agreements and detection of violations (paper 002 §2.4, §4).

`evaluate` compares one window of metric rows with an SLA. The result is a `Finding`: kept, violated, or unknown if
there are too few observations. The rows may come from one member or from all members of a group.

`MemberEvaluation` does this for one running member. `GroupEvaluation` does it for a whole group, for the measurement
service. It collects the rows of all members and evaluates a window when the rows of every member are past its end. It
does not wait for a member whose rows are all read and end more than `patience_ns` before the newest row of any member.
Rows that come after the evaluation of their window are late: they are counted and change nothing.

Windows follow the members' clocks and have the same numbers at all members. An SLA is evaluated for each link, from one
peer to one member, and the worst link is reported. An SLA with `together` is evaluated over all links at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from typing import Any

from unisono.model.delays import Histogram
from unisono.model.events import Notice, NoticeKind, SlaCleared, SlaVerdict, SlaViolation, Violation, ViolationKind
from unisono.model.sla import APPLICATION, EVERY_LINK, NETWORK, MetricRow, Shape, Side, Sla, value_text
from unisono.model.units import duration_text
from unisono.qos.adapt.estimate import Estimate, LinkTally, combine_links
from unisono.qos.confidence import ROUNDING_TOLERANCE, binomial_tail, confidence_per_link


class SlaStatus(StrEnum):
    """Whether an SLA was kept in a window."""

    HELD = "held"
    VIOLATED = "violated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one window for one SLA, at its worst link."""

    sla: Sla
    window_start_ns: int
    status: SlaStatus
    measured: float
    """The share within the bound: of the values of a SPREAD metric, or of the intervals of a LEVEL metric.

    For a SHARE metric, the share itself.
    """
    reported_value: float
    """The value to report: the agreed quantile, the share, or the largest level."""
    count: int
    link: int

    def text(self) -> str:
        """The finding in words."""
        sla = self.sla
        window, worst = duration_text(sla.window_ns), value_text(sla.metric, self.reported_value)
        where = f" from member {self.link}" if self.link != EVERY_LINK else ""
        if sla.shape is Shape.SHARE:
            return f"{sla.metric}{where} was {worst} of {self.count:,} in {window}; agreed: {sla.bound_text()}"
        share = f"{self.measured:.4%} of {self.count:,} within {sla.bound_text()}"
        quantile = f"{sla.probability:.4%} were within {worst}" if sla.shape is Shape.SPREAD else f"worst {worst}"
        return f"{sla.metric}{where}: {share} in {window}, agreed: {sla.probability:.4%}; {quantile}"


def collector_of(sla: Sla) -> tuple[str, Side]:
    """The layer that collects the SLA's metric, and the side that it measures.

    The consumer measures the service below it; the provider measures the usage above it.
    """
    side = sla.kind.side
    return (sla.consumer if side is Side.BELOW else sla.provider), side


def evaluate(sla: Sla, rows: Iterable[MetricRow], window_start_ns: int, links_evaluated: int = 0) -> Finding:
    """Compare one window of rows, of one or several members, with an SLA.

    Give `links_evaluated`, the number of links among which the caller reports the worst, if these rows cover only some
    of them.
    """
    by_link = _by_link(sla, rows)
    links_evaluated = max(links_evaluated, evaluable_links(by_link.values(), sla))
    findings = [_evaluate_link(sla, window_start_ns, link, by_link[link], links_evaluated) for link in sorted(by_link)]
    if not findings:
        return Finding(sla, window_start_ns, SlaStatus.UNKNOWN, 0.0, 0.0, 0, EVERY_LINK)
    return max(findings, key=severity)


def evaluable_links_of(sla: Sla, rows: Iterable[MetricRow]) -> int:
    """How many links have enough observations in one window of rows to evaluate the SLA."""
    return evaluable_links(_by_link(sla, rows).values(), sla)


def evaluable_links(rows_by_link: Iterable[Sequence[MetricRow]], sla: Sla) -> int:
    """How many of these links have enough observations to evaluate the SLA."""
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
    """A sort key for findings of one SLA: the worst finding has the largest key."""
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
            status = _status(measured + ROUNDING_TOLERANCE >= sla.probability, count, sla)
        case Shape.SHARE:
            count = sum(row.count for row in rows)
            hits = sum(row.value * row.count for row in rows)
            measured = worst = hits / count if count else 0.0
            chance = binomial_tail(hits, count, sla.bound)
            status = _status(chance > 1 - confidence_per_link(links_evaluated, sla.probability), count, sla)
        case Shape.LEVEL:
            # One value per collecting interval: the intervals are the observations.
            count = len(rows)
            measured = sum(row.value <= sla.bound for row in rows) / count
            worst = max(row.value for row in rows)
            status = SlaStatus.HELD if measured + ROUNDING_TOLERANCE >= sla.probability else SlaStatus.VIOLATED
    return Finding(sla, start_ns, status, measured, worst, count, link)


def _status(within: bool, count: int, sla: Sla) -> SlaStatus:
    if count < sla.observations:
        return SlaStatus.UNKNOWN
    return SlaStatus.HELD if within else SlaStatus.VIOLATED


class MemberEvaluation:
    """Evaluates the SLAs of one running member: collects rows per window and reports changes."""

    def __init__(self, slas: Sequence[Sla], member: int) -> None:
        self._slas = tuple(slas)
        self._member = member
        self._rows: dict[str, list[MetricRow]] = {sla.name: [] for sla in slas}
        self._window: dict[str, int] = {}
        self._violated: dict[str, bool] = dict.fromkeys(self._rows, False)
        self.latest: dict[str, Finding] = {}
        """By SLA: the finding of its last window."""

    def add_rows(self, rows: Sequence[MetricRow], until_ns: int) -> tuple[list[Finding], list[Violation | Notice]]:
        """Add the rows of an interval that ended at `until_ns`; return findings and events of finished windows."""
        findings: list[Finding] = []
        events: list[Violation | Notice] = []
        for sla in self._slas:
            layer, side = collector_of(sla)
            window_rows = self._rows[sla.name]
            window_rows.extend(
                row for row in rows if row.metric == sla.metric and row.layer == layer and row.side is side
            )
            starts = min((row.window_start_ns for row in rows), default=until_ns - 1)
            window = self._window.setdefault(sla.name, starts // sla.window_ns)
            if until_ns // sla.window_ns > window:
                finding = evaluate(sla, window_rows, window * sla.window_ns)
                self._window[sla.name] = until_ns // sla.window_ns
                window_rows.clear()
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
        """The SLAs that are currently violated."""
        return tuple(name for name, is_violated in self._violated.items() if is_violated)


def status_change(finding: Finding, was_violated: bool, member: int | None) -> SlaVerdict | None:
    """A violation when an SLA becomes violated, a clearance when it is kept again; else None."""
    sla = finding.sla
    is_violated = finding.status is SlaStatus.VIOLATED
    if finding.status is SlaStatus.UNKNOWN or was_violated == is_violated:
        return None
    if is_violated:
        return violation_event(finding, member)
    text = f"{sla.name!r} is kept again: {finding.text()}"
    start_ns, window_ns = finding.window_start_ns, sla.window_ns
    return SlaCleared(NoticeKind.SLA_CLEARED, text, member, sla=sla.name, window_start_ns=start_ns, window_ns=window_ns)


def violation_event(finding: Finding, member: int | None, possible_guarantee: str = "") -> SlaViolation:
    """The event that reports a violated SLA."""
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


# -- the whole group -------------------------------------------------------------------------------------------

PATIENCE_NS = 2_000_000_000
ORDER = "order"
"""The name by which SLAs refer to the order, whichever order runs."""
_ORDER_ONLY_METRIC = "held_back"
"""Only the order's collector has this metric, so it tells which layer is the order."""
_NETWORK_ONLY_METRIC = "silence"
"""Only the layer directly above the network has this metric, for each link and interval."""


@dataclass(frozen=True, slots=True)
class LinkEstimate:
    """One member's measurements of the link from one peer, at one layer, in one window; unmeasured ones are None."""

    member: int
    link: int
    layer: str
    window_start_ns: int
    window_ns: int
    loss: float | None = None
    datagrams: int = 0
    """The number of datagrams that `loss` is a share of."""
    delay_p50_ns: int | None = None
    delay_p99_ns: int | None = None
    delay_p999_ns: int | None = None
    jitter_ns: float | None = None
    loss_burst: int = 0
    """The longest run of lost datagrams."""
    gamma_ns: float | None = None


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The result of evaluating all finished windows."""

    estimates: tuple[LinkEstimate, ...] = ()
    network: Estimate | None = None
    """A pessimistic estimate over all links of the last window, for adaptation."""
    findings: tuple[tuple[Finding, int | None], ...] = ()
    """The finding of each finished window, with the member where it was worst."""
    verdicts: tuple[SlaVerdict, ...] = ()
    late: int = 0


@dataclass(slots=True)
class _PendingRows:
    """The rows of windows that are not evaluated yet."""

    window_ns: int
    first_window: int | None = None
    """The first window that is not evaluated."""
    rows: dict[int, dict[int, list[MetricRow]]] = field(default_factory=dict)
    """The metric rows of each window, by window and member."""
    last_bucket: tuple[int, int, list[MetricRow]] = field(default_factory=lambda: (-1, -1, []))
    """Window, member and row list of the last added row; the next row usually goes to the same list."""

    def add(self, member: int, row: MetricRow) -> bool:
        """Add a metric row. Returns False if the window of the row is already evaluated."""
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
        """Remove and return the windows that ended by `horizon_ns`: start time and rows of each."""
        until = horizon_ns // self.window_ns
        done = sorted(window for window in self.rows if window < until)
        self.first_window = until if self.first_window is None else max(self.first_window, until)
        self.last_bucket = (-1, -1, [])
        return [(window * self.window_ns, self.rows.pop(window)) for window in done]


class GroupEvaluation:
    """Evaluates the SLAs of one group in one run.

    Pending rows need not be stored: after a restart from `state`, add the rows from `evaluated_until_ns` on again.
    """

    def __init__(
        self,
        slas: Sequence[Sla],
        window_ns: int | None = None,
        patience_ns: int = PATIENCE_NS,
        state: dict[str, Any] | None = None,
    ) -> None:
        """`window_ns` is the window of link estimates; the default is the shortest window of any SLA."""
        self.slas = tuple(slas)
        self.late = 0
        self._patience_ns = patience_ns
        self._order = ""
        self._network_layers: set[str] = set()
        self._layers = {APPLICATION, NETWORK}
        """All layers seen so far."""
        self._evaluated: set[str] = set()
        """The SLAs that at least one window has evaluated."""
        self._progress: dict[int, tuple[int, int, bool]] = {}
        """By member: its incarnation, the end of its last row, and whether all of its rows are read."""
        self._violated = dict.fromkeys((sla.name for sla in slas), False)
        self._pending_links = _PendingRows(window_ns or min(sla.window_ns for sla in slas))
        self._pending_by_sla = {sla.name: _PendingRows(sla.window_ns) for sla in slas}
        self._pending_by_metric: dict[tuple[str, Side, str], list[_PendingRows]] = {}
        if state is not None:
            self._restore(state)

    # -- state -----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The state of the evaluation, without the pending rows, as JSON-compatible values."""
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
        """All windows before this time are evaluated."""
        return min((p.first_window or 0) * p.window_ns for p in (self._pending_links, *self._pending_by_sla.values()))

    @property
    def violated_slas(self) -> tuple[str, ...]:
        """The SLAs that are currently violated."""
        return tuple(name for name, is_violated in self._violated.items() if is_violated)

    @property
    def unevaluated_slas(self) -> tuple[str, ...]:
        """The SLAs not evaluated in any window, because there were too few observations or a layer is missing."""
        return tuple(sla.name for sla in self.slas if sla.name not in self._evaluated)

    # -- rows ------------------------------------------------------------------------------------------------

    def add_rows(
        self, member: int, incarnation: int, rows: Sequence[MetricRow], all_read: bool, replayed: bool = False
    ) -> None:
        """Add rows of one member, in the order of their windows.

        `all_read` means that no more of its rows are waiting to be read. `replayed` rows are added again after a
        restart: the stored `state` already counts them.
        """
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
        """Set which layer the word `order` in an SLA refers to."""
        self._order = order
        if order:
            named = [_with_order_name(sla, order) for sla in self.slas]
            self.slas = tuple(named)
            for sla in named:
                self._pending_by_metric.setdefault((*collector_of(sla), sla.metric), []).append(
                    self._pending_by_sla[sla.name]
                )

    # -- evaluation ------------------------------------------------------------------------------------------

    def _horizon_ns(self) -> int:
        """The time up to which all members have reported, except members that are more than `patience_ns` behind."""
        foremost = max(until for _, until, _ in self._progress.values())
        return min(
            until
            for _, until, all_read in self._progress.values()
            if not all_read or foremost - until <= self._patience_ns
        )

    def evaluate(self) -> EvaluationResult:
        """Evaluate the windows that all members have passed, and return findings, verdicts and estimates."""
        if not self._progress or not self._order:
            return EvaluationResult(late=self.late)
        horizon_ns = self._horizon_ns()
        findings: list[tuple[Finding, int | None]] = []
        verdicts: list[SlaVerdict] = []
        for sla in self.slas:
            layers_present = {sla.provider, sla.consumer} <= self._layers
            for start_ns, by_member in self._pending_by_sla[sla.name].pop_windows_before(horizon_ns):
                if not layers_present:  # the collected rows belong to another pair of layers
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
    names = {ORDER: order}
    provider, consumer = names.get(sla.provider, sla.provider), names.get(sla.consumer, sla.consumer)
    return replace(sla, provider=provider, consumer=consumer)


def worst_finding(sla: Sla, by_member: dict[int, list[MetricRow]], window_start_ns: int) -> tuple[Finding, int | None]:
    """The worst finding of one window over all members, and the member with it; None for an SLA with `together`."""
    if sla.together:
        rows = (row for member in sorted(by_member) for row in by_member[member])
        return evaluate(sla, rows, window_start_ns), None
    links_evaluated = sum(evaluable_links_of(sla, rows) for rows in by_member.values())
    each = [
        (evaluate(sla, by_member[member], window_start_ns, links_evaluated), member) for member in sorted(by_member)
    ]
    return max(each, key=lambda found: severity(found[0]))


def link_tallies(by_member: dict[int, list[MetricRow]]) -> dict[tuple[int, str, int], LinkTally]:
    """By member, layer and peer: the totals of the rows of one window."""
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
    """The same verdict, marked as one about the whole group."""
    if isinstance(verdict, SlaViolation):
        return replace(verdict, kind=ViolationKind.SYSTEM_SLA)
    return replace(verdict, kind=NoticeKind.SYSTEM_SLA_CLEARED)


def verdict_id(run: str, group: str, verdict: SlaVerdict) -> str:
    """An id that is equal for repetitions of the same verdict, whichever process reports it."""
    # Releases exchange ids that contain these words, so the words stay, although the tokens of the kinds differ.
    word = "system sla" if isinstance(verdict, SlaViolation) else "system sla cleared"
    words = (run, group, verdict.sla, word, str(verdict.window_start_ns), str(verdict.window_ns))
    return sha256("\0".join(words).encode()).hexdigest()[:16]
