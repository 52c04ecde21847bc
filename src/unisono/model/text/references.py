"""Group references as text. A process joins a group with its reference (paper 002 §4.2: GroupRef).

unisono://table-7?peers=1@10.0.0.7:9001,2@10.0.0.8:9001       the members' addresses
unisono://table-7?beacon=239.255.77.76:7776&members=5         found by beacon
unisono://table-7?dns=table-7.example:9001&members=5          found by DNS name
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode

from unisono.errors import InvalidOption

SCHEME = "unisono://"


@dataclass(frozen=True, slots=True)
class GroupReference:
    """A parsed group reference. Exactly one of `peers`, `beacon` and `dns` is set."""

    group: str
    peers: Mapping[int, str] | None = None
    membership_salt: str = ""
    """Distinguishes groups of the same name with different members."""
    beacon: str | None = None
    dns: str | None = None
    members: int | None = None

    def text(self) -> str:
        """The group reference as text, which `parse_reference` reads."""
        peers = ",".join(f"{number}@{address}" for number, address in sorted((self.peers or {}).items()))
        members = None if self.members is None else str(self.members)
        values = {
            "peers": peers,
            "table": self.membership_salt,
            "beacon": self.beacon,
            "dns": self.dns,
            "members": members,
        }
        fields = {name: value for name, value in values.items() if value}
        return f"{SCHEME}{quote(self.group, safe='')}?{urlencode(fields, safe='@:,')}"


def parse_reference(text: str) -> GroupReference:
    """Parse a group reference. Raises InvalidOption if the text is not a valid one."""
    name, question, query = text.removeprefix(SCHEME).partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    fields = dict(pairs)
    if not text.startswith(SCHEME) or not name or not question:
        raise InvalidOption("reference", f"expected unisono://NAME?peers=1@HOST:PORT,…, got {text!r}")
    unknown = sorted(fields.keys() - {"peers", "table", "beacon", "dns", "members"})
    if unknown:
        known = "peers, table, beacon, dns, members"
        raise InvalidOption("reference", f"unknown field {', '.join(unknown)} in {text!r}; known fields: {known}")
    names = [name for name, _ in pairs]
    repeated = sorted(name for name in fields if names.count(name) > 1)
    if repeated:
        raise InvalidOption(
            "reference", f"expected each field once, got {', '.join(repeated)} more than once in {text!r}"
        )
    if sum(word in fields for word in ("peers", "beacon", "dns")) != 1:
        raise InvalidOption("reference", f"expected exactly one of peers, beacon and dns, got {text!r}")
    members = fields.get("members")
    if members is not None and not members.isdecimal():
        raise InvalidOption("reference", f"expected a number after members=, got {members!r}")
    peers = _peers(fields["peers"]) if "peers" in fields else None
    return GroupReference(
        unquote(name),
        peers,
        fields.get("table", ""),
        fields.get("beacon"),
        fields.get("dns"),
        None if members is None else int(members),
    )


def _peers(text: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for part in text.split(","):
        number, at, address = part.partition("@")
        if not at or not number.isdecimal() or int(number) in found:
            raise InvalidOption("reference", f"expected peers as NUMBER@HOST:PORT, each number once, got {part!r}")
        found[int(number)] = address
    return found
