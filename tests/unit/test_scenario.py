"""Scenario files: their meaning, and the errors for invalid ones."""

from pathlib import Path

import pytest

from unisono.errors import ScenarioError
from unisono.model.delays import ConstantDelay, ExponentialDelay
from unisono.model.faults import Crash, Duplication, Loss, Partition, Pause, Reordering, Span
from unisono.model.scenario import Leave, LinkDelay, PlannedRateChange, Scenario, Send, Start
from unisono.model.text.scenario import parse_scenario
from unisono.model.timing import Timing
from unisono.model.units import Rate

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.toml"))
MS = 1_000_000
MINIMAL = """
[group]
name = "g"
members = 3
slot = "5ms"
delta = "10ms"
gamma = "2ms"
[rate]
avg = 100
burst = 8
[run]
seconds = 1.5
"""


def parse(more: str = "", *, base: str = MINIMAL) -> Scenario:
    return parse_scenario(base + more, "file.toml")


def test_the_minimal_file_and_its_defaults() -> None:
    scenario = parse()
    assert scenario.members == (1, 2, 3)
    assert scenario.timing == Timing(10 * MS, 2 * MS, 5 * MS)
    assert scenario.run_ns == 1_500 * MS
    assert scenario.bound_ns == 17 * MS
    assert (scenario.network.delay, scenario.clocks.kind) == (None, None), "the simulator and the machine choose"
    assert {workload.kind for workload in scenario.workloads.values()} == {"silent"}
    policy = scenario.policy_for(2)
    assert (policy.member, policy.group, policy.rate, policy.max_message) == (2, "g", Rate(100, 8), 4096)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_file_of_the_project_is_valid(path: Path) -> None:
    scenario = parse_scenario(path.read_text("utf-8"), path.name)
    for member in scenario.members:
        assert scenario.policy_for(member).member == member


def test_single_members_can_have_their_own_rate_and_workload() -> None:
    scenario = parse("""
    [rate.3]
    burst = 2
    burst_bytes = 9000
    [workload]
    kind = "poisson"
    rate = 50
    size = [10, 20]
    [workload.2]
    kind = "bursts"
    every = "20ms"
    [workload.3]
    kind = "silent"
    """)
    assert scenario.rates == {1: Rate(100, 8), 2: Rate(100, 8), 3: Rate(100, 2, 9000)}
    one, two = scenario.workloads[1], scenario.workloads[2]
    assert (one.kind, one.rate, one.size_low, one.size_high) == ("poisson", 50.0, 10, 20)
    assert (two.kind, two.burst, two.every_ns, two.size_high) == ("bursts", 8, 20 * MS, 20)
    assert scenario.workloads[3].kind == "silent"


def test_network_clocks_steps_and_expectation() -> None:
    scenario = parse("""
    [workload]
    kind = "script"
    send = [{ at = "3ms", member = 2, sizes = [1, 2] }]
    [network]
    delay = "exponential:1ms"
    adversary = "corners"
    fifo = false
    [[network.link]]
    sender = 1
    receiver = 3
    delay = "constant:10ms"
    [clocks]
    kind = "drifting"
    offsets = { 2 = "-1ms" }
    [[step]]
    kind = "start"
    member = 2
    at = "4ms"
    [[step]]
    kind = "rate"
    member = 1
    at = "1s"
    burst = 2
    [[step]]
    kind = "leave"
    member = 3
    at = "1s"
    [expect]
    verdict = "violated"
    bound = "40ms"
    """)
    assert scenario.workloads[1].sends == ()
    assert scenario.workloads[2].sends == (Send(3 * MS, (1, 2)),)
    assert scenario.network.delay == ExponentialDelay(MS)
    assert scenario.network.links == (LinkDelay(1, 3, ConstantDelay(10 * MS)),)
    assert (scenario.network.adversary, scenario.network.fifo) == ("corners", False)
    assert (scenario.clocks.kind, scenario.clocks.offsets_ns) == ("drifting", {2: -MS})
    assert scenario.steps == (Start(2, 4 * MS), PlannedRateChange(1, 1000 * MS, Rate(100, 2)), Leave(3, 1000 * MS))
    assert (scenario.expect.verdict, scenario.bound_ns) == ("violated", 40 * MS)


def test_faults() -> None:
    scenario = parse_scenario(
        """
        fault = [
            { kind = "loss", probability = 0.1, burst = 2, receivers = [3] },
            { kind = "loss", probability = 0.1, at_most = 1, of = 5 },
            { kind = "duplication", probability = 1 },
            { kind = "reordering", probability = 0.5, from = "1s" },
            { kind = "partition", groups = [[1, 2], [3]], from = "1ms", to = "2ms" },
            { kind = "crash", member = 1, at = "1s" },
            { kind = "pause", member = 1, from = "1s", to = "2s" },
        ]
        """
        + MINIMAL,
        "file.toml",
    )
    assert scenario.faults == (
        Loss(Span(), 0.1, 2, 3, receivers=(3,)),
        Loss(Span(), 0.1, 1, 5),
        Duplication(Span(), 1.0),
        Reordering(Span(1000 * MS), 0.5),
        Partition(Span(MS, 2 * MS), ((1, 2), (3,))),
        Crash(1, 1000 * MS),
        Pause(1, 1000 * MS, 2000 * MS),
    )


INVALID = [
    ("[[group", "(syntax)", "not valid TOML"),
    ("[worklaod]\nkind = 'cbr'", "worklaod", "unknown field; did you mean 'workload'?"),
    ("[workload]\nkind = 'posson'", "workload.kind", "did you mean 'poisson'?"),
    ("[workload]\nsizes = 3", "workload.sizes", "did you mean 'size'?"),
    ("[workload]\nsize = [3]", "workload.size", "a range such as [10, 500]"),
    ("[workload]\nsize = [9, 3]", "workload.size", "from the smallest to the largest"),
    ("[workload]\nkind = 'cbr'\nsize = 5000", "workload.size", "expected at most group.max_message = 4,096 bytes"),
    ("[workload.9]\nkind = 'cbr'", "workload.9", "expected one of the members 1, 2, 3, got 9"),
    (
        "[workload]\nkind = 'script'\nsend = [{ at = '1ms', member = 7, sizes = [1] }]",
        "workload.send[1].member",
        "1, 2",
    ),
    ("[rate.2]\nburst = 0", "rate.2.burst", "a whole number of at least 1"),
    ("[rate.2]\nburst_bytes = 10", "rate.burst_bytes", "cannot carry one message of max_message = 4,096"),
    ("[network]\ndelay = 'exponential'", "network.delay", "kinds: constant"),
    ("[network]\ndelay = 'constant:11ms'", "network.delay", "at most Δ = 10ms, but all delays of"),
    ("[network]\nfifo = 'yes'", "network.fifo", "expected true or false, got 'yes'"),
    ("[clocks]\noffsets = { 1 = '1.5ms' }", "clocks.offsets.1", "at most gamma/2 = 1ms from true time, got 1.5ms"),
    ("[clocks]\noffsets = { 1 = '-x' }", "clocks.offsets.1", "a duration with a unit"),
    ("[expect]\nverdict = 'fine'", "expect.verdict", "expected one of 'valid', 'violated', 'unknown', got 'fine'"),
    ("[[fault]]\nkind = 'los'", "fault[1].kind", "did you mean 'loss'?"),
    ("[[fault]]\nkind = 'loss'", "fault[1].probability", "is missing"),
    ("[[fault]]\nkind = 'loss'\nprobability = 2", "fault[1].probability", "a number from 0 to 1"),
    (
        "[[fault]]\nkind = 'loss'\nprobability = 0.1\nfrom = '2s'\nto = '1s'",
        "fault[1].to",
        "expected a time after from = 2s, got 1s",
    ),
    ("[[fault]]\nkind = 'pause'\nmember = 1", "fault[1].to", "a pause needs a time at which it ends"),
    ("[[fault]]\nkind = 'partition'\ngroups = [[1], [1]]", "fault[1].groups", "each member at most once"),
    ("[[fault]]\nkind = 'partition'\ngroups = [[[1]]]", "fault[1].groups", "each member at most once"),
    ("[[fault]]\nkind = 'partition'\ngroups = [[{}]]", "fault[1].groups", "each member at most once"),
    ("[[fault]]\nkind = 'partition'\ngroups = [[true]]", "fault[1].groups", "each member at most once"),
    ("[[step]]\nkind = 'leave'\nmember = 4\nat = '1s'", "step[1].member", "one of the members 1, 2, 3"),
    ("[[step]]\nkind = 'leave'\nmember = 1\nat = 1", "step[1].at", "a duration with a unit"),
]


@pytest.mark.parametrize(
    ("more", "field", "part"), INVALID, ids=[f"{field}-{n}" for n, (_, field, _) in enumerate(INVALID)]
)
def test_an_error_names_the_file_the_field_and_the_expected_value(more: str, field: str, part: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        parse(more)
    assert raised.value.field == field
    assert str(raised.value).startswith(f"file.toml: {field}: ")
    assert part in raised.value.problem


@pytest.mark.parametrize(
    ("was", "now", "field", "part"),
    [
        ('slot = "5ms"\n', "", "group.slot", "is missing"),
        ('slot = "5ms"', "slot = 5", "group.slot", "a duration with a unit"),
        ('slot = "5ms"', 'slot = "1ns"', "group.slot", "at least 1us"),
        ("members = 3", "members = 0", "group.members", "expected a number of members"),
        ("members = 3", "members = [2, 1]", "group.members", "ascending member numbers"),
        ("members = 3", "members = 3\nmax_frame = 10", "group.max_frame", "256 to 65,507"),
        ("avg = 100\n", "", "rate.avg", "is missing"),
        ("avg = 100", "avg = 0", "rate.avg", "a positive number"),
        ("avg = 100", "avg = 10_000_000", "rate.avg", "less than avg = 10,000,000 messages/s; lower avg, raise burst"),
        ("seconds = 1.5", "seconds = 'long'", "run.seconds", "a number from"),
    ],
)
def test_an_invalid_required_field_is_named(was: str, now: str, field: str, part: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        parse(base=MINIMAL.replace(was, now))
    assert raised.value.field == field
    assert part in raised.value.problem


@pytest.mark.parametrize(
    ("was", "now", "field", "part"),
    [
        ("members", "memebers", "group.members", "is missing; is group.memebers a misspelling of it?"),
        ("avg", "average", "rate.avg", "is missing; is rate.average a misspelling of it?"),
        ("seconds", "second", "run.seconds", "is missing; is run.second a misspelling of it?"),
        ("[run]", "[runs]", "run.seconds", "is missing; is [runs] a misspelling of [run]?"),
        ("[run]", "[other]", "run.seconds", "is missing; add it"),
    ],
)
def test_a_misspelt_required_field_is_named_beside_the_missing_one(was: str, now: str, field: str, part: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        parse(base=MINIMAL.replace(was, now, 1))
    assert raised.value.field == field
    assert part in raised.value.problem


TOPOLOGY = (
    MINIMAL.replace('name = "g"', 'name = "g"\norder = "quasi_genuine"')
    + """
[topology.groups]
a = [1, 2]
b = [3]
[topology.sends]
a = ["a", "b"]
[topology.to]
"""
)


@pytest.mark.parametrize(
    ("destinations", "field", "part"),
    [
        ("a = 5", "topology.to.a", "expected lists of groups, such as [['a', 'b'], ['a']], got 5"),
        ("a = [5]", "topology.to.a", "expected lists of groups"),
        ("a = ['b']", "topology.to.a", "expected lists of groups"),
        ("a = [[5]]", "topology.to.a", "expected lists of groups"),
        ("a = [['zzz']]", "topology.to.a", "may not send to zzz"),
        ("a = [[]]", "topology.to.a", "needs at least one destination group"),
        ("b = [['zzz']]", "topology.to.b", "may not send to zzz; the topology lets it send to no group"),
        ("b = [['a']]", "topology.to.b", "may not send to a"),
        ("b = [[]]", "topology.to.b", "needs at least one destination group"),
        ("c = [['a']]", "topology.to.c", "expected one of the groups a, b, got 'c'"),
    ],
)
def test_an_invalid_destination_of_a_topology_is_named(destinations: str, field: str, part: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        parse(destinations, base=TOPOLOGY)
    assert raised.value.field == field
    assert part in raised.value.problem


def test_a_group_sends_to_all_its_receivers_then_to_each_unless_the_file_says_otherwise() -> None:
    assert parse(base=TOPOLOGY).routes == {1: (("a", "b"), ("a",), ("b",)), 2: (("a", "b"), ("a",), ("b",)), 3: ()}
    assert parse("a = [['b'], ['a']]", base=TOPOLOGY).routes[1] == (("b",), ("a",))
