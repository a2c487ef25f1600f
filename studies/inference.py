"""Inference: heads from noisy trajectories, against the numbers of tokens and times, and the noise.

Softmax attention with frozen heads moves clouds of tokens, which are observed at some times with
Gaussian noise. `wflow.inference.fit` estimates the heads. The study compares its errors with those
of the Fisher information, counts how often its intervals hold the truth, and checks that it names
what the observations do not decide.

    python studies/inference.py
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import wflow
from wflow import SaveAt, fits, study
from wflow.cli import script
from wflow.heads import Frozen, OrnsteinUhlenbeck
from wflow.plots.figure import PAGE, grid, style
from wflow.study import Finding

THEORY = "[theory](#theory-inference)"
NEAR = 0.1  # deviation of the heads that the search starts from
COVERED = 0.90, 0.98  # coverage of 95 % intervals that counts as nominal
SAME = 0.25  # largest relative difference of the errors found and expected
SMALL = 0.01  # noise that is given where nothing is noisy


@dataclass(frozen=True, kw_only=True)
class Inference(study.Flags):
    """Flags of this study."""

    n: study.Compared[study.TwoOrMore] = (10, 20, 40)
    """Numbers of tokens of a trajectory."""
    noises: study.Compared[study.Positive] = (0.01, 0.02, 0.04)
    """Standard deviations of the observations."""
    times: study.Compared[study.Count] = (2, 5, 10)
    """Numbers of observed times, evenly up to --t-final; each divides the number of steps."""
    heads: study.Count = 1
    """Number of heads."""
    trajectories: study.Count = 3
    """Trajectories with the same heads."""
    paths: study.TwoOrMore = 6
    """Data sets of each case, each with its own heads, tokens and noise."""
    t_final: study.Positive = 1.0
    dt: study.Positive = 0.1
    workers: tyro.conf.Suppress[int] = 0
    out: study.Folder = Path("results/inference")


def data(
    flags: Inference, n: int, noise: float, times: int, path: int
) -> tuple[Any, Any, Any, Any]:
    """Return heads, initial tokens, times and noisy observations of a data set."""
    rng = np.random.default_rng([flags.seed, path])
    D = rng.standard_normal((flags.heads, 3, 3))
    x0 = wflow.sphere.as_tokens(rng.standard_normal((flags.trajectories, n, 3)))
    seen = flags.t_final * np.arange(1, times + 1) / times
    run = wflow.solve(
        x0, Frozen(), heads=D, t_final=flags.t_final, dt=flags.dt, scheme="rk4", paths=len(x0),
        save=SaveAt(snapshots=seen, paths=range(len(x0)), budget=False),
    )  # fmt: skip
    x = run.tokens.values
    rng = np.random.default_rng([flags.seed, path, n, times, round(1e9 * noise)])
    return D, x0, seen, wflow.sphere.as_tokens(x + noise * rng.standard_normal(x.shape))


def recovery(flags: Inference) -> "study.Dataset":
    """Return errors of all cases, those expected, and the share of intervals with the truth."""

    def measure(n: int, noise: float, times: int) -> dict[str, Any]:
        rows = []
        for path in range(flags.paths):
            D, x0, seen, y = data(flags, n, noise, times, path)
            start = D + NEAR * np.random.default_rng(path).standard_normal(D.shape)
            found = wflow.inference.fit(
                y, seen, Frozen(), heads=start, x0=x0, noise=noise, starts=1, dt=flags.dt,
                compute=flags.compute,
            )  # fmt: skip
            low, high = np.moveaxis(found.intervals["heads"], -1, 0)
            known = ~np.isnan(low)
            off, bars = (found.heads - D)[known], (high - low)[known] / 2 / 1.959964
            held = ((low <= D) & (high >= D))[known]
            rows.append((*(np.sqrt(np.mean(v**2)) for v in (off, bars)), held.mean(), known.mean()))
        return dict(zip(VARIABLES, np.transpose(rows), strict=True))

    cases = {
        "n": (flags.n, "number of tokens"),
        "noise": (flags.noises, "standard deviation of the observations"),
        "times": (flags.times, "number of observed times"),
    }
    along = {"path": (np.arange(flags.paths), "data set")}
    texts = {name: (("path",), text) for name, text in VARIABLES.items()}
    return study.tabulate(cases, measure, texts, along, "fits")


VARIABLES = {
    "error": "root mean square error of the entries of the heads",
    "expected": "root mean square of their standard errors",
    "held": "share of the 95 % intervals that hold the truth",
    "decided": "share of the entries that are decided",
}


def undecided(flags: Inference) -> dict[str, tuple[list[tuple[str, int]], list[tuple[str, int]]]]:
    """Return directions found and expected, without noise, in cases where they are known."""
    M, times = np.diag([1.0, 0.5, -0.5]), [0.5 * flags.t_final, flags.t_final]
    x = wflow.tokens.uniform(20, 3, seed=flags.seed)
    flat = np.pad(wflow.tokens.uniform(20, 2, seed=flags.seed), ((0, 0), (0, 1)))
    rest = OrnsteinUhlenbeck(M, 1.0, 0.0)
    cases: dict[str, Any] = {
        "tokens in a plane": (
            flat, Frozen(), np.diag([1.0, -1.0, 0.0])[None], None,
            [("parts of heads off the span of the tokens", 3)],
        ),
        "two equal heads": (
            x, Frozen(), np.stack([M, M]), None,
            [("differences of heads 0 and 1", 9)],
        ),
        "heads at their mean": (x, rest, M[None], ["mean", "rate"], [("rate", 1)]),
        "one head": (x, Frozen(), M[None], None, []),
    }  # fmt: skip
    found = {}
    for name, (x0, law, heads, estimate, expected) in cases.items():
        run = wflow.solve(
            x0, law, heads=heads, t_final=flags.t_final, dt=flags.dt, scheme="rk4",
            save=SaveAt(snapshots=times, budget=False),
        )  # fmt: skip
        fit = wflow.inference.fit(
            run.tokens, times, law, heads=heads, estimate=estimate, x0=x0, noise=SMALL, starts=1,
            dt=flags.dt,
        )  # fmt: skip
        found[name] = ([(each.name, each.count) for each in fit.undecided], expected)
    return found


def findings(table: "study.Dataset", named: dict[str, Any]) -> list[Finding]:
    """Return every prediction with its verdict."""
    ratio = np.sqrt((table["error"] ** 2).mean("path") / (table["expected"] ** 2).mean("path"))
    total = float(np.sqrt((table["error"] ** 2).mean() / (table["expected"] ** 2).mean()))
    held = float((table["held"] * table["decided"]).sum() / table["decided"].sum())
    laws = {}
    logarithm: Any = np.log(table["expected"])
    for name in ("noise", "n", "times"):
        others = [dim for dim in ("noise", "n", "times") if dim != name]
        values = logarithm.mean(others).transpose(name, "path")
        laws[name] = fits.power_law(table[name].values, np.exp(values.values))
    text = "; ".join(f"{name}: {', '.join(f'{w} ({k})' for w, k in got) or 'none'}"
                     for name, (got, _) in named.items())  # fmt: skip
    return [
        Finding.decided(
            "errors of estimated heads are as large as the Fisher information says", THEORY,
            f"{total:.2f} times those expected over all cases, {float(ratio.min()):.2f} to "
            f"{float(ratio.max()):.2f} in single ones", abs(total - 1) <= SAME,
        ),
        Finding.decided(
            "95 % intervals hold the truth in 90 to 98 of 100 cases", THEORY,
            f"{100 * held:.1f} % of the intervals", COVERED[0] <= held <= COVERED[1],
        ),
        Finding.slope(
            "standard errors grow like the noise and fall like $n^{-1/2}$ and like the root of the "
            "number of times", THEORY, laws, {"noise": 1.0, "n": -0.5, "times": -0.5}, 0.2,
        ),
        Finding.decided(
            "directions that the observations do not decide are named, not estimated", THEORY, text,
            [got == expected for got, expected in named.values()],
        ),
    ]  # fmt: skip


# Tables and figures
# ------------------


def report(table: "study.Dataset") -> str:
    """Return the table of all cases."""
    rows = [
        {
            "n": str(n), "noise": f"{noise:g}", "times": str(times),
            "error": f"{float(np.sqrt((at['error'] ** 2).mean())):.4f}",
            "expected": f"{float(np.sqrt((at['expected'] ** 2).mean())):.4f}",
            "held": f"{100 * float(at['held'].mean()):.0f} %",
        }
        for n in table["n"].values
        for noise in table["noise"].values
        for times in table["times"].values
        for at in [table.sel(n=n, noise=noise, times=times)]
    ]  # fmt: skip
    return study.markdown_table(rows)


def figure(flags: Inference, table: "study.Dataset") -> "study.Figure":
    """Draw errors, found and expected, against the number of tokens, the noise, and the times."""
    with style():
        drawn, axes = grid(1, 3, PAGE, 2.5, sharey=True)
        labels = {"n": "Tokens $n$", "noise": "Noise", "times": "Observed times"}
        middle = {dim: table[dim].values[len(table[dim]) // 2] for dim in labels}
        for axis, (name, label) in zip(axes[0], labels.items(), strict=True):
            part = table.sel({dim: value for dim, value in middle.items() if dim != name})
            for key, look in (("error", "o"), ("expected", "-")):
                mean = np.sqrt((part[key] ** 2).mean("path"))
                axis.loglog(table[name], mean, look, label={"error": "found"}.get(key, key))
            axis.set_xticks(table[name].values, [f"{v:g}" for v in table[name].values])
            axis.set_xticks([], minor=True)
            axis.set(xlabel=label)
        axes[0, 0].set(ylabel="Error of an entry")
        axes[0, 0].legend()
    return drawn


def main() -> None:
    flags = study.command_line(Inference, __doc__)
    with study.session("inference", flags) as session:
        table = recovery(flags)
        found = findings(table, undecided(flags))
        session.finish(table, report(table), found, {"errors": figure(flags, table)})


if __name__ == "__main__":
    script(main)
