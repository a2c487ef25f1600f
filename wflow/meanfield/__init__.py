"""The mean-field equation of multi-head attention: densities on the circle and the sphere.

`mesh` has the Voronoi cells; `fluxes` what crosses their faces, and steps that keep densities
positive; `volumes` the equation in space by these, `spectral` in harmonics, for smooth densities;
`fields` what both take of the heads (`arcs`: sums between equal arcs); `densities` makes densities
of functions, arrays and tokens, and samples of them; `solver` the equation in time. It imports the
packages from `_core` to `particles`. Start with `solver`.
"""

from wflow.meanfield.densities import density_of, sample
from wflow.meanfield.mesh import Circle, Mesh, Sphere
from wflow.meanfield.solver import solve
from wflow.meanfield.spectral import Fourier, Harmonics, Modes

__all__ = [
    "Circle",
    "Fourier",
    "Harmonics",
    "Mesh",
    "Modes",
    "Sphere",
    "density_of",
    "sample",
    "solve",
]


def __dir__() -> list[str]:
    return __all__
