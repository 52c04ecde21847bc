"""Reads a scenario from TOML. Errors name the file, the field and the expected value."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

from unisono.errors import InvalidOption, ScenarioError
from unisono.model.capabilities import OPTION_DEFAULTS, recorded_capabilities
from unisono.model.delays import DelayModel, parse_delay, truncated_to
from unisono.model.events import View
from unisono.model.faults import Crash, Duplication, Fault, Loss, Partition, Pause, Reordering, Span
from unisono.model.options import text_options
from unisono.model.policy import ADAPTIVE, PRIORITY_MAX, Redundancy, RelativeRequirement
from unisono.model.scenario import (
    EPOCH_NS,
    Adversary,
    ClockKind,
    Clocks,
    Expectation,
    Leave,
    LinkDelay,
    Network,
    PlannedRateChange,
    PlannedSlotChange,
    PlannedTopologyChange,
    Restart,
    Scenario,
    ScenarioStep,
    Send,
    Start,
    VerdictWord,
    Workload,
    WorkloadKind,
)
from unisono.model.text.toml import TomlTable
from unisono.model.text.topology import parse_sends, parse_topology
from unisono.model.timing import Timing
from unisono.model.topology import Multigroup
from unisono.model.units import NS_PER_S, Rate, duration_text


def parse_scenario(text: str, source: str) -> Scenario:
    """Parse the scenario in a TOML text. Errors name the text by `source`."""
    try:
        top = TomlTable(source, "", tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(source, "(syntax)", f"not valid TOML: {error}") from error
    group = top.table("group")
    members = _members(group)
    timing = _timing(group)
    run = top.table("run")
    run_ns = int(run.number("seconds", minimum=0.001, maximum=1e6) * NS_PER_S)
    rates = _rates(top.table("rate"), members)
    max_message = group.integer("max_message", 4096, minimum=1)
    consuming = _consumption(top.table("priority"), members)
    multigroup, routes = parse_topology(top.table("topology")) if top.has("topology") else (None, {})
    scenario = Scenario(
        source=source,
        group=group.text("name"),
        order=group.text("order", "vbr"),
        members=members,
        timing=timing,
        rates=rates,
        workloads=_workloads(top.table("workload"), rates, timing, max_message),
        network=_network(top.table("network"), members, timing),
        run_ns=run_ns,
        seed=run.integer("seed", 1),
        epoch_ns=run.duration("epoch", f"{EPOCH_NS}ns"),
        max_message=max_message,
        max_frame=group.integer("max_frame", 1400),
        reliable=_reliable(top.table("reliable")) if top.has("reliable") else None,
        consume_ns=consuming[0],
        priorities=consuming[1],
        multigroup=multigroup,
        routes=routes,
        clocks=_clocks(top.table("clocks"), members, timing),
        faults=tuple(_fault(table, members) for table in top.tables("fault")),
        steps=tuple(_step(table, members, rates, multigroup) for table in top.tables("step")),
        expect=_expect(top.table("expect")),
        **_order_settings(group),
    )
    for table in (group, run, top):
        table.reject_unknown_fields()
    try:
        for member in members:
            scenario.policy_for(member)
        _check_rates(scenario)
    except InvalidOption as error:
        raise ScenarioError(source, _FIELD_PATHS.get(error.field, error.field), error.problem) from error
    return scenario


def _check_rates(scenario: Scenario) -> None:
    """Raise InvalidOption if the slots cannot carry a rate that the scenario states, first or later."""
    if not recorded_capabilities(scenario.order).paced_by_slot:
        return
    for member, rate in scenario.rates.items():
        scenario.policy_for(member).check_rate(rate)
    shortest_ns = min(timing.theta_ns for timing in scenario.timings)
    for step in scenario.steps:
        if isinstance(step, PlannedRateChange):
            scenario.policy_for(step.member).check_rate(step.rate, shortest_ns)


_FIELD_PATHS = {
    field: f"group.{field}" for field in ("max_message", "max_frame", "loss_burst", "fec", "processing", "reservation")
}
"""The path in the scenario file of each field that errors of `Policy` name without its table."""


def _members(group: TomlTable) -> tuple[int, ...]:
    value = group.pop("members")
    if type(value) is int and value >= 1:
        value = list(range(1, value + 1))
    if not isinstance(value, list) or not all(type(member) is int for member in value):
        raise group.error("members", f"expected a number of members, or a list such as [1, 2, 5], got {value!r}")
    return group.checked("members", lambda: View(tuple(value))).members


def _order_settings(group: TomlTable) -> dict[str, Any]:
    """The options of [group] that only some orders have, as fields of a scenario."""
    settings = {}
    for option in text_options():
        if option.policy_field not in OPTION_DEFAULTS or option.name == "reliable":
            continue
        value = group.pop(option.name, None)
        if value is not None:
            parsed = group.checked(option.name, partial(option.parse, value))
            settings[option.policy_field] = parsed if option.to_policy is None else option.to_policy(parsed)
    return settings


def _reliable(table: TomlTable) -> Redundancy:
    rho, eta, omega = table.integer("rho"), table.duration("eta"), table.duration("omega", "0ns")
    adaptive = table.choice("adaptive", ADAPTIVE, "none")
    relative = None
    if adaptive == "exact":
        success, within_ns, loss = table.number("success"), table.duration("within"), table.number("loss", 0.0)
        delay = parse_delay(table.text("delay"), table.full_name("delay"))
        relative = table.checked("success", lambda: RelativeRequirement(success, within_ns, loss, delay))
    last_copy = table.flag("last_copy", False) if table.has("last_copy") else None
    table.reject_unknown_fields()
    try:
        return Redundancy.of_ns(rho, eta, omega, adaptive, relative, last_copy=last_copy)
    except InvalidOption as error:
        raise table.error(error.field.removeprefix("redundancy."), error.problem) from error


def _consumption(table: TomlTable, members: tuple[int, ...]) -> tuple[dict[int, int], tuple[int, ...]]:
    """How long each member needs to consume a message, and the priorities that messages have in turn."""
    common = table.duration("consume", "0ns")
    own: dict[int, int] = {}
    for member, single in table.tables_by_member(members).items():
        own[member] = single.duration("consume")
        single.reject_unknown_fields()
    levels = table.integers("levels") if table.has("levels") else (0,)
    if not levels or not all(0 <= level <= PRIORITY_MAX for level in levels):
        raise table.error("levels", f"expected priorities from 0 to {PRIORITY_MAX}, got {list(levels)}")
    table.reject_unknown_fields()
    return {member: own.get(member, common) for member in members}, tuple(levels)


def _timing(group: TomlTable) -> Timing:
    delta, gamma, theta = (group.duration(word) for word in ("delta", "gamma", "slot"))
    try:
        return Timing(delta, gamma, theta)
    except InvalidOption as error:
        raise group.error(error.field, error.problem) from error


def _rate(table: TomlTable) -> Rate:
    burst_bytes = table.integer("burst_bytes", minimum=1) if table.has("burst_bytes") else None
    avg, burst = table.number("avg"), table.integer("burst", minimum=1)
    table.reject_unknown_fields()
    return table.checked("avg", lambda: Rate(avg, burst, burst_bytes))


def _rates(table: TomlTable, members: tuple[int, ...]) -> dict[int, Rate]:
    single = {member: own.with_fallback(table) for member, own in table.tables_by_member(members).items()}
    if len(single) == len(members):
        return {member: _rate(single[member]) for member in members}
    common = _rate(table)
    return {member: _rate(single[member]) if member in single else common for member in members}


def _workloads(table: TomlTable, rates: Mapping[int, Rate], timing: Timing, max_message: int) -> dict[int, Workload]:
    own = {member: single.with_fallback(table) for member, single in table.tables_by_member(tuple(rates)).items()}
    found = {}
    for member, rate in rates.items():
        single = own.get(member) or TomlTable(table.source, table.path, {}).with_fallback(table)
        found[member] = _workload(single, member, tuple(rates), rate, timing)
        largest = max([found[member].size_high, *(size for send in found[member].sends for size in send.sizes)])
        if largest > max_message:
            problem = f"expected at most group.max_message = {max_message:,} bytes, got {largest:,}"
            raise single.error("size", problem)
    return found


def _workload(table: TomlTable, member: int, members: tuple[int, ...], rate: Rate, timing: Timing) -> Workload:
    kind: WorkloadKind = table.choice("kind", get_args(WorkloadKind), "silent")
    low, high = _sizes(table)
    # The sends are read for every kind: a common script may stand beside a member with another workload.
    sends = _sends(table, member, members)
    workload = Workload(
        kind,
        low,
        high,
        rate=table.number("rate", rate.avg, minimum=1e-6),
        burst=table.integer("burst", rate.burst, minimum=1),
        every_ns=table.duration("every", f"{timing.theta_ns}ns"),
        sends=sends if kind == "script" else (),
    )
    if workload.every_ns < 1:
        raise table.error("every", "expected a time above zero between two bursts, got 0")
    table.reject_unknown_fields()
    return workload


def _sizes(table: TomlTable) -> tuple[int, int]:
    value = table.pop("size", 100)
    sizes = [value, value] if type(value) is int else value
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(size) is int for size in sizes):
        raise table.error("size", f"expected a size in bytes, or a range such as [10, 500], got {value!r}")
    if not 0 <= sizes[0] <= sizes[1]:
        raise table.error("size", f"expected a range from the smallest to the largest size, got {value!r}")
    return sizes[0], sizes[1]


def _sends(table: TomlTable, member: int, members: tuple[int, ...]) -> tuple[Send, ...]:
    found = []
    for send in table.tables("send"):
        sender = send.member("member", members)
        at, sizes = send.duration("at"), send.integers("sizes")
        send.reject_unknown_fields()
        if sender == member:
            found.append(Send(at, sizes))
    return tuple(found)


def _network(table: TomlTable, members: tuple[int, ...], timing: Timing) -> Network:
    stated = table.has("delay")
    text = table.text("delay", "")
    links = []
    for link in table.tables("link"):
        sender, receiver = (link.member(word, members) for word in ("sender", "receiver"))
        delay = link.text("delay")
        links.append(LinkDelay(sender, receiver, link.checked("delay", partial(_delay_within_delta, delay, timing))))
        link.reject_unknown_fields()
    network = Network(
        table.checked("delay", lambda: _delay_within_delta(text, timing)) if stated else None,
        table.choice("adversary", get_args(Adversary), "none"),
        table.flag("fifo", True),
        tuple(links),
    )
    table.reject_unknown_fields()
    return network


def _delay_within_delta(text: str, timing: Timing) -> DelayModel:
    """Parse a delay model; raises InvalidOption if all its delays are longer than Δ."""
    model = parse_delay(text)
    truncated_to(model, timing.delta_ns)
    return model


def _clocks(table: TomlTable, members: tuple[int, ...], timing: Timing) -> Clocks:
    offsets = table.table("offsets")
    given = {member: offsets.signed_duration(str(member)) for member in members if offsets.has(str(member))}
    half = timing.gamma_ns // 2
    for member, offset in given.items():
        if abs(offset) > half:
            limit = f"at most gamma/2 = {duration_text(half)} from true time"
            raise offsets.error(str(member), f"expected a clock {limit}, got {duration_text(offset)}")
    offsets.reject_unknown_fields()
    stated = table.has("kind")
    kind: ClockKind = table.choice("kind", get_args(ClockKind), "fixed")
    clocks = Clocks(
        kind if stated else None,
        given,
        table.number("drift_ppm", 100.0, minimum=0.001, maximum=1e6),
        table.duration("step_every", "100ms"),
    )
    table.reject_unknown_fields()
    return clocks


def _step(
    table: TomlTable, members: tuple[int, ...], rates: Mapping[int, Rate], multigroup: Multigroup | None
) -> ScenarioStep:
    kind = table.choice("kind", ("start", "leave", "rate", "slot", "topology", "restart"))
    member, at = table.member("member", members), table.duration("at")
    if kind == "topology":
        return PlannedTopologyChange(member, at, parse_sends(table, multigroup))
    if kind == "slot":
        theta_ns = table.duration("slot")
        table.checked("slot", lambda: Timing(0, 0, theta_ns))
        table.reject_unknown_fields()
        return PlannedSlotChange(member, at, theta_ns)
    if kind == "rate":
        rate = rates[member]
        return PlannedRateChange(member, at, _rate(table.with_defaults({"avg": rate.avg, "burst": rate.burst})))
    table.reject_unknown_fields()
    if kind == "start":
        return Start(member, at)
    return Leave(member, at) if kind == "leave" else Restart(member, at)


def _fault(table: TomlTable, members: tuple[int, ...]) -> Fault:
    kind = table.choice("kind", ("loss", "duplication", "reordering", "partition", "crash", "pause"))
    fault: Fault
    match kind:
        case "loss":
            fault = _loss(table, members)
        case "duplication":
            fault = Duplication(_span(table), _probability(table))
        case "reordering":
            fault = Reordering(_span(table), _probability(table))
        case "partition":
            fault = Partition(_span(table), _groups(table, members))
        case "crash":
            fault = Crash(table.member("member", members), table.duration("at"))
        case _:
            member, span = table.member("member", members), _span(table)
            if span.to_ns is None:
                raise table.error("to", "required field is missing: a pause needs a time at which it ends")
            fault = Pause(member, span.from_ns, span.to_ns)
    table.reject_unknown_fields()
    return fault


def _loss(table: TomlTable, members: tuple[int, ...]) -> Loss:
    span, probability = _span(table), _probability(table)
    at_most = of = None
    if table.has("burst"):
        # At most x losses in a row is at most x of any x+1 (paper 000 §7).
        at_most = table.integer("burst")
        of = at_most + 1
    elif table.has("at_most") or table.has("of"):
        at_most, of = table.integer("at_most"), table.integer("of", minimum=1)
    senders, receivers = (table.integers(word, ()) for word in ("senders", "receivers"))
    for word, listed in (("senders", senders), ("receivers", receivers)):
        for member in listed:
            if member not in members:
                raise table.error(word, f"expected members among {', '.join(map(str, members))}, got {member}")
    return Loss(span, probability, at_most, of, senders, receivers)


def _span(table: TomlTable) -> Span:
    span = Span(table.duration("from", "0ns"), table.duration("to") if table.has("to") else None)
    if span.to_ns is not None and span.to_ns <= span.from_ns:
        raise table.error(
            "to", f"expected a time after from = {duration_text(span.from_ns)}, got {duration_text(span.to_ns)}"
        )
    return span


def _probability(table: TomlTable) -> float:
    return table.number("probability", maximum=1.0)


def _groups(table: TomlTable, members: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    value = table.pop("groups")
    if not isinstance(value, list) or not all(isinstance(group, list) for group in value):
        raise table.error("groups", f"expected lists of members, such as [[1, 2], [3]], got {value!r}")
    listed = [member for group in value for member in group]
    known = all(type(member) is int and member in members for member in listed)
    if not known or len(listed) != len(set(listed)):
        raise table.error("groups", f"expected lists of members of the group, each member at most once, got {value!r}")
    return tuple(tuple(group) for group in value)


def _expect(table: TomlTable) -> Expectation:
    bound = table.duration("bound") if table.has("bound") else None
    expect = Expectation(table.choice("verdict", get_args(VerdictWord), "valid"), bound)
    table.reject_unknown_fields()
    return expect
