"""The two grades of a delivery."""

from __future__ import annotations

from enum import Enum


class Grade(Enum):
    """EARLY: on time, and perhaps to be corrected. FINAL: agreed by all. The value is the word in a trace."""

    EARLY = "early"
    FINAL = "final"


GRADES = ("early", "final", "both")
"""What may be asked for: deliveries as the order gives them, agreed ones alone, or each message in both grades."""
