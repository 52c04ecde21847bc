"""Paper 004 §3.1: P1 and P2 in every schedule of small groups, with crashes at every step, in both decision modes.

Cases are named members x messages. Acknowledgments are FIFO per sender, without causal order.
"""

import pytest
from tests.paper.ideal_exploration import explore, p1_and_p2
from tests.worlds.ideal_views import IdealGroup

from unisono.orders.priority.insertion import DecisionMode

TWO_BY_TWO = [{1: [0], 2: [1]}, {1: [0, 1], 2: []}, {1: [1, 0], 2: []}, {1: [0], 2: [0]}]
THREE_BY_TWO = [{1: [0], 2: [1], 3: []}, {1: [0, 1], 2: [], 3: []}, {1: [0], 2: [0], 3: []}]
TWO_BY_THREE = [{1: [0], 2: [1, 2]}, {1: [0, 2], 2: [1]}, {1: [0, 1], 2: [0]}, {1: [1, 0], 2: [2]}]


@pytest.mark.parametrize("form", DecisionMode)
@pytest.mark.parametrize("scripts", TWO_BY_TWO)
def test_two_by_two(scripts: dict[int, list[int]], form: DecisionMode) -> None:
    found = explore(IdealGroup(scripts, form=form), p1_and_p2)
    assert found.problems == []
    assert found.ends >= 3


@pytest.mark.parametrize("form", DecisionMode)
def test_two_by_two_with_a_crash_at_every_step(form: DecisionMode) -> None:
    found = explore(IdealGroup({1: [0, 1], 2: []}, form=form, crashes=1), p1_and_p2)
    assert found.problems == []
    assert found.ends >= 100


@pytest.mark.slow
@pytest.mark.parametrize("form", DecisionMode)
@pytest.mark.parametrize("scripts", THREE_BY_TWO)
def test_three_by_two(scripts: dict[int, list[int]], form: DecisionMode) -> None:
    assert explore(IdealGroup(scripts, form=form), p1_and_p2).problems == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", DecisionMode)
@pytest.mark.parametrize("scripts", TWO_BY_THREE)
def test_two_by_three(scripts: dict[int, list[int]], form: DecisionMode) -> None:
    assert explore(IdealGroup(scripts, form=form), p1_and_p2).problems == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", DecisionMode)
@pytest.mark.parametrize("scripts", TWO_BY_TWO)
def test_two_by_two_with_crashes_a_join_or_a_leave_at_every_step(
    scripts: dict[int, list[int]], form: DecisionMode
) -> None:
    assert explore(IdealGroup(scripts, form=form, crashes=1), p1_and_p2).problems == []
    assert explore(IdealGroup(scripts, form=form, leaves=1), p1_and_p2).problems == []
    assert explore(IdealGroup(scripts, form=form, join_scripts={3: []}), p1_and_p2).problems == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("form", DecisionMode)
def test_three_members_and_a_crash_at_every_step(form: DecisionMode) -> None:
    group = IdealGroup({1: [0], 2: [1], 3: []}, form=form, crashes=1, crash_candidates=[3])
    assert explore(group, p1_and_p2, max_states=3_000_000).problems == []
