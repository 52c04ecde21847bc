"""The services without a total order (paper 002 §2.2), by the name of the `order` option, and their guarantees."""

from __future__ import annotations

SERVICE_LAYERS: dict[str, tuple[str, ...]] = {
    "reliable": (),
    "fifo": ("fifo",),
    "causal": ("causal",),
    "uniform": ("uniform",),
    "uniform_fifo": ("uniform", "fifo"),
    "uniform_causal": ("uniform", "causal"),
}
"""The layers above reliable multicast, from the top down."""

SERVICE_CHECKS: dict[str, tuple[str, ...]] = {
    "reliable": ("agreement",),
    "fifo": ("agreement", "fifo"),
    "causal": ("agreement", "fifo", "causal"),
    "uniform": ("uniform_agreement",),
    "uniform_fifo": ("uniform_agreement", "fifo"),
    "uniform_causal": ("uniform_agreement", "fifo", "causal"),
}
"""The checkers that apply to a run, in addition to integrity and latency."""
