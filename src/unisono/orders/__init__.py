"""One order per file, by its paper's name, and what the orders share.

`vbr` (paper 000 §5), `rate_exchange` (how a group begins), `packing` (messages into frames), `rqueue` (frames
waiting for their turn). No clock, no chance, no I/O. Tests: tests/unit/test_vbr.py, tests/paper/, tests/simulation/.
"""
