"""`unisono demo` honours every field of a scenario, or refuses it by name. No field is ignored."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from unisono.cluster.member_process import ScenarioMember, fault_injection, join_as_member, staying_members, timeline
from unisono.cluster.scenario_limits import member_schedules, refuse_unsupported
from unisono.errors import InvalidOption
from unisono.model.delays import ConstantDelay
from unisono.model.faults import Fault
from unisono.model.policy import Policy
from unisono.model.scenario import Clocks, Expectation, Network, Scenario, ScenarioStep
from unisono.model.text.scenario import parse_scenario
from unisono.runtime.fault_injection import FaultInjection
from unisono.testing.virtual_time import run as run_virtual
from unisono.wire.frame import Frame, Kind, encode

MS = 1_000_000
PLAIN = {
    "group": 'name = "table"\nmembers = 3\nslot = "5ms"\ndelta = "20ms"\ngamma = "2ms"\n',
    "rate": "avg = 200\nburst = 4\n",
    "run": "seconds = 2\n",
}


def scenario(rest: str = "", **tables: str) -> Scenario:
    """The smallest scenario with more fields in its tables, and with more tables."""
    text = "".join(f"[{name}]\n{values}{tables.get(name, '')}\n" for name, values in PLAIN.items())
    return parse_scenario(text + rest, "the test")


def configuration(tmp_path: Path, text: str = "") -> dict[str, Any]:
    """What the supervisor gives to the process of member 1."""
    stated = "".join(f"[{name}]\n{values}\n" for name, values in PLAIN.items()) + text
    peers = {str(member): ["127.0.0.1", 9000 + member] for member in (1, 2, 3)}
    return {"scenario": stated, "source": "t", "member": 1, "peers": peers, "trace": str(tmp_path), "run": "r"}


# -- fields of the policy ------------------------------------------------------------------------------------------

POLICY_FIELDS: Mapping[str, tuple[str, str, object]] = {
    "group": ("", "", "table"),
    "order": ('order = "cbr"\n', "", "cbr"),
    "timing": ("", "", scenario().timing),
    "rates": ("", "", scenario().rates[1]),
    "members": ("", "", (1, 2, 3)),
    "max_message": ("max_message = 1000\n", "", 1000),
    "max_frame": ("max_frame = 900\n", "", 900),
    "failures": ("failures = true\n", "", True),
    "loss_burst": ("failures = true\nloss_burst = 3\n", "", 3),
    "fec": ('fec = "1/5"\n', "", (1, 5)),
    "processing_ns": ('order = "leader"\nprocessing = "1ms"\n', "", MS),
    "reliable": ("", '[reliable]\nrho = 2\neta = "6ms"\n', scenario('[reliable]\nrho = 2\neta = "6ms"\n').reliable),
    "grades": ('grades = "both"\n', "", "both"),
}
"""By field of the scenario: more of [group], more tables, and the value in the member's policy."""
POLICY_NAMES = {"rates": "rate", "members": "view"}
"""The field of the policy, where its name differs from that of the scenario's field."""


@pytest.mark.parametrize("field", POLICY_FIELDS)
def test_a_member_joins_with_the_value_of_the_field(field: str) -> None:
    group, rest, value = POLICY_FIELDS[field]
    stated = scenario(rest, group=group)
    refuse_unsupported(stated)
    setup = join_as_member(stated, 1, {member: ("127.0.0.1", 9000 + member) for member in stated.members})._setup
    max_frame = setup.config.network.max_frame
    assert max_frame is not None
    policy: Policy = setup.policy(max_frame)
    used = getattr(policy, POLICY_NAMES.get(field, field))
    assert (used.members if field == "members" else used) == value


# -- fields of the run ---------------------------------------------------------------------------------------------

POISSON = '[workload]\nkind = "poisson"\nrate = 50\n'


def test_the_workload_follows_rate_length_and_seed() -> None:
    def sends(stated: Scenario) -> list[Any]:
        return timeline(stated, 1, random.Random(f"{stated.seed}/1"))

    assert sends(scenario()) == [], "silent"
    usual = sends(scenario(POISSON))
    assert usual[-1][0] < 2_000 * MS
    assert 50 < len(usual) < 200
    assert len(sends(scenario(POISSON.replace("50", "5")))) < 30
    assert sends(scenario(POISSON, run="seed = 7\n")) != usual
    short = parse_scenario(
        "".join(f"[{n}]\n{v.replace('seconds = 2', 'seconds = 1')}\n" for n, v in PLAIN.items()) + POISSON, "t"
    )
    assert sends(short) == [send for send in usual if send[0] < 1_000 * MS]


def test_a_member_process_takes_priorities_and_time_to_consume(tmp_path: Path) -> None:
    text = '[priority]\nlevels = [0, 2]\nconsume = "3ms"\n'
    process = ScenarioMember(configuration(tmp_path, text))
    try:
        assert process._consume_pause_s == 0.003
        assert process.scenario.priorities == (0, 2), "_send_stamped takes them in turn"
    finally:
        process.writer.close()
        process.metrics.close()


@pytest.mark.parametrize(
    ("text", "offsets_ns"),
    [
        ("", range(1)),
        ('[clocks]\nkind = "perfect"\n', range(1)),
        ('[clocks.offsets]\n1 = "-1ms"\n', range(-MS, -MS + 1)),
        ('[clocks]\nkind = "fixed"\n', range(-MS, MS + 1)),
        ('[clocks]\nkind = "fixed"\n[clocks.offsets]\n1 = "1ms"\n', range(MS, MS + 1)),
    ],
)
def test_a_member_has_the_stated_clock(text: str, offsets_ns: range) -> None:
    stated = scenario(text)
    refuse_unsupported(stated)
    assert fault_injection(stated, 1).clock_offset_ns in offsets_ns
    fixed = {fault_injection(stated, member).clock_offset_ns for member in (1, 2, 3)}
    assert len(fixed) == 1 + 2 * ("fixed" in text) or len(offsets_ns) == 1


# -- steps, faults and delays --------------------------------------------------------------------------------------

STEPS = {
    "Start": '[[step]]\nkind = "start"\nmember = 1\nat = "1s"\n',
    "Restart": '[[step]]\nkind = "restart"\nmember = 1\nat = "1s"\n',
    "Leave": '[[step]]\nkind = "leave"\nmember = 1\nat = "1s"\n',
    "PlannedRateChange": '[[step]]\nkind = "rate"\nmember = 1\nat = "1s"\navg = 9\n',
    "PlannedSlotChange": '[[step]]\nkind = "slot"\nmember = 1\nat = "1s"\nslot = "9ms"\n',
}


@pytest.mark.parametrize("name", STEPS)
def test_each_step_is_in_the_schedule_or_the_timeline_of_its_member(name: str) -> None:
    usual, stated = scenario(group="failures = true\n"), scenario(STEPS[name], group="failures = true\n")
    refuse_unsupported(stated)
    scheduled = member_schedules(stated)[1] != member_schedules(usual)[1]
    own_step = timeline(stated, 1, random.Random(1)) != timeline(usual, 1, random.Random(1))
    assert scheduled or own_step
    assert scheduled is (name in {"Start", "Restart"})
    assert (1 in staying_members(stated)) is (name != "Leave")


PROCESS_FAULTS = {
    "Crash": '[[fault]]\nkind = "crash"\nmember = 1\nat = "1s"\n',
    "Pause": '[[fault]]\nkind = "pause"\nmember = 1\nfrom = "1s"\nto = "2s"\n',
}
DATAGRAM_FAULTS: Mapping[str, tuple[str, Callable[[list[tuple[int, float]]], bool]]] = {
    "Loss": ('[[fault]]\nkind = "loss"\nprobability = 1.0\n', lambda got: got == []),
    "Duplication": (
        '[[fault]]\nkind = "duplication"\nprobability = 1.0\n',
        lambda got: [n for n, _ in got] == [n // 2 for n in range(40)],
    ),
    "Partition": ('[[fault]]\nkind = "partition"\ngroups = [[1], [2, 3]]\n', lambda got: got == []),
    "Reordering": (
        '[[fault]]\nkind = "reordering"\nprobability = 1.0\n',
        lambda got: sorted(got) != got and len(got) == 20 and max(late for _, late in got) > 0.005,
    ),
}


def received(stated: Scenario) -> list[tuple[int, float]]:
    """The numbers of 20 datagrams of member 2 in the order in which member 1 receives them, each with its delay."""

    async def run() -> list[tuple[int, float]]:
        loop, got = asyncio.get_running_loop(), []
        injection = fault_injection(stated, 1)
        datagrams = [encode(Frame(Kind.DATA, 2, 1, 0, 1, number), 7) for number in range(20)]
        begin = loop.time()

        def receive(data: bytes, start: int, end: int, segment: int, multicast: bool) -> None:
            got.append((datagrams.index(data[start:end]), loop.time() - begin))

        inject = injection.wrap(receive)
        for datagram in datagrams:
            inject(datagram, 0, len(datagram), len(datagram), False)
        await asyncio.sleep(1)
        injection.close()
        return got

    return run_virtual(run())


@pytest.mark.parametrize("name", PROCESS_FAULTS)
def test_each_fault_of_a_process_is_in_its_schedule(name: str) -> None:
    stated = scenario(PROCESS_FAULTS[name], group="failures = true\n")
    refuse_unsupported(stated)
    assert member_schedules(stated)[1] != member_schedules(scenario())[1]


@pytest.mark.parametrize("name", DATAGRAM_FAULTS)
def test_each_fault_of_datagrams_is_injected(name: str) -> None:
    text, shown = DATAGRAM_FAULTS[name]
    assert received(scenario()) == [(number, 0.0) for number in range(20)]
    assert shown(received(scenario(text)))


NETWORK: Mapping[str, tuple[str, Callable[[list[tuple[int, float]]], bool]]] = {
    "delay": ('[network]\ndelay = "constant:7ms"\n', lambda got: {late for _, late in got} == {0.007}),
    "links": (
        '[[network.link]]\nsender = 2\nreceiver = 1\ndelay = "constant:9ms"\n',
        lambda got: {late for _, late in got} == {0.009},
    ),
    "fifo": (
        '[network]\ndelay = "uniform:1ms..20ms"\nfifo = false\n',
        lambda got: [number for number, _ in got] != list(range(20)),
    ),
}
"""By field of the network: a text, and whether the received datagrams show it."""


@pytest.mark.parametrize("field", NETWORK)
def test_each_field_of_the_network_is_injected(field: str) -> None:
    text, shown = NETWORK[field]
    stated = scenario(text)
    refuse_unsupported(stated)
    assert shown([(number, round(late, 6)) for number, late in received(stated)])


def test_delays_keep_the_order_of_a_link_and_stay_within_delta() -> None:
    got = received(scenario('[network]\ndelay = "exponential:50ms"\n'))
    assert [number for number, _ in got] == list(range(20))
    assert max(late for _, late in got) <= 0.020 + 1e-6
    assert received(scenario('[[network.link]]\nsender = 3\nreceiver = 1\ndelay = "constant:9ms"\n'))[-1][1] == 0.0


def test_a_closed_transport_gets_no_delayed_datagram() -> None:
    async def run() -> list[bytes]:
        got: list[bytes] = []
        injection = FaultInjection(1, delays={2: ConstantDelay(5 * MS)})
        datagram = encode(Frame(Kind.DATA, 2, 1, 0, 1, 0), 7)
        injection.wrap(lambda data, *_: got.append(data))(datagram, 0, len(datagram), len(datagram), False)
        injection.close()
        await asyncio.sleep(1)
        return got

    assert run_virtual(run()) == []


# -- fields that only the simulator supports -----------------------------------------------------------------------

REFUSED = {
    "multigroup": (
        "[topology]",
        '[topology.groups]\na = [1]\nb = [2, 3]\n[topology.sends]\na = ["a", "b"]\nb = ["b"]\n',
        {"group": 'order = "quasi_genuine"\n'},
    ),
    "network.adversary": ("network.adversary", '[network]\nadversary = "corners"\n', {}),
    "clocks.kind": ("clocks.kind", '[clocks]\nkind = "drifting"\n', {}),
    "clocks.drift_ppm": ("clocks.drift_ppm", "[clocks]\ndrift_ppm = 5\n", {}),
    "clocks.step_every_ns": ("clocks.step_every", '[clocks]\nstep_every = "5ms"\n', {}),
    "reservation": ("group.reservation", "", {"group": 'order = "cbr"\nreservation = "receiver"\n'}),
    "epoch_ns": ("run.epoch", "", {"run": 'epoch = "5s"\n'}),
}
"""By field of the scenario: its name in the error, and a text and more fields that set it."""
REFUSED["routes"] = REFUSED["PlannedTopologyChange"] = REFUSED["multigroup"]  # both need a topology


@pytest.mark.parametrize("field", REFUSED)
def test_a_field_that_real_processes_cannot_honour_is_refused_by_name(field: str) -> None:
    name, rest, tables = REFUSED[field]
    with pytest.raises(InvalidOption) as raised:
        refuse_unsupported(scenario(rest, **tables))
    assert raised.value.field == name
    assert "unisono simulate FILE" in raised.value.problem


# -- no field is left out ------------------------------------------------------------------------------------------

RUN_FIELDS = {"workloads", "run_ns", "seed", "priorities", "consume_ns"}
"""The fields that the tests of the workload and of the member process cover."""
PARTS = {"network", "clocks", "faults", "steps", "expect"}
"""The fields whose own fields or kinds are covered one by one."""


def test_every_field_of_a_scenario_is_honoured_or_refused() -> None:
    names = {field.name for field in fields(Scenario)}
    assert names - {"source"} == {*POLICY_FIELDS, *RUN_FIELDS, *PARTS, *(REFUSED.keys() & names)}
    assert {field.name for field in fields(Network)} == {*NETWORK, "adversary"}
    assert {field.name for field in fields(Clocks)} == {"offsets_ns", "kind", "drift_ppm", "step_every_ns"}
    assert {kind.__name__ for kind in get_args(Fault)} == {*PROCESS_FAULTS, *DATAGRAM_FAULTS}
    assert {kind.__name__ for kind in get_args(ScenarioStep)} == {*STEPS, "PlannedTopologyChange"}
    assert {field.name for field in fields(Expectation)} == {"verdict", "bound_ns"}
