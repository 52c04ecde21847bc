"""Which scenarios real processes can run, and which are refused because the order would wait forever."""

import pytest

from unisono.cluster.member_process import timeline
from unisono.cluster.scenario_limits import loss_warning, member_schedules, refuse_unsupported
from unisono.cluster.supervisor import MemberSchedule
from unisono.errors import InvalidOption
from unisono.model.delays import RandomSource
from unisono.model.scenario import Leave, Scenario
from unisono.model.text.scenario import parse_scenario


def scenario(group: str, rest: str = "") -> Scenario:
    return parse_scenario(
        f"""
[group]
name = "table"
members = 3
slot = "5ms"
delta = "20ms"
gamma = "2ms"
{group}

[rate]
avg = 200
burst = 4

[run]
seconds = 2
{rest}
""",
        "the test",
    )


LOSS = '[[fault]]\nkind = "loss"\nprobability = 0.1\n'
CRASH = '[[fault]]\nkind = "crash"\nmember = 2\nat = "1s"\n'
LATE = '[[step]]\nkind = "start"\nmember = 2\nat = "1s"\n'
REPEATED = '[reliable]\nrho = 2\neta = "6ms"\n'
CUT = '[[fault]]\nkind = "partition"\ngroups = [[1], [2, 3]]\n'


@pytest.mark.parametrize(
    ("group", "faults", "problem"),
    [
        ("", LOSS, "--fec a/b"),
        ("failures = true", LOSS, "--loss-burst x"),
        ('fec = "1/5"', LOSS, "bound the loss"),
        ('fec = "1/5"', LOSS + "burst = 1", "bound the loss"),
        ('fec = "1/5"', LOSS + "at_most = 1\nof = 4", "2 of 5 consecutive"),
        ('order = "cbr"', LOSS, "waits forever for a lost message"),
        ("", CRASH, "add --failures"),
        ('order = "cbr"', CRASH, "leader or timestamp"),
        ("", CUT, "add --failures"),
        ("", LATE, "admits no member later"),
        ('order = "leader"', LATE, "admits no member later"),
        ('order = "reliable"', LATE + REPEATED, "admits no member later"),
        ('order = "uniform_causal"\nfailures = true', LATE + REPEATED, "admits no member later"),
        ('order = "timestamp"', LATE.replace("start", "restart"), "admits no member later"),
    ],
)
def test_a_scenario_in_which_the_order_would_wait_forever_is_refused(group: str, faults: str, problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem.replace("/", ".")):
        refuse_unsupported(scenario(group, faults))


@pytest.mark.parametrize(
    ("group", "faults"),
    [
        ("", ""),
        ("", LOSS.replace("0.1", "0.0")),
        ('fec = "1/5"', LOSS + "at_most = 1\nof = 5"),
        ('fec = "1/5"', LOSS + "at_most = 1\nof = 9"),
        ('fec = "2/5"\nfailures = true', LOSS),
        ("failures = true\nloss_burst = 1", LOSS + CRASH + CUT),
        ('order = "leader"', LOSS + CRASH + CUT),
        ("failures = true", LATE),
        ('order = "timestamp"', LOSS),
    ],
)
def test_a_scenario_that_the_order_tolerates_is_accepted(group: str, faults: str) -> None:
    refuse_unsupported(scenario(group, faults))


TOPOLOGY = """
[topology.groups]
east = [1]
west = [2, 3]
[topology.sends]
east = ["east", "west"]
west = ["west"]
"""


def test_a_scenario_of_several_groups_is_refused_with_the_command_that_runs_it() -> None:
    with pytest.raises(InvalidOption, match=r"^\[topology\]: .*unisono simulate FILE"):
        refuse_unsupported(scenario('order = "quasi_genuine"', TOPOLOGY))


def test_losses_under_an_order_that_assumes_none_give_a_warning() -> None:
    assert "may be excluded" in loss_warning(scenario('order = "leader"', LOSS))
    assert (
        loss_warning(scenario('order = "leader"'))
        == loss_warning(scenario("failures = true\nloss_burst = 1", LOSS))
        == ""
    )


def test_the_schedule_of_each_process() -> None:
    rest = (
        CRASH
        + '[[step]]\nkind = "restart"\nmember = 2\nat = "1.5s"\n[[step]]\nkind = "start"\nmember = 3\nat = "500ms"\n'
    )
    rest += '[[fault]]\nkind = "pause"\nmember = 1\nfrom = "200ms"\nto = "400ms"\n'
    assert member_schedules(scenario("failures = true", rest)) == {
        1: MemberSchedule(pauses_s=((0.2, 0.4),)),
        2: MemberSchedule(kills_s=(1.0,), restarts_s=(1.5,)),
        3: MemberSchedule(start_s=0.5),
    }


class Never(RandomSource):
    def random(self) -> float:
        raise AssertionError("a script needs no chance")


def test_a_later_incarnation_does_the_rest_of_the_script() -> None:
    rest = """
[workload]
kind = "script"
send = [{ at = "100ms", member = 1, sizes = [1] }, { at = "900ms", member = 1, sizes = [2, 3] }]
[[step]]
kind = "leave"
member = 1
at = "500ms"
"""
    scripted = scenario("failures = true", rest)
    leave = Leave(1, 500_000_000)
    assert timeline(scripted, 1, Never()) == [(100_000_000, (1,)), (500_000_000, leave), (900_000_000, (2, 3))]
    assert timeline(scripted, 1, Never(), 600_000_000) == [(300_000_000, (2, 3))]
