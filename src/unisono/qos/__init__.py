"""Quality of service around the stack: plan it, watch it, adapt it (paper 002).

`plan` computes what an order can guarantee and at what cost, before a group starts. `watch` measures a running stack
and evaluates its service level agreements. `adapt` changes settings when the network changes. `confidence` holds the
statistics that `watch` and `adapt` share. Nothing here reads a clock, draws random numbers or does I/O.
"""
