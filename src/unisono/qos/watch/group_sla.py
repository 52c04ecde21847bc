"""The measurement service's view of a whole group (paper 002 §2.4, §4): all members' rows, put together and judged.

Windows are of event time: the collecting members' clocks, whose windows carry the same numbers. A window is judged when
every member has got past its end. Who is silent is not waited for once it is `patience` behind the foremost, all it
wrote having been read. Rows for a window that was judged are late: they are counted and change nothing.

Each agreement is judged link by link, a link being one member's from another, and the worst is told; or, if the
agreement says so, all links of all members together. What is pending need not be kept: `settled_ns` says from when on
rows have to be taken again by one that goes on from `state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from unisono.model.events import NoticeKind, SlaVerdict, SlaViolation, ViolationKind
from unisono.model.metrics import APPLICATION, EVERY_LINK, NETWORK, MetricRow, Side
from unisono.model.sla import Sla
from unisono.qos.adapt.estimate import Estimate, LinkTally, combine_links
from unisono.qos.watch.sla import (
    Finding,
    SlaStatus,
    collector_of,
    evaluable_links_of,
    evaluate,
    severity,
    status_change,
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
