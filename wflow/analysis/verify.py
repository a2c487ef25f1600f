"""Verification of run files: digests, configuration, energies and the energy balance."""

import json
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from wflow._core.adaptive import as_scheme, scheme_from_config
from wflow._core.checks import MetricName, path_of, positive, switch
from wflow._core.errors import InputError, WflowError
from wflow._core.files import open_hdf5
from wflow._core.identity import is_custom_config
from wflow._core.printable import printable
from wflow._core.progress import progress as progress_bar
from wflow._core.reprs import ShortResult
from wflow._core.tableaux import Tableau
from wflow.analysis.fits import mean_and_error
from wflow.analysis.rerun import mesh_difference, mesh_of, replayed, residuals
from wflow.attention.flows import flow_from_config
from wflow.heads.laws import Frozen, law_from_config, made_again
from wflow.heads.process import HeadWalk, draw_heads
from wflow.kernels.evaluate import Sums, head_sums
from wflow.meanfield.densities import entropy
from wflow.meanfield.spectral import Modes, Spectral
from wflow.meanfield.volumes import Volumes
from wflow.particles.problem import array_config
from wflow.runs import digests
from wflow.runs.read import check_variables, config_of, open_run, read_attrs
from wflow.runs.schema import (
    BUDGET_RATES,
    BUDGET_RUNNING,
    DIFFUSION_RATES,
    DIFFUSION_RUNNING,
    MESH,
    MOVEMENTS,
    NOISE_RUNNING,
    RESUME,
    SCHEMA,
    SPEED,
    TAIL,
    VARIABLES,
    budget_rates,
    budget_running,
    flow_name,
    head_count,
    is_movement,
    single,
    variables_of,
)
from wflow.transport.metric import as_metric

if TYPE_CHECKING:
    from xarray import Dataset


__all__ = ["TOLERANCE", "Check", "Report", "verify"]

# The energy budget: columns against each other, and the balance
# --------------------------------------------------------------

_ROUNDING = 1e-12  # of sums of a few doubles, relative to the size of their terms
_BLOCK = 1 << 21  # values of one variable in memory at a time
_FEWEST = 10  # record times from which the scatter of a rate can be judged
_SIGMAS = 8.0  # rates have heavy tails where records are far apart
_FLOOR = 0.01
_TERMS = ("energy", "work_weights", "work_ito", "dissipated", "martingale")
# What earlier files have in first order of the noise alone.
_FIRST_ORDER = {
    "martingale", "martingale_tokens", "edi_residual", "edi_residual_upper_gradient",
}  # fmt: skip
_DIFFUSION_TERMS = ("work_diffusion", "martingale_tokens")
_PAIRS = {
    "work_weights": "weight_power",
    "work_ito": "ito_power",
    "dissipated": "dissipation",
    "dissipated_upper_gradient": "upper_gradient_sq",
    "work_diffusion": "diffusion_power",
}

Array = NDArray[np.float64]
Block = dict[str, Array]


@dataclass(frozen=True, repr=False)
class Check(ShortResult):
    """One check of a run file.

    Parameters
    ----------
    name : str
        What should hold.
    passed : bool or None
        Whether it does; None where the file does not hold what the check needs.
    value : float, default nan
        The figure found.
    limit : float, default nan
        The largest figure that passes.
    note : str, default ""
        What the figure is, or why there is none.

    Examples
    --------
    >>> import wflow
    >>> check = wflow.verify.Check("energies are right", True, value=1e-12, limit=1e-9)
    >>> check.passed
    True
    """

    name: str
    passed: bool | None
    value: float = math.nan
    limit: float = math.nan
    note: str = ""

    def __str__(self) -> str:
        word = {True: "pass", False: "FAIL", None: "skip"}[self.passed]
        figures = "" if math.isnan(self.value) else f"  {self.value:.3g} (limit {self.limit:.3g})"
        lines = [f"{word}  {self.name}{figures}", *([f"      {self.note}"] if self.note else [])]
        return "\n".join(printable(line, lines=False) for line in lines)


def worst_of(values: Array) -> float:
    """Return the largest size; NaN counts as infinite, so that it never passes."""
    return float(np.max(np.abs(np.nan_to_num(values, nan=np.inf)), initial=0.0))


def blocks(ds: "Dataset", name: str) -> Iterator[tuple[int, Array]]:
    """Yield a variable in pieces along its first dimension, with the index where each begins."""
    variable = ds[name]
    if not variable.ndim:
        yield 0, variable.values.reshape(1)
        return
    rows = max(1, _BLOCK // max(1, math.prod(variable.shape[1:])))
    for start in range(0, variable.shape[0], rows):
        yield start, variable[start : start + rows].values


def below(name: str, value: float, limit: float, note: str) -> Check:
    return Check(name, value <= limit, value, limit, note)


def complete_budget(ds: "Dataset", config: dict[str, Any]) -> Check:
    """Check that no variable of the energy budget is missing, which must all be present or none."""
    names = ["diffusion_power"] if config.get("kappa") else list(ds)
    missing = [name for name in (*budget_rates(names), *budget_running(names)) if name not in ds]
    note = (
        f"missing: {', '.join(missing)}; without them no energy can be checked" if missing else ""
    )
    return Check("the budget is complete", not missing, note=note)


def _share(parts: list[Array], scales: list[Array]) -> float:
    """Return the largest |sum of parts| / sum of |scales| over the entries where no term is inf."""
    total = np.abs(sum(parts))
    scale = np.asarray(sum(np.abs(term) for term in scales))
    share = np.where(total == 0, 0.0, total / scale)
    # inf is a valid entry (beyond the range of doubles) that carries no information; NaN is not.
    return worst_of(share[~np.isinf(scale)])


def columns(ds: "Dataset", config: dict[str, Any]) -> list[Check]:
    """Check the columns of the energy budget against each other, path by path and time by time."""
    sign = 1.0 if config.get("direction") == "ascent" else -1.0
    same = ds.attrs["complete"] and _coincide(ds, config)
    worst = dict.fromkeys(("start", "residual", "upper", "stratonovich", "defect", "same"), 0.0)

    def note(key: str, parts: list[Array], scales: list[Array]) -> None:
        worst[key] = max(worst[key], _share(parts, scales))

    for start, energy in blocks(ds, "energy"):
        rows = slice(start, start + len(energy))
        block: Block = {n: ds[n][rows].values for n in (*budget_rates(ds), *budget_running(ds))}
        extra = [block[n] for n in _DIFFUSION_TERMS if n in block]
        terms = [energy, np.broadcast_to(energy[:, :1], energy.shape)] + [
            block[n] for n in _TERMS[1:]
        ]
        terms += extra
        rest = [energy, -energy[:, :1], -block["work_weights"], -block["work_ito"]]
        rest += [-term for term in (block["martingale"], *extra)]
        lost, gradient = block["dissipated"], block["dissipated_upper_gradient"]
        worst["start"] = max(
            worst["start"], *(worst_of(block[n][:, 0]) for n in _PAIRS if n in block)
        )
        note("residual", [*rest, lost, -block["edi_residual"]], terms)
        upper = [*rest, -sign * gradient, -block["edi_residual_upper_gradient"]]
        note("upper", upper, [*terms, gradient])
        if NOISE_RUNNING[0] in block:
            work, residual = (block[name] for name in NOISE_RUNNING)
            other = [energy, -energy[:, :1], -work, *(-term for term in extra), lost, -residual]
            note("stratonovich", other, [*terms, work])
        rates = [block["dissipation"], sign * block["upper_gradient_sq"]]
        note("defect", [*rates, -block["edi_defect"]], rates)
        note("same", [block["edi_defect"]], rates)

    exact = 1e-3 if single(config) else 1e-9
    relative = "largest difference, relative to the terms"
    identity = "edi_defect is dissipation "
    identity += "plus" if sign > 0 else "minus"
    checks = [
        below("the budget starts at zero", worst["start"], 0.0, "running integrals at time 0"),
        below(
            "edi_residual is what its terms leave",
            worst["residual"],
            _ROUNDING,
            f"residual of the energy-dissipation identity; {relative}",
        ),
        below(
            "edi_residual_upper_gradient is what its terms leave",
            worst["upper"],
            _ROUNDING,
            relative,
        ),
        below(f"{identity} upper_gradient_sq", worst["defect"], exact, relative),
    ]
    if NOISE_RUNNING[0] in ds:
        name = f"{NOISE_RUNNING[1]} is what its terms leave"
        checks.append(below(name, worst["stratonovich"], _ROUNDING, relative))
    name = "dissipation and upper_gradient_sq coincide"
    if same:
        checks.append(below(name, worst["same"], exact, relative))
    else:
        several = "one head" if _heads(ds, config) == 1 else "several heads"
        reason = f"not claimed for flow = {flow_name(config)} with {several}"
        checks.append(Check(name, None, note=f"{reason}: edi_defect is the difference"))
    return [*checks, _sums(ds, config)]


def _coincide(ds: "Dataset", config: dict[str, Any]) -> bool:
    """Return whether dissipation and G^2 are equal in theory (docs/theory/energy.md)."""
    if "numerical_diffusion" in ds and is_custom_config(config.get("flow")):
        return False  # at faces, where these have the mean of the velocities at the centres
    try:
        return flow_from_config(config.get("flow", {})).gradient_flow(_heads(ds, config))
    except InputError:  # `_replayed` says what is wrong
        return False


def _heads(ds: "Dataset", config: dict[str, Any]) -> int:
    """Return the number of heads; 2, for several, where it is not recorded."""
    return head_count(config, ds.sizes) or 2


def _sums(ds: "Dataset", config: dict[str, Any]) -> Check:
    """Check the running integrals against sums of the recorded rates.

    Where every step of a scheme of one stage is recorded the sums are exact. Elsewhere the rates
    are known at the ends of intervals of length h only, and the trapezoidal rule stands for what
    lies between. The allowance is that of Brownian motion between its ends: the integral over an
    interval deviates by h |change| / sqrt(12), and intervals add in squares. Rates that are smooth
    stay far below it, as there the errors telescope to h |change| / 12 at the two ends.
    """
    name = "running integrals are the sums of their rates"
    try:
        tableau, chosen = stepping(ds, config)
    except (InputError, KeyError, TypeError):  # `_replayed` says what is wrong
        return Check(name, None, note="the configuration names no scheme")
    if chosen:
        reason = "steps chosen by their error may be shorter than what lies between record times; "
        return Check(name, None, note=reason + "the balance checks the integrals")
    left = tableau.stages == 1  # integrals are sums over left ends
    exact = left and config.get("save", {}).get("every") == 1
    times = ds["time"].values
    if not exact and times.size <= _FEWEST:
        reason = f"{times.size} record times are too few to sum the rates; lower save.every"
        return Check(name, None, note=reason)
    step = float(config.get("dt", 0.0)) if left else 0.0
    pairs = {running: rate for running, rate in _PAIRS.items() if running in ds}
    if _jumps(config):
        pairs.pop("work_weights", None)  # also holds the energy of jumps, which no rate shows
    worst, where = 0.0, ""
    for running, rate in pairs.items():
        for start, rates in blocks(ds, rate):
            integral = ds[running][start : start + len(rates)].values[:, 1:]
            ratio = _off(integral, rates, np.diff(times), None if exact else step)
            if ratio > worst:
                worst, where = ratio, running
    note = f"largest difference: {where}" if where else ""
    if exact:
        return below(name, worst, 1e-9, note + (", relative" if where else ""))
    note += "; " if note else ""
    note += (
        f"1 is the largest that sampling explains: {_SIGMAS:g} deviations and {_FLOOR:g} of the sum"
    )
    return below(name, worst, 1.0, note)


def stepping(ds: "Dataset", config: dict[str, Any]) -> tuple[Tableau, bool]:
    """The scheme of a run, and whether its steps differ from dt so that no rule sums their rates.

    The steps of a run of densities may be shorter than dt, which its second-order schemes sum as
    well as dt does.
    """
    if not _has_densities(ds, config):
        tableau, control = as_scheme(scheme_from_config(config.get("scheme")))
        return tableau, control is not None
    space = Spectral if "spectral_tail" in ds else Volumes
    tableau = space.SCHEMES[config["scheme"]].tableau
    return tableau, tableau.stages == 1 and "steps" in config


def _jumps(config: dict[str, Any]) -> bool:
    """Return whether the heads of a run may jump."""
    law = config.get("law", {})
    made = made_again(law)
    if made is not None:
        return made.jumps
    # What custom laws said of themselves in earlier files: a schedule, or a subclass of one.
    return bool(law.get("jumps", "interpolation" in law))


def _off(integral: Array, rates: Array, lengths: Array, step: float | None) -> float:
    """Return the largest distance of integrals (paths, k) from sums of rates (paths, k + 1).

    `step` None: every step was recorded and the distance is relative to the sum of the sizes.
    Otherwise in units of the allowance; `step` is that of left sums, 0 for a scheme without.
    """
    left, right = rates[:, :-1], rates[:, 1:]
    size = np.cumsum(lengths * np.abs(left), axis=1)
    if step is None:
        expected, allowed = np.cumsum(lengths * left, axis=1), size
    else:
        # Left sums over the steps within an interval: off the trapezoid by their own ends.
        expected = np.cumsum(lengths * (left + right) / 2 - step / 2 * (right - left), axis=1)
        # Of the whole run: over a few intervals a sum of squares is no measure yet.
        spread = np.sum((lengths * (right - left)) ** 2 / 12, axis=1, keepdims=True)
        allowed = _SIGMAS * np.sqrt(spread) + _FLOOR * size
    distance = np.abs(integral - expected)
    ratio = np.where(distance == 0, 0.0, distance / allowed)
    # Values that are not finite are left to the check that every value is recorded.
    return worst_of(ratio[np.isfinite(distance) & np.isfinite(allowed)])


def balance(ds: "Dataset", config: dict[str, Any], tolerance: float) -> Check:
    """Check that the mean residual at the last time is what finite steps and paths explain.

    limit = tolerance turnover + 3 max(standard error, noise), with the turnover the mean over the
    paths of |E(T) - E(0)| + |work_weights + work_ito| + |dissipated| (+ |work_diffusion|): drift
    and Itô correction nearly cancel and each grows with T, so that their sizes one by one tell
    nothing.

    noise^2 = dt^2 int (|weight_power| + |dissipation| + ito_power + |diffusion_power|)^2
    (4 ito_power / (H E) + 16 |diffusion_power| / (n E)) dt / paths: what a step leaves out under
    noise is of size dt^(3/2), the rates times dt times the relative size of the noise, of which
    independent heads leave 1/H and independent tokens 1/n. It matters where one path has no
    standard error and a few have a poor one.
    """
    name = "the energy balance closes"
    last = ds.isel(time=-1)
    extra = [name for name in _DIFFUSION_TERMS if name in ds]
    terms = {name: last[name].values for name in (*_TERMS, *extra, "edi_residual")}
    terms["energy"] = terms["energy"] - ds["energy"][:, 0].values
    known = np.all([np.isfinite(values) for values in terms.values()], axis=0)
    if not known.any():
        return Check(name, None, note="no path has a finite balance at the last time")
    terms = {name: values[known] for name, values in terms.items()}
    turnover = float(turned_over(ds)[known].mean())
    residual = terms["edi_residual"]
    count = residual.size
    mean, deviation = (float(value) for value in mean_and_error(residual))
    noise = _noise(ds, config, known)
    limit = tolerance * turnover + 3 * float(np.fmax(deviation, noise))
    note = f"|mean of edi_residual at T| over {count} paths" if count > 1 else "|edi_residual at T|"
    share = 100 * abs(mean) / turnover if turnover else 0.0
    note += f": {share:.2g} % of the turnover {turnover:.3g} of the terms, of which "
    note += f"{100 * tolerance:g} % passes (--tolerance), and 3 x "
    note += f"the larger of standard error {deviation:.2g} and " if count > 1 else ""
    note += f"noise of the steps {noise:.2g}, which falls like dt"
    if "cell" in ds.sizes:
        note += "; it has the errors of cells and steps, which finer ones lower"
    elif abs(mean) > limit:
        note += "; halve dt to see how the residual falls"
    if count < known.size:
        note += f"; {known.size - count} paths without a finite balance left out"
    return below(name, abs(mean), limit, note)


def turned_over(ds: "Dataset") -> Array:
    """Return the energy that each path of a run with a budget turned over, (paths,)."""
    last = ds.isel(time=-1)
    moved = [last["energy"] - ds["energy"].isel(time=0), last["work_weights"] + last["work_ito"]]
    moved += [last[name] for name in ("dissipated", "work_diffusion") if name in ds]
    return np.asarray(sum(np.abs(values.values) for values in moved))


def _noise(ds: "Dataset", config: dict[str, Any], known: NDArray[np.bool_]) -> float:
    """Return the standard error of the mean residual under noisy steps (see `balance`)."""
    lengths = np.diff(ds["time"].values)
    shares = {"ito_power": 4 / (head_count(config, ds.sizes) or 1)}
    if "diffusion_power" in ds and "token" in ds.sizes:  # densities have no noise of tokens
        shares["diffusion_power"] = 16 / ds.sizes["token"]
    rates = [name for name in _PAIRS.values() if name in ds and name != "upper_gradient_sq"]
    total, count = 0.0, 0
    for start, energy in blocks(ds, "energy"):
        rows = slice(start, start + len(energy))
        columns = {name: np.abs(ds[name][rows].values) for name in rates}
        relative = sum(share * columns[name] for name, share in shares.items()) / energy
        squares = (sum(columns.values()) ** 2 * relative)[known[rows], :-1] @ lengths
        finite = squares[np.isfinite(squares)]
        total, count = total + float(finite.sum()), count + finite.size
    square = float(config.get("dt", 0.0)) ** 2 * total / max(count, 1) ** 2
    return math.sqrt(square) if square > 0 else 0.0  # times that fall back fail another check


def order(ds: "Dataset", config: dict[str, Any]) -> Check:
    """Check that the residual falls at the order of the scheme when the steps are halved.

    The first step of the run is computed again in 1, 2, 4, ... parts. Without noise the observed
    order is that of the last two residuals above rounding; under noise it is the slope of their
    root mean square over many paths, and 1 is promised.
    """
    name = "the residual falls at the order of the scheme"
    densities = _has_densities(ds, config)
    if densities and "spectral_tail" not in ds:
        return Check(name, None, note="the residual of finite volumes has errors of their cells")
    tableau, chosen = stepping(ds, config)
    if chosen or config.get("steps") == "chosen":
        return Check(name, None, note="the steps are chosen by the solver")
    law, dt = law_from_config(config["law"]), float(config["dt"])
    breaks = law.breaks()
    if np.any((breaks > 0) & (breaks < dt)) or (law.jumps and is_custom_config(config["law"])):
        return Check(name, None, note="the heads may jump or bend within the first step")
    noisy = not law.deterministic or bool(config.get("kappa") and not densities)
    promised, halvings = (1, _NOISE_HALVINGS) if noisy else (tableau.order, _HALVINGS)
    try:
        found = residuals(ds, _REPLAY_PAIRS / 2, halvings, _NOISE_PATHS if noisy else 1)
    except WflowError as error:
        return Check(name, None, note=f"the first step cannot be refined: {error}")
    if found is None:
        return Check(name, None, note="the run is too large to refine a step of it here")
    sizes = np.sqrt(np.mean(found[0] ** 2, axis=1))
    known = int(np.sum(np.cumprod(sizes > _error_of_sums(config) * abs(found[1]))))
    if known < (halvings + 1 if noisy else 2):
        return Check(name, True, note="after one step it has the size of rounding")
    logarithms = np.log2(sizes[:known] if noisy else sizes[known - 2 : known])
    observed = -float(np.polyfit(np.arange(logarithms.size), logarithms, 1)[0])
    note = f"order {observed:.2f} in steps of dt to dt / {2 ** (known - 1)}, {promised} promised"
    note += f" under noise, from {_NOISE_PATHS} new paths" if noisy else f" by {tableau.name}"
    # A custom law or flow need not be as smooth as a higher order asks.
    custom = is_custom_config(config["law"]) or is_custom_config(config.get("flow"))
    limit = _SHORT + (promised - 1 if custom else 0)
    note += "; the number is the promised order less the observed one"
    return below(name, promised - observed, limit, note)


def _error_of_sums(config: dict[str, Any]) -> float:
    """Return the relative size of the errors that the sums over tokens leave in a residual."""
    tolerance = config.get("compute", {}).get("tolerance", 0.0)
    rounding = 1e3 * float(np.finfo("f4" if single(config) else "f8").eps)
    return max(rounding, tolerance if isinstance(tolerance, float) else 0.0)


TOLERANCE = 0.05
_HALVINGS, _NOISE_HALVINGS, _NOISE_PATHS = 6, 3, 64
_SHORT = 0.3  # by which an observed order may fall short
_NUDGE, _UNSTABLE = 1e-14, 0.1
_REPLAY_PAIRS = 1e10  # kernel values, some ten seconds
_SERIES = (
    *BUDGET_RATES, *BUDGET_RUNNING, *DIFFUSION_RATES, *DIFFUSION_RUNNING, *NOISE_RUNNING,
    *SPEED, "free_energy",
)  # fmt: skip
_NEAR = 1e-12  # squared distance below which differences are not relative
_MASS = 1e-12  # by which that of a density may be off one


@dataclass(frozen=True)
class Report:
    """Result of `verify` for a run: `passed` if no check failed.

    Parameters
    ----------
    path : pathlib.Path or str
        The run file, or what a run in memory is called.
    checks : list of Check, default none
        One for each statement.

    Examples
    --------
    >>> from pathlib import Path
    >>> import wflow
    >>> wflow.verify.Report(Path("run.h5"), [wflow.verify.Check("digests agree", False)]).passed
    False
    """

    path: Path | str
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every check that could be made holds."""
        return all(check.passed is not False for check in self.checks)

    def __str__(self) -> str:
        counts = [sum(check.passed is kind for check in self.checks) for kind in (True, False)]
        verdict = "PASSED" if self.passed else "FAILED"
        summary = f"{verdict}: {counts[0]} of {sum(counts)} checks hold"
        skipped = len(self.checks) - sum(counts)
        summary += f", {skipped} could not be made" if skipped else ""
        return "\n".join([printable(str(self.path), lines=False), *map(str, self.checks), summary])

    def __repr__(self) -> str:
        held = sum(check.passed is True for check in self.checks)
        failed = [check.name for check in self.checks if check.passed is False]
        text = f"Report({str(self.path)!r}: {'passed' if self.passed else 'FAILED'}, {held} hold"
        text += f", failed: {'; '.join(failed)}" if failed else ""
        skipped = len(self.checks) - held - len(failed)
        return text + (f", {skipped} could not be made)" if skipped else ")")


def verify(
    path: "str | Path | Dataset", tolerance: float = TOLERANCE, *, progress: bool = False
) -> Report:
    r"""Check that a run is as it was written, and that its numbers are right.

    Every variable, names and attributes are compared with their SHA-256 digests. The configuration
    is compared with the data: initial tokens and heads, and the first recorded step, which is
    computed again. Then the energies are recomputed, the balance is formed, and its residual over
    the first step is computed with finer steps, to see that it falls at the order of the scheme
    (1 under noise, from the root mean square over 64 paths). In a run of
    `wflow.meanfield.solve` the densities have unit mass and, for finite volumes, no negative value;
    mesh, entropy and free energy are computed again.

    A Dataset has no digests: its values and attributes are checked as they are now, and the
    report says that nothing compares them with what was written.

    Parameters
    ----------
    path : str, pathlib.Path or xarray.Dataset
        Run file, or a run of `wflow.solve` or `wflow.open`.
    tolerance : float, default 0.05
        Share of the turnover that the mean residual may reach; time steps are finite.
    progress : bool, default False
        Whether to show how far the reading of a large file has come.

    Returns
    -------
    Report
        One `Check` for each statement; ``passed`` if none fails.

    Raises
    ------
    RunFileError
        For a file that is missing, truncated, or not a run file.
    InputError
        For a tolerance that is not a positive number, and a Dataset that is no run.

    Notes
    -----
    With the residual R(T) of the balance E(T) - E(0) = work_weights + work_ito - dissipated +
    martingale + R(T) (with work_diffusion and martingale_tokens where tokens diffuse), it closes if

    .. math:: \bigl| \overline{R(T)} \bigr| \le \text{tolerance} \times \text{turnover} + 3\,\sigma,

    in the mean over the paths, where the turnover is the mean over paths of ``|E(T) - E(0)| +
    |work_weights + work_ito| + |dissipated|``, and sigma the standard error, at least what the
    noise of the steps makes of so many heads and paths; it falls like dt.

    Examples
    --------
    >>> import wflow
    >>> x0 = wflow.tokens.uniform(n=8, d=3, seed=0)
    >>> run = wflow.solve(x0, wflow.heads.Frozen(), heads=2, t_final=0.1, dt=1e-2)
    >>> report = wflow.verify(run)
    >>> report.passed, report.checks[1].passed is None  # there are no digests to compare
    (True, True)
    """
    tolerance = positive(tolerance, "tolerance")
    if not isinstance(path, str | Path) and hasattr(path, "data_vars"):
        switch(progress, "progress")
        return _in_memory(cast("Dataset", path), tolerance)
    path = path_of(path, "path")
    written = _as_written(path, switch(progress, "progress"))
    if not all(check.passed for check in written):
        return Report(path, written)  # what a changed file says of itself is not to be trusted
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not complete is the first check
        dataset = open_run(path)
    with dataset:
        return Report(path, _checked(dataset, written or [_without_digests(dataset)], tolerance))


# Users know the module as the function `wflow.verify`, which therefore has its other names.
vars(verify).update(Check=Check, Report=Report, TOLERANCE=TOLERANCE)


def _in_memory(ds: "Dataset", tolerance: float) -> Report:
    """Return the report of a Dataset."""
    source = ds.encoding.get("source")
    name = Path(source).name if source else ""
    config = config_of(ds, "path")
    note = "a Dataset has no digests: they are in run files (wflow.solve with out=FILE)"
    if name:
        note = f"a Dataset has no digests: verify the file {name} to compare them"
    called = f"{name}, as a Dataset" if name else "run in memory"
    digest = Check("every byte is as written", None, note=note)
    return Report(called, _checked(ds.assign_attrs(config=json.dumps(config)), [digest], tolerance))


def _checked(dataset: "Dataset", written: list[Check], tolerance: float) -> list[Check]:
    """Return all checks of a run whose bytes are as written, as far as that is known."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        ds = dataset
        config = json.loads(ds.attrs["config"])
        checks = [_complete(ds), *written]
        if "sampler" in config:
            return checks + _of_sampler(ds, config)
        if is_movement(config):
            return checks + _of_movements(ds, config)
        replay = _replayed(ds, config)
        checks += [_config_fits(ds, config), _start_fits(ds, config), replay]
        ds, lost = _without_lost_paths(ds)
        checks += [*lost, *_recorded(ds)]
        if _has_densities(ds, config):
            missing = [name for name in MESH if name not in ds]
            if missing:
                note = f"missing: {', '.join(missing)}; without them no density can be checked"
                return [*checks, Check("the mesh is stored", False, note=note)]
            checks += _densities(ds, config)
        else:
            checks.append(_on_sphere(ds, config))
        checks.append(_mean(ds, config))
        if not ds.attrs["complete"] and "energy" in ds and ds.sizes["time"]:
            # Of an unfinished run, the paths that got to the last time can be checked.
            ds = ds.isel(path=~np.isnan(ds["energy"][:, -1].values))
        if not set(ds) & {*BUDGET_RATES, *BUDGET_RUNNING}:
            checks.append(Check("energy and its balance", None, note="the run holds no energy"))
        elif not (complete := complete_budget(ds, config)).passed:
            checks.append(complete)
        elif not ds.sizes["time"]:
            checks.append(Check("energy and its balance", None, note="nothing was recorded"))
        else:
            checks += [complete, *columns(ds, config)]
            checks += [_free_energy(ds, config)] if "free_energy" in ds else []
            checks += [_first_energy(ds, config)]
            checks += [_energies(ds, config)]
            checks += [order(ds, config)] if replay.passed else []
            checks += [balance(ds, config, tolerance)]
    return checks


def _as_written(path: Path, progress: bool) -> list[Check]:
    """Check a finished file against its digests; no checks where it carries none."""
    names = "names, types, shapes and attributes are as written"
    values = "every value is as written"
    if not path.is_file():
        return []  # `open_run` says what is wrong, or finds the unfinished run of that name
    with open_hdf5(path) as file:
        if not read_attrs(file, path)["complete"]:
            return []
        size = sum(data.id.get_storage_size() for _, data in check_variables(file, path).values())
        with progress_bar(size, f"checking {path.name}", progress) as tick:
            finding = digests.compare(file, tick=tick)
    if finding is None:
        return []
    if not finding.attributes:
        note = "SHA-256 differs: the file was damaged, changed, or rewritten by another program; "
        return [Check(names, False, note=note + "no other check was made")]
    note = "SHA-256 of each variable"
    if finding.changed:
        note = f"SHA-256 differs: {', '.join(finding.changed)}; restore the file from a copy"
    return [Check(names, True, note="SHA-256"), Check(values, not finding.changed, note=note)]


def _without_digests(ds: "Dataset") -> Check:
    name = "every byte is as written"
    if not ds.attrs["complete"]:
        return Check(name, None, note="unfinished: it is compared with its checkpoint at a resume")
    return Check(name, None, note=f"not compared: the schema of the file is {ds.attrs['schema']}")


def _complete(ds: "Dataset") -> Check:
    complete = bool(ds.attrs["complete"])
    note = "" if complete else f"the run did not reach its end; {RESUME}"
    return Check("the run is complete", complete, note=note)


def _without_lost_paths(ds: "Dataset") -> tuple["Dataset", list[Check]]:
    """Leave out the paths of a finished run that blew up, and the means over all paths."""
    series = [name for name in ds.data_vars if ds[name].dims == ("path", "time")]
    if not (ds.attrs["complete"] and series and ds.sizes["time"]):
        return ds, []
    lost = np.all([np.isnan(ds[name][:, -1].values) for name in series], axis=0)
    if not lost.any() or lost.all():
        return ds, []
    paths = ds["path"].values[lost].tolist()
    kept = ds.drop_vars(["tokens_mean", "density_mean"], errors="ignore").isel(path=~lost)
    if "snapshot_path" in ds:
        kept = kept.isel(snapshot_path=~np.isin(ds["snapshot_path"].values, paths))
    note = f"{len(paths)} of {ds.sizes['path']} blew up, path {paths[0]} among them; not checked"
    return kept, [Check("every path reached the end", None, note=note)]


def _config_fits(ds: "Dataset", config: dict[str, Any]) -> Check:
    """Check that the configuration, from which `wflow.rerun` runs again, is that of the data."""
    name = "the configuration fits the data"
    try:
        dt, every = float(config["dt"]), int(config["save"]["every"])
        steps = round(float(config["t_final"]) / dt)
        if steps // every > ds["time"].size + 1 and ds.attrs["complete"]:
            raise ValueError(f"{steps} steps were not recorded")  # too many for the grid
        grid = np.unique(np.append(np.arange(0, steps + 1, every), steps)) * dt
        seed = int(config["seed"]) == int(ds.attrs["seed"])
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        return Check(name, False, note=f"it cannot be read: {error}")
    if not isinstance(config.get("law"), dict):
        return Check(name, False, note="it names no head law")
    times = ds["time"].values
    fits = len(times) <= len(grid) and np.allclose(times, grid[: len(times)], rtol=1e-12)
    if ds.attrs["complete"]:
        fits = fits and len(times) == len(grid)
    wrong = [] if fits else ["record times"]
    wrong += [] if seed else ["seed"]
    options = {**config, **{f"save.{key}": value for key, value in config["save"].items()}}
    wrong += [key for key, there in _settings_of(ds).items() if options.get(key, there) != there]
    if single(config) and "tokens" in ds:
        tokens = ds["tokens"][:, -1:].values
        wrong += [] if np.array_equal(tokens, tokens.astype("f4"), equal_nan=True) else ["dtype"]
    note = f"the data have other {', '.join(wrong)}" if wrong else ""
    return Check(name, not wrong, note=note)


def _settings_of(ds: "Dataset") -> dict[str, Any]:
    """Return the settings that the variables of a run show, as its configuration writes them."""
    shown: dict[str, Any] = {"paths": ds.sizes["path"], "save.budget": "energy" in ds}
    for key, name in (("save.snapshots", "snapshot"), ("save.paths", "snapshot_path")):
        if name in ds.coords and (name != "snapshot" or ds.attrs["complete"]):
            shown[key] = ds[name].values.tolist()
    if "tokens" in ds:
        shown["save.heads"] = "heads" in ds
    return shown


def _start_fits(ds: "Dataset", config: dict[str, Any]) -> Check:
    """Check the initial state and heads against the digests, or the seed, in the configuration.

    Heads drawn from the seed are computed again.
    """
    _, what, initial, key = _carriers(ds, config)
    name = f"the initial {what} and heads are those of the configuration"
    if initial not in ds:
        return Check(name, None, note=f"the initial {what} are not stored")
    values, stored = ds[initial].values, config.get(key)
    wrong = [] if isinstance(stored, dict) and stored == array_config(values) else [key]
    if "initial_heads" in ds:
        heads, asked = ds["initial_heads"].values, config.get("heads")
        if isinstance(asked, dict):
            fits = asked == array_config(heads)
        else:
            seed = config.get("seed", -1)
            fits = asked == len(heads) and 0 <= seed < 2**63
            if fits:
                drawn = draw_heads(len(heads), heads.shape[-1], seed)
                fits = np.allclose(heads, drawn, rtol=1e-12, atol=1e-12)
        wrong += [] if fits else ["heads"]
    note = f"{' and '.join(wrong)} of the configuration are others" if wrong else ""
    return Check(name, not wrong, note=note)


def _replayed(ds: "Dataset", config: dict[str, Any]) -> Check:
    """Compute the first recorded step of a path again, which depends on the whole configuration."""
    name = "the first recorded step follows from the configuration"
    _, _, initial, _ = _carriers(ds, config)
    if not {initial, "time"} <= set(ds.variables) or not ds.sizes["time"]:
        return Check(name, None, note="the start of the run is not stored")
    for kind, made in (("law", law_from_config), ("flow", flow_from_config)):
        try:
            made(config.get(kind, {}))
        except InputError as error:
            if is_custom_config(config.get(kind)):
                return Check(name, None, note=str(error).partition(";")[0])
    if "initial_heads" not in ds:
        return Check(name, None, note="the initial heads are not stored")
    try:
        found, moved = (replayed(ds, _REPLAY_PAIRS / 2, nudge) for nudge in (0.0, _NUDGE))
    except (WflowError, KeyError, TypeError, AttributeError) as error:
        return Check(name, False, note=f"the configuration cannot be computed: {error}")
    if found is None or moved is None:
        return Check(name, None, note="the run is too large to compute a step of it here")
    count = min(ds.sizes["time"], *(len(values) for values in found.values()))
    worst, where = 0.0, ""
    sized = ("energy", "speed_sq") if found.keys() & {"energy", "speed_sq"} else ("entropy",)
    scale = max(np.abs(found[key]).max() for key in sized if key in found)
    grown = 0.0
    keys = found.keys() & set(map(str, ds.data_vars))
    if ds.attrs.get("schema") != SCHEMA:
        keys -= _FIRST_ORDER
    for key in keys:
        stored = ds[key][0, :count].values
        known = np.isfinite(stored) & np.isfinite(found[key][:count])
        size = scale + np.abs(stored)[known]
        gap = np.abs(stored - found[key][:count])[known] / size
        spread = np.abs(moved[key] - found[key])[:count][known] / size
        grown = max(grown, float(np.max(spread, initial=0.0)))
        if gap.size and gap.max() > worst:
            worst, where = float(gap.max()), key
    # Rounding differs between processors and may grow as fast as a change in the last digits.
    limit = max(1e-9, 10 * _energy_limit(config), 10 * grown)
    if limit > _UNSTABLE:
        return Check(name, None, note="rounding grows too fast for a comparison")
    note = f"largest relative difference: {where}" if where else "equal to the bit"
    return below(name, worst, limit, note)


def _recorded(ds: "Dataset") -> list[Check]:
    """Check that no value is NaN, and that only terms of the energy, which may overflow, are inf.

    An energy beyond the range of doubles is recorded as inf on purpose (docs/theory/method.md).
    """
    missing: dict[str, int] = {}
    infinite: dict[str, int] = {}
    for name in variables_of(ds).keys() & set(ds.data_vars):
        for _, values in blocks(ds, name):
            missing[name] = missing.get(name, 0) + int(np.isnan(values).sum())
            infinite[name] = infinite.get(name, 0) + int(np.isinf(values).sum())
    gone = [name for name, count in missing.items() if count]
    note = f"missing: {', '.join(gone)}" if gone else ""
    beyond = sum(count for name, count in infinite.items() if name in _SERIES)
    if beyond:
        note += "; " if note else ""
        note += f"{beyond} energy terms are inf: they left the range of doubles"
    recorded = Check("every value is recorded", not gone, sum(missing.values()), 0, note)
    fixed = {name: count for name, count in infinite.items() if name not in _SERIES and count}
    note = f"inf in {', '.join(fixed)}" if fixed else ""
    what = "density" if "centres" in ds else "token"
    name = f"no {what} and no head is infinite"
    return [recorded, Check(name, not fixed, sum(fixed.values()), 0, note)]


def _of_movements(ds: "Dataset", config: dict[str, Any]) -> list[Check]:
    """Check minimizing movements: start, inequality, energies and distances."""
    name = "the configuration fits the data"
    try:
        tau, seed = float(config["tau"]), int(config["seed"])
        every, ends = round(tau / float(config["dt"])), round(float(config["t_final"]) / tau)
        times = ds["time"].values
        wrong = [] if np.allclose(times, np.arange(times.size) * tau, rtol=1e-12) else ["tau"]
        wrong += [] if ends == times.size - 1 or not ds.attrs["complete"] else ["t_final"]
        wrong += [] if seed == int(ds.attrs["seed"]) else ["seed"]
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        return [Check(name, False, note=f"it cannot be read: {error}")]
    note = f"the data have other {', '.join(wrong)}" if wrong else ""
    checks = [Check(name, not wrong, note=note)]
    if missing := [name for name in MOVEMENTS if name not in (*ds.variables, "initial_heads")]:
        return [*checks, Check("every variable is held", False, note=", ".join(missing))]
    if not times.size:
        return [*checks, Check("energies and distances", None, note="nothing was recorded")]
    start = ds.assign(initial_tokens=ds["tokens"][0].drop_vars("time"))
    checks += [_start_fits(start, config), *_recorded(ds), _on_sphere(ds, config)]
    return [*checks, *_inequality(ds, config), *_steps_of_movements(ds, config, every)]


def _inequality(ds: "Dataset", config: dict[str, Any]) -> list[Check]:
    """Check that each step lowers the energy (ascent: raises it) by W^2/(2 tau) or more."""
    sign = -1.0 if config.get("direction") == "ascent" else 1.0
    fall = [sign * ds["energy_before"].values, -sign * ds["energy"].values]
    terms, gap = [*fall, -ds["distance_sq"].values / (2 * config["tau"])], ds["inequality_gap"]
    left = _share([*terms, -gap.values], terms)
    below_zero = np.minimum(gap.values, 0.0)
    relative = "largest difference, relative to the terms"
    return [
        below("inequality_gap is what its terms leave", left, _ROUNDING, relative),
        below("no inequality_gap is negative", _share([below_zero], terms), _ROUNDING, relative),
    ]


def _steps_of_movements(ds: "Dataset", config: dict[str, Any], every: int) -> list[Check]:
    """Compute the energies again, with the heads that follow from the law, and the distances."""
    names = ["energies follow from the stored tokens and the law", "distances follow from them"]
    heads, sizes = config.get("heads"), ds.sizes
    work = sizes["time"] * (head_count(config, sizes) or 1) * sizes["token"] ** 2
    if isinstance(heads, dict):
        heads = ds["initial_heads"].values if "initial_heads" in ds else None
    reason = "the run is too large to compute them here" if work > _REPLAY_PAIRS else ""
    try:
        law = law_from_config(config.get("law", {}))
        prescribed = law.initial() is not None
        if heads is None and not prescribed:
            reason = "the initial heads are not stored"
        if reason:
            return [Check(name, None, note=reason) for name in names]
        walk = HeadWalk(
            law, heads=None if prescribed else heads, d=sizes["axis"], dt=config["dt"],
            seed=config["seed"], path=config["path"], every=every,
            scheme=scheme_from_config(config["scheme"]),
        )  # fmt: skip
        alone = isinstance(config["metric"], str) and config["segments"] == 1
        metric = as_metric(cast("MetricName", config["metric"]), None) if alone else None
        clouds = ds["tokens"].values
        path = [walk.D, *(walk.advance(k) for k in range(len(clouds) - 1))]
    except (WflowError, KeyError, TypeError) as error:
        held = None if is_custom_config(config.get("law")) else False
        return [Check(name, held, note=str(error).partition(";")[0]) for name in names]
    before = np.concatenate([clouds[:1], clouds[:-1]])
    worst = 0.0
    for key, at in (("energy", clouds), ("energy_before", before)):
        for x, D, stored in zip(at, path, ds[key].values, strict=True):
            worst = max(worst, _difference(_energy(x, D), float(stored)))
    note = "largest relative difference"
    energies = below(names[0], worst, _energy_limit(config), note)
    if metric is None:
        note = "they depend on more than the tokens at the ends of a step"
        return [energies, Check(names[1], None, note=note)]
    worst = 0.0
    for x, y, D, stored in zip(before, clouds, path, ds["distance_sq"].values, strict=True):
        found = metric.distance_sq(np.stack([x, y]), D, metric.mobility(x[None], D)[0])
        worst = max(worst, float(abs(found - stored) / (stored + _NEAR)))
    return [energies, below(names[1], worst, 1e-9, note)]


def _of_sampler(ds: "Dataset", config: dict[str, Any]) -> list[Check]:
    """Check a run of a sampler: its configuration, start, moments and diagnostics."""
    wrong = []
    name = "the configuration fits the data"
    try:
        h, steps, every = float(config["h"]), int(config["steps"]), int(config["save"]["every"])
        ends = ds.sizes["time"] - 1, -(-steps // every)
        grid = np.minimum(np.arange(ds.sizes["time"]) * every, steps) * h
        wrong += [] if np.allclose(ds["time"].values, grid, rtol=1e-12) else ["record times"]
        wrong += [] if ends[0] == ends[1] or not ds.attrs["complete"] else ["steps"]
        wrong += [] if int(config["seed"]) == int(ds.attrs["seed"]) else ["seed"]
        if "snapshot" in ds.coords and ds.attrs["complete"]:
            shots = np.array(config["save"]["snapshots"]) * h
            fits = shots.shape == ds["snapshot"].shape and np.allclose(ds["snapshot"].values, shots)
            wrong += [] if fits else ["save.snapshots"]
        note = f"the data have other {', '.join(wrong)}" if wrong else ""
        fits_data = Check(name, not wrong, note=note)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        fits_data = Check(name, False, note=f"it cannot be read: {error}")
    start = "initial_tokens" in ds and config.get("x0") == array_config(ds["initial_tokens"].values)
    checks = [fits_data, Check("the initial tokens are those of the configuration", start)]
    ds, lost = _without_lost_paths(ds)
    return [*checks, *lost, *_recorded(ds), _moments(ds), *_attention(ds)]


def _moments(ds: "Dataset") -> Check:
    """Recompute mean and variance where tokens are stored at a record time."""
    name, times, worst, count = "moments follow from the stored tokens", ds["time"].values, 0.0, 0
    if not {"sample_mean", "sample_variance", "initial_tokens"} <= set(ds):
        return Check(name, False, note="moments or the initial tokens are missing")
    clouds = []
    if times.size:
        clouds = [(0, np.broadcast_to(ds["initial_tokens"].values, _cloud_shape(ds)))]
    for at, time in enumerate(ds["snapshot"].values if "samples" in ds else ()):
        column = np.flatnonzero(np.isclose(times, time, rtol=1e-12, atol=0))
        clouds += [(int(column[0]), ds["samples"][:, at].values)] if column.size else []
    for place, cloud in clouds:
        scale = np.abs(cloud).max() or 1.0
        for key, found, size in (
            ("sample_mean", cloud.mean(axis=1), scale),
            ("sample_variance", cloud.var(axis=1), scale**2),
        ):
            difference = found - ds[key][:, place].values
            worst = max(worst, worst_of(difference[~np.isnan(difference)] / size))
        count += 1
    note = f"largest difference relative to the largest coordinate, at {count} times"
    return below(name, worst, _ROUNDING, note)


def _cloud_shape(ds: "Dataset") -> tuple[int, int, int]:
    return ds.sizes["path"], ds.sizes["token"], ds.sizes["axis"]


def _attention(ds: "Dataset") -> list[Check]:
    """Check that the diagnostics of an attention are in their ranges."""
    if not {"ess", "ess_min", "absorbed"} <= set(ds):
        return []
    low, mean, share = (ds[name].values for name in ("ess_min", "ess", "absorbed"))
    least = 1 - _ROUNDING
    known = ~(np.isnan(low) | np.isnan(mean) | np.isnan(share))  # others are left to another check
    low, mean, share = low[known], mean[known], share[known]
    fits = (low >= least) & (mean >= low * least) & (share >= 0) & (share <= 1)
    fits &= mean <= ds.sizes["token"] * (1 + _ROUNDING)
    note = "1 <= ess_min <= ess <= n, and absorbed is a share"
    return [Check("diagnostics of the attention are in range", bool(fits.all()), note=note)]


def _on_sphere(ds: "Dataset", config: dict[str, Any]) -> Check:
    worst = 0.0
    for name in ("tokens", "initial_tokens"):
        for _, values in blocks(ds, name) if name in ds else ():
            # Tokens that were not recorded are left to the check before.
            lengths = np.sqrt(np.einsum("...k,...k->...", values, values))
            worst = max(worst, worst_of(lengths[~np.isnan(lengths)] - 1))
    limit = 1e-5 if single(config) else 1e-12
    return Check("tokens lie on the sphere", worst <= limit, worst, limit, "max of | |x| - 1 |")


def _mean(ds: "Dataset", config: dict[str, Any]) -> Check:
    stored, what, _, _ = _carriers(ds, config)
    name = f"{stored}_mean is the mean of the {what}"
    if not {stored, f"{stored}_mean"} <= set(ds) or (
        sorted(ds["snapshot_path"].values) != list(range(ds.sizes["path"]))
    ):
        return Check(name, None, note=f"the {what} of all paths are needed (save.paths)")
    worst, scale = 0.0, 1.0
    for at in range(ds.sizes["snapshot"]):
        mean = ds[stored][:, at].values.mean(axis=0)
        difference = mean - ds[f"{stored}_mean"][at].values
        # What was not recorded is left to another check.
        worst = max(worst, worst_of(difference[~np.isnan(difference)]))
        scale = max(scale, worst_of(mean[~np.isnan(mean)]))
    limit = (1e-5 if single(config) else 1e-12) * scale
    return Check(name, worst <= limit, worst, limit, "max of the difference")


# Densities
# ---------


def _has_densities(ds: "Dataset", config: dict[str, Any]) -> bool:
    """Return whether a run is one of the mean-field equation."""
    return "mesh" in config or "centres" in ds


def _carriers(ds: "Dataset", config: dict[str, Any]) -> tuple[str, str, str, str]:
    """Return what moves in a run: its variable, a word, its variable at time 0, and its setting."""
    if _has_densities(ds, config):
        return "density", "densities", "initial_density", "density"
    return "tokens", "tokens", "initial_tokens", "x0"


def _densities(ds: "Dataset", config: dict[str, Any]) -> list[Check]:
    """Check mesh, mass and sign, or degrees, of the densities, and their entropy."""
    name = "the mesh is that of the configuration"
    mesh = None
    try:
        mesh = mesh_of(config, ds["centres"].values)
        if mesh is None:
            fits = Check(name, None, note="a mesh of a class of its own is not in the file")
        else:
            note = f"{mesh!r}; largest difference of its centres and areas"
            fits = below(name, mesh_difference(mesh, ds), _MASS, note)
    except InputError as error:
        fits = Check(name, False, note=str(error))
    areas = ds["areas"].values
    names = [name for name in ("density", "density_mean", "initial_density") if name in ds]
    off, least = 0.0, math.inf
    for key in names:
        for _, values in blocks(ds, key):
            masses = values @ areas
            off = max(off, worst_of(masses[~np.isnan(masses)] - 1))
            least = min(least, float(np.nanmin(values, initial=math.inf)))
    note = f"max of | mass - 1 | in {', '.join(names)}"
    checks = [fits, below("every density has unit mass", off, _MASS, note)]
    if "spectral_tail" in ds:
        checks += _resolved(ds, mesh)
    else:
        note = f"smallest value: {least:.3g}"
        checks.append(Check("no density is negative", least >= 0, max(-least, 0.0), 0.0, note))
    return [*checks, _entropies(ds)]


def _resolved(ds: "Dataset", mesh: Any) -> list[Check]:
    """Check the shares of the highest degrees: that they are small, and those of the densities."""
    tails = ds["spectral_tail"].values
    highest = worst_of(tails[~np.isnan(tails)])
    note = "largest share of the highest quarter of the degrees"
    small = below("every density is resolved by its modes", highest, TAIL, note)
    name = "spectral_tail follows from the stored densities"
    if not isinstance(mesh, Modes) or mesh.cells != ds.sizes["cell"]:
        return [small, Check(name, False, note="the configuration names no modes with these nodes")]
    return [small, _followed(ds, name, "spectral_tail", mesh.tail, lambda _: 1.0, 1e-10)]


def _entropies(ds: "Dataset") -> Check:
    areas = ds["areas"].values

    def size(density: Array) -> float:
        return float(np.abs(density * np.log(np.where(density > 0, density, 1.0))) @ areas) + 1.0

    name = "entropy follows from the stored densities"
    if "entropy" not in ds:
        return Check(name, False, note="missing: entropy")
    return _followed(ds, name, "entropy", lambda rho: float(entropy(rho, areas)), size, _ROUNDING)


def _followed(
    ds: "Dataset", name: str, series: str, of: Callable[[Array], float],
    size: Callable[[Array], float], limit: float,
) -> Check:  # fmt: skip
    """Check a series against a function of the densities at time 0 and at the snapshots."""
    stored = ds[series].values
    pairs = []
    if "initial_density" in ds and stored.shape[1]:
        start = np.broadcast_to(ds["initial_density"].values, (len(stored), ds.sizes["cell"]))
        pairs += list(zip(start, stored[:, 0], strict=True))
    places, _ = _at_records(ds, "density")
    pairs += [
        (ds["density"][place, at].values, stored[row, column]) for row, column, place, at in places
    ]
    worst = 0.0
    for density, value in pairs:
        if not (np.isnan(density).any() or math.isnan(value)):  # those are not recorded
            worst = max(worst, worst_of(np.array((of(density) - value) / size(density))))
    return below(name, worst, limit, f"largest difference over {len(pairs)} densities")


def _free_energy(ds: "Dataset", config: dict[str, Any]) -> Check:
    """Check the free energy -s E - kappa S against the columns of energy and entropy."""
    name = "free_energy is that of energy and entropy"
    if "entropy" not in ds:
        return Check(name, False, note="missing: entropy")
    sign = 1.0 if config.get("direction") == "ascent" else -1.0
    worst = 0.0
    for start, found in blocks(ds, "free_energy"):
        rows = slice(start, start + len(found))
        parts = [found, sign * ds["energy"][rows].values]
        parts += [float(config.get("kappa", 0.0)) * ds["entropy"][rows].values]
        worst = max(worst, _share(parts, parts))
    return below(name, worst, _ROUNDING, "largest difference, relative to the terms")


def _energy_of_density(ds: "Dataset", density: Array, heads: Array) -> float:
    centres, masses = ds["centres"].values, density * ds["areas"].values
    cells, axes = centres.shape
    try:
        sums = Sums("auto").resolved(cells, axes, causal=False)
        found = head_sums(
            centres[None], heads[None], weights=masses[None], vectors=False, sums=sums
        )
    except InputError:  # no heads of a run
        return math.nan
    sizes = np.einsum("hi,hi,i->h", found.m[0], np.exp(found.shift[0]), masses)
    return float(sizes.mean()) / 2


# Energies
# --------


def _at_records(ds: "Dataset", name: str) -> tuple[list[tuple[int, int, int, int]], int]:
    """Return where snapshots of a variable fall on record times, and how many do not.

    Returns
    -------
    row and column in the series, and place and number of the snapshot; number of other times
    """
    if name not in ds or not ds.sizes["time"]:
        return [], 0
    times, paths = ds["time"].values, ds["path"].values.tolist()
    found, apart = [], 0
    for at, time in enumerate(ds["snapshot"].values):
        column = int(np.argmin(np.abs(times - time)))
        if abs(times[column] - time) > 1e-9 * max(1.0, abs(time)):
            apart += 1
            continue
        for place, path in enumerate(ds["snapshot_path"].values.tolist()):
            if path in paths:
                found.append((paths.index(path), column, place, at))
    return found, apart


def _energy(tokens: np.ndarray, heads: np.ndarray) -> float:
    from wflow.attention.cloud import energy  # loads Numba

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an energy beyond the range of doubles is compared as inf
        try:
            return float(energy(tokens, heads))
        except InputError:  # no tokens or heads of a run: off the sphere, asymmetric, not finite
            return math.nan


def _difference(found: float, stored: float) -> float:
    if found == stored:
        return 0.0
    known = math.isfinite(found) and math.isfinite(stored) and stored != 0
    return float(abs(found - stored) / abs(stored)) if known else math.inf


def _energy_limit(config: dict[str, Any]) -> float:
    """Return the largest relative difference that passes: rounding, or twice the tolerance."""
    tolerance = config.get("compute", {}).get("tolerance", 0.0)
    allowed = 2.0 * tolerance if isinstance(tolerance, float) else 0.0
    return max(1e-4 if single(config) else 1e-10, min(allowed, 0.02))


def _energy_by(ds: "Dataset", config: dict[str, Any]) -> Callable[[Any, Any], float]:
    """Return the function that computes the energy of tokens, or of a density, and heads."""
    return partial(_energy_of_density, ds) if _has_densities(ds, config) else _energy


def _first_energy(ds: "Dataset", config: dict[str, Any]) -> Check:
    _, what, initial, _ = _carriers(ds, config)
    what = "density" if what == "densities" else what
    name = f"energy at time 0 follows from the initial {what} and heads"
    missing = [key for key in (initial, "initial_heads") if key not in ds]
    if missing:
        return Check(name, None, note=f"{' and '.join(missing)} are not stored")
    start, heads = ds[initial].values, ds["initial_heads"].values
    energy, stored = _energy_by(ds, config), ds["energy"][:, 0].values
    shared = start.ndim == len(VARIABLES[initial].dims)
    found = [energy(start, heads)] * len(stored) if shared else [energy(s, heads) for s in start]
    worst = 0.0
    for one, other in zip(found, stored, strict=True):
        worst = max(worst, _difference(one, float(other)))
    return below(name, worst, _energy_limit(config), "largest relative difference")


def _energies(ds: "Dataset", config: dict[str, Any]) -> Check:
    carrier, what, _, _ = _carriers(ds, config)
    name = f"energy follows from the stored {what} and heads"
    frozen = "initial_heads" in ds and type(made_again(config.get("law", {}))) is Frozen
    if carrier not in ds or not ("heads" in ds or frozen):
        lacking = [key for key in (carrier, "heads") if key not in ds]
        note = f"{' and '.join(lacking)} are not stored (save.snapshots, save.heads)"
        return Check(name, None, note=note)
    kind = np.float32 if single(config) else np.float64  # on the sphere to its rounding
    energy, worst, count = _energy_by(ds, config), 0.0, 0
    places, apart = _at_records(ds, carrier)
    for row, column, place, at in places:
        values = ds[carrier][place, at].values.astype(kind)
        heads = (ds["heads"][place, at] if "heads" in ds else ds["initial_heads"]).values
        stored = float(ds["energy"][row, column])
        if np.isnan(values).any() or np.isnan(heads).any() or math.isnan(stored):
            continue  # not recorded yet
        worst, count = max(worst, _difference(energy(values, heads), stored)), count + 1
    if not count:
        return Check(name, None, note="no snapshot falls on a record time")
    note = f"largest relative difference over {count} snapshots"
    if apart:
        note += (
            f"; {apart} more lie between recorded times, where no energy was stored to compare with"
        )
    return below(name, worst, _energy_limit(config), note)
