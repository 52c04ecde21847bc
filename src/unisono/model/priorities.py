"""The range of priorities. A higher number is more urgent; the default is 0."""

from typing import Final

PRIORITY_MAX: Final = 0x7FFF
