"""A cycle in "somebody delivered this before that": pairwise agreement alone does not make one order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from unisono.check.codes import Codes
from unisono.trace.table import Ints


def precedence_cycle(message: Codes, logs: Sequence[Ints]) -> list[tuple[int, int]]:
    """A cycle as steps (row, later row of the same log), or nothing if one order fits all logs.

    `message` numbers the messages from 0; each log is its rows in delivery order.
    """
    codes: list[int] = message.tolist()
    count = max(codes, default=-1) + 1
    later: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    pending = [0] * count
    for log in logs:
        rows = log.tolist()
        for row, after in pairwise(rows):
            later[codes[row]].append((row, after))
            pending[codes[after]] += 1
    ready = [code for code in range(count) if pending[code] == 0]
    while ready:  # take away what nothing precedes; what stays is on a cycle or behind one
        for _, after in later[ready.pop()]:
            pending[codes[after]] -= 1
            if pending[codes[after]] == 0:
                ready.append(codes[after])
    stuck = [code for code in range(count) if pending[code] > 0]
    if not stuck:
        return []
    before: dict[int, tuple[int, int]] = {}
    for code in stuck:
        for row, after in later[code]:
            before.setdefault(codes[after], (row, after))
    path: list[tuple[int, int]] = []
    seen: dict[int, int] = {}
    code = stuck[0]
    while code not in seen:  # walk backwards: each stuck message has a stuck one before it
        seen[code] = len(path)
        path.append(before[code])
        code = codes[before[code][0]]
    return _contracted(path[seen[code] :][::-1], codes, logs)


def _contracted(steps: list[tuple[int, int]], codes: list[int], logs: Sequence[Ints]) -> list[tuple[int, int]]:
    """Join steps that follow each other in one log, and begin with the smallest message."""
    log_of = {row: number for number, log in enumerate(logs) for row in log.tolist()}
    switch = next(i for i in range(len(steps)) if log_of[steps[i][0]] != log_of[steps[i - 1][0]])
    joined: list[tuple[int, int]] = []
    for row, after in steps[switch:] + steps[:switch]:
        if joined and log_of[joined[-1][1]] == log_of[row]:
            joined[-1] = (joined[-1][0], after)
        else:
            joined.append((row, after))
    least = min(range(len(joined)), key=lambda i: codes[joined[i][0]])
    return joined[least:] + joined[:least]
