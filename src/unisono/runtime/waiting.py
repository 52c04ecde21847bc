"""Waits that end with an error of unisono: Timeout, or NoMajority if the group has none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from unisono.errors import InvalidOption, NoMajority, Timeout
from unisono.model.units import NS_PER_S, duration_ns
from unisono.runtime.driver import Driver
from unisono.runtime.member_status import peer_statuses


@asynccontextmanager
async def time_limit(
    timeout: str | None, driver: Driver, problem: str, *, is_done: Callable[[], bool] = lambda: False
) -> AsyncIterator[None]:
    """End the block with NoMajority or Timeout after `timeout`, a duration with a unit; None sets no limit.

    `problem` says in words what did not happen in time. If `is_done` says that it did happen, just as the time was up,
    the block ends without an error. Notes of the cancelled call are kept.
    """
    limit_s = None if timeout is None else duration_ns(timeout, "timeout") / NS_PER_S
    try:
        async with asyncio.timeout(limit_s) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        if is_done():
            return
        failed = Timeout(f"{problem} within {timeout}")
        if driver.stack.standing(driver.clock.now()).majority is False:
            failed = NoMajority(f"{problem} within {timeout}, because this member has no majority of the group")
        for note in getattr(error.__cause__, "__notes__", ()):
            failed.add_note(note)
        raise failed from None


def members_up(driver: Driver) -> int:
    """How many members are up, this one included: in the view, not suspected, and heard from."""
    return 1 + sum(peer.state == "up" for peer in peer_statuses(driver))


async def wait_for_members(driver: Driver, count: int, timeout: str | None) -> None:
    """Wait until `count` members are up; raises Timeout, which names the missing members, after `timeout`."""
    most = 1 + len(driver.stack.policy.neighbours)
    if type(count) is not int or not 1 <= count <= most:
        raise InvalidOption("members", f"expected a number from 1 to {most}, the members of this group, got {count!r}")
    limit_s = None if timeout is None else duration_ns(timeout, "timeout") / NS_PER_S
    driver.check_event_loop()
    try:
        async with asyncio.timeout(limit_s) as limit:
            driver.raise_if_closed()
            while members_up(driver) < count:
                await driver.wait_for_input()
                driver.raise_if_closed()
    except TimeoutError:
        if not limit.expired():
            raise
        missing = [peer for peer in peer_statuses(driver) if peer.state != "up"]
        names = ", ".join(f"member {peer.member} ({peer.why_not_up()})" for peer in missing)
        text = f"only {most - len(missing)} of {count} members were up within {timeout}; missing: {names}"
        raise Timeout(text) from None
