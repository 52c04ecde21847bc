"""What members report when a link is cut in one direction: no report contradicts itself, and each states the obstacle.

The cut lasts, so that a member hears a majority and still has no leader, or no next view.
"""

import re

import pytest

from unisono.model.events import Violation
from unisono.model.text.scenario import parse_scenario
from unisono.sim.run import run

SCENARIO = """
[group]
name = "cut"
order = "{order}"
members = 3
slot = "5ms"
delta = "10ms"
gamma = "2ms"

[rate]
avg = 50
burst = 8

[workload]
kind = "poisson"
rate = 20
size = 20

[run]
seconds = 2.0

[[fault]]
kind = "loss"
probability = 1.0
senders = {senders}
receivers = {receivers}
from = "300ms"
"""


def reports(order: str, senders: list[int], receivers: list[int]) -> dict[int, list[Violation]]:
    """By member, its reports that it is blocked, in a run in which nothing goes from senders to receivers."""
    text = SCENARIO.format(order=order, senders=senders, receivers=receivers)
    found = run(parse_scenario(text, "cut")).violations
    return {
        member: blocked
        for member, all_of_them in found.items()
        if (blocked := [each for each in all_of_them if each.kind in {"blocked", "no_majority"}])
    }


def only_text(found: dict[int, list[Violation]], member: int) -> str:
    (report,) = found[member]
    return report.text


def test_a_member_that_hears_a_majority_but_not_its_leader_says_so() -> None:
    assert only_text(reports("consensus", [1], [2]), 2) == (
        "this member has no leader, although of 3 members 2 are reachable (2, 3), a majority: they follow a leader "
        "whose messages do not arrive here, or messages of this member do not arrive there"
    )


def test_a_member_that_hears_too_few_members_names_them() -> None:
    assert only_text(reports("consensus", [1, 2], [3]), 3) == (
        "no leader has a majority: of 3 members 1 are reachable (3), 2 are needed"
    )


def test_a_view_change_that_a_majority_could_make_names_what_it_waits_for() -> None:
    found = reports("priority", [2], [1])
    assert only_text(found, 1).endswith("this member proposed it, but has not heard that a majority accepted it")
    assert only_text(found, 3).endswith("member 1, which coordinates the change, has not completed it")


def test_a_view_change_without_a_majority_states_how_many_members_are_needed() -> None:
    assert only_text(reports("priority", [1, 2], [3]), 3).endswith(
        "of its members (1, 2, 3) only (3,) are reachable, and a majority of 2 is needed"
    )


def test_a_candidate_states_its_votes_and_a_leader_its_answers() -> None:
    assert only_text(reports("leader", [1], [2]), 2) == (
        "only 1 of 3 members, this one included, vote for this member: it orders nothing until 2 do"
    )
    assert only_text(reports("leader", [2, 3], [1]), 1) == (
        "only 1 of 3 members, this one included, answer this leader: it orders nothing until 2 do"
    )


@pytest.mark.parametrize("order", ["consensus", "priority"])
@pytest.mark.parametrize("cut", [([1], [2]), ([2], [1]), ([2], [3]), ([1], [2, 3]), ([2, 3], [1])])
def test_no_report_demands_a_majority_that_it_lists(order: str, cut: tuple[list[int], list[int]]) -> None:
    for report in (each for found in reports(order, *cut).values() for each in found):
        listed = re.search(r"reachable \(([\d, ]+)\), \d are needed|only \(([\d, ]+)\) are reachable", report.text)
        if listed is not None:
            assert len(re.findall(r"\d+", listed[1] or listed[2])) < 2, report.text
