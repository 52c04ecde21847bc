"""What a member of a quasi-genuine group keeps on stable storage, and finds there again.

Records of its own group's agreement and entries of other groups stand side by side; an entry is durable before it is
acknowledged, so its group may forget it then. A state that replaces all records has the entries up to then in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unisono.agreement.membership.from_policy import every_ns, retry_ns
from unisono.agreement.paxos.consensus import Consensus
from unisono.agreement.paxos.decisions import Restored
from unisono.errors import StorageError
from unisono.model.policy import Policy
from unisono.model.stored_records import Memory, Write
from unisono.orders.multigroup.barriers import Gate
from unisono.orders.multigroup.group_log import GroupLog
from unisono.orders.multigroup.messages import Entry
from unisono.orders.multigroup.stored_state import (
    GroupState,
    decode_foreign,
    decode_state,
    encode_foreign,
    encode_state,
)
from unisono.orders.multigroup.unpacking import Unpacking

_OWN, _FOREIGN = b"o", b"f"


def own_memory(memory: Memory | None) -> Memory | None:
    """What the group's agreement kept."""
    if memory is None:
        return None
    return Memory(memory.number, tuple(record[1:] for record in memory.records if record[:1] == _OWN))


def own_consensus(
    policy: Policy, mates: tuple[int, ...], memory: Memory | None, *, window: int, retain: int
) -> Consensus:
    """The group's agreement, going on from what it kept."""
    return Consensus(
        policy.member,
        mates,
        every_ns=every_ns(policy.timing),
        retry_ns=retry_ns(policy.timing),
        max_frame=policy.max_frame,
        incarnation=policy.incarnation,
        epoch=policy.epoch,
        window=window,
        retain=retain,
        memory=own_memory(memory),
        lazy=True,
    )


def own_writes(writes: Iterable[Write]) -> list[Write]:
    """The agreement's writes, marked as its own."""
    return [Write(tuple(_OWN + record for record in w.records), w.replace, w.lazy) for w in writes]


def foreign_write(group: int, entries: Sequence[tuple[int, Entry]]) -> Write:
    """Entries of another group, with their numbers."""
    return Write(tuple(_FOREIGN + encode_foreign(group, number, entry) for number, entry in entries))


def recall(memory: Memory | None, gate: Gate) -> None:
    """The entries of other groups that came after the last state."""
    for record in () if memory is None else memory.records:
        if record[:1] == _FOREIGN:
            found = decode_foreign(record[1:])
            if found is None:
                raise StorageError("a record of another group's messages cannot be read")
            gate.recall(*found)


def saved(log: GroupLog, gate: Gate, unpacking: Unpacking) -> bytes:
    """What stands for all that was decided and heard so far."""
    state = GroupState()
    log.save(state)
    gate.save(state)
    state.pieces = {who: b"".join(pieces) for who, pieces in unpacking.pieces.items()}
    return encode_state(state)


def restore(restored: Restored, log: GroupLog, gate: Gate, unpacking: Unpacking) -> int | None:
    """Go on from a state; the stamp up to which nothing is delivered here, if that is more than was delivered."""
    state = decode_state(restored.state)
    if state is None:
        raise StorageError(f"the state that stands for the log up to {restored.k} cannot be read")
    log.restore(state)
    gate.follow(log.relation.into)
    if not gate.restore(state):
        return None
    unpacking.pieces = {who: [pieces] for who, pieces in state.pieces.items()}
    return state.delivered[0]
