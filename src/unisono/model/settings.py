"""What adaptation can set while a group runs: ρ, η, ω, the strength of forward error correction, the slot's length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unisono.model.durations import duration_text


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that are demanded or in force; None where nothing is demanded."""

    redundancy: tuple[int, int, int] | None = None
    """ρ, η and ω, in nanoseconds."""
    fec: tuple[int, int] | None = None
    """a redundant of b shares."""
    theta_ns: int | None = None

    def text(self) -> str:
        """In words."""
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
    """What satisfies all of them: the most copies and of those the quickest, the most shares, the shortest slots.

    It does not depend on their order, so members that know the same demands have the same settings.
    """
    found = tuple(requests)
    copies = [demand.redundancy for demand in found if demand.redundancy is not None]
    shares = [demand.fec for demand in found if demand.fec is not None]
    slots = [demand.theta_ns for demand in found if demand.theta_ns is not None]
    return Settings(
        max(copies, key=lambda c: (c[0], -c[1], -c[2]), default=None),
        max(shares, default=None),
        min(slots, default=None),
    )
