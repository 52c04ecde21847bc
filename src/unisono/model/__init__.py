"""The vocabulary of unisono: ids, durations, rates, timing (Δ, Γ, Θ), views, events, delay models, scenarios.

Frozen values and pure arithmetic. No clock, no randomness, no I/O: time and random streams are arguments.
Tests: tests/unit/test_model_*.py, tests/property/.
"""
