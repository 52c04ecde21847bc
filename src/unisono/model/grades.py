"""The two grades of a delivery."""

from __future__ import annotations

from enum import Enum


class Grade(Enum):
    """EARLY: on time, possibly corrected later. FINAL: agreed by all members. The value is the token in traces."""

    EARLY = "early"
    FINAL = "final"


GRADES = ("early", "final", "both")
"""The possible options: deliveries as the order produces them, only agreed ones, or each message in both grades."""
