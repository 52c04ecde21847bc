"""Trace -> Verdict: each theorem or definition is one pure checker that answers valid, violated or unknown.

Here live the verdict, the numpy kernels over ranges of the order key, and one checker per property. No clock, no
chance, no I/O, no logging; files are read by `trace`. May import `unisono.trace` and numpy only.
Tests: tests/unit/test_check*.py (planted violations first), tests/property/test_check*.py.
"""
