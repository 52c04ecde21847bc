"""Packed codes order and tell apart rows as the tuples of their columns do, however far apart the values are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unisono.check.columns import packed

NUMBERS = st.one_of(st.integers(-2, 3), st.integers(-(2**63), 2**63 - 1))


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=8))
def test_codes_compare_as_tuples(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.array([row[i] for row in rows], dtype=np.int64) for i in range(3)]
    codes = packed(*columns).tolist()
    for row, code in zip(rows, codes, strict=True):
        for other, other_code in zip(rows, codes, strict=True):
            assert (row < other, row == other) == (code < other_code, code == other_code)
