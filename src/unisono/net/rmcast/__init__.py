"""Reliable multicast over a network that loses datagrams (paper 002 §3): layer, automaton, time-outs and wire form."""
