"""The world as text: the optimistic state of the first server of each area, and counts of corrections."""

from __future__ import annotations

from examples.areas.bots import AREAS, AreaWorld
from examples.areas.rules import HEIGHT, WIDTH, bot_key, coin_key


def draw(game: AreaWorld, now: int) -> str:
    """All areas side by side, then a summary of each."""
    grids = [_grid(game, members[0]) for members in AREAS.values()]
    lines = ["  ".join(f"{area:^{WIDTH + 2}}" for area in AREAS)]
    lines += ["  ".join(rows) for rows in zip(*grids, strict=True)]
    lines.append("")
    lines += [area_summary(game, area) for area in AREAS]
    lines.append(f"{now / 1e9:6.2f} s   a letter is a bot, o is a coin; drawn from early deliveries")
    return "\n".join(lines)


def _grid(game: AreaWorld, member: int) -> list[str]:
    replica = game.servers[member].replica
    bots = {}
    for bot in game.bots:
        state = replica.optimistic(bot_key(bot.name))
        if state is not None:
            bots[state[0]] = bot.name
    edge = "+" + "-" * WIDTH + "+"
    rows = []
    for y in range(HEIGHT):
        coins = ("o" if replica.optimistic(coin_key((x, y))) else " " for x in range(WIDTH))
        rows.append("|" + "".join(bots.get((x, y), coin) for x, coin in enumerate(coins)) + "|")
    return [edge, *rows, edge]


def area_summary(game: AreaWorld, area: str) -> str:
    """The commands, mistakes and rollbacks of an area, over all its servers."""
    replicas = [game.servers[member].replica for member in AREAS[area]]
    mistakes = [replica.mistakes for replica in replicas]
    return (
        f"{area:<7} final {replicas[0].executed:5,}   pending {max(r.pending for r in replicas):3,}   mistakes: "
        f"{sum(m.out_of_order for m in mistakes):4,} out of order, {sum(m.lost for m in mistakes):4,} not early; "
        f"{sum(m.rollbacks for m in mistakes):4,} rollbacks, {sum(m.reexecuted for m in mistakes):4,} executed again"
    )
