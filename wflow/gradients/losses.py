"""Losses of `wflow.gradient`: functions of the tokens at the snapshots, with their derivatives.

Each is a mean over the paths. `Tokens` may compare all snapshots, the others see the last one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import check_choice, reals
from wflow._core.errors import InputError
from wflow.heads.matrices import is_symmetric
from wflow.kernels.evaluate import head_sums
from wflow.sphere.geodesics import angles, logarithm
from wflow.sphere.geometry import as_tokens
from wflow.transport.distances import COSTS, plan

__all__ = ["W2", "Energy", "MeanCosine", "Tokens"]

Array = NDArray[np.floating]


def __dir__() -> list[str]:
    return __all__


def _at_end(tokens: Array, value: float, derivatives: Array) -> tuple[float, Array]:
    """Return a value and the derivatives by the last snapshot, zero before."""
    whole = np.zeros_like(tokens)
    whole[:, -1] = derivatives
    return float(value), whole


@dataclass(frozen=True, eq=False)
class Tokens:
    r"""Squared distance to given tokens, each to its own: mean over tokens, sum over snapshots.

    Parameters
    ----------
    target : array_like, shape (n, d), (snapshots, n, d) or (paths, snapshots, n, d)
        Where the tokens should be: at the last snapshot, or at all of them.

    Raises
    ------
    InputError
        For anything but finite real numbers of such a shape; by `wflow.gradient`, for other
        numbers of tokens or snapshots than those of the run.

    Notes
    -----
    With P paths, the loss is

    .. math:: \frac{1}{P n} \sum_{p, s, i} |x_i^{p,s} - y_i^{p,s}|^2 .

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x = wflow.tokens.uniform(5, 3, seed=0)
    >>> value, derivatives = wflow.losses.Tokens(x)(x[None, None])
    >>> value, derivatives.shape
    (0.0, (1, 1, 5, 3))
    """

    target: ArrayLike

    def __post_init__(self) -> None:
        target = reals(self.target, "target")
        if target.ndim not in (2, 3, 4):
            raise InputError(
                f"target has shape {target.shape}: expected (n, d), (snapshots, n, d) or (paths, "
                "snapshots, n, d)"
            )
        object.__setattr__(self, "target", target)

    def __call__(self, tokens: Array) -> tuple[float, Array]:
        target: Any = self.target
        seen = tokens[:, -1:] if target.ndim == 2 else tokens
        if target.shape != seen.shape[-target.ndim :]:
            raise InputError(
                f"target has shape {target.shape}, and the tokens at the snapshots "
                f"{tokens.shape}: expected {seen.shape[-target.ndim :]}"
            )
        off, each = seen - target, 1 / (len(tokens) * tokens.shape[2])
        whole = np.zeros_like(tokens)
        whole[:, -seen.shape[1] :] = 2 * each * off
        return float(each * np.sum(off * off)), whole


@dataclass(frozen=True, eq=False)
class MeanCosine:
    r"""Mean cosine of two tokens: 1 for a single cluster.

    Notes
    -----
    At the last snapshot, averaged over the paths,

    .. math:: \frac{1}{n^2} \sum_{i,j} \langle x_i, x_j \rangle .

    Examples
    --------
    >>> import numpy as np, wflow
    >>> wflow.losses.MeanCosine()(np.ones((1, 1, 4, 1)))[0]
    1.0
    """

    def __call__(self, tokens: Array) -> tuple[float, Array]:
        paths, n = len(tokens), tokens.shape[2]
        mean = tokens[:, -1].mean(axis=1, keepdims=True)
        repeated = np.broadcast_to(2 / (paths * n) * mean, tokens[:, -1].shape)
        return _at_end(tokens, np.sum(mean * mean) / paths, repeated)


@dataclass(frozen=True, eq=False)
class W2:
    r"""Squared Wasserstein distance to a cloud.

    Parameters
    ----------
    target : array_like, shape (m, d)
        Tokens of the cloud, of any number.
    cost : {"geodesic", "chordal"}, default "geodesic"
        Distance of two tokens, as in `wflow.transport.plan`.

    Raises
    ------
    InputError
        For anything but tokens and one of these costs; by `wflow.gradient`, for a cloud of another
        dimension.

    Notes
    -----
    At the last snapshot, averaged over the paths, ``W_2^2`` with an optimal plan pi has the
    derivatives

    .. math:: \partial_{x_i} W_2^2 = \sum_j \pi_{ij}\, \partial_{x_i} c(x_i, y_j)^2 ,

    where the plan is unique. A token and an antipode to which it is carried have no direction, and
    add nothing to the derivatives.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x = wflow.tokens.uniform(5, 3, seed=0)
    >>> wflow.losses.W2(x)(x[None, None])[0]
    0.0
    """

    target: ArrayLike
    cost: str = "geodesic"

    def __post_init__(self) -> None:
        target = as_tokens(self.target, "target")
        if target.ndim != 2:
            raise InputError(f"target has shape {target.shape}: expected (m, d)")
        check_choice("cost", self.cost, COSTS)
        object.__setattr__(self, "target", target)

    def __call__(self, tokens: Array) -> tuple[float, Array]:
        target: Any = self.target
        if target.shape[1] != tokens.shape[-1]:
            raise InputError(
                f"target has dimension {target.shape[1]}, and the tokens {tokens.shape[-1]}"
            )
        value, derivatives = 0.0, np.empty_like(tokens[:, -1])
        for x, out in zip(tokens[:, -1], derivatives, strict=True):
            mass = plan(x, target, cost=self.cost)
            rows, columns = np.nonzero(mass)
            weight, at, to = mass[rows, columns], x[rows], target[columns]
            if self.cost == "geodesic":
                away, squares = logarithm(at, to), angles(at, to) ** 2
            else:
                away, squares = to - at, np.einsum("ak,ak->a", to - at, to - at)
            value += float(weight @ squares) / len(tokens)
            out[:] = 0.0
            np.add.at(out, rows, (-2 / len(tokens)) * weight[:, None] * away)
        return _at_end(tokens, value, derivatives)


@dataclass(frozen=True, eq=False)
class Energy:
    r"""Interaction energy E of tokens and heads, `wflow.energy`, of tied heads.

    Raises
    ------
    InputError
        By `wflow.gradient`, for (Q, K, V) heads, a causal mask and heads that are not symmetric,
        which have no energy, and where it leaves the range of floats.

    Notes
    -----
    At the last snapshot, averaged over the paths; the heads are those of that time, so that the
    derivatives by initial heads and the law have a part that does not go through the tokens.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> found = wflow.gradient(
    ...     np.eye(3), wflow.heads.Frozen(), heads=np.eye(3)[None], t_final=0.1, dt=0.1,
    ...     loss=wflow.losses.Energy(),
    ... )
    >>> found.initial_heads.shape
    (1, 1, 3, 3)
    """

    def __call__(self, tokens: Array) -> tuple[float, Array]:
        raise InputError("Energy depends on the heads, too: it is a loss of wflow.gradient alone")

    def of_run(
        self, tokens: Array, heads: Array, values: Array | None
    ) -> tuple[float, Array, Array]:
        """Return value and derivatives by tokens and heads at the snapshots.

        Parameters
        ----------
        tokens : ndarray, shape (paths, snapshots, n, d)
            Tokens.
        heads : ndarray, shape (paths, snapshots, heads, d, d)
            Heads.
        values : ndarray or None
            Value matrices; None for tied heads.

        Returns
        -------
        tuple
            Value, and derivatives of the shapes of tokens and heads.

        Raises
        ------
        InputError
            For heads that have no energy, or one that leaves the range of floats.
        """
        if values is not None:
            raise InputError("general (Q, K, V) heads have no energy: take another loss")
        x, D = np.ascontiguousarray(tokens[:, -1]), np.ascontiguousarray(heads[:, -1])
        if not is_symmetric(D):
            raise InputError("heads that are not symmetric have no energy: take another loss")
        paths, n, count = len(x), x.shape[1], D.shape[1]
        each = 1 / (2 * count * n * paths)
        sums = head_sums(x, D)  # <x_i, D y> = <D x_i, y>: both sums over pairs are one
        with np.errstate(over="ignore", invalid="ignore"):
            value = float(each * np.sum(np.exp(sums.shift) * sums.m))
            S = np.exp(sums.shift)[..., None] * sums.S
            of_x = 2 * each * np.einsum("phkl,phil->pik", D, S)
        if not (math.isfinite(value) and np.isfinite(of_x).all()):
            raise InputError(
                "the energy at the end, or its derivatives, leave the range of floats: take "
                "weaker heads, or another loss"
            )
        of_D = np.zeros_like(heads)
        of_D[:, -1] = each * np.einsum("pik,phil->phkl", x, S)
        return (*_at_end(tokens, value, of_x), of_D)
