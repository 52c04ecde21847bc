"""How fast forward error correction codes, in MB of originals per second of one core's time.

`code` is the erasure code alone, by zfec if it is installed; `layer` is all that a frame meets: encoding, cutting
blocks, headers and coding on the way down, the door, bookkeeping and reconstruction on the way up. Receiving is
measured without loss and with the first `a` shares of every block lost, which is the most work. Run: python -m
benchmarks --only fec
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from benchmarks.progress import Say, silence
from unisono.model.events import View
from unisono.model.policy import Policy
from unisono.model.timing import Timing
from unisono.model.units import Rate, group_key
from unisono.net.fec.layer import Fec
from unisono.net.fec.shares import Share, missing_originals, redundant_shares
from unisono.wire.door import Door
from unisono.wire.frame import END_OF_SLOT, HEADER_BYTES, PACKED_HEADER_BYTES, Frame, Kind, OutgoingMessages, encode

GROUP = "fec"
BLOCKS = 8
"""Per slot."""
LEAST_S = 0.4
"""Each figure is the best of three measurements of at least this long."""


def rate_mb(work: Callable[[], int]) -> float:
    """MB per second of processor time; `work` returns the number of bytes that it processed."""
    best = 0.0
    for _ in range(3):
        done, begin = 0, time.process_time()
        while (spent := time.process_time() - begin) < LEAST_S:
            done += work()
        best = max(best, done / spent / 1e6)
    return best


def slot_frames(size: int, count: int, slot: int) -> list[Frame]:
    """A slot of `count` frames of `size` bytes."""
    chance = Random(slot)
    payload = size - HEADER_BYTES - PACKED_HEADER_BYTES
    return [
        Frame(
            Kind.DATA,
            1,
            1,
            0,
            slot,
            number,
            END_OF_SLOT if number == count - 1 else 0,
            8,
            number,
            1,
            OutgoingMessages([chance.randbytes(payload)], True),
        )
        for number in range(count)
    ]


def policy(member: int, fec: tuple[int, int]) -> Policy:
    timing = Timing(10_000_000, 1_000_000, 5_000_000)
    return Policy(GROUP, member, View((1, 2)), timing, Rate(20_000, 100), max_frame=65_507, fec=fec)


class Coding:
    """One size of frames, one (a, b)."""

    def __init__(self, size: int, a: int, b: int) -> None:
        self.size, self.a, self.b = size, a, b
        self.key = group_key(GROUP)
        self.originals = BLOCKS * (b - a)
        self.slots = [slot_frames(size, self.originals, slot) for slot in range(1, 9)]
        self.fec = Fec(policy(1, (a, b)))
        self.datagrams = [[encode(share, self.key) for share in self._sent(slot)] for slot in range(len(self.slots))]
        door = Door(self.key, 2, (1, 2), layered=frozenset({Kind.FEC}))
        admitted = [door.admit(data, 0, len(data), 2**62) for data in self.datagrams[0][: b + 1]]
        shares = [share for share in admitted if isinstance(share, Share) and share.block == 0]
        self.block = [bytes(share.body) for share in shares[: b - a]]
        self.kept = {share.index: share for share in shares[a:]}

    def _sent(self, slot: int) -> list[Frame]:
        for frame in self.slots[slot]:
            self.fec.from_above(0, frame)
        shares, self.fec.down = self.fec.down, []
        return shares

    def code(self) -> int:
        redundant_shares(self.block, self.a)
        return self.size * (self.b - self.a)

    def decode(self) -> int:
        missing_originals(self.kept)
        return self.size * (self.b - self.a)

    def send(self) -> int:
        for slot in range(len(self.slots)):
            self._sent(slot)
        return len(self.slots) * self.originals * self.size

    def receive(self, lost: int) -> int:
        fec, door = Fec(policy(2, (self.a, self.b))), Door(self.key, 2, (1, 2), layered=frozenset({Kind.FEC}))
        for datagrams in self.datagrams:
            for position, data in enumerate(datagrams):
                if position % self.b < lost:
                    continue
                share = door.admit(data, 0, len(data), 2**62)
                if share is not None:
                    fec.from_below(0, share)
            if len(fec.up) != self.originals:
                raise RuntimeError(f"{len(fec.up)} of {self.originals} originals came up")
            fec.up.clear()
        return len(self.datagrams) * self.originals * self.size


CODED = ((2, 12), (2, 10), (1, 5))
"""(a, b): blocks of ten originals with two redundant shares, and two smaller ones."""
SIZES = (1400, 60_000)
TARGET_MB = 200
"""For blocks of ten with two redundant."""


def rows(*, quick: bool = False, say: Say = silence) -> list[dict[str, Any]]:
    """One row per (a, b) and size of frames."""
    found = []
    for a, b in CODED[:1] if quick else CODED:
        for size in SIZES:
            say(f"fec: {a}/{b}, frames of {size} bytes")
            coding = Coding(size, a, b)
            row: dict[str, Any] = {
                "work": f"{a}/{b}, {size:,} B",
                "code": rate_mb(coding.code),
                "decode": rate_mb(coding.decode),
                "send": rate_mb(coding.send),
                "receive": rate_mb(partial(coding.receive, 0)),
                "lossy": rate_mb(partial(coding.receive, a)),
            }
            found.append({name: round(value) if isinstance(value, float) else value for name, value in row.items()})
            if (a, b) == CODED[0]:
                found[-1]["target"] = TARGET_MB
    return found
