"""Check a run file against itself: are its numbers whole, on the sphere, and in balance?"""

import json
import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wflow._verify_ledger import (
    Check,
    balance,
    below,
    blocks,
    columns,
    single,
    whole,
    worst_of,
)
from wflow.errors import InputError
from wflow.runfile import open_run
from wflow.schema import (
    DIFFUSION_RATES,
    DIFFUSION_RUNNING,
    LEDGER_RATES,
    LEDGER_RUNNING,
    SPEED,
    law_name,
)

if TYPE_CHECKING:
    from xarray import Dataset

TOLERANCE = 0.05
_SERIES = (*LEDGER_RATES, *LEDGER_RUNNING, *DIFFUSION_RATES, *DIFFUSION_RUNNING, *SPEED)

__all__ = ["TOLERANCE", "Check", "Report", "verify"]


@dataclass(frozen=True)
class Report:
    """What `verify` found in a run file: `passed` if no check failed."""

    path: Path
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
        return "\n".join([f"{self.path}", *map(str, self.checks), summary])


def verify(path: str | Path, tolerance: float = TOLERANCE) -> Report:
    """Check that a run file is whole, that its energies are right and that its balance closes.

    The balance E(T) - E(0) = work_weights + work_ito - dissipated + martingale + residual (with
    work_diffusion and martingale_tokens where tokens diffuse) closes
    if |mean over paths of residual(T)| <= tolerance * turnover + 3 standard errors, where the
    turnover is the mean over paths of |E(T) - E(0)| + |work_weights + work_ito| + |dissipated|, and
    the standard error at least what the noise of the time steps makes of so many heads and paths.

    Parameters
    ----------
    path : run file
    tolerance : share of the turnover that the mean residual may reach; time steps are finite

    Returns
    -------
    Report, one Check per statement

    Raises
    ------
    RunFileError
        For a file that is missing, truncated or not a run file.
    InputError
        For a tolerance that is not a positive number.
    """
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise InputError(f"tolerance is {tolerance}: expected a positive number, such as 0.05")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not complete is the first check
        dataset = open_run(path)
    with dataset, np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        ds = dataset
        config = json.loads(ds.attrs["config"])
        checks = [_complete(ds), _config_fits(ds, config), *_recorded(ds)]
        checks += [_on_sphere(ds, config), _mean_tokens(ds, config)]
        if not ds.attrs["complete"] and "energy" in ds and ds.sizes["time"]:
            # Of an unfinished run, the paths that got to the last time can be checked.
            ds = ds.isel(path=~np.isnan(ds["energy"][:, -1].values))
        if not set(ds) & {*LEDGER_RATES, *LEDGER_RUNNING}:
            checks.append(Check("energy and its balance", None, note="the run holds no energy"))
        elif not (held := whole(ds, config)).passed:
            checks.append(held)
        elif not ds.sizes["time"]:
            checks.append(Check("energy and its balance", None, note="nothing was recorded"))
        else:
            checks += [held, *columns(ds, config), _first_energy(ds, config)]
            checks += [_energies(ds, config), balance(ds, config, tolerance)]
    return Report(Path(path), checks)


def _complete(ds: "Dataset") -> Check:
    complete = bool(ds.attrs["complete"])
    note = "" if complete else "the run did not reach its end; finish it with --resume"
    return Check("the run is complete", complete, note=note)


def _config_fits(ds: "Dataset", config: dict[str, Any]) -> Check:
    """Check that the configuration, from which `wflow.rerun` runs again, is that of the data."""
    name = "the configuration fits the data"
    try:
        dt, every = float(config["dt"]), int(config["record_every"])
        steps = round(float(config["t_final"]) / dt)
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
    note = "" if fits else "its record times are not those of the file"
    return Check(name, bool(fits and seed), note=note if seed else "its seed is not the file's")


def _recorded(ds: "Dataset") -> list[Check]:
    """Check that no value is NaN, and that only terms of the energy, which may overflow, are inf.

    An energy beyond the range of doubles is recorded as inf on purpose (docs/method.md).
    """
    missing: dict[str, int] = {}
    infinite: dict[str, int] = {}
    for name in map(str, ds.data_vars):
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
    return [
        recorded,
        Check("no token and no head is infinite", not fixed, sum(fixed.values()), 0, note),
    ]


def _on_sphere(ds: "Dataset", config: dict[str, Any]) -> Check:
    worst = 0.0
    for name in ("tokens", "initial_tokens"):
        for _, values in blocks(ds, name) if name in ds else ():
            # Tokens that were not recorded are the business of the check before.
            lengths = np.sqrt(np.einsum("...k,...k->...", values, values))
            worst = max(worst, worst_of(lengths[~np.isnan(lengths)] - 1))
    limit = 1e-5 if single(config) else 1e-12
    return Check("tokens lie on the sphere", worst <= limit, worst, limit, "max of | |x| - 1 |")


def _mean_tokens(ds: "Dataset", config: dict[str, Any]) -> Check:
    name = "tokens_mean is the mean of the tokens"
    if not {"tokens", "tokens_mean"} <= set(ds) or (
        sorted(ds["snapshot_path"].values) != list(range(ds.sizes["path"]))
    ):
        return Check(name, None, note="the tokens of all paths are needed (snapshot_paths)")
    worst = 0.0
    for at in range(ds.sizes["snapshot"]):
        mean = ds["tokens"][:, at].values.mean(axis=0)
        difference = mean - ds["tokens_mean"][at].values
        # What was not recorded is the business of another check.
        worst = max(worst, worst_of(difference[~np.isnan(difference)]))
    limit = 1e-5 if single(config) else 1e-12
    return Check(name, worst <= limit, worst, limit, "max of the difference")


def _energy(tokens: np.ndarray, heads: np.ndarray) -> float:
    import wflow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an energy beyond the range of doubles is compared as inf
        try:
            return float(wflow.energy(tokens, heads))
        except InputError:  # no tokens or heads of a run: off the sphere, asymmetric, not finite
            return math.nan


def _difference(found: float, stored: float) -> float:
    if found == stored:
        return 0.0
    known = math.isfinite(found) and math.isfinite(stored) and stored != 0
    return float(abs(found - stored) / abs(stored)) if known else math.inf


def _energy_limit(config: dict[str, Any]) -> float:
    """Relative difference that passes: of rounding, or twice the tolerance of fast sums."""
    tolerance = config.get("tolerance", 0.0)
    allowed = 2.0 * tolerance if isinstance(tolerance, float) else 0.0
    return max(1e-4 if single(config) else 1e-10, min(allowed, 0.02))


def _first_energy(ds: "Dataset", config: dict[str, Any]) -> Check:
    name = "energy at time 0 follows from the initial tokens and heads"
    if not {"initial_tokens", "initial_heads"} <= set(ds):
        return Check(name, None, note="the initial tokens and heads are not stored")
    tokens, heads = ds["initial_tokens"].values, ds["initial_heads"].values
    worst = 0.0
    stored = ds["energy"][:, 0].values
    if tokens.ndim == 2:
        found = [_energy(tokens, heads)] * len(stored)
    else:
        found = [_energy(own, heads) for own in tokens]
    for one, other in zip(found, stored, strict=True):
        worst = max(worst, _difference(one, float(other)))
    return below(name, worst, _energy_limit(config), "largest relative difference")


def _energies(ds: "Dataset", config: dict[str, Any]) -> Check:
    name = "energy follows from the stored tokens and heads"
    frozen = law_name(config) == "Frozen" and "initial_heads" in ds
    if "tokens" not in ds or not ("heads" in ds or frozen):
        return Check(name, None, note="tokens or heads are not stored (snapshots, save_heads)")
    times, paths = ds["time"].values, ds["path"].values.tolist()
    kind = np.float32 if single(config) else np.float64  # on the sphere to its rounding
    worst, count, apart = 0.0, 0, 0
    for at, time in enumerate(ds["snapshot"].values):
        column = int(np.argmin(np.abs(times - time)))
        if abs(times[column] - time) > 1e-9 * max(1.0, abs(time)):
            apart += 1
            continue
        for place, path in enumerate(ds["snapshot_path"].values.tolist()):
            if path not in paths:
                continue
            tokens = ds["tokens"][place, at].values.astype(kind)
            heads = (ds["heads"][place, at] if "heads" in ds else ds["initial_heads"]).values
            stored = float(ds["energy"][paths.index(path), column])
            if np.isnan(tokens).any() or np.isnan(heads).any() or math.isnan(stored):
                continue  # not recorded yet
            worst, count = max(worst, _difference(_energy(tokens, heads), stored)), count + 1
    if not count:
        return Check(name, None, note="no snapshot falls on a record time")
    note = f"largest relative difference over {count} snapshots"
    note += f"; {apart} snapshot times are no record times" if apart else ""
    return below(name, worst, _energy_limit(config), note)
