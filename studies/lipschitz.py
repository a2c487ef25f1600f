"""Lipschitz: how strongly does a layer react to its tokens, beside the bounds for all tokens?

The local Lipschitz constant of one layer (softmax) against the number n of tokens, for uniform
tokens and for two clouds of opposite tokens under the head -beta I, whose constant is known in
closed form: one token against all others, and a share e^(-2 beta) of them. Then along runs under H
random symmetric heads of norm beta: the growth of W_2 to a cloud nearby, the integral of the local
constants, and the exponent of `wflow.stability`: docs/theory/chaos.md.

    python studies/lipschitz.py --compute.threads 1
    python studies/lipschitz.py --betas 1 2 --n 8 64 512

[CAP] Castin, Ablin, Peyré, How Smooth Is Attention?, arXiv 2312.14820.
"""

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import wflow
from wflow import InputError, fits, stability, study
from wflow.cli import script
from wflow.plots.figure import PAGE, grid, log_axis, shade, style
from wflow.sphere import normalise, project
from wflow.study import Finding

CLOUDS = ("one", "share")
DIRECTIONS = ("descent", "ascent")
EPS = 1e-5  # size of the perturbation of a run
TOLERANCE = 1e-6  # of the constants
THEORY = "docs/theory/chaos.md"


@dataclass(frozen=True, kw_only=True)
class Lipschitz(study.Flags):
    """Flags of this study."""

    betas: study.Compared[study.Positive] = (1.0, 2.0, 3.0, 4.0)
    """Norms of the heads."""
    n: study.Compared[study.TwoOrMore] = (8, 32, 128, 512, 2048)
    """Numbers of tokens of a layer."""
    heads: study.Compared[study.Count] = (1, 4, 16)
    """Numbers H of heads of a run."""
    d: study.Dimension = 3
    """Dimension: tokens live on the sphere S^(d-1)."""
    tokens: study.TwoOrMore = 32
    """Number of tokens of a run."""
    paths: study.TwoOrMore = 4
    """Uniform clouds, each with heads of its own."""
    t_final: study.Positive = 1.0
    dt: study.Positive = 0.02
    times: study.TwoOrMore = 11
    """Times at which local constants are measured along a run."""
    out: study.Folder = Path("results/lipschitz")

    def check(self) -> None:
        super().check()
        if self.workers or self.scheduler:
            raise InputError("--workers and --scheduler: the constants take this process alone")


def opposite(beta: float, n: int, cloud: str) -> int:
    """Return how many of n tokens are opposite to the others."""
    return max(1, min(n // 2, round(n * np.exp(-2 * beta)))) if cloud == "share" else 1


def predicted(beta: float, n: int, k: int) -> float:
    """Return the constant of k tokens opposite to n - k others, under -beta I."""
    m = n - k
    p = 1 / (1 + m / k * np.exp(-2 * beta))  # weight of the k tokens for the others
    q = 1 / (1 + k / m * np.exp(-2 * beta))  # weight of the others for the k tokens
    return float(beta * np.sqrt(n * (p**2 / k + q**2 / m)))


def constant(x: study.FloatArray, heads: study.FloatArray) -> float:
    return wflow.lipschitz(x, heads, tolerance=TOLERANCE).constant


def layers(flags: Lipschitz) -> "study.Dataset":
    """Return the constants of one layer against n."""
    pole = np.eye(flags.d)[0]

    def measure(beta: float, n: int) -> dict[str, Any]:
        head = -beta * np.eye(flags.d)[None]
        uniform = wflow.tokens.uniform(n * flags.paths, flags.d, seed=flags.seed)
        counts = [opposite(beta, n, cloud) for cloud in CLOUDS]
        clouds = [np.where(np.arange(n)[:, None] < k, -pole, pole) for k in counts]
        root = beta + beta**2 + beta * np.sqrt(1 + beta**2) * np.sqrt(n)
        return {
            "uniform": [constant(x, head) for x in uniform.reshape(flags.paths, n, -1)],
            "opposite": [constant(x, head) for x in clouds],
            "predicted": [predicted(beta, n, k) for k in counts],
            "bound": min(root, stability.growth_constant(head, direction="ascent")),
        }

    return study.tabulate(
        {"beta": (flags.betas, "norm of the heads"), "n": (flags.n, "number of tokens")},
        measure,
        {
            "uniform": (("path",), "constant of uniform tokens"),
            "opposite": (("cloud",), "constant of opposite tokens"),
            "predicted": (("cloud",), "the same in closed form"), "bound": "bound for all tokens",
        },
        {
            "path": (np.arange(flags.paths), "cloud of uniform tokens"),
            "cloud": (CLOUDS, "how many tokens are opposite to the others"),
        },
        "layers",
    )  # fmt: skip


def runs(flags: Lipschitz) -> "study.Dataset":
    """Return the logarithmic growth of W_2 and what bounds it, of every run."""
    times = np.unique(np.rint(np.linspace(0, flags.t_final, flags.times) / flags.dt)) * flags.dt

    def one(direction: study.Direction, beta: float, count: int, path: int) -> list[float]:
        heads = study.initial_heads(flags.seed + path, count, flags.d)
        heads *= beta / np.linalg.norm(heads, 2, axis=(1, 2), keepdims=True)
        x0 = wflow.tokens.uniform(flags.tokens, flags.d, seed=flags.seed + path)
        way = wflow.lipschitz(x0, heads, tolerance=TOLERANCE).direction
        other = np.random.default_rng([flags.seed, path]).standard_normal(x0.shape)
        save = wflow.SaveAt(snapshots=times, budget=False)

        def run(x: Any) -> "study.Dataset":
            return wflow.solve(
                x, wflow.heads.Frozen(), heads=heads, t_final=flags.t_final, dt=flags.dt,
                direction=direction, scheme="rk4", save=save, compute=flags.compute,
            )  # fmt: skip

        reference = run(x0)
        growth = []
        for field in (way, project(x0, other)):
            moved = normalise(x0 + EPS * np.sqrt(len(x0)) * field / np.linalg.norm(field))
            distance = stability.compare(reference, run(moved))["w2_chordal"].values[0]
            growth.append(np.log(distance[1:] / distance[0]).max())
        local = [constant(x, heads) for x in reference["tokens"].values[0]]
        bound = float(stability.exponent(reference)[0, -1])
        return [max(growth), float(np.trapezoid(local, times)), bound]

    def measure(direction: study.Direction, beta: float, heads: int) -> dict[str, Any]:
        found = np.array([one(direction, beta, heads, path) for path in range(flags.paths)])
        return dict(zip(("growth", "local", "exponent"), found.T, strict=True))

    return study.tabulate(
        {
            "direction": (DIRECTIONS, "direction of the flow"),
            "beta": (flags.betas, "norm of the heads"), "heads": (flags.heads, "number H of heads"),
        },
        measure,
        {
            "growth": (("path",), "largest log(W_2(t)/W_2(0)) of two perturbations"),
            "local": (("path",), "integral of the local constants"),
            "exponent": (("path",), "exponent of the bound of wflow.stability"),
        },
        {"path": (np.arange(flags.paths), "cloud of uniform tokens, and its heads")},
        "runs",
    )  # fmt: skip


def findings(flags: Lipschitz, layer: "study.Dataset", run: "study.Dataset") -> list[Finding]:
    """Return what is measured beside what is proved."""

    def span(values: study.FloatArray) -> str:
        return f"{values.min():.3g} to {values.max():.3g}" if values.size else "no case tried"

    beta, n = np.meshgrid(flags.betas, flags.n, indexing="ij")
    uniform, opposite, bound = (layer[name].values for name in ("uniform", "opposite", "bound"))
    off = np.abs(opposite / layer["predicted"].values - 1)
    share = np.maximum(opposite.max(axis=-1), uniform.max(axis=-1)) / bound
    one, many = opposite[..., 0], opposite[..., 1]
    moderate, large = n <= np.exp(2 * beta) / 8, n >= np.exp(2 * beta)
    of_root = (one / (beta * np.sqrt(n)))[moderate]
    of_exponential = (2 * many / (beta * np.exp(beta)))[large]
    above = (bound / many)[large]
    laws = {
        f"β = {beta:g}:": fits.power_law(flags.n[-3:], of[-3:])
        for beta, of in zip(flags.betas, uniform, strict=True)
    }
    growth, local, exponent = (run[name].values for name in ("growth", "local", "exponent"))
    mean = local.mean(axis=(0, 3)) / flags.t_final
    return [
        Finding.decided(
            "tokens opposite to the others have the constant {eq}`eq-opposite-tokens`", THEORY,
            f"relative difference at most {off.max():.1g} in {off.size} cases", off < TOLERANCE,
        ).of_theorem(),
        Finding.decided(
            "the local Lipschitz constant of a layer is at most of order $\\sqrt n$, and this is "
            "tight for moderate n: one opposite token has about $\\beta \\sqrt n$ for $n \\le "
            "e^{2\\beta}/8$", THEORY,
            f"at most {share.max():.2g} of {{eq}}`eq-local-lipschitz` in {share.size} cases; "
            f"{span(of_root)} times $\\beta \\sqrt n$",
            np.concatenate([share.ravel() <= 1, of_root >= 0.5]), known=bool(of_root.size),
        ).of_theorem(),
        Finding.decided(
            "for large n the upper bound and a lower one do not depend on n: a share "
            "$e^{-2\\beta}$ of opposite tokens has about $\\beta e^\\beta/2$ or more for $n \\ge "
            "e^{2\\beta}$", THEORY,
            f"{span(of_exponential)} times this; bound over constant: {span(above)}",
            (of_exponential >= 0.9) & (above >= 1), known=bool(above.size),
        ).of_theorem(),
        Finding.slope(
            "the local Lipschitz constant of many uniform tokens hardly depends on n: for the "
            "three largest n it is a power within 0.1 of 0", THEORY, laws, 0.0, 0.1, whole=True,
        ),
        Finding.decided(
            "along a run the logarithm of the growth of $W_2$ is at most the integral of the local "
            "constants, and this at most the exponent of the bound", THEORY,
            f"growth at most {(growth / local).max():.3f} of the integral, which is at most "
            f"{(local / exponent).max():.2g} of the exponent, in {growth.size} runs",
            (growth <= local) & (local <= exponent),
        ).of_theorem(),
        Finding.decided(
            "more random heads of one norm have a smaller constant, which the bound does not see",
            THEORY, "; ".join(
                f"β = {beta:g}: " + ", ".join(f"{value:.2f}" for value in of)
                for beta, of in zip(flags.betas, mean, strict=True)
            ) + f" for H = {', '.join(map(str, flags.heads))}, along the runs",
            np.diff(mean) < 0,
        ),
    ]  # fmt: skip


def report(flags: Lipschitz, layer: "study.Dataset", run: "study.Dataset") -> str:
    """Return the tables of layers and runs."""
    rows = [
        {
            "beta": f"{beta:g}", "tokens": name,
            **{f"n = {n}": f"{float(value):.3g}" for n, value in zip(flags.n, of, strict=True)},
        }
        for beta in flags.betas
        for name, of in (
            ("uniform", layer["uniform"].sel(beta=beta).mean("path")),
            ("one opposite", layer["opposite"].sel(beta=beta, cloud="one")),
            ("a share opposite", layer["opposite"].sel(beta=beta, cloud="share")),
            ("bound", layer["bound"].sel(beta=beta)),
        )
    ]  # fmt: skip
    along = []
    for direction, beta, heads in product(DIRECTIONS, flags.betas, flags.heads):
        of = run.sel(direction=direction, beta=beta, heads=heads).mean("path")
        row = {"direction": direction, "beta": f"{beta:g}", "H": str(heads)}
        for name in ("growth", "local", "exponent"):
            row[name] = f"{float(of[name]):.3g}"
        along.append(row)
    return (
        f"Local Lipschitz constants of a layer, head -beta I, d = {flags.d}; uniform: mean of "
        f"{flags.paths} clouds:\n\n{study.markdown_table(rows)}\n\n"
        f"Runs from n = {flags.tokens} uniform tokens to T = {flags.t_final:g}, H random heads of "
        f"norm beta; largest log(W_2(t)/W_2(0)), integral of the local constants, exponent of the "
        f"bound; means over {flags.paths} clouds:\n\n{study.markdown_table(along)}"
    )


def figure(flags: Lipschitz, layer: "study.Dataset", run: "study.Dataset") -> "study.Figure":
    """Draw constants against n, and growth of the runs against what bounds it."""
    with style():
        drawn, axes = grid(1, 3, PAGE, 2.8)
        left, middle, right = axes.flat
        for k, beta in enumerate(flags.betas):
            ink, of = shade(k, len(flags.betas)), layer.sel(beta=beta)
            left.plot(flags.n, of["uniform"].mean("path"), color=ink, marker="o",
                      label=rf"$\beta$ = {beta:g}")  # fmt: skip
            for cloud, line in zip(CLOUDS, ("-", "--"), strict=True):
                middle.plot(flags.n, of["opposite"].sel(cloud=cloud), color=ink, linestyle=line,
                            marker="os"[cloud == "share"], markersize=3,
                            label=f"{cloud} opposite" if k == 0 else None)  # fmt: skip
            middle.plot(flags.n, of["bound"], color=ink, linestyle=":", linewidth=0.9,
                        label="bound" if k == 0 else None)  # fmt: skip
            at = run.sel(beta=beta)
            right.plot(at["local"].values.ravel(), at["growth"].values.ravel(), "o", color=ink,
                       markersize=3)  # fmt: skip
        right.axline((1, 1), (2, 2), color="0.4", linestyle=":")
        for axis, title in ((left, "Uniform tokens"), (middle, "Opposite tokens")):
            axis.set(xlabel="Number of tokens $n$", ylabel="Constant $L$", title=title)
            axis.set(xscale="log", yscale="log")
            log_axis(axis)
            axis.legend(loc="best", fontsize=7)
        right.set(xlabel="Integral of the local constants", ylabel=r"Growth of $\log W_2$",
                  title="Runs")  # fmt: skip
    return drawn


def main() -> None:
    flags = study.command_line(Lipschitz, __doc__)
    flags = replace(
        flags, n=tuple(sorted(flags.n)), betas=tuple(sorted(flags.betas)),
        heads=tuple(sorted(flags.heads)),
    )  # fmt: skip
    with study.session("lipschitz", flags) as session:
        layer, run = layers(flags), runs(flags)
        session.finish(
            layer.merge(run), report(flags, layer, run), findings(flags, layer, run),
            {"constants": figure(flags, layer, run)},
        )  # fmt: skip


if __name__ == "__main__":
    script(main)
