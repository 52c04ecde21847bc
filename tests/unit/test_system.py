"""The measurement service's view of a group: event-time windows over all members' rows, late rows, dead members."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.metric_streams import COLLECT_NS, MS, SLA, START_NS, LossByInterval, interval_rows, lossy_between

from unisono.model.events import SlaCleared, SlaViolation
from unisono.model.histogram import Histogram
from unisono.model.metrics import MetricRow, Side
from unisono.model.sla import Sla
from unisono.model.text.sla import parse_slas
from unisono.qos.watch.group_sla import EvaluationResult, GroupEvaluation, verdict_id, worst_finding
from unisono.qos.watch.sla import SlaStatus

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


def verdicts(judged: Sequence[EvaluationResult]) -> list[SlaViolation | SlaCleared]:
    return [verdict for each in judged for verdict in each.verdicts]


def test_one_bad_link_among_six_breaks_the_agreement_and_is_named() -> None:
    broken, cleared = verdicts(feed(GroupEvaluation(SLAS), range(16), lossy_between(4, 8)))
    assert isinstance(broken, SlaViolation)
    assert (broken.kind, broken.sla, broken.member, broken.link) == ("system_sla", "few losses", 2, 1)
    assert broken.measured == pytest.approx(0.2)
    assert broken.window_start_ns == START_NS + 4 * COLLECT_NS
    assert isinstance(cleared, SlaCleared)
    assert (cleared.kind, cleared.window_start_ns) == ("system_sla_cleared", START_NS + 8 * COLLECT_NS)


def test_together_all_links_of_all_members_are_one() -> None:
    system = GroupEvaluation(SLAS)
    for member in MEMBERS:
        # One member in three is slow: a third of all delays, where a tenth may be.
        rows = [r for n in range(4) for r in interval_rows(member, MEMBERS, n, nothing, 50 * MS if member == 3 else MS)]
        system.add_rows(member, 1, rows, all_read=True)
    judged = system.evaluate()
    (broken,) = judged.verdicts
    assert isinstance(broken, SlaViolation)
    assert (broken.sla, broken.member, broken.link) == ("all in all", None, 0)
    assert broken.measured == pytest.approx(2 / 3)
    assert [finding.status for finding, _ in judged.findings] == [
        SlaStatus.HELD,
        SlaStatus.VIOLATED,
        SlaStatus.VIOLATED,
    ]


def test_a_window_is_judged_when_the_last_member_is_past_its_end() -> None:
    system = GroupEvaluation(SLAS)
    assert not any(judged.findings for judged in feed(system, range(12), nothing, members=(1, 2))[:1])
    slow = GroupEvaluation(SLAS, patience_ns=10**12)
    feed(slow, [0], nothing)
    assert not any(judged.findings for judged in feed(slow, range(1, 9), nothing, members=(1, 2)))
    judged = feed(slow, range(1, 9), nothing, members=(3,))
    assert sum(len(each.findings) for each in judged) == 2 + 4


def test_who_is_silent_is_waited_for_so_long_and_no_longer() -> None:
    system = GroupEvaluation(SLAS, patience_ns=8 * COLLECT_NS)
    feed(system, [0], nothing)
    judged = feed(system, range(1, 12), nothing, members=(1, 2))
    assert [bool(each.findings) for each in judged].index(True) == 8  # when it is 2 s and an interval behind


def test_who_has_written_more_than_was_read_is_always_waited_for() -> None:
    system = GroupEvaluation(SLAS, patience_ns=COLLECT_NS)
    system.add_rows(3, 1, interval_rows(3, MEMBERS, 0, nothing), all_read=False)
    assert not any(judged.findings for judged in feed(system, range(20), nothing, members=(1, 2)))


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


def test_a_row_behind_the_last_that_was_judged_is_late_like_any_other() -> None:
    system = GroupEvaluation(SLAS, patience_ns=0)
    feed(system, range(4), nothing, members=(1,))
    system.add_rows(1, 1, interval_rows(1, MEMBERS, 3, lambda *_: 0.9), all_read=True)
    assert system.late == 2 * 5
    assert not system.evaluate().findings


def test_who_comes_late_and_far_behind_has_no_window_judged_again() -> None:
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


def test_a_member_that_comes_back_is_waited_for_in_its_new_life() -> None:
    system = GroupEvaluation(SLAS)
    feed(system, range(4), nothing)
    system.add_rows(3, 2, interval_rows(3, MEMBERS, 6, nothing), all_read=True)
    system.add_rows(3, 1, interval_rows(3, MEMBERS, 4, nothing), all_read=True)  # the old life's last words
    assert any(judged.findings for judged in feed(system, range(4, 7), nothing, members=(1, 2)))


def test_estimates_of_a_window_by_link() -> None:
    judged = feed(GroupEvaluation(SLAS, window_ns=4 * COLLECT_NS), range(4), lossy_between(2, 4))[-1]
    assert [(e.member, e.link) for e in judged.estimates] == [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)]
    bad = judged.estimates[2]
    assert bad.loss == pytest.approx(0.1)
    assert (bad.datagrams, bad.layer) == (400, "vbr")
    assert bad.delay_p99_ns == pytest.approx(MS, rel=1 / 32)
    assert (bad.jitter_ns, bad.gamma_ns, bad.loss_burst) == (1e5, 2e5, 0)
    assert judged.network is not None
    assert judged.network.loss == pytest.approx(0.1)  # of the worst link, not of all into one member or from one peer


def link(metric: str, number: int, value: float, layer: str = "vbr", largest: int = 0) -> MetricRow:
    """One row of member 1 about the link from 2."""
    return MetricRow(layer, Side.BELOW, 2, metric, START_NS + number * COLLECT_NS, COLLECT_NS, 100, value, largest)


def judged_rows(rows: Sequence[MetricRow], windows: int = 1) -> EvaluationResult:
    """What these rows lead to, of one member in so many windows of a second."""
    system = GroupEvaluation(SLAS, window_ns=4 * COLLECT_NS)
    whole = [row for number in range(4 * windows) for row in interval_rows(1, (1, 3), number, nothing)]
    system.add_rows(1, 1, sorted([*rows, *whole], key=lambda row: row.window_start_ns), all_read=True)
    return system.evaluate()


def test_an_estimate_has_the_worst_of_its_intervals_and_the_quantiles_of_all_delays() -> None:
    delays = Histogram()
    for ms, times in ((1, 940), (10, 52), (100, 7), (1000, 1)):
        delays.add(ms * MS, times)
    spread = replace(link("delay", 0, delays.mean(), largest=delays.largest), buckets=tuple(delays.to_pairs()))
    rows = [spread]
    for number, worst in enumerate([2, 5, 3, 1]):
        rows += [link("loss_burst", number, 1.0, largest=worst), link("gamma", number, worst * 1e5)]
        rows += [link("jitter", number, worst * 1e4)]
    (seen, _) = judged_rows(rows).estimates
    assert (seen.link, seen.loss_burst, seen.gamma_ns, seen.jitter_ns) == (2, 5, 5e5, 5e4)
    for quantile, ms in ((seen.delay_p50_ns, 1), (seen.delay_p99_ns, 10), (seen.delay_p999_ns, 100)):
        assert quantile == pytest.approx(ms * MS, rel=1 / 32)


def test_the_network_is_what_its_own_layer_saw_in_the_last_window() -> None:
    """Above a service there is loss too, of another kind; and what was is over."""
    rows = [link("loss", 1, 0.4), link("loss", 5, 0.1), link("loss", 6, 0.9, layer="above")]
    network = judged_rows(rows, windows=2).network
    assert network is not None
    assert network.loss == pytest.approx(0.1)


def test_what_was_judged_before_a_restart_is_not_judged_again_and_late_stays_late() -> None:
    loss = lossy_between(0, 4)
    first = GroupEvaluation(SLAS)
    assert len(verdicts(feed(first, range(4), loss))) == 1
    first.add_rows(2, 1, interval_rows(2, MEMBERS, 0, loss), all_read=True)
    assert first.late == 2 * 5
    second = GroupEvaluation(SLAS, state=json.loads(json.dumps(first.state())))
    assert second.late == first.late
    again = feed(second, range(4), loss)
    assert not any(judged.findings for judged in again)
    assert second.late == (2 + 4 * 6) * 5


def test_a_restarted_one_knows_the_order_without_being_told() -> None:
    """A stretch may begin behind the row by which an order shows."""
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
def test_one_that_goes_on_from_a_state_finds_what_one_that_never_stopped_does(cut: int) -> None:
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


def test_an_agreement_with_who_is_not_there_is_never_judged_and_named() -> None:
    """Above a service that the group does not have, loss is the network's: not what was promised."""
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


def test_a_verdict_is_known_by_what_it_is_about() -> None:
    (broken, cleared) = verdicts(feed(GroupEvaluation(SLAS), range(16), lossy_between(4, 8)))
    ids = {verdict_id("r", "g", broken), verdict_id("r", "g", cleared), verdict_id("s", "g", broken)}
    assert len(ids) == 3
    assert verdict_id("r", "g", replace(broken, text="other words")) in ids


def test_the_worst_of_all_links_of_the_group_is_held_to_the_certainty_that_was_asked_for() -> None:
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
