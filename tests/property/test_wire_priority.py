"""Round trips of the priority order's messages, and malformed ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worlds.ideal_swarm import random_group, run_randomly

from unisono.model.message_set import MessageRef, MessageSet
from unisono.model.policy import PRIORITY_MAX
from unisono.orders.priority.messages import (
    Ack,
    FinalProgress,
    InsertionDecision,
    MessageBody,
    PriorityBody,
    Progress,
    decode_body,
    decode_state,
    encode_body,
    encode_state,
)
from unisono.sim.random_streams import RandomStreams
from unisono.wire.codec import Unreadable

REFS = st.builds(MessageRef, st.integers(0, 0xFFFF), st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1))
NEAR = st.builds(MessageRef, st.integers(1, 3), st.integers(1, 2), st.integers(0, 30))
SETS = st.builds(MessageSet.of, st.frozensets(NEAR))
NUMBERS = st.integers(0, 2**63 - 1)
MESSAGES = st.builds(
    lambda sequence, back, priority, stamp, payload: MessageBody(
        sequence, priority, stamp, max(0, sequence - back), payload
    ),
    NUMBERS,
    st.integers(0, 100),
    st.integers(0, PRIORITY_MAX),
    NUMBERS,
    st.binary(max_size=50),
)
BODIES = st.one_of(
    MESSAGES,
    st.builds(Ack, REFS, SETS, SETS),
    st.builds(InsertionDecision, REFS, NUMBERS, SETS, SETS),
    st.builds(Progress, SETS),
    st.builds(FinalProgress, SETS),
)


@given(BODIES)
def test_a_body_survives_a_round_trip(body: PriorityBody) -> None:
    assert decode_body(encode_body(body)) == body


@given(BODIES, st.integers(0, 200))
def test_a_truncated_body_is_refused_or_is_a_shorter_message(body: PriorityBody, length: int) -> None:
    data = encode_body(body)
    cut = data[: min(length, len(data) - 1)]
    if isinstance(body, MessageBody) and len(cut) >= len(data) - len(body.payload):
        shorter = decode_body(cut)
        assert isinstance(shorter, MessageBody)
        assert body.payload.startswith(shorter.payload)
    else:
        with pytest.raises(Unreadable):
            decode_body(cut)


@given(st.binary(max_size=80))
def test_random_bytes_are_refused_or_decode_to_a_body_of_the_same_length(data: bytes) -> None:
    try:
        body = decode_body(data)
    except Unreadable:
        return
    again = encode_body(body)
    assert decode_body(again) == body
    assert len(again) == len(data)


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_a_state_survives_a_round_trip_and_its_prefixes_are_refused(seed: int) -> None:
    chance = RandomStreams(seed).stream("state")
    group = random_group(chance)
    for _ in range(40):
        actions = [action for action in group.enabled() if action[0] not in {"crash", "leave", "admit"}]
        if not actions:
            break
        group.perform(actions[int(chance.random() * len(actions))])
    for peer in group.survivors():
        state = peer.core.state()
        data = encode_state(state)
        assert decode_state(data) == state
        with pytest.raises(Unreadable):
            decode_state(data[: int(chance.random() * len(data))])
        with pytest.raises(Unreadable):
            decode_state(data + b"\0")
        with pytest.raises(Unreadable, match="version"):
            decode_state(b"\7" + data[1:])


def test_a_state_with_a_lock_of_an_unknown_message_is_refused() -> None:
    group = random_group(RandomStreams(3).stream("lock"))
    run_randomly(group, RandomStreams(3).stream("lock"))
    state = next(iter(group.peers.values())).core.state()
    broken = type(state)(**{**{f: getattr(state, f) for f in state.__slots__}, "tail_locks": (MessageRef(9, 9, 9),)})
    with pytest.raises(
        Unreadable, match=r"\(9,9\) holds a lock or has an acknowledgment, but is not a joining message"
    ):
        decode_state(encode_state(broken))
