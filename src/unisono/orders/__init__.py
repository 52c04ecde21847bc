"""One order per file, by its paper's name, and what the orders share.

`vbr` (paper 000 §5), `vbr_gaps` (§6, §7), `cbr` (§4), `leader` and `timestamp` (§8); each has its `offer` for the
planner. Their parts: `rate_exchange` (how a group begins), `packing` (messages into frames), `rqueue` (frames waiting
for their turn), `porder` and `renegotiation` (of cbr), `election` (of the leader orders), `consumable_queue` and
`insertion` (of `priority`, paper 004 §4).
No clock, no chance, no I/O. Tests: tests/unit/, tests/paper/ (by section), tests/simulation/.
"""
