"""Chaos: do heads that move make nearby clouds part, or do they make them agree?

The largest Lyapunov exponent of the tokens under heads of the size beta: Ornstein-Uhlenbeck heads
about beta I with sigma^2 = 2 beta^2, and beta times the oscillating heads of [MHT]. In ascent the
tokens form one cluster, which moves with the mean of the heads. The noise of Ornstein-Uhlenbeck
heads then makes all clouds agree, at a rate that is s = sigma^2/(rate^2 H) to leading order in s;
the exponents of one token are -s, -2 s, and so on. The mean of three or more oscillating heads is
at rest: docs/theory/chaos.md.

    python studies/chaos.py
    python studies/chaos.py --heads 4 16 64 --betas 1 4

[MHT] Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870, section 6.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import wflow
from wflow import InputError, study
from wflow.cli import script
from wflow.heads import HeadLaw, OrnsteinUhlenbeck, Oscillating
from wflow.plots.figure import PAGE, grid, log_axis, shade, style
from wflow.study import Finding

LAWS = ("ornstein-uhlenbeck", "oscillating")
DIRECTIONS = ("ascent", "descent")
TIMES = 100  # of the running averages
ZERO = 0.02  # an exponent that counts as none
SINGLE = 64  # paths of one token, under 32 heads of size 1
THEORY = "docs/theory/chaos.md"


@dataclass(frozen=True, kw_only=True)
class Chaos(study.Flags):
    """Flags of this study."""

    heads: study.Distinct[study.Count] = (2, 8, 32)
    """Numbers of heads H."""
    betas: study.Distinct[study.Positive] = (0.5, 1.0, 2.0)
    """Sizes of the heads."""
    n: study.TwoOrMore = 12
    """Number of tokens."""
    d: study.Dimension = 3
    """Dimension: tokens live on the sphere S^(d-1)."""
    paths: study.TwoOrMore = 8
    """Monte Carlo paths, each with initial tokens of its own."""
    t_final: study.Positive = 200.0
    """End time; the first fifth is left out of the averages."""
    dt: study.Positive = 0.1
    """Time step for beta <= 1; for others it is divided by beta."""
    seed: study.Natural = 0
    """Seed of tokens, heads and noise."""
    out: study.Folder = Path("results/chaos")

    def check(self) -> None:
        super().check()
        if self.workers or self.scheduler:
            raise InputError("--workers and --scheduler: the exponents take this process alone")
        if 0.8 * self.t_final < TIMES * self.dt:
            least = TIMES * self.dt / 0.8
            raise InputError(f"--t-final is {self.t_final:g}: expected {least:g} or more")


class Scaled(Oscillating):
    """Oscillating heads times beta."""

    def __init__(self, d: int, beta: float) -> None:
        super().__init__(d)
        self.beta = beta

    def target(self, t: float, heads: int) -> study.FloatArray:
        return self.beta * super().target(t, heads)


def law_of(name: str, d: int, beta: float) -> HeadLaw:
    """Return the law of the heads."""
    if name == "oscillating":
        return Scaled(d, beta)
    return OrnsteinUhlenbeck(beta * np.eye(d), rate=1.0, sigma2=2 * beta**2)


def collect(flags: Chaos) -> "study.Dataset":
    """Return the largest exponent of every path, with its interval and running averages."""
    clouds = [
        wflow.tokens.uniform(flags.n, flags.d, seed=flags.seed + p) for p in range(flags.paths)
    ]
    cases: dict[str, Any] = {
        "law": (LAWS, "law of the heads"), "direction": (DIRECTIONS, "direction of the flow"),
        "beta": (flags.betas, "size of the heads"), "heads": (flags.heads, "number H of heads"),
    }  # fmt: skip

    def measure(law: str, direction: study.Direction, beta: float, heads: int) -> dict[str, Any]:
        found = wflow.lyapunov(
            np.stack(clouds), law_of(law, flags.d, beta), heads=heads, t_final=flags.t_final,
            dt=flags.dt / max(1.0, beta), paths=flags.paths, seed=flags.seed, direction=direction,
            transient=flags.t_final / 5, compute=flags.compute,
        )  # fmt: skip
        return {
            "exponent": found.exponents[:, 0], "interval": found.interval[0],
            "running": found.running[:, :, 0],
        }  # fmt: skip

    times = np.linspace(flags.t_final / 5, flags.t_final, TIMES + 1)[1:]
    return study.tabulate(
        cases, measure,
        {
            "exponent": (("path",), "largest Lyapunov exponent"),
            "interval": (("end",), "95 % interval of its mean over the paths"),
            "running": (("path", "time"), "average of the largest exponent up to the time"),
        },
        {
            "path": (np.arange(flags.paths), "Monte Carlo path"),
            "end": (("low", "high"), "end of the interval"), "time": (times, "time"),
        },
        "exponents",
    )  # fmt: skip


def sizes(flags: Chaos) -> study.FloatArray:
    """Return s = sigma^2/(rate^2 H) of Ornstein-Uhlenbeck heads, (betas, heads)."""
    return np.array([[2 * beta**2 / heads for heads in flags.heads] for beta in flags.betas])


def single(flags: Chaos) -> tuple[float, study.FloatArray]:
    """Return s, and the intervals of the exponents of one token over -j s, (d - 1, 2)."""
    heads = 32
    s = 2 / heads
    start = np.eye(flags.d)[:1]
    found = wflow.lyapunov(
        start, law_of("ornstein-uhlenbeck", flags.d, 1.0), heads=heads, exponents=flags.d - 1,
        t_final=2 * flags.t_final, dt=flags.dt, paths=SINGLE, seed=flags.seed, direction="ascent",
        transient=flags.t_final / 5, compute=flags.compute,
    )  # fmt: skip
    return s, -found.interval[:, ::-1] / (s * np.arange(1, flags.d)[:, None])


def findings(flags: Chaos, table: "study.Dataset") -> list[Finding]:
    """Return what becomes of nearby clouds under each law."""

    def ends(law: str, direction: str) -> tuple[study.FloatArray, study.FloatArray]:
        of = table["interval"].sel(law=law, direction=direction)
        return of.sel(end="low").values.ravel(), of.sel(end="high").values.ravel()

    def listed(law: str, direction: str, least: int = 1) -> str:
        of = table["exponent"].sel(law=law, direction=direction)
        mean = of.isel(heads=of["heads"] >= least).mean("path")
        if not mean.size:
            return "no case"
        return f"largest exponents from {float(mean.min()):.3g} to {float(mean.max()):.3g}"

    ou, oscillating = LAWS
    s, ratios = single(flags)
    low, high = ends(ou, "ascent")
    found = [
        Finding.decided(
            "in ascent the noise of Ornstein-Uhlenbeck heads makes nearby clouds agree", THEORY,
            listed(ou, "ascent"), high < 0, known=(high < 0) | (low > 0),
        ),
        Finding.within(
            "the exponents of one token are $-j s$ to leading order, $s = \\sigma^2/(r^2 H)$, "
            f"$j$ from 1 to $d - 1$: within 15 % for $s$ = {s:g}", THEORY,
            "exponents over $-j s$: " + ", ".join(
                f"{(low + high) / 2:.3f} ± {(high - low) / 2:.2g}" for low, high in ratios
            ),
            ratios[:, 0] - 1, ratios[:, 1] - 1, 0.15,
        ),
    ]  # fmt: skip
    many = np.tile(np.array(flags.heads) >= 3, len(flags.betas))
    low, high = (end[many] for end in ends(oscillating, "ascent"))
    found.append(
        Finding.within(
            "in ascent three or more oscillating heads, whose mean is at rest, leave the cluster "
            f"where it is: the largest exponent is 0 within {ZERO:g}", THEORY,
            listed(oscillating, "ascent", least=3), low, high, ZERO,
        )
    )  # fmt: skip
    return found


def report(flags: Chaos, table: "study.Dataset") -> str:
    """Return the table of the exponents."""
    rows = []
    for law in LAWS:
        for direction in DIRECTIONS:
            for beta in flags.betas:
                of = table.sel(law=law, direction=direction, beta=beta)
                row = {"heads": law, "direction": direction, "beta": f"{beta:g}"}
                for heads in flags.heads:
                    low, high = of["interval"].sel(heads=heads).values
                    row[f"H = {heads}"] = f"{(low + high) / 2:.3f} ± {(high - low) / 2:.2g}"
                rows.append(row)
    return (
        f"Largest Lyapunov exponent, softmax, n = {flags.n}, d = {flags.d}, T = "
        f"{flags.t_final:g}; mean over {flags.paths} paths and 95 % interval:\n\n"
        f"{study.markdown_table(rows)}"
    )


def exponents_figure(flags: Chaos, table: "study.Dataset") -> "study.Figure":
    """Draw the rates of agreement against s, the exponents of descent, and their convergence."""
    with style():
        figure, axes = grid(1, 3, PAGE, 2.6)
        left, middle, right = axes.flat
        for k, beta in enumerate(flags.betas):
            ink = shade(k, len(flags.betas))
            of = table.sel(beta=beta)
            ascent = of.sel(law="ornstein-uhlenbeck", direction="ascent")
            size = -ascent["exponent"].mean("path").values
            off = np.ptp(ascent["interval"].values, axis=-1) / 2
            left.errorbar(
                sizes(flags)[k],
                size,
                off,
                color=ink,
                fmt="o",
                capsize=2,
                label=rf"$\beta$ = {beta:g}",
            )
            for law, marker, line in zip(LAWS, "os", ("-", "--"), strict=True):
                descent = of.sel(law=law, direction="descent")
                mean = descent["exponent"].mean("path").values
                off = np.ptp(descent["interval"].values, axis=-1) / 2
                label = law if k == 0 else None
                middle.errorbar(flags.heads, mean, off, color=ink, marker=marker, linestyle=line,
                                capsize=2, label=label)  # fmt: skip
            last = of.sel(law="ornstein-uhlenbeck", direction="descent").isel(heads=-1)
            for path in last["running"].values:
                right.plot(table["time"], path, color=ink, linewidth=0.8)
        span = np.array([sizes(flags).min(), 1.0])
        left.plot(span, span, color="0.4", linestyle=":", label="$s$")
        left.set(xscale="log", yscale="log", xlabel=r"$s = \sigma^2/(r^2 H)$",
                 ylabel=r"$-\lambda_1$", title="Ascent, Ornstein-Uhlenbeck")  # fmt: skip
        middle.set(xscale="log", xlabel="Number of heads $H$", ylabel=r"$\lambda_1$",
                   title="Descent")  # fmt: skip
        middle.set_xticks(flags.heads, [str(h) for h in flags.heads])
        middle.minorticks_off()
        right.set(xlabel="Time", ylabel=r"Running average of $\lambda_1$",
                  title=f"Descent, $H$ = {flags.heads[-1]}, each path")  # fmt: skip
        for axis in (middle, right):
            axis.axhline(0.0, color="0.7", linewidth=0.8)
        log_axis(left)
        left.legend(loc="lower right")
        middle.legend(loc="best")
    return figure


def main() -> None:
    flags = study.command_line(Chaos, __doc__)
    with study.session("chaos", flags) as session:
        table = collect(flags)
        session.finish(
            table, report(flags, table), findings(flags, table),
            {"exponents": exponents_figure(flags, table)},
        )  # fmt: skip


if __name__ == "__main__":
    script(main)
