"""Ideal groups, probes and checkers that only tests use."""
