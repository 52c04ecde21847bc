"""The command line: help, exit statuses, and messages that name what is wrong. Real processes: tests/process/."""

import argparse
import json
import signal
from pathlib import Path
from typing import Any

import pytest

import unisono
from unisono.cli import simulate
from unisono.cli.main import ExitStatus, build_parser, main
from unisono.cli.member import configuration, parse_peers
from unisono.errors import InvalidOption, MemberProcessFailed

SCENARIO = Path(__file__).parents[2] / "scenarios" / "vbr_quickstart.toml"
PEERS = "1=127.0.0.1:9001,2=127.0.0.1:9002"


def status(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as left:  # argparse's own way out
        return int(left.code or 0)


@pytest.mark.parametrize("verb", ["demo", "member", "simulate"])
def test_help_of_each_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(verb, "--help") == 0
    text = capsys.readouterr().out
    assert f"usage: unisono {verb}" in text
    assert "--json" in text


def test_help_explains_units_and_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("--help") == 0
    text = capsys.readouterr().out
    assert "Durations carry a unit: 5ms, 200us, 2s" in text.replace("\n", " ")
    for verb in ("demo", "member"):
        assert status(verb, "--help") == 0
        text = " ".join(capsys.readouterr().out.split())
        for expected in ("default 5ms", "default 50ms", "messages per second", "messages per slot", "bytes"):
            assert expected in text


def test_help_of_master_lists_none_only_where_a_command_works_without_spark(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, works_without in (("verify", True), ("monitor", True), ("experiment", True), ("compact", False)):
        assert status(verb, "--help") == 0
        assert ("none: without Spark" in " ".join(capsys.readouterr().out.split())) is works_without, verb


def test_demo_accepts_the_order_auto_as_join_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("demo", "--help") == 0
    assert "auto (by --gaps, as `join` chooses), vbr, cbr" in " ".join(capsys.readouterr().out.split())
    assert status("demo", "--order", "auto", "--burst", "4000") == ExitStatus.VIOLATED
    assert "B/s free" in capsys.readouterr().err


def test_demo_refuses_options_that_gaps_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (("--grades", "early"), ("--failures",), ("--order", "vbr")):
        assert status("demo", "--gaps", "repaired", *given) == ExitStatus.BAD_INPUT
        assert "--gaps: chooses the" in capsys.readouterr().err


def test_a_failed_member_process_is_status_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise MemberProcessFailed("member 2 ended with status 1")

    monkeypatch.setattr("unisono.cli.simulate.run", fail)
    assert status("simulate", str(SCENARIO)) == ExitStatus.ENVIRONMENT
    assert "member 2 ended with status 1" in capsys.readouterr().err


def test_statuses_are_the_published_ones() -> None:
    assert [int(code) for code in ExitStatus] == [0, 1, 2, 3, 130]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "check recorded traces of any size"),
        (["dance"], "dance"),
        (["demo", "--order", "chaos"], "order"),
        (["demo", "--slot", "5"], "--slot"),
        (["demo", "--slot", "fast"], "--slot"),
        (["demo", "--delta", "-5ms"], "--delta"),
        (["demo", "--gamma", "1y"], "--gamma"),
        (["demo", "--gamma", "30s"], "gamma"),
        (["demo", "--fec", "3/3"], "fec"),
        (["demo", "--rate", "10000", "--burst", "1"], "--rate"),
        (["demo", "--members", "0"], "--members"),
        (["demo", "--members", "65"], "--members"),
        (["demo", "--members", "many"], "--members"),
        (["demo", "--seconds", "0"], "--seconds"),
        (["demo", "--seconds", "nan"], "--seconds"),
        (["demo", "--rate", "0"], "rate"),
        (["demo", "--burst", "0"], "burst"),
        (["demo", "--size", "5000"], "size"),
        (["demo", "--max-message", "0"], "max_message"),
        (["demo", "nowhere.toml"], "nowhere.toml"),
        (["demo", "--burst", "1000000"], "rate.burst"),
        (["demo", "--loss", "0.05"], "--fec a/b"),
        (["demo", "--loss", "0.05"], "--loss-burst x"),
        (["demo", "--loss", "0.05", "--failures"], "--loss-burst x"),
        (["demo", "--degrade", "0.05@2s"], "--loss-burst x"),
        (["demo", "--loss", "0.05", "--order", "cbr"], "use the order vbr"),
        (["demo", "--loss", "1.5", "--fec", "1/5"], "--loss"),
        (["demo", "--loss", "nan", "--fec", "1/5"], "--loss"),
        (["demo", "--degrade", "0.2", "--fec", "1/5"], "--degrade"),
        (["demo", "--degrade", "much@4s", "--fec", "1/5"], "--degrade"),
        (["demo", "--degrade", "0.2@40s", "--fec", "1/5"], "--degrade"),
        (["demo", "--degrade", "2@4s", "--fec", "1/5"], "--degrade"),
        (["demo", "--fec", "5", "--loss", "0.1"], "fec"),
        (["demo", "--delay", "constant:5ms"], "--delay"),
        (["demo", "--reliability", "0.9", "--reliable", "2/6ms"], "--reliable rmcast"),
        (["demo", str(SCENARIO.with_name("vbr_failures_churn.toml"))], "network.adversary, clocks.kind"),
        (["demo", str(SCENARIO), "--members", "5"], "--members"),
        (["demo", str(SCENARIO), "--slot", "5ms", "--kill", "1@1s"], "--slot"),
        (["demo", str(SCENARIO), "--failures"], "--failures"),
        (["demo", str(SCENARIO.with_name("faults_stall.toml"))], "--loss-burst x"),
        (["demo", str(SCENARIO.with_name("quasi_genuine_ring.toml"))], "unisono simulate FILE"),
        (["simulate"], "scenario"),
        (["simulate", "nowhere.toml"], "nowhere.toml"),
        (["simulate", str(SCENARIO), "--seeds", "5"], "--seeds"),
        (["simulate", str(SCENARIO), "--seeds", "5..1"], "--seeds"),
        (["simulate", str(SCENARIO), "--seed", "x"], "--seed"),
        (["member"], "members"),
        (["member", "--id", "1", "--peers", "nonsense"], "--peers"),
        (["member", "--id", "1", "--peers", "1=127.0.0.1:9001,1=127.0.0.1:9002"], "--peers"),
        (["member", "--id", "1", "--peers", "1=127.0.0.1"], "peers[1]"),
        (["member", "--id", "3", "--peers", PEERS], "peers"),
        (["member", "--id", "1", "--peers", PEERS, "--order", "chaos"], "order"),
        (["member", "--id", "1", "--peers", PEERS, "--timeout", "long"], "timeout"),
        (["member", "--id", "1", "--peers", PEERS, "--deadline", "60"], "deadline"),
        (["member", "--id", "1", "--peers", PEERS, "--multicast", "239.1.1.1"], "multicast"),
        (["member", "--id", "1", "--peers", PEERS, "--rate", "-1"], "rate.avg"),
    ],
)
def test_bad_input_is_status_2_and_names_the_field(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(*arguments) == ExitStatus.BAD_INPUT
    captured = capsys.readouterr()
    assert named in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("members = 5", "members = ", "TOML"),
        ('slot = "5ms"', 'slot = "5"', "group.slot"),
        ('order = "vbr"', 'order = "vbr"\ncolour = "red"', "colour"),
        ('order = "vbr"', 'order = "chaos"', "order"),
        ("[rate]", "[rates]", "rate.avg"),
        ("burst = 8               #", 'burst = "eight" #', "rate.burst"),
    ],
)
@pytest.mark.parametrize("verb", ["simulate", "demo"])
def test_a_wrong_scenario_names_file_and_field(
    old: str, new: str, named: str, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.toml"
    text = SCENARIO.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    assert status(verb, str(path)) == ExitStatus.BAD_INPUT
    err = capsys.readouterr().err
    assert "wrong.toml" in err or named == "order"
    assert "Traceback" not in err
    assert named in err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["member", "--id", "1", "--peers", PEERS, "--deadline", "55ms"], "the best offer is a deadline of 300ms"),
        (["member", "--id", "1", "--peers", PEERS, "--burst", "10000"], "B/s free"),
        (["demo", "--burst", "4000"], "B/s free"),
    ],
)
def test_an_infeasible_request_is_status_1(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(*arguments) == ExitStatus.VIOLATED
    assert problem in capsys.readouterr().err


def test_verify_checks_its_arguments_before_it_starts_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("Spark starts")

    monkeypatch.setattr("unisono.pipeline.session.spark_session", never)
    assert status("verify", str(tmp_path / "nowhere")) == ExitStatus.BAD_INPUT
    assert "is not a folder" in capsys.readouterr().err
    assert status("simulate", str(SCENARIO), "--trace", str(tmp_path)) == 0
    assert status("verify", str(tmp_path), "--run", "other") == ExitStatus.BAD_INPUT
    assert "has no run other; it has run " in capsys.readouterr().err


def test_an_interrupt_is_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> str:
        signal.raise_signal(signal.SIGINT)
        return ""

    monkeypatch.setattr(Path, "read_text", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        assert status("simulate", str(SCENARIO)) == ExitStatus.INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)


def test_simulate_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("simulate", str(SCENARIO), "--json", "--trace", str(tmp_path)) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert captured.err == ""
    assert result["verdict"] == "valid"
    assert result["witness"] is None
    assert {"seed", "deliveries", "latency_max_ms", "bound_ms", "overhead"} <= result.keys()
    assert {"avg_rate", "max_burst"} <= result["overhead"].keys()
    assert list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("verdict", ["violated", "unknown"])
def test_simulate_fails_if_the_run_is_not_what_the_scenario_expects(
    verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = tmp_path / "hopes.toml"
    text = SCENARIO.read_text("utf-8")
    assert 'verdict = "valid"' in text
    scenario.write_text(text.replace('verdict = "valid"', f'verdict = "{verdict}"'), "utf-8")
    assert status("simulate", str(scenario)) == ExitStatus.VIOLATED
    failed = f'[expect] verdict = "{verdict}", but the run of seed 1 is valid'
    assert f"verdict: valid (not what the scenario expects)\nfailed:  {failed}\n" in capsys.readouterr().out
    assert status("simulate", str(scenario), "--seeds", "1..2") == ExitStatus.VIOLATED
    assert f"failed:  {failed} (and 1 more seeds)\n" in capsys.readouterr().out
    assert status("simulate", str(scenario), "--json") == ExitStatus.VIOLATED
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["expected"], found["failed_expectation"]) == ("valid", False, failed)


def test_simulate_prints_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("simulate", str(SCENARIO), "--seeds", "1..2") == 0
    text = capsys.readouterr().out
    assert "2 seeds: 2 valid" in text
    assert "verdict: valid" in text


def test_many_seeds_print_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(simulate, "PROGRESS_EVERY_S", 0.0)
    assert status("simulate", str(SCENARIO), "--seeds", "1..3", "--json") == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "unisono simulate: 1 of 3 seeds, 0 not valid",
        "unisono simulate: 2 of 3 seeds, 0 not valid",
    ]
    assert json.loads(captured.out)["verdict"] == "valid"
    monkeypatch.setattr(simulate, "PROGRESS_EVERY_S", 3600.0)
    assert status("simulate", str(SCENARIO), "--seeds", "1..3") == 0
    assert capsys.readouterr().err == ""


def member_options(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["member", *words])


def test_member_turns_its_options_into_a_configuration() -> None:
    words = "--order vbr --fec 1/5 --loss-burst 2 --max-frame 1200 --link 2Gbit/s --queue-messages 5 --deadline 90ms"
    config = configuration(member_options("--id", "1", "--peers", PEERS, *words.split()))
    assert config.order == unisono.Vbr(fec=(1, 5), loss_burst=2, failures=True)
    assert (config.network.max_frame, config.queue_messages, config.deadline) == (1200, 5, "90ms")
    assert config.network.shared_link().capacity_bytes_per_s == 250_000_000


def test_member_options_override_the_configuration_file(tmp_path: Path) -> None:
    path = tmp_path / "group.toml"
    path.write_text(
        'group = "table-7"\nmember = 1\n[peers]\n1 = "127.0.0.1:9001"\n2 = "127.0.0.1:9002"\n'
        '[order]\nname = "vbr"\nfailures = true\n[network]\ndelta = "20ms"\n',
        encoding="utf-8",
    )
    config = configuration(member_options("--config", str(path), "--id", "2", "--grades", "both", "--gamma", "1ms"))
    assert (config.group, config.member) == ("table-7", 2)
    assert config.order == unisono.Vbr(failures=True, grades="both")
    assert (config.network.delta, config.network.gamma) == ("20ms", "1ms")


def test_an_option_of_an_order_needs_the_order() -> None:
    with pytest.raises(InvalidOption, match="--fec: is an option of an order; name the order too"):
        configuration(member_options("--id", "1", "--peers", PEERS, "--fec", "1/5"))
    with pytest.raises(InvalidOption, match="fec: the order consensus does not have this option; orders that do: vbr"):
        configuration(member_options("--id", "1", "--peers", PEERS, "--order", "consensus", "--fec", "1/5"))


def test_peers_are_parsed() -> None:
    assert parse_peers(" 1=127.0.0.1:9001, 2=[::1]:9002") == {1: "127.0.0.1:9001", 2: "[::1]:9002"}
    with pytest.raises(InvalidOption, match="member 1 is listed twice"):
        parse_peers("1=a:1,1=b:2")
