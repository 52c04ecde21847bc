"""The measurement service's view of a group: event-time windows over all members' rows, late rows, dead members."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.measured import BEGIN_NS, COLLECT_NS, MS, SLA, Loss, interval, worse_between

from unisono.model.events import SlaCleared, SlaViolation
from unisono.model.metrics import MetricRow, Side
from unisono.model.sla import Sla
from unisono.model.sla_text import parse_slas
from unisono.qos.sla import Kept
from unisono.qos.system import Judged, System, verdict_id, worst_finding

SLAS = parse_slas(SLA, "sla.toml").slas
MEMBERS = (1, 2, 3)


def nothing(member: int, peer: int, number: int) -> float:
    return 0.0


def feed(system: System, numbers: Sequence[int], loss: Loss, members: Sequence[int] = MEMBERS) -> list[Judged]:
    found = []
    for number in numbers:
        for member in members:
            system.take(member, 1, interval(member, MEMBERS, number, loss), to_the_end=True)
        found.append(system.judge())
    return found


def verdicts(judged: Sequence[Judged]) -> list[SlaViolation | SlaCleared]:
    return [verdict for each in judged for verdict in each.verdicts]


def test_one_bad_link_among_six_breaks_the_agreement_and_is_named() -> None:
    broken, cleared = verdicts(feed(System(SLAS), range(16), worse_between(4, 8)))
    assert isinstance(broken, SlaViolation)
    assert (broken.kind, broken.sla, broken.member, broken.link) == ("system sla", "few losses", 2, 1)
    assert broken.measured == pytest.approx(0.2)
    assert broken.window_start_ns == BEGIN_NS + 4 * COLLECT_NS
    assert isinstance(cleared, SlaCleared)
    assert (cleared.kind, cleared.window_start_ns) == ("system sla cleared", BEGIN_NS + 8 * COLLECT_NS)


def test_together_all_links_of_all_members_are_one() -> None:
    system = System(SLAS)
    for member in MEMBERS:
        # One member in three is slow: a third of all delays, where a tenth may be.
        rows = [r for n in range(4) for r in interval(member, MEMBERS, n, nothing, 50 * MS if member == 3 else MS)]
        system.take(member, 1, rows, to_the_end=True)
    judged = system.judge()
    (broken,) = judged.verdicts
    assert isinstance(broken, SlaViolation)
    assert (broken.sla, broken.member, broken.link) == ("all in all", None, 0)
    assert broken.measured == pytest.approx(2 / 3)
    assert [finding.kept for finding, _ in judged.findings] == [Kept.HELD, Kept.VIOLATED, Kept.VIOLATED]


def test_a_window_is_judged_when_the_last_member_is_past_its_end() -> None:
    system = System(SLAS)
    assert not any(judged.findings for judged in feed(system, range(12), nothing, members=(1, 2))[:1])
    slow = System(SLAS, patience_ns=10**12)
    feed(slow, [0], nothing)
    assert not any(judged.findings for judged in feed(slow, range(1, 9), nothing, members=(1, 2)))
    judged = feed(slow, range(1, 9), nothing, members=(3,))
    assert sum(len(each.findings) for each in judged) == 2 + 4


def test_who_is_silent_is_waited_for_so_long_and_no_longer() -> None:
    system = System(SLAS, patience_ns=8 * COLLECT_NS)
    feed(system, [0], nothing)
    judged = feed(system, range(1, 12), nothing, members=(1, 2))
    assert [bool(each.findings) for each in judged].index(True) == 8  # when it is 2 s and an interval behind


def test_who_has_written_more_than_was_read_is_always_waited_for() -> None:
    system = System(SLAS, patience_ns=COLLECT_NS)
    system.take(3, 1, interval(3, MEMBERS, 0, nothing), to_the_end=False)
    assert not any(judged.findings for judged in feed(system, range(20), nothing, members=(1, 2)))


def test_late_rows_are_counted_and_change_nothing() -> None:
    system = System(SLAS, patience_ns=4 * COLLECT_NS)
    feed(system, [0], nothing)
    feed(system, range(1, 20), nothing, members=(1, 2))
    assert system.late == 0
    late = [row for n in range(1, 9) for row in interval(3, MEMBERS, n, lambda *_: 0.9)]
    system.take(3, 1, late, to_the_end=True)
    assert system.late == sum(row.link != 0 for row in late)
    assert not system.judge().verdicts
    assert system.judge().late == system.late


def test_a_member_that_comes_back_is_waited_for_in_its_new_life() -> None:
    system = System(SLAS)
    feed(system, range(4), nothing)
    system.take(3, 2, interval(3, MEMBERS, 6, nothing), to_the_end=True)
    system.take(3, 1, interval(3, MEMBERS, 4, nothing), to_the_end=True)  # the old life's last words
    assert any(judged.findings for judged in feed(system, range(4, 7), nothing, members=(1, 2)))


def test_estimates_of_a_window_by_link() -> None:
    judged = feed(System(SLAS, window_ns=4 * COLLECT_NS), range(4), worse_between(2, 4))[-1]
    assert [(e.member, e.link) for e in judged.estimates] == [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)]
    bad = judged.estimates[2]
    assert bad.loss == pytest.approx(0.1)
    assert (bad.datagrams, bad.layer) == (400, "vbr")
    assert bad.delay_p99_ns == pytest.approx(MS, rel=1 / 32)
    assert (bad.jitter_ns, bad.gamma_ns, bad.loss_burst) == (1e5, 2e5, 0)
    assert judged.network is not None
    assert judged.network.loss == pytest.approx(0.1)  # of the worst link, not of all into one member or from one peer


@pytest.mark.parametrize("cut", range(1, 16))
def test_one_that_goes_on_from_a_state_finds_what_one_that_never_stopped_does(cut: int) -> None:
    loss = worse_between(4, 8)
    whole = verdicts(feed(System(SLAS), range(16), loss))
    first = System(SLAS)
    found = verdicts(feed(first, range(cut), loss))
    second = System(SLAS, state=json.loads(json.dumps(first.state())))
    for member in MEMBERS:
        rows = [r for n in range(cut) for r in interval(member, MEMBERS, n, loss)]
        pending = [r for r in rows if r.window_start_ns + r.window_ns > first.settled_ns]
        second.take(member, 1, pending, to_the_end=True, again=True)
    assert found + verdicts(feed(second, range(cut, 16), loss)) == whole
    assert second.late == 0


def test_a_verdict_is_known_by_what_it_is_about() -> None:
    (broken, cleared) = verdicts(feed(System(SLAS), range(16), worse_between(4, 8)))
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
    assert (alone.kept, alone.link) == (Kept.VIOLATED, 1)
    among, _ = worst_finding(loss, {member: rows(0.04 if member == 3 else 0.02) for member in range(1, 6)}, 0)
    assert among.kept is Kept.HELD
    bad, member = worst_finding(loss, {member: rows(0.06 if member == 3 else 0.02) for member in range(1, 6)}, 0)
    assert (bad.kept, member) == (Kept.VIOLATED, 3)
