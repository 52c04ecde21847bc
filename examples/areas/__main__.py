"""`python -m examples.areas`: play for some seconds, drawn with `--watch`, and say whether all servers agree."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from examples.areas.bots import AREAS, BOTS_MAX, Populated
from examples.areas.play import Game
from examples.areas.screen import counted, drawn
from examples.areas.sockets import play

FRAME_S = 0.1
JITTER_MS = 10


def main(words: list[str]) -> int:
    """Play, and judge."""
    parser = argparse.ArgumentParser(prog="python -m examples.areas", description=__doc__)
    parser.add_argument("--watch", action="store_true", help="draw it while it runs")
    parser.add_argument("--sockets", action="store_true", help="over UDP on this machine in place of the simulator")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long bots play (default 5)")
    parser.add_argument("--bots", type=int, default=9, help="how many (default 9)")
    parser.add_argument(
        "--jitter", type=int, default=JITTER_MS, metavar="MS", help="a datagram takes 1 to MS ms (default 10)"
    )
    parser.add_argument("--window", type=int, default=15, metavar="MS", help="w(p), the wait before early (default 15)")
    parser.add_argument("--seed", type=int, default=1, help="of bots and network (default 1)")
    options = parser.parse_args(words)
    if not 1 <= options.bots <= BOTS_MAX:
        parser.error(f"--bots: 1 to {BOTS_MAX} are possible, each has a letter")
    if options.seconds <= 0:
        parser.error("--seconds: bots play for some time, more than 0")
    if options.jitter < 1:
        parser.error("--jitter: at least 1 ms, which every datagram takes")
    if options.window < 1:
        parser.error("--window: at least 1 ms; messages wait for it before they are delivered early")
    if options.sockets and (options.watch or options.jitter != JITTER_MS):
        parser.error("--sockets: not with --watch or --jitter, which are the simulator's")
    if options.sockets:
        return said(asyncio.run(play(options.seconds, bots=options.bots, seed=options.seed, window_ms=options.window)))
    game = Game(bots=options.bots, seed=options.seed, jitter_ms=options.jitter, window_ms=options.window)
    if options.watch:
        for now in game.frames(options.seconds, FRAME_S):
            sys.stdout.write("\x1b[H\x1b[2J" + drawn(game, now) + "\n")
            sys.stdout.flush()
            time.sleep(FRAME_S)
    game.run(0 if options.watch else options.seconds)
    return said(game)


def said(game: Populated) -> int:
    """Say what happened, and what is wrong with it; the exit status."""
    for area in AREAS:
        sys.stdout.write(counted(game, area) + "\n")
    problems = game.problems()
    for problem in problems:
        sys.stdout.write(f"WRONG: {problem}\n")
    if not problems:
        sys.stdout.write("every area's servers have one state, every bot is in one area, and no coin is lost\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
