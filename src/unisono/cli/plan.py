"""`unisono plan`: what each order offers for a required quality of service, and which one is chosen."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from unisono.cli.options import add_command, add_json, add_option, add_rate, add_timing, duration, parse_fec
from unisono.cli.output import print_json
from unisono.config import LINK
from unisono.errors import InvalidOption
from unisono.model.delays import parse_delay
from unisono.model.events import GRADES
from unisono.model.offers import Ask, Offer
from unisono.model.timing import DELTA_DEFAULT, Timing
from unisono.model.units import Rate, duration_ns, duration_text, ns_to_ms
from unisono.qos.plan.admission import capacity_bytes_per_s
from unisono.qos.plan.negotiation import Target
from unisono.qos.plan.over_rmcast import ReliabilityRequirement
from unisono.qos.plan.planner import Plan, plan
from unisono.qos.plan.rmcast_model import CrashModel

DELTA_QUANTILE = 0.9999


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `unisono plan` and its options to the command line."""
    verb = add_command(
        verbs,
        "plan",
        summary="compare what each order guarantees, before a group exists",
        description="List every order with its latency bound, rate, burst and reliability for a planned group, with "
        "the calculation behind each figure, and choose the cheapest order that meets the requirements.",
        examples=(
            "unisono plan --members 5 --rate 50 --burst 8 --failures 1 --deadline 200ms",
            "unisono plan --delay exponential:1ms --loss 0.05 --reliability 0.999 --deadline 60ms",
        ),
        notes="exit status: 0 an order fits, 1 no order fits.",
    )
    verb.add_argument("--members", type=int, default=5, help="how many members (default 5)")
    add_timing(verb)
    verb.add_argument(
        "--delay", help="a delay distribution such as exponential:1ms; without --delta, Δ is a quantile of it"
    )
    verb.add_argument(
        "--dependent",
        action="store_true",
        help="for RMCast, assume that delays may depend on each other in any way, for example because hosts stall",
    )
    verb.add_argument(
        "--processing", type=duration, default="0ms", help="time that a leader needs for one message (default 0ms)"
    )
    verb.add_argument("--loss", type=float, default=0.0, help="share of datagrams that the network loses (default 0)")
    verb.add_argument(
        "--loss-burst", type=int, default=0, metavar="x", help="largest number of consecutive losses of one sender"
    )
    verb.add_argument(
        "--fec", metavar="a/b", help="forward error correction: repair up to a losses in any b consecutive datagrams"
    )
    verb.add_argument("--failures", type=int, default=0, metavar="f", help="how many members may crash (default 0)")
    verb.add_argument("--reliable", action="store_true", help="require an order without gaps")
    verb.add_argument(
        "--priorities", action="store_true", help="require that urgent messages overtake queued ones at all members"
    )
    verb.add_argument(
        "--grades",
        choices=GRADES,
        default="early",
        help="early: on time; final: later, after agreement, without gaps; both: each message in both grades "
        "(default early)",
    )
    verb.add_argument("--deadline", type=duration, help="the largest acceptable latency")
    verb.add_argument(
        "--reliability", type=float, default=0.0, help="required probability that a message reaches all members"
    )
    verb.add_argument(
        "--relative",
        metavar="U/S",
        help="require that all members have a message within S of its first delivery, with probability U",
    )
    verb.add_argument(
        "--mttf", type=duration, help="mean time until a member crashes, to compute the probability of agreement"
    )
    verb.add_argument("--crash-in-send", type=float, default=1e-6, metavar="β", help="probability of a crash per send")
    verb.add_argument("--session", type=duration, default="60min", help="how long the group will run (default 60min)")
    add_rate(verb)
    add_option(verb, LINK, default=LINK.default)
    add_json(verb)
    verb.set_defaults(run=run, delta=None)


def parse_relative(text: str | None) -> Target | None:
    """Parse the value of `--relative`, such as `0.99/20ms`, into a probability U and a duration S; None for None."""
    if text is None:
        return None
    share, slash, within = text.partition("/")
    try:
        probability = float(share)
    except ValueError:
        probability = -1.0
    if not slash or not 0 < probability < 1:
        raise InvalidOption("--relative", f"expected U/S, a probability and a duration such as 0.99/20ms, not {text!r}")
    return Target(probability, duration_ns(within, "--relative"))


def run(options: argparse.Namespace) -> int:
    """Run `unisono plan`: compute and print what each order offers; return the exit status."""
    if not 0 <= options.reliability < 1:
        raise InvalidOption(
            "--reliability", f"expected a probability of at least 0 and less than 1, not {options.reliability}"
        )
    if options.mttf == 0:
        raise InvalidOption("--mttf", f"expected a duration above 0, not {duration_text(options.mttf)}")
    delta = _delta_ns(options)
    ask = Ask(
        members=options.members,
        rate=Rate(options.rate, options.burst),
        timing=Timing(delta, options.gamma, options.slot),
        max_message=options.max_message,
        link_bytes_per_s=capacity_bytes_per_s(options.link),
        processing_ns=options.processing,
        loss=options.loss,
        loss_burst=options.loss_burst,
        fec=parse_fec(options.fec),
        failures=options.failures,
        reliable=options.reliable,
        priorities=options.priorities,
        grades=options.grades,
        deadline_ns=options.deadline,
        delay=parse_delay(options.delay, "--delay") if options.delay is not None else None,
        delays_dependent=options.dependent,
        session_ns=options.session,
    )
    crashes = CrashModel(options.mttf, options.crash_in_send) if options.mttf else None
    found = plan(
        ask,
        reliability_requirement=ReliabilityRequirement(options.reliability, parse_relative(options.relative), crashes),
    )
    if options.json:
        print_json(_plan_json(found, delta))
    else:
        _print_plan(found, delta, options.delay)
    return 0 if found.chosen is not None else 1


def _delta_ns(options: argparse.Namespace) -> int:
    if options.delta is not None:
        return int(options.delta)
    if options.delay is None:
        return duration_ns(DELTA_DEFAULT)
    # A distribution has no hard bound, so Δ is a quantile: of the slowest of the n-1 copies of a datagram, such that
    # the share of later ones stays within the required reliability.
    share = max(options.reliability, DELTA_QUANTILE) ** (1 / max(options.members - 1, 1))
    return parse_delay(options.delay, "--delay").quantile(share)


def _plan_json(result: Plan, delta_ns: int) -> dict[str, Any]:
    return {
        "candidates": [_offer_json(candidate) for candidate in result.candidates],
        "chosen": result.chosen.order if result.chosen is not None else None,
        "refusal": result.refusal,
        "delta_ms": ns_to_ms(delta_ns),
    }


def _offer_json(offer: Offer) -> dict[str, Any]:
    return {
        "order": offer.order,
        "feasible": offer.feasible,
        "latency_bound_ms": None if offer.by_priority else ns_to_ms(offer.latency_bound_ns),
        **({"queue_bound_ms": ns_to_ms(offer.latency_bound_ns)} if offer.by_priority else {}),
        "outage_ms": None if offer.outage_ns is None else ns_to_ms(offer.outage_ns),
        **({} if offer.final_latency_ns is None else {"final_ms": ns_to_ms(offer.final_latency_ns)}),
        "reliability": offer.reliability,
        "avg_rate": offer.avg_rate,
        "max_burst": offer.max_burst,
        "header_bytes": offer.header_bytes,
        "gap_free": offer.gap_free,
        "loss_tolerance": offer.loss_tolerance,
        **_redundancy_json(offer),
        "why": list(offer.reasons),
    }


def _redundancy_json(offer: Offer) -> dict[str, Any]:
    setting = offer.redundancy
    if setting is None:
        return {}
    return {
        "rho": setting.rho,
        "eta_ms": ns_to_ms(setting.eta_ns),
        "omega_ms": ns_to_ms(setting.omega_ns),
        "broadcasts": offer.broadcasts,
    }


def _print_plan(result: Plan, delta_ns: int, delay: str | None) -> None:
    out = sys.stdout
    if delay is not None:
        out.write(f"Δ = {duration_text(delta_ns)} of {delay}\n\n")
    for offer in result.candidates:
        mark = "→" if offer is result.chosen else ("✓" if offer.feasible else "✗")
        word, bound = "queue" if offer.by_priority else "bound", duration_text(offer.latency_bound_ns)
        out.write(
            f"{mark} {offer.order:<24} {word} {bound:>9}   {offer.avg_rate:9.6g} datagrams/s   burst "
            f"{offer.max_burst:<5} reliability {offer.reliability:.6g}\n"
        )
        for line in offer.reasons:
            out.write(f"      {line}\n")
    if result.chosen is not None:
        out.write(f"\nchosen: {result.chosen.order}, which needs the fewest datagrams of those that fit\n")
    else:
        out.write(f"\nnothing fits: {result.refusal}\n")
