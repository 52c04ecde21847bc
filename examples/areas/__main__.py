"""`python -m examples.areas`: play some seconds, and report whether all servers agree. `--watch` draws the world."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from examples.areas.bots import AREAS, BOTS_MAX, AreaWorld
from examples.areas.play import Game
from examples.areas.screen import area_summary, draw
from examples.areas.sockets import play

FRAME_S = 0.1
JITTER_MS = 10


def main(arguments: list[str]) -> int:
    """Play, report the result, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.areas", description=__doc__)
    parser.add_argument("--watch", action="store_true", help="draw the world while the game runs")
    parser.add_argument("--sockets", action="store_true", help="use UDP on this machine instead of the simulator")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long the bots play (default 5)")
    parser.add_argument("--bots", type=int, default=9, help="number of bots (default 9)")
    parser.add_argument(
        "--jitter", type=int, default=JITTER_MS, metavar="MS", help="a datagram takes 1 to MS ms (default 10)"
    )
    parser.add_argument(
        "--window", type=int, default=15, metavar="MS", help="w(p), the wait before early delivery (default 15)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of bots and network (default 1)")
    options = parser.parse_args(arguments)
    if not 1 <= options.bots <= BOTS_MAX:
        parser.error(f"--bots: give a number from 1 to {BOTS_MAX}; each bot is named by a letter")
    if options.seconds <= 0:
        parser.error("--seconds: give a time above 0")
    if options.jitter < 1:
        parser.error("--jitter: give at least 1 ms; every datagram takes that long")
    if options.window < 1:
        parser.error("--window: give at least 1 ms; messages wait that long before they are delivered early")
    if options.sockets and (options.watch or options.jitter != JITTER_MS):
        parser.error("--sockets: omit --watch and --jitter, which only the simulator has")
    if options.sockets:
        return report(
            asyncio.run(play(options.seconds, bots=options.bots, seed=options.seed, window_ms=options.window))
        )
    game = Game(bots=options.bots, seed=options.seed, jitter_ms=options.jitter, window_ms=options.window)
    if options.watch:
        for now in game.frames(options.seconds, FRAME_S):
            sys.stdout.write("\x1b[H\x1b[2J" + draw(game, now) + "\n")
            sys.stdout.flush()
            time.sleep(FRAME_S)
    game.run(0 if options.watch else options.seconds)
    return report(game)


def report(game: AreaWorld) -> int:
    """Print a summary and every problem; returns the exit status."""
    for area in AREAS:
        sys.stdout.write(area_summary(game, area) + "\n")
    problems = game.problems()
    for problem in problems:
        sys.stdout.write(f"WRONG: {problem}\n")
    if not problems:
        sys.stdout.write(
            "the servers of each area have the same state, every bot is in one area, and no coin is lost\n"
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
