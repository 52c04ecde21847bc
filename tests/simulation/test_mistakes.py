"""Early delivery between groups makes no mistakes if the window is above every delay plus the clock difference."""

from __future__ import annotations

import pytest
from benchmarks.groups import DELTA_NS, mistakes

from unisono.model.units import NS_PER_MS

GAMMA_NS = 2 * NS_PER_MS
ABOVE_NS = DELTA_NS + GAMMA_NS + NS_PER_MS


def test_a_window_above_the_jitter_makes_no_mistakes_and_one_below_makes_many() -> None:
    """All members of two groups of three send to both groups, in bursts."""
    above = mistakes(ABOVE_NS, messages=600, burst=10, gamma_ns=GAMMA_NS)
    assert (above.mistakes, above.lost) == (0, 0)
    assert above.deliveries >= 6 * 600
    below = mistakes(NS_PER_MS, messages=600, burst=10, gamma_ns=GAMMA_NS)
    assert below.mistakes > below.deliveries // 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_100000_messages_without_a_mistake() -> None:
    found = mistakes(ABOVE_NS, messages=100_000, burst=10, gamma_ns=GAMMA_NS)
    assert found.deliveries >= 6 * 99_000
    assert (found.mistakes, found.lost) == (0, 0)
