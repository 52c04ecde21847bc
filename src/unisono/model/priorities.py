"""How urgent a message can be: a higher number is more urgent, and 0 is what is not said."""

from typing import Final

PRIORITY_MAX: Final = 0x7FFF
PRIORITY_ORDERS: Final = ("priority", "priority_coordinator")
"""Acknowledgments go to everybody (paper 004, Figure 4), or to a coordinator (§5)."""
