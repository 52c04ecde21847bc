"""Planning: what each order offers for the needs and the network, and negotiation (paper 002 §2.2)."""
