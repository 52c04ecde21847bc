"""Who still has the memory that its promises are in, and who has come back without it."""

from __future__ import annotations

from collections.abc import Callable

from unisono.agreement.paxos.acceptor import Acceptor
from unisono.agreement.paxos.messages import ConsensusMessage, StorageMismatch

SendMessage = Callable[[int, ConsensusMessage, int], None]
"""(now, message, to)."""


class StorageIdentity:
    """One member's. Whoever has lost its memory is not listened to, and told so, at most once in `every_ns`."""

    def __init__(self, acceptor: Acceptor, storage_id: int, send: SendMessage, report_interval_ns: int) -> None:
        self.lost_storage: set[int] = set()
        """Who has come back with another memory, and does not count."""
        self.refused_by: set[int] = set()
        """Who knows this member by another memory, and does not listen to it."""
        self._acceptor, self._storage_id, self._send, self._report_interval_ns = (
            acceptor,
            storage_id,
            send,
            report_interval_ns,
        )
        self._next_report_ns: dict[int, int] = {}

    def accepts(self, now: int, sender: int, storage_id: int) -> bool:
        """Whether what a member says from this memory counts."""
        if self._acceptor.storage_id_matches(sender, storage_id):
            return True
        self.lost_storage.add(sender)
        if now >= self._next_report_ns.get(sender, now):
            self._next_report_ns[sender] = now + self._report_interval_ns
            self._send(now, StorageMismatch(self._acceptor.recorded_storage_id(sender)), sender)
        return False

    def on_mismatch(self, sender: int, mismatch: StorageMismatch) -> None:
        """A member says by which memory it knows this one; said to an earlier life, it may be the right one."""
        if mismatch.recorded_storage_id != self._storage_id:
            self.refused_by.add(sender)
