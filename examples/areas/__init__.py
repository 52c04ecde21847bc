"""A game world of areas, each kept by a group of servers. Bots walk, collect coins and cross into the next area.

`rules` is the game as a state machine and `bots` plays it. `play` runs the servers in the simulator, `sockets` runs
them over UDP, and `screen` draws the world. docs/areas.md explains how to run it; the tests are in
tests/simulation/test_areas.py.
"""
