"""The CBR order (paper 000 §4): the automaton, its turns and rates, and its latency bound."""
