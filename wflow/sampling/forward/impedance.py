"""Electrical impedance tomography: a conductivity from currents through the boundary."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import function, positive, reals, whole
from wflow._core.errors import InputError
from wflow.sampling.forward.model import ForwardModel, Pullback, TensorPullback

if TYPE_CHECKING:
    from torch import Tensor

FloatArray = NDArray[np.float64]


class Impedance(ForwardModel):
    r"""Currents through electrodes on the boundary of the unit square, for given voltages.

    Parameters
    ----------
    bumps : tuple of int, default (4, 8)
        Numbers of Gaussian bumps along both axes; d is their product.
    cells : int, default 32
        Number n of finite volumes along each side.
    patterns : int, default 8
        Number of boundary voltages: sines and cosines of the arc length with 1, 2, ... periods.
    electrodes : int, default 16
        Equal parts of the boundary whose currents are measured; they divide 4 cells.
    width : float, optional
        Width s > 0 of the bumps; their larger distance by default.
    scale : float, default 1.0
        Change of the log conductivity at the centre of a bump for a unit of its coefficient.
    basis : callable, optional
        Functions (m, d) of points (m, 2) in the place of the scaled bumps.
    voltages : callable, optional
        Boundary voltages (m, patterns) of points (m, 2) in the place of the sines and cosines.

    Attributes
    ----------
    dim : int
        Number of basis functions.
    outputs : int
        Patterns times electrodes.
    centres : ndarray, shape (cells**2, 2)
        Centres of the cells.

    Raises
    ------
    InputError
        For numbers out of range, and functions that return other shapes.

    Notes
    -----
    .. math::
        \nabla \cdot (\sigma \nabla w) = 0 \text{ in } (0, 1)^2, \quad
        w = f \text{ on the boundary}, \\
        \log \sigma(s) = a \sum_j x_j \exp\Bigl(-\frac{|s - s_j|^2}{2 s^2}\Bigr).

    with a = `scale`. Measured is the current :math:`\int \sigma \partial_\nu w` through each
    electrode, the Neumann data of [1]_. There :math:`\sigma` itself is the sum of bumps, which a
    Laplace prior makes negative with positive probability; its logarithm here keeps it positive.
    Finite volumes with the conductivity at the faces; one banded Cholesky factor serves all
    patterns and the adjoint, which solves the same problem with the weights as voltages.

    References
    ----------
    .. [1] Han, Osher and Li, "Sparse Transformer Architectures via Regularized Wasserstein
       Proximal Operator with L1 Prior", section 4.2, example 3.

    Examples
    --------
    >>> import numpy as np
    >>> from wflow.sampling import forward
    >>> model = forward.Impedance(bumps=(2, 2), cells=8, patterns=2, electrodes=8)
    >>> currents = model(np.zeros((1, 4))).reshape(2, 8)
    >>> bool(np.abs(currents.sum(1)).max() < 1e-12)  # what enters leaves again
    True
    """

    def __init__(
        self,
        bumps: tuple[int, int] = (4, 8),
        *,
        cells: int = 32,
        patterns: int = 8,
        electrodes: int = 16,
        width: float | None = None,
        scale: float = 1.0,
        basis: Callable[[FloatArray], FloatArray] | None = None,
        voltages: Callable[[FloatArray], FloatArray] | None = None,
    ) -> None:
        n = self.cells = whole(cells, "cells", 2, most=1000)
        self.patterns = whole(patterns, "patterns", most=4 * n - 1)
        self.electrodes = whole(electrodes, "electrodes", 2)
        if 4 * n % self.electrodes:
            raise InputError(
                f"electrodes are {self.electrodes}: expected a divisor of the {4 * n} boundary "
                "faces, 4 cells"
            )
        try:
            rows, columns = (whole(count, "bumps", most=1000) for count in bumps)
        except (TypeError, ValueError):
            raise InputError(f"bumps are {bumps!r:.60}: expected two whole numbers") from None
        middle = (np.arange(n) + 0.5) / n
        edge = np.arange(1, n) / n
        self.centres = _points(middle, middle)
        # Faces in x, in y, then the boundary, along it: bottom, right, top, left.
        ends = np.zeros(n), np.ones(n)
        border = [(middle, ends[0]), (ends[1], middle), (middle[::-1], ends[1]),
                  (ends[0], middle[::-1])]  # fmt: skip
        self.boundary = np.concatenate([np.stack(pair, 1) for pair in border])
        faces = np.concatenate([_points(edge, middle), _points(middle, edge), self.boundary])
        cell = np.arange(n * n).reshape(n, n)  # first index: x
        self._first = np.concatenate([cell[:-1].ravel(), cell[:, :-1].ravel()])
        self._second = np.concatenate([cell[1:].ravel(), cell[:, 1:].ravel()])
        self._border = np.concatenate([cell[:, 0], cell[-1], cell[::-1, -1], cell[0, ::-1]])
        # The four faces of each cell: one order of their sum on every device.
        around = np.concatenate([self._first, self._second, self._border])
        self._around = np.argsort(around, kind="stable").reshape(n, n, 4)
        if basis is None:
            at = _points((np.arange(rows) + 0.5) / rows, (np.arange(columns) + 0.5) / columns)
            size = positive(scale, "scale")
            spread = 1 / min(rows, columns) if width is None else positive(width, "width")

            def basis(s: FloatArray) -> FloatArray:
                apart = ((s[:, None] - at) ** 2).sum(-1)
                with np.errstate(all="ignore"):  # `_table` refuses what is not finite
                    return size * np.exp(-apart / (2 * spread**2))

        self._at_points = basis
        self._basis = _table(basis, faces, "basis")  # (faces, d)
        self.dim, self.outputs = self._basis.shape[1], self.patterns * self.electrodes
        if voltages is None:
            self._voltages = _waves(self.patterns, 4 * n)
        else:
            self._voltages = _table(voltages, self.boundary, "voltages")
            if self._voltages.shape[1] != self.patterns:
                raise InputError(
                    f"voltages have {self._voltages.shape[1]} columns: expected {self.patterns}, "
                    "the number of patterns"
                )

    def conductivity(self, x: ArrayLike, points: ArrayLike | None = None) -> FloatArray:
        """Return the conductivity of parameters at points.

        Parameters
        ----------
        x : array_like, shape (n, dim)
            Parameters.
        points : array_like, shape (m, 2), optional
            Points of the square; the centres of the cells by default.

        Returns
        -------
        ndarray, shape (n, m)
            Conductivities.

        Raises
        ------
        InputError
            For arrays of other shapes, or not finite.
        """
        at = self.centres if points is None else reals(points, "points")
        if at.ndim != 2 or at.shape[1] != 2:
            raise InputError(f"points have shape {at.shape}: expected (m, 2)")
        with np.errstate(over="ignore"):
            log = self._array(x, "x", self.dim) @ _table(self._at_points, at, "basis").T
            return np.exp(log)

    def evaluate(self, x: FloatArray) -> tuple[FloatArray, Pullback]:
        from scipy.linalg import cho_solve_banded

        sigma = np.exp(x @ self._basis.T)  # (n, faces)
        f, inner, n = self._voltages, len(self._first), len(x)
        # Rows without a solution in the range of doubles have NaN.
        rows = np.flatnonzero(np.all((sigma > 1e-30) & (sigma < 1e30), axis=1)).tolist()
        factors = {row: self._factor(sigma[row]) for row in rows}
        inside = np.full((n, self.cells**2, self.patterns), np.nan)

        def solved(row: int, given: FloatArray) -> FloatArray:
            """Voltages (cells^2, k) for given boundary voltages (boundary, k)."""
            right = np.zeros((self.cells**2, given.shape[1]))
            np.add.at(right, self._border, 2 * sigma[row, inner:, None] * given)
            return cho_solve_banded((factors[row], True), right, check_finite=False)  # type: ignore[no-any-return]

        for row in rows:
            inside[row] = solved(row, f)
        drop = 2 * (f - inside[:, self._border])  # (n, boundary, patterns)
        per_face = 4 * self.cells // self.electrodes
        currents = (sigma[:, inner:, None] * drop).reshape(
            n, self.electrodes, per_face, self.patterns
        )
        values = currents.sum(2).swapaxes(1, 2).reshape(n, self.outputs)

        def pullback(w: FloatArray) -> FloatArray:
            slope = np.full_like(sigma, np.nan)
            weights = w.reshape(-1, self.patterns, self.electrodes)
            for row in rows:
                given = np.repeat(weights[row].T, per_face, axis=0)  # (boundary, patterns)
                dual, u = solved(row, given), inside[row]
                gap = (u[self._first] - u[self._second]) * (dual[self._first] - dual[self._second])
                slope[row, :inner] = gap.sum(1)
                slope[row, inner:] = (drop[row] * (given - dual[self._border])).sum(1)
            return (slope * sigma) @ self._basis

        return values, pullback

    def evaluate_torch(self, x: Tensor) -> tuple[Tensor, TensorPullback]:
        import torch

        rows, patterns, electrodes = len(x), self.patterns, self.electrodes
        basis, f, border = (self._on_device(name, x) for name in ("_basis", "_voltages", "_border"))
        unit = torch.eye(electrodes, dtype=x.dtype, device=x.device)
        unit = unit.repeat_interleave(len(f) // electrodes, 0)
        inner = len(self._first)
        sigma = torch.exp(x @ basis.T)  # (rows, faces)
        known = torch.all((sigma > 1e-30) & (sigma < 1e30), 1, keepdim=True)
        sigma = torch.where(known, sigma, 1.0)
        # Voltages on single electrodes are solved for, too: weights combine them to the dual.
        solved = self._solved_torch(sigma, torch.cat([f, unit], 1))  # (rows, cells, cells, k)
        u, units = solved.split([patterns, electrodes], -1)

        def at_border(inside: Tensor) -> Tensor:
            return inside.flatten(1, 2)[:, border]

        drop = 2 * (f - at_border(u))  # (rows, boundary, patterns)
        currents = (sigma[:, inner:, None] * drop).unflatten(1, (electrodes, -1)).sum(2)
        values = torch.where(known, currents.mT.reshape(rows, self.outputs), torch.nan)

        def pullback(w: Tensor) -> Tensor:
            weights = w.reshape(rows, patterns, electrodes).mT
            dual = (units.flatten(1, 2) @ weights).view_as(u)
            slopes = [
                (u.diff(dim=1) * dual.diff(dim=1)).sum(-1).flatten(1),
                (u.diff(dim=2) * dual.diff(dim=2)).sum(-1).flatten(1),
                (drop * (unit @ weights - at_border(dual))).sum(-1),
            ]
            return torch.where(known, torch.cat(slopes, 1) * sigma, torch.nan) @ basis

        return values, pullback

    def _solved_torch(self, sigma: Tensor, given: Tensor) -> Tensor:
        """Return the voltages (rows, cells, cells, k) of boundary voltages (boundary, k).

        The matrix of the cell balances has a block A_i for each column of cells, and between two
        columns the diagonal block -C_i: S_i = A_i - C_{i-1} S_{i-1}^{-1} C_{i-1} are eliminated one
        after the other, in all rows at once.
        """
        import torch

        n, inner = self.cells, len(self._first)
        across, along = sigma[:, :inner].chunk(2, 1)
        across, along = across.unflatten(1, (n - 1, n, 1)), along.unflatten(1, (n, n - 1))
        outer = 2 * sigma[:, inner:]
        ends = torch.cat([sigma[:, :inner], sigma[:, :inner], outer], 1)
        diagonal = ends[:, self._on_device("_around", sigma)].sum(-1)
        border = self._on_device("_border", sigma)
        solved = sigma.new_zeros(len(sigma), n * n, given.shape[1])
        solved = solved.index_add_(1, border, outer[..., None] * given).unflatten(1, (n, n))
        inverses: list[Tensor] = []
        for i in range(n):
            matrix = diagonal[:, i].diag_embed()
            for offset in (-1, 1):
                matrix.diagonal(offset, 1, 2).sub_(along[:, i])
            if i > 0:
                c = across[:, i - 1]
                matrix.addcmul_(c * inverses[-1], c.mT, value=-1)
                solved[:, i] += c * solved[:, i - 1]
            inverses.append(torch.linalg.inv_ex(matrix).inverse)
            solved[:, i] = inverses[-1] @ solved[:, i]
        for i in range(n - 2, -1, -1):
            solved[:, i] += inverses[i] @ (across[:, i] * solved[:, i + 1])
        return solved

    def _factor(self, sigma: FloatArray) -> FloatArray:
        """Lower banded Cholesky factor (cells + 1, cells^2) of the matrix of the cell balances."""
        from scipy.linalg import cholesky_banded

        n, inner = self.cells, len(self._first)
        bands = np.zeros((n + 1, n * n))
        half = inner // 2
        bands[n, self._first[:half]] = -sigma[:half]
        bands[1, self._first[half:]] -= sigma[half:inner]
        diagonal = np.bincount(self._first, sigma[:inner], n * n)
        diagonal += np.bincount(self._second, sigma[:inner], n * n)
        bands[0] = diagonal + np.bincount(self._border, 2 * sigma[inner:], n * n)
        return cholesky_banded(bands, lower=True, check_finite=False, overwrite_ab=True)  # type: ignore[no-any-return]


def _points(x: FloatArray, y: FloatArray) -> FloatArray:
    """All pairs, (len(x) len(y), 2)."""
    return np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2)


def _waves(patterns: int, faces: int) -> FloatArray:
    """cos, sin of 1, 2, ... periods over the arc length at the middles of boundary faces."""
    angle = 2 * np.pi * (np.arange(faces) + 0.5)[:, None] / faces * (np.arange(patterns) // 2 + 1)
    return np.where(np.arange(patterns) % 2 == 0, np.cos(angle), np.sin(angle))


def _table(given: Callable[[FloatArray], FloatArray], at: FloatArray, name: str) -> FloatArray:
    values = reals(function(given, name, "points")(at), name)
    if values.ndim != 2 or len(values) != len(at) or values.shape[1] < 1:
        raise InputError(f"{name} returns shape {values.shape}: expected ({len(at)}, k)")
    return values
