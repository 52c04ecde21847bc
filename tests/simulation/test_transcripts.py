"""Joins, merges and elections as readable transcripts (tests/transcripts), in the manner of etcd raft's testdata.

`pytest tests/simulation/test_transcripts.py --rewrite-transcripts` writes the present outputs into the files. Read the
difference before you commit it: each line must be right, not only new.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulation.transcripts import play

TRANSCRIPTS = sorted((Path(__file__).parents[1] / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_members_report_what_the_transcript_says(path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text(encoding="utf-8")
    played = play(expected)
    if request.config.getoption("--rewrite-transcripts"):
        path.write_text(played, encoding="utf-8")
    else:
        assert played == expected


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 6


def test_a_changed_command_changes_the_output() -> None:
    """The runner prints what happens: without the crash, no view without member 3 is reported."""
    text = "members 1 2 3 order vbr failures\n\nrun 300ms\n\ncrash 3\n\nrun 200ms\n"
    assert "1 2: view 1 2\n" in play(text)
    assert "1 2: view 1 2\n" not in play(text.replace("crash 3\n\n", ""))


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown command: dance 3"):
        play("members 1 2\n\ndance 3\n")
