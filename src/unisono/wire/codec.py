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
    """Encode a message set as the sequence ranges of each origin. Equal sets have equal bytes."""
    parts = [_COUNT.pack(len(messages.ranges))]
    for origin, ranges in sorted(messages.ranges.items()):
        parts.append(_ORIGIN.pack(*origin, len(ranges)))
        parts += [_RANGE.pack(first, last - first) for first, last in ranges]
    return b"".join(parts)


def _read_set(data: bytes, at: int) -> tuple[MessageSet, int]:
    """Read a message set; returns it and the offset after it.

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
                raise Unreadable(f"message set: origin ({sender}, {incarnation}) is repeated or has no ranges")
            read: list[SequenceRange] = []
            for _ in range(number):
                first, more = _RANGE.unpack_from(data, at)
                at += _RANGE.size
                if first >= SEQUENCE_LIMIT or (read and first <= read[-1][1] + 1):
                    raise Unreadable(f"message set: the range that starts at {first} is out of order or too large")
                read.append((first, first + more))
            ranges[sender, incarnation] = tuple(read)
    except struct.error as error:
        raise Unreadable(f"message set: the data ends inside it, at offset {at}") from error
    return MessageSet(ranges), at


# -- specifications ------------------------------------------------------------------------------------------

_Message = TypeVar("_Message")


@dataclass(frozen=True, slots=True)
class Fixed:
    """A field of fixed size: its attribute in the message, its struct code, and the values that are allowed.

    `read` turns the number on the wire into the attribute's value, and `write` does the reverse. With `counts`, the
    field is not an attribute but the number of items of that attribute, whose part follows.
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
        """Turns the attribute into the value on the wire; None if they are the same."""
        return len if self.counts else self.write

    @property
    def is_bounded(self) -> bool:
        """Whether the struct code can hold a value that is not allowed."""
        return self.least != 0 or self.most < 2 ** (8 * struct.calcsize(f"!{self.code}")) - 1


def u8(name: str, least: int = 0, most: int = 2**8 - 1) -> Fixed:
    """A number of 8 bits."""
    return Fixed(name, "B", least, most)


def u16(name: str, least: int = 0, most: int = 2**16 - 1) -> Fixed:
    """A number of 16 bits, such as a member."""
    return Fixed(name, "H", least, most)


def u32(name: str, least: int = 0, most: int = 2**32 - 1) -> Fixed:
    """A number of 32 bits, such as an incarnation."""
    return Fixed(name, "I", least, most)


def u63(name: str, least: int = 0, most: int = SEQUENCE_LIMIT - 1) -> Fixed:
    """A number of 64 bits that is less than 2**63, so that sums of two of them still fit: slots, times, sequences."""
    return Fixed(name, "Q", least, most)


def u64(name: str) -> Fixed:
    """Any number of 64 bits."""
    return Fixed(name, "Q")


def boolean(name: str) -> Fixed:
    """A byte that is 0 or 1."""
    return Fixed(name, "B", 0, 1, bool)


def choice(name: str, options: type[IntEnum]) -> Fixed:
    """A byte with the value of an enumeration, whose values have no gaps."""
    if sorted(options) != list(range(min(options), max(options) + 1)):
        raise TypeError(f"{name}: the values of {options} have gaps")
    return Fixed(name, "B", min(options), max(options), options)


def real(name: str, above: float, below: float) -> Fixed:
    """A floating-point number between two others, which are not allowed themselves. NaN is never allowed."""
    return Fixed(name, "d", nextafter(above, inf), nextafter(below, -inf))


def count(name: str, code: str = "H", least: int = 0, most: float = inf) -> Fixed:
    """The number of items of the attribute `name`, whose part follows later."""
    return Fixed(name, code, least, most, counts=True)


def raw(name: str, size: int, read: Callable[[bytes], Any], write: Callable[[Any], bytes]) -> Fixed:
    """A value of `size` bytes that is not one number. `read` raises Unreadable if the bytes are malformed."""
    return Fixed(name, f"{size}s", read=read, write=write)


class Part(ABC):
    """An attribute of variable size, after the fields of fixed size."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Encode the attribute's value."""

    @abstractmethod
    def decode(self, body: bytes, at: int, items: int | None) -> tuple[Any, int]:
        """Decode the value at offset `at`; returns it and the offset after it. `items` is the number of its `count`."""


class Bytes(Part):
    """As many bytes as the `count` says; without a `count`, all bytes up to the end of the message."""

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[bytes, int]:
        end = _end_of_rows(self.name, body, at, items, 1)
        return body[at:end], end


class Values(Part):
    """Byte strings of different sizes: a table of their lengths, then the strings."""

    def encode(self, value: Sequence[bytes]) -> bytes:
        return b"".join((struct.pack(f"!{len(value)}I", *map(len, value)), *value))

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[tuple[bytes, ...], int]:
        number = items or 0
        start = at + 4 * number
        if start > len(body):
            raise Unreadable(f"{self.name}: the lengths of {number} values do not fit")
        ends = list(accumulate(struct.unpack_from(f"!{number}I", body, at), initial=start))
        if ends[-1] > len(body):
            raise Unreadable(f"{self.name}: the values take {ends[-1] - start} bytes, {len(body) - start} remain")
        return tuple(body[a:b] for a, b in pairwise(ends)), ends[-1]


class Items(Part):
    """Messages one after the other: as many as the `count` says; without a `count`, up to the end of the message."""

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
            raise Unreadable(f"{self.name}: the items are not in ascending order")
        return tuple(found), at


class Numbers(Part):
    """Numbers of equal size. Without a `count`, they fill the rest of the message."""

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
            raise Unreadable(f"{self.name}: expected numbers from {self._least} to {self._most}, found {numbers}")
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
            raise Unreadable(f"{self.name}: a key is repeated, or a value is more than {self._most}")
        return found, end


class Counted(Part):
    """A part directly after the number of its items, for a message with several parts behind each other."""

    def __init__(self, part: Part, code: str = "H") -> None:
        super().__init__(part.name)
        self._part = part
        self._form = struct.Struct(f"!{code}")

    def encode(self, value: Collection[Any]) -> bytes:
        return self._form.pack(len(value)) + self._part.encode(value)

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[Any, int]:
        start = at + self._form.size
        if start > len(body):
            raise Unreadable(f"{self.name}: the number of items is missing")
        return self._part.decode(body, start, self._form.unpack_from(body, at)[0])


class Sized(Part):
    """A part directly after its length in bytes."""

    def __init__(self, part: Part) -> None:
        super().__init__(part.name)
        self._part = part

    def encode(self, value: Any) -> bytes:
        data = self._part.encode(value)
        return _LENGTH.pack(len(data)) + data

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[Any, int]:
        start = at + _LENGTH.size
        if start > len(body):
            raise Unreadable(f"{self.name}: the length is missing")
        end = start + _LENGTH.unpack_from(body, at)[0]
        value, used = self._part.decode(body[start:end], 0, None)
        if start + used != end:
            raise Unreadable(f"{self.name}: expected {end - start} bytes, found {used}")
        return value, end


class Item(Part):
    """One message inside another."""

    def __init__(self, name: str, item: Spec[Any]) -> None:
        super().__init__(name)
        self._item = item

    def encode(self, value: Any) -> bytes:
        return self._item.encode(value)

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[Any, int]:
        return self._item.decode_at(body, at)


class Keyed(Part):
    """A mapping with a `count`, each key once: a number or a tuple of numbers. The encoder writes the keys in order."""

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
                raise Unreadable(f"{self.name}: a key is missing")
            key: Any = self._key.unpack_from(body, at)
            key = key if self._is_tuple else key[0]
            if key in found:
                raise Unreadable(f"{self.name}: the key {key} is repeated")
            found[key], at = self._value.decode(body, start, None)
        return found, at


class Messages(Part):
    """A message set."""

    def encode(self, value: MessageSet) -> bytes:
        return encode_set(value)

    def decode(self, body: bytes, at: int, items: int | None) -> tuple[MessageSet, int]:
        return _read_set(body, at)


def _end_of_rows(name: str, body: bytes, at: int, items: int | None, size: int) -> int:
    """The offset after rows of this size: `items` of them, or as many as the message still has."""
    if items is None:
        if (len(body) - at) % size:
            raise Unreadable(f"{name}: {len(body) - at} bytes are not a whole number of items of {size} bytes")
        return len(body)
    end = at + items * size
    if end > len(body):
        raise Unreadable(f"{name}: {items} items of {size} bytes do not fit into {len(body) - at} bytes")
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
            raise TypeError(f"{make}: fields of fixed size come before parts of variable size")
        self._form = struct.Struct("!" + "".join(each.code for each in self._fixed))
        self.size = self._form.size
        """The bytes of the fields of fixed size."""
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
        """What `attrgetter` gives for two names or more, for one name or none."""
        return tuple(getattr(message, name) for name in self._names)

    def decode(self, body: bytes) -> _Message:
        """Decode a message; raises Unreadable if it is malformed or a field is out of its bounds."""
        message, end = self.decode_at(body, 0)
        if end != len(body):
            raise Unreadable(f"{len(body) - end} unexpected bytes after the end")
        return message

    def decode_at(self, body: bytes, start: int) -> tuple[_Message, int]:
        """Decode the message that begins at an offset; returns it and the offset after it."""
        at = start + self.size
        if len(body) < at:
            raise Unreadable(f"expected {self.size} bytes at offset {start}, but only {len(body) - start} remain")
        fields = self._form.unpack_from(body, start)
        for index, field in self._bounded:
            if not field.least <= fields[index] <= field.most:
                raise Unreadable(f"{field.name}: expected {field.least} to {field.most}, found {fields[index]}")
        attributes: dict[str, Any] = dict(zip(self._names, fields, strict=True))
        for index, name, read in self._read:
            attributes[name] = read(fields[index])
        for part in self._parts:
            count_at = self._count_at.get(part.name)
            attributes[part.name], at = part.decode(body, at, None if count_at is None else fields[count_at])
        message = self._make(**attributes)
        if self._check is not None and not self._check(message):
            raise Unreadable(f"the fields contradict each other: {message}")
        return message, at


class Tagged(Generic[_Message]):
    """Messages of several types behind a byte that tells which type follows."""

    def __init__(self, *variants: tuple[int, Spec[Any]]) -> None:
        self._by_tag = dict(variants)
        self._by_type = {make: (tag, spec) for tag, spec in variants for make in spec.types}
        self.types: tuple[Any, ...] = tuple(self._by_type)

    def encode(self, message: _Message) -> bytes:
        """Encode a message after its tag."""
        tag, spec = self._by_type[type(message)]
        return _BYTE.pack(tag) + spec.encode(message)

    def decode(self, body: bytes) -> _Message:
        """Decode a message by its tag; raises Unreadable."""
        spec = self._by_tag.get(body[0]) if body else None
        if spec is None:
            raise Unreadable(f"unknown tag {body[:1]!r}")
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
            raise TypeError(f"{kind.name}: the kind or one of the types {spec.types} is registered already")
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
    """A frame that carries a control message."""
    kind, body = encode_message(message)
    header = (kind, sender, incarnation, epoch, slot, number, 0, burst, first_sequence, sent_ns)
    return Frame(*header, body=body, to=to, multicast=multicast, message=message)


def message_in(frame: Frame, expected: type[_Message]) -> _Message:
    """The control message of a frame whose kind is known to carry this type."""
    if not isinstance(frame.message, expected):
        raise TypeError(f"a frame of kind {frame.kind.name} carries {frame.message!r}, not a {expected.__name__}")
    return frame.message


def decode_message(kind: Kind, body: bytes) -> object:
    """The control message in the body of a frame of this kind; raises Unreadable."""
    spec = _specs.get(kind)
    if spec is None:
        raise Unreadable(f"frames of kind {kind.name} carry no control message")
    message: object = spec.decode(body)
    return message
