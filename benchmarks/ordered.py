"""One member of the throughput benchmark: sends as fast as the group takes it, counts what is delivered."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import unisono


async def member(setup: dict[str, object]) -> None:
    """Join, send and count for the given time."""
    me, size, seconds = int(str(setup["member"])), int(str(setup["size"])), float(str(setup["seconds"]))
    peers = {int(m): (a[0], int(a[1])) for m, a in dict(setup["peers"]).items()}  # type: ignore[call-overload]
    burst = int(str(setup["burst"]))
    group = await unisono.join(
        "throughput",
        member=me,
        peers=peers,
        rate=unisono.Rate(avg=burst * 1e9 / int(str(setup["slot_ns"])), burst=burst),
        slot=int(str(setup["slot_ns"])),
        delta="10ms",
        gamma="1ms",
        max_message=size,
        max_frame=int(str(setup["max_frame"])),
        link=unisono.Link("400Gbit/s"),
    )
    messages = [bytes([n % 256]) * size for n in range(burst)]
    from_others = own = 0
    begin = time.monotonic()
    counted_from = counted_to = begin

    async def send() -> None:
        while time.monotonic() - begin < seconds + 1:
            await group.send_many(messages)
            await asyncio.sleep(0)

    async def count() -> None:
        nonlocal from_others, own, counted_from, counted_to
        warm = True
        async for event in group.batches():
            if not isinstance(event, unisono.Batch):
                continue
            number = len(event.messages)
            now = time.monotonic()
            if warm and now - begin > 0.5:
                warm, from_others, own, counted_from = False, 0, 0, now
            if now - begin <= seconds + 0.5:
                counted_to = now
                if event.sender == me:
                    own += number
                else:
                    from_others += number

    counting = asyncio.create_task(count())
    sending = asyncio.create_task(send())
    await asyncio.wait({sending, counting}, timeout=seconds + 1.5, return_when=asyncio.FIRST_COMPLETED)
    sending.cancel()
    await group.leave()
    await counting
    stats = group.stats()
    sys.stdout.write(
        json.dumps(
            {
                "received": from_others,
                "own": own,
                "seconds": counted_to - counted_from,
                "lateness_max_ms": stats.lateness.largest / 1e6,
                "delay_p9999_ms": stats.delays.quantile(0.9999) / 1e6,
                "refused": dict(stats.refused),
            }
        )
        + "\n"
    )


def main() -> None:
    """Configuration on standard input, one line of JSON with the figures out."""
    asyncio.run(member(json.loads(sys.stdin.readline())))


if __name__ == "__main__":
    main()
