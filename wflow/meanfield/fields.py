"""What the heads do to densities: sums at the nodes, velocities, their part of the budget."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import reading, returned
from wflow._core.tableaux import Tableau
from wflow.attention.flows import FLOWS, Flow
from wflow.attention.pairs import Cloud
from wflow.heads.matrices import Matrices
from wflow.kernels.evaluate import DIRECTIONS, HeadSums, Sums, head_sums
from wflow.meanfield.arcs import ArcSums
from wflow.meanfield.mesh import Quadrature
from wflow.particles.budget import Terms
from wflow.sphere.geometry import project_unchecked

Floats = NDArray[np.floating]


class TooLong(Exception):
    """A step that is longer than the bounds of the paths, (paths,)."""

    def __init__(self, bounds: Floats) -> None:
        self.bounds = bounds


@dataclass
class DensityStage:
    """What is evaluated at one time: terms of the budget, and whether all is finite (paths,)."""

    terms: Terms
    finite: NDArray[np.bool_]


@dataclass(frozen=True)
class Scheme:
    """A scheme in time.

    tableau : the scheme, also for heads and budget
    mixes : where stages are convex combinations of Euler steps, which keep densities positive, the
        share of the density at the start of the step in the result of every stage
    lengths : their Euler steps, in units of dt
    implicit : whether the Euler step is implicit in the density
    """

    tableau: Tableau
    mixes: tuple[float, ...] = ()
    lengths: tuple[float, ...] = ()
    implicit: bool = False


@dataclass(frozen=True)
class Setting:
    """What all evaluations of a run share.

    flow, direction, sums, kappa : as in `solve`
    paths : how many densities are evaluated together
    symmetric : whether all heads are, D = D^T
    budget : whether the terms of the energy are computed
    """

    flow: Flow
    direction: str
    sums: Sums
    kappa: float
    paths: int
    symmetric: bool
    budget: bool


class Discretisation:
    """Sums over densities at nodes, and the heads' part of the budget."""

    def __init__(self, nodes: Quadrature, setting: Setting) -> None:
        self._arcs = None
        if setting.sums.method == "auto" and nodes.dim == 1:
            self._arcs = ArcSums(nodes.cells, setting.sums.tolerance)
        self.nodes, self.flow, self.sums = nodes, setting.flow, setting.sums
        self.sign, self.budget = DIRECTIONS[setting.direction], setting.budget
        self.kappa = setting.kappa
        self.errors: Any = np.geterr()  # for functions of the user, whatever is ignored around
        self._of_flow: Any = self.errors if FLOWS.is_custom(setting.flow) else {}
        self.points = np.array(
            np.broadcast_to(nodes.centres, (setting.paths, *nodes.centres.shape))
        )

    def head_sums(self, masses: Floats, D: Matrices, vectors: bool) -> HeadSums:
        """`kernels.evaluate.head_sums` at the nodes, over masses (paths, cell) of the nodes."""
        found = None if self._arcs is None else self._arcs(D, masses, vectors)
        if found is None:
            found = head_sums(self.points, D, weights=masses, vectors=vectors, sums=self.sums)
        return found

    def velocity(
        self, masses: Floats, D: Matrices, values: Matrices | None
    ) -> tuple[Floats, Floats | None, Cloud]:
        """Velocities (paths, cell, axis), log b (paths, cell) or None, and the cloud behind them.

        log b is None without a budget, too.
        """
        flow = self.flow
        cloud = Cloud(
            self.points, np.ascontiguousarray(D), values=values, sums=self.sums, masses=masses
        )
        with np.errstate(**self._of_flow), reading("flow", f"{flow.name}.velocity", "the cloud"):
            found = flow.velocity(cloud)
        name, shape = f"{flow.name}.velocity(cloud)", self.points.shape
        velocity = project_unchecked(self.points, returned(found, shape, name, finite=False))
        velocity = (1.0 if values is not None else self.sign) * velocity
        if not self.budget:
            return velocity, None, cloud
        with np.errstate(**self._of_flow), reading("flow", f"{flow.name}.log_metric", "the cloud"):
            log_b = flow.log_metric(cloud)
        if log_b is not None:
            log_b = returned(log_b, shape[:2], f"{flow.name}.log_metric(cloud)", finite=False)
        return velocity, log_b, cloud

    def still(self) -> Terms:
        """Terms of heads at rest, which are zero."""
        names = (
            "weight_power", "ito_power", "martingale", "second_variation", "martingale_tokens",
        )  # fmt: skip
        return {name: np.zeros(len(self.points)) for name in names}

    def moving(
        self, masses: Floats, D: Matrices, found: HeadSums, drift: Matrices | None,
        noise: Matrices | None, sigma2: Floats | None,
    ) -> Terms:  # fmt: skip
        """Power of the drift of the heads, and what their noise adds in first and second order."""
        heads = D.shape[1]
        weights = masses[:, None] * np.exp(found.shift)
        # Q_h = int int U x y^T, the derivative of the energy of a head in D.
        slopes = self.nodes.centres.T @ (weights[..., None] * found.S)
        terms = {}
        if drift is not None:
            terms["weight_power"] = np.einsum("phab,phab->p", drift, slopes) / (2 * heads)
        if noise is not None:
            terms["martingale"] = np.einsum("phab,phab->p", noise, slopes) / (2 * heads)
        if sigma2 is not None and np.any(sigma2):
            # int int U (1 + <x, y>^2); the energies of the heads are int int U / 2.
            squares, along = self._squares(masses, D, found, noise)
            pairs = np.einsum("phi,phi->ph", weights, found.m) + squares
            terms["ito_power"] = np.einsum("ph,ph->p", sigma2, pairs) / (8 * heads)
            terms["second_variation"] = along.sum(-1) / (4 * heads)
        return terms

    def _squares(self, masses, D, found, noise) -> tuple[Floats, Floats]:
        """int int U <x, y>^2 and int int U <x, N y>^2 for every head, (paths, heads) each.

        N is the noise of the head, zero for None. The sums over w y_a y_b come from weights
        w (1 + y_a), which have one sign; the last square is 1 less the others, since |y| = 1.
        """
        x = self.nodes.centres
        axes = x.shape[1]
        total, along = 0.0, np.zeros(D.shape[:2])
        noisy = None if noise is None else x @ noise
        left = found.m * np.exp(found.shift)  # sum over w y_a^2 of the axes that are left
        plain = found.S * np.exp(found.shift)[..., None]
        for a in range(axes - 1):
            more = self.head_sums(masses * (1 + x[:, a]), D, True)
            products = more.S * np.exp(more.shift)[..., None] - plain
            left = left - products[..., a]
            factors = x[:, a, None] * x
            factors[:, :a] = 0.0
            factors[:, a + 1 :] *= 2
            total += np.einsum("pi,phib,ib->ph", masses, products, factors, optimize=True)
            if noisy is not None:
                factors = noisy[..., a, None] * noisy
                factors[..., :a] = 0.0
                factors[..., a + 1 :] *= 2
                along += np.einsum("pi,phib,phib->ph", masses, products, factors, optimize=True)
        total += np.einsum("pi,phi,i->ph", masses, left, x[:, -1] ** 2, optimize=True)
        if noisy is not None:
            along += np.einsum("pi,phi,phi->ph", masses, left, noisy[..., -1] ** 2, optimize=True)
        return total, along
