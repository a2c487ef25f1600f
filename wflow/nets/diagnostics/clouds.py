"""Wasserstein distances between clouds of hidden states, for the growth of perturbations.

Hidden states live in R^D and not on the sphere; their clouds go through the exact solvers of
`wflow.transport` with the costs of that space, or through `wflow.transport` itself by direction.
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wflow._core.checks import check_choice
from wflow._core.errors import InputError
from wflow.nets.blocks import wide
from wflow.nets.checks import tensor
from wflow.nets.continuous import Trajectory
from wflow.sphere.geometry import as_tokens
from wflow.transport import distances
from wflow.transport.distances import EXACT_PAIRS, Pair, power, root, simplex
from wflow.transport.linear_assignment import assign

Ground = Literal["euclidean", "p-norm", "geodesic", "chordal"]
GROUNDS = ("euclidean", "p-norm", "geodesic", "chordal")


class Transport(NamedTuple):
    """Growth of a perturbation of a cloud in a network.

    Parameters
    ----------
    inputs : float
        W_p between the two clouds of inputs.
    outputs : float
        W_p between the two clouds of outputs.
    ratio : float
        ``outputs / inputs``; NaN where the inputs do not differ.

    Examples
    --------
    >>> from wflow import nets
    >>> nets.diagnostics.Transport(2.0, 1.0, 0.5).ratio
    0.5
    """

    inputs: float
    outputs: float
    ratio: float


def hidden_transport(
    before: Tensor, after: Tensor, p: float = 2.0, *, ground: Ground = "euclidean"
) -> float:
    r"""Return the Wasserstein distance of two clouds of hidden states, as in theorem 3 of [1]_.

    Parameters
    ----------
    before, after : Tensor, shape (samples, ...)
        Each sample one point of all its entries: tokens as a cloud are (tokens, width). The clouds
        may have different numbers of samples.
    p : float, default 2.0
        Real, 1 to 20.
    ground : {"euclidean", "p-norm", "geodesic", "chordal"}
        What c is.

        "euclidean": the 2-norm of x - y, in which the constant of theorem 3 is that of theorem 2.

        "p-norm": its p-norm, as in theorem 3, whose constant then has the factor C(p) of the norms.

        "geodesic", "chordal": angle and chord of the directions of x and y, those of
        `wflow.transport`.

    Returns
    -------
    float
        The distance; exact, by linear assignment for clouds of one size, else by the network
        simplex.

    Raises
    ------
    InputError
        For clouds that do not fit each other, are empty, not finite, or of more than
        `wflow.transport.EXACT_PAIRS` pairs; p out of range.

    Notes
    -----
    .. math:: W_p = \Big(\min_\pi \sum_{ij} \pi_{ij} \, c(x_i, y_j)^p\Big)^{1/p}.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, Theorem 3.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> x = torch.rand(20, 3, dtype=torch.float64)

    >>> nets.diagnostics.hidden_transport(x, x + torch.tensor([3.0, 4.0, 0.0]))
    5.0
    """
    check_choice("ground", ground, GROUNDS)
    p = power(p)
    x, y = _flat(before, "before"), _flat(after, "after")
    if x.shape[1] != y.shape[1]:
        raise InputError(
            f"the samples have {x.shape[1]} and {y.shape[1]} entries: expected clouds in one space"
        )
    if len(x) * len(y) > EXACT_PAIRS:
        raise InputError(
            f"{len(x)} x {len(y)} pairs are too many for exact transport (at most "
            f"{EXACT_PAIRS}): take a part of the samples"
        )
    if ground in ("geodesic", "chordal"):
        return distances.wasserstein(as_tokens(x, "before"), as_tokens(y, "after"), p, cost=ground)
    from scipy.spatial.distance import cdist

    order = p if ground == "p-norm" else 2.0
    costs = cdist(x, y, "euclidean" if order == 2 else "minkowski", **_order(order)) ** p
    if len(x) == len(y):
        return root(float(costs[np.arange(len(x)), assign(costs)].mean()), p)
    # Scaled, so that the tolerance of the simplex is relative to the largest cost.
    largest = float(costs.max()) or 1.0
    return root(largest * simplex(Pair(x, y, None, None), costs / largest)[0], p)


def transport_ratio(
    inputs: Tensor,
    perturbed_inputs: Tensor,
    outputs: Tensor,
    perturbed_outputs: Tensor,
    p: float = 2.0,
    *,
    ground: Ground = "euclidean",
) -> Transport:
    """Return W_p of the outputs over W_p of the inputs, when a cloud of inputs is perturbed.

    Theorem 3 of [1]_ bounds the ratio by C(p) L / (1 - T L^2 / lambda) (`stability_bound`, with C =
    1 for Euclidean costs) for the optimal velocity at fixed targets.

    Parameters
    ----------
    inputs, perturbed_inputs : Tensor, shape (samples, ...)
        The two clouds of inputs.
    outputs, perturbed_outputs : Tensor, shape (samples, ...)
        The two clouds of outputs.
    p : float, default 2.0
        As for `hidden_transport`.
    ground : {"euclidean", "p-norm", "geodesic", "chordal"}
        As for `hidden_transport`.

    Returns
    -------
    Transport
        Both distances and their ratio.

    Raises
    ------
    InputError
        As `hidden_transport`.

    References
    ----------
    .. [1] Kan, Li, Zhang, Sahai, Osher, Katsoulakis, "Optimal Control for Transformer
       Architectures", arXiv:2505.13499, Theorem 3.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> x = torch.rand(20, 3, dtype=torch.float64)
    >>> nets.diagnostics.transport_ratio(x, x + 1, 2 * x, 2 * x + 2).ratio
    2.0
    """
    into = hidden_transport(inputs, perturbed_inputs, p, ground=ground)
    out = hidden_transport(outputs, perturbed_outputs, p, ground=ground)
    return Transport(into, out, out / into if into > 0 else float("nan"))


def transport_along(
    trajectory: Trajectory, perturbed: Trajectory, p: float = 2.0, *, ground: Ground = "euclidean"
) -> Tensor:
    """Return W_p between the hidden clouds of two trajectories at each of their times.

    Parameters
    ----------
    trajectory, perturbed : Trajectory
        Trajectories with as many steps.
    p : float, default 2.0
        As for `hidden_transport`.
    ground : {"euclidean", "p-norm", "geodesic", "chordal"}
        As for `hidden_transport`.

    Returns
    -------
    Tensor, shape (M + 1,)
        The distances, in double precision.

    Raises
    ------
    InputError
        For trajectories of different lengths, and as `hidden_transport`.

    Examples
    --------
    >>> import torch
    >>> from wflow import nets
    >>> body = nets.ContinuousTransformer(torch.nn.Identity(), steps=2)
    >>> one, two = (body.trajectory(torch.full((2, 3, 5), value)) for value in (1.0, 2.0))
    >>> distances = nets.diagnostics.transport_along(one, two)
    >>> (distances[1:] / distances[:-1]).round(decimals=6).tolist()
    [1.5, 1.5]
    """
    for name, given in (("trajectory", trajectory), ("perturbed", perturbed)):
        if not isinstance(given, Trajectory):
            raise InputError(f"{name} is {type(given).__name__}: expected a Trajectory")
        tensor(given.states, f"{name}.states", "real")
    if len(trajectory.states) != len(perturbed.states):
        raise InputError(
            f"the trajectories have {len(trajectory.states) - 1} and {len(perturbed.states) - 1} "
            "steps: expected as many"
        )
    pairs = zip(trajectory.states, perturbed.states, strict=True)
    distances = [hidden_transport(one, two, p, ground=ground) for one, two in pairs]
    return torch.tensor(distances, dtype=torch.float64)


def _order(order: float) -> dict[str, float]:
    return {} if order == 2 else {"p": order}


def _flat(cloud: Tensor, name: str) -> NDArray[np.float64]:
    """Return a cloud as (samples, entries) in NumPy."""
    tensor(cloud, name, "number")
    if cloud.ndim < 2 or not cloud.numel():
        raise InputError(f"{name} is {tuple(cloud.shape)}: expected a tensor (samples, ...)")
    points = wide(cloud).flatten(1).cpu().numpy().astype(np.float64)
    if not np.isfinite(points).all():
        raise InputError(f"{name} holds values that are not finite; remove those samples")
    return points
