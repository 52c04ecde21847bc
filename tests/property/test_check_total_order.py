"""The total order checker against an oracle that compares every pair of messages at every pair of members."""

from __future__ import annotations

from itertools import combinations, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.check.total_order import total_order
from unisono.check.verdict import Status
from unisono.trace.recorder import MemoryTrace
from unisono.trace.schema import RunMeta
from unisono.trace.table import Trace

Message = tuple[int, int]
Row = tuple[Message, tuple[int, int]]
"""(message, key)."""

META = RunMeta("r", "g", "vbr", (1, 2, 3), 1, 1, 1, None, reliable=False, source="simulator")
MESSAGES = [(sender, sequence) for sender in (1, 2) for sequence in range(3)]
KEYS = {message: (message[1], message[0]) for message in MESSAGES}


@st.composite
def runs(draw: st.DrawFn) -> dict[int, list[Row]]:
    """Members that deliver subsets in the order of keys, with some disorder and some wrong keys planted."""
    found: dict[int, list[Row]] = {}
    for member in (1, 2, 3):
        kept = draw(st.lists(st.sampled_from(MESSAGES), unique=True))
        messages = sorted(kept, key=KEYS.__getitem__)
        if len(messages) > 1 and draw(st.booleans()):
            at = draw(st.integers(0, len(messages) - 2))
            messages[at], messages[at + 1] = messages[at + 1], messages[at]
        keys = [KEYS[message] for message in messages]
        style = draw(st.sampled_from(["message", "sorted", "index", "moved"]))
        if style == "sorted":
            keys.sort()
        elif style == "index":
            keys = [(0, index) for index in range(len(keys))]
        elif style == "moved" and keys:
            keys[-1] = (5, draw(st.integers(0, 2)))
        found[member] = list(zip(messages, keys, strict=True))
    return found


def recorded(run: dict[int, list[Row]]) -> Trace:
    memory = MemoryTrace("r", "g")
    for member, rows in run.items():
        for index, ((sender, sequence), (slot, place)) in enumerate(rows):
            memory.recorder(member).delivered(
                sender=sender,
                sender_incarnation=0,
                first_sequence=sequence,
                count=1,
                sizes=0,
                slot=slot,
                first_place=place,
                first_index=index,
                real_ns=0,
                local_ns=0,
            )
    return memory.trace(META)


def disagreements(run: dict[int, list[Row]]) -> set[tuple[int, int, int, Message, Message]]:
    """(index of the later at p, p, q, earlier, later) for each pair that p and q deliver in different orders."""
    at = {member: {message: i for i, (message, _) in enumerate(rows)} for member, rows in run.items()}
    return {
        (at[p][y], p, q, x, y)
        for p, q in permutations(run, 2)
        for x, y in permutations(at[p].keys() & at[q].keys(), 2)
        if at[p][x] < at[p][y] and at[q][x] > at[q][y]
    }


def keys_hold(run: dict[int, list[Row]]) -> bool:
    rows = [row for rows in run.values() for row in rows]
    for message, key in rows:
        if any((message == other) != (key == other_key) for other, other_key in rows):
            return False
    return all(one < two for rows in run.values() for (_, one), (_, two) in combinations(rows, 2))


@given(runs())
@settings(max_examples=400, deadline=None)
def test_verdict_and_witness_are_the_oracle_s(run: dict[int, list[Row]]) -> None:
    verdict = total_order(recorded(run))
    expected = disagreements(run)
    if not any(run.values()):
        assert verdict.status is Status.UNKNOWN
        return
    assert (verdict.status is Status.VIOLATED) == (bool(expected) or not keys_hold(run))
    assert (verdict.status is Status.VALID) == (verdict.status is not Status.VIOLATED)
    if expected:
        assert verdict.witness is not None
        first, second = verdict.witness.messages
        earlier, later = (first.sender, first.sequence), (second.sender, second.sequence)
        p, q = verdict.witness.members
        index = next(at.index for at in verdict.witness.positions if at.member == p and at.message == second)
        assert (index, p, q, earlier, later) in expected
        assert (index, p, q) == min(expected)[:3]
        assert verdict.witness.text.startswith(f"member {p} delivered {first} before {second}, member {q} after")
