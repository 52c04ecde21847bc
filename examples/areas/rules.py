"""The rules of the game: which objects a command touches, and its effect on one area.

The servers of an area know only that area. A bot's command contains the position that the bot believes to have. So a
command that was based on a wrong optimistic state has no effect. Crossing is one message to both areas and carries the
bot's coins: the old area releases the bot and the new one accepts it, at one point of the order of both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from unisono.replica import Key, ObjectView

WIDTH, HEIGHT = 16, 6
Spot = tuple[int, int]


def walk(bot: str, at: Spot, to: Spot) -> bytes:
    """Go from one spot to another."""
    return json.dumps({"do": "walk", "who": bot, "at": at, "to": to}).encode()


def grab(bot: str, at: Spot, grows: Spot) -> bytes:
    """Take a coin from the bot's own spot; another coin appears at `grows`."""
    return json.dumps({"do": "grab", "who": bot, "at": at, "grows": grows}).encode()


def cross(bot: str, area: str, into: str, *, coins: int, to: Spot) -> bytes:
    """Cross from an area into another one, with all coins."""
    return json.dumps({"do": "cross", "who": bot, "from": area, "into": into, "coins": coins, "to": to}).encode()


def begin(bots: dict[str, Spot], coins: Sequence[Spot]) -> bytes:
    """Place the bots and coins of an area."""
    return json.dumps({"do": "begin", "bots": bots, "coins": coins}).encode()


def bot_key(bot: str) -> Key:
    """The key of a bot; its value is the bot's spot and number of coins."""
    return ("bot", bot)


def coin_key(spot: Spot) -> Key:
    """The key of a spot; its value is the number of coins there."""
    return ("coins", *spot)


class Area:
    """The state machine of one area."""

    def __init__(self, name: str) -> None:
        self.name = name

    def touches(self, command: bytes) -> Sequence[Key]:
        """The bot, and the spots whose coins change."""
        fields = json.loads(command)
        if fields["do"] == "begin":
            return [*map(bot_key, fields["bots"]), *(coin_key(tuple(spot)) for spot in fields["coins"])]
        spots = [fields["at"], fields["grows"]] if fields["do"] == "grab" else []
        return [bot_key(fields["who"]), *(coin_key(tuple(spot)) for spot in spots)]

    def apply(self, view: ObjectView, command: bytes) -> bool:
        """Execute a command; returns whether it had an effect."""
        fields = json.loads(command)
        if fields["do"] == "begin":
            for name, spot in fields["bots"].items():
                view[bot_key(name)] = (tuple(spot), 0)
            for spot in fields["coins"]:
                view[coin_key(tuple(spot))] = (view[coin_key(tuple(spot))] or 0) + 1
            return True
        key = bot_key(fields["who"])
        if fields["do"] == "cross":
            view[key] = (tuple(fields["to"]), fields["coins"]) if fields["into"] == self.name else None
            return True
        bot = view[key]
        if bot is None or bot[0] != tuple(fields["at"]):
            return False
        if fields["do"] == "walk":
            view[key] = (tuple(fields["to"]), bot[1])
            return True
        here, there = coin_key(tuple(fields["at"])), coin_key(tuple(fields["grows"]))
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
        """The objects that `dump` wrote."""
        return {tuple(key): _frozen(value) for key, value in json.loads(data)}


def _frozen(value: Any) -> Any:
    return (tuple(value[0]), value[1]) if isinstance(value, list) else value
