"""The deterministic world: an event heap that drives stacks through clocks, networks, faults and workloads.

`run(scenario, seed)` plays a scenario; `World` is the same loop for hand-made clocks, delays and sends. Same seed,
same run, byte for byte: chance comes from `streams` only, and nothing is iterated in the order of its hashes. No
protocol decision is made here, no wall clock is read, and `runtime` is never imported.
Tests: tests/unit/test_sim_*.py, tests/simulation/.
"""

from unisono.sim.result import Result
from unisono.sim.run import run
from unisono.sim.world import World

__all__ = ["Result", "World", "run"]
