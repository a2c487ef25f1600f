"""Arrays of interaction matrices: isotropic ones, and checks."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import reals, whole
from wflow._core.errors import InputError
from wflow._core.memory import check_memory

Matrices = NDArray[np.floating]  # (..., heads, d, d)


def isotropic(beta: ArrayLike, d: int) -> NDArray[np.float64]:
    """Return isotropic heads D_h = beta_h I.

    Parameters
    ----------
    beta : float or array_like, shape (heads,)
        Inverse temperature of every head; a number for one head. Tokens attract each other in
        ascent where it is positive.
    d : int
        Dimension of the tokens, at least 2.

    Returns
    -------
    ndarray, shape (heads, d, d)
        The heads, as `wflow.solve` takes them.

    Raises
    ------
    InputError
        For a `beta` that is neither a finite number nor a list of them, and for d < 2.

    Notes
    -----
    The attention of [1]_ has the values V = I. Here D is the matrix of the values as well, so that
    velocities are beta times as large, and times beta times as short: what happens there at time
    t happens here at t / beta.

    In the theory: :ref:`attention with one isotropic head <theory-orthogonal-tokens>`.

    References
    ----------
    .. [1] Geshkovski, Letrouit, Polyanskiy and Rigollet, *A mathematical perspective on
       transformers* (2025).

    Examples
    --------
    At time 20 of [1]_, in steps of 0.1, 40 tokens are in one cluster:

    >>> import wflow
    >>> beta = 2.0
    >>> x0 = wflow.tokens.uniform(n=40, d=3, seed=0)
    >>> run = wflow.solve(x0, wflow.heads.Frozen(), heads=wflow.heads.isotropic(beta, d=3),
    ...                   direction="ascent", t_final=20 / beta, dt=0.1 / beta)
    >>> wflow.clusters.count(run.tokens.values[0, -1], scale=0.1)
    1
    """
    values = reals(beta, "beta")
    if values.ndim > 1 or values.size == 0:
        raise InputError(
            f"beta has shape {values.shape}, expected a number, or one for each head (heads,)"
        )
    d = whole(d, "d", least=2)
    check_memory(8 * values.size * d * d, f"heads of {d} dimensions", "take fewer dimensions")
    return values.reshape(-1, 1, 1) * np.eye(d)


def is_symmetric(D: Matrices) -> bool:
    """Return whether D = D^T to rounding, (..., d, d)."""
    equal = D.swapaxes(-1, -2) == D
    if np.count_nonzero(equal) == equal.size:  # mostly; a fifth of the time
        return True
    tolerance = 16 * np.finfo(D.dtype).eps * max(1.0, float(np.abs(D).max(initial=0.0)))
    return bool(np.all(np.abs(D - np.swapaxes(D, -1, -2)) <= tolerance))


def as_matrices(D: ArrayLike, name: str, *, symmetric: bool = False) -> NDArray[np.float64]:
    """Check an array of square matrices (..., d, d), and that they are symmetric if asked to.

    Raises
    ------
    InputError
        For entries that are not finite, matrices that are not square, or asymmetry.
    """
    matrices = reals(D, name)
    if matrices.ndim < 2 or matrices.shape[-1] != matrices.shape[-2] or matrices.size == 0:
        raise InputError(f"{name} has shape {matrices.shape}, expected square matrices (..., d, d)")
    if symmetric and not is_symmetric(matrices):
        gap = np.abs(matrices - np.swapaxes(matrices, -1, -2)).max()
        raise InputError(
            f"{name} is not symmetric (largest |D - D^T| is {gap:.3g}): the energy and its "
            "gradient flow need D = D^T; pass (D + D^T)/2, or give SaveAt(budget=False) to "
            "simulate without an energy"
        )
    return matrices


def check_fits(D: Matrices, heads: int, d: int, name: str) -> None:
    """Raise InputError unless D is (d, d) or (heads, d, d)."""
    if D.shape not in ((d, d), (heads, d, d)):
        raise InputError(
            f"{name} has shape {D.shape}, expected {(d, d)} or {(heads, d, d)} for {heads} heads "
            f"and tokens of dimension {d}"
        )


def check_scores(D: Matrices, kind: Any, name: str) -> None:
    """Raise InputError for heads (..., d, d) whose scores a precision cannot tell apart.

    A score <x, D y> is rounded by eps |D|. Where that reaches one, every weight of a softmax is
    off by a factor e or more, and sums over the heads' kernels come out as zero or not at all.
    """
    limit = 1 / float(np.finfo(kind).eps)
    largest = float(np.abs(D).max(initial=0.0))
    if largest * D.shape[-1] <= limit:  # an upper bound of the norms, mostly
        return
    norm = largest * float(np.linalg.norm(D / largest, 2, axis=(-2, -1)).max())
    if norm > limit:
        raise InputError(
            f"{name} has norm {norm:.3g}, and in {np.dtype(kind).name} scores beyond {limit:.2g} "
            f"are rounded by one or more, so that no softmax of them means anything: expected "
            f"norms up to {limit:.2g}; scale the heads down"
        )
