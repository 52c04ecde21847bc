"""Services below the order, one automaton per file, and the contract that lets them compose.

`contract` (what a layer and an order are), `pacer` (holds a sender to its rate), `skew` (clock differences), `fec`
(forward error correction, paper 001).
No clock, no chance, no I/O. Tests: tests/unit/test_pacer.py, tests/unit/test_skew.py.
"""
