"""The study over head counts: the squared upper gradient against the number of heads.

`session` serves a study of any kind. `run` is the whole study: it solves the same problem
for several head counts and asks how the squared upper gradient G^2, averaged over the second half
of the time, depends on the number of heads; a script adds its own flags to `StudyFlags`, makes its
head law, and hands both over.
"""

import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.adaptive import as_scheme
from wflow._core.errors import InputError
from wflow._core.printable import printable
from wflow.analysis.fits import PowerLaw, json_number, mean_and_error, power_law
from wflow.heads.laws import law_config
from wflow.runs.results import COMPARISONS, OF_ONE_RUN, REPORT, refuse_foreign
from wflow.runs.schema import BUDGET_RUNNING, VARIABLES
from wflow.study.flags import StudyFlags
from wflow.study.folder import earlier_results
from wflow.study.frame import SUMMARY, markdown_table, provenance, session, write_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

    from wflow.heads.laws import HeadLaw


# Summary: averages per run and path, the fit over head counts, their files
# -------------------------------------------------------------------------

_AVERAGED = ("upper_gradient_sq", "dissipation")
_AT_END = ("energy", *BUDGET_RUNNING)


def summarise(files: dict[int, Path]) -> "Dataset":
    """Reduce finished runs to one number per quantity, head count and path.

    Parameters
    ----------
    files : head count -> run file

    Returns
    -------
    Dataset (heads, path): averages over the second half of the time, t >= T/2, of the squared
    upper gradient and the dissipation, and the energy budget at the end
    """
    import xarray

    from wflow.runs.read import open_run

    columns: dict[str, list[NDArray[Any]]] = {}
    path = None
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
    variables = {}
    for name, values in columns.items():
        variable = VARIABLES[name.removesuffix("_final").removesuffix("_initial")]
        when = "average over t >= T/2"
        when = "at t = 0" if name.endswith("_initial") else when
        when = "at t = T" if name.endswith("_final") else when
        attrs = variable.attrs | {"long_name": f"{variable.long_name}, {when}"}
        variables[name] = (("heads", "path"), np.array(values), attrs)
    coords = {
        "heads": ("heads", np.array(list(files)), {"long_name": "number of heads H"}),
        "path": ("path", path, VARIABLES["path"].attrs),
    }
    return xarray.Dataset(variables, coords)


def fit_scaling(table: "Dataset", fit_from: int = 1) -> PowerLaw | None:
    """Fit a H^b to the time-averaged G^2 of the head counts H >= fit_from; None below two."""
    part = table["upper_gradient_sq"].sel(heads=table["heads"] >= fit_from)
    if part.sizes["heads"] < 2:
        return None
    try:
        return power_law(part["heads"].values, part.values)
    except InputError as error:  # the runs are worth keeping without a fit
        warnings.warn(f"no fit over the head counts: {error}", stacklevel=2)
        return None


def report_text(table: "Dataset", fit: PowerLaw | None, fit_from: int = 1) -> str:
    """Write the numbers that matter as a table: mean ± standard error over the paths."""
    change = table["energy_final"] - table["energy_initial"]
    columns = {
        "heads": [str(h) for h in table["heads"].values],
        "G^2 (t >= T/2)": _cells(table["upper_gradient_sq"].values),
        "E(T) - E(0)": _cells(change.values),
        "residual": _cells(table["edi_residual_final"].values),
        "residual with G^2": _cells(table["edi_residual_upper_gradient_final"].values),
    }
    paths = table.sizes["path"]
    over = f"Mean ± standard error over {paths} paths." if paths > 1 else "One path."
    lines = [markdown_table(columns), "", over]
    if fit is not None:
        start = f" for H >= {fit_from}" if fit_from > 1 else ""
        lines.append(
            f"Fit{start}: G^2 = a H^b with a = {fit.prefactor:.4g}, b = {fit.exponent:.4f}"
        )
        if math.isfinite(fit.exponent_ci[0]):
            low, high = fit.exponent_ci
            lines[-1] += f" ({100 * fit.level:.0f} % bootstrap interval {low:.4f} to {high:.4f})"
        if fit.points > 2:
            lines[-1] += f", Pearson {fit.pearson:.5f}"
    return "\n".join(lines)


def write_summary(
    folder: Path,
    name: str,
    flags: Any,
    law: dict[str, Any],
    table: "Dataset",
    fit: PowerLaw | None,
    files: dict[int, Path],
    figures: "Mapping[str, Figure]",
    stale: Iterable[str],
) -> None:
    """Write figures, summary.h5 (numbers per path) and summary.json (fit, means, provenance).

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
    document = provenance(name) | {
        "config": config,
        "fit": None if fit is None else fit.as_dict() | {"heads_from": flags.fit_from},
        "runs": runs,
    }
    write_results(folder, table, document, figures, {}, stale=stale)


def _cells(values: NDArray[Any]) -> list[str]:
    means, errors = mean_and_error(values, finite=False)
    return [
        f"{mean:.4g}" + (f" ± {error:.1g}" if math.isfinite(error) else "")
        for mean, error in zip(means, errors, strict=True)
    ]


# The study
# ---------


SNAPSHOTS = (0, 1 / 20, 1 / 4, 1 / 2, 1)  # times of the token snapshots, in units of T
_MOMENTS = 100  # intervals between the snapshots of runs that are small enough
_SNAPSHOT_BYTES = 2**23  # of a run file, that they may take

_RUN_FILE = re.compile(r"H\d{5,}\.h5")
_DRAWN = (".png", ".pdf")


def run(name: str, flags: StudyFlags, law_of: "Callable[[int], HeadLaw]") -> int:
    """Solve for every head count, fit, and write run files, summary and figures into `flags.out`.

    Parameters
    ----------
    name : str
        Name of the study, for the summary.
    flags : StudyFlags
        The flags, checked (as `command_line` does).
    law_of : callable
        Function of the dimension d of the tokens, whose value is the head law of all runs.

    Returns
    -------
    int
        Exit status 0.

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
    ...     return study.run("ou", flags, lambda d: wflow.heads.OrnsteinUhlenbeck(np.eye(d)))
    """
    with session(name, flags) as current:
        x0 = flags.cloud()
        flags = replace(flags, n=x0.shape[0], d=x0.shape[1])  # the summary says what they were
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
            "save": replace(
                flags.save,
                budget=True,
                snapshots=flags.save.snapshots or _moments(flags),
            ),
        }
        tasks = {f"H{heads:05d}": problem | {"heads": heads} for heads in counts}
        files = dict(zip(counts, current.solve(tasks).values(), strict=True))
        table = summarise(files)
        fit = fit_scaling(table, flags.fit_from)
        print(printable(report_text(table, fit, flags.fit_from)))
        figures = draw(flags, files, table, fit)
        stale = _stale(flags, files)
        write_summary(flags.out, name, flags, law_config(law), table, fit, files, figures, stale)
        runs = ", ".join(file.name for file in files.values())
        made = f"In {flags.out}: run files {runs}; {', '.join(SUMMARY)} and {REPORT}; "
        made += f"figures (PNG and PDF) {', '.join(figures)}"
        print(f"\n{printable(made, lines=False)}")
    written = {file.name for file in files.values()}
    names = {file.name for file in flags.out.iterdir() if _RUN_FILE.fullmatch(file.name)}
    if others := ", ".join(sorted(names - written)):
        text = f"Also in {flags.out}, and not in this summary: {others}. Name their head counts in "
        print(f"\n{printable(text, lines=False)}--heads, with --resume, to include them.")
    return 0


def _moments(flags: StudyFlags) -> tuple[float, ...]:
    """Return the times of the snapshots, for the animation of a report: at T (k / 100)^2.

    Tokens move most at the beginning. Large runs, and steps chosen by their error, which would end
    at the snapshots, have those of `SNAPSHOTS` alone.
    """
    few = tuple(flags.t_final * s for s in SNAPSHOTS)
    n, d = flags.n or 0, flags.d or 0
    size = 8 * (2 * n * d + (max(flags.heads) * d**2 if flags.save.heads else 0))
    if size * _MOMENTS > _SNAPSHOT_BYTES or as_scheme(flags.scheme)[1]:
        return few
    record = flags.save.every * flags.dt
    times = np.round(flags.t_final * np.linspace(0, 1, _MOMENTS + 1) ** 2 / record) * record
    return tuple(np.unique(np.minimum(times, flags.t_final)).tolist())


def draw(flags: StudyFlags, files: dict[int, Path], table: Any, fit: Any) -> "dict[str, Figure]":
    """Draw the comparison of the head counts, and all figures of the run with the most heads."""
    from wflow.plots.runs import gradient_against_heads, gradient_over_time, run_figures
    from wflow.runs.read import open_run

    figures: dict[str, Figure] = {}
    with ExitStack() as stack:
        runs = {h: stack.enter_context(open_run(file)) for h, file in files.items()}
        if len(runs) > 1:
            figures["gradient_over_time"] = gradient_over_time(runs)
            average = table["upper_gradient_sq"].values
            figures["gradient_against_heads"] = gradient_against_heads(
                list(runs), average, fit, flags.fit_from
            )
        figures |= run_figures(runs[max(runs)])
    return figures


def _figure_names(flags: StudyFlags) -> list[str]:
    """Return the names of the files that `draw` will be written to."""
    kinds = ["tokens_path0", "gradient_over_time", "energy_balance"]
    kinds += ["tokens_mean"] if flags.paths > 1 else []
    stems = [f"H{max(flags.heads):05d}_{kind}" for kind in kinds]
    stems += COMPARISONS if len(flags.heads) > 1 else []
    return [stem + kind for stem in stems for kind in _DRAWN]


def _stale(flags: StudyFlags, files: dict[int, Path]) -> list[str]:
    """Return the figures of an earlier call that show other runs than those in the folder now."""
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
