"""Clusters and the spectrum of the averaged head: how many form, and where?

The heads are D_h = M + G_h, with a mean M of few eigenvalues and symmetric Gaussian G_h, frozen or
moved by an Ornstein-Uhlenbeck law, or they oscillate. [MHT] section 7.1 asks whether the spectrum
of the averaged head D = mean_h D_h decides on the clusters. Softmax attention, s = 1 in ascent and
-1 in descent. Predictions (docs/theory/clusters.md), stated before the runs:

1. One cluster needs an eigenvalue of s D above zero: where there is none, none forms.
2. One cluster comes to rest at the leading eigenvector of s D, whatever the single heads are.
3. If M has one eigenvalue L > 0, in ascent, n tokens form two clusters where d log d < L log n,
   and one where it is larger.
4. If that eigenvalue is -L, they form two opposite clusters at its eigenvector in ascent, and one
   cluster in descent.
5. Tokens leave the eigenvector of L > 0 in descent.
6. If L is double, clusters lie in the plane of its eigenvectors.
7. A cluster is off the eigenvector of M by sin^2 = (d - 1) v / (2 H L (L + r)), where v is the
   variance of the heads and r their rate, 0 if they are frozen: many and fast heads act as M.
8. Oscillating heads of one phase take a cluster along: it is closer to the leading eigenvector of
   the present D than to that of the mean of D over a period.
9. Two opposite clusters of random heads, M = 0, are less well aligned with D than one. They are at
   the leading eigenvector of the mean of the heads with the weights r_h, for equal shares
   tanh <c, D_h c>.

    python studies/spectrum.py

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870.
"""

import math
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro

import wflow
from wflow import InputError, clusters, study
from wflow._core.checks import whole
from wflow.cli import script
from wflow.heads import Frozen, HeadLaw, OrnsteinUhlenbeck, Oscillating
from wflow.plots.figure import PAGE, grid, style
from wflow.study import Finding


class Case(NamedTuple):
    """Rank and sign of the mean M, the direction, and how the heads move."""

    rank: int
    sign: int = 1
    direction: str = "ascent"
    law: str = "frozen"


ALL = 10**9  # rank of a mean +-L I
CASES = {
    "one": Case(1),
    "two": Case(2),
    "all": Case(ALL),
    "minus": Case(1, -1),
    "none": Case(0),
    "one, descent": Case(1, direction="descent"),
    "minus, descent": Case(1, -1, "descent"),
    "all, descent": Case(ALL, direction="descent"),
    "slow": Case(1, law="slow"),
    "fast": Case(1, law="fast"),
    "common": Case(0, law="common"),
    "spread": Case(0, law="spread"),
}
NAMES = {
    "count": "clusters that hold 0.9 of the tokens",
    "share": "share of the tokens in the largest cluster",
    "angle": "cosine between the two largest clusters",
    "top": "largest eigenvalue of s D",
    "gap": "its distance from the next one",
    "present": "cos^2 of the largest cluster and the leading eigenvector of s D, over a period",
    "lasting": "the same with the mean M in the place of D; of oscillating heads with that over a "
    "period",
    "last": "cos^2 of the largest cluster and the last eigenvector of s D",
    "weighted": "cos^2 of the largest cluster and the leading eigenvector of mean_h r_h D_h",
    "plane": "share of the largest cluster in the first two axes",
    "along": "mean square of the first coordinate of the tokens",
}
THEORY = "docs/theory/clusters.md"
MOST = 0.75  # share of the starts that counts as most of them
ALIGNED = 0.99  # cos^2 with an eigenvector that counts as one
CLOSE = 0.9  # cos^2 with one of M, which G_h moves
CLEAR = 2.0  # factor by which d log d and L log n must differ
NEAR = 0.5  # relative difference of sin^2 and its formula
SMALL = 0.1  # sin^2 up to which the formula, a first order, is tested


@dataclass(frozen=True, kw_only=True)
class Spectrum(study.Flags):
    """Flags of this study."""

    dims: study.Distinct[Annotated[int, study.Checked(partial(whole, least=3))]] = (3, 4, 8, 16)
    """Dimensions d."""
    heads: study.Distinct[study.Count] = (1, 4, 16)
    """Head counts H."""
    starts: study.TwoOrMore = 8
    """Draws of tokens and heads of every case."""
    n: study.TwoOrMore = 64
    """Number of tokens."""
    strength: study.Positive = 4.0
    """Eigenvalue L of the mean M."""
    variance: study.Positive = 1.0
    """Variance v of the diagonal of the heads around M; half of it off the diagonal."""
    rates: tuple[study.Positive, study.Positive] = (1.0, 16.0)
    """Rates of the slow and of the fast Ornstein-Uhlenbeck heads."""
    scale: study.Angle = 0.2
    """Geodesic distance, in radians, up to which two tokens are linked."""
    paths: tyro.conf.Suppress[int] = 1
    t_final: study.Positive = 30.0
    """End time T, more than a period of 2 pi."""
    dt: study.Positive = 0.02
    out: study.Folder = Path("results/spectrum")

    def check(self) -> None:
        super().check()
        if self.t_final <= 2 * math.pi:
            raise InputError(f"--t-final is {self.t_final:g}: expected more than a period, 2 pi")

    def mean(self, case: Case, d: int) -> np.ndarray:
        """Return the mean M of the heads, (d, d)."""
        return case.sign * self.strength * np.diag(np.arange(d) < case.rank)

    def law(self, case: Case, d: int) -> HeadLaw:
        """Return the law of the heads, whose stationary variance is that of their start."""
        if case.law in ("common", "spread"):
            return Oscillating(d, case.law)
        if case.law == "frozen":
            return Frozen()
        rate = self.rates[case.law == "fast"]
        return OrnsteinUhlenbeck(self.mean(case, d), rate, 2 * rate * self.variance, exact=True)


def task(flags: Spectrum, name: str, d: int, H: int, start: int) -> dict[str, Any]:
    """Return arguments of `wflow.solve` for one start; every case has the same tokens and G_h."""
    case, seed = CASES[name], study.seed_of(flags.seed, d, H, start)
    G = math.sqrt(flags.variance) / 2 * study.initial_heads(seed, H, d)  # (H, d, d)
    period = flags.t_final - 2 * math.pi * np.linspace(1, 0, 9)
    return {
        "x0": wflow.tokens.uniform(flags.n, d, seed=seed), "law": flags.law(case, d),
        "heads": flags.mean(case, d) + G, "seed": seed, "t_final": flags.t_final, "dt": flags.dt,
        "direction": case.direction,
        "save": wflow.SaveAt(every=10**9, snapshots=period, heads=True, budget=False),
    }  # fmt: skip


def centres(x: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return mean directions (clusters, d) of the clusters of tokens (n, d), and shares."""
    labels = clusters.labels(x, scale)
    sizes = np.bincount(labels)
    order = np.argsort(-sizes, kind="stable")
    sums = np.array([x[labels == k].sum(axis=0) for k in order])
    return sums / np.linalg.norm(sums, axis=1, keepdims=True), sizes[order] / len(x)


def measure(flags: Spectrum, file: Path, name: str) -> dict[str, Any]:
    """Return what the last period of a run says about clusters and spectrum."""
    case = CASES[name]
    sign = 1.0 if case.direction == "ascent" else -1.0
    with wflow.open(file) as run:
        x, heads = run.tokens.values[0], run.heads.values[0]  # (9, n, d), (9, H, d, d)
    D = sign * heads.mean(axis=1)  # (9, d, d)
    oscillates = case.law in ("common", "spread")
    mean = D.mean(axis=0) if oscillates else sign * flags.mean(case, x.shape[-1])
    lasting = np.linalg.eigh(mean)[1][:, -1]
    values, vectors = np.linalg.eigh(D)
    largest = np.array([centres(each, flags.scale)[0][0] for each in x])  # (9, d)
    c, shares = centres(x[-1], flags.scale)
    scores = np.einsum("a,hab,b->h", c[0], heads[-1], c[0])
    r = np.tanh(scores + 0.5 * np.log(shares[0] / max(1 - shares[0], 1e-9)))
    weighted = np.linalg.eigh(sign * np.einsum("h,hab->ab", r, heads[-1]))[1][:, -1]
    return {
        "count": 1 + np.searchsorted(np.cumsum(shares), 0.9 - 1e-9),
        "share": shares[0],
        "angle": c[0] @ c[1] if len(c) > 1 else math.nan,
        "top": values[-1, -1],
        "gap": values[-1, -1] - values[-1, -2],
        "present": (np.einsum("ka,ka->k", largest, vectors[:, :, -1]) ** 2).mean(),
        "lasting": ((largest @ lasting) ** 2).mean(),
        "last": (c[0] @ vectors[-1, :, 0]) ** 2,
        "weighted": (c[0] @ weighted) ** 2,
        "plane": (c[0, :2] ** 2).sum(),
        "along": (x[-1, :, 0] ** 2).mean(),
    }


def misalignment(flags: Spectrum, law: str, d: Any, H: Any) -> Any:
    """Return sin^2 of the angle of prediction 7."""
    rate = {"slow": flags.rates[0], "fast": flags.rates[1]}.get(law, 0.0)
    return (d - 1) * flags.variance / (2 * H * flags.strength * (flags.strength + rate))


def of_clusters(flags: Spectrum, table: "study.Dataset") -> list[Finding]:
    """Return findings on predictions 1 to 6; 3 to 6 by most starts with the most heads."""
    frozen = table.sel(case=[name for name, case in CASES.items() if case.law == "frozen"])
    count = frozen["count"].values
    without = frozen["top"].values < 0
    single = (frozen["share"].values == 1) & ~without
    near = frozen["present"].values[single] > ALIGNED
    settled = (frozen["gap"].values * flags.t_final)[single] > 5
    found = [
        Finding.decided(
            "one cluster forms only where s D has an eigenvalue above zero", THEORY,
            f"{without.sum()} runs have none, of which {(count[without] == 1).sum()} end in one "
            "cluster", count[without] > 1,
        ),
        Finding.decided(
            "one cluster is at rest at the leading eigenvector of s D, where T is 5 times the "
            "inverse of the gap below its eigenvalue", THEORY,
            f"cos^2 > {ALIGNED:g} for {near[settled].sum()} of {settled.sum()} clusters of all "
            f"tokens; of the others, for {near[~settled].sum()} of {(~settled).sum()}",
            near[settled],
        ),
    ]  # fmt: skip
    d, many = np.array(flags.dims), table.sel(heads=max(flags.heads))
    ratio = d * np.log(d) / (flags.strength * math.log(flags.n))
    one, pair, down, left, flat = (
        many.sel(case=name) for name in ("one", "minus", "minus, descent", "one, descent", "two")
    )
    opposite = (pair["count"] == 2) & (pair["angle"] < -ALIGNED) & (pair["last"] > CLOSE)
    for claim, holds, tested in (
        ("one eigenvalue L > 0 in ascent gives two clusters where d log d < L log n, one where it "
         f"is larger, by a factor of {CLEAR:g}", one["count"] == np.where(ratio < 1, 2, 1)[:, None],
         (ratio < 1 / CLEAR) | (ratio > CLEAR)),
        ("one eigenvalue -L in ascent gives two opposite clusters at its eigenvector", opposite,
         ...),
        ("one eigenvalue -L in descent gives one cluster", down["count"] == 1, ...),
        ("tokens leave the eigenvector of L > 0 in descent: mean square below 1/(2d)",
         left["along"] < 0.5 / left["d"], ...),
        (f"clusters lie in the plane of a double eigenvalue L (cos^2 > {CLOSE:g})",
         flat["plane"] > CLOSE, ...),
    ):  # fmt: skip
        share = holds.mean("start").values
        decides = np.ones(len(d), bool) if tested is ... else tested
        text = ", ".join(
            f"{s:.2f} for d = {k}" if sure else f"no claim for d = {k}"
            for k, s, sure in zip(flags.dims, share, decides, strict=True)
        )
        found.append(
            Finding.decided(claim, THEORY, f"share of the starts {text}", (share >= MOST)[tested])
        )
    return found


def of_motion(flags: Spectrum, table: "study.Dataset") -> list[Finding]:
    """Return findings on predictions 7 and 8."""
    laws = ("one", "slow", "fast")
    mean, error = wflow.fits.mean_and_error(1 - table["lasting"].sel(case=list(laws)).values)
    d, H = table["d"].values[:, None], table["heads"].values
    known = np.array([misalignment(flags, law, d, H) for law in laws])
    tested = known < SMALL
    low, high, ratio = ((mean + k * error)[tested] / known[tested] for k in (-2, 2, 0))
    fewer, spread = mean[1] - mean[2], 2 * np.hypot(error[1], error[2])
    closer = table["present"].sel(case="common") - table["lasting"].sel(case="common")
    gain, off = wflow.fits.mean_and_error(closer.values.reshape(len(flags.dims), -1))
    gains = zip(flags.dims, gain, off, strict=True)
    return [
        Finding.within(
            f"sin^2 off the eigenvector of M is (d - 1) v/(2 H L (L + r)), to {100 * NEAR:g} % "
            f"with two standard errors, where that is below {SMALL:g}", THEORY,
            f"median {np.median(ratio):.2f} of it, {ratio.min():.2f} to {ratio.max():.2f} in "
            f"{ratio.size} cases", low - 1, high - 1, NEAR,
        ),
        Finding.decided(
            "fast heads leave a cluster closer to the eigenvector of M than slow ones", THEORY,
            f"in {(fewer > spread).sum()} of {fewer.size} cases, by more than two standard errors",
            fewer > 0, known=np.abs(fewer) > spread,
        ),
        Finding.decided(
            "oscillating heads of one phase take a cluster along: cos^2 is larger with the "
            "present D than with its mean over a period", THEORY,
            ", ".join(f"by {m:.2g} ± {e:.1g} for d = {k}" for k, m, e in gains), gain > 0,
            known=np.abs(gain) > 2 * off,
        ),
    ]  # fmt: skip


def of_pairs(flags: Spectrum, table: "study.Dataset") -> list[Finding]:
    """Return findings on prediction 9."""
    several = table.sel(case="none", heads=[H for H in flags.heads if H > 1])
    one = several["count"].values == 1
    two = (several["count"].values == 2) & (several["angle"].values < -ALIGNED)
    claim = "two opposite clusters of several random heads are less well aligned with D than one"
    text = f"{one.sum()} runs end in one cluster, {two.sum()} in two"
    weighted = several["weighted"].values[two] > ALIGNED
    at_rest = Finding.decided(
        "two opposite clusters are at the leading eigenvector of the mean of r_h D_h", THEORY,
        f"cos^2 > {ALIGNED:g} for {weighted.sum()} of {weighted.size}", weighted,
    )  # fmt: skip
    if min(one.sum(), two.sum()) < 2:
        return [Finding(claim, THEORY, text, "inconclusive"), at_rest]
    present = several["present"].values
    (single, error), (double, other) = map(wflow.fits.mean_and_error, (present[one], present[two]))
    text += f": cos^2 {single:.3f} ± {error:.1g} and {double:.3f} ± {other:.1g}"
    apart = abs(single - double) > 2 * math.hypot(error, other)
    return [Finding.decided(claim, THEORY, text, single > double, known=apart), at_rest]


# Tables and figures
# ------------------

ALIGNMENTS = (
    ("one", "present"), ("two", "present"), ("all", "present"), ("none", "present"),
    ("none", "weighted"),
    ("minus, descent", "present"), ("one", "lasting"), ("slow", "lasting"), ("fast", "lasting"),
    ("common", "present"), ("common", "lasting"), ("spread", "present"),
)  # fmt: skip
SEEN = {"present": "D", "lasting": "its mean", "weighted": "weighted mean"}


def report(flags: Spectrum, table: "study.Dataset") -> str:
    """Return numbers of clusters and alignments, by case, dimension and head count."""
    many = max(flags.heads)
    counts = [
        {"case": name}
        | {
            f"d = {d}": counts_text(table["count"].sel(case=name, d=d, heads=many))
            for d in flags.dims
        }
        for name in table["case"].values
    ]
    aligned = [
        {"case": name, "eigenvector of": SEEN[which], "H": str(H)}
        | {
            f"d = {d}": study.mean_text(table[which].sel(case=name, d=d, heads=H))
            for d in flags.dims
        }
        for name, which in ALIGNMENTS
        for H in flags.heads
    ]
    return (
        f"Starts by the number of clusters that hold 0.9 of the tokens, H = {many}:\n\n"
        f"{study.markdown_table(counts)}\n\ncos^2 of the largest cluster and the leading "
        "eigenvector of s D, or of its mean: M, and of oscillating heads that over a period; "
        "weighted means have the weights r_h of two opposite clusters:\n\n"
        f"{study.markdown_table(aligned)}"
    )


def counts_text(values: Any) -> str:
    """Return how many starts have which number of clusters: "7 x 2, 1 x 3"."""
    found, times = np.unique(values, return_counts=True)
    if len(found) > 3:
        return f"{int(found[0])} to {int(found[-1])}"
    return ", ".join(f"{t} x {int(f)}" for f, t in zip(found, times, strict=True))


def figure(flags: Spectrum, table: "study.Dataset") -> "study.Figure":
    """Draw eigenvectors that one and two clusters see, and misalignment against its formula."""
    d = np.array(flags.dims)
    several = table.sel(case="none", heads=[H for H in flags.heads if H > 1])
    with style():
        drawn, axes = grid(1, 2, PAGE, 3.1)
        left, right = axes.flat
        for marker, count, name in (("o", 1, "one cluster"), ("^", 2, "two clusters")):
            chosen = several["count"].values == count
            shown = (several[which].values[chosen] for which in ("present", "weighted"))
            left.plot(*shown, marker, markerfacecolor="none", label=name)
        left.set(
            xlabel=r"$\cos^2$ with the eigenvector of $H^{-1} \Sigma_h D_h$",
            ylabel=r"$\cos^2$ with that of $H^{-1} \Sigma_h r_h D_h$",
            xlim=(-0.03, 1.03), ylim=(-0.03, 1.03),
        )  # fmt: skip
        left.legend(loc="lower left")
        for marker, law in zip("os^", ("one", "slow", "fast"), strict=True):
            off = 1 - table["lasting"].sel(case=law).mean("start").values  # (d, heads)
            known = misalignment(flags, law, d[:, None], np.array(flags.heads))
            right.loglog(
                known.ravel(), off.ravel(), marker, label="frozen" if law == "one" else law
            )
        ends = np.array(right.get_xlim())
        right.plot(ends, ends, "k:", linewidth=1)
        right.set(
            xlabel=r"$(d - 1)\, v / (2 H L (L + r))$",
            ylabel=r"$\sin^2$ of cluster and eigenvector of $M$",
        )
        right.legend()
    return drawn


def main() -> None:
    flags = study.command_line(Spectrum, __doc__)
    labels = {
        "case": (list(CASES), "heads and direction"), "d": (flags.dims, "dimension"),
        "heads": (flags.heads, "heads H"), "start": (range(flags.starts), "draw of the start"),
    }  # fmt: skip
    names = {
        (name, d, H, k): f"{name.replace(', ', '_')}_d{d:03d}_H{H:03d}_{k:03d}"
        for name, d, H, k in product(CASES, flags.dims, flags.heads, range(flags.starts))
    }
    with study.session("spectrum", flags) as session:
        files = session.solve({names[key]: task(flags, *key) for key in names})
        table = study.tabulate(
            labels, lambda *key: measure(flags, files[names[key]], key[0]), NAMES,
            progress="clusters",
        )  # fmt: skip
        found = [*of_clusters(flags, table), *of_motion(flags, table), *of_pairs(flags, table)]
        session.finish(table, report(flags, table), found, {"clusters": figure(flags, table)})


if __name__ == "__main__":
    script(main)
