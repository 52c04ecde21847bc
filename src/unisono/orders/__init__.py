"""One folder per order family, named as in its paper: messages, bounds and automaton together."""
