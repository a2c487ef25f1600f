"""Ornstein-Uhlenbeck heads: decay of the squared upper gradient with the number of heads.

Every interaction matrix fluctuates about the identity, dD = rate (I - D) dt + sigma dW_sym. The
heads average their noise, and the squared upper gradient G^2, averaged over the second half of the
time, falls like 1/H in the number H of heads: [MHT] eq. 151 and figures 1 to 3.

    python studies/ou_heads.py --heads 64
    python studies/ou_heads.py --heads 1 2 4 8 16 32 64 --out results/ou_scaling
    python studies/ou_heads.py --preset published --d 5 --paths 20

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, section 6.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from wflow import fits, study
from wflow.cli import script
from wflow.heads import OrnsteinUhlenbeck


@dataclass(frozen=True, kw_only=True)
class OUHeads(study.StudyFlags):
    """Flags of this study."""

    presets: ClassVar = {
        "published": {
            "heads": (1, 10, 100), "n": 200, "paths": 100, "t_final": 20.0, "dt": 5e-3,
            "scheme": "euler",
        },
    }  # fmt: skip
    preset: Literal["none", "published"] = "none"
    """published: the defaults of the other flags are the configuration of [MHT], heads 1, 10, 100,
    200 tokens, 100 paths, T = 20, Euler-Maruyama steps of 0.005."""
    rate: study.Positive = 1.0
    """Rate at which the heads return to their mean, the identity."""
    sigma2: study.Nonnegative = 2.0
    """Variance sigma^2 of the noise per unit time; the stationary one is sigma^2 / (2 rate)."""
    scheme: study.SchemeName = "sra1"
    """Time stepping: of strong order 1.5 (sra1), or that of [MHT], Euler-Maruyama (euler)."""
    dt: study.Positive = 0.0125
    exact: study.Switch = False
    """Sample the heads from their exact Gaussian transition, and not by the scheme."""
    out: study.Folder = Path("results/ou_heads")

    def law(self, d: int) -> OrnsteinUhlenbeck:
        """Return the law of the heads for tokens of dimension d."""
        return OrnsteinUhlenbeck(np.eye(d), self.rate, self.sigma2, exact=self.exact)


def findings(laws: Mapping[str, fits.PowerLaw]) -> list[study.Finding]:
    """Return the finding about the decay of G^2 with the number of heads."""
    fit = laws["upper_gradient_sq"]
    return [
        study.Finding.slope(
            "for Ornstein-Uhlenbeck heads $G^2$ decays like $1/H$, as $H^s$ with $s$ within 0.1 of "
            "$-1$",
            "[MHT] eq. 151, fig. 2", fit, -1.0, 0.1, note=f", Pearson {fit.pearson:.4f}",
        )
    ]  # fmt: skip


def main() -> None:
    flags = study.command_line(OUHeads, __doc__)
    study.run("ou_heads", flags, flags.law, findings)


if __name__ == "__main__":
    script(main)
