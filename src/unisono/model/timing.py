"""Δ, Γ and Θ, and the slots of length Θ (paper 000 §2.2, §5). Slots count from the Unix epoch (erratum 000-19)."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.errors import InvalidOption

DELTA_DEFAULT, GAMMA_DEFAULT, SLOT_DEFAULT = "50ms", "5ms", "5ms"
"""The defaults of `join` and of every command line.

Δ allows for a scheduler that keeps a process waiting, Γ for clocks kept by a time service; Δ+Γ+Θ is 60 ms. While all
members are up, a large Δ delays nothing, because complete slots are delivered at once. A small Δ excludes slow members.
"""

SLOT_MIN_NS, SLOT_MAX_NS = 1_000, 60_000_000_000
"""The shortest slot, and the longest that a running group can change to."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Δ: the largest network delay. Γ: the largest difference between two clocks. Θ: the slot length."""

    delta_ns: int
    gamma_ns: int
    theta_ns: int

    def __post_init__(self) -> None:
        if self.theta_ns < SLOT_MIN_NS:
            raise InvalidOption("slot", f"expected a slot of at least 1us, got {self.theta_ns} ns")
        if self.delta_ns < 0:
            raise InvalidOption("delta", f"expected a delay of at least 0, got {self.delta_ns} ns")
        if self.gamma_ns < 0:
            raise InvalidOption("gamma", f"expected a clock difference of at least 0, got {self.gamma_ns} ns")

    def slot_of(self, clock_ns: int) -> int:
        """The slot at a clock reading."""
        return clock_ns // self.theta_ns

    def start_of(self, slot: int) -> int:
        """The clock reading at which a slot begins."""
        return slot * self.theta_ns

    def end_of(self, slot: int) -> int:
        """The clock reading at which a slot ends: the first instant of the next slot."""
        return (slot + 1) * self.theta_ns

    def smax(self, clock_ns: int) -> int:
        """The first slot that begins after all members have received a message sent now (§6.3, erratum 000-24)."""
        return (clock_ns + self.delta_ns + self.gamma_ns) // self.theta_ns + 1
