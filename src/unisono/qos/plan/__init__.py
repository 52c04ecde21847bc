"""Planning: what each order offers for given needs on a given network, and negotiation (paper 002 §2.2).

`planner` compares the offers of all orders and picks the cheapest that fits. `negotiation` finds the cheapest setting
of reliable multicast, with the formulas in `rmcast_model`; `over_rmcast` puts an order on top of it. `admission` grants
reservations on a link.
"""
