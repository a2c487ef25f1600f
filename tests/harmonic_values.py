"""All harmonics at some points, from the package's own expansion."""

import numpy as np

from wflow.kernels.harmonic.fast import table_of
from wflow.kernels.harmonic.series import expand
from wflow.sphere.harmonics import count


def all_harmonics(x, degree):
    """Return (n, K): each harmonic by itself, as the density with that single moment."""
    d = x.shape[1]
    every = np.eye(count(degree, d))
    return np.stack([expand(x, moment, degree, table_of(d)) for moment in every], axis=1)
