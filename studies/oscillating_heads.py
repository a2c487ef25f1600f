"""Oscillating heads: periodic weights keep the tokens moving.

Every interaction matrix follows a periodic target, dD = (M_h(t) - D) dt, without noise. With common
phases the squared upper gradient G^2 decays neither in time nor with the number H of heads: [MHT]
figures 1 to 3, lower rows. With spread phases, those of [MHT], the oscillations of the heads
average out: G^2 falls with H, and for H > 1 it falls further in time.

    python studies/oscillating_heads.py --heads 64
    python studies/oscillating_heads.py --phases common
    python studies/oscillating_heads.py --preset published --d 5

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, section 6.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from wflow import fits, study
from wflow.cli import script
from wflow.heads import Oscillating

NONE = 0.05  # exponent that counts as none


@dataclass(frozen=True, kw_only=True)
class OscillatingHeads(study.StudyFlags):
    """Flags of this study."""

    presets: ClassVar = {
        "published": {
            "heads": (1, 10, 100), "n": 200, "t_final": 20.0, "dt": 5e-3, "scheme": "euler",
            "fit_from": 1,
        },
    }  # fmt: skip
    preset: Literal["none", "published"] = "none"
    """published: the defaults of the other flags are the configuration of [MHT], heads 1, 10, 100,
    200 tokens, T = 20, Euler steps of 0.005."""
    phases: Literal["spread", "common"] = "spread"
    """Phases of the heads: spread evenly over a period, or all the same."""
    heads: tuple[study.Count, ...] = (4, 8, 16, 32, 64)
    """Head counts H, one run each. Two or more are fitted by a power law in H."""
    sigma2: study.Nonnegative = 0.0
    """Variance of noise on the heads per unit time. 0: that of [MHT]; more: scheme euler only."""
    paths: study.Count = 1
    """Monte Carlo paths. All are equal where --sigma2 is 0; take 16 or so where it is not."""
    fit_from: study.Count = 4
    """Smallest head count that takes part in the fit a H^b."""
    out: study.Folder = Path("results/oscillating_heads")

    def law(self, d: int) -> Oscillating:
        """Return the law of the heads for tokens of dimension d."""
        return Oscillating(d, phases=self.phases, sigma2=self.sigma2)


def findings(flags: OscillatingHeads, laws: Mapping[str, fits.PowerLaw]) -> list[study.Finding]:
    """Return the finding about G^2 and the number of heads."""
    fit = laws["upper_gradient_sq"]
    if flags.phases == "common":
        claim = "$G^2$ of oscillating heads with common phases does not decay in $H$"
        return [study.Finding.slope(claim, "[MHT] fig. 2", fit, 0.0, NONE)]
    low, high = fit.exponent_ci
    if not np.isfinite(low):  # one path without noise
        low = high = fit.exponent
    return [
        study.Finding.decided(
            "$G^2$ of oscillating heads with spread phases falls with $H$", "[MHT] fig. 2",
            f"slope {study.slope_text(fit)}", high < -NONE, known=high < -NONE or low > -NONE,
        )
    ]  # fmt: skip


def main() -> None:
    flags = study.command_line(OscillatingHeads, __doc__)
    study.run("oscillating_heads", flags, flags.law, partial(findings, flags))


if __name__ == "__main__":
    script(main)
