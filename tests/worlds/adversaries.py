"""Networks in which a test chooses every delay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unisono.sim.network import Adversary, SimulatedNetwork, delays_from_adversary, full_mesh


def adversarial_network(
    members: Sequence[int], adversary: Adversary, delta_ns: int, *, fifo: bool = True
) -> SimulatedNetwork:
    """A network in which an adversary chooses every delay."""
    return SimulatedNetwork(
        full_mesh(members, lambda a, b: delays_from_adversary(adversary, a, b, delta_ns), fifo=fifo)
    )


def delay_per_link(delays_ns: Mapping[tuple[int, int], int], default_ns: int = 0) -> Adversary:
    """A delay per link, and a default for all other links."""
    return lambda sender, receiver, *_: delays_ns.get((sender, receiver), default_ns)
