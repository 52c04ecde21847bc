"""The encoding of datagrams: frames with packed messages, control messages, and the door that checks every datagram.

Nothing here holds protocol state. The code behind the door trusts its input.
Tests: tests/unit/test_wire.py, tests/property/test_wire.py (round trips, mutated frames).
"""
