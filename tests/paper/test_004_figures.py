"""Paper 004, Figures 2 and 3: the queue states drawn from recorded traces. docs/priority.md shows the same lines."""

from pathlib import Path

import pytest
from tests.worlds.ideal_figures import FIGURE_2_NAMES, FIGURE_3_NAMES, figure_2, figure_3
from tests.worlds.ideal_trace import ideal_trace
from tests.worlds.queue_states import queue_states, render

from unisono.check.suite import check_all
from unisono.check.verdict import MessageId, Status
from unisono.model.message_set import MessageRef
from unisono.trace.table import Trace

PAGE = Path(__file__).parents[2] / "docs" / "priority.md"


def states(trace: Trace, names: dict[MessageRef, str], member: int) -> list[tuple[str, str]]:
    """Each action of a member and its queue after it, with the names of the figure."""
    by_id = {MessageId(*ref): name for ref, name in names.items()}
    return [
        (state.action.split(",")[0].split(" before")[0].split()[0], "".join(by_id[m] for m in state.queue))
        for state in queue_states(trace, member)
    ]


def test_figure_2_h_goes_before_n_at_all_three_processes() -> None:
    trace = ideal_trace(figure_2())
    assert {verdict.status for verdict in check_all(trace).values()} == {Status.VALID}
    assert ("inserts", "hno") in states(trace, FIGURE_2_NAMES, 1)
    assert ("inserts", "mhno") in states(trace, FIGURE_2_NAMES, 2)
    assert ("inserts", "mhno") in states(trace, FIGURE_2_NAMES, 3)


def test_figure_3_the_queues_differ_in_between_and_are_equal_in_the_end() -> None:
    trace = ideal_trace(figure_3())
    assert {verdict.status for verdict in check_all(trace).values()} == {Status.VALID}
    assert [queue for action, queue in states(trace, FIGURE_3_NAMES, 1) if action == "inserts"] == ["l", "ml", "hml"]
    assert [queue for action, queue in states(trace, FIGURE_3_NAMES, 2) if action == "inserts"] == ["l", "hl", "hml"]


@pytest.mark.parametrize(
    ("marker", "trace", "names"),
    [("figure 2", ideal_trace(figure_2()), FIGURE_2_NAMES), ("figure 3", ideal_trace(figure_3()), FIGURE_3_NAMES)],
    ids=["figure 2", "figure 3"],
)
def test_the_documentation_shows_the_queue_states_of_the_trace(
    marker: str, trace: Trace, names: dict[MessageRef, str]
) -> None:
    by_id = {MessageId(*ref): name for ref, name in names.items()}
    expected = "\n\n".join(render(queue_states(trace, member), by_id) for member in (1, 2))
    shown = PAGE.read_text(encoding="utf-8").split(f"<!-- {marker} -->\n```text\n")[1].split("\n```")[0]
    assert shown == expected
