"""Services below the order, one automaton per file, and the contract that lets them compose.

`contract` (what a layer and an order are), `view_contract` (what virtual synchrony gives to the order above it),
`pacer` (holds a sender to its rate), `skew` (clock differences), `fec` (forward error correction, paper 001),
`rmcast` (reliable multicast, paper 002) with `rmcast_message` (one message at one process) and `rmcast_timeouts` (ω),
`service` with `fifo`, `causal` and `uniform` (the services above it), `numbers` (which of a sender's messages came).
No clock, no chance, no I/O. Tests: tests/unit/test_pacer.py, tests/unit/test_skew.py.
"""
