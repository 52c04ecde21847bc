"""Δ, Γ, Θ and the slots that they make (paper 000 §2.2, §5; slots are absolute, erratum 000-19)."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.errors import InvalidOption

DELTA_DEFAULT, GAMMA_DEFAULT, SLOT_DEFAULT = "50ms", "5ms", "5ms"
"""What holds where nobody says otherwise, in `join` and on every command line.

Δ has room for a scheduler that keeps a process waiting, Γ for clocks that a time service keeps; Δ+Γ+Θ is 60 ms. While
all goes well a large Δ delays nothing: what is here is delivered. A small one gives members up that are only slow.
"""

SLOT_MIN_NS, SLOT_MAX_NS = 1_000, 60_000_000_000
"""Between these a slot's length may be changed to."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Δ: the network's largest delay. Γ: the largest difference between two clocks. Θ: the slot's length."""

    delta_ns: int
    gamma_ns: int
    theta_ns: int

    def __post_init__(self) -> None:
        if self.theta_ns < SLOT_MIN_NS:
            raise InvalidOption("slot", f"a slot of at least 1us is needed, not {self.theta_ns} ns")
        if self.delta_ns < 0:
            raise InvalidOption("delta", f"a delay cannot be negative, and {self.delta_ns} ns is")
        if self.gamma_ns < 0:
            raise InvalidOption("gamma", f"a clock difference cannot be negative, and {self.gamma_ns} ns is")

    def slot_of(self, clock_ns: int) -> int:
        """The slot that a clock is in."""
        return clock_ns // self.theta_ns

    def start_of(self, slot: int) -> int:
        """The clock reading at which a slot begins."""
        return slot * self.theta_ns

    def end_of(self, slot: int) -> int:
        """The clock reading at which a slot is over: the first instant of the next one."""
        return (slot + 1) * self.theta_ns

    def smax(self, clock_ns: int) -> int:
        """The first slot before which everyone is sure to have what is sent now (§6.3, erratum 000-24)."""
        return (clock_ns + self.delta_ns + self.gamma_ns) // self.theta_ns + 1
