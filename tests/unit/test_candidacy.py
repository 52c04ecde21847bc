"""A candidate collects promises that come in several parts, from several answers, in any order."""

from unisono.agreement.paxos.consensus import CandidateState
from unisono.agreement.paxos.messages import CHOSEN, Promise

BALLOT = 7


def part(at: int, last: int, *entries: tuple[int, bytes]) -> Promise:
    return Promise(BALLOT, False, 0, 1, last, at, entries)


def test_instances_before_a_decided_one_are_decided_even_if_an_earlier_answer_did_not_say_so() -> None:
    candidate = CandidateState(BALLOT, 1, 0)
    candidate.add_promise_part(2, part(1, 3, (5, b"a"), (5, b"b")))
    assert candidate.complete_promises() == 0
    candidate.add_promise_part(2, part(3, 3, (CHOSEN, b"c")))
    candidate.add_promise_part(3, part(1, 4, (4, b"z"), (5, b"b"), (5, b"c"), (6, b"d")))
    assert candidate.complete_promises() == 2
    assert candidate.values_to_propose() == [(CHOSEN, b"a"), (CHOSEN, b"b"), (CHOSEN, b"c"), (6, b"d")]


def test_a_repeated_promise_with_more_instances_is_incomplete_until_all_have_arrived() -> None:
    candidate = CandidateState(BALLOT, 1, 0)
    candidate.add_promise_part(2, part(3, 3, (CHOSEN, b"c")))
    candidate.add_promise_part(2, part(1, 1, (5, b"a")))
    assert candidate.complete_promises() == 0
    candidate.add_promise_part(2, part(2, 3, (CHOSEN, b"b")))
    assert candidate.complete_promises() == 1
    assert [value for _, value in candidate.values_to_propose()] == [b"a", b"b", b"c"]
