"""The average rate over forward error correction, as paper 001 bounds it."""

from __future__ import annotations


def net_avg_per_slot(app_avg_per_slot: float, a: int, b: int) -> float:
    """NetAvgRate <= AppAvgRate·b/(b-a) + a + 1, in datagrams per slot (001-2).

    It follows from M' <= M + 1 and ⌈M'/(b-a)⌉ <= (M'+b-a-1)/(b-a). `app_avg_per_slot` does not count end-of-slot marks.
    """
    return app_avg_per_slot * b / (b - a) + a + 1
