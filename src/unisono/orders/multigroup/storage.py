"""What a member of a quasi-genuine group keeps on stable storage, and finds there again.

Records of its own group's agreement and entries of other groups stand side by side; an entry is durable before it is
acknowledged, so its group may forget it then. A state that replaces all records has the entries up to then in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unisono.agreement.failure_detector import heartbeat_interval_ns, retry_interval_ns
from unisono.agreement.paxos.consensus import Consensus
from unisono.agreement.paxos.log import RestoredState
from unisono.errors import StorageError
from unisono.model.policy import Policy
from unisono.model.stored_records import StoredRecords, Write
from unisono.orders.multigroup.barriers import BarrierQueue
from unisono.orders.multigroup.group_log import GroupLog
from unisono.orders.multigroup.messages import StampedEntry
from unisono.orders.multigroup.stored_state import (
    GroupState,
    decode_state,
    decode_stream_record,
    encode_state,
    encode_stream_record,
)
from unisono.orders.multigroup.unpacking import BundleUnpacker

_CONSENSUS, _STREAM_ENTRY = b"o", b"f"


def consensus_records(stored_records: StoredRecords | None) -> StoredRecords | None:
    """What the group's agreement kept."""
    if stored_records is None:
        return None
    return StoredRecords(
        stored_records.storage_id, tuple(record[1:] for record in stored_records.records if record[:1] == _CONSENSUS)
    )


def build_group_consensus(
    policy: Policy, group_members: tuple[int, ...], stored_records: StoredRecords | None, *, window: int, retain: int
) -> Consensus:
    """The group's agreement, going on from what it kept."""
    return Consensus(
        policy.member,
        group_members,
        every_ns=heartbeat_interval_ns(policy.timing),
        retry_ns=retry_interval_ns(policy.timing),
        max_frame=policy.max_frame,
        incarnation=policy.incarnation,
        epoch=policy.epoch,
        window=window,
        retain=retain,
        stored_records=consensus_records(stored_records),
        batch_replies=True,
    )


def tagged_consensus_writes(writes: Iterable[Write]) -> list[Write]:
    """The agreement's writes, marked as its own."""
    return [Write(tuple(_CONSENSUS + record for record in w.records), w.replaces_all, w.may_be_lost) for w in writes]


def stream_entries_write(group: int, entries: Sequence[tuple[int, StampedEntry]]) -> Write:
    """Entries of another group, with their numbers."""
    return Write(tuple(_STREAM_ENTRY + encode_stream_record(group, number, entry) for number, entry in entries))


def restore_stream_entries(stored_records: StoredRecords | None, barrier_queue: BarrierQueue) -> None:
    """The entries of other groups that came after the last state."""
    for record in () if stored_records is None else stored_records.records:
        if record[:1] == _STREAM_ENTRY:
            found = decode_stream_record(record[1:])
            if found is None:
                raise StorageError("a record of another group's messages cannot be read")
            barrier_queue.restore_entry(*found)


def encode_snapshot(log: GroupLog, barrier_queue: BarrierQueue, unpacker: BundleUnpacker) -> bytes:
    """What stands for all that was decided and heard so far."""
    state = GroupState()
    log.save(state)
    barrier_queue.save(state)
    state.fragments = {who: b"".join(pieces) for who, pieces in unpacker.fragments.items()}
    return encode_state(state)


def restore_snapshot(
    restored: RestoredState, log: GroupLog, barrier_queue: BarrierQueue, unpacker: BundleUnpacker
) -> int | None:
    """Go on from a state; the stamp up to which nothing is delivered here, if that is more than was delivered."""
    state = decode_state(restored.state)
    if state is None:
        raise StorageError(f"the state that stands for the log up to {restored.k} cannot be read")
    log.restore(state)
    barrier_queue.update_sources(log.topology.incoming)
    if not barrier_queue.restore(state):
        return None
    unpacker.fragments = {who: [pieces] for who, pieces in state.fragments.items()}
    return state.last_delivered[0]
