"""One rule of each order is broken at one member, and the swarm must find it: otherwise a passing swarm proves nothing.

The bug is put into the order's own class and acts at one member only (at all of them where others would make up for it,
and for forward error correction, whose layer does not know where it is). It has to be seen in one of the first seeds,
by the checker of the claim that it breaks, with a witness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from tests.simulation.test_orders_swarm import judged, problems
from tests.worlds.unchecked import unchecked_members

from unisono.check.verdict import Status
from unisono.model.scenario import Scenario
from unisono.model.units import NS_PER_MS, NS_PER_S
from unisono.net.fec.layer import Fec
from unisono.orders.cbr.order import CbrOrder
from unisono.orders.cbr.turns import period_ns
from unisono.orders.leader.broadcast import LeaderBroadcast
from unisono.orders.leader.election import LeaderElection
from unisono.orders.leader.timestamp import TimestampLeader
from unisono.orders.vbr.failures import VbrGaps
from unisono.orders.vbr.order import VbrOrder
from unisono.sim.member import PayloadMismatch
from unisono.sim.swarm.orders import KINDS, any_order
from unisono.wire.frame import END_OF_SLOT

FOREVER_NS = 60 * NS_PER_S
TRIED = 40
"""At most this many scenarios of the order are run; the first that shows the bug is enough."""

Rule = Callable[..., Any]


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """A member with a planted defect goes on: these tests judge what the checkers of traces find."""
    with unchecked_members():
        yield


@dataclass(frozen=True)
class Planted:
    """A bug in one method of an order: `broken` replaces the method and gets the original as its first argument."""

    kind: str
    where: type
    method: str
    broken: Rule
    seen_by: str
    leads: bool = False
    """At the first member, which leads, instead of the last."""
    everywhere: bool = False
    """At all members, because a correct member may repair the mistake of another."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.broken.__name__}"


def scenarios(kind: str) -> list[Scenario]:
    first = KINDS.index(kind)
    return [any_order(first + number * len(KINDS)) for number in range(TRIED)]


def plant(monkeypatch: pytest.MonkeyPatch, bug: Planted, member: int) -> None:
    """At this member only, if the object knows its member."""
    right = getattr(bug.where, bug.method)

    def rule(self: Any, *given: Any, **named: Any) -> Any:
        policy = getattr(self, "_policy", None)
        me = getattr(self, "member", None) if policy is None else policy.member
        if me is None or me == member or bug.everywhere:
            return bug.broken(right, self, *given, **named)
        return right(self, *given, **named)

    monkeypatch.setattr(bug.where, bug.method, rule)


# -- CBR -----------------------------------------------------------------------------------------------------------


def skips_the_tie_break(right: Rule, self: CbrOrder, now: int) -> None:
    """Of turns due at the same instant, that of the higher member comes first."""
    right(self, now)
    turns = [(Fraction(self.porder[:at].count(m), self.rate[m]), -m, m) for at, m in enumerate(self.porder)]
    self.porder = tuple(m for _, _, m in sorted(turns))


def takes_everybody_by_turns(right: Rule, self: CbrOrder, now: int) -> None:
    """One message of each member, regardless of its rate, which according to §4.1 does not work."""
    right(self, now)
    turns = [(self.porder[:at].count(m), m) for at, m in enumerate(self.porder)]
    self.porder = tuple(m for _, m in sorted(turns))


def forgets_the_dummy(right: Rule, self: CbrOrder, now: int) -> None:
    """Sends nothing in a turn without queued messages."""
    dummy, before = self._squeue is None, len(self.down)
    right(self, now)
    if dummy:
        del self.down[before:]


def sends_a_period_late(right: Rule, self: CbrOrder) -> int:
    """At the end of its period, as figure 4 sends its dummies (000-6)."""
    return int(right(self)) + period_ns(self._renegotiation.rate)


# -- VBR -----------------------------------------------------------------------------------------------------------


def serves_the_last_member_first(right: Rule, self: VbrOrder, now: int) -> None:
    object.__setattr__(self.view, "members", tuple(sorted(self.view.members)))
    right(self, now)
    object.__setattr__(self.view, "members", self.view.members[::-1])


def does_not_wait_for_the_mark(right: Rule, self: VbrOrder, now: int, sender: int) -> bool:
    """Delivers at the end of the slot without waiting: late messages are lost or delivered out of order."""
    return now >= self.grid.end_of(self._deliver_slot)


def forgets_the_mark_of_an_empty_slot(right: Rule, self: VbrOrder, *given: Any) -> None:
    before = len(self.down)
    right(self, *given)
    if self.down[before:] and self.down[-1].packed_messages is None and not self.down[-1].body:
        del self.down[before:]


def sends_in_the_next_slot(right: Rule, self: VbrOrder, *given: Any) -> None:
    """Every message belongs to the slot after the one in which it was submitted."""
    self._send_slot += 1
    right(self, *given)
    self._send_slot -= 1


def forgets_a_batch(right: Rule, self: VbrOrder, sender: int, frames: Any) -> None:
    """Leaves out the messages of the first member in every fifth slot."""
    before, index, count = len(self.events), self._index, self._count
    right(self, sender, frames)
    if self._deliver_slot % 5 == 0 and sender == self.view.members[0]:
        del self.events[before:]
        self._index, self._count = index, count


# -- VBR with failures ---------------------------------------------------------------------------------------------


def forgets_the_time_out(right: Rule, self: VbrGaps) -> int:
    """Waits for crashed members for ever."""
    return int(right(self)) + FOREVER_NS


def waits_a_slot_longer(right: Rule, self: VbrGaps) -> int:
    return int(right(self)) + self._policy.timing.theta_ns


def gives_up_early(right: Rule, self: VbrGaps) -> int:
    """At the slot's end by its own clock."""
    return self.grid.end_of(self._deliver_slot)


def counts_what_it_delivered(right: Rule, self: VbrGaps, sender: int, frames: Any) -> None:
    """Numbers only the messages that arrived, so a gap shifts the numbers of all later messages."""
    self.gap_stable_places = False
    right(self, sender, frames)


# -- leaders -------------------------------------------------------------------------------------------------------


def delivers_the_newest_first(right: Rule, self: LeaderBroadcast, now: int) -> None:
    accepted = self.election.stream.accepted
    if len(accepted) >= 2 and accepted[0].entry_type is accepted[1].entry_type:
        accepted[0], accepted[1] = accepted[1], accepted[0]
    right(self, now)


def collects_before_it_delivers(right: Rule, self: LeaderBroadcast, now: int) -> None:
    """Three entries at a time, in the order of their senders."""
    accepted = self.election.stream.accepted
    if len(accepted) < 3:
        return
    entries = sorted(accepted, key=lambda entry: (entry.entry_type.value, entry.origin, entry.position))
    accepted.clear()
    accepted.extend(entries)
    right(self, now)


def holds_on_too_long(right: Rule, self: LeaderBroadcast, *given: Any) -> None:
    """As leader, needs much more than p per message."""
    self._leader_hold_ns = self._policy.processing_ns + 4 * self._timing.theta_ns + 40 * NS_PER_MS
    right(self, *given)


def does_not_send_again(right: Rule, self: LeaderBroadcast, now: int) -> None:
    """Messages lost with the leader are not sent again."""


def never_suspects(right: Rule, self: LeaderElection) -> int:
    """The next candidate waits for the crashed leader instead."""
    return int(right(self)) + FOREVER_NS


def forgets_the_release(right: Rule, self: TimestampLeader, now: int) -> bool:
    """Unused timestamps are not returned."""
    opened = bool(right(self, now))
    if self._request_closes_at is not None:
        self._request_closes_at += FOREVER_NS
    return opened


def releases_late(right: Rule, self: TimestampLeader, now: int) -> bool:
    """After twice the longest time that a message may take."""
    opened = bool(right(self, now))
    if self._request_closes_at is not None:
        self._request_closes_at += 2 * self.bound_ns()
    return opened


def does_not_wait_for_a_grants_frames(right: Rule, self: TimestampLeader, grant: Any) -> bool:
    right(self, grant)
    return True


# -- forward error correction --------------------------------------------------------------------------------------


def does_not_reconstruct(right: Rule, self: Fec, share: Any, shares: Any) -> None:
    """Lost datagrams are not recovered."""


def sends_no_redundancy(right: Rule, self: Fec, now: int, count: int, flags: int) -> None:
    before = len(self.down)
    right(self, now, count, flags)
    del self.down[before + count :]


def loses_the_end_bit(right: Rule, self: Fec, now: int, count: int, flags: int) -> None:
    """The last block of a slot lacks the end-of-slot mark."""
    if flags & END_OF_SLOT:
        self._waiting[:] = self._waiting[:-1] or self._waiting
        count = len(self._waiting)
    right(self, now, count, flags)


PLANTED = [
    Planted("cbr", CbrOrder, "_start_deliver", skips_the_tie_break, "total_order"),
    Planted("cbr", CbrOrder, "_start_deliver", takes_everybody_by_turns, "total_order"),
    Planted("cbr", CbrOrder, "_send_turn", forgets_the_dummy, "gap_freedom"),
    Planted("cbr", CbrOrder, "_own_turn_due_ns", sends_a_period_late, "latency"),
    Planted("vbr", VbrOrder, "_finish_slot", serves_the_last_member_first, "total_order"),
    Planted("vbr", VbrOrder, "_timed_out", does_not_wait_for_the_mark, "gap_freedom"),
    Planted("vbr", VbrOrder, "_close_slot", forgets_the_mark_of_an_empty_slot, "gap_freedom"),
    Planted("vbr", VbrOrder, "_send_frame", sends_in_the_next_slot, "gap_freedom"),
    Planted("vbr", VbrOrder, "_deliver", forgets_a_batch, "gap_freedom"),
    Planted("vbr with failures", VbrGaps, "_finish_slot", serves_the_last_member_first, "total_order"),
    Planted("vbr with failures", VbrGaps, "_late_at", forgets_the_time_out, "latency"),
    Planted("vbr with failures", VbrGaps, "_late_at", waits_a_slot_longer, "latency"),
    Planted("vbr with failures", VbrGaps, "_deliver", forgets_a_batch, "gaps_explained"),
    Planted("vbr with failures", VbrGaps, "_deliver", counts_what_it_delivered, "total_order"),
    Planted("leader", LeaderBroadcast, "_deliver_accepted", delivers_the_newest_first, "total_order"),
    Planted("leader", LeaderBroadcast, "_deliver_accepted", collects_before_it_delivers, "total_order"),
    Planted("leader", LeaderBroadcast, "_on_frame", holds_on_too_long, "latency", leads=True),
    Planted("leader", LeaderBroadcast, "_resend_pending", does_not_send_again, "latency"),
    Planted("leader", LeaderElection, "_become_candidate_at", never_suspects, "gap_freedom", everywhere=True),
    Planted("timestamp", TimestampLeader, "_deliver_grant", does_not_wait_for_a_grants_frames, "gap_freedom"),
    Planted("timestamp", TimestampLeader, "_open_request", forgets_the_release, "gap_freedom"),
    Planted("timestamp", TimestampLeader, "_open_request", releases_late, "latency"),
    Planted("timestamp", LeaderElection, "_become_candidate_at", never_suspects, "gap_freedom", everywhere=True),
    Planted("vbr with fec", Fec, "_reconstruct", does_not_reconstruct, "gap_freedom"),
    Planted("vbr with fec", Fec, "_send_block", sends_no_redundancy, "gap_freedom"),
    Planted("vbr with fec", Fec, "_send_block", loses_the_end_bit, "gap_freedom"),
]


@pytest.mark.parametrize("bug", PLANTED, ids=str)
def test_a_broken_rule_is_found_with_a_witness(bug: Planted) -> None:
    for scenario in scenarios(bug.kind):
        with pytest.MonkeyPatch.context() as monkeypatch:
            plant(monkeypatch, bug, scenario.members[0 if bug.leads else -1])
            try:
                _, verdicts = judged(scenario)
            except PayloadMismatch:
                continue
        verdict = verdicts.get(bug.seen_by)
        if verdict is not None and verdict.status is Status.VIOLATED:
            assert verdict.witness is not None
            assert verdict.witness.text
            assert verdict.count > 0
            return
    pytest.fail(f"none of {TRIED} runs shows it: {bug}")


def test_a_member_that_suspects_others_too_early_is_found() -> None:
    """The trace explains such gaps; only the swarm knows that the suspected senders are up."""
    bug = Planted("vbr with failures", VbrGaps, "_late_at", gives_up_early, "")
    found: list[str] = []
    for scenario in scenarios(bug.kind):
        with pytest.MonkeyPatch.context() as monkeypatch:
            plant(monkeypatch, bug, scenario.members[0 if bug.leads else -1])
            found += problems(scenario)
        if any("gaps of senders that are alive" in text for text in found):
            return
    pytest.fail(f"none of {TRIED} runs shows it: {found}")
