"""What the study `clustering` compares its counts with: frontiers, and growth of lifetimes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_LEAST, _LARGEST = 1e-6, 60.0  # beta between which a frontier is looked for
_RESAMPLES = 1000


def meeting_time(beta: float, n: int, scale: float) -> float:
    """Time, in units of [GLPR], at which n orthogonal tokens come within `scale` of each other.

    Their inner products stay equal, gamma' = 2 e^{beta gamma} (1 - gamma) ((n - 1) gamma + 1) /
    (e^beta + (n - 1) e^{beta gamma}), gamma(0) = 0: random tokens in high dimension do the same.
    Source: [GLPR] section 6.
    """
    from scipy.integrate import quad

    def slowness(s: float) -> float:  # dt/ds with 1 - gamma = e^-s
        gamma = -math.expm1(-s)
        return (math.exp(beta * math.exp(-s)) + n - 1) / (2 * ((n - 1) * gamma + 1))

    end = -math.log(2 * math.sin(scale / 2) ** 2)
    if end <= 0:
        return 0.0
    return float(quad(slowness, 0, end, limit=400, points=[0.01, 0.1, 1.0])[0])


def meeting_beta(time: float, n: int, scale: float) -> float:
    """The beta for which orthogonal tokens meet at a time.

    NaN for a time too short for any; inf where they are within the scale from the start, or the
    beta is beyond 60.
    """
    from scipy.optimize import brentq

    if meeting_time(_LARGEST, n, scale) < time:
        return math.inf
    if meeting_time(_LEAST, n, scale) > time:
        return math.nan
    return float(brentq(lambda beta: meeting_time(beta, n, scale) - time, _LEAST, _LARGEST))


def frontier(betas: Sequence[float], share: FloatArray) -> float:
    """The beta at which the share of starts in one cluster falls below one half.

    Linear between the last beta with a share of a half or more and the next; inf where the share
    never falls, NaN where it is below at every beta.
    """
    order = np.argsort(betas)
    beta, share = np.asarray(betas)[order], share[order]
    above = np.flatnonzero(share >= 0.5)
    if not len(above):
        return math.nan
    k = int(above[-1])
    if k + 1 == len(beta):
        return math.inf
    return float(beta[k] + (beta[k + 1] - beta[k]) * (share[k] - 0.5) / (share[k] - share[k + 1]))


def edge_text(beta: float) -> str:
    """A frontier in words: NaN lies below all of --betas, inf above."""
    return "below" if math.isnan(beta) else "above" if math.isinf(beta) else f"{beta:.2f}"


def short(time: float) -> str:
    """A time to three figures, without an exponent up to a million."""
    return f"{float(f'{time:.3g}'):g}"


@dataclass(frozen=True)
class Growth:
    """How the log of a lifetime grows with beta.

    Attributes
    ----------
    slope, low, high : of the line through the means over the starts, with its 95 % interval
    exponential : whether a line in beta leaves a smaller residual than one in log beta, a power
    betas : the beta that count
    """

    slope: float
    low: float
    high: float
    exponential: bool
    betas: tuple[float, ...]


def growth(betas: FloatArray, times: FloatArray) -> Growth | None:
    """Fit log(time) = a + slope beta to times (beta, start); NaN: not reached.

    Only those beta count at which every start got there: a mean over the others would be cut.
    None for fewer than three such beta.
    """
    met = np.isfinite(times).all(axis=1)
    if met.sum() < 3:
        return None
    beta, log = betas[met], np.log(times[met])
    mean = log.mean(axis=1)

    def slope(s: FloatArray, values: FloatArray) -> float:
        centred = s - s.mean()
        return float(centred @ values / np.sum(centred**2))

    def residual(s: FloatArray) -> float:
        rest = mean - slope(s, mean) * s
        return float(np.sum((rest - rest.mean()) ** 2))

    rng = np.random.Generator(np.random.Philox(0))
    size = log.shape[1]
    drawn = [
        slope(beta, log[:, rng.integers(size, size=size)].mean(axis=1)) for _ in range(_RESAMPLES)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    line = residual(beta) < residual(np.log(beta))
    return Growth(slope(beta, mean), float(low), float(high), line, tuple(beta.tolist()))
