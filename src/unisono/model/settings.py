"""The settings that adaptation changes in a running group: ρ, η, ω, forward error correction, the slot length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unisono.model.durations import duration_text


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that are requested or in force. None stands for a setting that is not requested."""

    redundancy: tuple[int, int, int] | None = None
    """ρ, and η and ω in nanoseconds."""
    fec: tuple[int, int] | None = None
    """(a, b): a of b shares are redundant."""
    theta_ns: int | None = None

    def text(self) -> str:
        """A text for the user."""
        parts = []
        if self.redundancy is not None:
            rho, eta_ns, omega_ns = self.redundancy
            parts.append(f"ρ = {rho}, η = {duration_text(eta_ns)}, ω = {duration_text(omega_ns)}")
        if self.fec is not None:
            parts.append(f"{self.fec[0]} redundant of {self.fec[1]} shares")
        if self.theta_ns is not None:
            parts.append(f"slots of {duration_text(self.theta_ns)}")
        return "; ".join(parts) or "as declared"


def strongest(requests: Iterable[Settings]) -> Settings:
    """The settings that satisfy all requests: the most copies at the shortest η and ω, most shares, shortest slots.

    The result does not depend on the order of the requests, so members with the same requests agree.
    """
    known = tuple(requests)
    copies = [request.redundancy for request in known if request.redundancy is not None]
    shares = [request.fec for request in known if request.fec is not None]
    slots = [request.theta_ns for request in known if request.theta_ns is not None]
    return Settings(
        max(copies, key=lambda c: (c[0], -c[1], -c[2]), default=None),
        max(shares, default=None),
        min(slots, default=None),
    )
