"""The reference of the throughput benchmark: the same packed datagrams over plain UDP, without any ordering.

Each process packs messages into datagrams, sends them to each peer, and slices out every message that arrives, as a
program in Python does that. Reading goes before sending, so that little is lost; what is lost is not counted.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import sys
import time

from unisono.model.units import group_key
from unisono.runtime.socket_setup import kernel_drops
from unisono.wire.door import Door
from unisono.wire.frame import HEADER_BYTES, PACKED_HEADER_BYTES, Frame, Kind, OutgoingMessages, encode

RECEIVE_BUFFER_FORCE = 33
BODY_AT = HEADER_BYTES + PACKED_HEADER_BYTES


def main() -> None:
    """Configuration on standard input, one line of JSON with the figures out."""
    setup = json.loads(sys.stdin.readline())
    me, size = setup["member"], setup["size"]
    addresses = {int(member): tuple(address) for member, address in setup["peers"].items()}
    others = [address for member, address in addresses.items() if member != me]
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, RECEIVE_BUFFER_FORCE, 16 << 20)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    sock.bind(addresses[me])
    sock.setblocking(False)
    key = group_key("raw")
    door = Door(key, me, tuple(addresses))
    per_frame = (setup["max_frame"] - HEADER_BYTES - PACKED_HEADER_BYTES) // (size + 2)
    messages = [bytes([n % 256]) * size for n in range(per_frame)]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    start = float(sys.stdin.readline())
    time.sleep(max(0.0, start - time.time()))  # all processes begin together
    received = sent = 0
    before = resource.getrusage(resource.RUSAGE_SELF)
    end = start + setup["seconds"]
    while time.time() < end:
        while True:
            try:
                data = sock.recv(65536)
            except BlockingIOError:
                break
            frame = door.admit(data, 0, len(data), 1)
            if frame is not None and frame.packed_messages is not None:
                received += len([data[at : at + size] for at in range(BODY_AT, len(data), size)])
        frame = Frame(
            Kind.DATA,
            me,
            1,
            0,
            1,
            0,
            first_sequence=sent,
            sent_ns=1,
            packed_messages=OutgoingMessages(messages[:], True),
        )
        packed = encode(frame, key)
        for address in others:
            try:
                sock.sendto(packed, address)
            except BlockingIOError:
                select.select([], [sock], [], 0.001)
        sent += per_frame
    after = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "received": received,
        "sent": sent,
        "seconds": setup["seconds"],
        "user_s": after.ru_utime - before.ru_utime,
        "system_s": after.ru_stime - before.ru_stime,
        "page_faults": after.ru_minflt - before.ru_minflt,
        "dropped": kernel_drops(sock),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
