"""The BRWP sampler beside Langevin samplers: bias, number of tokens, dimension, cost.

[BRWP] replaces the noise of Langevin dynamics by the score of a cloud after a regularised
Wasserstein proximal step of the prior, which is the attention of [RWPO]. Targets with exact samples
(a Gaussian times a Laplace prior, a mixture times one) or a Gibbs sampler (the Bayesian lasso) show
how far each sampler is from its target: against the step, the number of tokens, the temperature,
the dimension, and at equal numbers of gradient evaluations.

    python studies/rwpo/rwpo_sampler.py

[BRWP] Han, Osher, Li, Splitting regularized Wasserstein proximal algorithms for nonsmooth sampling
problems, arXiv 2502.16773. [RWPO] Han, Osher, Li, Sparse Transformer Architectures via Regularized
Wasserstein Proximal Operator with L1 Prior.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import _rwpo_sampler as parts
import numpy as np
from _rwpo_sampler import BOUND, SAMPLERS, Setup, best, mean_field_deficit

from wflow import study
from wflow._core.checks import whole
from wflow.cli import guarded
from wflow.study import Finding
from wflow.study.frame import Verdict

if TYPE_CHECKING:
    from xarray import Dataset

PRESETS = {
    "smoke": Setup(tokens=60, steps=(0.2, 0.1), budgets=(5, 10, 20), dims=(2, 3), sweep=(40, 80),
                   scales=(2, 3), decay=30, until=1.0),
    "cpu": Setup(),
    "paper": Setup(tokens=4000, steps=(0.4, 0.2, 0.1, 0.05, 0.025), sweep=(1000, 4000, 16000),
                   budgets=(5, 10, 20, 40, 80, 160, 320, 640), decay=4000),
}  # fmt: skip
ENOUGH = 30.0  # effective tokens
FEW = 10.0
CLOSE = 0.15  # relative error of a variance that counts as right
SLOPE = 0.3  # error of an exponent
THEORY, OWN = "docs/theory/proximal.md", "question of this study"


@dataclass(frozen=True, kw_only=True)
class RwpoSampler(study.OutputFlags):
    """Flags of this study."""

    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """smoke: seconds, whose findings mean nothing; cpu: ten minutes; paper: an hour or two."""
    threads: int | None = None
    """Threads of the compiled functions; all by default. No number depends on it but the times."""
    out: study.Folder = Path("results/rwpo_sampler")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        if self.threads is not None:
            whole(self.threads, "--threads")


def of_bias(table: "Dataset") -> list[Finding]:
    """The order of the bias, and the tokens that it takes to see it."""
    steps, found, holds = table["h"].values, [], []
    for name in table["smooth"].values:
        limit, known = parts.extrapolated(table, name)
        slope = np.nan
        if known.sum() > 1:
            slope = np.polyfit(np.log(steps[known]), np.log(limit[known]), 1)[0]
        texts = [f"{m:.3f} (h = {h:g})" for m, h in zip(limit[known], steps[known], strict=True)]
        found.append(f"{name}: deficit {', '.join(texts)}, exponent {slope:.2f}")
        holds.append(abs(slope - 1) <= SLOPE)
    first = Finding.decided(
        f"the bias of the variance is of first order in h (exponent within {SLOPE:g} of 1), for "
        "infinitely many tokens by extrapolation in 1/ESS, where that resolves it",
        THEORY, "; ".join(found), holds,
    )  # fmt: skip
    exact = np.array([mean_field_deficit(h) for h in steps])
    gaps = np.abs(table["deficit"].sel(smooth="gaussian").mean("path").values - exact)
    listed = [f"{g:.3f} (n = {n})" for g, n in zip(gaps.max(1), table["n"].values, strict=True)]
    second = Finding.decided(
        "for a Gaussian target the deficit of n tokens tends to that of infinitely many",
        THEORY,
        f"largest distance {', '.join(listed)}",
        np.all(np.diff(gaps, axis=0) < 0, axis=0),
    )
    least = table["deficit"].mean("path").argmin("h").values
    third = Finding.decided(
        "for fixed n there is a best step: a smaller one has a larger bias, since fewer tokens "
        "attend to each other",
        THEORY, f"best h {parts.by_tokens(table, steps[least], 'g')}",
        least[:, :-1] < len(steps) - 1,
    )  # fmt: skip
    excess = (table["bias_sliced"].mean("path") - table["bias_floor"]).min("h").values
    fourth = Finding.decided(
        "the cloud at its best step is no further from the target than an independent sample",
        THEORY, f"sliced W2 minus the floor {parts.by_tokens(table, excess, '+.3f')}", excess <= 0,
    )  # fmt: skip
    return [first, second, third, fourth]


def of_interaction(table: "Dataset") -> Finding:
    """Whether the effective sample size tells where the variance is right."""
    ess, ratio = table["scale_ess"].values.ravel(), table["scale_variance"].values.ravel()
    brwp = table.sel(sampler="brwp")
    kept = (brwp["bound"] <= BOUND).values.ravel()
    ess = np.append(ess, brwp["ess"].values.ravel()[kept])
    ratio = np.append(ratio, brwp["variance"].isel(budget=-1).values.ravel()[kept])
    right = np.abs(ratio - 1) <= CLOSE
    many, few = ess >= ENOUGH, ess < FEW
    share = [right[many].mean() if many.any() else 0.0, right[few].mean() if few.any() else 1.0]
    return Finding.decided(
        f"with beta lambda^2 h <= {BOUND:g} the variance is right to {CLOSE:.0%} where a token "
        f"attends to {ENOUGH:g} tokens or more, and wrong below {FEW:g}",
        THEORY,
        f"right in {right[many].sum()} of {many.sum()} runs above, {right[few].sum()} of "
        f"{few.sum()} below; ratios from {ratio[many].min(initial=9):.2f} and up to "
        f"{ratio[few].max(initial=0):.2f}",
        [share[0] >= 0.9, share[1] <= 0.1],
    )


def of_dimension(table: "Dataset") -> Finding:
    """Variances in high dimensions."""
    ratio = table["scale_variance"].isel(count=-1).max("h_scale").values
    dims, ess = table["scale"].values, table["scale_ess"].isel(count=-1).max("h_scale").values
    listed = [f"{r:.2f} (d = {d}, ESS {e:.1f})" for r, d, e in zip(ratio, dims, ess, strict=True)]
    return Finding.decided(
        f"the sampler keeps the variance, to {CLOSE:.0%}, in every dimension", OWN,
        f"variance over the exact one at the better step, n = {table['count'].values[-1]}: "
        + ", ".join(listed), np.abs(ratio - 1) <= CLOSE,
    )  # fmt: skip


def of_bound(table: "Dataset") -> Finding:
    """Whether the step bound separates right from wrong variances where tokens interact."""
    brwp = table.sel(sampler="brwp", d=table["d"].values[0])
    bound, ratio = brwp["bound"].values.ravel(), brwp["variance"].isel(budget=-1).values.ravel()
    right = np.abs(ratio - 1) <= CLOSE
    inside, far = bound <= BOUND, bound >= 4 * BOUND
    holds = [bool(right[inside].all()), not right[far].any()] if inside.any() else [False]
    return Finding.decided(
        f"the variance is right to {CLOSE:.0%} for beta lambda^2 h <= {BOUND:g}, and wrong from "
        f"{4 * BOUND:g} on (d = {table['d'].values[0]})",
        THEORY,
        f"right in {right[inside].sum()} of {inside.sum()} runs within, {right[far].sum()} of "
        f"{far.sum()} far beyond",
        holds,
    )


def of_absorption(table: "Dataset") -> Finding:
    """Decay of a cloud within lambda h."""
    k, flat = table["k"].values, table["spread"].sel(f="flat")
    late = k >= k[-1] // 4
    slopes = [np.polyfit(np.log(k[late]), np.log(row.values[late]), 1)[0] for row in flat]
    gone = table["spread"].sel(f="quadratic", kernel="exact").values
    place = int(np.searchsorted(-gone, -1e-3 * gone[0]))
    return Finding.decided(
        "a cloud within |x_i| <= lambda h shrinks like k^(-1/2) where f = 0, and geometrically "
        "where f is convex",
        THEORY,
        "exponents " + ", ".join(f"{s:.3f} ({name})" for s, name in
                                 zip(slopes, table["kernel"].values, strict=True))
        + f"; f = |x|^2/2, h = 1/2: a thousandth of the spread after {place} steps",
        [*(abs(s + 0.5) < 0.05 for s in slopes), place <= 15],
    )  # fmt: skip


def of_equal_effort(table: "Dataset", d: int, at_equal_time: bool = False) -> Finding:
    """BRWP against the better of the Langevin samplers, in one dimension."""
    chosen, budgets = best(table).sel(d=d), table["budget"].values
    ours = chosen["value"].sel(sampler="brwp")
    theirs, measure, ratio = chosen["value"].sel(sampler=list(SAMPLERS[1:])), "gradients", 1.0
    if at_equal_time:
        n = int(np.abs(table["cost_n"].values - table.attrs["tokens"]).argmin())
        seconds = table["seconds"].sel(cost_d=d).isel(cost_n=n)
        measure, ratio = "time", float(seconds.sel(cost_sampler="brwp") / seconds[1:].max())
        places = np.searchsorted(budgets, np.minimum(budgets * ratio, budgets[-1]), "right") - 1
        theirs = theirs.isel(budget=places).assign_coords(budget=budgets)
    theirs, spread = theirs.min("sampler"), np.sqrt(2) * chosen["spread"]
    better, worse = int((ours < theirs - spread).sum()), int((ours > theirs + spread).sum())
    shown, cells = budgets[2::2], []
    for name in table["target"].values:
        both = [one.sel(target=name, budget=shown).values for one in (ours, theirs)]
        cells.append(
            f"{name} {', '.join(f'{a:.3f} : {b:.3f}' for a, b in zip(*both, strict=True))}"
        )
    verdict: Verdict = "inconclusive"
    if better or worse:
        verdict = "confirmed in part" if better > worse else "not confirmed"
        verdict = "confirmed" if better > 0.9 * ours.size else verdict
    effort = f" (its step takes {ratio:.1f} times theirs)" if at_equal_time else ""
    return Finding(
        f"at equal {measure} BRWP is closer to the target than MYULA and ULA (d = {d})", OWN,
        f"sliced W2, BRWP : better of the others, after {', '.join(map(str, shown))} gradients of "
        f"BRWP{effort}: {'; '.join(cells)}; closer in {better}, further in {worse} of {ours.size} "
        "cases by more than their spread",
        verdict,
    )  # fmt: skip


def of_distance(table: "Dataset") -> Finding:
    """What the exact W2 of n samples sees of a lost variance."""
    brwp = table.sel(sampler="brwp")
    below = (brwp["w2"].mean("pair") < table["w2_floor"].mean("floor_pair")).values
    ratio = brwp["variance"].isel(budget=-1).transpose(*brwp["ess"].dims).values
    lost = (ratio < 0.5) & below
    return Finding.decided(
        "a cloud that is nearer in W2 than an independent sample has the spread of the target",
        THEORY, f"{below.sum()} of {below.size} clouds are nearer, {lost.sum()} of them with less "
        "than half the variance", not lost.any(),
    )  # fmt: skip


def main() -> int:
    flags = study.command_line(RwpoSampler, __doc__)
    setup = PRESETS[flags.preset]
    if_exists = "resume" if flags.resume else "overwrite" if flags.overwrite else "error"
    others = (parts.bias, parts.interaction, parts.absorption, parts.temperature, parts.cost)
    with study.session("rwpo_sampler", flags) as session:
        runs = len(setup.targets) * len(setup.dims) * len(SAMPLERS) * len(setup.steps)
        with session.progress(runs + len(others), "runs") as advance:
            table = parts.compare(
                setup, flags.out, if_exists, flags.threads, session.files, advance
            )
            for part in others:
                table = table.merge(part(setup, flags.threads))
                advance(1)
        table.attrs["tokens"] = setup.tokens
        findings = [
            *of_bias(table), of_interaction(table), of_dimension(table), of_bound(table),
            of_absorption(table), *(of_equal_effort(table, d) for d in setup.dims),
            of_equal_effort(table, setup.dims[0], at_equal_time=True), of_distance(table),
        ]  # fmt: skip
        figures = {
            "gradients": parts.against_gradients(setup, table),
            "bias": parts.bias_figure(table),
            "absorption": parts.absorption_figure(table),
        }
        text = parts.report(setup, table)
        session.finish(table, text, findings if flags.preset != "smoke" else [], figures)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
