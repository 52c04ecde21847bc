"""Real processes over sockets that lose datagrams on purpose: every order over reliable multicast, and the services."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOSSY = ("--members", "3", "--seconds", "2", "--rate", "40", "--delta", "400ms", "--gamma", "20ms", "--slot", "20ms")
RELIABLE = ("--reliable", "4/20ms/20ms", "--loss", "0.05")


def unisono(*words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from unisono.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, check=False
    )


def demo(*words: str, out: Path) -> dict[str, object]:
    done = unisono("demo", *LOSSY, *words, "--json", "--out", str(out))
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("order", ["vbr", "leader", "uniform_causal"])
def test_nothing_is_missing_though_datagrams_are(order: str, tmp_path: Path) -> None:
    """1 in 20 datagrams is thrown away; 1 in 3 million messages would be missing at one receiver."""
    found = demo("--order", order, *RELIABLE, out=tmp_path / "run")
    assert found["verdict"] == "valid"
    injected = found["injected"]
    assert isinstance(injected, dict)
    assert injected["lost"] > 30, "datagrams were lost on purpose"
    checks = found["checks"]
    assert isinstance(checks, dict)
    wanted = "uniform_agreement" if order.startswith("uniform") else "gap_freedom"
    assert checks[wanted]["verdict"] == "valid"
    delivered = found["delivered"]
    assert isinstance(delivered, dict)
    assert set(delivered.values()) == {found["sent"]}


def test_a_killed_sender_leaves_the_survivors_in_agreement(tmp_path: Path) -> None:
    found = demo("--order", "causal", *RELIABLE, "--kill", "2@1s", out=tmp_path / "run")
    checks = found["checks"]
    assert isinstance(checks, dict)
    assert {checks[name]["verdict"] for name in ("agreement", "causal", "fifo", "integrity")} == {"valid"}


def test_a_redundancy_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    for words, told in (
        ("4", "--reliable: expected ρ/η"),
        ("4/fast", "--reliable: expected a duration"),
        ("900/6ms", "redundancy.rho"),
    ):
        done = unisono("demo", "--reliable", words, "--out", str(tmp_path / "run"))
        assert done.returncode == 2
        assert told in done.stderr
