"""Wire form and blocks of forward error correction (paper 001 §5.1).

A block has b shares: b−a originals, which are the frames to protect, and a redundant shares calculated from them. A FEC
frame has the common header, and a share as its body. The header's sequence field holds the share's position in its
block, so a share costs exactly one header. The share of an original is its encoded frame, as it would travel without
this layer. Only for coding, shorter originals are padded with zeros to the longest of their block. The sizes are coded
too, so a reconstructed frame has its exact size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from unisono.model.policy import SHARES_MAX
from unisono.net.fec.coder import Coder, new_coder
from unisono.wire.door import Door, Header, Refusal, read_messages, register_layer
from unisono.wire.frame import END_OF_SLOT, HEADER_BYTES, KNOWN_FLAGS, VERSION, Frame, Kind, unpack_header

SHARE_HEADER_BYTES = HEADER_BYTES
"""The bytes of a datagram in addition to its share."""
_SIZE_BYTES = 2
SIZE_END = 1 << 8 * _SIZE_BYTES
"""The size of every original is below this number."""
_CODERS_KEPT = 256
"""The most block shapes whose coders are kept, for sending and for receiving; blocks of one redundancy have fewer."""


@dataclass(slots=True)
class Share(Frame):
    """A received FEC frame: the common header fields, the share's position in its block, and the share as `body`."""

    size: int = 0
    """The size of an original; in a redundant share, the code over the sizes of the originals."""
    block: int = 0
    """The number of the block in the slot."""
    index: int = 0
    """The number of the share in the block; originals come first."""
    originals: int = 0
    """The number of originals in the block."""
    redundant: int = 0
    """The number of redundant shares in the block."""
    original: Frame | None = None
    """The order's frame, if the share is an original."""


def pack_share_position(size: int, block: int, index: int, originals: int, redundant: int) -> int:
    """Pack the position of a share in its block into one number, for the header's sequence field."""
    return size << 40 | block << 24 | index << 16 | originals << 8 | redundant


def unpack_share_position(position: int) -> tuple[int, int, int, int, int]:
    """Return the arguments of `pack_share_position`, in its order. They are not checked: size may exceed SIZE_END."""
    return position >> 40, position >> 24 & 0xFFFF, position >> 16 & 0xFF, position >> 8 & 0xFF, position & 0xFF


def is_possible_position(share: Share) -> bool:
    """Whether the fields of a share are consistent with each other."""
    total = share.originals + share.redundant
    if not (share.originals and share.redundant and share.index < total <= SHARES_MAX and share.size < SIZE_END):
        return False
    base = share.number - share.index
    if share.block == 0:
        return base == 0
    # All earlier blocks of the slot have the same length, and this one is not longer.
    length, rest = divmod(base, share.block)
    return rest == 0 and total <= length <= SHARES_MAX


@lru_cache(_CODERS_KEPT)
def _encoder(originals: int, redundant: int) -> tuple[Coder, tuple[int, ...]]:
    total = originals + redundant
    return new_coder(originals, total), tuple(range(originals, total))


@lru_cache(_CODERS_KEPT)
def _decoder(originals: int, redundant: int) -> Coder:
    # Apart from the encoders: other members choose these shapes, and must not displace those of this member.
    return new_coder(originals, originals + redundant)


def prepare_coder(originals: int, redundant: int) -> None:
    """Encode an empty block of this shape, so that the first block with frames finds its coder and tables ready."""
    redundant_shares([b""] * originals, redundant)


def redundant_shares(originals: Sequence[bytes], redundant: int) -> list[tuple[int, bytes]]:
    """The redundant shares of a block, each as two codes: one of the originals' sizes, one of their bytes."""
    encoder, wanted = _encoder(len(originals), redundant)
    sizes = [len(original).to_bytes(_SIZE_BYTES) for original in originals]
    longest = max(map(len, originals))
    padded = [original if len(original) == longest else original.ljust(longest, b"\0") for original in originals]
    codes = encoder.encode(sizes, wanted)
    return list(zip(map(int.from_bytes, codes), encoder.encode(padded, wanted), strict=True))


def missing_originals(shares: Mapping[int, Share]) -> dict[int, tuple[bytes, int]] | None:
    """The originals that are missing among a block's shares, by index: a padded buffer, and the frame's size.

    Needs as many shares as the block has originals, originals or redundant. Returns None if the shares cannot be of
    the same block, because no padding makes their sizes equal.
    """
    any_share = next(iter(shares.values()))
    count = any_share.originals
    spare = iter([index for index in shares if index >= count])
    # The decoder expects each original at its own index; redundant shares fill the gaps.
    indices = [index if index in shares else next(spare) for index in range(count)]
    missing = [index for index in range(count) if index not in shares]
    if not missing:
        return {}
    used = [shares[index] for index in indices]
    buffers = _padded(used, len(used[missing[0]].body))
    if buffers is None:
        return None
    decoder = _decoder(count, any_share.redundant)
    whole = decoder.decode(buffers, indices)
    sizes = decoder.decode([share.size.to_bytes(_SIZE_BYTES) for share in used], indices)
    return {index: (whole[index], int.from_bytes(sizes[index])) for index in missing}


def _padded(shares: Iterable[Share], longest: int) -> list[bytes | memoryview] | None:
    buffers: list[bytes | memoryview] = []
    for share in shares:
        body = share.body
        if len(body) != longest:
            if len(body) > longest or share.original is None:
                return None
            body = bytes(body).ljust(longest, b"\0")
        buffers.append(body)
    return buffers


def read_share(door: Door, header: Header, data: bytes, start: int, end: int) -> Share | Refusal:
    """Decode and check the share in data[start:end], and the order's frame in it if it is an original."""
    share = Share(*header)
    share.body = memoryview(data)[start:end]
    position = unpack_share_position(share.first_sequence)
    share.size, share.block, share.index, share.originals, share.redundant = position
    # No original is shorter than a header, so no share is.
    if share.flags & ~END_OF_SLOT or end - start < HEADER_BYTES or not is_possible_position(share):
        return Refusal.BAD_SHARE
    if share.index < share.originals:
        if share.size != end - start:
            return Refusal.BAD_SHARE
        original = read_original(share, share.index, data, start=start, end=end, group=door.group)
        if isinstance(original, Refusal):
            return original
        share.original = original
    return share


def read_original(share: Share, index: int, data: bytes, *, end: int, group: int, start: int = 0) -> Frame | Refusal:
    """Decode and check the order's frame in data[start:end]: the original of this index in the block of `share`.

    Reconstructed originals pass this check too. So a forged share can only lead to a refused frame, or to one that its
    sender could have sent itself.
    """
    if end - start < HEADER_BYTES or end > len(data):
        return Refusal.BAD_SHARE
    fields = unpack_header(data, start)
    version, code, flags, zero, sender, number, of_group, epoch, incarnation, burst, slot, sequence, sent = fields
    if version != VERSION or code != Kind.DATA or zero or of_group != group or slot != share.slot:
        return Refusal.BAD_SHARE
    if sender != share.sender or incarnation != share.incarnation or epoch != share.epoch:
        return Refusal.BAD_SHARE
    # Only the last original of the last block carries the end-of-slot mark.
    ends = share.is_end_of_slot and index == share.originals - 1
    if flags & ~KNOWN_FLAGS or bool(flags & END_OF_SLOT) != ends or sequence >= 2**63 or sent >= 2**63:
        return Refusal.BAD_SHARE
    frame = Frame(Kind.DATA, sender, incarnation, epoch, slot, number, flags, burst, sequence, sent)
    return read_messages(frame, data, start + HEADER_BYTES, end)


register_layer(Kind.FEC, read_share)
