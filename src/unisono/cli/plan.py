"""`unisono plan`: what each order would offer for the quality of service asked, and which is chosen."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from unisono.cli.options import add_json, add_rate, duration, print_json
from unisono.errors import InvalidPolicy
from unisono.model.delays import parse_delay
from unisono.model.durations import duration_text, ms
from unisono.model.offers import Ask, Offer
from unisono.model.rates import Rate
from unisono.model.timing import Timing
from unisono.qos.planner import Plan, plan

DELTA_QUANTILE = 0.9999


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb's command line."""
    verb = verbs.add_parser(
        "plan",
        allow_abbrev=False,
        help="what each order would offer, and which fits",
        description="List every order with its latency bound, rate, burst and reliability for a group that does not "
        "exist yet, with the arithmetic behind each figure, and choose the cheapest that fits.",
        epilog="Example: unisono plan --members 5 --rate 50 --burst 8 --delta 10ms --gamma 2ms --slot 5ms "
        "--failures 1 --deadline 60ms. Exit status 1: nothing fits.",
    )
    verb.add_argument("--members", type=int, default=5, help="how many members (default 5)")
    verb.add_argument("--slot", type=duration, default="5ms", metavar="Θ", help="length of a slot (default 5ms)")
    verb.add_argument("--delta", type=duration, metavar="Δ", help="the network's largest delay (default 10ms)")
    verb.add_argument(
        "--gamma", type=duration, default="2ms", metavar="Γ", help="largest clock difference (default 2ms)"
    )
    verb.add_argument("--delay", help="a delay distribution, such as exponential:1ms; Δ is then its quantile")
    verb.add_argument("--processing", type=duration, default="0ms", help="what a leader takes over one message (p)")
    verb.add_argument("--loss", type=float, default=0.0, help="the share of datagrams that is lost")
    verb.add_argument("--loss-burst", type=int, default=0, metavar="x", help="most consecutive losses of one sender")
    verb.add_argument("--fec", metavar="a/b", help="forward error correction against a lost of any b consecutive")
    verb.add_argument("--failures", type=int, default=0, metavar="f", help="how many members may crash")
    verb.add_argument("--reliable", action="store_true", help="rule out gaps in the order")
    verb.add_argument("--deadline", type=duration, help="the latency that must be kept")
    verb.add_argument("--reliability", type=float, default=0.0, help="probability that a message reaches everyone")
    add_rate(verb)
    add_json(verb)
    verb.set_defaults(run=run)


def parse_fec(text: str | None) -> tuple[int, int] | None:
    """`a/b` as two numbers."""
    if text is None:
        return None
    a, slash, b = text.partition("/")
    if not slash or not a.isdigit() or not b.isdigit():
        raise InvalidPolicy("--fec", f"a/b such as 2/10 is needed, not {text!r}")
    return int(a), int(b)


def run(options: argparse.Namespace) -> int:
    """Plan and print."""
    if not 0 <= options.reliability < 1:
        raise InvalidPolicy(
            "--reliability", f"a probability from 0 to less than 1 is needed, not {options.reliability}"
        )
    delta = _delta_ns(options)
    ask = Ask(
        members=options.members,
        rate=Rate(options.rate, options.burst),
        timing=Timing(delta, options.gamma, options.slot),
        processing_ns=options.processing,
        loss=options.loss,
        loss_burst=options.loss_burst,
        fec=parse_fec(options.fec),
        failures=options.failures,
        reliable=options.reliable,
        deadline_ns=options.deadline,
    )
    found = plan(ask, options.reliability)
    if options.json:
        print_json(_json(found, delta))
    else:
        _print(found, delta, options.delay)
    return 0 if found.chosen is not None else 1


def _delta_ns(options: argparse.Namespace) -> int:
    if options.delta is not None:
        return int(options.delta)
    if options.delay is None:
        return 10_000_000
    # A hard bound is a quantile of a distribution: the share that may be later is what reliability leaves over.
    return parse_delay(options.delay).quantile(max(options.reliability, DELTA_QUANTILE))


def _json(found: Plan, delta_ns: int) -> dict[str, Any]:
    return {
        "candidates": [_row(candidate) for candidate in found.candidates],
        "chosen": found.chosen.order if found.chosen is not None else None,
        "refusal": found.refusal,
        "delta_ms": ms(delta_ns),
    }


def _row(offer: Offer) -> dict[str, Any]:
    return {
        "order": offer.order,
        "feasible": offer.feasible,
        "latency_bound_ms": ms(offer.latency_bound_ns),
        "reliability": offer.reliability,
        "avg_rate": offer.avg_rate,
        "max_burst": offer.max_burst,
        "header_bytes": offer.header_bytes,
        "gap_free": offer.gap_free,
        "loss_tolerance": offer.loss_tolerance,
        "why": list(offer.why),
    }


def _print(found: Plan, delta_ns: int, delay: str | None) -> None:
    out = sys.stdout
    if delay is not None:
        out.write(f"Δ = {duration_text(delta_ns)} of {delay}\n\n")
    for offer in found.candidates:
        mark = "→" if offer is found.chosen else ("✓" if offer.feasible else "✗")
        out.write(
            f"{mark} {offer.order:<24} bound {duration_text(offer.latency_bound_ns):>9}   {offer.avg_rate:9.6g} "
            f"datagrams/s   burst {offer.max_burst:<5} reliability {offer.reliability:.6g}\n"
        )
        for line in offer.why:
            out.write(f"      {line}\n")
    if found.chosen is not None:
        out.write(f"\nchosen: {found.chosen.order}, the fewest datagrams of those that fit\n")
    else:
        out.write(f"\nnothing fits: {found.refusal}\n")
