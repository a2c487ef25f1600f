"""Butcher tableaux of the explicit Runge-Kutta schemes, for particles and for networks.

    k_i = f(t + c_i dt, x + dt sum_{j<i} a_ij k_j),    x(t + dt) = x + dt sum_i b_i k_i

Code depends on what a scheme can do (its order, its stages, whether it admits noise), never on its
name.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import check_choice, reals, shown, whole
from wflow._core.errors import InputError

Times = float | NDArray[np.floating]  # a number, or (paths,) where it differs between paths
Trees = dict[int, list[tuple[float, NDArray[np.float64]]]]

_MOST = 5  # order whose conditions are checked
_ROUNDING = 1e-12  # of coefficients in an order condition
_LONGEST = 120  # characters of a repr that lists the coefficients


@dataclass(frozen=True)
class Tableau:
    r"""An explicit Runge-Kutta scheme: nodes c, matrix a, weights b.

    `wflow.solve` takes one as `scheme`, and stores its coefficients in the run file. The conditions
    of its order are checked when it is made.

    Parameters
    ----------
    name : str
        What users call it.
    order : int
        Order of convergence for deterministic laws, 1 to 5.
    nodes : sequence of float, length stages
        Nodes c, from 0 to 1, the first 0.
    matrix : sequence of sequences of float
        Rows of a below the diagonal: row i has i entries, the first row none; they add up to c_i.
    weights : sequence of float, length stages
        Weights b.
    noise : {"none", "ito", "additive"}, default "none"
        "ito" for the scheme of one stage that becomes Euler-Maruyama, which takes any Itô noise,
        with strong order 1 where the noise is additive; "additive" for schemes of strong order 1.5
        under additive noise; "none" for schemes of deterministic laws.
    embedded : sequence of float, optional
        Weights of a second solution on the same stages, which estimates the error. None for schemes
        with fixed steps.
    embedded_order : int, optional
        Order of convergence of the second solution.
    shares : sequence of float, optional
        Coefficients B of the mean of the noise over the step in the stages, the first 0, for
        ``noise="additive"``.

    Raises
    ------
    InputError
        For coefficients of other shapes, for an order whose conditions they do not satisfy, and for
        Itô noise with more than one stage.

    Notes
    -----
    One step of the scheme [1]_ is

    .. math::

        k_i = f\Bigl(t + c_i\,dt,\; x + dt \sum_{j<i} a_{ij} k_j\Bigr), \qquad
        x(t + dt) = x + dt \sum_i b_i k_i .

    With additive noise sigma(t) dW [2]_ the end of the step moves by the noise of the whole step
    besides, and stage i by B_i times J, the mean over the step of sigma(t + dt) (W_s - W_t). The
    strong order is 1.5 if b B = 1 and b B^2 = 3/2, for a scheme of order 2.

    In the theory: :ref:`the discretisation <theory-discretisation>`.

    References
    ----------
    .. [1] Hairer, Nørsett and Wanner, *Solving Ordinary Differential Equations I*, Springer (1993),
       sections II.1 and II.2.
    .. [2] Rössler, *Runge-Kutta methods for the strong approximation of solutions of stochastic
       differential equations*, SIAM J. Numer. Anal. 48 (2010), section 6.3.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> ralston = wflow.Tableau("ralston", 2, (0, 2 / 3), ((), (2 / 3,)), (1 / 4, 3 / 4))
    >>> run = wflow.solve(
    ...     np.eye(3), wflow.heads.Frozen(), heads=np.eye(3)[None], t_final=1.0, dt=0.1,
    ...     scheme=ralston,
    ... )
    >>> bool(abs(run.edi_residual[:, -1]) < 1e-4)
    True
    """

    name: str
    order: int
    nodes: tuple[float, ...]
    matrix: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    noise: Literal["ito", "additive", "none"] = "none"
    embedded: tuple[float, ...] | None = None
    embedded_order: int | None = None
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"name of a Tableau is {shown(self.name)}: expected a text")
        what = f"the tableau {self.name!r}"
        nodes = self._row("nodes", None)
        if not nodes or nodes[0] != 0 or min(nodes) < 0 or max(nodes) > 1:
            raise InputError(
                f"nodes of {what} are {shown(nodes)}: expected numbers from 0 to 1, the first 0"
            )
        try:
            rows = list(self.matrix)
        except TypeError:
            rows = []
        if len(rows) != len(nodes):
            raise InputError(
                f"matrix of {what} is {shown(self.matrix)}: expected {len(nodes)} rows, one for "
                "each node"
            )
        matrix = tuple(
            _numbers(row, f"row {i} of the matrix of {what}", i) for i, row in enumerate(rows)
        )
        for row, node in zip(matrix, nodes, strict=True):
            if abs(sum(row) - node) > _ROUNDING:
                raise InputError(
                    f"a row of the matrix of {what} adds up to {sum(row):g}: expected its node "
                    f"{node:g}"
                )
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "matrix", matrix)
        self._check_order("weights", "order")
        if (self.embedded is None) != (self.embedded_order is None):
            raise InputError(f"{what} needs embedded and embedded_order together, or neither")
        if self.embedded is not None:
            self._check_order("embedded", "embedded_order")
        check_choice("noise", self.noise, ("ito", "additive", "none"))
        self._check_shares()
        if self.noise == "ito" and self.stages > 1:
            raise InputError(
                f"{what} has {self.stages} stages and noise='ito': noise is added at the left end "
                "of a step, for a scheme of one stage; give noise='none', or 'additive' "
                "with shares"
            )

    def _check_shares(self) -> None:
        """Raise InputError for stages that do not reach order 1.5 under additive noise."""
        what = f"the tableau {self.name!r}"
        if (self.shares is None) != (self.noise != "additive"):
            raise InputError(f"{what} needs noise='additive' and shares together, or neither")
        if self.shares is None:
            return
        shares = self._row("shares", len(self.nodes))
        if shares[0] != 0:
            raise InputError(f"shares of {what} are {shown(shares)}: the first is 0, as its node")
        reached = [float(np.dot(self.weights, np.power(shares, k))) for k in (1, 2)]
        if self.order < 2 or not np.allclose(reached, (1, 1.5), rtol=0, atol=_ROUNDING):
            raise InputError(
                f"{what} has order {self.order}, b B = {reached[0]:g} and b B^2 = {reached[1]:g}: "
                "strong order 1.5 needs order 2, b B = 1 and b B^2 = 1.5"
            )
        object.__setattr__(self, "shares", shares)

    def _row(self, name: str, length: int | None) -> tuple[float, ...]:
        return _numbers(getattr(self, name), f"{name} of the tableau {self.name!r}", length)

    def _check_order(self, name: str, order: str) -> None:
        """Raise InputError for weights that do not satisfy the conditions of their order."""
        weights = self._row(name, len(self.nodes))
        claimed = whole(getattr(self, order), f"{order} of {self.name!r}", most=_MOST)
        reached = order_of(self.nodes, self.matrix, weights)
        if reached < claimed:
            raise InputError(
                f"the {name} of {self.name!r} satisfy the conditions of order {reached}, not of "
                f"{order} = {claimed}: check the coefficients, or give {order}={reached}"
            )
        object.__setattr__(self, name, weights)
        object.__setattr__(self, order, claimed)

    def __repr__(self) -> str:
        parts = [repr(self.name), repr(self.order)]
        parts += [repr(part) for part in (self.nodes, self.matrix, self.weights)]
        optional = {"noise": "none", "embedded": None, "embedded_order": None, "shares": None}
        for name, default in optional.items():
            value = getattr(self, name)
            parts += [f"{name}={value!r}"] if value != default else []
        text = f"Tableau({', '.join(parts)})"
        if len(text) <= _LONGEST:
            return text
        return f"<Tableau {self.name!r}: order {self.order}, {self.stages} stages>"

    @property
    def stages(self) -> int:
        """Evaluations of f in one step; 1 where a step evaluates only at its left end."""
        return len(self.weights)

    @property
    def admits_noise(self) -> bool:
        """Whether the heads may have noise."""
        return self.noise != "none"

    @property
    def additive(self) -> bool:
        """Whether the noise must be additive, and has strong order 1.5."""
        return self.noise == "additive"

    def row(self, stage: int) -> tuple[float, tuple[float, ...], float]:
        """Return node, row of the matrix, and share of the mean noise, of a stage.

        Parameters
        ----------
        stage : int
            Number of the stage, from 0.

        Returns
        -------
        tuple
            Node c_i, entries a_ij for j < i, and B_i, 0 without noise.
        """
        return self.nodes[stage], self.matrix[stage], self.shares[stage] if self.shares else 0.0

    @property
    def error_weights(self) -> tuple[float, ...]:
        """Weights b - b_embedded: dt times their sum over the stages estimates the local error.

        Raises
        ------
        ValueError
            For a scheme without an embedded pair.
        """
        if self.embedded is None:
            raise ValueError(f"the scheme {self.name} has no embedded pair")
        return tuple(b - e for b, e in zip(self.weights, self.embedded, strict=True))

    @property
    def first_same_as_last(self) -> bool:
        """Whether the last stage is the first one of the next step."""
        return self.nodes[-1] == 1.0 and (*self.matrix[-1], 0.0) == self.weights

    def config(self) -> str | dict[str, Any]:
        """Return the name of a scheme of wflow, all coefficients of any other, for the run file.

        Returns
        -------
        str or dict
            The name, or every field by its name.
        """
        if TABLEAUX.get(self.name) == self:
            return self.name
        fields = asdict(self)
        if self.shares is None:  # as in files of earlier versions
            del fields["shares"]
        return fields


def _numbers(values: Any, name: str, length: int | None) -> tuple[float, ...]:
    """Return finite numbers as a tuple; raise InputError for any other length."""
    row = reals(values, name)
    if row.ndim != 1 or length not in (None, len(row)):
        expected = "a list of numbers" if length is None else f"{length} numbers"
        raise InputError(f"{name} is {shown(values)}: expected {expected}")
    return tuple(row.tolist())


def order_of(
    nodes: tuple[float, ...], matrix: tuple[tuple[float, ...], ...], weights: tuple[float, ...]
) -> int:
    """Return the largest order, at most 5, whose conditions the weights satisfy; 0 for none.

    Source: Hairer, Nørsett, Wanner, *Solving Ordinary Differential Equations I*, table II.2.2.
    """
    c, A = np.array(nodes), np.zeros((len(nodes), len(nodes)))
    for i, row in enumerate(matrix):
        A[i, :i] = row
    trees: Trees = {
        1: [(1, np.ones_like(c))],
        2: [(1 / 2, c)],
        3: [(1 / 3, c**2), (1 / 6, A @ c)],
        4: [(1 / 4, c**3), (1 / 8, c * (A @ c)), (1 / 12, A @ c**2), (1 / 24, A @ A @ c)],
        5: [
            (1 / 5, c**4),
            (1 / 10, c**2 * (A @ c)),
            (1 / 15, c * (A @ c**2)),
            (1 / 30, c * (A @ A @ c)),
            (1 / 20, (A @ c) ** 2),
            (1 / 20, A @ c**3),
            (1 / 40, A @ (c * (A @ c))),
            (1 / 60, A @ A @ c**2),
            (1 / 120, A @ A @ A @ c),
        ],
    }
    for order, conditions in trees.items():
        if any(abs(np.dot(weights, tree) - value) > _ROUNDING for value, tree in conditions):
            return order - 1
    return _MOST


_DOPRI5 = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)

TABLEAUX = {
    tableau.name: tableau
    for tableau in (
        Tableau("euler", 1, (0.0,), ((),), (1.0,), noise="ito"),
        # Rössler (2010), SRA1: without noise a scheme of order 2.
        Tableau(
            "sra1",
            2,
            (0.0, 3 / 4),
            ((), (3 / 4,)),
            (1 / 3, 2 / 3),
            noise="additive",
            shares=(0.0, 3 / 2),
        ),
        Tableau("heun", 2, (0.0, 1.0), ((), (1.0,)), (1 / 2, 1 / 2)),
        Tableau(
            "rk4",
            4,
            (0.0, 1 / 2, 1 / 2, 1.0),
            ((), (1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0)),
            (1 / 6, 1 / 3, 1 / 3, 1 / 6),
        ),
        # Dormand and Prince, A family of embedded Runge-Kutta formulae, J. Comput. Appl. Math. 6
        # (1980); Hairer, Nørsett, Wanner, Solving Ordinary Differential Equations I, table II.5.2.
        Tableau(
            "dopri5",
            5,
            (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0),
            (
                (),
                (1 / 5,),
                (3 / 40, 9 / 40),
                (44 / 45, -56 / 15, 32 / 9),
                (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
                (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
                _DOPRI5,
            ),
            (*_DOPRI5, 0.0),
            embedded=(
                5179 / 57600,
                0.0,
                7571 / 16695,
                393 / 640,
                -92097 / 339200,
                187 / 2100,
                1 / 40,
            ),
            embedded_order=4,
        ),
    )
}
"""The schemes by name."""


# A step with given slopes
# ------------------------


def moved(
    start: NDArray[Any],
    dt: Times,
    weights: Sequence[float],
    slopes: Sequence[NDArray[Any] | None],
) -> NDArray[Any]:
    """Return start + dt sum_i weights[i] slopes[i], where None is zero; dt a number or (paths,)."""
    if isinstance(dt, np.ndarray):
        dt = dt.astype(start.dtype).reshape(-1, *[1] * (start.ndim - 1))
    total: NDArray[Any] | None = None
    for weight, slope in zip(weights, slopes, strict=True):
        if weight and slope is not None:
            term = (dt * weight) * slope
            total = term if total is None else np.add(total, term, out=total)
    return start if total is None else start + total


def with_rows(
    slope: NDArray[Any] | None, rows: NDArray[Any], other: NDArray[Any] | None, paths: int
) -> NDArray[Any] | None:
    """Set the rows `rows` of a slope (paths, ...) to `other`, in place; None is zero."""
    if slope is None and other is not None:
        slope = np.zeros((paths, *other.shape[1:]), other.dtype)
    if slope is not None:
        slope[rows] = 0.0 if other is None else other
    return slope
