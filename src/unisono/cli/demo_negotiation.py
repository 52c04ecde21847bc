"""`demo --reliable rmcast`: negotiate reliable multicast for the network that the options describe.

The result is a setting of ρ, η and ω, and service level agreements to evaluate. During the run the network gets worse
than agreed, so that the demo shows violations and adaptation.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from unisono.cli.options import parse_reliable
from unisono.errors import Infeasible, InvalidOption
from unisono.model.delays import parse_delay
from unisono.model.units import duration_text
from unisono.qos.plan.negotiation import Agreement, Environment, Requirement, Target, negotiate
from unisono.qos.plan.rmcast_model import NetworkModel

NEGOTIATED_OPTION = "rmcast"
NEGOTIATION_OPTIONS = ("reliability", "delay")
"""The options that only the negotiation uses."""
DEGRADED_LOSS_FACTOR = 4
"""The factor by which the loss grows after DEGRADE_AT_FRACTION of the run, unless --degrade is given."""
MAX_DEGRADED_LOSS, MIN_DEGRADED_LOSS, DEGRADE_AT_FRACTION = 0.25, 0.1, 0.4
MAX_RHO = 6
NEGOTIATED_TIMING_DEFAULTS = {"slot": 25_000_000, "delta": 150_000_000, "gamma": 10_000_000}
"""The defaults of Θ, Δ and Γ for `--reliable rmcast`, in ns.

They are larger than otherwise: copies mean many datagrams, and a busy machine delays them.
"""


@dataclass(frozen=True, slots=True)
class DemoNegotiation:
    """The result of the demo's negotiation: the agreed setting, the steps that led to it, and the SLAs."""

    agreement: Agreement
    sla_text: str

    def lines(self) -> list[str]:
        """The steps of the negotiation as lines of text, as `unisono plan` shows them."""
        return [f"{'↓' if s.direction == 'down' else '↑'} {s.layer} {s.text}" for s in self.agreement.steps]

    def to_json(self) -> dict[str, object]:
        """The field `negotiation` of the output of `demo --json`."""
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
    """Add the options `--reliability` and `--delay`."""
    verb.add_argument(
        "--reliability",
        type=float,
        default=0.999,
        metavar="R",
        help="with --reliable rmcast: the share of multicasts that reach all members within Δ (default 0.999)",
    )
    verb.add_argument(
        "--delay",
        default="exponential:2ms",
        metavar="MODEL",
        help="with --reliable rmcast: the delays to negotiate for (default exponential:2ms)",
    )


def negotiate_demo(options: argparse.Namespace) -> DemoNegotiation:
    """Negotiate, and store the agreed setting in the options.

    Raises Infeasible, with alternatives, if no setting meets the requirement.
    """
    if options.order != "vbr":
        raise InvalidOption(
            "--reliable",
            f"the value rmcast chooses ρ and η by negotiation, for the order vbr only, not for {options.order}; "
            "give them yourself, such as --reliable 4/6ms",
        )
    if not 0 < options.reliability < 1:
        raise InvalidOption("--reliability", f"expected a probability above 0 and below 1, not {options.reliability:g}")
    if not 0 <= options.loss < 1:
        raise InvalidOption("--loss", f"expected a share of at least 0 and less than 1, not {options.loss:g}")
    environment = Environment(
        options.members, NetworkModel(parse_delay(options.delay, "--delay"), options.loss), rho_most=MAX_RHO
    )
    required = Requirement(Target(options.reliability, options.delta))
    answer = negotiate(required, environment)
    if not isinstance(answer, Agreement):
        offers = [offer.latency for offer in answer.alternatives if offer.latency is not None]
        longer = [offer.within_ns for offer in offers if offer.within_ns is not None]
        instead = "; or ".join(offer.text() for offer in offers)
        raise Infeasible(options.delta, max(longer, default=options.delta), answer.reason, instead)
    setting = answer.redundancy
    options.reliable = f"{setting.rho}/{setting.eta_ns}ns/{setting.omega_ns}ns/{setting.adaptive}"
    # With failures, a message that is lost in every copy is a reported gap; without, the order would wait forever.
    options.failures = True
    if options.degrade is None:
        share = min(max(DEGRADED_LOSS_FACTOR * options.loss, MIN_DEGRADED_LOSS), MAX_DEGRADED_LOSS)
        options.degrade = f"{share:g}@{int(options.seconds * DEGRADE_AT_FRACTION * 1000)}ms"
    return DemoNegotiation(answer, _sla_text(options))


def reliable_toml(text: str | None) -> str:
    """The value of `--reliable` as the table [reliable] of a scenario file; empty without it."""
    redundancy = parse_reliable(text)
    if redundancy is None:
        return ""
    rho, eta, omega = redundancy.rho, redundancy.eta_ns, redundancy.omega_ns
    return f'\n[reliable]\nrho = {rho}\neta = "{eta}ns"\nomega = "{omega}ns"\nadaptive = "{redundancy.adaptive}"\n'


def _sla_text(options: argparse.Namespace) -> str:
    """The SLAs as TOML text: the network promises the negotiated loss, the order its latency bound."""
    bound = options.delta + 2 * options.gamma + options.slot
    return f"""# The agreements of `unisono demo --reliable rmcast`.
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
