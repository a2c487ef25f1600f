"""Finite volumes: drifts of the faces, the terms of the budget, and schemes in time.

Everything follows from the mobilities m_h at the centres, sums over the cells with masses w = a
rho, and from differences across the faces. With L_h = log m_h, phi = mean_h m_h, Lambda the
logarithmic mean at a face of the effective mobilities of its cells, and s the direction's sign,

    softmax       v = s mean_h (L_h(j) - L_h(i)) / d
    unnormalised  v = s (phi(j) - phi(i)) / d
    effective     v = s (phi(j) - phi(i)) / (d Lambda)

so that with one head the last is the first, to rounding. Integrals of products of gradients are
sums over the faces, whose quadrilaterals have the area l d / dim:

    int rho <grad f, grad g> = sum_faces l d rho_ij (f_j - f_i)/d (g_j - g_i)/d, of second order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wflow._core.tableaux import TABLEAUX, Tableau
from wflow.attention.flows import FLOWS
from wflow.attention.pairs import log_harmonic_mean
from wflow.heads.matrices import Matrices
from wflow.meanfield.fields import DensityStage, Discretisation, Scheme, Setting, TooLong
from wflow.meanfield.fluxes import Coefficients, Fluxes
from wflow.meanfield.mesh import Mesh
from wflow.particles.budget import Terms

Floats = NDArray[np.floating]


# Gottlieb, Shu and Tadmor, Strong stability-preserving high-order time discretization methods, SIAM
# Review 43 (2001), Propositions 3.1 and 3.2.
_SSP3 = Tableau(
    name="ssp3", order=3, nodes=(0.0, 1.0, 0.5), matrix=((), (1.0,), (0.25, 0.25)),
    weights=(1 / 6, 1 / 6, 2 / 3),
)  # fmt: skip
SCHEMES = {
    "euler": Scheme(TABLEAUX["euler"], (0.0,), (1.0,)),
    "ssp2": Scheme(TABLEAUX["heun"], (0.0, 0.5), (1.0, 1.0)),
    "ssp3": Scheme(_SSP3, (0.0, 0.75, 1 / 3), (1.0, 1.0, 1.0)),
    "sra1": Scheme(TABLEAUX["sra1"], (0.0, 5 / 9), (3 / 4, 3 / 2)),
    "imex": Scheme(TABLEAUX["euler"], (0.0,), (1.0,), implicit=True),
}


@dataclass
class VolumesStage(DensityStage):
    """What is evaluated at one time: the coefficients of the fluxes, besides."""

    found: Coefficients


class Volumes(Discretisation):
    """The equation in space by finite volumes.

    Drifts through faces are differences of potentials where all heads are symmetric.
    """

    SCHEMES: ClassVar = SCHEMES
    DEFAULT = "ssp2"
    SERIES: ClassVar = ("numerical_diffusion",)
    BEYOND = "densities may become negative"
    REMEDY = "scheme='imex', which has no bound"

    def __init__(self, mesh: Mesh, setting: Setting, scheme: str, reconstruct: bool) -> None:
        super().__init__(mesh, setting)
        self.mesh, self.scheme = mesh, SCHEMES[scheme]
        self.tableau = self.scheme.tableau
        self.fluxes = Fluxes(mesh, setting.kappa, reconstruct)
        self.by_potentials = setting.symmetric and not FLOWS.is_custom(setting.flow)
        self._first, self._second = mesh.faces.T.copy()
        self._weights = mesh.lengths * mesh.distances

    def evaluate(
        self,
        density: Floats,
        D: Matrices,
        values: Matrices | None = None,
        drift: Matrices | None = None,
        noise: Matrices | None = None,
        sigma2: Floats | None = None,
    ) -> VolumesStage:
        """What heads (paths, heads, d, d) do to densities (paths, cell).

        Parameters
        ----------
        values : of (Q, K, V) heads
        drift, noise, sigma2 : of the heads in the step that begins here, for the budget
        """
        masses = density * self.mesh.areas
        moving = self.budget and not (drift is None and noise is None and sigma2 is None)
        if not (self.by_potentials or self.budget):
            return self._stage(self._of_vectors(masses, D, values)[0], {})
        found = self.head_sums(masses, D, moving)
        logs = found.shift + np.log(found.m)
        top = logs.max(axis=(1, 2))[:, None]
        phi = np.exp(logs - top[:, None]).mean(axis=1)
        rise = self._across(phi)  # of phi, relative to e^top
        name = self.flow.name if self.by_potentials else ""
        log_b = None
        if name == "softmax":
            speed = self._across(logs.mean(axis=1)) / self.mesh.distances
            log_b = log_harmonic_mean(logs, axis=1) if self.budget else None
        elif name == "unnormalised":
            with np.errstate(over="ignore"):
                speed = np.exp(top) * rise / self.mesh.distances
        elif name == "effective":
            log_b = log_harmonic_mean(logs, axis=1)
            speed = rise / self._log_mean(log_b - top) / self.mesh.distances
        else:
            speed, log_b = self._of_vectors(masses, D, values)
        if name:
            speed = self.sign * speed
        terms = {"error": found.error}
        if self.budget:
            with np.errstate(over="ignore", invalid="ignore"):
                terms |= self._terms(density, masses, phi, rise, top, speed, log_b)
                if moving:
                    terms |= self.moving(masses, D, found, drift, noise, sigma2)
        return self._stage(speed, terms)

    def _stage(self, drift: Floats, terms: Terms) -> VolumesStage:
        finite = np.asarray(np.isfinite(drift).all(axis=1))
        return VolumesStage(terms, finite, self.fluxes.coefficients(drift))

    def bound(self, stage: VolumesStage) -> Floats:
        """Longest steps (paths,) at which densities stay positive."""
        return self.fluxes.bound(stage.found) / max(self.scheme.lengths)

    def step(
        self, start: Floats, dt: float, first: VolumesStage,
        later: Callable[[int, Floats], VolumesStage],
    ) -> tuple[Floats, list[Terms]]:  # fmt: skip
        """Densities after a step of the scheme, and the terms of its stages.

        Parameters
        ----------
        first : the stage of `start`
        later : evaluates a stage, by its number, from a density

        Raises
        ------
        TooLong
            For a step above the bound.
        """
        density, terms = start, []
        for at, (mix, length) in enumerate(
            zip(self.scheme.mixes, self.scheme.lengths, strict=True)
        ):
            stage = later(at, density) if at else first
            terms.append(stage.terms)
            if self.scheme.implicit:
                after = self.fluxes.implicit(density, stage.found, dt)
            else:
                bounds = self.bound(stage)
                if not (dt <= bounds).all():
                    raise TooLong(bounds)
                after = density + length * dt * self.fluxes.rates(density, stage.found)
            density = mix * start + (1 - mix) * after if mix else after
        return density, terms

    def series(self, stage: VolumesStage, density: Floats) -> dict[str, Floats]:
        """What is recorded besides."""
        return {"numerical_diffusion": self.fluxes.spread(stage.found, density)}

    def refusal(self, density: Floats) -> None:
        """No density is refused."""
        return

    def _across(self, values: Floats) -> Floats:
        """Differences (..., face) of values over cells: of the second cell from the first."""
        return values[..., self._second] - values[..., self._first]

    def _log_mean(self, log: Floats) -> Floats:
        """Logarithmic mean at the faces of e^log over the cells, (b - a)/(log b - log a)."""
        low = np.minimum(log[..., self._first], log[..., self._second])
        gap = np.abs(self._across(log))
        with np.errstate(invalid="ignore"):
            return np.exp(low) * np.where(gap > 0, np.expm1(gap) / np.where(gap > 0, gap, 1), 1.0)

    def _of_vectors(
        self, masses: Floats, D: Matrices, values: Matrices | None
    ) -> tuple[Floats, Floats | None]:
        """Face drifts from the velocities at the centres, and log b (paths, cell) of the flow.

        The normal of a face is tangential midway between the centres, so that the mean of both
        velocities has second order there.
        """
        velocity, log_b, _ = self.velocity(masses, D, values)
        mean = (velocity[:, self._first] + velocity[:, self._second]) / 2
        return np.einsum("pfa,fa->pf", mean, self.mesh.normals()), log_b

    def _terms(
        self, density: Floats, masses: Floats, phi: Floats, rise: Floats, top: Floats,
        speed: Floats, log_b: Floats | None,
    ) -> Terms:  # fmt: skip
        scale = np.exp(top[:, 0])
        mesh = self.mesh
        between = (density[:, self._first] + density[:, self._second]) / 2 * self._weights
        loss = -scale * np.einsum("pf,pf->p", between, rise / mesh.distances * speed)
        squares = between * speed**2
        b = 1.0 if log_b is None else self._log_mean(log_b)
        gradient = (b * squares).sum(axis=1)
        jumps = self._across(density) * (mesh.lengths / mesh.distances)
        return {
            "energy": scale * np.einsum("pi,pi->p", masses, phi) / 2,
            "dissipation": loss,
            "upper_gradient_sq": gradient,
            "edi_defect": loss + self.sign * gradient,
            "speed_sq": squares.sum(axis=1),
            "diffusion_power": -self.kappa * scale * np.einsum("pf,pf->p", jumps, rise),
            **self.still(),
        }
