"""Random scenarios of every kind, one per seed."""
