"""The game over UDP on this machine: nine members in three groups, each with a replica of its area."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import unisono
from examples.areas.bots import AREAS, TOPOLOGY, TURN_NS, AreaWorld
from examples.areas.rules import Area
from unisono.cluster.supervisor import free_addresses
from unisono.model.units import NS_PER_S
from unisono.replica import Replicated


class SocketGame(AreaWorld):
    """A game over sockets."""

    def __init__(self, servers: dict[int, Replicated], bots: int, seed: int) -> None:
        super().__init__(servers, bots, seed)
        self._states, self._seed = servers, seed

    async def play(self, seconds: float) -> None:
        """Place bots and coins, play for this many seconds, and wait until all commands are final everywhere."""
        layouts = self.layouts(self._seed).items()
        await asyncio.gather(*(self._states[AREAS[area][0]].execute(command, to=(area,)) for area, command in layouts))
        sent: list[asyncio.Task[object]] = []
        for _ in range(int(seconds * NS_PER_S / TURN_NS)):
            for bot in self.bots:
                action = bot.turn([self._states[member] for member in AREAS[bot.area]])
                if action is not None:
                    state, command, to = action
                    sent.append(asyncio.create_task(state.execute(command, to=to)))
            await asyncio.sleep(TURN_NS / NS_PER_S)
        await asyncio.gather(*sent)
        await asyncio.gather(*(self._wait_until_final(member) for member in TOPOLOGY.members))

    async def _wait_until_final(self, member: int) -> None:
        """Wait until this member has executed every command that any server of its area has executed."""
        state, members = self._states[member], AREAS[TOPOLOGY.group_of(member)]
        while state.replica.pending or state.replica.executed < max(self._states[m].replica.executed for m in members):
            await state.wait_for_change()


async def play(seconds: float, *, bots: int = 9, seed: int = 1, window_ms: int = 15) -> SocketGame:
    """Join nine members, play and leave. The returned game has its final state."""
    peers = free_addresses(TOPOLOGY.members)
    rules = unisono.Multigroup(TOPOLOGY, window=f"{window_ms}ms", optimistic=True)

    async def join(member: int) -> unisono.Group:
        config = unisono.Config(
            group="areas",
            member=member,
            peers=peers,
            order=unisono.QuasiGenuine(topology=rules),
            rate=unisono.Rate(avg=2000, burst=16),
            max_message=1000,
        )
        return await unisono.join(config=config)

    groups = await asyncio.gather(*map(join, TOPOLOGY.members))
    states = {group.member: Replicated(group, Area(TOPOLOGY.group_of(group.member))) for group in groups}
    game = SocketGame(states, bots, seed)
    try:
        async with AsyncExitStack() as stack:
            for state in states.values():
                await stack.enter_async_context(state)
            await game.play(seconds)
    finally:
        await asyncio.gather(*(group.leave() for group in groups))
    return game
