"""The game: what a command touches, and what it does to one area.

An area's servers know that area and no other. A bot's commands say where it believes to be, so that one that was made
on an optimistic state that was wrong has no effect. Crossing goes to both areas at once and carries what the bot owns:
the old area lets it go, the new one takes it in, at one place in the order of both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from unisono.replica import Key, ObjectView

WIDTH, HEIGHT = 16, 6
Spot = tuple[int, int]


def walk(who: str, at: Spot, to: Spot) -> bytes:
    """Go from one spot to another."""
    return json.dumps({"do": "walk", "who": who, "at": at, "to": to}).encode()


def grab(who: str, at: Spot, grows: Spot) -> bytes:
    """Take a coin where one stands; another one grows elsewhere."""
    return json.dumps({"do": "grab", "who": who, "at": at, "grows": grows}).encode()


def cross(who: str, area: str, into: str, *, coins: int, to: Spot) -> bytes:
    """Leave an area for another one, with what one owns."""
    return json.dumps({"do": "cross", "who": who, "from": area, "into": into, "coins": coins, "to": to}).encode()


def begin(bots: dict[str, Spot], coins: Sequence[Spot]) -> bytes:
    """Lay out an area."""
    return json.dumps({"do": "begin", "bots": bots, "coins": coins}).encode()


def bot_key(who: str) -> Key:
    """The object that a bot is: its spot and its coins."""
    return ("bot", who)


def coin_key(spot: Spot) -> Key:
    """The object that a spot is: how many coins lie there."""
    return ("coins", *spot)


class Area:
    """The machine of one area's servers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def touches(self, command: bytes) -> Sequence[Key]:
        """The bot, and the spots whose coins change."""
        said = json.loads(command)
        if said["do"] == "begin":
            return [*map(bot_key, said["bots"]), *(coin_key(tuple(spot)) for spot in said["coins"])]
        spots = [said["at"], said["grows"]] if said["do"] == "grab" else []
        return [bot_key(said["who"]), *(coin_key(tuple(spot)) for spot in spots)]

    def apply(self, view: ObjectView, command: bytes) -> bool:
        """Whether it had an effect."""
        said = json.loads(command)
        if said["do"] == "begin":
            for who, spot in said["bots"].items():
                view[bot_key(who)] = (tuple(spot), 0)
            for spot in said["coins"]:
                view[coin_key(tuple(spot))] = (view[coin_key(tuple(spot))] or 0) + 1
            return True
        key = bot_key(said["who"])
        if said["do"] == "cross":
            view[key] = (tuple(said["to"]), said["coins"]) if said["into"] == self.name else None
            return True
        bot = view[key]
        if bot is None or bot[0] != tuple(said["at"]):
            return False
        if said["do"] == "walk":
            view[key] = (tuple(said["to"]), bot[1])
            return True
        here, there = coin_key(tuple(said["at"])), coin_key(tuple(said["grows"]))
        if not view[here]:
            return False
        view[here] = view[here] - 1 or None
        view[there] = (view[there] or 0) + 1
        view[key] = (bot[0], bot[1] + 1)
        return True

    def dump(self, state: dict[Key, Any]) -> bytes:
        """All objects, as JSON."""
        return json.dumps(sorted((list(key), value) for key, value in state.items())).encode()  # type: ignore[call-overload]

    def load(self, data: bytes) -> dict[Key, Any]:
        """What `dump` gave."""
        return {tuple(key): _frozen(value) for key, value in json.loads(data)}


def _frozen(value: Any) -> Any:
    return (tuple(value[0]), value[1]) if isinstance(value, list) else value
