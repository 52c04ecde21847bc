"""Consensus over a sequence of instances (paper 003 §3): agreement, validity, integrity.

Agreement: no two members, in any of their lives, decide differently for one instance. Validity: what is decided for an
instance was proposed for it. Integrity: within one life a member decides each instance once, in order and without
leaving one out, but for those that a restored state stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.check.verdict import Reason, Status, Verdict, Witness, unknown

NAME = "consensus"


@dataclass(frozen=True, slots=True)
class Proposed:
    """A member proposed a value for instance k."""

    member: int
    k: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Told:
    """A member, in one of its lives, was told that k is decided; with `value` None, that all up to k is restored."""

    member: int
    life: int
    k: int
    value: bytes | None


def consensus(proposed: Sequence[Proposed], told: Sequence[Told]) -> Verdict:
    """Judge a run; `told` is in the order in which each member was told."""
    if not told:
        return unknown(NAME, Reason.NOTHING_DECIDED, "nothing was decided")
    by_instance: dict[int, set[bytes]] = {}
    for proposal in proposed:
        by_instance.setdefault(proposal.k, set()).add(proposal.value)
    first: dict[int, Told] = {}
    last: dict[tuple[int, int], int] = {}
    faults: list[tuple[int, Witness]] = []
    for event in told:
        before = last.get((event.member, event.life), 0)
        last[event.member, event.life] = event.k
        if event.value is None:
            if event.k <= before:
                faults.append((event.k, _witness((event.member,), f"restored {event.k} after it had decided {before}")))
            continue
        if event.k != before + 1:
            faults.append((event.k, _witness((event.member,), f"decided instance {event.k} after instance {before}")))
        known = first.setdefault(event.k, event)
        if known.value != event.value:
            text = f"decided {_short(event.value)} for {event.k}, member {known.member} {_short(known.value)}"
            faults.append((event.k, _witness((event.member, known.member), text)))
        elif event.value not in by_instance.get(event.k, ()):
            text = f"decided {_short(event.value)} for {event.k}, which nobody proposed for it"
            faults.append((event.k, _witness((event.member,), text)))
    if faults:
        return Verdict(NAME, Status.VIOLATED, min(faults, key=lambda fault: fault[0])[1], len(faults))
    return Verdict(NAME, Status.VALID, figures={"instances": max(first, default=0)})


def _witness(members: tuple[int, ...], text: str) -> Witness:
    return Witness((), members, (), f"member {members[0]} {text}")


def _short(value: bytes | None) -> str:
    return "nothing" if value is None else repr(value[:24])
