"""A world of areas, each kept by a group of servers: bots walk, collect coins and cross from one area into the next.

`rules` is the game as a machine, `play` runs servers and bots in the simulator, `screen` draws it. docs/areas.md tells
how to run it; the tests are in tests/simulation/test_areas.py.
"""
