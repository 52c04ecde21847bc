"""The range of priorities. A higher number is more urgent; the default is 0."""

from typing import Final

PRIORITY_MAX: Final = 0x7FFF
PRIORITY_ORDERS: Final = ("priority", "priority_coordinator")
"""The priority orders: acknowledgments go to all members (paper 004, Figure 4), or to a coordinator (§5)."""
