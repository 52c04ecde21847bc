"""A promise that comes in parts, from several answers, in any order."""

from unisono.agreement.paxos.consensus import CandidateState
from unisono.agreement.paxos.messages import CHOSEN, Promise

BALLOT = 7


def part(at: int, last: int, *entries: tuple[int, bytes]) -> Promise:
    return Promise(BALLOT, False, 0, 1, last, at, entries)


def test_what_is_before_something_decided_is_decided_though_an_earlier_answer_did_not_say_so() -> None:
    candidacy = CandidateState(BALLOT, 1, 0)
    candidacy.add_promise_part(2, part(1, 3, (5, b"a"), (5, b"b")))
    assert candidacy.complete_promises() == 0
    candidacy.add_promise_part(2, part(3, 3, (CHOSEN, b"c")))
    candidacy.add_promise_part(3, part(1, 4, (4, b"z"), (5, b"b"), (5, b"c"), (6, b"d")))
    assert candidacy.complete_promises() == 2
    assert candidacy.values_to_propose() == [(CHOSEN, b"a"), (CHOSEN, b"b"), (CHOSEN, b"c"), (6, b"d")]


def test_a_promise_that_has_grown_is_not_whole_without_what_it_has_grown_by() -> None:
    candidacy = CandidateState(BALLOT, 1, 0)
    candidacy.add_promise_part(2, part(3, 3, (CHOSEN, b"c")))
    candidacy.add_promise_part(2, part(1, 1, (5, b"a")))
    assert candidacy.complete_promises() == 0
    candidacy.add_promise_part(2, part(2, 3, (CHOSEN, b"b")))
    assert candidacy.complete_promises() == 1
    assert [value for _, value in candidacy.values_to_propose()] == [b"a", b"b", b"c"]
