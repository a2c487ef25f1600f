"""Where ascent and descent end for one frozen head, against the extremal energies of [BKKRW].

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
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

import wflow
from wflow import _equilibria_figures as pictures
from wflow import equilibria, study
from wflow._checks import positive, whole
from wflow._problem import count_steps
from wflow.cli import guarded
from wflow.errors import InputError
from wflow.fits import mean_and_error
from wflow.heads import Frozen
from wflow.sphere import normalise

if TYPE_CHECKING:
    from xarray import Dataset

FloatArray = NDArray[np.float64]

DIRECTIONS = ("ascent", "descent")
STARTS = ("sphere", "hemisphere")
FORMS = ("one point", "antipodal pair", "spread out")
REACHED = 1e-6  # relative distance of an energy from the extremum, at which it counts as reached
GATHERED = 1e-2  # angle in radians within which tokens count as one point
SIGMAS = 4.0  # standard errors within which a mean agrees with its formula


@dataclass(frozen=True, kw_only=True)
class Equilibria(study.Flags):
    """Flags of this study."""

    n: int = 64
    """Number of tokens."""
    d: int = 3
    """Dimension: tokens live on the sphere S^(d-1)."""
    beta: float = 2.0
    """Largest size of an eigenvalue of D."""
    paths: int = 32
    """Random starts of each kind: uniform on the sphere, and on a random hemisphere."""
    sizes: tuple[int, ...] = (4, 6, 12, 24, 48, 96)
    """Numbers of tokens that descend with D = beta I, against the uniform measure."""
    flow: Literal["softmax", "unnormalised"] = "softmax"
    """Attention with softmax (for one head the effective flow too), or without denominator."""
    scheme: Literal["euler", "heun", "rk4"] = "heun"
    """Time stepping."""
    t_final: float = 200.0
    """End time T, long enough to come to rest."""
    dt: float = 0.1
    """Time step."""
    out: study.Folder = Path("results/equilibria")
    """Folder for run files, summary and figures."""

    def check(self) -> None:
        super().check()
        whole(self.n, "--n", 2)
        whole(self.d, "--d", 2, why="tokens live on the sphere S^(d-1)")
        whole(self.paths, "--paths", 2, why="a standard error needs two")
        positive(self.beta, "--beta")
        count_steps(self.t_final, self.dt)
        if not self.sizes or len(set(self.sizes)) < len(self.sizes):
            raise InputError("--sizes: expected numbers of tokens, each once")
        for size in self.sizes:
            whole(size, "--sizes", 2)


def problems(flags: Equilibria) -> dict[str, FloatArray]:
    """The matrices: name -> D (d, d), in axes turned at random."""
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
    """Random clouds (2 paths, n, d): first those uniform on the sphere, then on hemispheres."""
    rng = np.random.default_rng([flags.seed, n])
    x = normalise(rng.standard_normal((2 * flags.paths, n, flags.d)))
    pole = rng.standard_normal((2 * flags.paths, 1, flags.d))
    pole[: flags.paths] = 0
    return np.where((x * pole).sum(axis=-1, keepdims=True) < 0, -x, x)


def main() -> int:
    flags = study.command_line(Equilibria, __doc__)
    flags = replace(flags, sizes=tuple(sorted(flags.sizes)))
    matrices = problems(flags)
    every = count_steps(flags.t_final, flags.dt)
    common = {
        "law": Frozen(), "t_final": flags.t_final, "dt": flags.dt, "seed": flags.seed,
        "flow": flags.flow, "scheme": flags.scheme, "record_every": every,
    }  # fmt: skip
    x0 = starts(flags, flags.n)
    tasks: dict[str, dict[str, Any]] = {}
    for k, D in enumerate(matrices.values()):
        for direction in DIRECTIONS:
            tasks[f"problem{k}_{direction}"] = common | {
                "x0": x0, "heads": D[None], "direction": direction, "paths": len(x0),
                "snapshot_paths": range(len(x0)),
            }  # fmt: skip
    for n in flags.sizes:
        tasks[f"isotropic_n{n:05d}"] = common | {
            "x0": starts(flags, n)[: flags.paths], "heads": matrices["isotropic"][None],
            "paths": flags.paths, "snapshot_paths": range(flags.paths),
        }  # fmt: skip
    with study.session("equilibria", flags) as session:
        files = session.solve(tasks)
        clouds: dict[tuple[str, str], FloatArray] = {}
        with session.progress(len(tasks), "limit clouds") as advance:
            table = collect(flags, matrices, files, clouds, advance)
        facts = (
            f"$n$ = {flags.n}, $d$ = {flags.d}, $H$ = 1, {2 * flags.paths} starts, {flags.flow}, "
            f"$T$ = {flags.t_final:g}"
        )
        title = (
            f"$D = {flags.beta:g}\\,I$, $d$ = {flags.d}, {flags.paths} starts, "
            f"$T$ = {flags.t_final:g}"
        )
        figures = {
            "energies": pictures.energies(table, facts),
            "sizes": pictures.sizes(table, title),
        }
        if flags.d == 3:
            figures["limit_clouds"] = pictures.limit_clouds(matrices, table, clouds, facts)
        session.finish(
            table=table,
            text=report(flags, table),
            findings=findings(flags, table),
            figures=figures,
        )
    return 0


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


def collect(
    flags: Equilibria,
    matrices: dict[str, FloatArray],
    files: dict[str, Path],
    clouds: dict[tuple[str, str], FloatArray],
    advance: Any,
) -> "Dataset":
    """Energies, forms and distances of all limit clouds; `clouds` receives the tokens."""
    import xarray

    shape = (len(matrices), len(DIRECTIONS), len(STARTS), flags.paths)
    energy, form, gap, angle, speed = (np.full(shape, np.nan) for _ in range(5))
    extremum, certificate = np.full(shape[:2], np.nan), np.full(len(matrices), np.nan)
    kinds = np.full(shape[:2], "none", dtype="U10")
    for k, (name, D) in enumerate(matrices.items()):
        for s, direction in enumerate(DIRECTIONS):
            with wflow.open(files[f"problem{k}_{direction}"]) as run:
                x = run["tokens"].values[:, -1]
                energy[k, s] = run["energy"].values[:, -1].reshape(len(STARTS), -1)
            clouds[name, direction] = x
            best: equilibria.Extremum | None = None
            if direction == "ascent":
                best = equilibria.maximum(D)
            elif name != "positive":
                best = equilibria.minimum(D)
            if best is not None:
                extremum[k, s], kinds[k, s] = best.energy, best.kind
            for p, cloud in enumerate(x):
                at = (k, s, p // flags.paths, p % flags.paths)
                kind, v, share = form_of(cloud)
                form[at] = FORMS.index(kind)
                velocity = wflow.velocity(cloud, D[None], flow=flags.flow)
                speed[at] = np.sqrt(np.mean(np.sum(velocity**2, axis=1)))
                if kind != "spread out":
                    gap[at] = abs(energy[at] / equilibria.pair_energy(D, v, share) - 1)
                if best is not None and best.support is not None:
                    within = np.linalg.norm(cloud @ best.support.T, axis=1)
                    away = np.linalg.norm(cloud - cloud @ best.support.T @ best.support, axis=1)
                    angle[at] = np.arctan2(away, within).max()
            if direction == "descent" and np.linalg.eigvalsh(D)[0] > 0:
                # All limit clouds together: their common potential is the flattest.
                certificate[k] = equilibria.lower_bound(np.concatenate(x), D, seed=flags.seed)
            advance(1)
    begun, ended, known = np.empty((2, len(flags.sizes), flags.paths)), None, []
    ended = begun[1]
    for i, n in enumerate(flags.sizes):
        with wflow.open(files[f"isotropic_n{n:05d}"]) as run:
            begun[0, i], ended[i] = run["energy"].values[:, 0], run["energy"].values[:, -1]
        try:
            known.append(equilibria.minimal_cloud_energy(n, flags.beta, flags.d))
        except InputError:
            known.append(math.nan)
        advance(1)
    sampled = [equilibria.sampled_energy(n, flags.beta, flags.d) for n in flags.sizes]
    cell, each = ("problem", "direction"), ("problem", "direction", "start", "path")
    described: dict[str, tuple[Any, Any, str]] = {
        "energy": (each, energy, "energy of the limit cloud"),
        "extremum": (cell, extremum, "extremal energy over all measures, closed form"),
        "extremum_kind": (cell, kinds, "measure that has the extremal energy"),
        "lower_bound": ("problem", certificate, "bound from below, from all limit clouds"),
        "form": (each, form, "limit cloud: 0 one point, 1 antipodal pair, 2 spread out"),
        "closed_form_gap": (each, gap, "relative gap between energy and that of its point or pair"),
        "support_angle": (each, angle, "largest angle between a token and the predicted support"),
        "speed": (each, speed, "root mean square speed of the tokens at the end"),
        "size_start_energy": (("size", "path"), begun[0], "energy of n uniform random tokens"),
        "size_limit_energy": (("size", "path"), ended, "energy of n tokens after descent"),
        "size_sampled": ("size", sampled, "mean energy of n uniform random tokens, closed form"),
        "size_minimal": ("size", known, "least energy of n tokens, where it is known"),
    }  # fmt: skip
    variables = {
        key: (
            dims,
            values,
            {"long_name": text} | ({} if key == "extremum_kind" else {"units": "1"}),
        )
        for key, (dims, values, text) in described.items()
    }
    coords = {
        "problem": ("problem", list(matrices), {"long_name": "interaction matrix D"}),
        "direction": ("direction", list(DIRECTIONS), {"long_name": "up or down the energy"}),
        "start": ("start", list(STARTS), {"long_name": "where the tokens start"}),
        "path": ("path", np.arange(flags.paths), {"long_name": "random start"}),
        "size": ("size", list(flags.sizes), {"long_name": "number of tokens n"}),
    }
    uniform = equilibria.uniform_energy(flags.beta, flags.d)
    return xarray.Dataset(variables, coords, {"uniform_energy": uniform})


def reached(flags: Equilibria, at: "Dataset") -> NDArray[np.bool_]:
    """Which starts end at the extremal energy; where it has no closed form, at the lowest found."""
    best = float(at["extremum"])
    best = best if math.isfinite(best) else float(at["energy"].min())
    # Descent with D > 0 never quite ends: fine structure of the cloud relaxes ever more slowly.
    spread = str(at["extremum_kind"].values) in ("none", "uniform")
    tolerance = 1e-3 if spread else REACHED
    return np.abs(at["energy"].values / best - 1) <= tolerance


def findings(flags: Equilibria, table: "Dataset") -> list[study.Finding]:
    """Every prediction, and what came out."""
    rows = []
    for problem in table["problem"].values:
        for direction in DIRECTIONS:
            at = table.sel(problem=problem, direction=direction)
            rows.append(_finding(flags, str(problem), direction, at))
    forms = table["form"].values
    gathered = int((forms < 2).sum())
    if gathered:
        gap = float(np.max(table["closed_form_gap"].values[forms < 2]))
        rows.append(
            study.Finding(
                "limit clouds that are points or antipodal pairs have the energy "
                "((p^2 + q^2) e^s + 2 p q e^-s)/2, s = <v, D v>",
                "docs/mathematics.md, equilibria",
                f"{gathered} limit clouds, largest relative gap {gap:.0e}",
                "held" if gap < 1e-4 else "not held",
            )
        )
    mean, error = mean_and_error(table["size_start_energy"].values)
    away = np.abs(mean - table["size_sampled"].values) / error
    rows.append(
        study.Finding(
            "n independent uniform tokens lie above the uniform measure by the interaction of each "
            "with itself: (e^beta - 2 E)/(2n) in the mean",
            "docs/mathematics.md, equilibria",
            f"largest deviation over n: {away.max():.1f} standard errors",
            "held" if away.max() <= SIGMAS else "not held",
        )
    )
    known = np.isfinite(table["size_minimal"].values)
    if known.any():
        lowest = table["size_limit_energy"].min("path").values[known]
        gaps = lowest / table["size_minimal"].values[known] - 1
        sizes = ", ".join(str(n) for n in table["size"].values[known])
        good = np.all(np.abs(gaps) < REACHED)
        rows.append(
            study.Finding(
                f"descent of n = {sizes} tokens reaches the least energy of so many tokens",
                "Cohn and Kumar 2007; docs/mathematics.md, equilibria",
                f"relative gap of the best start at most {np.abs(gaps).max():.0e}",
                "held" if good else "not held",
            )
        )
    uniform = table.attrs["uniform_energy"]
    excess = table["size_limit_energy"].mean("path").values - uniform
    diagonal = table["size_sampled"].values - uniform
    share = excess / diagonal
    faster = bool(np.all(np.diff(share) < 0)) and share[-1] < 0.1
    rows.append(
        study.Finding(
            "after descent n tokens still lie above the uniform measure by the interaction of each "
            "with itself, (e^beta - 2 E)/(2n)",
            "a guess; docs/mathematics.md, equilibria, says why not",
            "excess as a share of it: "
            + ", ".join(f"{s:.1e} (n = {n})" for n, s in zip(flags.sizes, share, strict=True)),
            "not held" if faster else "held",
        )
    )
    return rows


def _finding(flags: Equilibria, problem: str, direction: str, at: "Dataset") -> study.Finding:
    extreme = "largest" if direction == "ascent" else "least"
    source = (
        "[BKKRW]" if problem in ("positive", "isotropic") else "docs/mathematics.md, equilibria"
    )
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
        return study.Finding(
            f"D {problem}, {direction}: the minimiser is spread out",
            source,
            f"all clouds spread out: {'yes' if spread else 'no'}; lowest energy {lowest:.6f}, at "
            f"most {lowest - bound:.1e} above the minimum (convexity); there end {shares}",
            ("held" if ends.all() else "held in part") if good else "not held",
        )
    names = {"dirac": "one point", "pair": "an antipodal pair", "uniform": "the uniform measure"}
    kind = str(at["extremum_kind"].values)
    sign = 1 if direction == "ascent" else -1
    beyond = float((sign * (energies / best - 1)).max())
    found = f"closed form {best:.6f}, best start off by {np.abs(energies / best - 1).min():.0e}; "
    found += f"there end {shares}"
    if not ends.all():
        others = at["form"].values[~ends]
        counts = {f: int((others == k).sum()) for k, f in enumerate(FORMS)}
        found += "; the others: " + ", ".join(f"{c} {f}" for f, c in counts.items() if c)
    if kind != "uniform":
        angle = float(np.max(at["support_angle"].values[ends], initial=0))
        found += f"; tokens there within an angle of {angle:.0e}"
    good = bool(ends.any()) and beyond <= (REACHED if kind != "uniform" else 1e-9)
    return study.Finding(
        f"D {problem}, {direction}: the {extreme} energy is that of {names[kind]}",
        source,
        found,
        ("held" if ends.all() else "held in part") if good else "not held",
    )


def report(flags: Equilibria, table: "Dataset") -> str:
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


if __name__ == "__main__":
    sys.exit(guarded(main))
