"""Quasi-genuine total order between groups (paper 003)."""
