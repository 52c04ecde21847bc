"""Quality of service around the stack: admission control toward the network, what can be promised, what it costs.

`reservation` (what a link has been promised to carry), `planner` (every order's offer, and the cheapest that fits),
`rmcast` and `agreement` (what RMCast offers, as formulas), `rmcast_traffic` (what it costs), `negotiation` (the walk
down to the network and back up), `over_rmcast` (orders as layers of that walk).
No clock, no chance, no I/O.
Tests: tests/unit/test_reservation.py, tests/unit/test_planner.py, tests/paper/test_002_formulas.py,
tests/paper/test_002_negotiation.py.
"""
