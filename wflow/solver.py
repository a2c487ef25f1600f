"""`wflow.solve`: the one door to the particle system."""

import inspect
import json
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from wflow._checks import number, whole
from wflow._march import State, march
from wflow._problem import Problem, pose
from wflow._runread import partial_of
from wflow._signals import caught_signals
from wflow._threads import numba_threads
from wflow.errors import BlowUpError, InputError, Interrupted
from wflow.heads import QKV, HeadLaw, law_from_config
from wflow.progress import progress as progress_bar
from wflow.runfile import (
    MemoryStore,
    RunWriter,
    config_text,
    dataset_attrs,
    differences,
    open_run,
    run_status,
)

if TYPE_CHECKING:
    import xarray

_log = logging.getLogger("wflow")
_BATCH_BYTES = {"numba": 2**26, "torch": 2**30}  # a GPU is full with a thousand paths at a time


def solve(
    x0: ArrayLike,
    law: HeadLaw,
    *,
    heads: int | ArrayLike | QKV | None = None,
    t_final: float,
    dt: float,
    paths: int = 1,
    seed: int = 0,
    flow: str = "softmax",
    direction: str = "descent",
    scheme: str = "euler",
    record_every: int = 1,
    snapshots: Sequence[float] | None = None,
    snapshot_paths: Sequence[int] = (0,),
    save_heads: bool = False,
    ledger: bool | None = None,
    causal: bool = False,
    kappa: float = 0.0,
    dtype: str = "float64",
    method: str = "auto",
    tolerance: float = 1e-10,
    backend: str = "numba",
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = False,
    batch: int | None = None,
    threads: int | None = None,
    checkpoint_every: float = 15.0,
) -> "xarray.Dataset":
    """Simulate tokens on the sphere under multi-head attention and keep their energy ledger.

    dx_i = v(x_i) dt + sqrt(2 kappa) P_x dB_i with v of the chosen flow (docs/mathematics.md section
    1), dD_h by the head law. Same seed, same bits: for any number of threads, any batching of
    paths, interrupted and resumed or not.

    Parameters
    ----------
    x0 : (n, d), or (paths, n, d) for a start per path; tokens are put on the unit sphere
    law : how the heads move: `wflow.heads.OrnsteinUhlenbeck`, `Oscillating`, `Frozen`, `Schedule`,
        or a `HeadLaw` of one's own
    heads : their number (D_h(0) = Z + Z^T drawn from the seed, the same for all paths), or initial
        matrices (heads, d, d), or a `QKV`; left out where the law prescribes them
    t_final, dt : end and step, in units of time of the flow; t_final is a whole number of steps
    paths : number of Monte Carlo paths
    seed : key of all random numbers, with the number of path and step
    flow : "softmax", "unnormalised" or "effective"
    direction : "descent" (energy falls) or "ascent" (clustering); of no effect on `QKV` heads,
        whose values are taken as they are
    scheme : "euler" (order 1; Euler-Maruyama), "heun" (2) or "rk4" (4), the last two for
        deterministic laws
    record_every : the ledger is recorded every so many steps, and at the end
    snapshots : times at which tokens are kept (nearest steps); default start and end
    snapshot_paths : paths whose tokens are kept; the mean over paths always is
    save_heads : keep the heads at the snapshots as well
    ledger : False to run without the energy; None: kept for tied heads, and not for (Q, K, V) heads
        or a causal mask, which have none
    causal : token i attends to tokens j <= i only
    kappa : diffusion of the tokens, dx_i = v dt + sqrt(2 kappa) P_x dB_i (Brownian motion on the
        sphere, generator kappa times its Laplacian), per unit time; with scheme "euler"
    dtype : "float64" or "float32", of tokens, heads and pair sums; the ledger adds up in double
    method : "exact" sums over all pairs, "fast" sums by series for d = 2 and 3, whose cost is
        linear in n, or "auto": at every step and path the one expected to take less time
    tolerance : relative error that fast sums keep below; `sum_error` in the result estimates it
    backend : "numba", or "torch": exact sums on a GPU
    device : of the torch backend: "cuda", "cuda:1", ... or "cpu"; None means "cuda"
    out : run file (HDF5); None keeps the result in memory
    overwrite, resume : what to do where `out` exists; a run that never started just starts
    progress : show a bar with the time left
    batch : paths that march together; default by memory
    threads : Numba threads; default all
    checkpoint_every : seconds between the states from which a killed run resumes

    Returns
    -------
    xarray.Dataset with the names of docs/run_file.md; lazy where `out` is given

    Raises
    ------
    InputError
        For an argument that cannot be used; the message says what to do.
    BlowUpError
        If the step size is too large; its `run` holds what was recorded when nothing is on disk.
    Interrupted
        On SIGINT or SIGTERM, after the step in progress, if `out` is given.

    Source: [MHT] section 6, and section 7 for kappa; docs/mathematics.md sections 1 to 4.
    """
    problem = pose(
        x0,
        law,
        heads=heads,
        t_final=t_final,
        dt=dt,
        paths=paths,
        seed=seed,
        flow=flow,
        direction=direction,
        scheme=scheme,
        record_every=record_every,
        snapshots=snapshots,
        snapshot_paths=snapshot_paths,
        save_heads=save_heads,
        ledger=ledger,
        causal=causal,
        kappa=kappa,
        dtype=dtype,
        method=method,
        tolerance=tolerance,
        backend=backend,
        device=device,
    )
    size = min(batch_size(problem) if batch is None else whole(batch, "batch"), problem.paths)
    number(checkpoint_every, "checkpoint_every", least=0.0)
    if out is not None and not isinstance(out, str | os.PathLike):
        raise InputError(f"out is {out!r}: expected the path of a run file")
    if out is None and (overwrite or resume):
        raise InputError("overwrite and resume are for runs in a file: give out as well")
    if overwrite and resume:
        raise InputError("overwrite and resume exclude each other: choose one")
    batches = -(-problem.paths // size)
    label = f"{problem.heads} head{'s' if problem.heads > 1 else ''}"
    with (
        numba_threads(threads),
        progress_bar(batches * (problem.steps + 1), label, progress) as tick,
    ):
        try:
            if out is None:
                return _in_memory(problem, size, tick)
            return _in_file(problem, size, tick, Path(out), overwrite, resume, checkpoint_every)
        except MemoryError:
            records = problem.paths * (problem.steps // problem.record_every + 1)
            raise InputError(
                f"the run needs more memory than there is: {records:.3g} record times over "
                f"{problem.paths} paths of {problem.x0.shape[-2]} tokens, {problem.heads} heads; "
                "raise record_every or dt, or take fewer paths, tokens or heads"
            ) from None


def posed(x0: ArrayLike, law: HeadLaw, **options: Any) -> Problem:
    """The problem that `solve(x0, law, **options)` computes, its arguments checked.

    Options that say where and how it is computed, such as out and threads, are left aside.
    """
    parameters = inspect.signature(solve).parameters
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    known = inspect.signature(pose).parameters
    given = {name: value for name, value in (defaults | options).items() if name in known}
    return pose(x0, law, **given)


def rerun(path: str | Path, *, out: str | Path | None = None, **changes) -> "xarray.Dataset":
    """Run again what a run file holds, from its configuration and initial state.

    Parameters
    ----------
    path : a run file
    out : file of the new run; None keeps it in memory
    changes : arguments of `solve` that differ, such as dt or threads

    Returns
    -------
    xarray.Dataset, as from `solve`; without changes the same numbers to the bit

    Raises
    ------
    InputError
        For a law made of callables or (Q, K, V) heads, which a run file does not hold.
    """
    with open_run(path) as ds:
        config = json.loads(ds.attrs["config"])
        x0 = ds["initial_tokens"].values
        given = ds["initial_heads"].values if "initial_heads" in ds else None
    del config["x0"]
    law = law_from_config(config.pop("law"))
    if law.initial() is not None:
        config["heads"] = None
    elif not isinstance(config["heads"], int):
        if given is None:
            raise InputError(f"{path} has (Q, K, V) heads, which a run file does not hold")
        config["heads"] = given
    # A configuration says nothing of the method where the sums were exact.
    return solve(x0, law, out=out, **({"method": "exact"} | config | changes))


def batch_size(problem: Problem) -> int:
    """Paths that fit into a fixed amount of memory together."""
    n, d = problem.x0.shape[-2:]
    running_sums = min(problem.heads, 8) * n * (2 * d + 9)
    per_path = 8 * (6 * n * d + 8 * problem.heads * d * d + running_sums + 8 * 1024)
    return max(1, min(problem.paths, _BATCH_BYTES[problem.sums.backend] // per_path))


def write_initial_state(problem: Problem, sink) -> None:
    names = problem.layout().names
    if "initial_tokens" in names:
        sink.write("initial_tokens", (), problem.x0)
    if "initial_heads" in names:
        sink.write("initial_heads", (), problem.scores)


def _in_memory(problem: Problem, batch: int, tick) -> "xarray.Dataset":
    store = MemoryStore(problem.layout())
    attrs = dataset_attrs(problem.config(), problem.seed)
    write_initial_state(problem, store)
    try:
        march(problem, store, batch=batch, tick=tick)
    except BlowUpError as error:
        error.run = store.dataset(attrs)
        raise
    return store.dataset(attrs)


def _in_file(
    problem: Problem,
    batch: int,
    tick,
    out: Path,
    overwrite: bool,
    resume: bool,
    checkpoint_every: float,
) -> "xarray.Dataset":
    state = None
    if resume and run_status(out) != "absent":
        check_comparable(problem.config())
        if run_status(out) == "complete":
            return open_finished(problem.config(), out)
        writer, state = RunWriter.resume(out, config_text(problem.config()))
        _log.info("%s: going on from step %d of %d", out, int(state["step"]), problem.steps)
    else:
        attrs = dataset_attrs(problem.config(), problem.seed)
        writer = RunWriter.create(out, problem.layout(), attrs, overwrite=overwrite)
        _log.info("%s: %d paths of %d steps", out, problem.paths, problem.steps)

    def save(state: State) -> None:
        writer.checkpoint(state)
        _log.info("%s: saved at step %d, path %d", out, int(state["step"]), int(state["first"]))

    try:
        with caught_signals() as caught:
            complete = march_into(
                writer,
                problem,
                batch=batch,
                state=state,
                save=save,
                save_every=checkpoint_every,
                stopping=lambda: bool(caught),
                tick=tick,
            )
    except BlowUpError as error:
        if partial_of(out).exists():
            error.args = (
                f"{error.args[0]}. What was recorded is in {out}.partial; run again with another "
                "output, or replace it (--overwrite)",
            )
        raise
    if caught:
        where = (
            f"came when the run was done: it is whole, in {out}"
            if complete
            else f"ended the run after a whole step; everything up to there is in {out}.partial"
        )
        raise Interrupted(
            f"{signal.Signals(caught[0]).name} {where}. "
            "Give the same command with --resume (in Python: resume=True) to go on",
            caught[0],
        )
    _log.info("%s: complete", out)
    return open_run(out)


def march_into(
    writer: RunWriter, problem: Problem, *, batch: int, state: State | None, **how: Any
) -> bool:
    """March, and leave the run file whole, ready to be resumed, or gone if it recorded nothing.

    Parameters
    ----------
    state : where to go on; None begins
    how : further arguments of `march`

    Returns
    -------
    whether the run is complete
    """
    try:
        if state is None:
            write_initial_state(problem, writer)
        complete = march(problem, writer, batch=batch, state=state, **how)
        if complete:
            writer.finish()
        else:
            writer.abandon()
    except BlowUpError as error:
        if state is None and error.time == 0 and error.path - problem.first_path < batch:
            writer.discard()
        else:
            writer.abandon()
        raise
    except BaseException:
        writer.abandon()
        raise
    return complete


def check_comparable(config: dict[str, Any]) -> None:
    """Raise InputError for a run that cannot be told from others, so that none is resumed as it."""
    if config["law"].get("fingerprint", "") is None:
        raise InputError(
            "cannot tell whether the law is the one that began this run: it holds values that "
            "cannot be compared; build it from functions, numbers and arrays, or start again "
            "with overwrite"
        )


def open_finished(config: dict[str, Any], out: Path) -> "xarray.Dataset":
    """The finished run in `out`, if it is the one asked for."""
    ds = open_run(out)
    changed = differences(json.loads(ds.attrs["config"]), json.loads(config_text(config)))
    if changed:
        ds.close()
        raise InputError(
            f"{out} holds another finished run (differs in {', '.join(changed)}); choose another "
            "output or overwrite it (--overwrite)"
        )
    return ds
