"""Early beside final, in words: what differs between those that lived to the end, and what it took to agree."""

from __future__ import annotations

from typing import Any


def format_grades(grades: dict[str, Any], early_latency_ms: dict[str, float]) -> str:
    """Some lines for a terminal; `early` is the latency of early deliveries."""
    final, mistakes = grades["final_latency_ms"], grades["mistakes"].values()
    after = final["p50"] - early_latency_ms["p50"]
    senders = ", ".join(map(str, grades["early_differ_senders"]))
    whose = f", sent by {senders}" if senders else ""
    same = "the same sequence at every survivor" if grades["final_same"] else "NOT the same at every survivor"
    short = [f"member {member} {missing:,}" for member, missing in grades["final_left_before"].items()]
    same += f", but who left before its end lacks some: {', '.join(short)}" if short else ""
    equal = "equal at every survivor that went to the end" if grades["final_left_before"] else "equal at every survivor"
    equal = equal if grades["replicas_equal"] else "NOT equal"
    lost, swapped, rolled = (sum(each[kind] for each in mistakes) for kind in ("lost", "out_of_order", "rollbacks"))
    return (
        f"  final ms       p50 {final['p50']:.2f}   p99 {final['p99']:.2f}   p99.9 {final['p999']:.2f}"
        f"   max {final['max']:.2f}; half of them within {after:.2f} after early\n"
        f"  early          {grades['early_differ']:,} messages are not at every survivor{whose}\n"
        f"  final          {same}; {grades['final_open']:,} messages were early and are not final\n"
        f"  replicas       {equal}; mistakes mended: {lost:,} lost, {swapped:,} out of order; {rolled:,} rollbacks\n"
    )
