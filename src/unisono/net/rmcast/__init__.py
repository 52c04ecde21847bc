"""Reliable multicast over a network that loses datagrams (paper 002 §3)."""
