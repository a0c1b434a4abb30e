"""95 % intervals of means and shares, for the judge's measures, credits and benchmarks."""

from __future__ import annotations

from functools import cache
from math import pi, sqrt, tan
from statistics import NormalDist

NORMAL_95 = NormalDist().inv_cdf(0.975)
"""Half a 95 % interval in standard errors, where these are known."""
_SPAN, _STEPS = 10.0, 10_001
"""Of the grid for Student's t: up to the angle beyond which no mass is left."""


@cache
def student_95(freedom: float) -> float:
    """Half a 95 % interval in standard errors, by Student's t; at least one degree of freedom.

    With t = sqrt(v) tan(a), the density of the angle is proportional to cos(a)^(v - 1).
    """
    import numpy as np

    angles = np.linspace(0.0, min(pi / 2, _SPAN / sqrt(freedom)), _STEPS)
    density = np.cos(angles) ** (freedom - 1.0)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return sqrt(freedom) * tan(float(np.interp(0.95, mass / mass[-1], angles)))


def wilson(share: float, trials: float) -> tuple[float, float]:
    """The ends of the score interval of a share of trials (Wilson 1927), within [0, 1]."""
    z2 = NORMAL_95**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = NORMAL_95 * sqrt(share * (1 - share) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return max(0.0, centre - half), min(1.0, centre + half)
