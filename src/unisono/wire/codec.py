"""The bytes of messages: one specification of the fields per kind of message.

A `Spec` lists the fields of a message in their order on the wire, with their bounds. Encoder and decoder follow from
it. The door decodes every control message once and hands the typed message to the layers. Only the frame header and
packed messages are coded by hand, in `frame`, because every message passes through them.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise
from math import inf, nextafter
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

from unisono.model.message_set import MessageOrigin, MessageRef, MessageSet, SequenceRange
from unisono.model.units import EVERYONE
from unisono.wire.frame import Frame, Kind

SEQUENCE_LIMIT = 2**63
"""Sequence numbers are smaller than this."""
_BYTE = struct.Struct("!B")
_LENGTH = struct.Struct("!I")
_REF = struct.Struct("!HIQ")
REF_BYTES = _REF.size
_COUNT = struct.Struct("!H")
_ORIGIN = struct.Struct("!HIH")
_RANGE = struct.Struct("!QI")


class Unreadable(ValueError):
    """The bytes are not a valid encoding of the expected message."""


def encode_ref(ref: MessageRef) -> bytes:
    """Encode a message reference: sender, incarnation, sequence number."""
    return _REF.pack(*ref)


def decode_ref(data: bytes) -> MessageRef:
    """Decode a message reference of REF_BYTES bytes; raises Unreadable if its sequence number is too large."""
    ref = MessageRef._make(_REF.unpack(data))
    if ref.sequence >= SEQUENCE_LIMIT:
        raise Unreadable(f"sequence number {ref.sequence} is too large; it must be less than 2**63")
    return ref


def encode_set(messages: MessageSet) -> bytes:
    """Encode a message set as the sequence ranges of each sender incarnation. Equal sets have equal bytes."""
    parts = [_COUNT.pack(len(messages.ranges))]
    for origin, ranges in sorted(messages.ranges.items()):
        parts.append(_ORIGIN.pack(*origin, len(ranges)))
        parts += [_RANGE.pack(first, last - first) for first, last in ranges]
    return b"".join(parts)


def _read_set(data: bytes, at: int) -> tuple[MessageSet, int]:
    """Read the message set at offset `at` of `data`; returns the set and the offset after it.

    Ranges must be ascending and not adjacent, so that each set has only one encoding.
    """
    ranges: dict[MessageOrigin, tuple[SequenceRange, ...]] = {}
    try:
        (origins,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        for _ in range(origins):
            sender, incarnation, number = _ORIGIN.unpack_from(data, at)
            at += _ORIGIN.size
            if (sender, incarnation) in ranges or number == 0:
                problem = "has no messages" if number == 0 else "occurs twice"
                raise Unreadable(f"message set: sender {sender}, incarnation {incarnation} {problem}")
            read: list[SequenceRange] = []
            for _ in range(number):
                first, more = _RANGE.unpack_from(data, at)
                at += _RANGE.size
                if first >= SEQUENCE_LIMIT or (read and first <= read[-1][1] + 1):
                    least = read[-1][1] + 2 if read else 0
                    raise Unreadable(
                        f"message set: sender {sender}, incarnation {incarnation}: expected a range that starts at a "
                        f"sequence number from {least} to 2**63 - 1, found {first}"
                    )
                read.append((first, first + more))
            ranges[sender, incarnation] = tuple(read)
    except struct.error as error:
        raise Unreadable(f"message set: the data ends in the middle of the set, after offset {at}") from error
    return MessageSet(ranges), at


# -- specifications ------------------------------------------------------------------------------------------

_Message = TypeVar("_Message")


@dataclass(frozen=True, slots=True)
class Fixed:
    """A field of fixed size: its attribute in the message, its code for the module `struct`, and the allowed values.

    `read` turns the number on the wire into the attribute's value, and `write` does the reverse. With `counts`, the
    field holds instead the number of items of that attribute; the items follow as a part.
    """

    name: str
    code: str
    least: float = 0
    most: float = inf
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None
    counts: bool = False

    @property
    def to_wire(self) -> Callable[[Any], Any] | None:
        """The function that turns the attribute into the value on the wire; None if they are the same."""
        return len if self.counts else self.write

    @property
    def is_bounded(self) -> bool:
        """Whether the bytes of the field can hold a value that is not allowed, so that the decoder must check it."""
        return self.least != 0 or self.most < 2 ** (8 * struct.calcsize(f"!{self.code}")) - 1


def u8(name: str, least: int = 0, most: int = 2**8 - 1) -> Fixed:
    """The field `name`: a number of 8 bits from `least` to `most`."""
    return Fixed(name, "B", least, most)


def u16(name: str, least: int = 0, most: int = 2**16 - 1) -> Fixed:
    """The field `name`: a number of 16 bits from `least` to `most`, such as a member number."""
    return Fixed(name, "H", least, most)


def u32(name: str, least: int = 0, most: int = 2**32 - 1) -> Fixed:
    """The field `name`: a number of 32 bits from `least` to `most`, such as an incarnation."""
    return Fixed(name, "I", least, most)


def u63(name: str, least: int = 0, most: int = SEQUENCE_LIMIT - 1) -> Fixed:
    """The field `name`: a number of 64 bits for slots, times and sequences.

    Below 2**63, so that sums of two still fit.
    """
    return Fixed(name, "Q", least, most)


def u64(name: str) -> Fixed:
    """The field `name`: any number of 64 bits."""
    return Fixed(name, "Q")


def boolean(name: str) -> Fixed:
    """The field `name`: true or false, as a byte that is 1 or 0."""
    return Fixed(name, "B", 0, 1, bool)


def choice(name: str, options: type[IntEnum]) -> Fixed:
    """The field `name`: a byte with a value of the enumeration `options`, whose values are consecutive."""
    if sorted(options) != list(range(min(options), max(options) + 1)):
        raise TypeError(
            f"field {name}: expected an enumeration with consecutive values, but the values of {options} have gaps"
        )
    return Fixed(name, "B", min(options), max(options), options)


def word(name: str, words: tuple[str, ...]) -> Fixed:
    """The field `name`: one of `words`, as a byte with its position among them."""
    return Fixed(name, "B", 0, len(words) - 1, words.__getitem__, words.index)


def real(name: str, above: float, below: float) -> Fixed:
    """The field `name`: a floating-point number larger than `above` and smaller than `below`. NaN is never allowed."""
    return Fixed(name, "d", nextafter(above, inf), nextafter(below, -inf))


def count(name: str, code: str = "H", least: int = 0, most: float = inf) -> Fixed:
    """A field with the number of items of the attribute `name`. The items follow later, as a part of variable size."""
    return Fixed(name, code, least, most, counts=True)


def raw(name: str, size: int, read: Callable[[bytes], Any], write: Callable[[Any], bytes]) -> Fixed:
    """The field `name`: `size` bytes that `read` decodes and `write` encodes.

    `read` raises Unreadable if they are malformed.
    """
    return Fixed(name, f"{size}s", read=read, write=write)


class Part(ABC):
    """A part of a message: an attribute of variable size. All parts come after the fields of fixed size."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Encode the value of this part."""

    @abstractmethod
    def decode(self, body: bytes, at: int, items: int | None) -> tuple[Any, int]:
        """Decode this part at offset `at` of `body`; returns its value and the offset after it.

        `items` is the value of the part's `count` field; None if it has none.
        """


class Bytes(Part):
    """A byte string. The part's `count` field gives its length; without one, it extends to the end of the message."""

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[bytes, int]:
        end = _end_of_rows(self.name, body, at, items, 1)
        return body[at:end], end


class Values(Part):
    """Several byte strings of different sizes: first all lengths, then all strings. Needs a `count` field."""

    def encode(self, value: Sequence[bytes]) -> bytes:
        return b"".join((struct.pack(f"!{len(value)}I", *map(len, value)), *value))

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[tuple[bytes, ...], int]:
        number = items or 0
        start = at + 4 * number
        if start > len(body):
            raise Unreadable(
                f"field {self.name}: expected {4 * number} bytes for the lengths of {number} values, "
                f"found {len(body) - at}"
            )
        ends = list(accumulate(struct.unpack_from(f"!{number}I", body, at), initial=start))
        if ends[-1] > len(body):
            raise Unreadable(
                f"field {self.name}: expected {ends[-1] - start} bytes of values, found {len(body) - start}"
            )
        return tuple(body[a:b] for a, b in pairwise(ends)), ends[-1]


class Items(Part):
    """Nested messages of one kind, one after the other.

    The part's `count` field gives their number; without one, they extend to the end of the message.
    """

    def __init__(self, name: str, item: Spec[Any], *, ascending: bool = False) -> None:
        """With `ascending`, the encoder sorts the items, and the decoder refuses them in another order."""
        super().__init__(name)
        self._item = item
        self._ascending = ascending

    def encode(self, value: Iterable[Any]) -> bytes:
        return b"".join(map(self._item.encode, sorted(value) if self._ascending else value))

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[tuple[Any, ...], int]:
        found: list[Any] = []
        while at < len(body) if items is None else len(found) < items:
            item, at = self._item.decode_at(body, at)
            found.append(item)
        if self._ascending and found != sorted(found):
            earlier, later = next(pair for pair in pairwise(found) if pair[1] < pair[0])
            raise Unreadable(f"field {self.name}: expected items in ascending order, found {later} after {earlier}")
        return tuple(found), at


class Numbers(Part):
    """Numbers of equal size.

    The part's `count` field gives how many; without one, they fill the rest of the message.
    """

    def __init__(self, name: str, code: str, least: int = 0, most: float = inf) -> None:
        super().__init__(name)
        self._code, self._least, self._most = code, least, most

    def encode(self, value: Sequence[int]) -> bytes:
        return struct.pack(f"!{len(value)}{self._code}", *value)

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[tuple[int, ...], int]:
        size = struct.calcsize(self._code)
        end = _end_of_rows(self.name, body, at, items, size)
        numbers = struct.unpack_from(f"!{(end - at) // size}{self._code}", body, at)
        if numbers and not self._least <= min(numbers) <= max(numbers) <= self._most:
            raise Unreadable(f"field {self.name}: expected numbers from {self._least} to {self._most}, found {numbers}")
        return numbers, end


class Mapped(Part):
    """A mapping from numbers to numbers, each key once. The encoder writes the keys in ascending order."""

    def __init__(self, name: str, codes: str, most: float = SEQUENCE_LIMIT - 1) -> None:
        super().__init__(name)
        self._form = struct.Struct(f"!{codes}")
        self._most = most

    def encode(self, value: Mapping[int, int]) -> bytes:
        return b"".join(self._form.pack(*item) for item in sorted(value.items()))

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[dict[int, int], int]:
        end = _end_of_rows(self.name, body, at, items, self._form.size)
        found: dict[int, int] = dict(self._form.iter_unpack(body[at:end]))
        if len(found) != (end - at) // self._form.size or max(found.values(), default=0) > self._most:
            raise Unreadable(
                f"field {self.name}: expected each key once and values up to {self._most}, "
                f"found {len(found)} different keys in {(end - at) // self._form.size} entries, "
                f"and {max(found.values())} as the largest value"
            )
        return found, end


class Counted(Part):
    """Wraps a part: writes its number of items before it, so that a message can have several parts in a row."""

    def __init__(self, part: Part, code: str = "H") -> None:
        super().__init__(part.name)
        self._part = part
        self._form = struct.Struct(f"!{code}")

    def encode(self, value: Collection[Any]) -> bytes:
        return self._form.pack(len(value)) + self._part.encode(value)

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[Any, int]:
        start = at + self._form.size
        if start > len(body):
            raise Unreadable(
                f"field {self.name}: expected {self._form.size} bytes for the number of items, found {len(body) - at}"
            )
        return self._part.decode(body, start, self._form.unpack_from(body, at)[0])


class Sized(Part):
    """Wraps a part: writes its length in bytes directly before it."""

    def __init__(self, part: Part) -> None:
        super().__init__(part.name)
        self._part = part

    def encode(self, value: Any) -> bytes:
        data = self._part.encode(value)
        return _LENGTH.pack(len(data)) + data

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[Any, int]:
        start = at + _LENGTH.size
        if start > len(body):
            raise Unreadable(f"field {self.name}: expected {_LENGTH.size} bytes for the length, found {len(body) - at}")
        end = start + _LENGTH.unpack_from(body, at)[0]
        value, used = self._part.decode(body[start:end], 0, None)
        if start + used != end:
            raise Unreadable(f"field {self.name}: its length says {end - start} bytes, but its fields take {used}")
        return value, end


class Item(Part):
    """A part that is one nested message."""

    def __init__(self, name: str, item: Spec[Any]) -> None:
        super().__init__(name)
        self._item = item

    def encode(self, value: Any) -> bytes:
        return self._item.encode(value)

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[Any, int]:
        return self._item.decode_at(body, at)


class Keyed(Part):
    """A mapping from keys to nested messages. A `count` field gives the number of keys.

    A key is a number or a tuple of numbers and occurs once. The encoder writes the keys in ascending order.
    """

    def __init__(self, key_codes: str, value: Part) -> None:
        super().__init__(value.name)
        self._key = struct.Struct(f"!{key_codes}")
        self._is_tuple = len(key_codes) > 1
        self._value = value

    def encode(self, value: Mapping[Any, Any]) -> bytes:
        parts: list[bytes] = []
        for key, each in sorted(value.items(), key=itemgetter(0)):
            parts += (self._key.pack(*key) if self._is_tuple else self._key.pack(key), self._value.encode(each))
        return b"".join(parts)

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[dict[Any, Any], int]:
        found: dict[Any, Any] = {}
        for _ in range(items or 0):
            start = at + self._key.size
            if start > len(body):
                raise Unreadable(
                    f"field {self.name}: expected {self._key.size} bytes for a key, found {len(body) - at}"
                )
            key: Any = self._key.unpack_from(body, at)
            key = key if self._is_tuple else key[0]
            if key in found:
                raise Unreadable(f"field {self.name}: the key {key} occurs twice; each key may occur once")
            found[key], at = self._value.decode(body, start, None)
        return found, at


class Messages(Part):
    """A part that is a set of messages (`MessageSet`)."""

    def encode(self, value: MessageSet) -> bytes:
        return encode_set(value)

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[MessageSet, int]:
        return _read_set(body, at)


def _end_of_rows(name: str, body: bytes, at: int, items: int | None, size: int) -> int:
    """The offset after `items` rows of `size` bytes; if `items` is None, rows fill the rest of the message."""
    if items is None:
        if (len(body) - at) % size:
            raise Unreadable(
                f"field {name}: expected items of {size} bytes each, but {len(body) - at} bytes remain, "
                "which is no multiple"
            )
        return len(body)
    end = at + items * size
    if end > len(body):
        raise Unreadable(
            f"field {name}: expected {items} items of {size} bytes each, but only {len(body) - at} bytes remain"
        )
    return end


class Spec(Generic[_Message]):
    """The fields of one kind of message, in their order on the wire. Encoder, decoder and bounds follow from it.

    Fields of fixed size come first, then the parts of variable size. `check` says whether the fields of a message agree
    with each other; the bounds of a single field belong to the field.
    """

    def __init__(
        self,
        make: Callable[..., _Message],
        *fields: Fixed | Part,
        check: Callable[[_Message], bool] | None = None,
    ) -> None:
        self._make = make
        self._fixed = tuple(each for each in fields if isinstance(each, Fixed))
        self._parts = tuple(each for each in fields if isinstance(each, Part))
        if fields != (*self._fixed, *self._parts):
            raise TypeError(
                f"{make}: a field of fixed size comes after a part of variable size; put all fields of fixed size first"
            )
        self._form = struct.Struct("!" + "".join(each.code for each in self._fixed))
        self.size = self._form.size
        """The total number of bytes of the fields of fixed size."""
        self.types: tuple[Any, ...] = (make,)
        """The types of the messages that this specification encodes."""
        self._check = check
        self._names = tuple(each.name for each in self._fixed)
        self._values_of = attrgetter(*self._names) if len(self._names) > 1 else self._few_values_of
        self._written = tuple((at, each.to_wire) for at, each in enumerate(self._fixed) if each.to_wire is not None)
        self._bounded = tuple((at, each) for at, each in enumerate(self._fixed) if each.is_bounded)
        self._read = tuple((at, each.name, each.read) for at, each in enumerate(self._fixed) if each.read is not None)
        self._count_at = {each.name: at for at, each in enumerate(self._fixed) if each.counts}

    def encode(self, message: _Message) -> bytes:
        """Encode a message."""
        values = list(self._values_of(message))
        for at, to_wire in self._written:
            values[at] = to_wire(values[at])
        head = self._form.pack(*values)
        if not self._parts:
            return head
        return b"".join((head, *[part.encode(getattr(message, part.name)) for part in self._parts]))

    def _few_values_of(self, message: _Message) -> tuple[Any, ...]:
        """The fields of fixed size as a tuple, for messages with fewer than two; `attrgetter` needs two to give a
        tuple.
        """
        return tuple(getattr(message, name) for name in self._names)

    def _title(self) -> str:
        """The name of the message type, for error messages."""
        return getattr(self._make, "__name__", str(self._make))

    def decode(self, body: bytes) -> _Message:
        """Decode a message; raises Unreadable if it is malformed or a field is out of its bounds."""
        message, end = self.decode_at(body, 0)
        if end != len(body):
            raise Unreadable(
                f"{self._title()}: expected a message of {end} bytes, found {len(body) - end} more bytes after its end"
            )
        return message

    def decode_at(self, body: bytes, start: int) -> tuple[_Message, int]:
        """Decode the message that begins at offset `start` of `body`; returns the message and the offset after it."""
        at = start + self.size
        if len(body) < at:
            raise Unreadable(
                f"{self._title()}: expected {self.size} bytes for {', '.join(self._names)} at offset {start}, "
                f"but only {len(body) - start} remain"
            )
        fields = self._form.unpack_from(body, start)
        for index, field in self._bounded:
            if not field.least <= fields[index] <= field.most:
                raise Unreadable(f"field {field.name}: expected {field.least} to {field.most}, found {fields[index]}")
        attributes: dict[str, Any] = dict(zip(self._names, fields, strict=True))
        for index, name, read in self._read:
            attributes[name] = read(fields[index])
        for part in self._parts:
            count_at = self._count_at.get(part.name)
            attributes[part.name], at = part.decode(body, at, None if count_at is None else fields[count_at])
        message = self._make(**attributes)
        if self._check is not None and not self._check(message):
            raise Unreadable(f"the fields of the message do not agree with each other: {message}")
        return message, at


class Tagged(Generic[_Message]):
    """A specification for messages of several types. A first byte, the tag, says which type follows."""

    def __init__(self, *variants: tuple[int, Spec[Any]]) -> None:
        self._by_tag = dict(variants)
        self._by_type = {make: (tag, spec) for tag, spec in variants for make in spec.types}
        self.types: tuple[Any, ...] = tuple(self._by_type)

    def encode(self, message: _Message) -> bytes:
        """Encode a message: the tag of its type, then its fields."""
        tag, spec = self._by_type[type(message)]
        return _BYTE.pack(tag) + spec.encode(message)

    def decode(self, body: bytes) -> _Message:
        """Decode a message of the type that its tag says; raises Unreadable if the tag is unknown or the rest is
        malformed.
        """
        spec = self._by_tag.get(body[0]) if body else None
        if spec is None:
            raise Unreadable(
                f"expected one of the tags {sorted(self._by_tag)} in the first byte, "
                f"found {body[0] if body else 'an empty message'}"
            )
        message: _Message = spec.decode(body[1:])
        return message


# -- messages by the kind of their frame ---------------------------------------------------------------------

AnySpec: TypeAlias = Spec[Any] | Tagged[Any]
_specs: dict[Kind, AnySpec] = {}
_kinds: dict[type, tuple[Kind, AnySpec]] = {}


def register(specs: Mapping[Kind, AnySpec]) -> None:
    """Register the specifications of control messages. Each protocol's messages module registers its own."""
    for kind, spec in specs.items():
        if kind in _specs or not _kinds.keys().isdisjoint(spec.types):
            raise TypeError(
                f"{kind.name}: this kind of frame or one of the types {spec.types} already has a specification"
            )
        _specs[kind] = spec
        _kinds.update(dict.fromkeys(spec.types, (kind, spec)))


def encode_message(message: object) -> tuple[Kind, bytes]:
    """The kind and the body of the frame that carries a control message."""
    kind, spec = _kinds[type(message)]
    return kind, spec.encode(message)


def control_frame(
    message: object,
    sender: int,
    incarnation: int,
    epoch: int,
    *,
    slot: int = 0,
    number: int = 0,
    burst: int = 0,
    first_sequence: int = 0,
    sent_ns: int = 0,
    to: int = EVERYONE,
    multicast: bool = False,
) -> Frame:
    """A frame that carries the control message `message`."""
    kind, body = encode_message(message)
    header = (kind, sender, incarnation, epoch, slot, number, 0, burst, first_sequence, sent_ns)
    return Frame(*header, body=body, to=to, multicast=multicast, message=message)


def message_in(frame: Frame, expected: type[_Message]) -> _Message:
    """The control message of a frame, as the type `expected`; raises TypeError if the frame carries another type."""
    if not isinstance(frame.message, expected):
        raise TypeError(f"a frame of kind {frame.kind.name} carries {frame.message!r}, not a {expected.__name__}")
    return frame.message


def decode_message(kind: Kind, body: bytes) -> object:
    """Decode the control message in the body of a frame of this kind; raises Unreadable if it is malformed."""
    spec = _specs.get(kind)
    if spec is None:
        raise Unreadable(f"frames of kind {kind.name} carry no control message")
    message: object = spec.decode(body)
    return message
