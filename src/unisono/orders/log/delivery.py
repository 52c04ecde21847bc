"""What members make of the log that they agree on: deliveries, as a function of the log.

A parcel may be in the log twice, and one may be missing before another. The first of each number counts, and only if
all of its sender's before it have counted.
"""

from __future__ import annotations

from unisono.agreement.paxos.decisions import Restored
from unisono.errors import StorageError
from unisono.model.events import Batch, Run
from unisono.wire.bundles import (
    LogState,
    Parcel,
    SenderState,
    decode_log_state,
    decode_log_value,
    encode_log_state,
)
from unisono.wire.frame import MORE, PIECE
from unisono.wire.packed_messages import WholeMessage, read_run


class AgreedLog:
    """One member's reading of the log; only the index of its deliveries is its own."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.slot = 0
        """The slot of what was read last; slots do not go back."""
        self.first_slot = 0
        """From here on this member delivers everything."""
        self._senders: dict[int, tuple[int, int]] = {}
        """By sender, its life and its next parcel."""
        self._pieces: dict[int, list[bytes]] = {}
        self._messages = self._index = 0

    def settled(self, sender: int, incarnation: int) -> int:
        """How many parcels of a sender's life have counted; all that there will be, if another life has begun."""
        life, serial = self._senders.get(sender, (-1, 0))
        if life < incarnation:
            return 0
        return serial if life == incarnation else 1 << 63

    def take(self, value: bytes) -> bool:
        """The log's next value; False if it is not one of a log."""
        read = decode_log_value(value)
        if read is None:
            return False
        self.slot = max(self.slot, read[0])
        for parcel in read[1]:
            if parcel.serial == self.settled(parcel.sender, parcel.incarnation):
                self._count(parcel)
        return True

    def _count(self, parcel: Parcel) -> None:
        sender, incarnation = parcel.sender, parcel.incarnation
        if parcel.serial == 0:
            self._pieces.pop(sender, None)
        self._senders[sender] = (incarnation, parcel.serial + 1)
        run = self._run_of(parcel)
        if run is not None:
            place, count = self._messages, run.count
            self.batches.append(
                Batch(sender, incarnation, self.slot, parcel.first_sequence, place, self._index, count, [run])
            )
            self._messages += count
            self._index += count

    def _run_of(self, parcel: Parcel) -> Run | None:
        if not parcel.flags & PIECE:
            return read_run(parcel.body, 0, len(parcel.body))
        pieces = self._pieces.setdefault(parcel.sender, [])
        pieces.append(parcel.body)
        if parcel.flags & MORE:
            return None
        del self._pieces[parcel.sender]
        return WholeMessage(pieces)

    def state(self) -> bytes:
        """What stands for all that was read."""
        senders = {
            sender: SenderState(incarnation, serial, b"".join(self._pieces.get(sender, ())))
            for sender, (incarnation, serial) in self._senders.items()
        }
        return encode_log_state(LogState(self._messages, self.slot, senders))

    def restore(self, restored: Restored) -> None:
        """Go on from what stands for a prefix of the log."""
        state = decode_log_state(restored.state)
        if state is None:
            raise StorageError(f"the state that stands for the log up to {restored.k} cannot be read")
        self._messages, self.slot, self.first_slot = state.messages, state.slot, state.slot + 1
        self._senders = {sender: (its.incarnation, its.next_serial) for sender, its in state.senders.items()}
        self._pieces = {sender: [its.pieces] for sender, its in state.senders.items() if its.pieces}
