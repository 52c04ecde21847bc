"""Specifications of control messages: the decoder enforces every bound, and only the door decodes frames."""

from __future__ import annotations

import ast
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from math import inf, nan, nextafter
from pathlib import Path
from typing import Any

import pytest
from tests.behaviour import golden

import unisono
from unisono.wire import codec
from unisono.wire.codec import (
    Bytes,
    Fixed,
    Items,
    Spec,
    Tagged,
    Unreadable,
    Values,
    choice,
    count,
    decode_message,
    encode_message,
    message_in,
    register,
    u8,
    u16,
)
from unisono.wire.control import MARK_REQUESTS, Probe
from unisono.wire.frame import Frame, Kind

FRAMES = [golden.admitted(example.data) for example in golden.frames().values()]
WITHOUT_MESSAGE = {Kind.DATA, Kind.ORDERED, Kind.FEC, Kind.RMCAST, Kind.FIFO, Kind.CAUSAL, Kind.UNIFORM}
"""Kinds that carry messages of the application or frames of another layer."""


def specs_in(spec: Any, message: Any) -> Iterator[tuple[Spec[Any], Any]]:
    """The specification of a message and those of its items, each with an example."""
    if isinstance(spec, Tagged):
        spec = spec._by_type[type(message)][1]
    yield spec, message
    for part in spec._parts:
        if isinstance(part, Items):
            yield from specs_in(part._item, getattr(message, part.name)[0])


SPEC_OF = codec._specs | {Kind.DATA: MARK_REQUESTS}
EXAMPLES = [
    pair
    for frame in FRAMES
    if frame.message is not None and frame.kind in SPEC_OF
    for pair in specs_in(SPEC_OF[frame.kind], frame.message)
]
NAMES = [type(message).__name__ for _, message in EXAMPLES]
examples = pytest.mark.parametrize(("spec", "message"), EXAMPLES, ids=NAMES)


def with_field(spec: Spec[Any], body: bytes, at: int, value: float) -> bytes:
    """The body with another value in one of the fields of fixed size."""
    fields = list(spec._form.unpack_from(body))
    fields[at] = value
    return spec._form.pack(*fields) + body[spec.size :]


def values_outside(field: Fixed) -> list[float]:
    """The values next to the bounds of a field that its bytes can hold."""
    if field.code == "d":
        return [nextafter(field.least, -inf), nextafter(field.most, inf), inf, -inf, nan]
    limit = 256 ** struct.calcsize(field.code)
    return [value for value in (field.least - 1, field.most + 1) if 0 <= value < limit]


def bounds_error(field: Fixed) -> str:
    return f"field {field.name}: expected {field.least} to {field.most}, found "


def has_open_end(spec: Spec[Any]) -> bool:
    """Whether the last part runs to the end of the message."""
    return bool(spec._parts) and spec._parts[-1].name not in spec._count_at


def refusal_of(spec: Spec[Any], body: bytes) -> str:
    """Why the decoder refuses the body. If it does not, the message that it reads encodes to the same body."""
    try:
        message = spec.decode(body)
    except Unreadable as refusal:
        return str(refusal)
    assert spec.encode(message) == body
    return ""


# -- registered messages -------------------------------------------------------------------------------------


def test_every_type_of_message_has_one_specification_and_an_example() -> None:
    types = [make for spec in codec._specs.values() for make in spec.types]
    assert len(types) == len(set(types))
    assert set(types) == set(codec._kinds) <= {type(message) for _, message in EXAMPLES}


def test_a_kind_or_a_type_cannot_be_registered_twice() -> None:
    with pytest.raises(TypeError, match="PROBE"):
        register({Kind.PROBE: Spec(Pair)})
    with pytest.raises(TypeError, match="Probe"):
        register({Kind.DATA: Spec(Probe)})


def test_the_door_decodes_the_message_of_every_control_frame() -> None:
    assert {frame.kind for frame in FRAMES if frame.message is not None} >= set(Kind) - WITHOUT_MESSAGE
    for frame in FRAMES:
        if frame.kind in codec._specs:
            assert encode_message(frame.message) == (frame.kind, frame.body)


@examples
def test_a_message_round_trips(spec: Spec[Any], message: Any) -> None:
    assert spec.decode(spec.encode(message)) == message


@examples
def test_the_decoder_enforces_the_bounds_of_each_field(spec: Spec[Any], message: Any) -> None:
    body = spec.encode(message)
    for at, field in enumerate(spec._fixed):
        for value in values_outside(field):
            assert refusal_of(spec, with_field(spec, body, at, value)).startswith(bounds_error(field))


@examples
def test_the_bounds_themselves_are_allowed(spec: Spec[Any], message: Any) -> None:
    body = spec.encode(message)
    for at, field in enumerate(spec._fixed):
        if field.code.endswith("s"):  # raw bytes have no bounds
            continue
        limit = 256 ** struct.calcsize(field.code) - 1 if field.code != "d" else inf
        for value in (field.least, min(field.most, limit)):
            # The rest of the message may contradict this value.
            assert not refusal_of(spec, with_field(spec, body, at, value)).startswith(bounds_error(field))


@examples
def test_a_message_of_another_length_is_refused_or_encodes_again(spec: Spec[Any], message: Any) -> None:
    body = spec.encode(message)
    for other in (*(body[:end] for end in range(len(body))), body + b"\0", body + b"\xff"):
        assert refusal_of(spec, other) or has_open_end(spec)


@examples
def test_a_count_that_differs_from_its_part_is_refused(spec: Spec[Any], message: Any) -> None:
    body = spec.encode(message)
    for name, at in spec._count_at.items():
        items = len(getattr(message, name))
        for other in {max(items - 1, 0), items + 1} - {items}:
            assert refusal_of(spec, with_field(spec, body, at, other))


def test_other_kinds_and_tags_are_refused() -> None:
    for kind, body in ((Kind.DATA, b""), (Kind.VIEW_RECOVERY, b""), (Kind.VIEW_RECOVERY, b"\0")):
        with pytest.raises(Unreadable):
            decode_message(kind, body)
    with pytest.raises(TypeError, match="not a Probe"):
        message_in(Frame(Kind.ECHO, 1, 1, 0, 0, 0), Probe)


# -- specifications ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A message with two parts."""

    first: bytes = b""
    second: tuple[bytes, ...] = ()


class Gapped(IntEnum):
    """An enumeration with a gap."""

    ONE = 1
    THREE = 3


def test_parts_end_where_their_counts_say() -> None:
    spec = Spec(Pair, count("first", "B"), count("second", "B"), Bytes("first"), Values("second"))
    pair = Pair(b"ab", (b"", b"cde"))
    body = spec.encode(pair)
    assert body == b"\2\2ab" + bytes(7) + b"\3cde"
    assert spec.decode(body) == pair
    assert spec.decode_at(b"before" + body + b"after", 6) == (pair, 6 + len(body))
    for wrong in (b"\1" + body[1:], b"\3" + body[1:], b"\2\1" + body[2:], b"\2\3" + body[2:]):
        with pytest.raises(Unreadable):
            spec.decode(wrong)
    for end in range(len(body)):
        with pytest.raises(Unreadable):
            spec.decode_at(body[:end], 0)


def test_a_specification_with_a_mistake_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="gaps"):
        choice("step", Gapped)
    with pytest.raises(TypeError, match="put all fields of fixed size first"):
        Spec(Pair, Bytes("first"), u8("second"))
    assert Spec(Pair, u16("first"), Bytes("second")).size == 2


# -- only the door decodes frames ----------------------------------------------------------------------------

DECODED_ELSEWHERE = {
    "values of logs and of consensus": {
        "decode_bundle",
        "decode_log_value",
        "decode_next_view",
        "decode_value",
    },
    "stored records and transferred states": {
        "_LOG_STATE.decode",
        "decode_handover",
        "decode_log_state",
        "RECORDS.decode",
        "decode_state",
    },
    "contents that consist of several frames": {"decode_messages"},
    "messages of the priority order inside multicasts": {"decode_body"},
    "the content of a setting request, which members repeat unread": {"decode_settings_with_verdict"},
    "the beacon, which is not a frame": {"decode_beacon"},
    "the layers, which have frames of their own": {"decode_haves"},
    "blocks of a trace": {"decode_blocks"},
}


def decoders_called(path: Path) -> set[str]:
    """The `decode…` functions that a module calls, and the specifications whose `decode` it calls."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name.startswith("decode_"):
                found.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="decode")) if name.isupper():
                found.add(f"{name}.decode")
    return found


def test_no_module_decodes_a_control_message_that_the_door_has_decoded() -> None:
    root = Path(unisono.__file__).parent
    calls: set[str] = set()
    for path in root.rglob("*.py"):
        if path.name != "messages.py" and path.parent.name != "wire":
            calls |= decoders_called(path)
    assert calls == set().union(*DECODED_ELSEWHERE.values())
