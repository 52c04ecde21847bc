"""Quasi-genuine total order between groups (paper 003). Start reading with `order`."""
