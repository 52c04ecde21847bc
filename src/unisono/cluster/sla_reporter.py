"""The SLA reporter: a process that joins a group and multicasts the verdicts of the measurement service.

It is a process of its own so that it keeps up with the group's slots while the service is busy. It reads lines of JSON:
first the group to join, then findings. It prints lines of JSON:

    {"kind": "ready", "members": […]}                it has joined the group
    {"kind": "told", "id": …, "slot": …}             all members deliver this verdict, at this slot
    {"kind": "out", "why": …}                        the group continued without it; it joins again
    {"kind": "event", "what": …, "text": …}          another violation or notice of the group

A verdict that was not yet delivered when the reporter leaves or loses the group is sent again after the next join.
Members recognize repetitions by the verdict's id.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from unisono.cluster.member_process import join_as_member, print_report
from unisono.errors import FormationTimeout, GroupClosed
from unisono.group import Group
from unisono.model.delays import Histogram
from unisono.model.events import Notice, SlaCleared, SlaVerdict, SlaViolation, Violation
from unisono.model.sla import fields_of_verdict, verdict_of_fields
from unisono.model.text.scenario import parse_scenario
from unisono.model.text.sla import parse_slas
from unisono.qos.adapt.estimate import Estimate

REJOIN_AFTER_S = 0.5
"""The SLA reporter waits this many seconds before it joins a group again."""


class SlaReporter:
    """Joins one group, and joins again if the group continued without it, to multicast SLA verdicts."""

    def __init__(self, configuration: Mapping[str, Any]) -> None:
        self._scenario = parse_scenario(*configuration["scenario"])
        self._slas = parse_slas(*configuration["slas"])
        self._member: int = configuration["member"]
        self._peers = {int(member): (address[0], int(address[1])) for member, address in configuration["peers"].items()}
        self._unconfirmed: dict[str, SlaVerdict] = {}
        self._network_estimate: Estimate | None = None
        self._group: Group | None = None

    async def run(self, lines: asyncio.Queue[str | None]) -> None:
        """Multicast the verdicts that arrive as lines of JSON, until the input ends (None in the queue)."""
        membership = asyncio.create_task(self._stay_joined())
        try:
            while (line := await lines.get()) is not None:
                self._receive(json.loads(line))
                if membership.done():
                    break
        finally:
            membership.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await membership

    def _receive(self, findings: Mapping[str, Any]) -> None:
        network = None if findings.get("network") is None else estimate_from_json(findings["network"])
        verdicts = [verdict_from_json(each) for each in findings.get("verdicts", ())]
        self._unconfirmed.update({verdict.id: verdict for verdict in verdicts})
        self._network_estimate = network or self._network_estimate
        if self._group is not None:
            with contextlib.suppress(GroupClosed):  # it is sent again after the next join
                self._group.announce_verdicts(network, verdicts)

    async def _stay_joined(self) -> None:
        while True:
            try:
                joining = join_as_member(self._scenario, self._member, self._peers, slas=self._slas, monitor=True)
                async with joining as group:
                    self._group = group
                    print_report("ready", members=group.members)
                    group.announce_verdicts(self._network_estimate, list(self._unconfirmed.values()))
                    await self._follow(group)
                why = "the group has ended"
            except (GroupClosed, FormationTimeout) as error:
                why = str(error)
            finally:
                self._group = None
            print_report("out", why=why)
            await asyncio.sleep(REJOIN_AFTER_S)

    async def _follow(self, group: Group) -> None:
        async for event in group.batches():
            if isinstance(event, SlaViolation | SlaCleared) and event.id in self._unconfirmed:
                del self._unconfirmed[event.id]
                print_report("told", id=event.id, slot=event.slot)
            if isinstance(event, Violation | Notice):
                print_report("event", what=event.kind, text=event.text, slot=event.slot)


# -- findings as JSON ----------------------------------------------------------------------------------------


def estimate_to_json(estimate: Estimate) -> dict[str, Any]:
    """Encode an estimate of the network as a JSON object."""
    return {
        "loss": estimate.loss,
        "sure": estimate.certain_loss,
        "burst": estimate.loss_burst,
        "gamma_ns": estimate.gamma_ns,
        "delays": estimate.delays.to_pairs(),
        "largest": estimate.delays.largest,
    }


def estimate_from_json(fields: Mapping[str, Any]) -> Estimate:
    """Decode an estimate of the network from a JSON object."""
    delays = Histogram.of_pairs([(bucket, times) for bucket, times in fields["delays"]], fields["largest"])
    return Estimate.of(fields["loss"], delays, fields["burst"], fields["gamma_ns"], fields["sure"])


def verdict_to_json(event: SlaVerdict) -> dict[str, Any]:
    """Encode an SLA verdict as a JSON object."""
    return fields_of_verdict(event)


def verdict_from_json(fields: Mapping[str, Any]) -> SlaVerdict:
    """Decode an SLA verdict from a JSON object."""
    return verdict_of_fields(fields)


# -- the process ---------------------------------------------------------------------------------------------


async def _run() -> None:
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    setup = json.loads(await reader.readline())

    async def feed() -> None:
        while line := await reader.readline():
            lines.put_nowait(line.decode())
        lines.put_nowait(None)

    feeding = asyncio.create_task(feed())
    try:
        await SlaReporter(setup).run(lines)
    finally:
        feeding.cancel()


def main() -> int:
    """Run the SLA reporter until its standard input ends; return the exit status."""
    try:
        asyncio.run(_run())
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
