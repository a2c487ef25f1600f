"""Elliptic inverse problem in one dimension: the source of -alpha w'' + w = u from values of w."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import positive, reals, whole
from wflow._core.errors import InputError
from wflow.sampling.forward.model import ForwardModel, Pullback, TensorPullback

if TYPE_CHECKING:
    from torch import Tensor

FloatArray = NDArray[np.float64]


class Elliptic(ForwardModel):
    r"""Observations of the solution of an elliptic equation, linear in coefficients of its source.

    Parameters
    ----------
    dim : int, default 128
        Number d of Gaussian bumps, with centres spread evenly over [0, 1].
    outputs : int, default 32
        Number of observation points, at the middles of as many equal parts of [0, 1].
    cells : int, default 256
        Number of finite volumes, two or more.
    alpha : float, default 0.01
        Diffusion > 0.
    width : float, default 0.1
        Width s > 0 of the bumps.

    Attributes
    ----------
    matrix : ndarray, shape (outputs, dim)
        The matrix A of F(x) = A x.
    grid : ndarray, shape (cells,)
        Centres of the cells.
    basis : ndarray, shape (cells, dim)
        The bumps there.
    points : ndarray, shape (outputs,)
        Observation points.

    Raises
    ------
    InputError
        For numbers out of range.

    Notes
    -----
    .. math::
        -\alpha w'' + w = u \text{ in } (0, 1), \quad w'(0) = w'(1) = 0, \quad
        u(s) = \sum_j x_j \exp\Bigl(-\frac{|s - s_j|^2}{2 s^2}\Bigr),

    and F(x) are the values of w at the observation points [1]_ (the printed u has no
    coefficients). Finite volumes of second order, interpolated linearly; the matrix is found once,
    by a banded solve with a right-hand side for each bump.

    References
    ----------
    .. [1] Han, Osher and Li, "Sparse Transformer Architectures via Regularized Wasserstein
       Proximal Operator with L1 Prior", section 4.2, example 1.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow.sampling import forward
    >>> model = forward.Elliptic(dim=8, outputs=4)
    >>> model(np.ones((2, 8))).shape
    (2, 4)
    """

    def __init__(
        self,
        dim: int = 128,
        outputs: int = 32,
        *,
        cells: int = 256,
        alpha: float = 0.01,
        width: float = 0.1,
    ) -> None:
        self.dim, self.outputs = whole(dim, "dim"), whole(outputs, "outputs")
        self.cells = whole(cells, "cells", 2, most=10**6)
        self.alpha, self.width = positive(alpha, "alpha"), positive(width, "width")
        for name, value in (("alpha", self.alpha), ("width", self.width)):
            if not 1e-100 <= value <= 1e100:
                raise InputError(f"{name} is {value:.3g}: expected a number from 1e-100 to 1e100")
        if self.cells * self.dim > 10**8:
            raise InputError(
                f"dim is {self.dim} with {self.cells} cells: their product may be 1e8 at most"
            )
        self.grid = (np.arange(self.cells) + 0.5) / self.cells
        centres = np.linspace(0, 1, self.dim) if self.dim > 1 else np.array([0.5])
        self.basis = np.exp(-((self.grid[:, None] - centres) ** 2) / (2 * self.width**2))
        self.points = (np.arange(self.outputs) + 0.5) / self.outputs
        solution = self.solve(self.basis)
        place = np.clip(self.points * self.cells - 0.5, 0, self.cells - 1)
        left = np.minimum(place.astype(int), self.cells - 2)
        share = (place - left)[:, None]
        self.matrix = (1 - share) * solution[left] + share * solution[left + 1]

    def solve(self, source: ArrayLike) -> FloatArray:
        """Solve the equation for sources given at the centres of the cells.

        Parameters
        ----------
        source : array_like, shape (cells,) or (cells, k)
            Values of u.

        Returns
        -------
        ndarray, shape of `source`
            Values of w at the centres.

        Raises
        ------
        InputError
            For a source of another length, or values that are not finite.
        """
        from scipy.linalg import solveh_banded

        u = reals(source, "source")
        if u.ndim not in (1, 2) or len(u) != self.cells:
            raise InputError(f"source has shape {u.shape}: expected ({self.cells},) or with (k,)")
        flux = self.alpha * self.cells**2
        bands = np.full((2, self.cells), -flux)
        bands[0] = 1 + 2 * flux
        bands[0, [0, -1]] = 1 + flux
        return solveh_banded(bands, u, lower=True)  # type: ignore[no-any-return]

    def evaluate(self, x: FloatArray) -> tuple[FloatArray, Pullback]:
        return x @ self.matrix.T, lambda w: w @ self.matrix

    def evaluate_torch(self, x: Tensor) -> tuple[Tensor, TensorPullback]:
        matrix = self._on_device("matrix", x)
        return x @ matrix.T, lambda w: w @ matrix
