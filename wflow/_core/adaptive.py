"""Adaptive step sizes: tolerances, error norms, and the step-size controller.

The module does not depend on what is integrated, tokens with their heads or heads alone: an
integrator asks for the lengths of a step (`AdaptiveSteps.propose`), and returns its errors in units
of the tolerances (`Dopri5.sizes`, `AdaptiveSteps.judge`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wflow._core.checks import SchemeName, check_choice, made_of, positive
from wflow._core.errors import InputError
from wflow._core.reprs import ShortRepr
from wflow._core.tableaux import TABLEAUX, Tableau

Sizes = NDArray[np.float64]

# Which scheme
# ------------


@dataclass(frozen=True, repr=False)
class Dopri5(ShortRepr):
    r"""Steps of the Dormand-Prince pair 5(4), their lengths chosen by the estimated error.

    Parameters
    ----------
    rtol : float, default 1e-8
        Relative tolerance of one step, > 0.
    atol : float, default 1e-10
        Absolute tolerance of one step, > 0.

    Attributes
    ----------
    tableau : Tableau
        Coefficients of the pair.

    Raises
    ------
    InputError
        For a tolerance that is no finite number > 0.

    Notes
    -----
    With e the difference of the two solutions [1]_, a step is accepted if

    .. math::

        \max_i \frac{|e_i|}{\mathrm{atol} + \mathrm{rtol}} \le 1, \qquad
        \max_h \frac{|e_h|_F}{\mathrm{atol} + \mathrm{rtol}\,|D_h|_F} \le 1,

    over tokens i in Euclidean norm and heads h in Frobenius norm: tokens have norm one, and
    :math:`|D_h|_F` is the larger of both ends. A maximum instead of a mean, so that two tokens
    about to merge are not averaged away by many others. The integrals of the energy budget are
    integrated at the same order and do not affect the steps: a run moves the same with and without
    a budget.

    With the default tolerances the tokens of small clouds are right to about 1e-8 after some fifty
    steps, and the budget closes to about 1e-8 of the energy that was turned over: less than a
    figure shows, and a hundred times the error that fast sums may have (`tolerance`, 1e-10).

    In the theory: :ref:`adaptive steps <theory-dopri5>`.

    References
    ----------
    .. [1] Hairer, Nørsett and Wanner, *Solving Ordinary Differential Equations I*, Springer (1993),
       sections II.4 and II.5.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> run = wflow.solve(
    ...     np.eye(3), wflow.heads.Frozen(), heads=8 * np.eye(3)[None], direction="ascent",
    ...     t_final=100.0, dt=10.0, scheme=wflow.Dopri5(rtol=1e-6),
    ... )
    >>> run.sizes["time"]
    11
    """

    rtol: float = 1e-8
    atol: float = 1e-10

    tableau: ClassVar[Tableau] = TABLEAUX["dopri5"]

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            object.__setattr__(self, name, positive(getattr(self, name), f"{name} of Dopri5"))

    def config(self) -> dict[str, Any]:
        """Return name and tolerances for the run file.

        Returns
        -------
        dict
            "name", "rtol" and "atol".
        """
        return {"name": self.tableau.name, **asdict(self)}

    def check_rounding(self, dtype: str) -> None:
        """Raise InputError for a tolerance below the rounding of numbers of a type.

        Parameters
        ----------
        dtype : str
            "float64" or "float32".

        Raises
        ------
        InputError
            For an rtol below ten times the rounding of the type.
        """
        least = 10 * float(np.finfo(dtype).eps)
        if self.rtol < least:
            raise InputError(
                f"rtol of Dopri5 is {self.rtol:g}: expected at least {least:.2g}, ten times the "
                f"rounding of dtype={dtype!r}; take for example Dopri5(rtol={10 * least:.0e})"
            )

    def sizes(self, vectors: NDArray[Any] | None, *ends: NDArray[Any]) -> Sizes:
        """Return the largest vector of each path in units of what the tolerances allow.

        Parameters
        ----------
        vectors : ndarray, shape (paths, n, d) or (paths, heads, d, d), or None
            Vectors or matrices of each path. None means zero.
        *ends : ndarray, of the same shape
            What the vectors change, before and after; its norm is the scale, the largest of those
            given. Without them the scale is 1.

        Returns
        -------
        ndarray of float64, shape (paths,)
            The maximum over the vectors v of a path of ``|v| / (atol + rtol scale)``; inf for
            vectors that are not finite, and of shape (1,) for None.
        """
        if vectors is None:
            return np.zeros(1)
        sizes = np.empty(len(vectors))
        for path, one in enumerate(vectors):  # one by one: bitwise independent of the batch
            scale = np.max([_norms(end[path]) for end in ends], axis=0) if ends else 1.0
            sizes[path] = (_norms(one) / (self.atol + self.rtol * scale)).max()
        return np.where(np.isfinite(sizes), sizes, np.inf)


def _norms(vectors: NDArray[Any]) -> Sizes:
    squares = np.square(vectors, dtype=np.float64)
    return np.sqrt(squares.sum(axis=tuple(range(1, squares.ndim))))


def as_scheme(scheme: SchemeName | Dopri5 | Tableau) -> tuple[Tableau, Dopri5 | None]:
    """Return the tableau of a scheme, and its error control; None for steps of one length.

    Raises
    ------
    InputError
        For anything but the name of a scheme, a `Dopri5`, or a `Tableau` without an embedded pair.
    """
    if isinstance(scheme, Tableau):
        if scheme.embedded is not None:
            raise InputError(
                f"the tableau {scheme.name!r} has an embedded pair, and adaptive steps are those "
                "of wflow.Dopri5(rtol=, atol=): leave out embedded for steps of dt"
            )
        return scheme, None
    if not isinstance(scheme, Dopri5):
        check_choice("scheme", scheme, TABLEAUX)
        if TABLEAUX[scheme].embedded is None:
            return TABLEAUX[scheme], None
        scheme = Dopri5()
    return scheme.tableau, scheme


def scheme_from_config(stored: Any) -> Any:
    """Make the scheme that a configuration names: a text, or a `Dopri5` or `Tableau`.

    Raises
    ------
    InputError
        For settings that make no scheme.
    """
    if not isinstance(stored, Mapping):
        return stored
    if "nodes" in stored:
        return made_of(Tableau, stored, "scheme")
    settings = dict(stored)
    check_choice("scheme.name", settings.pop("name", None), [Dopri5.tableau.name])
    return made_of(Dopri5, settings, "scheme")


# Lengths of steps
# ----------------

# The smaller of two lengths: that of the PI controller of Hairer, Nørsett and Wanner's DOPRI5,
# h SAFETY err^-(1/5 - 3 PI/4) old_err^PI, and Gustafsson's predictive one (their volume II, IV.8),
# h SAFETY (h/old_h) (old_err/err^2)^(1/5). Towards the end of a metastable state steps shrink
# geometrically, and without the prediction every second one of them would be rejected.
_SAFETY, _PI, _SLOWEST, _FASTEST = 0.9, 0.04, 0.2, 10.0
_LEAST_ERROR = 1e-4  # that the controller remembers
_STRETCH = 1.01  # of a step that then ends where it should
_ROUNDING = 16 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Attempt:
    """A step that k of the paths try: their numbers, where it starts, and its length, (k,) each.

    Attributes
    ----------
    rows, t, dt : numbers of the paths in the batch, start and length
    end : time that no step crosses
    clipped : whether the step was shortened or stretched to end there
    """

    rows: NDArray[np.intp]
    t: NDArray[np.float64]
    dt: NDArray[np.float64]
    end: float
    clipped: NDArray[np.bool_]


class AdaptiveSteps:
    """Times, step lengths and controllers of several paths.

    Every path has its own, so that its steps do not depend on the paths that share its batch. Time
    is in double precision whatever the tokens are.

    Parameters
    ----------
    control : the tolerances
    paths : number of paths

    Attributes
    ----------
    time : (paths,), where each path is
    evaluations : (paths,), evaluations of the velocity so far, those of rejected steps included
    stuck : paths for which no step was short enough in the last attempt
    """

    def __init__(self, control: Dopri5, paths: int) -> None:
        self.control = control
        self.time = np.zeros(paths)
        self.evaluations = np.zeros(paths, np.int64)
        self._length = np.zeros(paths)  # proposed; 0 before the first step
        self._error = np.full(paths, _LEAST_ERROR)  # of the last accepted step
        self._taken = np.zeros(paths)  # its length
        self._rejected = np.zeros(paths, bool)  # whether the last attempt was
        self.stuck: list[int] = []

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything needed to continue with the same steps."""
        return {
            "steps_time": self.time,
            "steps_evaluations": self.evaluations,
            "steps_length": self._length,
            "steps_error": self._error,
            "steps_taken": self._taken,
            "steps_rejected": self._rejected,
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a saved state."""
        self.time = state["steps_time"].copy()
        self.evaluations = state["steps_evaluations"].copy()
        self._length = state["steps_length"].copy()
        self._error = state["steps_error"].copy()
        self._taken = state["steps_taken"].copy()
        self._rejected = state["steps_rejected"].copy()

    @property
    def begun(self) -> bool:
        """Whether the lengths of the first steps are chosen."""
        return bool(self._length.all())

    def choose_first(
        self, end: float, still: Sizes, moving: Sizes, bend: Callable[[Sizes], Sizes]
    ) -> None:
        """Choose the first steps: Hairer, Nørsett and Wanner, II.4, with one evaluation.

        Parameters
        ----------
        end : time that no step crosses
        still, moving : (paths,), sizes of what moves, and of its slope (`Dopri5.sizes`)
        bend : lengths (paths,) -> sizes (paths,) of the change of the slope in an Euler step
        """
        sizes = zip(still.tolist(), moving.tolist(), strict=True)
        guess = [0.01 * size / slope if slope >= 1e-5 else 1e-6 for size, slope in sizes]
        h = np.minimum(guess, end - self.time)
        with np.errstate(all="ignore"):
            bends = bend(h) / h
        self.evaluations += 1
        for path, largest in enumerate(np.maximum(moving, bends).tolist()):
            length = max(1e-6, 1e-3 * h[path])
            if largest > 1e-15:
                length = (0.01 / largest) ** (1 / self.control.tableau.order)
            finite = math.isfinite(bends[path])
            # A path that has blown up is at the end, where no step is left.
            self._length[path] = (min(100 * h[path], length) if finite else h[path]) or 1.0

    def propose(self, end: float) -> Attempt:
        """Return the next step of every path that is before `end`, which no step crosses."""
        rows = np.flatnonzero(self.time < end)
        asked, rest = self._length[rows], end - self.time[rows]
        clipped = _STRETCH * asked >= rest
        return Attempt(rows, self.time[rows], np.where(clipped, rest, asked), end, clipped)

    def judge(self, tried: Attempt, errors: Sizes) -> NDArray[np.bool_]:
        """Accept a step of the paths whose errors (k,) are at most 1, and choose the next lengths.

        Returns
        -------
        (k,), whether the step of each path is accepted; `stuck` then holds the paths whose steps
        fall below the rounding of the time
        """
        rows, good = tried.rows, errors <= 1
        self.evaluations[rows] += self.control.tableau.stages - 1
        for place, row in enumerate(rows.tolist()):
            self._control(
                row, float(errors[place]), float(tried.dt[place]), bool(tried.clipped[place])
            )
        after = np.where(tried.clipped, tried.end, tried.t + tried.dt)
        self.time[rows[good]] = after[good]
        shorter = rows[~good]
        least = _ROUNDING * np.maximum(self.time[shorter], 1e-100)
        self.stuck = shorter[self._length[shorter] <= least].tolist()
        return good

    def _control(self, row: int, error: float, taken: float, clipped: bool) -> None:
        """Return the length of the next step of a path after one of this error."""
        factor = 1 / _SLOWEST if error == math.inf else error ** (0.2 - 0.75 * _PI) / _SAFETY
        if error > 1:
            self._length[row] = taken / min(1 / _SLOWEST, factor)
            self._rejected[row] = True
            return
        old_error, old_length = float(self._error[row]), float(self._taken[row])
        factor /= old_error**_PI
        if not clipped and old_length:
            order = self.control.tableau.order
            predicted = old_length / taken * (error**2 / old_error) ** (1 / order) / _SAFETY
            factor = max(factor, predicted)
        length = taken / min(1 / _SLOWEST, max(1 / _FASTEST, factor))
        if self._rejected[row]:
            length = min(length, taken)
        if clipped:  # says nothing against the longer step that was proposed
            length = max(length, float(self._length[row]))
        self._length[row] = length
        self._error[row], self._taken[row] = max(error, _LEAST_ERROR), taken
        self._rejected[row] = False


def legs(start: float, end: float, breaks: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Split [start, end] at the times at which a law breaks: start and end of each part."""
    slack = 1e-9 * max(1.0, end)  # the tolerance of `Schedule` for its times
    inner = (breaks > start + slack) & (breaks < end - slack)
    return list(pairwise([start, *breaks[inner].tolist(), end]))
