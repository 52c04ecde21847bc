"""Every relative link in the documentation points to an existing file."""

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
DOCUMENTS = [PROJECT / "README.md", PROJECT / "CHANGELOG.md", *sorted((PROJECT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_point_to_existing_files(document: Path) -> None:
    dead = [link for link in LINK.findall(document.read_text("utf-8")) if not (document.parent / link).exists()]
    assert not dead, f"{document.name}: {dead}"
