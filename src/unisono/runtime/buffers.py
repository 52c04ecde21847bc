"""Whether what may be under way to a member fits its socket."""

from __future__ import annotations

from unisono.model.events import Violation, ViolationKind
from unisono.orders.packing import reservation
from unisono.stack import Stack


def receive_buffer_violation(stack: Stack, granted_bytes: int) -> Violation | None:
    """What is to be said of a receive buffer of this size; nothing if it is large enough."""
    policy = stack.policy
    peers = [m for m in policy.view.members if m != policy.member]
    rates = [rate for peer in peers if (rate := stack.peer_rate(peer)) is not None]
    needed = stack.window_slots * sum(reservation(policy, rate).burst_bytes_per_slot for rate in rates)
    if needed <= granted_bytes:
        return None
    text = (
        f"{needed:,} bytes may be under way to this member, its socket holds {granted_bytes:,}; "
        "lower the peers' bursts or raise the system's limit for receive buffers (net.core.rmem_max)"
    )
    return Violation(ViolationKind.RECEIVE_BUFFER, text, policy.member)
