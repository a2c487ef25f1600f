"""The energy budget: running integrals and residuals (docs/theory/energy.md).

E(t) - E(0) = int weight_power + int ito_power - int dissipation + martingale + residual

and, where the tokens diffuse, + int diffusion_power + martingale_tokens. Under noisy heads the
work of the heads is also formed as a Stratonovich integral, the mean of the Itô integrals forward
and backward in time, for a second residual.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wflow.runs.schema import BUDGET_RATES, DIFFUSION_RATES

Terms = dict[str, NDArray[np.float64]]  # name -> (paths,)

# Running integral -> the rate that it integrates.
INTEGRALS = {
    "work_weights": "weight_power",
    "work_ito": "ito_power",
    "dissipated": "dissipation",
    "dissipated_upper_gradient": "upper_gradient_sq",
}
# What runs with diffusion of the tokens carry besides.
DIFFUSION_INTEGRALS = {"work_diffusion": "diffusion_power"}


class Budget:
    """Running sums of the energy balance of several paths.

    Parameters
    ----------
    paths : how many
    sign : -1.0 for descent, where the energy falls by int G^2; +1.0 for ascent, where it rises
    diffusion : whether the tokens diffuse
    noisy : whether the Stratonovich integral of the heads is formed
    """

    def __init__(
        self, paths: int, sign: float, diffusion: bool = False, noisy: bool = False
    ) -> None:
        self.sign = sign
        self.start = np.full(paths, np.nan)  # E(0)
        self.integrals = INTEGRALS | (DIFFUSION_INTEGRALS if diffusion else {})
        self.martingales = ("martingale", "martingale_tokens") if diffusion else ("martingale",)
        self.rates = BUDGET_RATES + (DIFFUSION_RATES if diffusion else ())
        names = (*self.integrals, *self.martingales, *(("work_stratonovich",) if noisy else ()))
        self._sums = np.zeros((len(names), paths))
        self.running: Terms = dict(zip(names, self._sums, strict=True))  # views of the sums

    def advance(
        self,
        stages: list[Terms],
        weights: tuple[float, ...],
        dt: float | NDArray[np.float64],
        rows: Any = slice(None),
    ) -> None:
        """Add one step: the stage rates of the scheme, and the martingale increment of its start.

        The increment of the heads' martingale has the terms of first and second order in the noise,
        dE[N] + d^2E[N, N]/2 - dt ito_power, each of mean zero, so that the balance closes like dt;
        that of the tokens has all orders.
        The integrals are further components of the scheme that moves tokens and heads, so that
        the balance closes at its order. `rows` are the paths that made the step, each with its
        own length where `dt` is an array.
        """
        # All rates together: operations on arrays of a few numbers cost the same for each array.
        rates = list(self.integrals.values())
        with np.errstate(over="ignore", invalid="ignore"):  # the run warns of terms out of range
            for terms, weight in zip(stages, weights, strict=True):
                if weight:
                    values = np.array([terms[r] for r in rates])
                    self._sums[: len(rates), rows] += dt * weight * values
            start = stages[0]
            drawn = np.array([start[name] for name in self.martingales])
            if "work_stratonovich" in self.running:
                forward = sum(
                    dt * w * s["weight_power"] for s, w in zip(stages, weights, strict=True)
                )
                both = forward + start["martingale"] + start["backward_work"]
                self.running["work_stratonovich"][rows] += both / 2
            second = start["second_variation"]
            drawn[0] += np.where(np.isinf(second), np.inf, second - dt * start["ito_power"])
            last = len(rates) + len(drawn)
            self._sums[len(rates) : last, rows] += drawn

    def add_jump(self, before: Terms, after: Terms, rows: Any) -> None:
        """Count the energy of a jump of the heads, of these paths, as work of the weights.

        The step that ends at the jump is closed, before it.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            change = after["energy"] - before["energy"]
            self.running["work_weights"][rows] += change
            if "work_stratonovich" in self.running:
                self.running["work_stratonovich"][rows] += change + before["backward_work"] / 2

    def row(self, terms: Terms) -> Terms:
        """Return the quantities that a run file records at one time, name -> (paths,)."""
        if np.any(np.isnan(self.start)):
            self.start = terms["energy"].copy()
        run = self.running
        with np.errstate(over="ignore", invalid="ignore"):
            rest = (
                terms["energy"]
                - self.start
                - run["work_weights"]
                - run["work_ito"]
                - run["martingale"]
            )
            if "work_diffusion" in run:
                rest = rest - run["work_diffusion"] - run["martingale_tokens"]
            residuals = {
                "edi_residual": rest + run["dissipated"],
                "edi_residual_upper_gradient": rest - self.sign * run["dissipated_upper_gradient"],
            }
            if "work_stratonovich" in run:  # the last step is open: its backward sum ends here
                work = run["work_stratonovich"] + terms["backward_work"] / 2
                run = run | {"work_stratonovich": work}
                ito = run["work_weights"] + run["work_ito"] + run["martingale"]
                residuals["edi_residual_stratonovich"] = residuals["edi_residual"] + ito - work
        # inf - inf: doubles cannot resolve the balance.
        sums = {k: np.where(np.isnan(v), np.inf, v) for k, v in (run | residuals).items()}
        return {name: terms[name] for name in self.rates} | sums

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Return everything needed to continue later."""
        return {"budget_start": self.start, **{f"budget_{k}": v for k, v in self.running.items()}}

    def restore(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Continue from a saved state."""
        self.start = state["budget_start"].copy()
        for name, running in self.running.items():
            running[:] = state[f"budget_{name}"]
