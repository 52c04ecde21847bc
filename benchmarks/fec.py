"""How fast forward error correction codes, in MB of originals per second of one core's time.

`code` is the erasure code alone, as zfec does it; `layer` is all that a frame meets: encoding, cutting blocks, headers
and coding on the way down, the door, bookkeeping and reconstruction on the way up. Receiving is measured without loss
and with the first `a` shares of every block lost, which is the most work. Run: python -m benchmarks.fec
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from random import Random

from unisono.layers.fec import Fec
from unisono.model.ids import group_key
from unisono.model.policy import Policy
from unisono.model.rates import Rate
from unisono.model.timing import Timing
from unisono.model.views import View
from unisono.wire.door import Door
from unisono.wire.fec import Share, missing_originals, redundant_shares
from unisono.wire.frame import HEADER_BYTES, LAST, Frame, Kind, encode
from unisono.wire.run import HEAD_BYTES, OwnRun

GROUP = "fec"
BLOCKS = 8
"""Per slot."""
LEAST_S = 0.4
"""Each figure is the best of three stretches of at least this long."""


def rate_mb(work: Callable[[], int]) -> float:
    """MB per second of processor time; `work` gives the bytes that it has treated."""
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
    payload = size - HEADER_BYTES - HEAD_BYTES
    return [
        Frame(
            Kind.DATA,
            1,
            1,
            0,
            slot,
            number,
            LAST if number == count - 1 else 0,
            8,
            number,
            1,
            OwnRun([chance.randbytes(payload)], True),
        )
        for number in range(count)
    ]


def policy(member: int, fec: tuple[int, int]) -> Policy:
    timing = Timing(10_000_000, 1_000_000, 5_000_000)
    return Policy(GROUP, member, View((1, 2)), timing, Rate(1e6, 100), max_frame=65_507, fec=fec)


class Coding:
    """One size of frames, one (a, b)."""

    def __init__(self, size: int, a: int, b: int) -> None:
        self.size, self.a, self.b = size, a, b
        self.key = group_key(GROUP)
        self.originals = BLOCKS * (b - a)
        self.slots = [slot_frames(size, self.originals, slot) for slot in range(1, 9)]
        self.fec = Fec(policy(1, (a, b)))
        self.datagrams = [[encode(share, self.key) for share in self._sent(slot)] for slot in range(len(self.slots))]
        door = Door(self.key, 2, (1, 2), fec=True)
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
        fec, door = Fec(policy(2, (self.a, self.b))), Door(self.key, 2, (1, 2), fec=True)
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


def main() -> None:
    """The table."""
    out = sys.stdout.write
    out(f"{'a/b':>6} {'frame':>7} {'code':>8} {'decode':>8} {'send':>8} {'receive':>8} {'with loss':>9}   MB/s\n")
    for a, b in ((2, 10), (2, 12), (1, 5)):
        for size in (1400, 60_000):
            coding = Coding(size, a, b)
            figures = [rate_mb(coding.code), rate_mb(coding.decode), rate_mb(coding.send)]
            figures += [rate_mb(lambda lost=lost, c=coding: c.receive(lost)) for lost in (0, a)]  # type: ignore[misc]
            code, decode, send, whole, lossy = figures
            out(f"{a:>3}/{b:<2} {size:>7} {code:8.0f} {decode:8.0f} {send:8.0f} {whole:8.0f} {lossy:9.0f}\n")


if __name__ == "__main__":
    main()
