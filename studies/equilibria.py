"""Limits of ascent and descent for one frozen head, against the extremal energies of [BKKRW].

For D positive definite, D = beta I, D negative definite, and two indefinite D, the eigenvalue of
largest size positive in one ("indefinite +") and negative in the other, tokens start from many
random clouds, half of them uniform on the sphere and half on a random hemisphere, and move
for a long time up or down the energy. The limit clouds are compared with the measures of largest
and least energy, and clouds of n tokens with the uniform measure as n grows.

    python studies/equilibria.py

[BKKRW] Burger, Kabri, Korolev, Roith, Weigand, *Analysis of mean-field models arising from
self-attention dynamics in transformer architectures with layer normalization*, 2025.
"""

import math
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import InputError, SaveAt, equilibria, study
from wflow._core.checks import count_steps
from wflow.analysis.fits import mean_and_error
from wflow.cli import script
from wflow.heads import Frozen
from wflow.plots.figure import PAGE, caption, grid, style
from wflow.plots.tokens import FAR, NEAR, sphere
from wflow.sphere import normalise
from wflow.study import Finding, FloatArray, SchemeName

DIRECTIONS = ("ascent", "descent")
STARTS = ("sphere", "hemisphere")
CLOUDS = 4000  # of random tokens, whose mean energy is compared with its formula
NEAR_FORMULA = 0.1  # relative difference within which a mean agrees with it
_EACH = ("start", "path")
LIMITS: dict[str, Any] = {
    "energy": (_EACH, "energy of the limit cloud"),
    "extremum": "extremal energy over all measures, closed form",
    "extremum_kind": "measure that has the extremal energy",
    "form": (_EACH, "limit cloud: 0 one point, 1 antipodal pair, 2 spread out"),
    "closed_form_gap": (_EACH, "relative gap between energy and that of its point or pair"),
    "support_angle": (_EACH, "largest angle between a token and the predicted support"),
    "speed": (_EACH, "root mean square speed of the tokens at the end"),
}
SIZES: dict[str, Any] = {
    "size_start_energy": (("cloud",), "energy of n uniform random tokens"),
    "size_limit_energy": (("path",), "energy of n tokens after descent"),
    "size_sampled": "mean energy of n uniform random tokens, closed form",
    "size_minimal": "least energy of n tokens, where it is known",
}
FORMS = ("one point", "antipodal pair", "spread out")
ENDS = ("in one point", "in an antipodal pair", "spread out")
REACHED = 1e-6  # relative distance of an energy from the extremum, at which it counts as reached
GATHERED = 1e-2  # angle in radians within which tokens count as one point


@dataclass(frozen=True, kw_only=True)
class Equilibria(study.Flags):
    """Flags of this study."""

    n: study.TwoOrMore = 64
    """Number of tokens."""
    d: study.Dimension = 3
    """Dimension: tokens live on the sphere S^(d-1)."""
    beta: study.Positive = 2.0
    """Largest size of an eigenvalue of D."""
    paths: study.TwoOrMore = 32
    """Random starts of each kind: uniform on the sphere, and on a random hemisphere."""
    sizes: study.Distinct[study.TwoOrMore] = (4, 6, 12, 24, 48, 96)
    """Numbers of tokens that descend with D = beta I, against the uniform measure."""
    flow: Literal["softmax", "unnormalised"] = "softmax"
    """Attention with softmax (for one head the effective flow too), or without denominator."""
    scheme: SchemeName = "heun"
    """Time stepping."""
    t_final: study.Positive = 200.0
    """End time T, long enough to come to rest."""
    dt: study.Positive = 0.1
    out: study.Folder = Path("results/equilibria")


def problems(flags: Equilibria) -> dict[str, FloatArray]:
    """Return the matrices: name -> D (d, d), in axes turned at random."""
    b, d = flags.beta, flags.d
    turn = np.linalg.qr(np.random.default_rng(flags.seed).standard_normal((d, d)))[0]
    spectra = {
        "positive": np.linspace(b, b / 4, d),
        "isotropic": np.full(d, b),
        "negative": -np.linspace(b, b / 4, d),
        "indefinite +": np.linspace(b, -b / 2, d),
        "indefinite -": np.linspace(b / 2, -b, d),
    }
    matrices = {name: turn @ np.diag(values) @ turn.T for name, values in spectra.items()}
    return {name: (D + D.T) / 2 for name, D in matrices.items()}


def starts(flags: Equilibria, n: int) -> FloatArray:
    """Return random clouds (2 paths, n, d): first on the sphere, then on hemispheres."""
    rng = np.random.default_rng([flags.seed, n])
    x = normalise(rng.standard_normal((2 * flags.paths, n, flags.d)))
    pole = rng.standard_normal((2 * flags.paths, 1, flags.d))
    pole[: flags.paths] = 0
    return np.where((x * pole).sum(axis=-1, keepdims=True) < 0, -x, x)


def tasks(flags: Equilibria) -> dict[str, dict[str, Any]]:
    """Return all runs: name -> arguments of `wflow.solve`."""
    matrices = problems(flags)
    common = {
        "law": Frozen(), "t_final": flags.t_final, "dt": flags.dt, "seed": flags.seed,
        "flow": flags.flow, "scheme": flags.scheme,
    }  # fmt: skip
    every = count_steps(flags.t_final, flags.dt)
    x0 = starts(flags, flags.n)
    runs = {
        f"problem{k}_{direction}": common | {
            "x0": x0, "heads": D[None], "direction": direction, "paths": len(x0),
            "save": SaveAt(every=every, paths=range(len(x0))),
        }
        for k, D in enumerate(matrices.values())
        for direction in DIRECTIONS
    }  # fmt: skip
    return runs | {
        f"isotropic_n{n:05d}": common | {
            "x0": starts(flags, n)[: flags.paths], "heads": matrices["isotropic"][None],
            "paths": flags.paths, "save": SaveAt(every=every, paths=range(flags.paths)),
        }
        for n in flags.sizes
    }  # fmt: skip


def form_of(x: FloatArray) -> tuple[str, FloatArray, float]:
    """Return what a limit cloud is: its form, direction v, and share of the tokens at v."""
    v = np.linalg.eigh(x.T @ x)[1][:, -1]
    side = x @ v
    angle = np.arctan2(np.linalg.norm(x - side[:, None] * v, axis=1), np.abs(side))
    share = float(np.mean(side > 0))
    if share < 0.5:
        v, share = -v, 1 - share
    if angle.max() > GATHERED:
        return FORMS[2], v, share
    return FORMS[0 if share == 1 else 1], v, share


def end_of(
    flags: Equilibria, x: FloatArray, energy: float, D: FloatArray, best: Any
) -> dict[str, float]:
    """Return the form of a limit cloud, how far it is from its extremum, and its speed."""
    form, v, share = form_of(x)
    velocity = wflow.velocity(x, D[None], flow=flags.flow)
    gap = angle = math.nan
    if form != "spread out":
        gap = abs(energy / equilibria.pair_energy(D, v, share) - 1)
    if best is not None and best.support is not None:
        within = np.linalg.norm(x @ best.support.T, axis=1)
        away = np.linalg.norm(x - x @ best.support.T @ best.support, axis=1)
        angle = np.arctan2(away, within).max()
    return {
        "energy": energy, "form": FORMS.index(form), "closed_form_gap": gap, "support_angle": angle,
        "speed": np.sqrt(np.mean(np.sum(velocity**2, axis=1))),
    }  # fmt: skip


def collect(
    flags: Equilibria, files: dict[str, Path]
) -> tuple["study.Dataset", dict[tuple[str, str], FloatArray]]:
    """Return energies, forms and distances of all limit clouds, and the clouds of every problem."""
    matrices = problems(flags)
    clouds: dict[tuple[str, str], FloatArray] = {}

    def limits(problem: str, direction: str) -> dict[str, Any]:
        D, best = matrices[problem], None
        if direction == "ascent":
            best = equilibria.maximum(D)
        elif problem != "positive":  # of which no closed form is known
            best = equilibria.minimum(D)
        with wflow.open(files[f"problem{list(matrices).index(problem)}_{direction}"]) as run:
            ends = clouds[problem, direction] = run["tokens"].values[:, -1]
            energies = run["energy"].values[:, -1]
        rows = [end_of(flags, x, E, D, best) for x, E in zip(ends, energies, strict=True)]
        return {
            name: np.array([row[name] for row in rows], float).reshape(len(STARTS), -1)
            for name in rows[0]
        } | {
            "extremum": math.nan if best is None else best.energy,
            "extremum_kind": "none" if best is None else best.kind,
        }

    def certificate(problem: str) -> dict[str, float]:
        D, together = matrices[problem], np.concatenate(clouds[problem, "descent"])
        if np.linalg.eigvalsh(D)[0] <= 0:
            return {"lower_bound": np.nan}
        # All limit clouds together: their common potential is the flattest.
        return {"lower_bound": equilibria.lower_bound(together, D, seed=flags.seed)}

    def sizes(n: int) -> dict[str, Any]:
        with wflow.open(files[f"isotropic_n{n:05d}"]) as run:
            ended = run["energy"].values[:, -1]
        x = starts(replace(flags, paths=CLOUDS), n)[:CLOUDS]
        begun = np.array([np.exp(flags.beta * one @ one.T).mean() / 2 for one in x])
        try:
            known = equilibria.minimal_cloud_energy(n, flags.beta, flags.d)
        except InputError:
            known = math.nan
        sampled = equilibria.sampled_energy(n, flags.beta, flags.d)
        return dict(zip(SIZES, (begun, ended, sampled, known), strict=True))

    problem: dict[str, Any] = {"problem": (list(matrices), "interaction matrix D")}
    cell = problem | {"direction": (DIRECTIONS, "up or down the energy")}
    along: dict[str, Any] = {"start": (STARTS, "where the tokens start")}
    along["path"] = (np.arange(flags.paths), "random start")
    table = study.tabulate(cell, limits, LIMITS, along, "limit clouds")
    text = "bound from below, from all limit clouds"
    table = table.merge(study.tabulate(problem, certificate, {"lower_bound": text}))
    size = {"size": (flags.sizes, "number of tokens n")}
    clouds_of: dict[str, Any] = {"cloud": (np.arange(CLOUDS), "cloud of random tokens")}
    table = table.merge(study.tabulate(size, sizes, SIZES, {"path": along["path"]} | clouds_of))
    uniform = equilibria.uniform_energy(flags.beta, flags.d)
    return table.assign_attrs(uniform_energy=uniform), clouds


def reached(flags: Equilibria, at: "study.Dataset") -> NDArray[np.bool_]:
    """Return starts that end at the extremal energy, or at the lowest one without a closed form."""
    best = float(at["extremum"])
    best = best if math.isfinite(best) else float(at["energy"].min())
    # Descent with D > 0 never quite ends: fine structure of the cloud relaxes more and more slowly.
    spread = str(at["extremum_kind"].values) in ("none", "uniform")
    tolerance = 1e-3 if spread else REACHED
    return np.abs(at["energy"].values / best - 1) <= tolerance


def of_problem(flags: Equilibria, problem: str, direction: str, at: "study.Dataset") -> Finding:
    extreme = "largest" if direction == "ascent" else "least"
    source = "[BKKRW]" if problem in ("positive", "isotropic") else "docs/theory/equilibria.md"
    best = float(at["extremum"])
    energies = at["energy"].values
    ends = reached(flags, at)
    shares = " and ".join(
        f"{row.sum()} of {row.size} starts on the {s}" for s, row in zip(STARTS, ends, strict=True)
    )
    if not math.isfinite(best):
        bound = float(at["lower_bound"])
        lowest = float(energies.min())
        spread = bool(np.all(at["form"].values == 2))
        good = spread and lowest - bound <= 1e-3 * lowest
        return Finding.decided(
            f"D {problem}, {direction}: the minimiser is spread out", source,
            f"{'all' if spread else 'not all'} clouds spread out; the lowest energy is "
            f"{lowest:.6f}, at most {lowest - bound:.1e} above the minimum by convexity; {shares} "
            "end there",
            ends & good,
        ).of_theorem()  # fmt: skip
    names = {"dirac": "one point", "pair": "an antipodal pair", "uniform": "the uniform measure"}
    kind = str(at["extremum_kind"].values)
    sign = 1 if direction == "ascent" else -1
    beyond = float((sign * (energies / best - 1)).max())
    gap = np.abs(energies / best - 1).min()
    numbers = f"the closed form is {best:.6f}, and the best start comes "
    numbers += f"within {gap:.0e} of it" if gap else "to its last digit"
    numbers += f"; {shares} end there"
    if not ends.all():
        others = at["form"].values[~ends]
        counts = {f: int((others == k).sum()) for k, f in enumerate(ENDS)}
        numbers += "; the others end: " + ", ".join(f"{c} {f}" for f, c in counts.items() if c)
    if kind != "uniform":
        angle = float(np.max(at["support_angle"].values[ends], initial=0))
        within = f"within an angle of {angle:.0e}" if angle else "exactly so"
        numbers += f"; tokens there lie {within}"
    good = bool(ends.any()) and beyond <= (REACHED if kind != "uniform" else 1e-9)
    claim = f"D {problem}, {direction}: the {extreme} energy is that of {names[kind]}"
    return Finding.decided(claim, source, numbers, ends & good).of_theorem()


def of_sizes(flags: Equilibria, table: "study.Dataset") -> list[Finding]:
    """Return the finding on the energy of n tokens above that of the uniform measure."""
    rows = []
    uniform = table.attrs["uniform_energy"]
    alone = table["size_sampled"].values - uniform  # what tokens add by the pairs with themselves

    def shares(name: str) -> tuple[FloatArray, FloatArray]:
        """Return the excess over the uniform measure as a share of that, and twice its error."""
        mean, error = mean_and_error(table[name].values)
        return (mean - uniform) / alone, 2 * error / alone

    share, wide = shares("size_start_energy")
    rows.append(Finding.within(
        "n independent uniform tokens lie above the uniform measure by the interaction of each "
        f"with itself: (e^beta - 2 E)/(2n) in the mean, to {100 * NEAR_FORMULA:g} %",
        "docs/theory/equilibria.md",
        "excess as a share of it: "
        + ", ".join(
            f"{s:.3f} ± {w / 2:.3f} (n = {n})"
            for n, s, w in zip(flags.sizes, share, wide, strict=True)
        ),
        share - 1 - wide, share - 1 + wide, NEAR_FORMULA,
    ))  # fmt: skip
    known = np.isfinite(table["size_minimal"].values)
    if known.any():
        lowest = table["size_limit_energy"].min("path").values[known]
        gaps = np.abs(lowest / table["size_minimal"].values[known] - 1)
        sizes = ", ".join(str(n) for n in table["size"].values[known])
        rows.append(Finding.decided(
            f"descent of n = {sizes} tokens reaches the least energy of so many tokens",
            "Cohn and Kumar 2007; docs/theory/equilibria.md",
            f"relative gap of the best start at most {gaps.max():.0e}",
            bool(np.all(gaps < REACHED)),
        ))  # fmt: skip
    share, wide = shares("size_limit_energy")
    rows.append(Finding.within(
        "after descent n tokens still lie above the uniform measure by the interaction of each "
        f"with itself, (e^beta - 2 E)/(2n), to {100 * NEAR_FORMULA:g} %",
        "a guess; docs/theory/equilibria.md, says why not",
        "excess as a share of it: "
        + ", ".join(f"{s:.1e} (n = {n})" for n, s in zip(flags.sizes, share, strict=True)),
        share - 1 - wide, share - 1 + wide, NEAR_FORMULA,
    ))  # fmt: skip
    return rows


def findings(flags: Equilibria, table: "study.Dataset") -> list[Finding]:
    """Return every prediction with its verdict."""
    rows = [
        of_problem(flags, str(problem), direction, table.sel(problem=problem, direction=direction))
        for problem, direction in product(table["problem"].values, DIRECTIONS)
    ]
    forms = table["form"].values
    gathered = int((forms < 2).sum())
    if gathered:
        gap = float(np.max(table["closed_form_gap"].values[forms < 2]))
        rows.append(Finding.decided(
            "limit clouds that are points or antipodal pairs have the energy "
            "((p^2 + q^2) e^s + 2 p q e^-s)/2, s = <v, D v>", "docs/theory/equilibria.md",
            f"{gathered} limit clouds, largest relative gap {gap:.0e}", gap < 1e-4,
        ))  # fmt: skip
    return rows + of_sizes(flags, table)


# Tables and figures
# ------------------


def facts_of(flags: Equilibria) -> str:
    return (
        f"$n$ = {flags.n}, $d$ = {flags.d}, $H$ = 1, {2 * flags.paths} starts, {flags.flow}, "
        f"$T$ = {flags.t_final:g}"
    )


def titled(problem: str) -> str:
    """Name of a problem for a title."""
    return problem.capitalize().replace(" -", " \N{MINUS SIGN}")


def report(flags: Equilibria, table: "study.Dataset") -> str:
    """Return the tables."""
    rows = []
    for problem, direction in product(table["problem"].values, DIRECTIONS):
        both = table.sel(problem=problem, direction=direction)
        ends = reached(flags, both)
        best, bound = float(both["extremum"]), float(both["lower_bound"])
        known = f"{best:.6f} ({both['extremum_kind'].values})"
        for k, start in enumerate(STARTS):
            at = both.sel(start=start)
            energies, forms = at["energy"].values, at["form"].values
            row = {
                "D": str(problem), "direction": direction, "start": start,
                "extremal energy": known if math.isfinite(best) else f">= {bound:.6f}",
                "lowest E": f"{energies.min():.6f}", "median E": f"{np.median(energies):.6f}",
                "highest E": f"{energies.max():.6f}",
                "at the extremum": f"{ends[k].sum()} of {flags.paths}",
            }  # fmt: skip
            for form, title in enumerate(("one point", "pair", "spread out")):
                row[title] = str((forms == form).sum())
            rows.append(row | {"speed at T": f"{float(at['speed'].max()):.0e}"})
    uniform = table.attrs["uniform_energy"]
    mean, error = mean_and_error(table["size_start_energy"].values)
    final = table["size_limit_energy"].values - uniform
    least = table["size_minimal"].values - uniform
    sizes = {
        "n": [str(n) for n in flags.sizes],
        "random tokens, E - E_uniform": [
            f"{m - uniform:.5f} ± {e:.5f}" for m, e in zip(mean, error, strict=True)
        ],
        "(e^beta - 2 E_uniform)/(2n)": [f"{v - uniform:.5f}" for v in table["size_sampled"].values],
        "after descent, E - E_uniform": [f"{v:.3e}" for v in final.mean(axis=1)],
        "best start": [f"{v:.3e}" for v in final.min(axis=1)],
        "least possible": [f"{v:.3e}" if math.isfinite(v) else "" for v in least],
    }
    return "\n\n".join((
        f"n = {flags.n}, d = {flags.d}, eigenvalues up to {flags.beta:g} in size, T = "
        f"{flags.t_final:g}, {flags.paths} starts of each kind:",
        study.markdown_table(rows),
        f"Descent with D = {flags.beta:g} I from uniform random tokens; E_uniform = "
        f"{uniform:.6f}:",
        study.markdown_table(sizes),
    ))  # fmt: skip


def energies_figure(flags: Equilibria, table: "study.Dataset") -> "study.Figure":
    """Draw energies of the limit clouds in increasing order, with the extremal energy."""
    with style():
        figure, axes = grid(2, len(table["problem"]), PAGE, 4.0, sharex=True)
        problems = [str(problem) for problem in table["problem"].values]
        share = (np.arange(flags.paths) + 0.5) / flags.paths
        looks = {"sphere": ("#0072B2", "o"), "hemisphere": ("#E69F00", "^")}
        for (k, problem), (s, direction) in product(enumerate(problems), enumerate(DIRECTIONS)):
            axis = axes[s, k]
            at = table.sel(problem=problem, direction=direction)
            for start, (colour, marker) in looks.items():
                values = np.sort(at["energy"].sel(start=start).values)
                axis.plot(share, values, linestyle="none", markersize=3, label=start,
                          markerfacecolor="none", color=colour, marker=marker)  # fmt: skip
            best, label = float(at["extremum"]), "closed form"
            if not math.isfinite(best):
                best, label = float(at["lower_bound"]), "closed form or lower bound"
            axis.axhline(best, color="#000000", linestyle=(0, (4, 2)), linewidth=0.9, label=label)
            low, high = axis.get_ylim()
            margin = max(high - low, 0.06 * abs(best))
            axis.set_ylim((low + high - 1.3 * margin) / 2, (low + high + 1.3 * margin) / 2)
            if s == 0:
                axis.set_title(titled(problem))
            else:
                axis.set_xlabel("Share of starts")
            if k == 0:
                axis.set_ylabel(f"Energy after {direction}")
        handles, labels = axes[1, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        caption(figure, facts_of(flags))
    return figure


def sizes_figure(flags: Equilibria, table: "study.Dataset") -> "study.Figure":
    """Draw the energy above that of the uniform measure against the number of tokens."""
    uniform = table.attrs["uniform_energy"]
    n = table["size"].values
    with style():
        figure, axes = grid(1, 1, 5.2, 3.0)
        axis = axes[0, 0]
        mean, error = mean_and_error(table["size_start_energy"].values)
        axis.errorbar(n, mean - uniform, 2 * error, color="#0072B2", marker="o", linestyle="none",
                      capsize=2, label="random tokens, ± 2 standard errors")  # fmt: skip
        axis.plot(n, table["size_sampled"].values - uniform, color="#0072B2",
                  label=r"$(e^\beta - 2 E_{\mathrm{uniform}})/(2n)$")  # fmt: skip
        final = np.maximum(table["size_limit_energy"].values - uniform, 1e-16)
        axis.plot(n, final.mean(axis=1), color="#D55E00", marker="s", linestyle=(0, (4, 2)),
                  label="after descent, mean")  # fmt: skip
        least = table["size_minimal"].values - uniform
        known = np.isfinite(least) & (least > 0)
        axis.plot(n[known], least[known], color="#000000", marker="x", markersize=6,
                  linestyle="none", label="least possible, where known")  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(n, [str(k) for k in n])
        axis.set(xlabel="Number of tokens $n$", ylabel=r"Energy $E - E_{\mathrm{uniform}}$")
        axis.set_title(
            f"$D = {flags.beta:g}\\,I$, $d$ = {flags.d}, {flags.paths} starts, "
            f"$T$ = {flags.t_final:g}"
        )
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def clouds_figure(
    flags: Equilibria, table: "study.Dataset", clouds: dict[tuple[str, str], FloatArray]
) -> "study.Figure":
    """Draw the limit cloud of the best start of each problem, in the axes of D."""
    from matplotlib.lines import Line2D

    matrices = problems(flags)
    with style():
        figure, axes = grid(2, len(matrices), PAGE, 4.3)
        for k, (name, D) in enumerate(matrices.items()):
            values, vectors = np.linalg.eigh(D)
            for s, direction in enumerate(DIRECTIONS):
                axis = axes[s, k]
                energy = table["energy"].values[k, s].ravel()
                best = int(np.argmax(energy) if direction == "ascent" else np.argmin(energy))
                x = clouds[name, direction][best]
                form, _, share = form_of(x)
                # A multiple of the identity has no axes.
                of_axes = np.ptp(values) > 1e-9
                sphere(axis, x @ vectors, names=("$v_1$", "", "$v_3$") if of_axes else ())
                count = round(share * len(x))
                where = {
                    FORMS[0]: f"{len(x)} tokens in one point",
                    FORMS[1]: f"pair: {count} + {len(x) - count} tokens",
                    FORMS[2]: "spread out",
                }[form]
                title = f"{titled(name)}, {direction}" if s == 0 else str(direction).capitalize()
                axis.set_title(f"{title}\n{where}", loc="center", fontsize=7, pad=2)
        handles = [
            Line2D([], [], linestyle="none", marker="o", color=tuple(colour), markersize=4)
            for colour in (NEAR, FAR)
        ]
        handles.append(Line2D([], [], color="0.15", linewidth=0.8))
        texts = ["token on the near side", "token on the far side",
                 "eigenvectors of $D$: $v_1$ smallest, $v_3$ largest eigenvalue"]  # fmt: skip
        figure.legend(handles, texts, loc="outside lower center", ncols=3, handlelength=1.5)
        caption(figure, facts_of(flags))
    return figure


def main() -> None:
    flags = study.command_line(Equilibria, __doc__)
    with study.session("equilibria", flags) as session:
        flags = session.flags = replace(flags, sizes=tuple(sorted(flags.sizes)))
        files = session.solve(tasks(flags))
        table, clouds = collect(flags, files)
        figures = {
            "energies": energies_figure(flags, table), "sizes": sizes_figure(flags, table),
        }  # fmt: skip
        if flags.d == 3:
            figures["limit_clouds"] = clouds_figure(flags, table, clouds)
        session.finish(table, report(flags, table), findings(flags, table), figures)


if __name__ == "__main__":
    script(main)
