"""What every head law is: a drift, a size of noise, and what one time step adds to the heads."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._checks import number
from wflow._fingerprint import fingerprint
from wflow._matrices import Matrices, fitting
from wflow.errors import InputError


@dataclass(frozen=True)
class Step:
    """What one time step adds to the heads: drift dt + noise.

    drift : (paths, heads, d, d) per unit time, or None for zero
    noise : (paths, heads, d, d) sigma dW_h of the whole step, or None
    sigma2 : (paths, heads) variance per unit time that belongs to the noise, or None
    """

    drift: Matrices | None
    noise: Matrices | None
    sigma2: NDArray[np.floating] | None


class HeadLaw:
    """Ito SDE dD_h = f(D, t) dt + sigma(D, t) dW_h for the heads.

    With `symmetric` the noise is dW_sym = sqrt(dt) (Z + Z^T)/2, Z iid standard normal: variance dt
    on the diagonal and dt/2 off it. Otherwise dW = sqrt(dt) Z.

    Parameters
    ----------
    drift : callable (D, t) -> array that broadcasts to D, with D of shape (paths, heads, d, d);
        None for zero
    diffusion : sigma, a number, or callable (D, t) -> array that broadcasts to (paths, heads);
        None for zero
    symmetric : whether the law keeps symmetric heads symmetric; a law that does not has no energy

    Source: docs/mathematics.md section 2; [MHT] section 6 for the symmetric noise.
    """

    def __init__(
        self,
        drift: Callable[[Matrices, float], ArrayLike] | None = None,
        diffusion: Callable[[Matrices, float], ArrayLike] | float | None = None,
        *,
        symmetric: bool = True,
    ) -> None:
        if drift is not None and not callable(drift):
            raise InputError(f"drift is a {type(drift).__name__}: expected a function (D, t)")
        if diffusion is not None and not callable(diffusion):
            diffusion = number(diffusion, "diffusion", least=0.0)
        self._drift = drift
        self._diffusion = diffusion
        self.symmetric = symmetric

    @property
    def deterministic(self) -> bool:
        """Whether the law has no noise, so that schemes of higher order apply."""
        if type(self).diffusion is not HeadLaw.diffusion:
            return False
        return self._diffusion is None or (not callable(self._diffusion) and self._diffusion == 0)

    def drift(self, D: Matrices, t: float) -> Matrices | None:
        """f(D, t), of the shape of D (paths, heads, d, d); None where it is zero."""
        if self._drift is None:
            return None
        own = D.view()
        own.flags.writeable = False
        return fitting(self._drift(own, t), D.shape, D.dtype, f"drift(D, {t:g})")

    def diffusion(self, D: Matrices, t: float) -> NDArray[np.floating] | None:
        """sigma(D, t) of shape (paths, heads); None where it is zero."""
        if self.deterministic:
            return None
        sigma = self._diffusion(D, t) if callable(self._diffusion) else self._diffusion
        sigma = fitting(sigma, D.shape[:2], np.float64, f"diffusion(D, {t:g})")
        if np.any(sigma < 0):
            raise InputError(f"diffusion(D, {t:g}) returned {sigma.min():g}: sigma is >= 0")
        return sigma

    def step(self, D: Matrices, t: float, dt: float, normals: Matrices | None) -> Step:
        """Euler-Maruyama step; `normals` holds standard normal numbers of the shape of D."""
        sigma = self.diffusion(D, t)
        if sigma is None or normals is None:
            return Step(self.drift(D, t), None, None)
        noise = (sigma * math.sqrt(dt))[..., None, None] * self._increment(normals)
        return Step(self.drift(D, t), noise.astype(D.dtype, copy=False), sigma**2)

    def drift_within(self, t: float, dt: float) -> Callable[[Matrices, float], Matrices | None]:
        """The drift as the stages of one step from t to t + dt see it."""
        return self.drift

    def jump(self, t: float, dt: float) -> Matrices | None:
        """Heads (heads, d, d) right after t + dt if they jump within the step, else None."""
        return None

    def initial(self) -> tuple[Matrices, Matrices | None] | None:
        """Heads (heads, d, d), and value matrices, if the law prescribes where they start."""
        return None

    def values(self, t: float) -> Matrices | None:
        """Value matrices (heads, d, d) at time t if the law prescribes them."""
        return None

    def values_within(self, t: float) -> Callable[[float], Matrices | None]:
        """The value matrices as the stages of one step from t see them."""
        return self.values

    def check(self, heads: int, d: int) -> None:
        """Raise InputError if the law does not fit this many heads or this dimension."""

    def config(self) -> dict[str, Any]:
        """Name and parameters for the run file; functions are told apart by a digest."""
        return {
            "name": type(self).__name__,
            "symmetric": self.symmetric,
            "fingerprint": fingerprint(self),
        }

    def _increment(self, normals: Matrices) -> Matrices:
        if not self.symmetric:
            return normals
        return (normals + np.swapaxes(normals, -1, -2)) / 2
