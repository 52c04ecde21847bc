"""Paper 002 §3.3 and §3.4: the rules of the reliable multicast protocol, corrected by errata 002-2, -3, -12, -14, -15.

Also the two choices of η (§3.3) and the adaptive time-outs of appendix B (errata 002-4, -6, -16).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, permutations
from math import log
from random import Random

import pytest
from tests.paper.rmcast_group import MS, ORIGINATOR, Broadcast, BroadcastResult, Explorer, Outcome, run_multicast

from unisono.errors import InvalidOption
from unisono.model.delays import ConstantDelay, ExponentialDelay
from unisono.model.policy import Redundancy, RelativeRequirement, eta_of_all, eta_of_one
from unisono.net.rmcast.message import BROADCASTING, DONE, MAXINT, NEVER, NO_COPY, WAITING, ZETA
from unisono.net.rmcast.message import RmcastMessage as Message
from unisono.net.rmcast.message import RmcastRules as Rules
from unisono.net.rmcast.timeouts import FOREVER, ExactOmega, HeuristicOmega

ETA, OMEGA, ZETA_NS = 10 * MS, 3 * MS, 4 * MS
TIMEOUT = ETA + OMEGA


def message(me: int = 3, rho: int = 2, *, last_copy: bool = False, originator: int = 5) -> Message:
    redundancy = Redundancy.of_ns(rho, ETA, OMEGA, last_copy=last_copy)
    return Message(Rules(me, 5, redundancy, lambda eta: ZETA_NS), originator)


def start_of_takeover(m: Message) -> int:
    """Let the time-out expire. Returns the time of the take-over, when ζ ends."""
    assert m.wake(m.deadline) == NO_COPY
    return m.deadline


# -- §3.3 Redundancy -----------------------------------------------------------------------------------------


def test_the_originator_broadcasts_copies_0_to_rho_eta_apart() -> None:
    m = message(me=5, rho=3)
    sent = [(7, m.originate(7))]
    while m.deadline != NEVER:
        sent.append((m.deadline, m.wake(m.deadline)))
    # Erratum 002-12: ρ+1 broadcasts, numbered 0 to ρ.
    assert sent == [(7 + k * ETA, k) for k in range(4)]
    assert m.phase == DONE


def test_rho_0_is_one_broadcast() -> None:
    m = message(me=5, rho=0)
    assert m.originate(0) == 0
    assert m.deadline == NEVER


def test_the_originator_ignores_rebroadcasts() -> None:
    """Erratum 002-14: it does not deliver its own message, and no copy number makes it relinquish."""
    m = message(me=5, rho=3)
    m.originate(0)
    for k in (0, 1, 2, 3):
        assert not m.on_copy(1, k, broadcaster=1)
    assert (m.phase, m.deadline, m.wake(ETA)) == (BROADCASTING, ETA, 1)


# -- §3.3 Responsiveness -------------------------------------------------------------------------------------


def test_a_message_is_delivered_once() -> None:
    m = message()
    assert m.on_copy(0, 1, 5)
    assert not any(m.on_copy(1, k, j) for k in (0, 1, 2) for j in (5, 1, 4))


def test_the_next_copy_from_the_broadcaster_renews_the_timeout() -> None:
    m = message(rho=3)
    m.on_copy(0, 0, 5)
    assert m.deadline == TIMEOUT
    m.on_copy(9, 1, 5)
    assert (m.phase, m.deadline, m.max_recd, m.leader) == (WAITING, 9 + TIMEOUT, 1, 5)


def test_takeover_waits_eta_omega_then_zeta_and_resumes_at_copy_k() -> None:
    m = message(rho=3)
    m.on_copy(0, 1, 5)
    assert m.wake(TIMEOUT) == NO_COPY
    assert (m.phase, m.deadline, m.leader) == (ZETA, TIMEOUT + ZETA_NS, MAXINT)
    sent = []
    while m.deadline != NEVER:
        sent.append((m.deadline, m.wake(m.deadline)))
    start = TIMEOUT + ZETA_NS
    assert sent == [(start, 1), (start + ETA, 2), (start + 2 * ETA, 3)]


def test_zeta_is_drawn_from_eta() -> None:
    drawn_from: list[int] = []

    def zeta(eta: int) -> int:
        drawn_from.append(eta)
        return 1

    m = Message(Rules(3, 5, Redundancy.of_ns(1, ETA, OMEGA), zeta), 5)
    m.on_copy(0, 0, 5)
    m.wake(TIMEOUT)
    assert drawn_from == [ETA]


@pytest.mark.parametrize(("k", "broadcaster"), [(1, 4), (1, 2), (1, 5), (2, 4)])
def test_any_copy_from_k_on_ends_zeta(k: int, broadcaster: int) -> None:
    """Line 21: during ζ a copy from any broadcaster counts."""
    m = message(rho=3)
    m.on_copy(0, 1, 2)
    m.wake(TIMEOUT)
    m.on_copy(TIMEOUT + 1, k, broadcaster)
    assert (m.phase, m.leader, m.deadline) == (WAITING, broadcaster, TIMEOUT + 1 + TIMEOUT)


def test_a_lower_copy_does_not_end_zeta() -> None:
    m = message(rho=3)
    m.on_copy(0, 1, 2)
    m.wake(TIMEOUT)
    m.on_copy(TIMEOUT + 1, 0, 5)
    assert (m.phase, m.deadline) == (ZETA, TIMEOUT + ZETA_NS)


@pytest.mark.parametrize("broadcaster", [5, 1, 4])
def test_the_first_copy_sets_the_timeout_for_any_broadcaster(broadcaster: int) -> None:
    """Erratum 002-2: lines 14 to 16 alone would set none for a copy from another process than the originator."""
    m = message()
    m.on_copy(0, 0, broadcaster)
    assert m.deadline == TIMEOUT


@pytest.mark.parametrize("broadcaster", [5, 2])
def test_copy_rho_ends_the_protocol(broadcaster: int) -> None:
    """Line 13, in every phase."""
    for phase in (WAITING, ZETA, BROADCASTING):
        m = message()
        m.on_copy(0, 0, 5)
        if phase != WAITING:
            takeover_at = start_of_takeover(m)
            if phase == BROADCASTING:
                m.wake(takeover_at)
        assert m.phase == phase
        m.on_copy(100 * MS, 2, broadcaster)
        assert (m.phase, m.deadline) == (DONE, NEVER)
    new = message()
    assert new.on_copy(0, 2, broadcaster)
    assert (new.phase, new.deadline) == (DONE, NEVER)


# -- §3.3 Selection ------------------------------------------------------------------------------------------


def broadcasting(me: int = 3, rho: int = 3) -> Message:
    """A process that has just broadcast copy 1 of the originator's message."""
    m = message(me, rho)
    m.on_copy(0, 1, 5)
    assert m.wake(start_of_takeover(m)) == 1
    return m


@pytest.mark.parametrize("broadcaster", [1, 2, 5])
def test_an_equal_copy_from_a_senior_or_the_originator_relinquishes(broadcaster: int) -> None:
    m = broadcasting()
    m.on_copy(30 * MS, 1, broadcaster)
    assert (m.phase, m.leader, m.deadline) == (WAITING, broadcaster, 30 * MS + TIMEOUT)


def test_an_equal_copy_from_a_junior_does_not_relinquish() -> None:
    m = broadcasting()
    before = m.deadline
    m.on_copy(before - 1, 1, 4)
    assert (m.phase, m.leader, m.deadline) == (BROADCASTING, 3, before)


def test_a_later_copy_from_anyone_relinquishes() -> None:
    m = broadcasting()
    m.on_copy(30 * MS, 2, 4)
    assert (m.phase, m.leader, m.max_recd) == (WAITING, 4, 2)


def test_after_relinquishing_only_seniors_and_later_copies_renew_the_timeout() -> None:
    m = broadcasting(me=4)
    m.on_copy(30 * MS, 1, 3)
    m.on_copy(31 * MS, 1, 3)
    assert m.deadline == 30 * MS + TIMEOUT
    m.on_copy(32 * MS, 1, 2)
    assert (m.leader, m.deadline) == (2, 32 * MS + TIMEOUT)
    m.on_copy(33 * MS, 1, 5)
    assert (m.leader, m.deadline) == (5, 33 * MS + TIMEOUT)
    m.on_copy(34 * MS, 0, 1)
    assert m.deadline == 33 * MS + TIMEOUT
    m.on_copy(35 * MS, 2, 4)
    assert (m.leader, m.deadline) == (4, 35 * MS + TIMEOUT)


def test_a_second_takeover_continues_after_its_last_own_broadcast() -> None:
    """Line 26: max{last_own_bcast + 1, max_recd}."""
    m = broadcasting()
    m.on_copy(30 * MS, 1, 2)
    assert m.wake(start_of_takeover(m)) == 2
    later = broadcasting(rho=4)
    later.on_copy(30 * MS, 3, 2)
    assert later.wake(start_of_takeover(later)) == 3


# -- 002-15: one timer, one Broadcaster ----------------------------------------------------------------------


def test_a_new_timer_cancels_the_old_one_and_a_pending_zeta() -> None:
    m = message(rho=3)
    m.on_copy(0, 0, 5)
    m.wake(TIMEOUT)
    pending = m.deadline
    m.on_copy(pending - 1, 1, 5)
    assert m.deadline == pending - 1 + TIMEOUT
    assert m.phase == WAITING


def test_a_process_broadcasts_each_copy_at_most_once_and_never_closer_than_eta() -> None:
    """The observation at the end of §3.4, in random groups, with ω = 0, the hardest case."""
    redundancy = Redundancy.of_ns(2, ETA, 0)
    for seed in range(300):
        chance = Random(seed)

        def lossy(_: Broadcast, others: list[int], chance: Random = chance) -> BroadcastResult:
            reached = {j: chance.randrange(1, 3 * ETA) for j in others if chance.random() > 0.3}
            return BroadcastResult(reached, crashes=chance.random() < 0.1)

        outcome = run_multicast(6, redundancy, lossy, lambda i, eta, chance=chance: chance.randrange(eta))  # type: ignore[misc]
        by_process: dict[int, list[Broadcast]] = {}
        for b in outcome.broadcasts:
            by_process.setdefault(b.broadcaster, []).append(b)
        for broadcasts in by_process.values():
            for first, second in pairwise(broadcasts):
                assert second.copy > first.copy
                assert second.at - first.at >= ETA
        # The bound on kept state depends on this: nothing happens after the lifetime of a message.
        assert outcome.ended_ns <= redundancy.message_lifetime_ns(6, 3 * ETA)


# -- 002-2 and 002-3: counterexamples ------------------------------------------------------------------------


def chain_of_crashes(redundancy: Redundancy) -> Outcome:
    """Process 1 reaches only 2 and crashes; 2 takes over, reaches only 3 and crashes; 3 and 4 are correct."""

    def result_of(b: Broadcast, others: list[int]) -> BroadcastResult:
        if b.broadcaster == 1:
            return BroadcastResult({2: MS}, crashes=True)
        if b.broadcaster == 2:
            return BroadcastResult({3: MS}, crashes=True)
        return BroadcastResult(dict.fromkeys(others, MS))

    return run_multicast(4, redundancy, result_of, lambda i, eta: eta // 2)


def test_002_2_after_two_crashes_in_a_row_all_processes_have_the_message() -> None:
    outcome = chain_of_crashes(Redundancy.of_ns(1, ETA, OMEGA))
    assert set(outcome.delivered) == {1, 2, 3, 4}
    assert [(b.broadcaster, b.copy) for b in outcome.broadcasts] == [(1, 0), (2, 0), (3, 0), (3, 1)]


def last_copy_only(redundancy: Redundancy) -> Outcome:
    """The originator's copy 0 is lost on all links. It crashes during copy 1 = ρ, which reaches only process 2."""

    def result_of(b: Broadcast, others: list[int]) -> BroadcastResult:
        if b.broadcaster == 1:
            return BroadcastResult({2: MS} if b.copy == 1 else {}, crashes=b.copy == 1)
        return BroadcastResult(dict.fromkeys(others, MS))

    return run_multicast(4, redundancy, result_of, lambda i, eta: eta * (5 - i) // 5)


def test_002_3_a_process_with_only_copy_rho_rebroadcasts_with_last_copy() -> None:
    silent = last_copy_only(Redundancy.of_ns(1, ETA, OMEGA))
    assert set(silent.delivered) == {1, 2}
    assert not silent.is_uniform(4)
    repeated = last_copy_only(Redundancy.of_ns(1, ETA, OMEGA, last_copy=True))
    assert set(repeated.delivered) == {1, 2, 3, 4}
    # 3 and 4 receive copy ρ first from 2. Both wait to broadcast it, and the first of them to do so stops the other.
    assert [(b.broadcaster, b.copy) for b in repeated.broadcasts] == [(1, 0), (1, 1), (2, 1), (4, 1)]


def test_002_3_another_broadcaster_of_copy_rho_ends_the_wait_but_a_duplicate_does_not() -> None:
    m = message(last_copy=True)
    m.on_copy(0, 2, 5)
    m.on_copy(1, 2, 5)
    assert (m.phase, m.deadline) == (WAITING, TIMEOUT)
    m.on_copy(2, 2, 4)
    assert m.phase == DONE


# -- agreement, exhaustively ---------------------------------------------------------------------------------


def subsets(members: list[int]) -> list[tuple[int, ...]]:
    return [chosen for size in range(len(members), -1, -1) for chosen in combinations(members, size)]


@dataclass(frozen=True)
class Budget:
    """How many processes may crash, and how many copies may be lost or late."""

    crashes: int
    losses: int = 0
    late: int = 0
    """Late copies arrive after every time-out has expired."""


LATE = 4 * TIMEOUT


def explore(
    n: int, redundancy: Redundancy, budget: Budget, takeover_order: Sequence[int], originator: int
) -> dict[str, int]:
    """Try all combinations of lost and late copies and crashed broadcasters within the budget.

    `takeover_order` is the order in which receivers that time out together take over; it determines ζ.
    """
    explorer, counts = Explorer(), {"runs": 0, "out of reach": 0, "disagreements": 0}

    def zeta(i: int, eta: int) -> int:
        return eta * (takeover_order.index(i) + 1) // (n + 2)

    for _ in explorer.paths():
        left = [budget.crashes, budget.losses, budget.late]

        def result_of(b: Broadcast, others: list[int], left: list[int] = left) -> BroadcastResult:
            options = []
            for reached in subsets(others):
                missed = len(others) - len(reached)
                if missed <= left[1]:
                    options.append((reached, False))
                if left[0]:
                    options.append((reached, True))
            reached, crash = options[explorer.choose(len(options))]
            left[0] -= crash
            left[1] -= 0 if crash else len(others) - len(reached)
            late_options = [late for late in subsets(list(reached)) if len(late) <= left[2]]
            late = late_options[explorer.choose(len(late_options))]
            left[2] -= len(late)
            return BroadcastResult({j: LATE if j in late else MS for j in reached}, crash)

        outcome = run_multicast(n, redundancy, result_of, zeta, originator)
        counts["runs"] += 1
        assert outcome.ended_ns <= redundancy.message_lifetime_ns(n, LATE if budget.late else MS)
        within_reach = outcome.finishers_reached_all(n, redundancy.rho)
        if within_reach and redundancy.adaptive in ("none", "heuristic"):
            assert outcome.is_uniform(n), outcome
        counts["out of reach"] += not within_reach
        counts["disagreements"] += not outcome.is_uniform(n)
        if not budget.losses and redundancy.adaptive in ("none", "heuristic"):
            # Crashes alone cause no disagreement: a process that starts copy ρ has completed a broadcast before.
            assert outcome.is_uniform(n), outcome
    return counts


def takeover_orders(n: int, originator: int) -> list[tuple[int, ...]]:
    """Every order in which the receivers can take over."""
    return [
        (*takeover_order, originator)
        for takeover_order in permutations([i for i in range(1, n + 1) if i != originator])
    ]


@pytest.mark.parametrize("originator", [1, 2, 3])
@pytest.mark.parametrize(
    ("rho", "budget"),
    [
        (1, Budget(2, 2)),
        (2, Budget(2, 1)),
        (1, Budget(2, 0, 3)),
        (2, Budget(2, 0, 1)),
        pytest.param(2, Budget(2, 2), marks=pytest.mark.slow),
        pytest.param(2, Budget(2, 0, 2), marks=pytest.mark.slow),
    ],
)
def test_agreement_among_three_for_all_crashes(rho: int, budget: Budget, originator: int) -> None:
    """The originator, of any seniority, and all later broadcasters crash at every copy, with every set of receivers,
    in every order of take-over.

    Agreement: all correct processes have the message, or none of them. It holds if every process that starts copy ρ
    reaches every correct process with one of its copies.
    """
    disagreements = 0
    for takeover_order in takeover_orders(3, originator):
        counts = explore(3, Redundancy.of_ns(rho, ETA, OMEGA), budget, takeover_order, originator)
        assert counts["runs"] > 100
        disagreements += counts["disagreements"]
    if budget.losses > 1:
        assert disagreements > 0  # the condition is necessary


@pytest.mark.parametrize("originator", [1, 2, pytest.param(3, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize(
    ("rho", "budget"),
    [(1, Budget(3)), pytest.param(2, Budget(3), marks=pytest.mark.slow), (1, Budget(2, 1))],
)
def test_agreement_among_four_for_all_crashes(rho: int, budget: Budget, originator: int) -> None:
    orders = takeover_orders(4, originator)
    for takeover_order in orders if rho == 1 and not budget.losses else (orders[0], orders[-1]):
        assert explore(4, Redundancy.of_ns(rho, ETA, OMEGA), budget, takeover_order, originator)["runs"] > 1000


@pytest.mark.parametrize("takeover_order", [(2, 3, 1), (3, 2, 1)])
@pytest.mark.parametrize("rho", [1, 2])
def test_the_heuristic_keeps_agreement(rho: int, takeover_order: tuple[int, ...]) -> None:
    """Its ω is longer but finite: processes that have the message still take over."""
    explore(3, Redundancy.of_ns(rho, ETA, OMEGA, "heuristic"), Budget(2, 1), takeover_order, 1)
    explore(4, Redundancy.of_ns(1, ETA, OMEGA, "heuristic"), Budget(2), (*takeover_order[:2], 4, 1), 1)


def test_counting_tolerates_exactly_rho_plus_1_crashes_during_a_broadcast() -> None:
    """Of ρ+2 known broadcasts, at most one per crashed process is incomplete: its last one."""
    counting = Redundancy.of_ns(1, ETA, OMEGA, "counting")
    for takeover_order in ((2, 3, 4, 5, 1), (5, 4, 3, 2, 1)):
        assert explore(5, counting, Budget(2), takeover_order, 1)["disagreements"] == 0
    reached = {1: {2, 3, 4}, 2: {3, 4}, 3: {4}}

    def incomplete(b: Broadcast, others: list[int]) -> BroadcastResult:
        return BroadcastResult(
            dict.fromkeys(sorted(reached.get(b.broadcaster, others)), MS), crashes=b.broadcaster in reached
        )

    three_crashed = run_multicast(5, counting, incomplete, lambda i, eta: eta * i // 7)
    assert set(three_crashed.delivered) == {1, 2, 3, 4}, "4 knows of three broadcasts, and 5 of none"
    assert set(
        run_multicast(5, replace(counting, adaptive="none"), incomplete, lambda i, eta: eta * i // 7).delivered
    ) == {*range(1, 6)}


def test_the_exact_rule_may_rely_on_a_crashed_originator() -> None:
    """ω = ∞ by (9) assumes that the originator's broadcast was complete."""
    relative = RelativeRequirement(0.8, 40 * MS, 0.001, NETWORK)
    rule = Redundancy.of_ns(1, ETA, OMEGA, "exact", relative)
    outcome = run_multicast(
        3, rule, lambda b, o: BroadcastResult({2: MS}, crashes=b.broadcaster == 1), lambda i, eta: eta // 2
    )
    assert not outcome.is_uniform(3)


# -- §3.3: the two choices of η ------------------------------------------------------------------------------


def test_eta_from_one_delay_and_from_the_largest_of_all() -> None:
    delay = ExponentialDelay(MS)
    assert eta_of_one(delay, 0.99) == pytest.approx(-MS * log(1 - 0.99), abs=1)
    assert eta_of_one(delay, 0.99) / MS == pytest.approx(4.6, abs=0.01)  # §5.2
    assert eta_of_all(delay, 0.99, 50) == pytest.approx(-MS * log(1 - 0.99 ** (1 / 49)), abs=1)
    assert eta_of_all(delay, 0.99, 2) == eta_of_one(delay, 0.99)


def test_invalid_redundancy_is_refused_with_its_field() -> None:
    bad: dict[str, Callable[[], object]] = {
        "redundancy.rho": lambda: Redundancy.of_ns(-1, ETA),
        "redundancy.eta": lambda: Redundancy.of_ns(1, 0),
        "redundancy.omega": lambda: Redundancy.of_ns(1, ETA, -1),
        "redundancy.adaptive": lambda: Redundancy.of_ns(1, ETA, adaptive="often"),  # type: ignore[arg-type]
        "redundancy.relative": lambda: Redundancy.of_ns(1, ETA, adaptive="exact"),
        "relative.success": lambda: RelativeRequirement(1.0, MS, 0.1, ConstantDelay(1)),
        "relative.within": lambda: RelativeRequirement(0.9, 0, 0.1, ConstantDelay(1)),
        "relative.loss": lambda: RelativeRequirement(0.9, MS, 1.0, ConstantDelay(1)),
        "alpha": lambda: eta_of_one(ConstantDelay(1), 1.0),
        "members": lambda: eta_of_all(ConstantDelay(1), 0.9, 1),
    }
    for field, make in bad.items():
        with pytest.raises(InvalidOption) as refused:
            make()
        assert refused.value.field == field


# -- appendix B: adaptive time-outs --------------------------------------------------------------------------

NETWORK = ExponentialDelay(MS)
PAPER = RelativeRequirement(0.8, 20 * MS, 0.05, NETWORK)


def exact(rho: int = 2, omega: int = 0, relative: RelativeRequirement = PAPER) -> ExactOmega:
    return ExactOmega(Redundancy.of_ns(rho, 4_600_000, omega, "exact", relative), relative, 50)


def success(rule: ExactOmega, k: int, left: int, omega: int) -> float:
    """u_k(S) by (7)."""
    return float((1 - rule.missed_from_originator(k, left) * rule.missed_from_this_process(k, left, omega)) ** 48)


@pytest.mark.parametrize("k", [0, 1])
def test_the_exact_rule_takes_the_largest_omega_that_keeps_the_requirement(k: int) -> None:
    """(11) with >= (002-6): the result meets U, and a nanosecond more does not; (9) gives ∞."""
    results = set()
    for left in range(MS, 40 * MS, 700_000):
        rule = exact()
        rounded = left // rule._step_ns * rule._step_ns  # the remaining part of S is rounded down
        omega = rule.largest_omega(k, left)
        if (1 - rule.missed_from_originator(k, rounded)) ** 48 >= 0.8:
            assert omega == FOREVER
            results.add("∞")
        elif omega > 0:
            assert success(rule, k, rounded, omega) >= 0.8 > success(rule, k, rounded, omega + 1)
            results.add("larger")
        else:
            assert success(rule, k, rounded, 1) < 0.8
            results.add("negotiated")
    assert results >= ({"∞", "negotiated"} if k else {"larger", "negotiated"})


def test_the_exact_rule_never_goes_below_the_negotiated_omega() -> None:
    rule = exact(omega=5 * MS)
    assert min(rule.largest_omega(0, left) for left in range(-MS, 30 * MS, 700_000)) == 5 * MS


def test_with_infinite_omega_a_process_does_not_take_over_until_the_next_copy() -> None:
    relative = RelativeRequirement(0.8, 40 * MS, 0.001, NETWORK)
    redundancy = Redundancy.of_ns(3, ETA, OMEGA, "exact", relative)
    m = Message(Rules(3, 5, redundancy, lambda eta: ZETA_NS), 5)
    m.on_copy(0, 1, 5)
    assert (m.phase, m.deadline) == (WAITING, NEVER)
    m.on_copy(45 * MS, 2, 5)  # S is over: the negotiated ω
    assert m.deadline == 45 * MS + TIMEOUT


def test_the_exact_rule_measures_s_from_the_first_copy() -> None:
    rule = exact()
    assert rule.next_omega(0, 0, 1, 7 * MS, True) == rule.largest_omega(1, 13 * MS)


def test_g_tilde_is_1_at_rho_by_definition() -> None:
    """Erratum 002-4."""
    assert exact().missed_from_this_process(2, 10**12, 0) == 1.0


def test_heuristic_missed_copies_lengthen_omega() -> None:
    m = Message(Rules(3, 5, Redundancy.of_ns(3, ETA, OMEGA, "heuristic"), lambda eta: ZETA_NS), 5)
    m.on_copy(0, 2, 5)
    assert m.deadline == TIMEOUT + 2 * ETA
    m.on_copy(5, 2, 5)
    assert m.deadline == 5 + TIMEOUT + 2 * ETA


def test_heuristic_copy_1_on_time_lengthens_omega_once() -> None:
    m = Message(Rules(3, 5, Redundancy.of_ns(3, ETA, OMEGA, "heuristic"), lambda eta: ZETA_NS), 5)
    m.on_copy(0, 0, 5)
    assert m.deadline == TIMEOUT
    m.on_copy(1, 1, 4)
    assert m.deadline == 1 + TIMEOUT + ETA
    m.on_copy(2, 1, 5)
    m.on_copy(3, 2, 5)
    assert m.deadline == 3 + TIMEOUT + ETA


def test_heuristic_copy_1_during_zeta_does_not_count() -> None:
    """Erratum 002-16: the paper's text says "before the timeout expires"."""
    m = Message(Rules(3, 5, Redundancy.of_ns(3, ETA, OMEGA, "heuristic"), lambda eta: ZETA_NS), 5)
    m.on_copy(0, 0, 5)
    m.wake(TIMEOUT)
    m.on_copy(TIMEOUT + 1, 1, 5)
    assert m.deadline == TIMEOUT + 1 + TIMEOUT
    assert HeuristicOmega(Redundancy.of_ns(3, ETA, OMEGA, "heuristic")).next_omega(OMEGA, 0, 1, 5, False) == OMEGA


def test_without_faults_the_originator_reaches_all_processes() -> None:
    outcome = run_multicast(
        5, Redundancy.of_ns(2, ETA, OMEGA), lambda b, o: BroadcastResult(dict.fromkeys(o, MS)), lambda i, eta: eta // 2
    )
    assert [(b.broadcaster, b.copy) for b in outcome.broadcasts] == [(ORIGINATOR, k) for k in range(3)]
    assert set(outcome.delivered) == {1, 2, 3, 4, 5}
