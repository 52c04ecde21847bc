"""Message sets compared with Python's own sets."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from unisono.model.message_set import NO_MESSAGES, MessageRef, MessageSet

REFS = st.builds(MessageRef, st.integers(1, 2), st.integers(1, 2), st.integers(-3, 12))
SETS = st.frozensets(REFS)


def set_of(refs: frozenset[MessageRef]) -> MessageSet:
    return MessageSet.of(refs)


@given(SETS)
def test_a_set_contains_exactly_its_messages(refs: frozenset[MessageRef]) -> None:
    messages = set_of(refs)
    assert list(messages) == sorted(refs)
    assert len(messages) == len(refs)
    assert bool(messages) == bool(refs)
    for ref in (MessageRef(s, i, n) for s in (1, 2) for i in (1, 2) for n in range(-5, 14)):
        assert (ref in messages) == (ref in refs)


@given(SETS, SETS)
def test_union_intersection_and_difference_agree_with_python_sets(
    ours: frozenset[MessageRef], theirs: frozenset[MessageRef]
) -> None:
    operations: list[Callable[[MessageSet, MessageSet], MessageSet]] = [
        lambda a, b: a | b,
        lambda a, b: a & b,
        lambda a, b: a - b,
    ]
    for operation, expected in zip(operations, (ours | theirs, ours & theirs, ours - theirs), strict=True):
        assert operation(set_of(ours), set_of(theirs)) == set_of(expected)


@given(SETS, REFS)
def test_plus_adds_one_message(refs: frozenset[MessageRef], ref: MessageRef) -> None:
    assert set_of(refs).plus(ref) == set_of(refs | {ref})


@given(SETS)
def test_equal_sets_have_equal_hashes(refs: frozenset[MessageRef]) -> None:
    one_by_one = NO_MESSAGES
    for ref in sorted(refs, reverse=True):
        one_by_one = one_by_one.plus(ref)
    assert one_by_one == set_of(refs)
    assert hash(one_by_one) == hash(set_of(refs))


def test_adjacent_messages_form_one_range() -> None:
    consumed = MessageSet.of(MessageRef(1, 1, n) for n in range(1000))
    assert consumed.ranges == {(1, 1): ((0, 999),)}
    assert str(consumed - MessageSet.of([MessageRef(1, 1, 5)])) == "1.0-4 1.6-999"
