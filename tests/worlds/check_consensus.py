"""Consensus over a sequence of instances (paper 003 §3): agreement, validity, integrity.

Agreement: no two members, in any incarnation, decide differently for one instance. Validity: the value decided for an
instance was proposed for it. Integrity: each incarnation of a member decides each instance once, in order and without
skipping any, except instances covered by a restored state.
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
    instance: int
    value: bytes


@dataclass(frozen=True, slots=True)
class DecisionReported:
    """A member run learned the decision of instance k; with `value` None, it restored a state up to k."""

    member: int
    incarnation: int
    instance: int
    value: bytes | None


def consensus(proposed: Sequence[Proposed], decisions: Sequence[DecisionReported]) -> Verdict:
    """Check a run; `decisions` has each member's decisions in the order in which it learned them."""
    if not decisions:
        return unknown(NAME, Reason.NOTHING_RECORDED, "nothing was decided")
    by_instance: dict[int, set[bytes]] = {}
    for proposal in proposed:
        by_instance.setdefault(proposal.instance, set()).add(proposal.value)
    first: dict[int, DecisionReported] = {}
    last: dict[tuple[int, int], int] = {}
    faults: list[tuple[int, Witness]] = []
    for event in decisions:
        before = last.get((event.member, event.incarnation), 0)
        last[event.member, event.incarnation] = event.instance
        if event.value is None:
            if event.instance <= before:
                faults.append(
                    (
                        event.instance,
                        _witness((event.member,), f"restored {event.instance} after it had decided {before}"),
                    )
                )
            continue
        if event.instance != before + 1:
            faults.append(
                (
                    event.instance,
                    _witness((event.member,), f"decided instance {event.instance} after instance {before}"),
                )
            )
        known = first.setdefault(event.instance, event)
        if known.value != event.value:
            text = f"decided {_short(event.value)} for {event.instance}, member {known.member} {_short(known.value)}"
            faults.append((event.instance, _witness((event.member, known.member), text)))
        elif event.value not in by_instance.get(event.instance, ()):
            text = f"decided {_short(event.value)} for {event.instance}, which no member proposed"
            faults.append((event.instance, _witness((event.member,), text)))
    if faults:
        return Verdict(NAME, Status.VIOLATED, min(faults, key=lambda fault: fault[0])[1], len(faults))
    return Verdict(NAME, Status.VALID, figures={"instances": max(first, default=0)})


def _witness(members: tuple[int, ...], text: str) -> Witness:
    return Witness((), members, (), f"member {members[0]} {text}")


def _short(value: bytes | None) -> str:
    return "nothing" if value is None else repr(value[:24])
