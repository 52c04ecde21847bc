"""The example world of areas: whatever the network does to early deliveries, all servers agree in the end."""

from __future__ import annotations

import pytest
from examples.areas.__main__ import main
from examples.areas.bots import AREAS
from examples.areas.play import Game
from examples.areas.rules import Area, cross, grab, walk
from examples.areas.screen import draw

from unisono.replica import Replica


def mistake_count(game: Game) -> int:
    mistakes = [server.replica.mistakes for server in game.servers.values()]
    return sum(found.lost + found.out_of_order for found in mistakes)


def test_a_window_above_the_jitter_prevents_mistakes() -> None:
    game = Game(seed=2)
    game.run(1.5)
    assert game.problems() == []
    assert sum(bot.crossings for bot in game.bots) >= 1
    assert all(server.replica.executed > 10 for server in game.servers.values())
    assert mistake_count(game) == 0


def test_servers_agree_after_mistakes_caused_by_heavy_jitter() -> None:
    game = Game(seed=3, jitter_ms=30, window_ms=2)
    game.run(1.5)
    assert game.problems() == []
    assert mistake_count(game) > 0
    assert sum(server.replica.mistakes.rollbacks for server in game.servers.values()) > 0


def test_problems_reports_a_server_that_differs_and_a_lost_bot() -> None:
    game = Game(seed=2)
    game.run(0.4)
    first = AREAS["west"][0]
    bot = next(bot for bot in game.bots if game.servers[first].replica.conservative(("bot", bot.name)))
    game.servers[first].replica.deliver_final((99, 1, 0), cross(bot.name, "west", "nowhere", coins=0, to=(0, 0)))
    assert any("differs" in problem for problem in game.problems())
    assert f"bot {bot.name} is in no area" in game.problems()


def test_walking_grabbing_and_crossing() -> None:
    west, middle = Replica(Area("west")), Replica(Area("middle"))
    west.deliver_final((1, 1, 0), b'{"do": "begin", "bots": {"a": [1, 1]}, "coins": [[2, 1]]}')
    assert west.deliver_final((1, 1, 1), walk("a", (1, 1), (2, 1))) is True
    assert west.deliver_final((1, 1, 2), walk("a", (1, 1), (0, 1))) is False, "the bot is no longer there"
    assert west.deliver_final((1, 1, 3), grab("a", (2, 1), (5, 5))) is True
    assert west.deliver_final((1, 1, 4), grab("a", (2, 1), (5, 5))) is False, "the coin has been taken"
    crossing = cross("a", "west", "middle", coins=1, to=(3, 3))
    for replica in (west, middle):
        replica.deliver_final((1, 1, 5), crossing)
    assert west.conservative(("bot", "a")) is None
    assert middle.conservative(("bot", "a")) == ((3, 3), 1)
    copy = Replica(Area("west"))
    copy.restore(west.snapshot())
    assert copy.conservative(("coins", 5, 5)) == west.conservative(("coins", 5, 5)) == 1


def test_the_game_is_drawn_and_reports_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    game = Game(bots=3, seed=1)
    for now in game.frames(0.5, 0.25):
        picture = draw(game, now)
    assert all(area in picture for area in AREAS)
    assert "rollbacks" in picture
    assert "|" in picture
    assert main(["--seconds", "0.5", "--bots", "3"]) == 0
    assert "no coin is lost" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["--seconds", "0"], ["--jitter", "0"], ["--window", "0"], ["--bots", "99"], ["--sockets", "--watch"]],
    ids=" ".join,
)
def test_impossible_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    assert exited.value.code == 2
    assert f"error: {arguments[0]}: " in capsys.readouterr().err
