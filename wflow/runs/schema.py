"""Schema of run files: every variable with its dimensions, description and source."""

import json
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wflow._core.errors import InputError
from wflow._core.invocation import command_text
from wflow._core.printable import printable
from wflow._version import __version__

FAMILY = "wflow-run/"
SCHEMA = f"{FAMILY}3"
# Files of earlier schemas are read; their digests, if any, are not compared.
READABLE = (f"{FAMILY}1", f"{FAMILY}2", SCHEMA)
STATE = "state"
"""Group of a run file with the state of all paths at the end, from which the run is extended."""

DIGESTS = "digests"
"""Attribute of a run file, JSON: digests of the variables by name; "" is that of the attributes."""
# These attributes belong to HDF5 and netCDF-4 themselves.
HIDDEN = {
    "CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates",
    "_NCProperties",
}  # fmt: skip

_MHT = "Massucco, Del Grande, Carioni, Brune, Schönlieb, arXiv 2605.18870"
_GLPR = (
    "Geshkovski, Letrouit, Polyanskiy, Rigollet, A mathematical perspective on transformers, 2025"
)
_DOPRI = "Hairer, Nørsett, Wanner, Solving Ordinary Differential Equations I, II.4 and II.5"
_SAMPLERS = {
    "brwp": "Han, Osher, Li, Splitting regularized Wasserstein proximal algorithms for nonsmooth "
    "sampling problems, arXiv 2502.16773",
    "myula": "Durmus, Moulines, Pereyra, Efficient Bayesian computation by proximal Markov chain "
    "Monte Carlo: when Langevin meets Moreau, SIAM J. Imaging Sci. 11, 2018",
    "ula": "Roberts, Tweedie, Exponential convergence of Langevin distributions and their discrete "
    "approximations, Bernoulli 2, 1996",
}
CONVENTIONS = "CF-1.10"
RESUME = "finish it with --resume if it was interrupted; an error would end it there again"
HISTORY_BYTES = 2048
"""Room for the attribute `history` in a run file, where it is changed in place."""
_LINE_BYTES = 480  # of a line of the history; the whole command is in the attribute `command`


@dataclass(frozen=True)
class Variable:
    """One variable of a run file: a row of the table in docs/guide/run_files.md.

    Attributes
    ----------
    name : name in the file and in the Dataset
    dims : names of its dimensions, slowest first
    long_name : what it is, for people and for axis labels
    source : where the formula stands; "" for none
    dtype : NumPy type, little-endian; netCDF-4 has no booleans, which are whole numbers in a file
    """

    name: str
    dims: tuple[str, ...]
    long_name: str
    source: str = ""
    dtype: str = "<f8"

    @property
    def attrs(self) -> dict[str, str]:
        """Attributes of the variable in a Dataset: long_name, units and, where known, source."""
        attrs = {"long_name": self.long_name, "units": "1"}
        return attrs | {"source": self.source} if self.source else attrs

    @property
    def stored(self) -> str:
        """NumPy type in the file."""
        return "|i1" if self.dtype == "|b1" else self.dtype

    @property
    def fill(self) -> float:
        """Value of what was not recorded: NaN, or 0 for whole numbers."""
        return np.nan if self.dtype == "<f8" else 0


BUDGET_RATES = (
    "energy",
    "upper_gradient_sq",
    "dissipation",
    "weight_power",
    "ito_power",
    "edi_defect",
)
BUDGET_RUNNING = (
    "work_weights",
    "work_ito",
    "dissipated",
    "dissipated_upper_gradient",
    "martingale",
    "edi_residual",
    "edi_residual_upper_gradient",
)
# Runs whose tokens diffuse also hold these.
DIFFUSION_RATES = ("diffusion_power",)
DIFFUSION_RUNNING = ("work_diffusion", "martingale_tokens")
# Runs of noisy heads with tokens without noise also hold these.
NOISE_RUNNING = ("work_stratonovich", "edi_residual_stratonovich")
SPEED = ("speed_sq",)
# Runs whose sums may be computed by series also hold this.
SUM_ERROR = ("sum_error",)
# Runs whose steps are chosen by their error also hold this.
EVALUATIONS = ("evaluations",)
# Runs of a sampler hold these; runs of a sampler with attention also hold its diagnostics.
SAMPLE_MOMENTS = ("sample_mean", "sample_variance")
SAMPLE_ATTENTION = ("ess", "ess_min", "absorbed")
# Runs of the mean-field equation hold this, estimates of errors in space, and the mesh.
DENSITY_SERIES = ("entropy",)
MESH = ("centres", "areas")
TAIL = 1e-3
"""Share of the highest degrees in a density, above which its modes do not resolve it."""


def budget_rates(names: Container[Any]) -> tuple[str, ...]:
    """List the rates of the energy budget in a run that holds or misses these variables."""
    return BUDGET_RATES + (DIFFUSION_RATES if _diffuses(names) else ())


def budget_running(names: Container[Any]) -> tuple[str, ...]:
    """List the running sums of the energy budget in a run that holds or misses these variables."""
    noisy = any(name in names for name in NOISE_RUNNING)
    running = BUDGET_RUNNING + (DIFFUSION_RUNNING if _diffuses(names) else ())
    return running + (NOISE_RUNNING if noisy else ())


def _diffuses(names: Container[Any]) -> bool:
    return any(name in names for name in (*DIFFUSION_RATES, *DIFFUSION_RUNNING))


_SERIES = ("path", "time")
_TABLE = (
    Variable("time", ("time",), "time"),
    Variable("snapshot", ("snapshot",), "time of the snapshot"),
    Variable("path", ("path",), "number of the Monte Carlo path", dtype="<i8"),
    Variable("snapshot_path", ("snapshot_path",), "Monte Carlo path of the snapshot", dtype="<i8"),
    Variable("energy", _SERIES, "energy E", f"{_MHT}, eq. 4 and 21"),
    Variable("upper_gradient_sq", _SERIES, "squared upper gradient G^2", f"{_MHT}, eq. 113"),
    Variable("dissipation", _SERIES, "dissipation -(1/n) sum_i <gbar(x_i), v_i>"),
    Variable("weight_power", _SERIES, "power of the drift of the heads"),
    Variable("ito_power", _SERIES, "Itô correction per unit time"),
    Variable("edi_defect", _SERIES, "dissipation minus (ascent: plus) squared upper gradient"),
    Variable("work_weights", _SERIES, "time integral of weight_power, plus energy of head jumps"),
    Variable("work_ito", _SERIES, "time integral of ito_power"),
    Variable("dissipated", _SERIES, "time integral of dissipation"),
    Variable(
        "dissipated_upper_gradient",
        _SERIES,
        "time integral of the squared upper gradient",
        f"{_MHT}, Theorem 4.13",
    ),
    Variable("martingale", _SERIES, "running sum of the martingale increments"),
    Variable("diffusion_power", _SERIES, "Itô correction of the diffusion of the tokens"),
    Variable("work_diffusion", _SERIES, "time integral of diffusion_power"),
    Variable(
        "martingale_tokens", _SERIES, "running sum of the martingale increments of the tokens"
    ),
    Variable("edi_residual", _SERIES, "residual of the energy balance with dissipation"),
    Variable(
        "edi_residual_upper_gradient",
        _SERIES,
        "residual of the energy balance with the squared upper gradient",
        f"{_MHT}, Theorem 4.13",
    ),
    Variable("work_stratonovich", _SERIES, "Stratonovich integral of the work of the heads"),
    Variable(
        "edi_residual_stratonovich",
        _SERIES,
        "residual of the energy balance with the Stratonovich integral",
    ),
    Variable("speed_sq", _SERIES, "mean squared speed (1/n) sum_i |v_i|^2"),
    Variable("sum_error", _SERIES, "estimated relative error of the sums over pairs"),
    Variable("evaluations", _SERIES, "evaluations of the velocity since time 0"),
    Variable("sample_mean", (*_SERIES, "axis"), "mean of the tokens of a sampler"),
    Variable("sample_variance", (*_SERIES, "axis"), "variance of the tokens of a sampler"),
    Variable("ess", _SERIES, "effective sample size of the attention, mean over the tokens"),
    Variable("ess_min", _SERIES, "effective sample size of the attention, smallest of a token"),
    Variable("absorbed", _SERIES, "share of coordinates that the proximal map sets to zero"),
    Variable("samples", ("path", "snapshot", "token", "axis"), "tokens of a sampler"),
    Variable("entropy", _SERIES, "entropy, minus the integral of rho log rho"),
    Variable("free_energy", _SERIES, "free energy -s E + kappa int rho log rho"),
    Variable("numerical_diffusion", _SERIES, "diffusion that the fluxes add, mean over the mass"),
    Variable("spectral_tail", _SERIES, "share of the highest degrees in the density"),
    Variable("density", ("snapshot_path", "snapshot", "cell"), "density"),
    Variable("density_mean", ("snapshot", "cell"), "mean of the densities over all paths"),
    Variable("centres", ("cell", "axis"), "centres of the cells"),
    Variable("areas", ("cell",), "areas of the cells"),
    Variable("initial_density", ("cell",), "density at time 0"),
    Variable("tokens", ("snapshot_path", "snapshot", "token", "axis"), "tokens"),
    Variable(
        "tokens_mean",
        ("snapshot", "token", "axis"),
        "mean of the tokens over all paths, not normalised",
    ),
    Variable(
        "heads",
        ("snapshot_path", "snapshot", "head", "axis", "axis_out"),
        "interaction matrices D_h",
    ),
    Variable("initial_tokens", ("token", "axis"), "tokens at time 0"),
    Variable("initial_heads", ("head", "axis", "axis_out"), "interaction matrices at time 0"),
)
VARIABLES: dict[str, Variable] = {variable.name: variable for variable in _TABLE}
COORDINATES = ("time", "snapshot", "path", "snapshot_path")

_TIME = ("time",)
_MOVEMENTS = (
    Variable("time", _TIME, "time t_k"),
    Variable("tokens", ("time", "token", "axis"), "tokens x^k", "[MHT] eq. 58, 69"),
    Variable("energy", _TIME, "energy E(t_k, x^k)", "[MHT] eq. 21"),
    Variable("energy_before", _TIME, "energy E(t_k, x^{k-1})", "[MHT] eq. 21"),
    Variable("distance_sq", _TIME, "squared distance W^2(x^k, x^{k-1})", "[MHT] eq. 58, 69"),
    Variable(
        "inequality_gap",
        _TIME,
        "fall of the energy in the step (ascent: rise) less W^2/(2 tau)",
        "[MHT] Theorem 3.11",
    ),
    Variable("iterations", _TIME, "iterations of L-BFGS", dtype="<i8"),
    Variable("gradient_norm", _TIME, "gradient left, in the metric of the step"),
    Variable("converged", _TIME, "whether the step met its tolerance", dtype="|b1"),
    Variable("recouplings", _TIME, "better matchings found in the step", dtype="<i8"),
    VARIABLES["initial_heads"],
)
MOVEMENTS = {variable.name: variable for variable in _MOVEMENTS}
"""Variables of minimizing movements, which have one path and no axis for it."""


def variables_of(names: Container[Any]) -> dict[str, Variable]:
    """Return the table of variables for the kind of run that holds these names."""
    return MOVEMENTS if "inequality_gap" in names else VARIABLES


# A layout is a dataclass with some of these fields: values of a coordinate, or a size.
_MARKS = {"time": "times", "snapshot": "snapshots", "snapshot_path": "snapshot_paths"}
_SIZES = {
    "path": "paths", "token": "tokens", "axis": "axes", "axis_out": "axes", "head": "heads",
    "cell": "cells",
}  # fmt: skip


class Layout(ABC):
    """Sizes of a run, which determine the variables of its file and their shapes.

    A kind of run gives `names`; its fields have the names of `_MARKS` and `_SIZES`.

    Raises
    ------
    InputError
        For a size below one, times that do not increase, or a snapshot path out of range.
    """

    per_path_x0 = False
    variables = VARIABLES

    def __post_init__(self) -> None:
        for dim, field in _MARKS.items():
            if hasattr(self, field):
                values = np.array(getattr(self, field), self.variables[dim].dtype).reshape(-1)
                object.__setattr__(self, field, values)
        for dim, size in self.sizes.items():
            if size < 1 and dim not in ("snapshot", "snapshot_path"):
                what = "record times" if dim == "time" else _SIZES[dim]
                raise InputError(f"a run needs at least one of its {what}, got {size}")
        for dim, what in (("time", "record"), ("snapshot", "snapshot")):
            if np.any(np.diff(self.marks.get(dim, [])) <= 0):
                raise InputError(f"{what} times must increase; sort them and drop repeated ones")
        chosen = self.marks["snapshot_path"].tolist() if "snapshot_path" in self.marks else []
        if len(set(chosen) & set(range(self.sizes.get("path", 1)))) < len(chosen):
            raise InputError(
                f"snapshot paths {chosen} must be different numbers from 0 "
                f"to {self.sizes['path'] - 1}; raise the number of paths or choose others"
            )

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Variables of such a run, without the coordinates."""

    @cached_property
    def marks(self) -> dict[str, NDArray[Any]]:
        """Values of the coordinates but `path`, which counts."""
        return {dim: getattr(self, field) for dim, field in _MARKS.items() if hasattr(self, field)}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size of every dimension, by name."""
        sizes = {dim: getattr(self, field) for dim, field in _SIZES.items() if hasattr(self, field)}
        return sizes | {dim: values.size for dim, values in self.marks.items()}

    def dims(self, name: str) -> tuple[str, ...]:
        """Return the names of the dimensions of a variable in this run."""
        dims = self.variables[name].dims
        initial = name in ("initial_tokens", "initial_density")
        return ("path", *dims) if initial and self.per_path_x0 else dims

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the sizes of a variable in this run, in the order of `dims(name)`."""
        sizes = self.sizes
        return tuple(sizes[dim] for dim in self.dims(name))

    @property
    def bytes(self) -> float:
        """Bytes of all values."""
        return sum(8.0 * float(np.prod(self.shape(name))) for name in self.names)

    def coordinates(self) -> dict[str, NDArray[Any]]:
        """Return the values of the coordinates that the variables of this run use."""
        values = {"path": np.arange(self.sizes.get("path", 1)), **self.marks}
        used = {dim for name in self.names for dim in self.dims(name)}
        return {
            name: values[name].astype(VARIABLES[name].dtype) for name in COORDINATES if name in used
        }


@dataclass(frozen=True, eq=False)
class RunLayout(Layout):
    """Sizes of a run of `wflow.solve`, and which variables its file holds.

    Attributes
    ----------
    paths : number of Monte Carlo paths
    times : array (time,), record times
    snapshots : array (snapshot,), snapshot times; empty: no snapshot variables
    snapshot_paths : int array (snapshot_path,); empty: of the snapshots only tokens_mean
    tokens, axes, heads : n, d, H
    save_heads : whether `heads` is held
    budget : the energy and its budget (True) or speed_sq alone (False)
    per_path_x0 : whether initial_tokens has a row per path
    initial_heads : whether `initial_heads` is held (heads that are one symmetric D each)
    diffusion : whether the tokens diffuse, which the budget then accounts for
    sum_error : whether an estimate of the error of the sums is held
    evaluations : whether the number of evaluations is held
    """

    paths: int
    times: NDArray[np.floating]
    snapshots: NDArray[np.floating]
    snapshot_paths: NDArray[np.integer]
    tokens: int
    axes: int
    heads: int
    save_heads: bool = False
    budget: bool = True
    per_path_x0: bool = False
    initial_heads: bool = True
    diffusion: bool = False
    noisy: bool = False
    sum_error: bool = False
    evaluations: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Variables of such a run, without the coordinates.

        A variable without a single value is left out: netCDF reads a size of zero as unlimited.
        """
        names = [*self.series, "tokens", "tokens_mean", "initial_tokens", *self.matrices]
        return tuple(name for name in names if all(self.shape(name)))

    @property
    def series(self) -> list[str]:
        """The energy budget or, without it, the speed; and diagnostics of the computation."""
        names = [*BUDGET_RATES, *BUDGET_RUNNING] if self.budget else [*SPEED]
        names += [*DIFFUSION_RATES, *DIFFUSION_RUNNING] if self.budget and self.diffusion else []
        names += NOISE_RUNNING if self.budget and self.noisy else []
        names += SUM_ERROR if self.sum_error else []
        return [*names, *(EVALUATIONS if self.evaluations else ())]

    @property
    def matrices(self) -> list[str]:
        """Variables of the heads."""
        names = ["heads"] if self.save_heads else []
        return names + (["initial_heads"] if self.initial_heads else [])


@dataclass(frozen=True, eq=False)
class SampleLayout(Layout):
    """Sizes of a run of a sampler, which determine the variables of its file.

    Attributes
    ----------
    paths : number of clouds, each a Monte Carlo path
    times : array (time,), record times, increasing
    snapshots : array (snapshot,), times of the samples, increasing
    tokens, axes : n, d
    attention : whether the diagnostics of an attention are held
    per_path_x0 : whether initial_tokens has a row per path
    """

    paths: int
    times: NDArray[np.floating]
    snapshots: NDArray[np.floating]
    tokens: int
    axes: int
    attention: bool
    per_path_x0: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Variables of such a run, without the coordinates."""
        names = (*SPEED, *SAMPLE_MOMENTS, *(SAMPLE_ATTENTION if self.attention else ()))
        return (*names, *(["samples"] if self.snapshots.size else []), "initial_tokens")


@dataclass(frozen=True, eq=False)
class DensityLayout(RunLayout):
    """Sizes of a run of the mean-field equation, which determine the variables of its file.

    Those of the run of particles with the same heads and options, and besides

    Attributes
    ----------
    cells : number of cells of the mesh, or of nodes
    errors : names of what tells of errors in space
    """

    cells: int = 0
    errors: tuple[str, ...] = ("numerical_diffusion",)

    @property
    def names(self) -> tuple[str, ...]:
        """Variables of such a run, without the coordinates."""
        names = (
            [*self.series] if self.budget else [name for name in self.series if name not in SPEED]
        )
        names += [*self.matrices, *DENSITY_SERIES, *self.errors]
        names += ["free_energy"] if self.budget else []
        names += ["density", "density_mean", "initial_density", *MESH]
        return tuple(name for name in names if all(self.shape(name)))


@dataclass(frozen=True, eq=False)
class MovementLayout(Layout):
    """Sizes of a run of minimizing movements.

    Attributes
    ----------
    times : array (time,), ends of the steps
    tokens, axes, heads : n, d, H
    """

    times: NDArray[np.floating]
    tokens: int
    axes: int
    heads: int
    variables = MOVEMENTS

    @property
    def names(self) -> tuple[str, ...]:
        """Variables of such a run, without the coordinates."""
        return tuple(name for name in MOVEMENTS if name != "time")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


@cache
def version_of(package: str) -> str:
    """Return the version of an installed package; "unknown" for one that is not installed."""
    if package == "wflow":
        return __version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def law_name(config: Mapping[str, Any]) -> str:
    """Return the name of the head law in the configuration of a run; "" where it has none.

    That of a custom law, which may have the name of another one, is "custom <name>".
    """
    law = config.get("law")
    if not isinstance(law, dict) or not law.get("name"):
        return ""
    return f"custom {law['name']}" if "fingerprint" in law else str(law["name"])


def head_count(config: Mapping[str, Any], sizes: Mapping[Any, int]) -> int | None:
    """Return the number H of heads of a run; None where it is not recorded.

    Parameters
    ----------
    config : configuration of the run; `heads` is their number, or holds the `shape` (H, d, d)
    sizes : of the dimensions of its Dataset
    """
    if "head" in sizes:
        return int(sizes["head"])
    heads = config.get("heads")
    if isinstance(heads, dict):
        shape = heads.get("shape")
        heads = shape[0] if isinstance(shape, list) and shape else None
    return heads if isinstance(heads, int) else None


def flow_name(config: Mapping[str, Any]) -> str:
    """Return the name of the flow of a run, for tables and messages; the class of a custom flow."""
    flow = config.get("flow", "?")
    return str(flow.get("name", "?") if isinstance(flow, Mapping) else flow)


def single(config: Mapping[str, Any]) -> bool:
    """Return whether a run was computed in single precision; tokens are stored in double."""
    return bool(config.get("compute", {}).get("dtype") == "float32")


def solve_with(save: str) -> str:
    """Advise on a run that lacks something: name the option that records it."""
    return f"Solve it again with save=wflow.SaveAt({save})"


def config_text(config: Mapping[str, Any]) -> str:
    """Write a run's configuration as JSON text, the attribute `config` of its file.

    Parameters
    ----------
    config : names to numbers, texts, lists, NumPy arrays and nested mappings

    Returns
    -------
    JSON text, keys in the order given

    Raises
    ------
    InputError
        For a value without a form in JSON: NaN, infinity, or an object.
    """
    try:
        return json.dumps(config, default=_plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the configuration of the run cannot be written as JSON ({error}); every parameter "
            "must be a finite number, a text, a list or an array"
        ) from None


def history_line(what: str, when: datetime | None = None) -> str:
    """Write a line of the CF attribute `history`: when, by which version, and what was done.

    Parameters
    ----------
    what : str
        What was done, such as a command; a long one is cut.
    when : datetime, optional
        Moment in UTC; by default now.

    Returns
    -------
    str
        One line of at most 480 bytes.
    """
    moment = (when or datetime.now(UTC)).isoformat(timespec="seconds")
    line = " ".join(f"{moment}: wflow {version_of('wflow')}: {what}".split())
    raw = printable(line).encode()
    if len(raw) > _LINE_BYTES:
        raw = raw[: _LINE_BYTES - 4] + b" ..."
    return raw.decode(errors="ignore")


def history_text(lines: Sequence[str]) -> str:
    """Shorten the attribute `history` so that it fits into a run file.

    Parameters
    ----------
    lines : sequence of str
        Lines of `history_line`, oldest first.

    Returns
    -------
    str
        The lines; where they exceed `HISTORY_BYTES`, the first and as many of the last as fit.
    """
    kept = [line for text in lines for line in text.split("\n")]
    left_out = False
    while len(kept) > 2 and len("\n".join(kept).encode()) > HISTORY_BYTES - 8:
        del kept[1]
        left_out = True
    if left_out:
        kept.insert(1, "...")
    raw = "\n".join(kept).encode()[: HISTORY_BYTES - 1]
    return raw.decode(errors="ignore")


def references(config: Mapping[str, Any]) -> str:
    """List the publications behind the quantities of a run, the CF attribute `references`.

    Parameters
    ----------
    config : mapping
        Configuration of the run.

    Returns
    -------
    str
        Citations, separated by "; ".
    """
    if "sampler" in config:
        return _SAMPLERS.get(str(config["sampler"]), "")
    scheme = config.get("scheme")
    adaptive = "dopri5" in (scheme, scheme.get("name") if isinstance(scheme, Mapping) else None)
    cited = [_MHT]
    cited += [_GLPR] if config.get("direction") == "ascent" else []
    cited += [_DOPRI] if adaptive else []
    return "; ".join(cited)


def is_movement(config: Mapping[str, Any]) -> bool:
    """Return whether the configuration is that of minimizing movements."""
    return "tau" in config


def _described(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return what is computed, for the title of a run, and how, for its source."""
    heads = f"{law_name(config) or 'unnamed'} heads"
    if is_movement(config):
        return f"minimizing movements, {heads}", "minimizing movements of the energy"
    if "sampler" in config:
        how = "samples of a density by interacting particles or Langevin dynamics"
        return f"sampler {config['sampler']}", how
    if "mesh" in config:
        mesh = config["mesh"]
        how = "in harmonics" if "degree" in mesh else "by finite volumes"
        what = f"density on {mesh['kind']}({mesh['cells']}), {heads}"
        return what, f"mean-field equation of a multi-head transformer {how}"
    return heads, "tokens of a multi-head transformer as interacting particles on the sphere"


def dataset_attrs(
    config: Mapping[str, Any] | str,
    seed: int,
    command: str | None = None,
    *,
    history: Sequence[str] = (),
) -> dict[str, Any]:
    """Describe the provenance of a run: all attributes but `complete`, which the store adds.

    Parameters
    ----------
    config : mapping or str
        What reruns the run, as a mapping or as JSON text.
    seed : int
        Seed of the run.
    command : str, optional
        How it was started; by default the command line of this process.
    history : sequence of str, optional
        Lines of the attribute `history` in place of one that names the command.

    Returns
    -------
    dict
        schema, title, Conventions, source, references, history, wflow_version, numpy_version,
        numba_version, config, seed, created (UTC, ISO 8601) and command.

    Raises
    ------
    InputError
        For a configuration that has no form in JSON.
    """
    text = config if isinstance(config, str) else config_text(config)
    settings = json.loads(text)
    what, how = _described(settings)
    command = command_text() if command is None else command
    now = datetime.now(UTC)
    return {
        "schema": SCHEMA,
        "title": f"wflow run: {what}, seed {seed}",
        "Conventions": CONVENTIONS,
        "source": f"wflow {version_of('wflow')}: {how}",
        "references": references(settings),
        "history": history_text(history or [history_line(command, now)]),
        "wflow_version": version_of("wflow"),
        "numpy_version": np.__version__,
        "numba_version": version_of("numba"),
        "config": text,
        # Integer attributes of a netCDF file have at most 64 bits.
        "seed": int(seed) if -(2**63) <= int(seed) < 2**64 else str(int(seed)),
        # Microseconds are kept because a checkpoint is matched to its file by this text.
        "created": now.isoformat(timespec="microseconds"),
        "command": command,
    }
