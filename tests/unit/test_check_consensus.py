"""The consensus checker, on planted violations first."""

from __future__ import annotations

import pytest
from tests.worlds.check_consensus import DecisionReported, Proposed, consensus

from unisono.check.verdict import Status

PROPOSED = [Proposed(1, 1, b"a"), Proposed(2, 1, b"b"), Proposed(1, 2, b"c"), Proposed(2, 3, b"d")]


def test_a_right_run_is_valid() -> None:
    told = [
        DecisionReported(1, 1, 1, b"a"),
        DecisionReported(2, 1, 1, b"a"),
        DecisionReported(1, 1, 2, b"c"),
        DecisionReported(3, 1, 2, None),
        DecisionReported(3, 1, 3, b"d"),
    ]
    verdict = consensus(PROPOSED, told)
    assert verdict.status is Status.VALID
    assert verdict.figures == {"instances": 3}


def test_a_new_incarnation_may_learn_decisions_again() -> None:
    assert (
        consensus(PROPOSED, [DecisionReported(1, 1, 1, b"a"), DecisionReported(1, 2, 1, b"a")]).status is Status.VALID
    )


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (
            [DecisionReported(1, 1, 1, b"a"), DecisionReported(2, 1, 1, b"b")],
            "member 2 decided b'b' for 1, member 1 b'a'",
        ),
        (
            [DecisionReported(1, 1, 1, b"a"), DecisionReported(1, 2, 1, b"b")],
            "member 1 decided b'b' for 1, member 1 b'a'",
        ),
        ([DecisionReported(1, 1, 1, b"x")], "member 1 decided b'x' for 1, which no member proposed"),
        ([DecisionReported(1, 1, 1, b"c")], "which no member proposed"),
        ([DecisionReported(1, 1, 2, b"c")], "member 1 decided instance 2 after instance 0"),
        (
            [DecisionReported(1, 1, 1, b"a"), DecisionReported(1, 1, 1, b"a")],
            "member 1 decided instance 1 after instance 1",
        ),
        (
            [DecisionReported(1, 1, 1, b"a"), DecisionReported(1, 1, 1, None)],
            "member 1 restored 1 after it had decided 1",
        ),
    ],
)
def test_a_planted_violation_is_found(told: list[DecisionReported], text: str) -> None:
    verdict = consensus(PROPOSED, told)
    assert verdict.status is Status.VIOLATED
    assert verdict.witness is not None
    assert text in verdict.witness.text


def test_nothing_decided_is_unknown() -> None:
    assert consensus(PROPOSED, []).status is Status.UNKNOWN
