"""A newcomer's way into a view, and what members of the view do for it: the state, at the cut where the view begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.agreement.membership.messages import (
    MembershipRequest,
    NextView,
    StateChunk,
    Vector,
    decode_next_view,
    encode_next_view,
)

CHUNKS_PER_ANSWER = 16
"""So many frames of a state answer one question."""
_LENGTH = 8


@dataclass(frozen=True, slots=True)
class TransferredState:
    """All that a newcomer needs."""

    view_id: int
    members: Vector
    joined: tuple[int, ...]
    left: tuple[int, ...]
    description: bytes
    """All but the state, as it came."""
    decided: bytes
    """What the members of the view before agreed on: one that has not heard it may hear it from this newcomer only."""
    state: bytes


def encode_view_description(members: Vector, joined: Sequence[int], left: Sequence[int], decided: bytes) -> bytes:
    """A view as a newcomer needs it; in the place of a cut stands who joined (1), left (2) or both (3)."""
    marks = {m: (m in joined) + 2 * (m in left) for m in sorted({*joined, *left})}
    view = encode_next_view(NextView(members, marks))
    return len(view).to_bytes(_LENGTH) + view + decided


class StateSender:
    """The state for the newcomers of one view, once whoever is above has given it.

    A newcomer that has it passes it on: those who gave it may crash before the other newcomers have got it.
    """

    def __init__(self, view_id: int, description: bytes, state: bytes | None = None) -> None:
        self._view_id = view_id
        self._description = description
        self._data: bytes | None = None
        if state is not None:
            self.set_state(view_id, state)

    def set_state(self, view_id: int, state: bytes) -> None:
        """The state at the cut."""
        if view_id == self._view_id:
            self._data = len(self._description).to_bytes(_LENGTH) + self._description + state

    def chunks_for(self, me: int, view_id: int, request: MembershipRequest, max_bytes: int) -> list[StateChunk]:
        """Some of it, from where the newcomer has got to."""
        data = self._data
        if view_id != self._view_id or data is None:
            return []
        start = request.offset if (request.view_id, request.source) == (view_id, me) else 0
        offsets = range(start, len(data), max_bytes)[:CHUNKS_PER_ANSWER]
        return [StateChunk(view_id, len(data), offset, me, data[offset : offset + max_bytes]) for offset in offsets]


class StateReceiver:
    """A newcomer: it asks until a member of the view has given it everything."""

    def __init__(self) -> None:
        self._attempt = 0
        self._source = (0, 0)
        """The view and the giver whose state is coming."""
        self._total = self._chunk_bytes = 0
        self._data = bytearray()
        self._requested_at_bytes = -1

    def next_request(self) -> MembershipRequest:
        """The wish; another giver is asked when the last one has given nothing since."""
        if self._requested_at_bytes == len(self._data):
            self._attempt += 1
        self._requested_at_bytes = len(self._data)
        return MembershipRequest(False, self._attempt, *self._source, len(self._data))

    def receive(self, chunk: StateChunk) -> TransferredState | None:
        """A part of a state; all that is needed when it is whole."""
        of = (chunk.view_id, chunk.source)
        if of != self._source:
            if chunk.offset or chunk.view_id < self._source[0]:
                return None
            self._source, self._data = of, bytearray()
        if chunk.offset == len(self._data):
            self._data += chunk.part
        self._total, self._chunk_bytes = chunk.total, len(chunk.part)
        if len(self._data) < chunk.total:
            return None
        description, given = _split(bytes(self._data))
        described_as, decided = _split(description)
        view = decode_next_view(described_as) or NextView({}, {})
        joined = tuple(m for m, mark in sorted(view.last_messages.items()) if mark & 1)
        left = tuple(m for m, mark in sorted(view.last_messages.items()) if mark & 2)
        return TransferredState(chunk.view_id, view.members, joined, left, description, decided, given)

    def wants_next_chunk(self) -> bool:
        """Whether what was asked for has come, and there is more."""
        return (
            len(self._data) < self._total
            and len(self._data) >= max(0, self._requested_at_bytes) + CHUNKS_PER_ANSWER * self._chunk_bytes
        )


def _split(data: bytes) -> tuple[bytes, bytes]:
    """What comes first, behind its length, and the rest."""
    end = _LENGTH + int.from_bytes(data[:_LENGTH])
    return data[_LENGTH:end], data[end:]
