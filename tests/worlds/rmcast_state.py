"""How much state a reliable multicast layer keeps."""

from __future__ import annotations

from unisono.net.rmcast.layer import Rmcast


def held_counts(layer: Rmcast) -> tuple[int, int]:
    """How many frames are kept for a broadcast, and how many numbers above the contiguous range are tracked."""
    streams = layer._streams.values()
    return layer._own_broadcasting + sum(len(s.held) for s in streams), sum(len(s.received.seen) for s in streams)
