"""L-BFGS-B over parameters of runs, some of which leave the finite numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from wflow._core.errors import BlowUpError, WflowWarning

Array = NDArray[np.floating]


def least(
    cost: Callable[[Array], tuple[float, Array]],
    z: Array,
    *,
    bounds: Any = None,
    accepted: Callable[[float], object] = lambda value: None,
    **options: Any,
) -> Any:
    """Minimise a cost with its derivatives from z; return what scipy does.

    A point is refused whose run leaves the finite numbers, or whose cost is not finite. The line
    search is then told of the parabola through the last accepted point, with its slope there, whose
    minimum is at a quarter of the step: it tries that next.

    Parameters
    ----------
    accepted : receives the cost after each iteration

    Raises
    ------
    BlowUpError
        If the run at z leaves the finite numbers.
    """
    from scipy.optimize import minimize

    last: tuple[Array, float, Array] | None = None  # evaluated and not refused
    base = last  # of the last iteration

    def guarded(z: Array) -> tuple[float, Array]:
        nonlocal last, base
        try:
            with catch_warnings():  # of trial points, for which the run may be chaotic
                simplefilter("ignore", WflowWarning)
                value, slope = cost(z)
            if np.isfinite(value) and np.isfinite(slope).all():
                last = z.copy(), value, slope
                base = base or last
                return value, slope
        except BlowUpError:
            if base is None:
                raise
        if base is None:
            return value, slope
        step = z - base[0]
        fall = abs(float(base[2] @ step))
        return base[1] + fall, 3 * fall * step / float(step @ step)

    def iterated(intermediate_result: Any) -> None:
        nonlocal base
        base = last
        accepted(float(intermediate_result.fun))

    return minimize(
        guarded, z, jac=True, method="L-BFGS-B", bounds=bounds, callback=iterated, options=options
    )
