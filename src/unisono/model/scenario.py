"""A scenario: the members of a group, their rates and workloads, the network, the clocks and the faults.

The same value serves the simulator and real processes. The simulator models its network, clocks and faults. Real
processes have their own network and clocks, and inject the stated delays, clock offsets and faults.
`text.scenario.parse_scenario` reads one from TOML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from unisono.model.delays import DelayModel
from unisono.model.events import View
from unisono.model.faults import Fault
from unisono.model.policy import PROBE_INTERVAL_NS, OrderSettings, Policy
from unisono.model.timing import Timing
from unisono.model.units import NS_PER_S, Rate

EPOCH_NS = 1_700_000_000 * NS_PER_S
"""The default start of simulated time: a recent date, so that slot numbers have a realistic size."""

VerdictWord: TypeAlias = Literal["valid", "violated", "unknown"]
WorkloadKind: TypeAlias = Literal["poisson", "cbr", "bursts", "script", "silent"]
Adversary: TypeAlias = Literal["none", "corners", "all_delta"]
ClockKind: TypeAlias = Literal["perfect", "fixed", "drifting", "adversarial"]


@dataclass(frozen=True, slots=True)
class Send:
    """Messages that an application submits together. `at_ns` counts from the start of the run."""

    at_ns: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """The messages that one member's application sends once the group runs.

    `rate` is in messages per second (poisson, cbr). The kind "bursts" sends `burst` messages every `every_ns`.
    """

    kind: WorkloadKind = "silent"
    size_low: int = 100
    size_high: int = 100
    rate: float = 0.0
    burst: int = 1
    every_ns: int = 0
    sends: tuple[Send, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkDelay:
    """The delay from one member to another, if it differs from the rest of the network."""

    sender: int
    receiver: int
    delay: DelayModel


@dataclass(frozen=True, slots=True)
class Network:
    """The delays of the network, never above Δ. If there is an adversary, it chooses the delays.

    `delay` is None if the scenario states none. Then the simulator draws from 0 to Δ with equal probability, and real
    processes have the delays of their machine.
    """

    delay: DelayModel | None = None
    adversary: Adversary = "none"
    fifo: bool = True
    links: tuple[LinkDelay, ...] = ()


@dataclass(frozen=True, slots=True)
class Clocks:
    """How far each member's clock is from true time.

    `offsets_ns` sets single clocks. `kind` is None if the scenario states none: then the other clocks are "fixed" in
    the simulator, and real processes have the clock of their machine. Fixed clocks are random within ±Γ/2.
    """

    kind: ClockKind | None = None
    offsets_ns: Mapping[int, int] = field(default_factory=dict)
    drift_ppm: float = 100.0
    step_every_ns: int = 100_000_000


@dataclass(frozen=True, slots=True)
class Start:
    """A planned step: a member starts after the beginning of the run."""

    member: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Leave:
    """A planned step: a member leaves the group in an orderly way, without a crash."""

    member: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class PlannedRateChange:
    """A planned step: a member declares a new rate."""

    member: int
    at_ns: int
    rate: Rate


@dataclass(frozen=True, slots=True)
class PlannedSlotChange:
    """A planned step: a member asks the group for slots of another length."""

    member: int
    at_ns: int
    theta_ns: int


@dataclass(frozen=True, slots=True)
class PlannedTopologyChange:
    """A planned step: a member asks its group to send to the named groups from now on, and to no others."""

    member: int
    at_ns: int
    sends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Restart:
    """A planned step: a crashed member restarts as a new incarnation. Only its stable storage, if any, survives."""

    member: int
    at_ns: int


ScenarioStep: TypeAlias = Start | Leave | PlannedRateChange | PlannedSlotChange | PlannedTopologyChange | Restart


@dataclass(frozen=True, slots=True)
class Expectation:
    """The verdict and the latency bound that the author of the scenario expects."""

    verdict: VerdictWord = "valid"
    bound_ns: int | None = None


@dataclass(frozen=True)
class Scenario(OrderSettings):
    """Everything that defines a run of a group. A command may run it with another seed."""

    source: str
    group: str
    order: str
    members: tuple[int, ...]
    timing: Timing
    rates: Mapping[int, Rate]
    workloads: Mapping[int, Workload]
    network: Network
    run_ns: int
    seed: int = 1
    epoch_ns: int = EPOCH_NS
    max_message: int = 4096
    max_frame: int = 1400
    consume_ns: Mapping[int, int] = field(default_factory=dict)
    """In the priority order, how long each member's application needs for one message."""
    priorities: tuple[int, ...] = (0,)
    """The priorities of each member's messages, in turn."""
    routes: Mapping[int, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """In a quasi-genuine order: by member, the destination groups of its messages, in turn."""
    clocks: Clocks = Clocks()
    faults: tuple[Fault, ...] = ()
    steps: tuple[ScenarioStep, ...] = ()
    expect: Expectation = Expectation()

    def policy_with_timing(self, member: int, timing: Timing) -> Policy:
        """The member's policy with another timing. Its rate stays as high as the slots of that timing allow."""
        policy = self.policy_for(member)
        return replace(policy, timing=timing, rate=policy.rate.reduced_to(timing.theta_ns))

    def policy_for(self, member: int, *, incarnation: int = 1) -> Policy:
        """The policy from which this member's stack is built."""
        return Policy(
            self.group,
            member,
            View(self.members),
            self.timing,
            self.rates[member],
            order=self.order,
            incarnation=incarnation,
            max_message=self.max_message,
            max_frame=self.max_frame,
            probe_every_ns=PROBE_INTERVAL_NS if self._has_clock_beyond_gamma() else 0,
            **self.order_settings(),
        )

    def _has_clock_beyond_gamma(self) -> bool:
        """Whether the given offsets violate Γ. Only then do members probe clocks, because probes cost datagrams."""
        offsets = [0, *self.clocks.offsets_ns.values()]
        return max(offsets) - min(offsets) > self.timing.gamma_ns

    @property
    def timings(self) -> tuple[Timing, ...]:
        """The timing (Δ, Γ, Θ) at the start of the run, and the timings that members request later."""
        requested = (step.theta_ns for step in self.steps if isinstance(step, PlannedSlotChange))
        return (self.timing, *(replace(self.timing, theta_ns=theta_ns) for theta_ns in requested))

    @property
    def constant_rates(self) -> tuple[tuple[int, float, int], ...]:
        """A tuple (number, average, burst) per member; empty if rates or slot lengths change during the run."""
        if any(isinstance(step, PlannedRateChange | PlannedSlotChange) for step in self.steps):
            return ()
        return tuple((member, float(rate.avg), rate.burst) for member, rate in sorted(self.rates.items()))

    @property
    def longest_slot_ns(self) -> int:
        """The length of the longest slots of the run."""
        return max(timing.theta_ns for timing in self.timings)

    @property
    def bound_ns(self) -> int:
        """The expected latency bound: as the scenario states it, otherwise Δ+Γ+Θ (paper 000, Theorem 2)."""
        if self.expect.bound_ns is not None:
            return self.expect.bound_ns
        return self.timing.delta_ns + self.timing.gamma_ns + self.longest_slot_ns
