"""Bytes on the wire and on disk do not change: each example encodes to its golden bytes and decodes from them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest
from tests.behaviour.golden import read, sections

from unisono.agreement.paxos import messages as consensus
from unisono.model.effects import Write
from unisono.runtime.storage import Storage
from unisono.wire.frame import Kind

GOLDEN = read()
SECTIONS = sections()
EXAMPLES = [(section, label) for section, part in SECTIONS.items() for label in part]


@pytest.mark.parametrize(("section", "label"), EXAMPLES, ids=[f"{s}-{label}" for s, label in EXAMPLES])
def test_an_example_encodes_to_its_golden_bytes_and_back(section: str, label: str) -> None:
    example, golden = SECTIONS[section][label], bytes.fromhex(GOLDEN[section][label])
    assert example.data.hex() == golden.hex()
    assert example.decode(golden) == example.value


def test_examples_and_golden_bytes_have_the_same_labels() -> None:
    examples = {section: set(part) for section, part in SECTIONS.items()}
    assert examples == {section: set(part) for section, part in GOLDEN.items() if section in examples}
    assert set(GOLDEN) == {*examples, "storage file"}


def test_every_kind_of_frame_has_golden_bytes() -> None:
    numbers = {int(label.split()[0]) for label in SECTIONS["frames"]}
    assert numbers == {kind.value for kind in Kind}
    for label, data in GOLDEN["frames"].items():
        assert bytes.fromhex(data)[1] == int(label.split()[0]), label


def test_every_type_of_record_has_golden_bytes() -> None:
    examples = SECTIONS["agreement records"]
    assert {type(example.value) for example in examples.values()} == set(get_args(consensus.ConsensusRecord))
    for label, example in examples.items():
        assert example.data[0] == int(label.split()[0])
    for label, example in SECTIONS["group records"].items():
        assert example.data[:1].decode() == label.split()[0]
    assert {label.split()[0] for label in SECTIONS["group records"]} == {"o", "f"}


def test_a_storage_file_has_its_golden_bytes_and_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(1, count + 1)))
    path = tmp_path / "member-2"
    storage = Storage(path, group="golden", member=2, fsync="always")
    storage.apply([Write((b"first", b"second"))])
    storage.apply([Write((b"",), may_be_lost=True)])
    storage.close()
    golden = bytes.fromhex(GOLDEN["storage file"]["three records"])
    assert path.read_bytes().hex() == golden.hex()
    copy = tmp_path / "copy"
    copy.write_bytes(golden)
    again = Storage(copy, group="golden", member=2)
    assert (again.stored_records.storage_id, again.stored_records.records) == (0x01020304, (b"first", b"second", b""))
    again.close()
