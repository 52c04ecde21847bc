"""Early delivery between groups: with a window above every delay and the clocks' difference there are no mistakes."""

from __future__ import annotations

import pytest
from benchmarks.groups import DELTA_NS, mistakes

from unisono.model.durations import NS_PER_MS

GAMMA_NS = 2 * NS_PER_MS
ABOVE_NS = DELTA_NS + GAMMA_NS + NS_PER_MS


def test_none_above_the_jitter_and_many_below() -> None:
    """Two groups of three whose members all send, in bursts, to both."""
    above = mistakes(ABOVE_NS, messages=600, burst=10, gamma_ns=GAMMA_NS)
    assert (above.mistakes, above.lost) == (0, 0)
    assert above.deliveries >= 6 * 600
    below = mistakes(NS_PER_MS, messages=600, burst=10, gamma_ns=GAMMA_NS)
    assert below.mistakes > below.deliveries // 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_none_in_100000_messages() -> None:
    found = mistakes(ABOVE_NS, messages=100_000, burst=10, gamma_ns=GAMMA_NS)
    assert found.deliveries >= 6 * 99_000
    assert (found.mistakes, found.lost) == (0, 0)
