"""The measurement service's view of a group: event-time windows over all members' rows, late rows, dead members."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.metric_streams import COLLECT_NS, MS, SLA, START_NS, LossByInterval, interval_rows, lossy_between

from unisono.model.delays import Histogram
from unisono.model.events import SlaCleared, SlaViolation
from unisono.model.sla import MetricRow, Side, Sla
from unisono.model.text.sla import parse_slas
from unisono.qos.watch.sla_evaluation import EvaluationResult, GroupEvaluation, SlaStatus, verdict_id, worst_finding

SLAS = parse_slas(SLA, "sla.toml").slas
MEMBERS = (1, 2, 3)


def nothing(member: int, peer: int, number: int) -> float:
    return 0.0


def feed(
    system: GroupEvaluation, numbers: Sequence[int], loss: LossByInterval, members: Sequence[int] = MEMBERS
) -> list[EvaluationResult]:
    found = []
    for number in numbers:
        for member in members:
            system.add_rows(member, 1, interval_rows(member, MEMBERS, number, loss), all_read=True)
        found.append(system.evaluate())
    return found


def verdicts(result: Sequence[EvaluationResult]) -> list[SlaViolation | SlaCleared]:
    return [verdict for each in result for verdict in each.verdicts]


def test_one_bad_link_among_six_violates_the_agreement_and_is_named() -> None:
    broken, cleared = verdicts(feed(GroupEvaluation(SLAS), range(16), lossy_between(4, 8)))
    assert isinstance(broken, SlaViolation)
    assert (broken.kind, broken.sla, broken.member, broken.link) == ("system_sla", "few losses", 2, 1)
    assert broken.measured == pytest.approx(0.2)
    assert broken.window_start_ns == START_NS + 4 * COLLECT_NS
    assert isinstance(cleared, SlaCleared)
    assert (cleared.kind, cleared.window_start_ns) == ("system_sla_cleared", START_NS + 8 * COLLECT_NS)


def test_together_means_all_links_of_all_members_at_once() -> None:
    system = GroupEvaluation(SLAS)
    for member in MEMBERS:
        # One member in three is slow: a third of all delays, where a tenth may be.
        rows = [r for n in range(4) for r in interval_rows(member, MEMBERS, n, nothing, 50 * MS if member == 3 else MS)]
        system.add_rows(member, 1, rows, all_read=True)
    result = system.evaluate()
    (broken,) = result.verdicts
    assert isinstance(broken, SlaViolation)
    assert (broken.sla, broken.member, broken.link) == ("all in all", None, 0)
    assert broken.measured == pytest.approx(2 / 3)
    assert [finding.status for finding, _ in result.findings] == [
        SlaStatus.HELD,
        SlaStatus.VIOLATED,
        SlaStatus.VIOLATED,
    ]


def test_a_window_is_evaluated_when_the_last_member_is_past_its_end() -> None:
    system = GroupEvaluation(SLAS)
    assert not any(result.findings for result in feed(system, range(12), nothing, members=(1, 2))[:1])
    slow = GroupEvaluation(SLAS, patience_ns=10**12)
    feed(slow, [0], nothing)
    assert not any(result.findings for result in feed(slow, range(1, 9), nothing, members=(1, 2)))
    result = feed(slow, range(1, 9), nothing, members=(3,))
    assert sum(len(each.findings) for each in result) == 2 + 4


def test_a_silent_member_delays_evaluation_only_for_the_patience() -> None:
    system = GroupEvaluation(SLAS, patience_ns=8 * COLLECT_NS)
    feed(system, [0], nothing)
    result = feed(system, range(1, 12), nothing, members=(1, 2))
    assert [bool(each.findings) for each in result].index(True) == 8  # when it is 2 s and an interval behind


def test_a_member_with_unread_rows_always_delays_evaluation() -> None:
    system = GroupEvaluation(SLAS, patience_ns=COLLECT_NS)
    system.add_rows(3, 1, interval_rows(3, MEMBERS, 0, nothing), all_read=False)
    assert not any(result.findings for result in feed(system, range(20), nothing, members=(1, 2)))


def test_late_rows_are_counted_and_change_nothing() -> None:
    system = GroupEvaluation(SLAS, patience_ns=4 * COLLECT_NS)
    feed(system, [0], nothing)
    feed(system, range(1, 20), nothing, members=(1, 2))
    assert system.late == 0
    late = [row for n in range(1, 9) for row in interval_rows(3, MEMBERS, n, lambda *_: 0.9)]
    system.add_rows(3, 1, late, all_read=True)
    assert system.late == sum(row.link != 0 for row in late)
    assert not system.evaluate().verdicts
    assert system.evaluate().late == system.late


def test_a_row_directly_before_the_first_open_window_is_late() -> None:
    system = GroupEvaluation(SLAS, patience_ns=0)
    feed(system, range(4), nothing, members=(1,))
    system.add_rows(1, 1, interval_rows(1, MEMBERS, 3, lambda *_: 0.9), all_read=True)
    assert system.late == 2 * 5
    assert not system.evaluate().findings


def test_a_member_far_behind_does_not_reopen_a_window() -> None:
    system = GroupEvaluation(SLAS, patience_ns=10**12)
    loss = lossy_between(0, 4)
    found = feed(system, range(8), loss, members=(1, 2))
    for number in range(16):
        system.add_rows(3, 1, interval_rows(3, MEMBERS, number, loss), all_read=True)
        found.append(system.evaluate())
    found += feed(system, range(8, 16), loss, members=(1, 2))
    windows = [(finding.sla.name, finding.window_start_ns) for each in found for finding, _ in each.findings]
    assert len(windows) == len(set(windows)) == 4 + 8
    assert [type(verdict) for verdict in verdicts(found)] == [SlaViolation, SlaCleared]
    assert system.late == 8 * 2 * 5


def test_a_restarted_member_delays_evaluation_in_its_new_incarnation() -> None:
    system = GroupEvaluation(SLAS)
    feed(system, range(4), nothing)
    system.add_rows(3, 2, interval_rows(3, MEMBERS, 6, nothing), all_read=True)
    system.add_rows(3, 1, interval_rows(3, MEMBERS, 4, nothing), all_read=True)  # the last rows of the old incarnation
    assert any(result.findings for result in feed(system, range(4, 7), nothing, members=(1, 2)))


def test_estimates_of_a_window_by_link() -> None:
    result = feed(GroupEvaluation(SLAS, window_ns=4 * COLLECT_NS), range(4), lossy_between(2, 4))[-1]
    assert [(e.member, e.link) for e in result.estimates] == [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)]
    bad = result.estimates[2]
    assert bad.loss == pytest.approx(0.1)
    assert (bad.datagrams, bad.layer) == (400, "vbr")
    assert bad.delay_p99_ns == pytest.approx(MS, rel=1 / 32)
    assert (bad.jitter_ns, bad.gamma_ns, bad.loss_burst) == (1e5, 2e5, 0)
    assert result.network is not None
    assert result.network.loss == pytest.approx(0.1)  # of the worst link, not of all into one member or from one peer


def link(metric: str, number: int, value: float, layer: str = "vbr", largest: int = 0) -> MetricRow:
    """One row of member 1 about the link from 2."""
    return MetricRow(layer, Side.BELOW, 2, metric, START_NS + number * COLLECT_NS, COLLECT_NS, 100, value, largest)


def evaluate_rows(rows: Sequence[MetricRow], windows: int = 1) -> EvaluationResult:
    """The result of these rows of one member, over `windows` windows of a second."""
    system = GroupEvaluation(SLAS, window_ns=4 * COLLECT_NS)
    whole = [row for number in range(4 * windows) for row in interval_rows(1, (1, 3), number, nothing)]
    system.add_rows(1, 1, sorted([*rows, *whole], key=lambda row: row.window_start_ns), all_read=True)
    return system.evaluate()


def test_a_link_estimate_has_the_worst_interval_and_the_quantiles_of_all_delays() -> None:
    delays = Histogram()
    for ms, times in ((1, 940), (10, 52), (100, 7), (1000, 1)):
        delays.add(ms * MS, times)
    spread = replace(link("delay", 0, delays.mean(), largest=delays.largest), buckets=tuple(delays.to_pairs()))
    rows = [spread]
    for number, worst in enumerate([2, 5, 3, 1]):
        rows += [link("loss_burst", number, 1.0, largest=worst), link("gamma", number, worst * 1e5)]
        rows += [link("jitter", number, worst * 1e4)]
    (seen, _) = evaluate_rows(rows).estimates
    assert (seen.link, seen.loss_burst, seen.gamma_ns, seen.jitter_ns) == (2, 5, 5e5, 5e4)
    for quantile, ms in ((seen.delay_p50_ns, 1), (seen.delay_p99_ns, 10), (seen.delay_p999_ns, 100)):
        assert quantile == pytest.approx(ms * MS, rel=1 / 32)


def test_the_network_estimate_comes_from_the_lowest_layer_and_the_last_window() -> None:
    """Loss above a service does not count, nor does an earlier window."""
    rows = [link("loss", 1, 0.4), link("loss", 5, 0.1), link("loss", 6, 0.9, layer="above")]
    network = evaluate_rows(rows, windows=2).network
    assert network is not None
    assert network.loss == pytest.approx(0.1)


def test_after_a_restart_evaluated_windows_stay_evaluated_and_late_rows_late() -> None:
    loss = lossy_between(0, 4)
    first = GroupEvaluation(SLAS)
    assert len(verdicts(feed(first, range(4), loss))) == 1
    first.add_rows(2, 1, interval_rows(2, MEMBERS, 0, loss), all_read=True)
    assert first.late == 2 * 5
    second = GroupEvaluation(SLAS, state=json.loads(json.dumps(first.state())))
    assert second.late == first.late
    again = feed(second, range(4), loss)
    assert not any(result.findings for result in again)
    assert second.late == (2 + 4 * 6) * 5


def test_a_restarted_evaluation_remembers_the_order() -> None:
    """The rows after a restart may lack the one that names the order."""
    first = GroupEvaluation(SLAS)
    feed(first, range(4), nothing)
    second = GroupEvaluation(SLAS, state=json.loads(json.dumps(first.state())))
    for member in MEMBERS:
        rows = [
            row for n in range(4, 8) for row in interval_rows(member, MEMBERS, n, nothing) if row.metric != "held_back"
        ]
        second.add_rows(member, 1, rows, all_read=True)
    assert len(second.evaluate().findings) == 1 + 2


@pytest.mark.parametrize("cut", range(1, 16))
def test_a_restart_from_a_state_gives_the_same_findings_as_no_restart(cut: int) -> None:
    loss = lossy_between(4, 8)
    whole = verdicts(feed(GroupEvaluation(SLAS), range(16), loss))
    first = GroupEvaluation(SLAS)
    found = verdicts(feed(first, range(cut), loss))
    second = GroupEvaluation(SLAS, state=json.loads(json.dumps(first.state())))
    for member in MEMBERS:
        rows = [r for n in range(cut) for r in interval_rows(member, MEMBERS, n, loss)]
        pending = [r for r in rows if r.window_start_ns + r.window_ns > first.evaluated_until_ns]
        second.add_rows(member, 1, pending, all_read=True, replayed=True)
    assert found + verdicts(feed(second, range(cut, 16), loss)) == whole
    assert second.late == 0


def test_an_agreement_with_a_missing_layer_is_never_evaluated_and_named() -> None:
    """The agreement is about loss above a service that the group does not have; its rows are the network's."""
    theirs = replace(SLAS[0], name="gaps", provider="rmcast", observations=1)
    rare = replace(SLAS[0], name="rare", observations=10**6)
    system = GroupEvaluation((*SLAS, theirs, rare))
    bad = lossy_between(0, 16, share=0.9)
    assert list(system.unevaluated_slas) == ["few losses", "all in all", "gaps", "rare"]
    found = verdicts(feed(system, range(4), bad))
    assert [verdict.sla for verdict in found] == ["few losses"]
    assert list(system.unevaluated_slas) == ["gaps", "rare"]
    # Where the service is, its collector's rows are there too.
    second = GroupEvaluation(system.slas, state=json.loads(json.dumps(system.state())))
    assert list(second.unevaluated_slas) == ["gaps", "rare"]
    second.add_rows(
        1, 1, [replace(interval_rows(1, MEMBERS, 4, nothing)[0], layer="rmcast", metric="rate")], all_read=True
    )
    found = verdicts(feed(second, range(4, 8), bad))
    assert [verdict.sla for verdict in found] == ["gaps"]
    third = GroupEvaluation(second.slas, state=json.loads(json.dumps(second.state())))
    assert third.unevaluated_slas == ("rare",)
    assert [verdict.sla for verdict in verdicts(feed(third, range(8, 12), nothing))] == ["few losses", "gaps"]


def test_a_verdict_id_depends_on_the_content() -> None:
    (broken, cleared) = verdicts(feed(GroupEvaluation(SLAS), range(16), lossy_between(4, 8)))
    ids = {verdict_id("r", "g", broken), verdict_id("r", "g", cleared), verdict_id("s", "g", broken)}
    assert len(ids) == 3
    assert verdict_id("r", "g", replace(broken, text="other words")) in ids


def test_the_worst_link_of_a_group_is_evaluated_with_the_required_confidence() -> None:
    """16 of 400 are 2 % by chance once in 125 times: certain to 95 % at one of 4 links, and not at one of 20."""
    loss = Sla("losses", "network", "vbr", "loss", 0.02, 0.95, 1000 * MS)

    def rows(worst: float) -> list[MetricRow]:
        shares = (worst, 0.02, 0.02, 0.02)
        return [MetricRow("vbr", Side.BELOW, link, "loss", 0, 1000 * MS, 400, s) for link, s in enumerate(shares, 1)]

    alone, _ = worst_finding(loss, {1: rows(0.04)}, 0)
    assert (alone.status, alone.link) == (SlaStatus.VIOLATED, 1)
    among, _ = worst_finding(loss, {member: rows(0.04 if member == 3 else 0.02) for member in range(1, 6)}, 0)
    assert among.status is SlaStatus.HELD
    bad, member = worst_finding(loss, {member: rows(0.06 if member == 3 else 0.02) for member in range(1, 6)}, 0)
    assert (bad.status, member) == (SlaStatus.VIOLATED, 3)
