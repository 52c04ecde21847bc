"""The deterministic simulator: an event heap that drives stacks through clocks, networks, faults and workloads.

`run(scenario, seed)` runs a scenario; `World` is the same loop for hand-made clocks, delays and sends. The same seed
gives the same run, byte for byte: all randomness comes from `random_streams`, and no loop depends on hash order. No
module here makes a protocol decision, reads a wall clock or imports `runtime`.
Tests: tests/unit/test_sim_*.py, tests/simulation/.
"""

from unisono.sim.result import Result
from unisono.sim.run import run
from unisono.sim.world import World

__all__ = ["Result", "World", "run"]
