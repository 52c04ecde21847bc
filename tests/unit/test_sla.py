"""Agreements against windows of metrics: held, violated, unknown, and the events when that changes."""

from __future__ import annotations

import random
from dataclasses import replace
from math import comb

import pytest

from unisono.model.delays import Histogram
from unisono.model.events import SlaCleared, SlaViolation
from unisono.model.sla import METRICS, MetricRow, Shape, Side, Sla
from unisono.qos.confidence import binomial_tail, share_lower_bound
from unisono.qos.watch.sla_evaluation import MemberEvaluation, SlaStatus, evaluate

MS = 1_000_000
S = 1000 * MS
LATENCY = Sla("on time", "vbr", "application", "latency", 60 * MS, 0.99, S)
LOSS = Sla("losses", "network", "vbr", "loss", 0.02, 0.95, S)
JITTER = Sla("steady", "network", "vbr", "jitter", 2 * MS, 0.5, S)
RATE = Sla("within the rate", "vbr", "application", "rate", 50, 1, S)


def spread(values: list[int], link: int = 1, start: int = 0) -> MetricRow:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    pairs = tuple(histogram.to_pairs())
    return MetricRow(
        "application",
        Side.BELOW,
        link,
        "latency",
        start,
        S,
        histogram.total,
        histogram.mean(),
        histogram.largest,
        pairs,
    )


def level(metric: str, value: float, count: int = 100, link: int = 2, start: int = 0) -> MetricRow:
    side = METRICS[metric].side
    return MetricRow("vbr", side, link if side is Side.BELOW else 0, metric, start, S, count, value)


def test_a_distribution_is_evaluated_by_the_share_of_its_values() -> None:
    assert evaluate(LATENCY, [spread([50 * MS] * 99 + [70 * MS])], 0).status is SlaStatus.HELD
    broken = evaluate(LATENCY, [spread([50 * MS] * 98 + [70 * MS] * 2)], 0)
    assert (broken.status, broken.measured, broken.count) == (SlaStatus.VIOLATED, 0.98, 100)
    assert broken.reported_value == pytest.approx(70 * MS, rel=1 / 32)
    slowest = evaluate(LATENCY, [spread([50 * MS] * 98 + [70 * MS, 900 * MS])], 0)
    assert "98.0000% of 100 within 60ms in 1s, agreed: 99.0000%; 99.0000% were within 7" in slowest.text()


def test_a_value_at_the_bound_is_within_it() -> None:
    assert evaluate(LATENCY, [spread([60 * MS] * 100)], 0).status is SlaStatus.HELD
    assert evaluate(LATENCY, [spread([64 * MS] * 100)], 0).status is SlaStatus.VIOLATED


def test_too_few_observations_give_no_verdict() -> None:
    assert evaluate(LATENCY, [spread([90 * MS] * 29)], 0).status is SlaStatus.UNKNOWN
    assert evaluate(LATENCY, [spread([90 * MS] * 30)], 0).status is SlaStatus.VIOLATED
    assert evaluate(LATENCY, [], 0).status is SlaStatus.UNKNOWN
    assert evaluate(LATENCY, [level("loss", 1.0)], 0).status is SlaStatus.UNKNOWN, "another metric's rows"


def test_links_are_evaluated_one_by_one_or_together() -> None:
    rows = [spread([50 * MS] * 950, link=1), spread([90 * MS] * 50, link=2)]
    finding = evaluate(LATENCY, rows, 0)
    assert (finding.status, finding.link, finding.measured) == (SlaStatus.VIOLATED, 2, 0.0)
    assert evaluate(replace(LATENCY, links=(1,)), rows, 0).status is SlaStatus.HELD
    together = replace(LATENCY, together=True, probability=0.95)
    assert evaluate(together, rows, 0).measured == pytest.approx(0.95)
    assert evaluate(together, rows, 0).status is SlaStatus.HELD


def test_a_share_is_violated_only_with_enough_confidence() -> None:
    # 3 of 100 may well be 2 %; 30 of 1000 hardly is.
    assert evaluate(LOSS, [level("loss", 0.03)], 0).status is SlaStatus.HELD
    assert evaluate(LOSS, [level("loss", 0.03, 1000)], 0).status is SlaStatus.VIOLATED
    parts = [level("loss", 0.06, 500), level("loss", 0.0, 500)]
    assert evaluate(LOSS, parts, 0).measured == pytest.approx(0.03)
    assert evaluate(replace(LOSS, probability=0.5), [level("loss", 0.021, 1000)], 0).status is SlaStatus.VIOLATED


def test_false_alarms_of_a_share_are_as_rare_as_required() -> None:
    chance = random.Random(1)
    alarms = 0
    for _ in range(2000):
        lost = sum(chance.random() < LOSS.bound for _ in range(400))
        alarms += evaluate(LOSS, [level("loss", lost / 400, 400)], 0).status is SlaStatus.VIOLATED
    assert alarms / 2000 <= 0.05


@pytest.mark.parametrize("links", [4, 20])
def test_false_alarms_stay_rare_if_the_worst_of_many_links_is_reported(links: int) -> None:
    """Twenty links exactly at the bound, each evaluated with 95 %, would give an alarm in two windows of three."""
    chance = random.Random(2)

    def window(loss: float) -> list[MetricRow]:
        lost = [sum(chance.random() < loss for _ in range(400)) for _ in range(links)]
        return [level("loss", hits / 400, 400, link) for link, hits in enumerate(lost, 1)]

    alarms = sum(evaluate(LOSS, window(LOSS.bound), 0).status is SlaStatus.VIOLATED for _ in range(200))
    assert alarms / 200 <= 0.05
    assert all(evaluate(LOSS, window(0.08), 0).status is SlaStatus.VIOLATED for _ in range(20))


def test_links_without_observations_do_not_lower_the_confidence_of_others() -> None:
    bad = level("loss", 0.035, 400, 1)
    assert evaluate(LOSS, [bad], 0).status is SlaStatus.VIOLATED
    assert (
        evaluate(LOSS, [bad, *(level("loss", 0.0, 5, link) for link in range(2, 40))], 0).status is SlaStatus.VIOLATED
    )
    assert evaluate(LOSS, [bad, *(level("loss", 0.0, 400, link) for link in range(2, 40))], 0).status is SlaStatus.HELD


@pytest.mark.parametrize(("hits", "count", "share"), [(3, 7, 0.2), (1, 40, 0.01), (30, 31, 0.9), (31, 31, 0.9)])
def test_the_binomial_tail_is_the_sum_of_all_terms(hits: int, count: int, share: float) -> None:
    ways = sum(comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(hits, count + 1))
    assert binomial_tail(hits, count, share) == pytest.approx(ways, rel=1e-6)
    assert binomial_tail(0, count, share) == 1
    assert binomial_tail(1, count, 0.0) == 0


def test_the_lower_bound_is_below_the_share_and_approaches_it() -> None:
    assert share_lower_bound(0, 0, 0.95) == 0
    assert share_lower_bound(0, 50, 0.95) == 0
    assert 0.045 < share_lower_bound(5, 100, 0.5) <= 0.05
    bounds = [share_lower_bound(0.05 * n, n, 0.95) for n in (20, 200, 2000, 20000)]
    assert bounds == sorted(bounds)
    assert bounds[-1] == pytest.approx(0.05, abs=0.003)
    # The textbook's one-sided 95 % bound for 10 of 100, and for all of 10, which is the tenth root of 5 %.
    assert share_lower_bound(10, 100, 0.95) == pytest.approx(0.0553, abs=1e-4)
    assert share_lower_bound(10, 10, 0.95) == pytest.approx(0.05 ** (1 / 10), abs=1e-6)


def test_levels_are_evaluated_by_the_share_of_intervals() -> None:
    rows = [level("jitter", value * MS) for value in (1, 1, 3, 3)]
    assert evaluate(JITTER, rows, 0).status is SlaStatus.HELD
    assert evaluate(replace(JITTER, probability=0.6), rows, 0).status is SlaStatus.VIOLATED
    assert evaluate(RATE, [level("rate", 50.0), level("rate", 50.5)], 0).status is SlaStatus.VIOLATED, (
        "a usage, collected above"
    )


def test_a_violation_and_its_clearance_are_reported_once() -> None:
    evaluation = MemberEvaluation([LATENCY, LOSS], member=3)
    reported: list[tuple[int, type]] = []
    for window, slow in enumerate([0, 0, 1, 1, 1, 0, 0, 1]):
        rows = [spread([(90 if slow else 30) * MS] * 100, start=window * S)]
        findings, events = evaluation.add_rows(rows, (window + 1) * S)
        assert [finding.sla for finding in findings] == [LATENCY, LOSS]
        assert findings[1].status is SlaStatus.UNKNOWN
        reported += [(window, type(event)) for event in events]
    assert reported == [(2, SlaViolation), (5, SlaCleared), (7, SlaViolation)]
    assert evaluation.violated_slas() == ("on time",)


def test_a_window_with_too_few_observations_does_not_end_a_violation() -> None:
    evaluation, reported = MemberEvaluation([LATENCY], member=3), []
    for window, values in enumerate([[90 * MS] * 100, [30 * MS] * 10, [], [90 * MS] * 100, [30 * MS] * 100]):
        rows = [spread(values, start=window * S)] if values else []
        reported += [(window, type(event)) for event in evaluation.add_rows(rows, (window + 1) * S)[1]]
    assert reported == [(0, SlaViolation), (4, SlaCleared)]


def test_the_event_carries_the_figures() -> None:
    _, (event,) = MemberEvaluation([LATENCY], 3).add_rows([spread([90 * MS] * 100)], S)
    assert isinstance(event, SlaViolation)
    assert (event.kind, event.member, event.sla, event.metric) == ("sla", 3, "on time", "latency")
    assert (event.bound, event.measured, event.probability) == (60 * MS, 0.0, 0.99)
    assert (event.window_start_ns, event.window_ns, event.link) == (0, S, 1)
    for figure in ("on time", "60ms", "99.0000%", "vbr", "application"):
        assert figure in event.text


def test_a_window_combines_its_collecting_intervals() -> None:
    evaluation = MemberEvaluation([replace(LATENCY, window_ns=S)], 1)
    quarter = S // 4
    for number in range(3):
        row = replace(spread([90 * MS] * 20), window_start_ns=4 * S + number * quarter, window_ns=quarter)
        assert evaluation.add_rows([row], row.window_start_ns + quarter) == ([], [])
    row = replace(spread([30 * MS] * 20), window_start_ns=4 * S + 3 * quarter, window_ns=quarter)
    (finding,), events = evaluation.add_rows([row], 5 * S)
    assert (finding.count, finding.measured, finding.window_start_ns) == (80, 0.25, 4 * S)
    assert len(events) == 1


def test_every_metric_has_a_shape_that_can_be_evaluated() -> None:
    for name, kind in METRICS.items():
        bound = 0.5 if kind.shape is Shape.SHARE else 10
        layer = "application" if kind.side is Side.BELOW else "vbr"
        sla = Sla("any", "vbr", "application", name, bound, 0.9, S, observations=1)
        buckets = ((5, 7),) if kind.shape is Shape.SPREAD else ()
        row = MetricRow(layer, kind.side, 1, name, 0, S, 7, 0.25, 5, buckets)
        assert evaluate(sla, [row], 0).status is SlaStatus.HELD
