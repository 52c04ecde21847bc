"""Virtual synchrony (paper 004 §3.2): `views` is the automaton, `multicast` works within one view."""
