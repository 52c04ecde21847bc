"""Members of a real group with a leader that send as fast as they can: no member takes a busy one for a crashed one.

Δ is generous, so that a busy machine does not look like a failure; no latency is asserted.
"""

import time
from pathlib import Path

from tests.process.member_process import Process

from unisono.cluster.supervisor import free_addresses

PATIENCE_S = 60.0
SCRIPT = Path(__file__).with_name("leader_member.py")
MEMBERS = (1, 2, 3, 4)
MESSAGES = 5000
FAILURES = {"no_majority", "leader_lost", "deposed", "fenced_out"}


def test_members_that_send_in_a_plain_loop_keep_their_majority() -> None:
    """The leader is busy, and frames wait in its receive buffer: sending them all again would only add to that."""
    peers = free_addresses(MEMBERS)
    processes = [
        Process(SCRIPT, member, 1, {"member": member, "peers": peers, "messages": MESSAGES}) for member in MEMBERS
    ]
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not all(process.count("done") for process in processes):
            assert time.monotonic() < deadline, f"not all is delivered: {[each.lines[-3:] for each in processes]}"
            assert all(process.popen.poll() is None for process in processes), "a member has ended"
            time.sleep(0.02)
        for process in processes:
            assert not FAILURES & {line[1] for line in process.lines_of("violation")}, process.lines
        done = [process.lines_of("done")[0] for process in processes]
        assert len({digest for _, digest, _ in done}) == 1, "the members delivered different sequences"
        assert max(ignored for _, _, ignored in done) < MESSAGES, "frames that were not lost are sent again"
        for process in processes:
            process.finish(PATIENCE_S)
    finally:
        for process in processes:
            process.end()
