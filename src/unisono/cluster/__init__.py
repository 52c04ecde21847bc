"""Real member processes on this machine: started, watched and ended together.

`local` (the cluster), `node` (one member process), `judge` (verdict and figures of a finished run).
Uses the public face as any application would. Tests: tests/process/.
"""
