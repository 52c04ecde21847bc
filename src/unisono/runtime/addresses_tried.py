"""Finds out what came back from each peer's address, for the error of a group that did not form."""

from __future__ import annotations

import errno
import os

from unisono.errors import AddressTried, Outcome
from unisono.model.addresses import address_text
from unisono.runtime.driver import Driver
from unisono.runtime.member_status import peer_statuses

NO_PROCESS = "connection refused: no process has this UDP port open"
NO_ANSWER = "no answer"


async def addresses_tried(driver: Driver, addresses: dict[int, tuple[str, int]]) -> tuple[AddressTried, ...]:
    """What came back from the address of each peer so far. Probes the addresses from which nothing came."""
    stack = driver.stack
    tried: dict[int, tuple[Outcome, str]] = {}
    problems, waits = stack.peer_problems(), _reasons_to_wait(driver)
    for peer in stack.policy.neighbours:
        refused = stack.refused_from(peer)
        if peer in problems:
            tried[peer] = "differs", f"answers, but {problems[peer]}"
        elif stack.last_heard_ns(peer) is not None:
            tried[peer] = "answers", "answers" + waits.get(peer, "")
        elif refused:
            reasons = ", ".join(f"{count} × {reason.value}" for reason, count in refused.items())
            tried[peer] = "rejected", f"this member refuses its datagrams: {reasons}"
    unreachable = await driver.transport.unreachable([peer for peer in stack.policy.neighbours if peer not in tried])
    found = []
    for peer in stack.policy.neighbours:
        outcome, text = tried.get(peer) or _unanswered(unreachable.get(peer))
        found.append(AddressTried(peer, address_text(addresses[peer]), outcome, text))
    return tuple(found)


def _reasons_to_wait(driver: Driver) -> dict[int, str]:
    """By peer that has answered, why `join` waits for it all the same, as the end of a sentence."""
    if not driver.stack.running():
        return dict.fromkeys(driver.stack.waiting_for(), ", but does not hear all other members yet")
    not_up = [peer for peer in peer_statuses(driver) if peer.state != "up"]
    return {peer.member: f", but is not up: {peer.why_not_up()}" for peer in not_up}


def _unanswered(error_number: int | None) -> tuple[Outcome, str]:
    if error_number is None:
        return "silent", NO_ANSWER
    if error_number == errno.ECONNREFUSED:
        return "refused", NO_PROCESS
    return "unreachable", f"cannot be reached: {os.strerror(error_number)}"
