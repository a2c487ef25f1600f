"""Limit clouds, findings, tables and figures of the study `equilibria`."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import equilibria, study
from wflow.analysis.fits import mean_and_error
from wflow.plots.figure import PAGE, grid, style
from wflow.plots.tokens import FAR, NEAR, sphere
from wflow.study import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset


FloatArray = NDArray[np.float64]

_LOOKS: dict[str, dict[str, Any]] = {
    "sphere": {"color": "#0072B2", "marker": "o"},
    "hemisphere": {"color": "#E69F00", "marker": "^"},
}


def energies(table: "Dataset", facts: str) -> "Figure":
    """Energies of the limit clouds in increasing order, with the extremal energy."""
    with style():
        figure, axes = grid(2, len(table["problem"]), PAGE, 4.0, sharex=True)
        for k, problem in enumerate(table["problem"].values):
            for s, direction in enumerate(table["direction"].values):
                axis = axes[s, k]
                at = table.sel(problem=problem, direction=direction)
                for start, look in _LOOKS.items():
                    share = (np.arange(table.sizes["path"]) + 0.5) / table.sizes["path"]
                    values = np.sort(at["energy"].sel(start=start).values)
                    axis.plot(share, values, linestyle="none", markersize=3, label=start,
                              markerfacecolor="none", **look)  # fmt: skip
                best = float(at["extremum"])
                label = "closed form"
                if not math.isfinite(best):
                    best, label = float(at["lower_bound"]), "closed form or lower bound"
                axis.axhline(
                    best, color="#000000", linestyle=(0, (4, 2)), linewidth=0.9, label=label
                )
                low, high = axis.get_ylim()
                margin = max(high - low, 0.06 * abs(best))
                axis.set_ylim((low + high - 1.3 * margin) / 2, (low + high + 1.3 * margin) / 2)
                if s == 0:
                    axis.set_title(titled(str(problem)))
                else:
                    axis.set_xlabel("Share of starts")
                if k == 0:
                    axis.set_ylabel(f"Energy after {direction}")
        handles, labels = axes[1, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        figure.suptitle(facts, fontsize=8.5, x=0.01, ha="left")
    return figure


def sizes(table: "Dataset", title: str) -> "Figure":
    """Energy above that of the uniform measure against the number of tokens."""
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
        axis.set_xlabel("Number of tokens $n$")
        axis.set_ylabel(r"Energy $E - E_{\mathrm{uniform}}$")
        axis.set_title(title)
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def limit_clouds(
    matrices: dict[str, FloatArray],
    table: "Dataset",
    clouds: dict[tuple[str, str], FloatArray],
    facts: str,
) -> "Figure":
    """The limit cloud of the best start of each problem, in the axes of D."""
    from matplotlib.lines import Line2D

    with style():
        figure, axes = grid(2, len(matrices), PAGE, 4.3)
        for k, (name, D) in enumerate(matrices.items()):
            values, vectors = np.linalg.eigh(D)
            for s, direction in enumerate(table["direction"].values):
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
        figure.suptitle(facts, fontsize=8.5, x=0.01, ha="left")
    return figure


def titled(problem: str) -> str:
    """Name of a problem for a title."""
    return problem.capitalize().replace(" -", " \N{MINUS SIGN}")


DIRECTIONS = ("ascent", "descent")


STARTS = ("sphere", "hemisphere")


SIGMAS = 4.0  # standard errors within which a mean agrees with its formula
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
    "size_start_energy": (("path",), "energy of n uniform random tokens"),
    "size_limit_energy": (("path",), "energy of n tokens after descent"),
    "size_sampled": "mean energy of n uniform random tokens, closed form",
    "size_minimal": "least energy of n tokens, where it is known",
}
FORMS = ("one point", "antipodal pair", "spread out")


REACHED = 1e-6  # relative distance of an energy from the extremum, at which it counts as reached


GATHERED = 1e-2  # angle in radians within which tokens count as one point


def form_of(x: FloatArray) -> tuple[str, FloatArray, float]:
    """What a limit cloud is: its form, direction v, and share of the tokens at v."""
    v = np.linalg.eigh(x.T @ x)[1][:, -1]
    side = x @ v
    angle = np.arctan2(np.linalg.norm(x - side[:, None] * v, axis=1), np.abs(side))
    share = float(np.mean(side > 0))
    if share < 0.5:
        v, share = -v, 1 - share
    if angle.max() > GATHERED:
        return FORMS[2], v, share
    return FORMS[0 if share == 1 else 1], v, share


def limits_of(
    D: FloatArray, clouds: FloatArray, energy: FloatArray, direction: str, flow: Any, known: bool
) -> dict[str, Any]:
    """Forms of the limit clouds of one problem, by the names of `LIMITS`.

    Parameters
    ----------
    clouds, energy : (starts, n, d) and (starts,), those from the sphere first
    known : whether the extremum has a closed form
    """
    best: equilibria.Extremum | None = None
    if known:
        best = equilibria.maximum(D) if direction == "ascent" else equilibria.minimum(D)
    form, gap, angle, speed = np.full((4, len(clouds)), np.nan)
    for p, cloud in enumerate(clouds):
        kind, v, share = form_of(cloud)
        form[p] = FORMS.index(kind)
        velocity = wflow.velocity(cloud, D[None], flow=flow)
        speed[p] = np.sqrt(np.mean(np.sum(velocity**2, axis=1)))
        if kind != "spread out":
            gap[p] = abs(energy[p] / equilibria.pair_energy(D, v, share) - 1)
        if best is not None and best.support is not None:
            within = np.linalg.norm(cloud @ best.support.T, axis=1)
            away = np.linalg.norm(cloud - cloud @ best.support.T @ best.support, axis=1)
            angle[p] = np.arctan2(away, within).max()
    each = zip(
        ("energy", "form", "closed_form_gap", "support_angle", "speed"),
        (energy, form, gap, angle, speed),
        strict=True,
    )
    return {name: values.reshape(len(STARTS), -1) for name, values in each} | {
        "extremum": math.nan if best is None else best.energy,
        "extremum_kind": "none" if best is None else best.kind,
    }


def reached(flags: Any, at: "Dataset") -> NDArray[np.bool_]:
    """Starts that end at the extremal energy; at the lowest computed one without a closed form."""
    best = float(at["extremum"])
    best = best if math.isfinite(best) else float(at["energy"].min())
    # Descent with D > 0 never quite ends: fine structure of the cloud relaxes more and more slowly.
    spread = str(at["extremum_kind"].values) in ("none", "uniform")
    tolerance = 1e-3 if spread else REACHED
    return np.abs(at["energy"].values / best - 1) <= tolerance


def report(flags: Any, table: "Dataset") -> str:
    """The tables."""
    titles = ("D", "direction", "start", "extremal energy", "lowest E", "median E", "highest E",
              "at the extremum", "one point", "pair", "spread out", "speed at T")  # fmt: skip
    rows: dict[str, list[str]] = {title: [] for title in titles}
    for problem in table["problem"].values:
        for direction in DIRECTIONS:
            whole_cell = table.sel(problem=problem, direction=direction)
            ends = reached(flags, whole_cell)
            for k, start in enumerate(STARTS):
                at = whole_cell.sel(start=start)
                best, forms = float(at["extremum"]), at["form"].values
                energies = at["energy"].values
                bound = float(at["lower_bound"])
                known = f"{best:.6f} ({at['extremum_kind'].values})"
                cells = (
                    str(problem), direction, start,
                    known if math.isfinite(best) else f">= {bound:.6f}",
                    f"{energies.min():.6f}", f"{np.median(energies):.6f}", f"{energies.max():.6f}",
                    f"{ends[k].sum()} of {flags.paths}",
                    *(str(int((forms == form).sum())) for form in range(3)),
                    f"{float(at['speed'].max()):.0e}",
                )  # fmt: skip
                for title, cell in zip(titles, cells, strict=True):
                    rows[title].append(cell)
    uniform = table.attrs["uniform_energy"]
    mean, error = mean_and_error(table["size_start_energy"].values)
    final = table["size_limit_energy"].values
    sizes = {
        "n": [str(n) for n in flags.sizes],
        "random tokens, E - E_uniform": [
            f"{m - uniform:.5f} ± {e:.5f}" for m, e in zip(mean, error, strict=True)
        ],
        "(e^beta - 2 E_uniform)/(2n)": [f"{v - uniform:.5f}" for v in table["size_sampled"].values],
        "after descent, E - E_uniform": [f"{v - uniform:.3e}" for v in final.mean(axis=1)],
        "best start": [f"{v - uniform:.3e}" for v in final.min(axis=1)],
        "least possible": [
            f"{v - uniform:.3e}" if math.isfinite(v) else "" for v in table["size_minimal"].values
        ],
    }
    return "\n\n".join(
        (
            f"n = {flags.n}, d = {flags.d}, eigenvalues up to {flags.beta:g} in size, T = "
            f"{flags.t_final:g}, {flags.paths} starts of each kind:",
            study.markdown_table(rows),
            f"Descent with D = {flags.beta:g} I from uniform random tokens; E_uniform = "
            f"{uniform:.6f}:",
            study.markdown_table(sizes),
        )
    )


def of_problem(flags: Any, problem: str, direction: str, at: "Dataset") -> Finding:
    extreme = "largest" if direction == "ascent" else "least"
    source = "[BKKRW]" if problem in ("positive", "isotropic") else "docs/theory/equilibria.md"
    best = float(at["extremum"])
    energies = at["energy"].values
    ends = reached(flags, at)
    shares = ", ".join(
        f"{row.sum()} of {row.size} from the {s}" for s, row in zip(STARTS, ends, strict=True)
    )
    if not math.isfinite(best):
        bound = float(at["lower_bound"])
        lowest = float(energies.min())
        spread = bool(np.all(at["form"].values == 2))
        good = spread and lowest - bound <= 1e-3 * lowest
        return Finding.decided(
            f"D {problem}, {direction}: the minimiser is spread out",
            source,
            f"all clouds spread out: {'yes' if spread else 'no'}; lowest energy {lowest:.6f}, at "
            f"most {lowest - bound:.1e} above the minimum (convexity); there end {shares}",
            ends & good,
        )
    names = {"dirac": "one point", "pair": "an antipodal pair", "uniform": "the uniform measure"}
    kind = str(at["extremum_kind"].values)
    sign = 1 if direction == "ascent" else -1
    beyond = float((sign * (energies / best - 1)).max())
    numbers = f"closed form {best:.6f}, best start off by {np.abs(energies / best - 1).min():.0e}; "
    numbers += f"there end {shares}"
    if not ends.all():
        others = at["form"].values[~ends]
        counts = {f: int((others == k).sum()) for k, f in enumerate(FORMS)}
        numbers += "; the others: " + ", ".join(f"{c} {f}" for f, c in counts.items() if c)
    if kind != "uniform":
        angle = float(np.max(at["support_angle"].values[ends], initial=0))
        numbers += f"; tokens there within an angle of {angle:.0e}"
    good = bool(ends.any()) and beyond <= (REACHED if kind != "uniform" else 1e-9)
    return Finding.decided(
        f"D {problem}, {direction}: the {extreme} energy is that of {names[kind]}",
        source,
        numbers,
        ends & good,
    )


def of_sizes(flags: Any, table: "Dataset") -> list[Finding]:
    """Finding on the energy of n tokens above that of the uniform measure."""
    rows = []
    mean, error = mean_and_error(table["size_start_energy"].values)
    away = np.abs(mean - table["size_sampled"].values) / error
    rows.append(
        Finding.decided(
            "n independent uniform tokens lie above the uniform measure by the interaction of each "
            "with itself: (e^beta - 2 E)/(2n) in the mean",
            "docs/theory/equilibria.md",
            f"largest deviation over n: {away.max():.1f} standard errors", away.max() <= SIGMAS,
        )
    )  # fmt: skip
    known = np.isfinite(table["size_minimal"].values)
    if known.any():
        lowest = table["size_limit_energy"].min("path").values[known]
        gaps = np.abs(lowest / table["size_minimal"].values[known] - 1)
        sizes = ", ".join(str(n) for n in table["size"].values[known])
        rows.append(
            Finding.decided(
                f"descent of n = {sizes} tokens reaches the least energy of so many tokens",
                "Cohn and Kumar 2007; docs/theory/equilibria.md",
                f"relative gap of the best start at most {gaps.max():.0e}",
                bool(np.all(gaps < REACHED)),
            )
        )
    uniform = table.attrs["uniform_energy"]
    excess = table["size_limit_energy"].mean("path").values - uniform
    share = excess / (table["size_sampled"].values - uniform)
    faster = bool(np.all(np.diff(share) < 0)) and share[-1] < 0.1
    rows.append(
        Finding.decided(
            "after descent n tokens still lie above the uniform measure by the interaction of each "
            "with itself, (e^beta - 2 E)/(2n)",
            "a guess; docs/theory/equilibria.md, says why not",
            "excess as a share of it: "
            + ", ".join(f"{s:.1e} (n = {n})" for n, s in zip(flags.sizes, share, strict=True)),
            not faster,
        )
    )
    return rows
