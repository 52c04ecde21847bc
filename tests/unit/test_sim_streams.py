"""Named streams: the same everywhere, independent of one another."""

import subprocess
import sys

from unisono.sim.random_streams import RandomStreams, random_below


def test_a_name_gives_the_same_numbers_on_every_python() -> None:
    # Recorded with CPython 3.11: a change of these numbers changes the run of every seed.
    stream = RandomStreams(1).stream("network", 1, 2)
    assert [random_below(stream, 1_000_000) for _ in range(4)] == [233022, 763545, 537978, 24426]


def test_names_are_not_confused() -> None:
    streams = RandomStreams(1)
    names: list[tuple[str | int, ...]] = [("a", 1, 2), ("a", 12), ("a", "1", 2), ("a",), ("b", 1, 2), ("a", 1, 2, "")]
    first = [streams.stream(*name).random() for name in names]
    assert len(set(first)) == len(names)
    assert RandomStreams(2).stream("a", 1, 2).random() not in first


def test_hash_randomization_changes_nothing() -> None:
    code = "from unisono.sim.random_streams import RandomStreams; print(RandomStreams(5).stream('x', 'y', 3).random())"
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
