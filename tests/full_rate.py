"""The highest rate that slots can carry, for tests that are not about the average rate."""

from unisono.model.timing import Timing
from unisono.model.units import NS_PER_S, Rate


def full_rate(burst: int, timing: Timing, burst_bytes: int | None = None) -> Rate:
    """A full burst in every slot. The average is rounded up, so that it never limits a slot."""
    return Rate(burst * NS_PER_S / timing.theta_ns * (1 + 1e-10), burst, burst_bytes)
