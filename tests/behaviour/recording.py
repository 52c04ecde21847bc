"""Hashes the behaviour of simulated members: the datagrams that they send, the records that they store, their trace.

The hash must survive renames, moves and new trace columns. It therefore covers a fixed list of labelled values, and
never the name of a class, a module or a column, nor any text for people. All code that depends on the present names is
in this file: the hooks in `recorded`, the columns in `_columns` and the adapters `detail` and `frame_bytes`. Adapt
these when the code changes, so that the hash stays the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from unisono.model.effects import Datagram, Write
from unisono.sim.disk import SimDisk
from unisono.sim.member import SimulatedMember
from unisono.sim.world import World
from unisono.trace.schema import ABSENT, KINDS
from unisono.trace.table import Rows, Trace
from unisono.wire.frame import Frame, encode

Ints: TypeAlias = npt.NDArray[np.int64]

STREAMS: Final = ("datagrams", "records", "interleaving", "rows", "outcome")
"""The hashed aspects of a run, one hash each. `interleaving` is the order of stored records and sent datagrams."""
PLAIN_KINDS: Final = ("send", "deliver", "start", "leave", "crash", "gap")
DETAILED_KINDS: Final = ("view", "violation", "notice", "timing", "receive", "queue")
"""The kinds of rows that are hashed, by their name in the file. Detailed kinds have a `detail`. Others are ignored."""


def _digest() -> Any:
    return hashlib.blake2b(digest_size=16)


class Recording:
    """The hashes of one run, and the number of items in each."""

    def __init__(self) -> None:
        self._hashes: dict[str, Any] = {stream: _digest() for stream in STREAMS}
        self._disks: dict[int, int] = {}
        self._kept: list[object] = []
        self.counts: dict[str, int] = dict.fromkeys(STREAMS, 0)

    def datagram(self, now: int, sender: int, to: int, multicast: bool, data: bytes) -> None:
        """A member sends a datagram; `to` is 0 for a datagram to all members."""
        self._add("datagrams", b"%d %d %d %d %d " % (now, sender, to, multicast, len(data)), data)
        self._add("interleaving", b"d")

    def stored(self, disk: object, writes: Iterable[tuple[bool, bool, Sequence[bytes]]]) -> None:
        """A member stores records: (whether they replace all stored ones, whether a crash may lose them, records)."""
        number = self.disk_number(disk)
        for replaces, may_be_lost, records in writes:
            if replaces:
                self._add("records", b"%d replace " % number)
            for record in records:
                self._add("records", b"%d %d %d " % (number, may_be_lost, len(record)), record)
                self._add("interleaving", b"r%d " % number)

    def disk_number(self, disk: object) -> int:
        """Disks are numbered in the order in which they are made, or first written to."""
        number = self._disks.get(id(disk))
        if number is None:
            number = self._disks[id(disk)] = len(self._disks)
            self._kept.append(disk)  # otherwise another disk could get the same id
        return number

    def outcome(self, *values: object) -> None:
        """Other results of a run, as numbers, bytes, text and tuples of these."""
        for value in values:
            self._add("outcome", repr(value).encode(), b"\n")

    def rows(self, trace: Trace) -> None:
        """The rows of the run's trace, independent of their order and of the codes of their words."""
        columns = _columns(trace)
        order = np.lexsort(tuple(column for _, column in reversed(columns)))
        for label, column in columns:
            self._add("rows", f"{label}:{len(column)}:".encode(), column[order].astype("<i8").tobytes())
        self.counts["rows"] += len(order) - len(columns)

    def _add(self, stream: str, *parts: bytes) -> None:
        for part in parts:
            self._hashes[stream].update(part)
        self.counts[stream] += 1

    def hexdigests(self) -> dict[str, str]:
        """By stream, the hash of all that was given."""
        return {stream: found.hexdigest() for stream, found in self._hashes.items()}


@contextmanager
def recorded() -> Iterator[Recording]:
    """Record the datagrams and stored records of all simulated members while the context is open.

    All datagrams of simulated members pass through `World.transmit`, and all their records through `SimDisk.apply`.
    When these move, hook into their successors. A datagram is recorded with the true time, the sender, the destination
    (0 for all members), whether IP multicast may be used, and the bytes. Records are recorded in order.
    """
    recording = Recording()
    transmit, apply, make_disk = World.transmit, SimDisk.apply, SimDisk.__init__

    def making(self: SimDisk, *arguments: Any, **options: Any) -> None:
        make_disk(self, *arguments, **options)
        recording.disk_number(self)

    def transmitting(self: World, now: int, node: SimulatedMember, datagrams: Sequence[Datagram]) -> None:
        for datagram in datagrams:
            to = 0 if datagram.to_group else datagram.destinations[0]
            recording.datagram(now, node.member, to, datagram.multicast, datagram.data)
        transmit(self, now, node, datagrams)

    def applying(self: SimDisk, writes: Iterable[Write]) -> None:
        given = list(writes)
        recording.stored(self, [(write.replaces_all, write.may_be_lost, write.records) for write in given])
        apply(self, given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "transmit", transmitting)
        patch.setattr(SimDisk, "apply", applying)
        patch.setattr(SimDisk, "__init__", making)
        yield recording


def frame_bytes(frame: Frame) -> bytes:
    """A frame of a bare automaton, which has no stack to encode it. Group 0 and no serial number stand in its header.

    When automata give typed messages instead of frames, encode the message into the same frame here.
    """
    return encode(frame, group=0)


def detail(kind: str, rows: Rows, at: int) -> tuple[object, ...]:
    """The content of a row apart from its numbers, in a canonical form without free text.

    - violation, notice: its kind as a token; for a topology notice also the groups that its member communicates with
    - view: (member, incarnation) for each member, with incarnation 0 if the row has none
    - timing: the slot length and the latency bound from then on, in nanoseconds
    - receive: (sender, sequence) of each message of the target tail, sorted
    - queue: (sender, sequence) of the message at the insertion point, (0, 0) for the tail
    """
    match kind:
        case "violation" | "notice":
            talks = int(rows.talks_with[at])
            return (rows.tokens[int(rows.token[at])], *(sorted(rows.talk_lists[talks]) if talks >= 0 else ()))
        case "view":
            return rows.listed_runs(at) or tuple((member, 0) for member in rows.listed(at))
        case "timing":
            return int(rows.theta_ns[at]), int(rows.bound_ns[at])
        case "receive" | "queue":
            code = int(rows.messages[at])
            text = rows.message_texts[code] if code >= 0 else ""
            return _each(text) if kind == "receive" else tuple(map(int, re.findall(r"\d+", text)))
    raise ValueError(f"rows of kind {kind} have no detail")


def _each(ranges: str) -> tuple[tuple[int, int], ...]:
    """The messages of a target tail, which is written as `1.0-2 3.5`."""
    found = []
    for part in ranges.split():
        sender, _, numbers = part.partition(".")
        first, _, last = numbers.partition("-")
        found += [(int(sender), number) for number in range(int(first), int(last or first) + 1)]
    return tuple(sorted(found))


@lru_cache(maxsize=1 << 16)
def _code(value: object) -> int:
    """A number that depends only on the value, not on the other values in a trace."""
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), signed=True)


def _columns(trace: Trace) -> list[tuple[str, Ints]]:
    """The hashed values of the hashed rows, one column per label; ABSENT if a row has no such value."""
    words = [kind.value for kind in KINDS]
    hashed = np.isin(trace.kind, [code for code, word in enumerate(words) if word in PLAIN_KINDS + DETAILED_KINDS])
    rows = trace.select(hashed)

    def coded(codes: npt.NDArray[Any], table: Sequence[object]) -> Ints:
        found = np.array([*map(_code, table), ABSENT], dtype=np.int64)  # the code -1 gives the last
        return found[codes.astype(np.int64)]

    details = np.full(len(rows), ABSENT, dtype=np.int64)
    detailed = [code for code, word in enumerate(words) if word in DETAILED_KINDS]
    for at in np.flatnonzero(np.isin(rows.kind, detailed)).tolist():
        details[at] = _code(detail(words[int(rows.kind[at])], rows, at))
    numbers: list[tuple[str, npt.NDArray[Any]]] = [
        ("member", rows.member),
        ("recorder incarnation", rows.recorder_incarnation),
        ("kind", coded(rows.kind, words)),
        ("sender", rows.sender),
        ("sender incarnation", rows.sender_incarnation),
        ("sequence", rows.sequence),
        ("slot", rows.slot),
        ("place", rows.place),
        ("index", rows.index),
        ("real time", rows.real_ns),
        ("local time", rows.local_ns),
        ("size", rows.size),
        ("priority", rows.priority),
        ("view", rows.view),
        ("grade", coded(rows.grade, rows.grades)),
        ("destinations", coded(rows.destinations, rows.destination_sets)),
        ("detail", details),
    ]
    return [(label, column.astype(np.int64)) for label, column in numbers]


Play: TypeAlias = Callable[[int, Recording], None]
"""Runs one seed of a family, and adds to the recording the results that the hooks do not see."""


def played(play: Play, seed: int) -> Recording:
    """The recording of one run."""
    with recorded() as recording:
        play(seed, recording)
    return recording
