"""Waits that end with an error of unisono: Timeout, or NoMajority if the group has none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from unisono.errors import NoMajority, Timeout
from unisono.model.units import NS_PER_S, duration_ns
from unisono.runtime.driver import Driver


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
