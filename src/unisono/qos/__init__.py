"""Quality of service around the stack: admission control toward the network.

`reservation` (what a link has been promised to carry), `planner` (every order's offer, and the cheapest that fits).
No clock, no chance, no I/O.
Tests: tests/unit/test_reservation.py, tests/unit/test_planner.py.
"""
