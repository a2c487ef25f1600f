"""The study over head counts: the squared upper gradient against the number of heads.

`session` serves a study of any kind. `run` is the whole study: it solves the same problem
for several head counts and asks how the squared upper gradient G^2, averaged over the second half
of the time, depends on the number of heads; a script adds its own flags to `StudyFlags`, makes its
head law, and hands both over.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.adaptive import as_scheme
from wflow._core.errors import InputError, WflowWarning, warn
from wflow._core.printable import printable
from wflow.analysis.fits import PowerLaw, json_number, mean_and_error, power_law
from wflow.heads.laws import law_config
from wflow.particles.options import SaveAt
from wflow.runs.results import COMPARISONS, OF_ONE_RUN, REPORT, refuse_foreign
from wflow.runs.schema import BUDGET_RUNNING, VARIABLES
from wflow.runs.snapshots import clouds
from wflow.study.flags import StudyFlags
from wflow.study.folder import earlier_results
from wflow.study.frame import (
    SUMMARY,
    Finding,
    findings_text,
    markdown_table,
    mean_text,
    provenance,
    session,
    write_results,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

    from wflow._core.checks import FlowName
    from wflow.heads.laws import HeadLaw


# Summary: averages per run and path, the fits over head counts, their files
# --------------------------------------------------------------------------

_AVERAGED = ("upper_gradient_sq", "dissipation")
_AT_END = ("energy", *BUDGET_RUNNING)
_PARTS = {"head_variance": "variance over heads", "mean_velocity": "mean velocity"}  # of G^2
_FITTED = {"upper_gradient_sq": 1, "head_variance": 2}  # name -> smallest head count that has it
_LATE = "average over t >= T/2"
_CAPTIONS = {
    "gradient_against_heads": "G², averaged over late times, against the number of heads",
    "gradient_over_time": "G² over time, for each number of heads",
}


def head_variance(
    x: NDArray[np.float64], D: NDArray[np.float64], flow: "FlowName" = "softmax"
) -> float:
    r"""Return the part of G^2 that is due to the variance of the velocity over the heads.

    Parameters
    ----------
    x : ndarray, shape (n, d)
        Tokens on the unit sphere.
    D : ndarray, shape (heads, d, d)
        Symmetric interaction matrices.
    flow : {"softmax", "unnormalised", "effective"}, default "softmax"
        How the heads move the tokens.

    Returns
    -------
    float
        Energy per unit time; NaN for one head.

    Notes
    -----
    The velocity is a mean over the heads, :math:`v = \frac1H \sum_h v_h`. For heads that are
    independent and of one law given the tokens, and with the weight b of G^2 as a given number
    [1]_,

    .. math::

        \mathbb E\, G^2 = \frac1n \sum_i b(x_i) \Bigl( \frac1H \operatorname{Var} v_h(x_i)
        + |\mathbb E\, v_h(x_i)|^2 \Bigr) .

    The first part is estimated without bias by

    .. math:: \frac{1}{n H (H - 1)} \sum_{i,h} b(x_i)\, |v_h(x_i) - v(x_i)|^2 ,

    and the second part by the rest of G^2.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, eq. 150.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> from wflow.study.heads import head_variance
    >>> x = wflow.tokens.uniform(n=5, d=3, seed=0)
    >>> opposite, equal = np.stack([np.eye(3), -np.eye(3)]), np.stack([np.eye(3)] * 2)
    >>> head_variance(x, opposite) > head_variance(x, equal) == 0
    True
    """
    from wflow.attention.cloud import effective_mobility  # loads Numba
    from wflow.attention.flows import evaluate

    heads = len(D)
    if heads < 2:
        return math.nan
    one: FlowName = "softmax" if flow == "softmax" else "unnormalised"
    copies = np.broadcast_to(x, (heads, *x.shape))
    v = evaluate(copies, D[:, None], flow=one, symmetric=True).velocity  # (heads, n, d)
    b = np.ones(len(x)) if flow == "unnormalised" else effective_mobility(x, D)  # (n,)
    if flow == "effective":
        v = v / b[:, None]
    return float(np.mean(b * v.var(axis=0, ddof=1).sum(axis=1)) / heads)


def _late_variance(ds: "Dataset", flow: "FlowName") -> NDArray[np.float64]:
    """Return means in time (snapshot_path,) of `head_variance`, from the snapshots of t >= T/2."""
    times = ds["snapshot"].values
    late = times >= ds["time"].values[-1] / 2
    weights = np.gradient(times[late]) if late.sum() > 1 else np.ones(late.sum())
    means = []
    for place in range(ds.sizes["snapshot_path"]):
        D = ds["heads"].isel(snapshot_path=place).values  # (snapshot, heads, d, d)
        found = [
            math.nan if x is None else head_variance(x, D[k], flow)  # None: the path blew up
            for k, x in enumerate(clouds(ds, place))
            if late[k]
        ]
        means.append(np.average(found, weights=weights) if found else math.nan)
    return np.array(means)


def summarise(files: dict[int, Path], flow: "FlowName" = "softmax") -> "Dataset":
    """Reduce finished runs to one number per quantity, head count and path.

    Parameters
    ----------
    files : head count -> run file
    flow : how the heads move the tokens

    Returns
    -------
    Dataset (heads, path): averages over the second half of the time, t >= T/2, of the squared
    upper gradient and the dissipation, and the energy budget at the end; and (heads,
    snapshot_path), where all runs hold tokens and heads: both parts of the squared upper gradient,
    by `head_variance` at the snapshots of t >= T/2
    """
    import xarray

    from wflow.runs.read import open_run

    columns: dict[str, list[NDArray[Any]]] = {}
    path, stored, variances = np.empty(0, np.int64), [], []
    for file in files.values():
        with open_run(file) as ds:
            path = ds["path"].values
            time = ds["time"].values
            late = np.flatnonzero(time >= time[-1] / 2)
            for name in _AVERAGED:
                average = ds[name].isel(time=slice(late[0], None)).mean("time").values
                columns.setdefault(name, []).append(average)
            for name in _AT_END:
                columns.setdefault(f"{name}_final", []).append(ds[name].isel(time=-1).values)
            columns.setdefault("energy_initial", []).append(ds["energy"].isel(time=0).values)
            if {"tokens", "heads"} <= set(ds) and ds["snapshot"].values[-1] >= time[late[0]]:
                stored.append(ds["snapshot_path"].values)
                variances.append(_late_variance(ds, flow))
    variables = {}
    for name, values in columns.items():
        variable = VARIABLES[name.removesuffix("_final").removesuffix("_initial")]
        when = "at t = 0" if name.endswith("_initial") else _LATE
        when = "at t = T" if name.endswith("_final") else when
        attrs = variable.attrs | {"long_name": f"{variable.long_name}, {when}"}
        variables[name] = (("heads", "path"), np.array(values), attrs)
    coords = {
        "heads": ("heads", np.array(list(files)), {"long_name": "number of heads H"}),
        "path": ("path", path, VARIABLES["path"].attrs),
    }
    if len(stored) == len(files):
        kept = min(stored, key=len)  # the first entries of a longer list
        variance = np.array([values[: len(kept)] for values in variances])
        rest = np.array(columns["upper_gradient_sq"])[:, np.isin(path, kept)] - variance
        for name, part in (("head_variance", variance), ("mean_velocity", rest)):
            attrs = {"long_name": f"part of G^2 by the {_PARTS[name]}, {_LATE}", "units": "1"}
            variables[name] = (("heads", "snapshot_path"), part, attrs)
        coords["snapshot_path"] = ("snapshot_path", kept, VARIABLES["snapshot_path"].attrs)
    return xarray.Dataset(variables, coords)


def fit_scaling(table: "Dataset", fit_from: int = 1) -> dict[str, PowerLaw]:
    """Fit a H^b to the averages of G^2, and of its variance over heads, of H >= fit_from.

    Returns
    -------
    name in the table -> fit; none for fewer than two head counts, or values that have no law
    """
    fits = {}
    for name, least in _FITTED.items():
        if name not in table:
            continue
        part = table[name].sel(heads=table["heads"] >= max(fit_from, least))
        if part.sizes["heads"] < 2 or (name == "head_variance" and not (part.values > 0).all()):
            continue  # equal heads have no variance
        try:
            fits[name] = power_law(part["heads"].values, part.values)
        except InputError as error:  # the runs are worth keeping without a fit
            warn(f"no fit over the head counts: {error}", WflowWarning)
    return fits


def report_text(table: "Dataset", fits: "Mapping[str, PowerLaw]", fit_from: int = 1) -> str:
    """Write the numbers that matter as a table: mean ± standard error over the paths.

    Parameters
    ----------
    table : of `summarise`
    fits : of `fit_scaling`, by the names of the averages
    fit_from : smallest head count of the fits
    """
    change = table["energy_final"] - table["energy_initial"]
    columns = {
        "heads": [str(h) for h in table["heads"].values],
        "G^2 (t >= T/2)": [mean_text(row) for row in table["upper_gradient_sq"].values],
    }
    for title, values in (
        ("E(T) - E(0)", change),
        ("residual", table["edi_residual_final"]),
        ("residual with G^2", table["edi_residual_upper_gradient_final"]),
    ):
        columns[title] = [mean_text(row) for row in values.values]
    paths = table.sizes["path"]
    over = f"Mean ± standard error over {paths} paths." if paths > 1 else "One path."
    over += (
        "\nThe residual is the error of the energy balance at T; in the last column G^2 stands for "
        "the dissipation.\nIn the softmax flow the two differ, at every step size, for heads of "
        "unequal mobility."
    )
    lines = [markdown_table(columns), "", over]
    if table.sizes["heads"] < 3:
        lines.append("Name three or more head counts, as --heads 1 2 4 8, for a verdict.")
    if fit := fits.get("upper_gradient_sq"):
        start = f" for H >= {fit_from}" if fit_from > 1 else ""
        lines.append(
            f"Fit{start}: G^2 = a H^b with a = {fit.prefactor:.3g}, b = {fit.exponent:.3f}"
        )
        if math.isfinite(fit.exponent_ci[0]):
            low, high = fit.exponent_ci
            lines[-1] += f" ({100 * fit.level:.0f} % bootstrap interval {low:.3f} to {high:.3f})"
        if fit.points > 2:
            lines[-1] += f", Pearson {fit.pearson:.4f}"
    return "\n".join(lines)


def write_summary(
    folder: Path,
    name: str,
    flags: Any,
    law: dict[str, Any],
    table: "Dataset",
    fits: "Mapping[str, PowerLaw]",
    files: dict[int, Path],
    figures: "Mapping[str, Figure]",
    stale: Iterable[str],
    findings: Sequence[Finding] = (),
    question: str = "",
) -> None:
    """Write figures, summary.h5 (numbers per path) and summary.json (fits, means, provenance).

    Raises
    ------
    InputError
        Of `write_results`.
    """
    config = {"flags": asdict(flags) | {"out": str(flags.out)}, "law": law}
    runs = []
    for k, heads in enumerate(files):
        row: dict[str, Any] = {"heads": heads, "file": files[heads].name}
        for key in table.data_vars:
            mean, error = mean_and_error(table[key].values[k], finite=False)
            row[str(key)] = {"mean": json_number(mean), "standard_error": json_number(error)}
        runs.append(row)
    laws = {
        key: fit.as_dict() | {"heads_from": max(flags.fit_from, _FITTED[key])}
        for key, fit in fits.items()
    }
    document = provenance(name, question) | {
        "config": config,
        "fit": laws.get("upper_gradient_sq"),
        "fit_head_variance": laws.get("head_variance"),
        "runs": runs,
    }
    if findings:
        document["findings"] = [asdict(finding) for finding in findings]
    write_results(folder, table, document, figures, {}, stale=stale)


# The study
# ---------


SNAPSHOTS = (0, 1 / 20, 1 / 4, 1 / 2, 3 / 5, 7 / 10, 4 / 5, 9 / 10, 1)  # times, in units of T
_MOMENTS = 100  # number of intervals between the snapshots of runs that are small enough
_FEW_PATHS = 16  # up to so many paths, the snapshots of path 0 are kept
_SNAPSHOT_BYTES = 2**23  # bytes of a run file that snapshots may take

_RUN_FILE = re.compile(r"H\d{5,}\.h5")
_DRAWN = (".png", ".pdf")


def run(
    name: str,
    flags: StudyFlags,
    law_of: "Callable[[int], HeadLaw]",
    findings_of: "Callable[[Mapping[str, PowerLaw]], Sequence[Finding]]" = lambda _: (),
) -> None:
    """Solve for every head count, fit, and write run files, summary and figures into `flags.out`.

    Parameters
    ----------
    name : str
        Name of the study, for the summary.
    flags : StudyFlags
        The flags, checked (as `command_line` does).
    law_of : callable
        Function of the dimension d of the tokens, whose value is the head law of all runs.
    findings_of : callable, optional
        Function of the fits over the head counts, by name ("upper_gradient_sq", "head_variance"),
        whose value is the findings. It is asked for fits of three or more head counts.

    Raises
    ------
    InputError
        For flags, tokens or files that cannot be used; nothing has been written then.

    Examples
    --------
    A script in `studies/` is a few lines:

    >>> import numpy as np, wflow
    >>> from wflow import study
    >>> def main():
    ...     flags = study.command_line(study.StudyFlags, "Ornstein-Uhlenbeck heads.")
    ...     study.run("ou", flags, lambda d: wflow.heads.OrnsteinUhlenbeck(np.eye(d)))
    """
    with session(name, flags) as current:
        x0 = flags.cloud()
        flags = replace(flags, n=x0.shape[0], d=x0.shape[1])  # the summary reports the actual sizes
        law = law_of(x0.shape[1])
        counts = sorted(flags.heads)
        refuse_foreign(flags.out, _figure_names(flags), earlier_results(flags.out))
        problem: dict[str, Any] = {
            "x0": x0,
            "law": law,
            "t_final": flags.t_final,
            "dt": flags.dt,
            "paths": flags.paths,
            "seed": flags.seed,
            "flow": flags.flow,
            "direction": flags.direction,
            "scheme": flags.scheme,
        }
        tasks = {
            f"H{heads:05d}": problem | {"heads": heads, "save": _saved(flags, heads)}
            for heads in counts
        }
        files = dict(zip(counts, current.solve(tasks).values(), strict=True))
        print("The averages, figures and report follow.", file=sys.stderr, flush=True)
        table = summarise(files, flags.flow)
        fits = fit_scaling(table, flags.fit_from)
        print(printable(report_text(table, fits, flags.fit_from)))
        whole = {key: fit for key, fit in fits.items() if fit.points > 2}
        findings = findings_of(whole) if "upper_gradient_sq" in whole else ()
        if findings:
            print(f"\n{printable(findings_text(findings))}")
        figures = draw(flags, files, table, fits.get("upper_gradient_sq"))
        stale = _stale(flags, files)
        write_summary(
            flags.out, name, flags, law_config(law), table, fits, files, figures, stale, findings,
            current.question,
        )  # fmt: skip
        runs = ", ".join(file.name for file in files.values())
        made = f"In {flags.out}: run files {runs}; {', '.join(SUMMARY)} and {REPORT}; "
        made += f"figures (PNG and PDF) {', '.join(figures)}"
        last = flags.out / files[max(files)].name
        made += f". Open {flags.out / REPORT} in a browser, and check by: wflow verify {last}"
        print(f"\n{printable(made, lines=False)}")
    written = {file.name for file in files.values()}
    names = {file.name for file in flags.out.iterdir() if _RUN_FILE.fullmatch(file.name)}
    if others := ", ".join(sorted(names - written)):
        text = f"Also in {flags.out}, and not in this summary: {others}. Name their head counts in "
        print(f"\n{printable(text, lines=False)}--heads, with --resume, to include them.")


def _saved(flags: StudyFlags, heads: int) -> SaveAt:
    """Return what a run saves: by the flags or, if they name no snapshots, by its size.

    Up to 16 paths: those of path 0 at `SNAPSHOTS` and, for the animation of a report, at
    T (k / 100)^2: tokens move most at the beginning. Large runs, and steps chosen by their error,
    which would end at the snapshots, have those of `SNAPSHOTS` alone. More paths: those of all, or
    of as many as there is room for, at `SNAPSHOTS`, for averages over paths and late times.
    """
    save = replace(flags.save, budget=True)
    if save.snapshots:
        return save
    n, d, times = flags.n or 0, flags.d or 0, tuple(flags.t_final * s for s in SNAPSHOTS)
    size = 8 * (n * d + (heads * d**2 if save.heads else 0))  # bytes of a path at one time
    if flags.paths > _FEW_PATHS:
        room = 2 * _SNAPSHOT_BYTES // (len(times) * size)
        paths = range(max(1, min(flags.paths, room))) if save.paths == (0,) else save.paths
        return replace(save, snapshots=times, paths=tuple(paths))
    if (size + 8 * n * d) * _MOMENTS <= _SNAPSHOT_BYTES and not as_scheme(flags.scheme)[1]:
        record = save.every * flags.dt
        moments = np.round(flags.t_final * np.linspace(0, 1, _MOMENTS + 1) ** 2 / record) * record
        times = tuple(sorted({*times, *np.minimum(moments, flags.t_final).tolist()}))
    return replace(save, snapshots=times)


def draw(flags: StudyFlags, files: dict[int, Path], table: Any, fit: Any) -> "dict[str, Figure]":
    """Draw the head counts compared, the main figure first, and the run with the most heads."""
    from wflow.plots.runs import gradient_against_heads, gradient_over_time, run_figures
    from wflow.runs.read import open_run

    figures: dict[str, Figure] = {}
    with ExitStack() as stack:
        runs = {h: stack.enter_context(open_run(file)) for h, file in files.items()}
        if len(runs) > 1:
            average = table["upper_gradient_sq"].values
            figures["gradient_against_heads"] = gradient_against_heads(
                list(runs), average, fit, flags.fit_from
            )
            figures["gradient_over_time"] = gradient_over_time(runs)
            for name, caption in _CAPTIONS.items():
                figures[name].set_label(caption)
        figures |= run_figures(runs[max(runs)])
    return figures


def _figure_names(flags: StudyFlags) -> list[str]:
    """Return the names of the files that `draw` writes."""
    kinds = ["tokens_path0", "gradient_over_time", "energy_balance"]
    stems = [f"H{max(flags.heads):05d}_{kind}" for kind in kinds]
    stems += COMPARISONS if len(flags.heads) > 1 else []
    return [stem + kind for stem in stems for kind in _DRAWN]


def _stale(flags: StudyFlags, files: dict[int, Path]) -> list[str]:
    """Return the figures of an earlier call that show runs which are no longer in the folder."""
    if not (flags.resume or flags.overwrite):
        return []
    replaced = {file.stem for file in files.values()} if flags.overwrite else set[str]()
    return [
        file.name
        for file in flags.out.iterdir()
        if file.suffix in _DRAWN
        and (
            file.stem in COMPARISONS
            or ((one := OF_ONE_RUN.fullmatch(file.stem)) and one[1] in replaced)
        )
    ]
