"""`demo --reliable rmcast`: negotiates reliable multicast over the network that the options describe, and says what is
promised to whom; then the network gets worse than that, so that there is something to see."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from unisono.cli.options import parse_reliable
from unisono.errors import Infeasible, InvalidOption
from unisono.model.delays import parse_delay
from unisono.model.durations import duration_text
from unisono.qos.plan.negotiation import Agreement, Environment, Requirement, Target, negotiate
from unisono.qos.plan.rmcast_model import NetworkModel

NEGOTIATED_OPTION = "rmcast"
DEGRADED_LOSS_FACTOR = 4
"""How many times as much is lost from DEGRADED_AFTER of the run on, unless --degrade says otherwise."""
MAX_DEGRADED_LOSS, MIN_DEGRADED_LOSS, DEGRADE_AT_FRACTION = 0.25, 0.1, 0.4
MAX_RHO = 6
NEGOTIATED_TIMING_DEFAULTS = {"slot": 25_000_000, "delta": 150_000_000, "gamma": 10_000_000}
"""In place of the usual Θ, Δ and Γ: copies are many datagrams, and a machine that is busy is no quick network."""


@dataclass(frozen=True, slots=True)
class DemoNegotiation:
    """What was agreed before the first message: the setting, the walk that led there, and the agreements to judge."""

    agreement: Agreement
    sla_text: str

    def lines(self) -> list[str]:
        """The walk, as `plan` shows it."""
        return [f"{'↓' if s.direction == 'down' else '↑'} {s.layer} {s.text}" for s in self.agreement.steps]

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        setting = self.agreement.redundancy
        return {
            "rho": setting.rho,
            "eta_ms": setting.eta_ns / 1e6,
            "omega_ms": setting.omega_ns / 1e6,
            "adaptive": setting.adaptive,
            "offered": self.agreement.guarantee.text(),
            "broadcasts": self.agreement.expected_broadcasts,
            "steps": self.lines(),
        }


def add_negotiation_options(verb: argparse.ArgumentParser) -> None:
    """`--reliability`, `--delay`."""
    verb.add_argument(
        "--reliability",
        type=float,
        default=0.999,
        metavar="R",
        help="with --reliable rmcast: the share of multicasts that everybody has within Δ (default 0.999)",
    )
    verb.add_argument(
        "--delay",
        default="exponential:2ms",
        metavar="MODEL",
        help="with --reliable rmcast: the delays that are negotiated about (default exponential:2ms)",
    )


def negotiate_demo(options: argparse.Namespace) -> DemoNegotiation:
    """Negotiate; the options say from then on what was agreed. Infeasible tells what could be had."""
    if options.order not in {"vbr", "auto"}:
        raise InvalidOption("--reliable", f"settings are negotiated and adapted under vbr, not {options.order}")
    if not 0 < options.reliability < 1:
        raise InvalidOption("--reliability", f"a probability between 0 and 1 is needed, not {options.reliability:g}")
    if not 0 <= options.loss < 1:
        raise InvalidOption("--loss", f"a share from 0 to less than 1 is needed, not {options.loss:g}")
    below = Environment(
        options.members, NetworkModel(parse_delay(options.delay, "--delay"), options.loss), rho_most=MAX_RHO
    )
    required = Requirement(Target(options.reliability, options.delta))
    answer = negotiate(required, below)
    if not isinstance(answer, Agreement):
        offers = [offer.latency for offer in answer.alternatives if offer.latency is not None]
        longer = [offer.within_ns for offer in offers if offer.within_ns is not None]
        instead = "; or ".join(offer.text() for offer in offers)
        raise Infeasible(options.delta, max(longer, default=options.delta), answer.reason, instead)
    setting = answer.redundancy
    options.reliable = f"{setting.rho}/{setting.eta_ns}ns/{setting.omega_ns}ns/{setting.adaptive}"
    # A message that is lost in every copy is then a gap that is told, and nobody waits for it for ever.
    options.failures = True
    if options.degrade is None:
        share = min(max(DEGRADED_LOSS_FACTOR * options.loss, MIN_DEGRADED_LOSS), MAX_DEGRADED_LOSS)
        options.degrade = f"{share:g}@{int(options.seconds * DEGRADE_AT_FRACTION * 1000)}ms"
    return DemoNegotiation(answer, _sla_text(options))


def reliable_toml(text: str | None) -> str:
    """What `--reliable` says, as a scenario has it."""
    redundancy = parse_reliable(text)
    if redundancy is None:
        return ""
    rho, eta, omega = redundancy.rho, redundancy.eta_ns, redundancy.omega_ns
    return f'\n[reliable]\nrho = {rho}\neta = "{eta}ns"\nomega = "{omega}ns"\nadaptive = "{redundancy.adaptive}"\n'


def _sla_text(options: argparse.Namespace) -> str:
    """What the parties promise each other: the network what was negotiated about, the order its bound."""
    bound = options.delta + 2 * options.gamma + options.slot
    return f"""# What `unisono demo --reliable rmcast` agreed on.
collect = "250ms"

[[sla]]
name = "few losses"
provider = "network"
consumer = "rmcast"
metric = "loss"
bound = {max(1.5 * options.loss, 0.02):g}
probability = 0.99
window = "1s"
observations = 100
informs = ["rmcast"]

[[sla]]
name = "on time"
provider = "order"
consumer = "application"
metric = "latency"
bound = "{duration_text(bound)}"
probability = {options.reliability}
window = "1s"
together = true

[adaptation]
knobs = ["rho", "eta"]
reliability = {options.reliability}
rho_most = {MAX_RHO}
lower_after = 6
"""
