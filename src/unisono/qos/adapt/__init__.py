"""Adaptation: change settings when the network changes (paper 002 §3.2).

`estimate` turns metric rows into an estimate of the network. `controller` decides from estimates which settings a
member needs, and combines the requests of all members into the settings of the group.
"""
