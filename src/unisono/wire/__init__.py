"""The only room that knows bytes: frames with their packed runs, control messages, the door that refuses.

Nothing here keeps protocol state. Past the door the code trusts its input.
Tests: tests/unit/test_wire.py, tests/property/test_wire.py (round trips, mutated frames).
"""
