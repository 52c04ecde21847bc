"""Random ideal groups: members, priorities, speeds of consumers, crashes, joins and leaves at any step."""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from random import Random

from tests.worlds.ideal_views import Action, IdealGroup

from unisono.orders.priority.insertion import DecisionMode
from unisono.sim.random_streams import random_below

MAX_MEMBERS = 8
MAX_PRIORITY_LEVELS = 5
_SPEEDS = (0.05, 0.3, 1.0, 2.0)
_RARE_ACTION_WEIGHTS = {"crash": 0.02, "leave": 0.02, "admit": 0.05}
_FORMS = (DecisionMode.ALL, DecisionMode.COORDINATOR)


def random_group(chance: Random, *, form: DecisionMode | None = None, max_members: int = MAX_MEMBERS) -> IdealGroup:
    """A group of 2 to 8 members and 1 to 5 priorities. Some members may crash, leave, join or return."""
    count, levels = 2 + random_below(chance, max_members - 1), 1 + random_below(chance, MAX_PRIORITY_LEVELS)

    def script(most: int) -> list[int]:
        return [random_below(chance, levels) for _ in range(random_below(chance, most + 1))]

    scripts = {member: script(5) for member in range(1, count + 1)}
    joiners = [member for member in range(1, count + 3) if chance.random() < 0.3]
    return IdealGroup(
        scripts,
        form=form or _FORMS[random_below(chance, 2)],
        report_every=(1, 3, 1000)[random_below(chance, 3)],
        crashes=random_below(chance, count),
        leaves=random_below(chance, 3),
        join_scripts={member: script(3) for member in joiners},
    )


def run_randomly(group: IdealGroup, chance: Random) -> list[Action]:
    """Let things happen until nothing more does; gives what happened.

    Every consumer and every way from one member to another has a speed of its own.
    """
    members = sorted({*group.peers, *group.join_scripts})
    speeds = {member: _speed(chance) for member in members}
    ways = {(to, sender): _speed(chance) for to in members for sender in members}
    done: list[Action] = []
    while actions := group.enabled():
        if group.only_optional(actions) and chance.random() < 0.5:
            break
        cuts: dict[int, int] = {}
        for action in actions:
            if action[0] == "crash":
                cuts[int(action[1])] = cuts.get(int(action[1]), 0) + 1
        weights = []
        for action in actions:
            kind, member = str(action[0]), int(action[1])
            if kind == "receive":
                weight = ways[member, int(action[2])]
            else:
                weight = speeds[member] if kind == "consume" else _RARE_ACTION_WEIGHTS.get(kind, 1.0)
            weights.append(weight / cuts[member] if kind == "crash" else weight)
        reached = list(accumulate(weights))
        chosen = actions[min(bisect(reached, chance.random() * reached[-1]), len(actions) - 1)]
        group.perform(chosen)
        done.append(chosen)
    return done


def _speed(chance: Random) -> float:
    return _SPEEDS[random_below(chance, len(_SPEEDS))]


def finish_required(group: IdealGroup) -> None:
    """Let everything happen that must: no more crashes, joins or leaves."""
    while actions := [action for action in group.enabled() if action[0] not in _RARE_ACTION_WEIGHTS]:
        group.perform(actions[0])
