"""Members check safety invariants at run time. For each one, a planted defect stops the member with a named error."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.joining import memory_network
from tests.worlds.unchecked import RUNTIME_CHECKS, unchecked_members

import unisono
from unisono import testing
from unisono.agreement.membership.messages import NextView
from unisono.agreement.membership.views import Membership
from unisono.agreement.paxos.acceptor import Acceptor
from unisono.agreement.paxos.consensus import CandidateState, Consensus, LeaderState
from unisono.errors import InvariantViolated
from unisono.model.message_set import MessageRange
from unisono.model.text.scenario import parse_scenario
from unisono.orders.cbr.order import CbrOrder
from unisono.orders.final.agreement import AgreedRange, FinalLog
from unisono.orders.final.order import FinalOrder
from unisono.orders.leader.base import LeaderOrderBase
from unisono.orders.leader.election import StreamMembership
from unisono.orders.leader.stream import OrderedStream, StreamEntry
from unisono.orders.packing import Pacer
from unisono.orders.vbr.order import VbrOrder
from unisono.sim.run import run

ROOT = Path(__file__).parents[2]
Rule = Callable[..., Any]


@dataclass(frozen=True)
class Defect:
    """A defect in one method: `broken` replaces it and gets the original as its first argument."""

    invariant: str
    scenario: str
    where: type
    method: str
    broken: Rule

    def __str__(self) -> str:
        return f"{self.invariant}: {self.broken.__name__}"


def campaigns_with_an_old_ballot(right: Rule, self: Consensus, now: int, candidate: CandidateState) -> None:
    if len(candidate.would_promise) >= self.majority:
        candidate.ballot = -1
    right(self, now, candidate)


def promises_more_than_it_says(right: Rule, self: Acceptor, ballot: int) -> None:
    right(self, ballot)
    self.promised += 1 << 40


def accepts_after_a_gap(right: Rule, self: Acceptor, k: int, ballot: int, value: bytes) -> None:
    right(self, k + (k == 3), ballot, value)


def accepts_again(right: Rule, self: Acceptor, upto: int) -> None:
    """A value is accepted for an instance that is decided."""
    right(self, upto)
    self.accept(upto, self.promised, b"another value")


def counts_too_many_acceptances(right: Rule, self: LeaderState, member: int, upto: int, decided: int, now: int) -> None:
    right(self, member, upto, decided, now)
    self._accepted_upto[member] += 5


def reports_a_decision_twice(right: Rule, self: Consensus) -> None:
    before = len(self.decisions)
    right(self)
    self.decisions += self.decisions[before:][-1:]


def skips_a_view(right: Rule, self: Membership, now: int, view_id: int, next_view: NextView, decided: bytes) -> None:
    right(self, now, view_id + (view_id > 1), next_view, decided)


def installs_a_view_without_itself(right: Rule, self: Membership, now: int, view_id: int, members: Any) -> None:
    right(self, now, view_id, {m: i for m, i in members.items() if m != self.me} if view_id > 1 else members)


def gives_positions_twice(right: Rule, self: FinalLog, k: int, message_range: MessageRange) -> list[AgreedRange]:
    agreed: list[AgreedRange] = right(self, k, message_range)
    self.message_count -= bool(agreed)
    return agreed


def takes_a_term_back(right: Rule, self: StreamMembership, term: int, member: int) -> int:
    return -1


def leaves_a_hole(right: Rule, self: OrderedStream, *given: Any) -> StreamEntry:
    entry: StreamEntry = right(self, *given)
    return replace(entry, position=entry.position + (entry.position > 4))


def counts_a_delivery_twice(right: Rule, self: LeaderOrderBase | FinalOrder, *given: Any) -> None:
    right(self, *given)
    self._index += 1


def adds_a_turn(right: Rule, self: CbrOrder) -> None:
    self.porder += self.porder[:1]
    right(self)


def closes_a_slot_twice(right: Rule, self: VbrOrder, *given: Any) -> None:
    right(self, *given)
    right(self, *given)


def serves_the_last_member_first(right: Rule, self: VbrOrder, now: int) -> None:
    object.__setattr__(self.view, "members", tuple(sorted(self.view.members)))
    right(self, now)
    object.__setattr__(self.view, "members", self.view.members[::-1])


DEFECTS = [
    Defect("promise", "consensus_dies", Consensus, "_advance_candidacy", campaigns_with_an_old_ballot),
    Defect("accept", "consensus_dies", Acceptor, "promise", promises_more_than_it_says),
    Defect("accept", "consensus_dies", Acceptor, "accept", accepts_after_a_gap),
    Defect("accept", "consensus_dies", Acceptor, "decide", accepts_again),
    Defect("decide", "consensus_dies", LeaderState, "on_accepted", counts_too_many_acceptances),
    Defect("log", "consensus_dies", Consensus, "_report_decisions", reports_a_decision_twice),
    Defect("view", "priority_churn", Membership, "_install_next_view", skips_a_view),
    Defect("view", "priority_churn", Membership, "_begin_view", installs_a_view_without_itself),
    Defect("final", "cbr_grades", FinalLog, "_finalize", gives_positions_twice),
    Defect("promise", "leader_dies", StreamMembership, "next_term_of", takes_a_term_back),
    Defect("stream", "leader_dies", OrderedStream, "next_entry", leaves_a_hole),
    Defect("index", "leader_dies", LeaderOrderBase, "_deliver", counts_a_delivery_twice),
    Defect("index", "vbr_grades", FinalOrder, "_deliver", counts_a_delivery_twice),
    Defect("porder", "cbr_quickstart", CbrOrder, "_finish_cycle", adds_a_turn),
    Defect("end of slot", "vbr_quickstart", VbrOrder, "_close_slot", closes_a_slot_twice),
    Defect("order", "vbr_quickstart", VbrOrder, "_finish_slot", serves_the_last_member_first),
]


def run_with(defect: Defect) -> None:
    """Run the scenario with the defect at all members."""
    path = ROOT / "scenarios" / f"{defect.scenario}.toml"
    right = getattr(defect.where, defect.method)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(defect.where, defect.method, lambda *given: defect.broken(right, *given))
        run(parse_scenario(path.read_text(encoding="utf-8"), str(path)), 1)


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_a_planted_defect_stops_the_run_with_a_named_error(defect: Defect) -> None:
    with pytest.raises(InvariantViolated) as stopped:
        run_with(defect)
    assert stopped.value.invariant == defect.invariant
    assert stopped.value.member > 0
    assert stopped.value.expected != stopped.value.found


@pytest.mark.parametrize("defect", [DEFECTS[-1]], ids=str)
def test_without_the_checks_a_wrong_member_goes_on(defect: Defect) -> None:
    with unchecked_members():
        run_with(defect)


def test_a_member_that_stops_sends_no_more_and_its_calls_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts more messages in a slot than it has reserved bandwidth for."""

    async def part() -> None:
        async with memory_network(members=2, rate=unisono.Rate(avg=100, burst=2), failures=True) as net:
            await net[1].send(b"first")
            await testing.deliveries(net[1], 1)
            with monkeypatch.context() as planted:
                planted.setattr(Pacer, "messages_left", lambda _: 1 << 20)
                with pytest.raises(InvariantViolated, match="at most 2 messages") as stopped:
                    await net[1].send_many([b"x"] * 50)
            assert (stopped.value.invariant, stopped.value.member) == ("reservation", 1)
            net.cut(1, 2, one_way=True)  # a datagram that it still sends is counted as lost
            with pytest.raises(InvariantViolated):
                await testing.deliveries(net[1], 1)
            with pytest.raises(InvariantViolated):
                await net[1].send(b"more")
            await asyncio.sleep(5)
            assert net.lost == 0
            assert net[2].members == (2,), "the other member goes on without it"
            assert await net[1].leave() is False

    testing.run(part())


def test_a_defect_in_a_request_of_the_application_stops_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    async def part() -> None:
        async with memory_network(members=2) as net:
            await net[1].send(b"first")
            await testing.deliveries(net[1], 1)
            monkeypatch.setattr(VbrOrder, "_close_slot", violated)
            with pytest.raises(InvariantViolated, match="planted"):
                await net[1].leave()
            with pytest.raises(InvariantViolated, match="planted"):
                await net[1].send(b"x")
            monkeypatch.undo()

    def violated(order: VbrOrder, *_: object) -> None:
        raise InvariantViolated("end of slot", 1, "planted", "nothing", "something")

    testing.run(part())


def raising_methods(source: str) -> set[tuple[str, str]]:
    """The classes and methods that raise InvariantViolated."""
    found: set[tuple[str, str]] = set()
    for node in ast.parse(source).body:
        methods: Sequence[ast.stmt] = node.body if isinstance(node, ast.ClassDef) else ()
        for method in methods:
            if isinstance(node, ast.ClassDef) and isinstance(method, ast.FunctionDef):
                raised = [inner.exc for inner in ast.walk(method) if isinstance(inner, ast.Raise)]
                calls = [exc.func for exc in raised if isinstance(exc, ast.Call)]
                if any(isinstance(call, ast.Name) and call.id == "InvariantViolated" for call in calls):
                    found.add((node.name, method.name))
    return found


def test_every_check_can_be_switched_off() -> None:
    """Otherwise a planted defect could not reach the checkers of traces."""
    found = {pair for path in (ROOT / "src").rglob("*.py") for pair in raising_methods(path.read_text())}
    without_a_view = ("Membership", "_installed_view")  # it also returns the view, so it cannot be left out
    assert found == {(where.__name__, method) for where, method in RUNTIME_CHECKS} | {without_a_view}
