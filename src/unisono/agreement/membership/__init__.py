"""Agreed views and view-atomic multicast: virtual synchrony (paper 004 §3.2)."""
