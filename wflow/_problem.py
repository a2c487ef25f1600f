"""A run as it is asked for: every argument of `wflow.solve`, checked, in one immutable object."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._checks import check_choice, number, whole
from wflow._matrices import Matrices, as_matrices, finite, is_symmetric
from wflow._sums import DIRECTIONS, FLOWS, Sums
from wflow.errors import InputError
from wflow.heads import QKV, HeadLaw
from wflow.rng import INITIAL_HEADS, CounterNormals
from wflow.schema import RunLayout
from wflow.schemes import SCHEMES
from wflow.sphere import as_tokens

_MAX_SEED = 2**63


@dataclass(frozen=True, eq=False)
class Problem:
    """What a run computes; nothing about where or how its results are kept.

    x0 (n, d) or (paths, n, d); scores and values (heads, d, d), values None for tied heads.
    """

    x0: NDArray[np.float64]
    law: HeadLaw
    scores: Matrices
    values: Matrices | None
    sampled_heads: bool
    steps: int
    dt: float
    paths: int
    seed: int
    flow: str
    direction: str
    scheme: str
    record_every: int
    snapshot_steps: NDArray[np.int64]
    snapshot_paths: NDArray[np.int64]
    save_heads: bool
    ledger: bool
    causal: bool
    kappa: float
    dtype: str
    sums: Sums
    first_path: int = 0  # number of the first path: above 0 in a part of a run

    @property
    def heads(self) -> int:
        return len(self.scores)

    @property
    def record_steps(self) -> NDArray[np.int64]:
        """Steps at whose start the ledger is recorded; the end of the run is always one."""
        regular = np.arange(0, self.steps + 1, self.record_every)
        return regular if regular[-1] == self.steps else np.append(regular, self.steps)

    def part(self, first: int, last: int) -> "Problem":
        """The paths first <= p < last as a problem of their own, which keeps tokens of them all.

        The sum over paths in `tokens_mean` has the bits of the whole run only if it is made from
        the tokens of single paths, in their order.
        """
        kept = (self.snapshot_paths >= first) & (self.snapshot_paths < last)
        return replace(
            self,
            x0=self.x0 if self.x0.ndim == 2 else self.x0[first:last],
            paths=last - first,
            snapshot_paths=np.arange(last - first),
            save_heads=self.save_heads and bool(kept.any()),
            first_path=self.first_path + first,
        )

    def layout(self) -> RunLayout:
        """Sizes of the run's file."""
        return RunLayout(
            paths=self.paths,
            times=self.record_steps * self.dt,
            snapshots=self.snapshot_steps * self.dt,
            snapshot_paths=self.snapshot_paths,
            tokens=self.x0.shape[-2],
            axes=self.x0.shape[-1],
            heads=self.heads,
            save_heads=self.save_heads,
            ledger=self.ledger,
            per_path_x0=self.x0.ndim == 3,
            initial_heads=self.values is None,
            diffusion=self.kappa > 0,
            sum_error=self.sums.have_error,
        )

    def config(self) -> dict[str, Any]:
        """The run as JSON; arrays that the file holds are named by their digest."""
        heads: Any = self.heads
        if not self.sampled_heads:
            heads = {"shape": list(self.scores.shape), "sha256": _digest(self.scores)}
            if self.values is not None:
                heads["values_sha256"] = _digest(self.values)
        return {
            "x0": {"shape": list(self.x0.shape), "sha256": _digest(self.x0)},
            "law": self.law.config(),
            "heads": heads,
            "t_final": self.steps * self.dt,
            "dt": self.dt,
            "paths": self.paths,
            "seed": self.seed,
            "flow": self.flow,
            "direction": self.direction,
            "scheme": self.scheme,
            "record_every": self.record_every,
            "snapshots": (self.snapshot_steps * self.dt).tolist(),
            "snapshot_paths": self.snapshot_paths.tolist(),
            "save_heads": self.save_heads,
            "ledger": self.ledger,
            "causal": self.causal,
            "dtype": self.dtype,
            **({"kappa": self.kappa} if self.kappa else {}),
            **self.sums.config(),
        }


def pose(
    x0: ArrayLike,
    law: HeadLaw,
    *,
    heads: int | ArrayLike | QKV | None,
    t_final: float,
    dt: float,
    paths: int,
    seed: int,
    flow: str,
    direction: str,
    scheme: str,
    record_every: int,
    snapshots: Sequence[float] | None,
    snapshot_paths: Sequence[int],
    save_heads: bool,
    ledger: bool | None,
    causal: bool,
    dtype: str,
    kappa: float,
    method: str,
    tolerance: float,
    backend: str,
    device: str | None,
) -> Problem:
    """Check the arguments of `wflow.solve` (documented there) and put them together."""
    if not isinstance(law, HeadLaw):
        raise InputError(f"law is {law!r}: expected a wflow.heads law such as OrnsteinUhlenbeck")
    check_choice("flow", flow, FLOWS)
    check_choice("direction", direction, DIRECTIONS)
    check_choice("scheme", scheme, SCHEMES)
    check_choice("dtype", dtype, ("float64", "float32"))
    paths = whole(paths, "paths")
    record_every = whole(record_every, "record_every")
    seed = whole(seed, "seed", least=0)
    if seed >= _MAX_SEED:
        raise InputError(f"seed is {seed}: expected a whole number below 2^63")
    steps = count_steps(t_final, dt)

    tokens = as_tokens(x0)
    if tokens.ndim not in (2, 3) or (tokens.ndim == 3 and len(tokens) != paths):
        raise InputError(
            f"x0 has shape {tokens.shape}, expected (n, d), or (paths, n, d) with paths = {paths}"
        )
    d = tokens.shape[-1]
    scores, values, sampled = _initial_heads(heads, law, d, seed)
    law.check(len(scores), d)
    if scheme != "euler" and not law.deterministic:
        raise InputError(
            f"scheme {scheme!r} needs a deterministic head law; with noise use scheme='euler' "
            "(Euler-Maruyama), or set sigma2 to 0"
        )
    if scheme != "euler" and getattr(law, "exact", False):
        raise InputError(
            f"exact=True is a step of its own for the heads: use 'euler', not {scheme!r}"
        )
    _check_diffusion(number(kappa, "kappa", least=0.0), scheme, float(dt), d)
    if values is not None and flow != "softmax":
        raise InputError(f"general (Q, K, V) heads follow flow='softmax', not {flow!r}")
    if causal and flow != "softmax":
        raise InputError(f"the causal mask belongs to flow='softmax', not {flow!r}")
    return Problem(
        x0=tokens,
        law=law,
        scores=scores,
        values=values,
        sampled_heads=sampled,
        steps=steps,
        dt=float(dt),
        paths=paths,
        seed=seed,
        flow=flow,
        direction=direction,
        scheme=scheme,
        record_every=record_every,
        snapshot_steps=_snapshot_steps(snapshots, steps, float(dt)),
        snapshot_paths=_snapshot_paths(snapshot_paths, paths),
        save_heads=bool(save_heads),
        ledger=_has_ledger(ledger, scores, values, law, causal),
        causal=bool(causal),
        kappa=float(kappa),
        dtype=dtype,
        sums=Sums(method, tolerance, backend, device).settled(tokens.shape[-2], d, bool(causal)),
    )


def _check_diffusion(kappa: float, scheme: str, dt: float, d: int) -> None:
    """Refuse noise on the tokens that the scheme or the step cannot carry."""
    if kappa and scheme != "euler":
        raise InputError(
            f"scheme {scheme!r} needs tokens without noise; with kappa = {kappa:g} use "
            "scheme='euler' (Euler-Maruyama)"
        )
    spread = 2 * kappa * dt * (d - 1)
    if spread > 1:
        raise InputError(
            f"with kappa = {kappa:g} a step of dt = {dt:g} would scatter tokens by "
            f"{math.sqrt(spread):.3g} radians; take dt <= {0.1 * dt / spread:.3g}"
        )


def count_steps(t_final: float, dt: float, name: str = "dt") -> int:
    """Number of steps of length dt, which messages call `name`, up to t_final.

    Raises
    ------
    InputError
        For a time or step that is not positive and finite, or a time that is no multiple of dt.
    """
    for what, value in ((name, dt), ("t_final", t_final)):
        if number(value, what) <= 0:
            raise InputError(f"{what} is {value}: expected a number > 0")
    ratio = float(t_final) / float(dt)
    if not ratio < 2**53:
        raise InputError(
            f"t_final = {t_final} is {ratio:.3g} steps of {name} = {dt}: too many to count"
        )
    steps = round(ratio)
    if steps < 1 or abs(steps * dt - t_final) > 1e-9 * t_final:
        raise InputError(
            f"t_final = {t_final} is not a whole number of steps of {name} = {dt}; take for "
            f"example {name} = {t_final / max(steps, 1):.12g}"
        )
    return steps


def _initial_heads(
    heads: int | ArrayLike | QKV | None, law: HeadLaw, d: int, seed: int
) -> tuple[Matrices, Matrices | None, bool]:
    """Scores and values (heads, d, d) at time 0, and whether they were drawn from the seed."""
    prescribed = law.initial()
    if prescribed is not None:
        scores, values = prescribed
        count = len(scores)
        if heads is not None and not (np.ndim(heads) == 0 and heads == count):  # type: ignore[arg-type]
            raise InputError(f"the law prescribes its {count} heads; leave heads out")
        return scores, values, False
    if heads is None:
        raise InputError("heads is missing: give their number or an array (heads, d, d)")
    if isinstance(heads, QKV):
        scores, values = heads.matrices()
    elif np.ndim(heads) == 0:
        count = whole(heads, "heads")
        z = CounterNormals(seed).draw((count, d, d), path=0, step=0, purpose=INITIAL_HEADS)
        return z + np.swapaxes(z, -1, -2), None, True
    else:
        scores, values = as_matrices(heads, "heads"), None
    if scores.ndim != 3 or scores.shape[-1] != d:
        raise InputError(
            f"heads have shape {scores.shape}, expected (heads, {d}, {d}) for tokens of "
            f"dimension {d}"
        )
    return scores, values, False


def _has_ledger(
    ledger: bool | None, scores: Matrices, values: Matrices | None, law: HeadLaw, causal: bool
) -> bool:
    """Whether the run keeps the energy ledger; an error where one is asked for and none exists."""
    reason = None
    if values is not None:
        reason = "general (Q, K, V) heads are no gradient: they have no energy"
    elif causal:
        reason = "the causal mask makes the pair interaction one-sided: there is no energy"
    if reason is not None:
        if ledger:
            raise InputError(f"{reason}; pass ledger=False to record speeds and tokens")
        return False
    if ledger is False:
        return False
    if not is_symmetric(scores):
        as_matrices(scores, "heads", symmetric=True)
    if not law.symmetric:
        raise InputError(
            f"the law {type(law).__name__} does not keep heads symmetric, and the energy needs "
            "D = D^T; pass ledger=False to simulate without an energy"
        )
    return True


def _snapshot_steps(snapshots: Sequence[float] | None, steps: int, dt: float) -> NDArray[np.int64]:
    if snapshots is None:
        return np.array([0, steps])
    times = np.atleast_1d(finite(snapshots, "snapshots"))
    if times.ndim != 1:
        raise InputError(f"snapshots are {snapshots!r}: expected a list of times")
    nearest = np.rint(times / dt).astype(np.int64)
    if np.any(nearest < 0) or np.any(nearest > steps):
        raise InputError(f"snapshots {times.tolist()} must lie between 0 and {steps * dt:g}")
    return np.unique(nearest)


def _snapshot_paths(snapshot_paths: Sequence[int], paths: int) -> NDArray[np.int64]:
    given = np.atleast_1d(finite(snapshot_paths, "snapshot_paths"))
    if given.ndim != 1 or np.any(given != np.rint(given)):
        raise InputError(f"snapshot_paths are {snapshot_paths!r}: expected a list of whole numbers")
    chosen = np.unique(given.astype(np.int64))
    if np.any(chosen < 0) or np.any(chosen >= paths):
        raise InputError(f"snapshot_paths {chosen.tolist()} must be numbers from 0 to {paths - 1}")
    return chosen


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
