"""Porder, Update and the cadence of the CBR order (paper 000 §4.1, figure 5, errata 000-1 to -4, -7 and -11).

Pure functions in exact integers. A cycle is one second of absolute clock. In it a member of rate r has the turns
0 … r-1, and turn k belongs to the instant k/r; Porder is all members' turns sorted by (k/r, member). Sends are at
those instants rounded down to nanoseconds, which keeps the order: k/r < k'/r' is never sent later by equal clocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from math import lcm
from typing import TypeAlias

from unisono.model.durations import NS_PER_S

Porder: TypeAlias = tuple[int, ...]
"""The member of each turn of one cycle, in the order of delivery."""

CYCLE_NS = NS_PER_S
RATE_MAX = 100_000
"""Turns per second of one member: a period is at least 10 µs."""
_TURN_BITS = 20
_TURN_MASK = (1 << _TURN_BITS) - 1


def due_ns(cycle: int, turn: int, rate: int) -> int:
    """The clock reading at which a turn is sent: the cycle's start + turn/rate (000-6, 000-7)."""
    return cycle * CYCLE_NS + turn * CYCLE_NS // rate


def period_ns(rate: int) -> int:
    """The longest time between two turns of a member."""
    return -(-CYCLE_NS // rate)


def turn_number(cycle: int, turn: int) -> int:
    """What frames name a turn by: larger for later turns of the same sender, whatever rates it has had."""
    return cycle << _TURN_BITS | turn


def cycle_and_turn(number: int) -> tuple[int, int]:
    """The cycle and the turn in it that a frame names."""
    return number >> _TURN_BITS, number & _TURN_MASK


def porder_by_sorting(rates: Mapping[int, int]) -> Porder:
    """The definition of Porder: all turns (k, member), sorted by (k/rate, member)."""
    scale = lcm(*rates.values())
    steps = {member: scale // rate for member, rate in rates.items()}
    turns = [(k * steps[member], member) for member, rate in rates.items() for k in range(rate)]
    turns.sort()
    return tuple(member for _, member in turns)


def initial_porder(rates: Mapping[int, int]) -> Porder:
    """start-deliver: the members' turns merged one member after the other."""
    order: Porder = ()
    merged: dict[int, int] = {}
    for member in sorted(rates):
        order, _ = update_porder(order, 0, merged, member, rates[member])
        merged[member] = rates[member]
    return order


def update_porder(
    order: Sequence[int], current: int, rates: Mapping[int, int], member: int, rate: int
) -> tuple[Porder, int]:
    """change-rate: the Porder and `current` after `member` goes from its rate in `rates` to `rate`.

    The turn at `current` is the one being served. What the others have taken stays taken; a turn q of `member` counts
    as taken if (q/rate, member) is before the turn being served, and `current` is the number of taken turns (000-4):
    the length of the new Porder when nothing is left of the cycle. A member that is not in `rates` has taken nothing
    (000-2); rate 0 takes a member out, and one of rate 0 is not there. The vectors are merged in the order of
    (k/rate, member), so the result does not depend on the history of changes (000-11).
    """
    others = [i for i in order if i != member]
    counts: Counter[int] = Counter()
    keys: list[tuple[int, int]] = []
    scale = lcm(*(r for i, r in rates.items() if i != member and r), rate or 1)
    for i in others:
        keys.append((counts[i] * (scale // rates[i]), i))
        counts[i] += 1
    merged: list[int] = []
    done = 0
    for q in range(rate):
        at = bisect_left(keys, (q * (scale // rate), member), lo=done)
        merged.extend(others[done:at])
        merged.append(member)
        done = at
    merged.extend(others[done:])
    return tuple(merged), _updated_current(order, current, rates, member, rate)


def _updated_current(order: Sequence[int], current: int, rates: Mapping[int, int], member: int, rate: int) -> int:
    if not 0 <= current < max(1, len(order)):
        raise IndexError(f"turn {current} of a cycle of {len(order)}")
    if current == 0:
        return 0
    before = order[:current]
    served, of = before.count(order[current]), rates[order[current]]
    # q/rate < served/of, or equal if the member comes first: q < served·rate/of rounded up, or down plus one.
    mine = served * rate // of + 1 if member < order[current] else -(-served * rate // of)
    return current - before.count(member) + min(mine, rate)
