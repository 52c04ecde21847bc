"""Quality of service around the stack: admission control toward the network.

`reservation` (what a link has been promised to carry). No clock, no chance, no I/O.
Tests: tests/unit/test_reservation.py.
"""
