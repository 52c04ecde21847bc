"""Random scenarios for simulations, one per seed: each module draws scenarios of one kind. Tests: tests/simulation/."""
