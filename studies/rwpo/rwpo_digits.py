"""Digits from flows in the latent space of an autoencoder, with and without sparse attention.

An autoencoder maps MNIST to d = 16 and 64 coordinates. There OT-Flow, the sparse-transformer flow
as printed, its correction and a variant with one late layer are trained, and compared on held-out
digits: likelihood, and Fréchet distance in the features of a classifier trained here. How far
the tokens interact at all is measured by the effective sample size of the attention: [RWPO]
section 4.3, figure 7, and Table 1.

    python studies/rwpo/rwpo_digits.py --preset cpu

[RWPO] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein Proximal
Operator with L1 Prior", 2025.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _rwpo_digits import (
    MODELS,
    PRESETS,
    Tools,
    examine,
    figures,
    iterations_to,
    plan,
    prepare,
    report,
    tabulated,
)

from wflow import study
from wflow._core.checks import whole
from wflow.cli import guarded
from wflow.study import networks
from wflow.study.networks import Results

SPARSE = {"corrected": "the corrected sparse flow", "late layer": "one late layer, ESS >= 30"}


@dataclass(frozen=True, kw_only=True)
class RwpoDigits(networks.NetFlags):
    """Flags of this study."""

    iterations: int | None = None
    """Training iterations of each flow; default: of the preset."""
    lam: float | None = None
    """Weight lambda of the L1 prior, where training begins; default: of the preset."""
    out: study.Folder = Path("results/rwpo_digits")
    """Folder for checkpoints, metrics, summary and figures."""

    def check(self) -> None:
        super().check()
        if self.iterations is not None:
            whole(self.iterations, "--iterations")


def findings(results: Results, tools: Tools) -> list[study.Finding]:
    """Claims of the paper, with their verdicts."""
    dims = tools.setup.dims

    def values(model: str, d: int, key: str) -> np.ndarray:
        return np.array([record[key] for record in results.records[f"{model} d{d}"]], dtype=float)

    def claim(statement: str, source: str, pairs: dict[int, tuple]) -> study.Finding:
        """Of numbers for every d: what should be less, and what it should be less than."""
        found = {d: networks.paired(more, less) for d, (less, more) in pairs.items()}
        text = "; ".join(f"d = {d}: {text}" for d, (text, _) in found.items())
        return study.Finding(
            statement, source, text, networks.joint([v for _, v in found.values()])
        )

    claims = []
    for model, words in SPARSE.items():
        steps = {
            d: tuple(iterations_to(results, one, "OT-Flow", d) for one in (model, "OT-Flow"))
            for d in dims
        }
        text = "; ".join(
            f"d = {d}: {shown(one)} iterations, OT-Flow {shown(other)}"
            for d, (one, other) in steps.items()
        )
        claims.append(
            study.Finding.decided(
                f"{words} converges faster: it reaches the held-out likelihood with which OT-Flow "
                "ends in fewer iterations",
                "[RWPO] section 4.3",
                text,
                [bool((one < other).all()) for one, other in steps.values()],
            )
        )
        claims.append(
            claim(
                f"{words} generalises better: lower held-out negative log likelihood than OT-Flow",
                "[RWPO] section 4.3",
                {d: (values(model, d, "nll"), values("OT-Flow", d, "nll")) for d in dims},
            )
        )
    for model, words in (SPARSE | {"printed": "the sparse flow as printed"}).items():
        claims.append(
            claim(
                f"digits of {words} are closer to held-out digits than those of OT-Flow (Fréchet "
                "distance)",
                "[RWPO] section 4.3, figure 7",
                {d: (values(model, d, "frechet"), values("OT-Flow", d, "frechet")) for d in dims},
            )
        )
    seeds = len(results.records[f"printed d{dims[0]}"])
    claims.append(
        claim(
            "the printed algorithm learns the digits: closer to held-out digits than a Gaussian in "
            "the latent space",
            "[RWPO] section 4.3",
            {
                d: (values("printed", d, "frechet"), np.full(seeds, tools.floors[d]["gaussian"]))
                for d in dims
            },
        )
    )
    return claims


def interactions(tools: Tools) -> list[study.Finding]:
    """Whether tokens interact, in the latent vectors of held-out digits."""
    with_paper = {d: tools.interaction[d]["standardised"]["paper"] for d in tools.setup.dims}
    text = "; ".join(
        f"d = {d}: a token's weight of itself {at.self_weight:.3f}, without it ESS {at.ess:.2f}, "
        f"{100 * at.explained:.0f} % of the variance explained"
        for d, at in with_paper.items()
    )
    tokens = study.Finding.decided(
        "with beta = 1 and h = 1/48 tokens interact: most of the attention of a token goes to "
        "others",
        "[RWPO] eq. 22 and Table 1",
        text,
        [at.self_weight < 0.5 for at in with_paper.values()],
    )
    chosen = {d: tools.interaction[d]["standardised"]["chosen"] for d in tools.setup.dims}
    wide = study.Finding.decided(
        "with beta chosen for ESS >= 30 the attention still tells tokens apart: the mean of the "
        "others explains over a tenth of a token's variance",
        "comparison",
        "; ".join(
            f"d = {d}: beta = {at.beta:.3g}, ESS {at.ess:.0f}, {100 * at.explained:.0f} %"
            for d, at in chosen.items()
        ),
        [at.explained > 0.1 for at in chosen.values()],
    )
    zeros = tools.zeros
    atoms = study.Finding.decided(
        "latent vectors of the rectified encoder that the section follows have a density",
        "[RWPO] section 4.3, the code of OT-Flow",
        f"{100 * zeros:.0f} % of their entries are exactly 0",
        zeros == 0,
    )
    return [tokens, wide, atoms]


def shown(steps: np.ndarray) -> str:
    """Iterations of every seed; a dash where the level was never reached."""
    return ", ".join(f"{value:.0f}" if np.isfinite(value) else "never" for value in steps)


def main() -> int:
    flags = study.command_line(RwpoDigits, __doc__)
    setup = networks.with_flags(PRESETS[flags.preset], flags)
    every = [f"{model} d{d}" for d in setup.dims for model in MODELS]
    names = networks.chosen(every, setup.seeds, flags)
    with study.session("rwpo_digits", flags) as session:
        tools = prepare(session, setup, flags)
        results = networks.train_all(
            session,
            flags,
            names,
            setup.seeds,
            lambda name, seed: plan(name, tools, flags, seed),
            lambda name, seed, training: examine(name, training, tools, flags.out, seed),
        )
        whole_preset = networks.is_preset(setup, flags, PRESETS) and len(names) == len(every)
        of_tokens = interactions(tools) if flags.preset != "smoke" and flags.lam is None else []
        session.finish(
            table=tabulated(results),
            text=report(flags, tools, results),
            findings=[*(findings(results, tools) if whole_preset else []), *of_tokens],
            figures=figures(results, tools),
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
