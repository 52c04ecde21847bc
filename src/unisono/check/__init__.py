"""Checkers turn a trace into verdicts: valid, violated or unknown. Each theorem or definition has one function.

`suite` runs all checkers that apply to a run. `total_order`, `completeness`, `timing`, `causal`, `final`, `priority`
and `multigroup` each check some properties. `ranges`, `message_shards` and the modules they use check long runs part by
part. No clock, randomness, I/O or logging here; `trace` reads the files. May import `unisono.trace`, `unisono.model`
and numpy. Tests: tests/unit/test_check*.py (planted violations first), tests/property/test_check*.py.
"""
