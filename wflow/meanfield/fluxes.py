"""Fluxes of densities through the faces of a mesh, and the steps that keep them positive.

    d rho_i / dt = -(1/a_i) sum_j l_ij F_ij,    F_ij = A_ij rho_i - B_ij rho_j,    A, B >= 0,

with the face drift v_ij, positive from i to j, and P = v_ij d_ij / kappa (Scharfetter and Gummel):

    A = (kappa/d) b(-P),  B = (kappa/d) b(P),  b(z) = z/(e^z - 1),

which is the upwind flux A = max(v, 0), B = max(-v, 0) for kappa = 0. It has the diffusion kappa of
the central flux and a numerical one, lambda |v| d/2 with lambda = coth(|P|/2) - 2/|P|. With
reconstruction a limited slope takes that away where the density is smooth:

    F = A rho_i - B rho_j + lambda (max(v, 0) h_i - max(-v, 0) h_j),

h_i half of van Leer's slope in cell i towards the face, |h_i| <= |rho_j - rho_i| and h_i <= rho_i.

Mass is kept because every flux leaves one cell and enters the other. An Euler step of length dt
keeps densities positive where dt sum_j l_ij (A_ij + lambda max(v_ij, 0)) / a_i <= 1 for all cells,
lambda = 0 without reconstruction.

Sources: D. L. Scharfetter and H. K. Gummel, IEEE Trans. Electron Devices 16 (1969); B. van Leer, J.
Comput. Phys. 32 (1979), on unstructured meshes M. S. Darwish and F. Moukalled, Int. J. Heat Mass
Transfer 46 (2003).
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import linalg
from scipy.special import exprel

from wflow.meanfield.mesh import Mesh
from wflow.sphere.geometry import normalise_unchecked, project_unchecked

Floats = NDArray[np.floating]

# What rounding may take from a density in a step at the bound is far below this share of it.
_MARGIN = 1 - 1e-9


class Coefficients(NamedTuple):
    """A and B of every face, (paths, face): what leaves its first cell, and its second.

    slope_out, slope_in : lambda max(v, 0) and lambda max(-v, 0), None without reconstruction
    """

    leaving: Floats
    entering: Floats
    slope_out: Floats | None
    slope_in: Floats | None


class Fluxes:
    """Fluxes on a mesh at one diffusion.

    Parameters
    ----------
    mesh : Mesh
    kappa : diffusion, >= 0
    reconstruct : whether limited slopes lower the numerical diffusion
    """

    def __init__(self, mesh: Mesh, kappa: float, reconstruct: bool) -> None:
        self.mesh, self.kappa, self.reconstruct = mesh, kappa, reconstruct
        self.first, self.second = mesh.faces.T.copy()
        self._conductance = kappa / mesh.distances

    def coefficients(self, drift: Floats) -> Coefficients:
        """Those of face drifts (paths, face)."""
        forth, back = np.maximum(drift, 0.0), np.maximum(-drift, 0.0)
        if not self.kappa:
            return Coefficients(forth, back, *((forth, back) if self.reconstruct else (None, None)))
        # b(|P|) = 1/exprel(|P|), and b(-|P|) = b(|P|) + |P| without cancellation.
        peclet = np.abs(drift) / self._conductance
        with np.errstate(over="ignore"):
            share = self._conductance / exprel(peclet)
        if not self.reconstruct:
            return Coefficients(forth + share, back + share, None, None)
        # coth(p/2) - 2/p, by its series where that cancels.
        small = np.maximum(peclet, 0.02)
        excess = np.where(peclet < 0.02, peclet / 6, 1 / np.tanh(small / 2) - 2 / small)
        return Coefficients(forth + share, back + share, excess * forth, excess * back)

    def bound(self, found: Coefficients) -> Floats:
        """Longest Euler steps (paths,) that keep densities positive."""
        out, into = found.leaving, found.entering
        if found.slope_out is not None and found.slope_in is not None:
            out, into = out + found.slope_out, into + found.slope_in
        fastest = (self.mesh.gross @ np.concatenate([out, into], axis=1).T).max(axis=0)
        with np.errstate(divide="ignore"):
            return np.asarray(_MARGIN / fastest)

    def rates(self, density: Floats, found: Coefficients) -> Floats:
        """d rho/dt (paths, cell)."""
        first, second = density[:, self.first], density[:, self.second]
        out, into = found.leaving, found.entering
        if found.slope_out is None or found.slope_in is None:
            flux = out * first - into * second
        else:
            # Of terms that are not negative, so that rounding makes no flux go the wrong way.
            ahead = second - first
            doubled = (self._across @ density.T).T
            count = len(self.first)
            here = _at_face(first, second, doubled[:, :count] - ahead)
            there = _at_face(second, first, doubled[:, count:] + ahead)
            flux = (out - found.slope_out) * first + found.slope_out * here
            flux -= (into - found.slope_in) * second + found.slope_in * there
        return -(self.mesh.net @ flux.T).T

    def implicit(self, density: Floats, found: Coefficients, dt: float) -> Floats:
        """Densities after an implicit Euler step with these coefficients, for any dt.

        The matrix has positive diagonal dominant columns and no positive entry beside the diagonal;
        without pivoting its factors have these signs too, so that nothing cancels in the solution.
        """
        result = np.empty_like(density)
        size, places = self.mesh.cells, np.arange(len(self.first))
        for path, values in enumerate(density):
            taken = sparse.csc_matrix(
                (
                    np.concatenate([found.leaving[path], -found.entering[path]]),
                    (np.tile(places, 2), np.concatenate([self.first, self.second])),
                ),
                shape=(len(places), size),
            )
            matrix = (sparse.identity(size) + dt * (self.mesh.net @ taken)).tocsc()
            try:
                factors = linalg.splu(
                    matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0,
                    options={"SymmetricMode": True},
                )  # fmt: skip
            except RuntimeError:  # only numbers out of range make it singular: the run blows up
                result[path] = np.nan
                continue
            new = factors.solve(values)
            result[path] = new * ((values @ self.mesh.areas) / (new @ self.mesh.areas))
        return result

    def spread(self, found: Coefficients, density: Floats) -> Floats:
        """Numerical diffusion (paths,), the mean over faces with the mass around them.

        A and B are those of the central flux with the diffusion d (A + B)/2; what exceeds kappa is
        numerical. What reconstruction takes away where the density is smooth does not count.
        """
        mesh = self.mesh
        weights = (density[:, self.first] + density[:, self.second]) * mesh.lengths * mesh.distances
        extra = mesh.distances * (found.leaving + found.entering) / 2 - self.kappa
        return np.asarray((weights * extra).sum(axis=1) / weights.sum(axis=1))

    @cached_property
    def _across(self) -> sparse.csr_matrix:
        """Matrix (2 face, cell) of 2 <g_i, u_ij>, of the first cells and then of the second ones.

        On equal arcs it is the difference between the neighbours on both sides.
        """
        centres, cells = self.mesh.centres, self.mesh.faces.T.reshape(-1)
        others = self.mesh.faces.T[::-1].reshape(-1)
        along = normalise_unchecked(project_unchecked(centres[cells], centres[others]))
        steps = 2 * along * np.tile(self.mesh.distances, 2)[:, None]
        slopes = self.mesh.slopes
        return sum(sparse.diags(steps[:, a]) @ slopes[a][cells] for a in range(len(slopes)))


def _at_face(value: Floats, other: Floats, behind: Floats) -> Floats:
    """value + half of van Leer's slope, ab/(a + b) where both differences have one sign, else 0."""
    ahead = other - value
    product = ahead * behind
    half = np.divide(product, ahead + behind, out=np.zeros_like(product), where=product > 0)
    return np.maximum(value + np.minimum(half, value), np.minimum(value, other))
