"""Consensus on a sequence of values: leader, candidate, follower, acceptor and catch-up."""
