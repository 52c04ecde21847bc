"""The words of unisono: ids, durations, rates, timing (Δ, Γ, Θ), views, events, delay models, scenarios.

Frozen values and pure arithmetic. No clock, no chance, no I/O: time and random streams are passed in.
Tests: tests/unit/test_model_*.py, tests/property/.
"""
