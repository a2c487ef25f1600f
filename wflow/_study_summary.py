"""The numbers of a study: averages per run and path, the fit over head counts, their files."""

import math
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wflow._study_session import SUMMARY, provenance, write_summary
from wflow.errors import InputError
from wflow.fits import PowerLaw, json_number, mean_and_error, power_law
from wflow.schema import LEDGER_RUNNING, VARIABLES

if TYPE_CHECKING:
    from xarray import Dataset

FILES = SUMMARY
_AVERAGED = ("upper_gradient_sq", "dissipation")
_AT_END = ("energy", *LEDGER_RUNNING)


def summarise(files: dict[int, Path]) -> "Dataset":
    """Reduce finished runs to one number per quantity, head count and path.

    Parameters
    ----------
    files : head count -> run file

    Returns
    -------
    Dataset (heads, path): averages over the second half of the time, t >= T/2, of the squared
    upper gradient and the dissipation, and the ledger at the end
    """
    import xarray

    from wflow.runfile import open_run

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


def report(table: "Dataset", fit: PowerLaw | None, fit_from: int = 1) -> str:
    """Write the numbers that matter as a plain table: mean ± standard error over the paths."""
    change = table["energy_final"] - table["energy_initial"]
    columns = {
        "heads": [str(h) for h in table["heads"].values],
        "G^2 (t >= T/2)": _cells(table["upper_gradient_sq"].values),
        "E(T) - E(0)": _cells(change.values),
        "residual": _cells(table["edi_residual_final"].values),
        "residual with G^2": _cells(table["edi_residual_upper_gradient_final"].values),
    }
    widths = [max(map(len, (title, *cells))) for title, cells in columns.items()]
    rows = [tuple(columns), *zip(*columns.values(), strict=True)]
    lines = [
        "   ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    lines.insert(1, "   ".join("-" * width for width in widths))
    paths = table.sizes["path"]
    lines.append("")
    lines.append(f"Mean ± standard error over {paths} paths." if paths > 1 else "One path.")
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


def write(
    folder: Path,
    name: str,
    flags: Any,
    law: dict[str, Any],
    table: "Dataset",
    fit: PowerLaw | None,
    files: dict[int, Path],
) -> None:
    """Write summary.h5 (numbers per path) and summary.json (fit, means, provenance).

    Raises
    ------
    InputError
        Where the folder cannot be written; an earlier summary then stays.
    """
    config = {"flags": asdict(flags) | {"out": str(flags.out)}, "law": law}
    runs = []
    for k, heads in enumerate(files):
        row: dict[str, Any] = {"heads": heads, "file": files[heads].name}
        for key in table.data_vars:
            mean, error = mean_and_error(table[key].values[k])
            row[str(key)] = {"mean": json_number(mean), "standard_error": json_number(error)}
        runs.append(row)
    document = provenance(name) | {
        "config": config,
        "fit": None if fit is None else fit.as_dict() | {"heads_from": flags.fit_from},
        "runs": runs,
    }
    write_summary(folder, table, document)


def _cells(values: NDArray[Any]) -> list[str]:
    means, errors = mean_and_error(values)
    return [
        f"{mean:.4g}" + (f" ± {error:.1g}" if math.isfinite(error) else "")
        for mean, error in zip(means, errors, strict=True)
    ]
