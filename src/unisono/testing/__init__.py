"""For tests of programs that use unisono: a network in memory, faults that the test causes, and virtual time.

Members join through the public `unisono.join` and run the production driver, stack and `Group`; this package replaces
only sockets, clocks and timers. `import unisono` does not import this package. docs/testing.md shows how to use it.
"""

from unisono.testing.clocks import ClockControl
from unisono.testing.network import MemoryNetwork, deliveries, network
from unisono.testing.virtual_time import VirtualTimeLoop, run

__all__ = ["ClockControl", "MemoryNetwork", "VirtualTimeLoop", "deliveries", "network", "run"]
