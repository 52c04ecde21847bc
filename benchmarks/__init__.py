"""Benchmarks: ratios measured in one run, never a gate of the unit tests. `make bench` runs them all."""
