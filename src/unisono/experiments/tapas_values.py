"""The simulation results that paper 002 published (§5.2), as data. Each is a mean over 100 runs.

Figures 18 to 22 are published as drawings only; of group 1 the text gives two counts. Group 3 and group 5 are the
points n = 50 of Figures 23 and 24.
"""

from __future__ import annotations

SIZES = (5, 15, 25, 40, 50)

NO_CRASH, CRASH, DIRECT = "no crash", "originator crashes", "direct receivers"

GROUP_1 = {NO_CRASH: 4.53, CRASH: 5.37}

FIGURE_23 = {
    "none": dict(zip(SIZES, (3.97, 4.73, 5.03, 6.90, 8.48), strict=True)),
    "heuristic": dict(zip(SIZES, (3.92, 4.43, 4.47, 5.65, 6.78), strict=True)),
}
FIGURE_24 = {
    "none": dict(zip(SIZES, (4.21, 5.19, 6.77, 8.21, 10.02), strict=True)),
    "heuristic": dict(zip(SIZES, (4.06, 4.77, 5.78, 6.64, 7.91), strict=True)),
}

LOSS, ETA, MEMBERS = 0.05, 4.6, 50
DIRECT_RECEIVERS = (1, 2, 5)
FAILURE_PLATEAU = 1e-7
"""The limit of the curve of f_n in Figure 17 of paper 002.

The crash probabilities v and β are not published; any pair with β·v ≈ 0.95e-7 fits (erratum 002-9).
"""
