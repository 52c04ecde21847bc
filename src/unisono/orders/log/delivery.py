"""What members make of the log that they agree on: deliveries, as a function of the log.

A parcel may be in the log twice, and one may be missing before another. The first of each number counts, and only if
all of its sender's before it have counted.
"""

from __future__ import annotations

from unisono.agreement.paxos.log import RestoredState
from unisono.errors import StorageError
from unisono.model.events import Batch, PackedMessages
from unisono.wire.bundles import (
    Bundle,
    LogState,
    SenderState,
    decode_log_state,
    decode_log_value,
    encode_log_state,
)
from unisono.wire.frame import FRAGMENT, MORE_FRAGMENTS
from unisono.wire.packed_messages import ReassembledMessage, read_packed_messages


class AgreedLog:
    """One member's reading of the log; only the index of its deliveries is its own."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.slot = 0
        """The slot of what was read last; slots do not go back."""
        self.first_slot = 0
        """From here on this member delivers everything."""
        self._next_serials: dict[int, tuple[int, int]] = {}
        """By sender, its life and its next parcel."""
        self._fragments: dict[int, list[bytes]] = {}
        self._message_count = self._index = 0

    def next_serial(self, sender: int, incarnation: int) -> int:
        """How many parcels of a sender's life have counted; all that there will be, if another life has begun."""
        life, serial = self._next_serials.get(sender, (-1, 0))
        if life < incarnation:
            return 0
        return serial if life == incarnation else 1 << 63

    def apply(self, value: bytes) -> bool:
        """The log's next value; False if it is not one of a log."""
        read = decode_log_value(value)
        if read is None:
            return False
        self.slot = max(self.slot, read[0])
        for parcel in read[1]:
            if parcel.serial == self.next_serial(parcel.sender, parcel.incarnation):
                self._accept(parcel)
        return True

    def _accept(self, bundle: Bundle) -> None:
        sender, incarnation = bundle.sender, bundle.incarnation
        if bundle.serial == 0:
            self._fragments.pop(sender, None)
        self._next_serials[sender] = (incarnation, bundle.serial + 1)
        run = self._packed_messages(bundle)
        if run is not None:
            place, count = self._message_count, run.count
            self.batches.append(
                Batch(sender, incarnation, self.slot, bundle.first_sequence, place, self._index, count, [run])
            )
            self._message_count += count
            self._index += count

    def _packed_messages(self, bundle: Bundle) -> PackedMessages | None:
        if not bundle.flags & FRAGMENT:
            return read_packed_messages(bundle.body, 0, len(bundle.body))
        pieces = self._fragments.setdefault(bundle.sender, [])
        pieces.append(bundle.body)
        if bundle.flags & MORE_FRAGMENTS:
            return None
        del self._fragments[bundle.sender]
        return ReassembledMessage(pieces)

    def state(self) -> bytes:
        """What stands for all that was read."""
        senders = {
            sender: SenderState(incarnation, serial, b"".join(self._fragments.get(sender, ())))
            for sender, (incarnation, serial) in self._next_serials.items()
        }
        return encode_log_state(LogState(self._message_count, self.slot, senders))

    def restore(self, restored: RestoredState) -> None:
        """Go on from what stands for a prefix of the log."""
        state = decode_log_state(restored.state)
        if state is None:
            raise StorageError(f"the state that stands for the log up to {restored.k} cannot be read")
        self._message_count, self.slot, self.first_slot = state.messages, state.slot, state.slot + 1
        self._next_serials = {sender: (its.incarnation, its.next_serial) for sender, its in state.senders.items()}
        self._fragments = {sender: [its.fragments] for sender, its in state.senders.items() if its.fragments}
