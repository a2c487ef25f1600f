"""Description of a run in words and numbers, for `wflow info` and reports."""

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from wflow._core.printable import printable
from wflow.analysis.fits import mean_and_error
from wflow.runs.schema import DENSITY_SERIES, flow_name, head_count, is_movement, law_name

if TYPE_CHECKING:
    from xarray import Dataset

__all__ = ["describe", "mean_and_spread"]

_WIDEST = 160  # characters of a parameter


def describe(ds: "Dataset") -> list[tuple[str, str]]:
    """Return what `wflow info` prints: pairs of a name and a text.

    Parameters
    ----------
    ds : a run, of `wflow.open` or `wflow.solve`

    Returns
    -------
    list of (name, text), printable, each on one line
    """
    return [(name, printable(text, lines=False)) for name, text in _described(ds)]


def _described(ds: "Dataset") -> list[tuple[str, str]]:
    config = json.loads(ds.attrs["config"])
    sizes = ds.sizes
    times = ds["time"].values
    lines = [("status", "complete" if ds.attrs["complete"] else "NOT COMPLETE")]
    lines += [("title", str(ds.attrs["title"]))] if "title" in ds.attrs else []
    if "sampler" in config:
        return lines + _sampler(ds, config) + _provenance(ds)
    if is_movement(config):
        return lines + _movements(ds, config)
    lines += [
        ("law", _law(config)),
        ("heads", str(head_count(config, sizes) or "?")),
        _carriers(config, sizes),
        ("paths", str(sizes["path"])),
        ("dynamics", _dynamics(config)),
        ("time", f"to {_number(config.get('t_final'))} in {_steps(config)}"),
        ("precision", str(config.get("compute", {}).get("dtype", "?"))),
        ("sums", _sums(config.get("compute", {}))),
        ("recorded", f"{times.size} times" + (f" up to {times[-1]:g}" if times.size else "")),
    ]
    if "snapshot" in ds.coords:
        shots = ds["snapshot"].values
        kept = ("tokens", "tokens_mean", "density", "density_mean", "heads")
        stored = [name for name in kept if name in ds]
        lines.append(("snapshots", f"{_times(shots)} of {', '.join(stored)}"))
    return lines + _provenance(ds) + _numbers(ds)


def _carriers(config: dict[str, Any], sizes: Mapping[Any, int]) -> tuple[str, str]:
    """Return what moves: tokens, or a density."""
    mesh = config.get("mesh")
    if not isinstance(mesh, dict):
        return "tokens", f"n = {sizes.get('token', '?')}, d = {sizes.get('axis', '?')}"
    size = f"{mesh.get('cells', '?')} cells"
    if "degree" in mesh:
        size = f"degree {mesh['degree']}, {mesh.get('cells', '?')} nodes"
    return "density", f"{mesh.get('kind', '?')}, {size}, d = {sizes.get('axis', '?')}"


def _provenance(ds: "Dataset") -> list[tuple[str, str]]:
    names = ("seed", "command", "created", "wflow_version", "numpy_version", "numba_version")
    return [(name, _short(ds.attrs[name])) for name in names if name in ds.attrs]


def _sampler(ds: "Dataset", config: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe a run of a sampler: its settings, and diagnostics at its end."""
    sizes, times = ds.sizes, ds["time"].values
    known = ("sampler", "x0", "grad", "prior", "seed", "save", "steps")
    settings = [f"{key} = {value}" for key, value in config.items() if key not in known]
    lines = [
        ("sampler", _short(f"{config['sampler']}({', '.join(settings)})")),
        *((part, _part(config[part])) for part in ("grad", "prior") if part in config),
        ("tokens", f"n = {sizes.get('token', '?')}, d = {sizes.get('axis', '?')}"),
        ("paths", str(sizes["path"])),
        ("steps", str(config.get("steps", "?"))),
        ("recorded", f"{times.size} times" + (f" up to {times[-1]:g}" if times.size else "")),
    ]
    if "snapshot" in ds.coords and "samples" in ds:
        lines.append(("snapshots", f"{_times(ds['snapshot'].values)} of samples"))
    for name in ("speed_sq", "ess", "ess_min", "absorbed") if times.size else ():
        if name in ds:
            lines.append((f"{name}(T)", mean_and_spread(ds[name][:, -1].values)))
    return lines


def _movements(ds: "Dataset", config: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe a run of minimizing movements: settings, and how the steps ended."""
    times, metric = ds["time"].values, config.get("metric", "?")
    lines = [
        ("law", _law(config)),
        ("heads", str(head_count(config, ds.sizes) or "?")),
        _carriers(config, ds.sizes),
        ("path", str(config.get("path", "?"))),
        ("metric", metric if isinstance(metric, str) else _part(metric)),
        ("dynamics", f"minimizing movements, {config.get('direction', '?')}"),
        ("time", f"to {_number(config.get('t_final'))} in steps of {_number(config.get('tau'))}"),
        ("heads move", f"by {_scheme(config)} in steps of {_number(config.get('dt'))}"),
        ("recorded", f"{times.size} times" + (f" up to {times[-1]:g}" if times.size else "")),
        *_provenance(ds),
    ]
    if not times.size:
        return lines
    return [
        *lines,
        ("E(0)", f"{float(ds['energy'][0]):.6g}"),
        ("E(T)", f"{float(ds['energy'][-1]):.6g}"),
        ("inequality_gap", f"{float(ds['inequality_gap'][1:].min()):.3g} at least")
        if times.size > 1
        else ("inequality_gap", "no step was taken"),
        ("not converged", f"{int((~ds['converged'].values.astype(bool)).sum())} steps"),
    ]


def _part(config: Any) -> str:
    """Describe a part of a run: its name and parameters, "custom" where its code is compared."""
    if not isinstance(config, dict):
        return "?"
    custom = "custom " if "fingerprint" in config else ""
    hidden = ("name", "fingerprint", "not_comparable")
    rest = ", ".join(f"{key} = {value}" for key, value in config.items() if key not in hidden)
    return _short(f"{custom}{config.get('name', '?')}" + (f"({rest})" if rest else ""))


def _numbers(ds: "Dataset") -> list[tuple[str, str]]:
    """Return means over the paths, with their standard error."""
    times = ds["time"].values
    if not times.size:
        return []
    late = ds["time"] >= (times[0] + times[-1]) / 2
    lines = []
    if "energy" in ds:
        lines += [
            ("E(0)", mean_and_spread(ds["energy"][:, 0].values)),
            ("E(T)", mean_and_spread(ds["energy"][:, -1].values)),
        ]
        lines += [
            (f"{name}(T)", mean_and_spread(ds[name][:, -1].values))
            for name in ("edi_residual", "edi_residual_upper_gradient")
            if name in ds
        ]
    for name in ("upper_gradient_sq", "speed_sq"):
        if name in ds:
            means = ds[name].isel(time=late.values).mean("time", skipna=True).values
            lines.append((name, f"{mean_and_spread(means)}, mean over the second half"))
    for name in (*DENSITY_SERIES, "free_energy"):
        if name in ds:
            lines.append((f"{name}(T)", mean_and_spread(ds[name][:, -1].values)))
    for name in ("numerical_diffusion", "spectral_tail"):
        if name in ds and ds[name].notnull().any():
            lines.append((name, f"{float(ds[name].max()):.3g} at most"))
    if "sum_error" in ds and ds["sum_error"].notnull().any():
        lines.append(("sum_error", f"{float(ds['sum_error'].max()):.3g} at most"))
    return lines


def _sums(compute: dict[str, Any]) -> str:
    """Return the method of the sums over pairs; a file names none for exact sums by Numba."""
    text = str(compute.get("method", "exact"))
    if "tolerance" in compute:
        text += f", tolerance {compute['tolerance']}"
    if "backend" in compute:
        text += f", by {compute['backend']} on {compute.get('device', '?')}"
    return text


def mean_and_spread(values: Any) -> str:
    """Mean over the paths (paths,) and its standard error, as text."""
    known = np.asarray(values, float)
    known = known[~np.isnan(known)]
    if not known.size:
        return "not recorded"
    if not np.isfinite(known).all():
        return "not finite"
    mean, error = mean_and_error(known)
    return with_error(float(mean), float(error))


def with_error(mean: float, error: float) -> str:
    """Return a number and its error, with the digits that the error leaves it.

    The error has one digit, two where it begins with 1. A number without an error, or with one of
    rounding, has four digits.
    """
    if not max(1e-12 * abs(mean), 1e-300) < error < math.inf:
        return f"{mean:.4g}"
    decimals = -math.floor(math.log10(error))
    decimals += round(error * 10**decimals, 1) < 2
    if 1e-6 < error < 1e6 and abs(mean) < 1e6:
        return f"{mean:.{max(0, decimals)}f} ± {error:.{max(0, decimals)}f}"
    places = min(max(0, math.floor(math.log10(max(abs(mean), error))) + decimals), 15)
    return f"{mean:.{places}e} ± {error:.1g}"


def _law(config: dict[str, Any]) -> str:
    name = law_name(config)
    if not name:
        return "?"
    law = config["law"]
    rest = ", ".join(
        f"{key} = {law_name(law) if key == 'law' else value}"  # the law within a law
        for key, value in law.items()
        if key != "name"
    )
    return _short(f"{name}({rest})")


def _short(text: Any) -> str:
    text = str(text)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 4]} ..."


def _scheme(config: dict[str, Any]) -> str:
    """Describe the time stepping: the tolerances of chosen steps, the order of a custom tableau."""
    scheme = config.get("scheme", "?")
    if not isinstance(scheme, dict):
        return str(scheme)
    keys = ("order",) if "nodes" in scheme else scheme.keys() - {"name"}
    settings = [f"{key} = {value}" for key, value in scheme.items() if key in keys]
    return f"{scheme.get('name', '?')} ({', '.join(settings)})"


def _dynamics(config: dict[str, Any]) -> str:
    """Describe flow, direction, scheme, mask and diffusion of the tokens."""
    words = [flow_name(config), str(config.get("direction", "?")), _scheme(config)]
    words += ["causal mask"] if config.get("causal") else []
    densities = "mesh" in config
    words += ["reconstruction"] if config.get("reconstruct") else []
    if config.get("kappa"):
        carriers = "the density diffuses" if densities else "tokens diffuse"
        words.append(f"{carriers} by kappa = {config['kappa']:g}")
    return ", ".join(words)


def _steps(config: dict[str, Any]) -> str:
    """Describe the steps into which the time is divided."""
    dt = _number(config.get("dt"))
    if config.get("steps") == "chosen":
        return f"steps below their bound, counted in units of {dt}"
    return f"steps of {dt}"


def _number(value: Any) -> str:
    """Write a number without the digits of its rounding: 0.7 for 7 * 0.1."""
    return f"{value:.12g}" if isinstance(value, int | float) else "?"


def _times(values: Any) -> str:
    texts = [f"{value:g}" for value in values]
    if len(texts) > 8:
        texts = [*texts[:4], "...", *texts[-2:]]
    return "t = " + ", ".join(texts) if texts else "none yet"
