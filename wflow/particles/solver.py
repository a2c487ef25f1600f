"""`wflow.solve`, which simulates the particle system."""

from __future__ import annotations  # the signature of `solve` shows short names

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from numpy.typing import ArrayLike

from wflow._core.adaptive import Dopri5
from wflow._core.checks import (
    Direction,
    FlowName,
    SchemeName,
    check_choice,
    file_name,
    switch,
)
from wflow._core.errors import BlowUpError, InputError
from wflow._core.identity import check_comparable, warn_changed_itself, warn_not_comparable
from wflow._core.progress import Advance
from wflow._core.progress import progress as progress_bar
from wflow._core.signals import caught_signals, interrupted
from wflow._core.tableaux import Tableau
from wflow._core.threads import numba_threads
from wflow.attention.flows import Flow, flow_config
from wflow.heads.laws import QKV, HeadLaw, law_config
from wflow.io.reading import partial_of
from wflow.io.runfile import (
    MemoryStore,
    RunWriter,
    config_text,
    dataset_attrs,
    differences,
    never_started,
    open_run,
    run_status,
)
from wflow.io.schema import Layout
from wflow.particles.integrate import State, integrate
from wflow.particles.options import Compute, IfExists, SaveAt
from wflow.particles.problem import Problem, problem_of

if TYPE_CHECKING:
    import xarray

Bar = Callable[[], AbstractContextManager[Advance]]

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
    flow: FlowName | Flow = "softmax",
    direction: Direction = "descent",
    scheme: SchemeName | Dopri5 | Tableau = "euler",
    kappa: float = 0.0,
    causal: bool = False,
    out: str | Path | None = None,
    if_exists: IfExists = "error",
    progress: bool = False,
    save: SaveAt = SaveAt(),
    compute: Compute = Compute(),
) -> xarray.Dataset:
    r"""Simulate tokens on the sphere under multi-head attention and keep their energy budget.

    The same seed gives bitwise identical results: for any number of threads, any batching of paths,
    interrupted and resumed or not.

    Parameters
    ----------
    x0 : array_like, shape (n, d) or (paths, n, d)
        Initial tokens, one cloud for all paths or one for each. They are put on the unit sphere.
    law : wflow.heads.HeadLaw
        How the heads move: `wflow.heads.OrnsteinUhlenbeck`, `Oscillating`, `Frozen`, `Schedule`, or
        a custom `HeadLaw`.
    heads : int, array_like of shape (heads, d, d), or wflow.heads.QKV, optional
        Number of heads (then D_h(0) = Z + Z^T is drawn from the seed, the same for all paths), or
        initial matrices. Left out where the law prescribes them.
    t_final : float
        End time, in units of time of the flow; a whole number of steps.
    dt : float
        Time step. With ``scheme="dopri5"`` it is the unit of the recorded times alone, and may be
        large.
    paths : int, default 1
        Number of Monte Carlo paths.
    seed : int, default 0
        Key of all random numbers, together with the numbers of path and step.
    flow : {"softmax", "unnormalised", "effective"} or wflow.Flow, default "softmax"
        How the heads move the tokens.
    direction : {"descent", "ascent"}, default "descent"
        Whether the tokens lower the energy or raise it (clustering). Without effect on `QKV` heads,
        whose values are taken as they are.
    scheme : {"euler", "heun", "rk4", "dopri5"}, wflow.Dopri5 or wflow.Tableau, default "euler"
        Time stepping, of order 1 (Euler-Maruyama), 2, 4 and 5. "dopri5" chooses the lengths of its
        steps by their error, with the tolerances of ``Dopri5()`` or those of the object given. A
        `Tableau` holds the coefficients of another explicit Runge-Kutta scheme. All but "euler" are
        for deterministic laws.
    kappa : float, default 0.0
        Diffusion of the tokens per unit time: Brownian motion on the sphere, with generator kappa
        times its Laplacian. Only for ``scheme="euler"``.
    causal : bool, default False
        Whether token i attends to tokens j <= i only.
    out : str or pathlib.Path, optional
        Run file (HDF5) to write. Without it the result is kept in memory.
    if_exists : {"error", "overwrite", "resume"}, default "error"
        What happens where `out` exists already. "resume" continues an unfinished run, opens a
        finished one, and starts one that never started.
    progress : bool, default False
        Whether to show a bar with the time left.
    save : wflow.SaveAt, default SaveAt()
        What is kept, and when.
    compute : wflow.Compute, default Compute()
        How sums are formed, precision, device and threads.

    Returns
    -------
    xarray.Dataset
        The recorded quantities, by the names of the run file; lazy where `out` is given.

    Raises
    ------
    InputError
        For an argument that cannot be used; the message says what to do.
    BlowUpError
        If the step size is too large; its `run` holds what was recorded when nothing is on disk.
    Interrupted
        A KeyboardInterrupt, on SIGINT or SIGTERM, after the step in progress, if `out` is given.

    See Also
    --------
    wflow.rerun : Compute the run of a file again.
    wflow.open : Read a run file.

    Notes
    -----
    With the velocity v of the chosen flow [1]_ and Brownian motions B_i, the tokens follow

    .. math:: dx_i = v(x_i)\,dt + \sqrt{2\kappa}\,P_{x_i}\,dB_i, \qquad P_x = I - x x^T,

    and the heads follow the law. Tokens are put back on the sphere by normalisation after every
    step.

    In the theory: :ref:`the setting <theory-setting>`, :ref:`the energy budget <theory-budget>`,
    :ref:`the discretisation <theory-discretisation>`.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, eq. 1 and 13,
       and section 6 for the scheme.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> run = wflow.solve(
    ...     wflow.tokens.cross_polytope(n=20, d=3, spread=0.05, seed=42),
    ...     wflow.heads.OrnsteinUhlenbeck(np.eye(3)), heads=4, t_final=0.1, dt=5e-3,
    ...     save=wflow.SaveAt(every=5), compute=wflow.Compute(threads=1),
    ... )
    >>> run.sizes["time"]
    5
    >>> bool(abs(run.edi_residual).max() < 0.05)
    True
    """
    problem = problem_of(
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
        kappa=kappa,
        causal=causal,
        save=save,
        compute=compute,
    )
    return solve_problem(problem, out, if_exists, progress)


def solve_problem(
    problem: Problem,
    out: str | Path | None = None,
    if_exists: IfExists = "error",
    progress: bool = False,
    history: Sequence[str] = (),
) -> xarray.Dataset:
    """Compute a run; `history` are the lines of its attribute, without them one for the command."""
    file = None if out is None else file_name(out, "out")
    check_choice("if_exists", if_exists, get_args(IfExists))
    progress = switch(progress, "progress")
    problem.check_size(in_memory=file is None)
    if file is None and if_exists != "error":
        raise InputError(f"if_exists={if_exists!r} is for runs in a file: give out as well")
    batches = -(-problem.paths // batch_size(problem))
    label = f"{problem.heads} head{'s' if problem.heads > 1 else ''}"
    bar = partial(progress_bar, batches * (problem.steps + 1), label, progress)
    with numba_threads(problem.compute.threads, "compute.threads"):
        try:
            if file is None:
                return _in_memory(problem, bar, history)
            return _in_file(problem, bar, file, if_exists, progress, history)
        except MemoryError:
            records = problem.paths * (problem.steps // problem.save.every + 1)
            raise InputError(
                f"the run needs more memory than there is: {records:.3g} record times over "
                f"{problem.paths} paths of {problem.x0.shape[-2]} tokens, {problem.heads} heads; "
                "raise save.every or dt, or take fewer paths, tokens or heads"
            ) from None


def batch_size(problem: Problem) -> int:
    """Paths that are integrated together: as asked for, or as many as fit into some memory."""
    if problem.compute.batch is not None:
        return min(problem.compute.batch, problem.paths)
    n, d = problem.x0.shape[-2:]
    running_sums = min(problem.heads, 8) * n * (2 * d + 9)
    stages = 0 if problem.control is None else problem.scheme.stages
    per_path = 8 * ((6 + stages) * n * d + (8 + stages) * problem.heads * d * d)
    per_path += 8 * (running_sums + 8 * 1024)
    return max(1, min(problem.paths, _BATCH_BYTES[problem.compute.backend] // per_path))


def write_initial_state(problem: Problem, sink) -> None:
    names = problem.layout().names
    if "initial_tokens" in names:
        sink.write("initial_tokens", (), problem.x0)
    if "initial_heads" in names:
        sink.write("initial_heads", (), problem.scores)


def _in_memory(problem: Problem, bar: Bar, history: Sequence[str]) -> xarray.Dataset:
    store = MemoryStore(problem.layout())
    attrs = dataset_attrs(problem.config(), problem.seed, history=history)
    write_initial_state(problem, store)
    try:
        with bar() as tick:
            integrate(problem, store, batch=batch_size(problem), tick=tick)
    except BlowUpError as error:
        error.run = store.dataset(attrs)
        raise
    return store.dataset(attrs)


def _in_file(
    problem: Problem,
    bar: Bar,
    out: Path,
    if_exists: IfExists,
    progress: bool,
    history: Sequence[str],
) -> xarray.Dataset:
    config = problem.config()
    opened = open_writer(
        out, config, problem.layout, problem.seed, if_exists, progress=progress, history=history
    )
    if opened is None:
        return open_finished(config, out)
    writer, state = opened
    if state is None:
        _log.info("%s: %d paths of %d steps", out, problem.paths, problem.steps)
    else:
        _log.info("%s: continued from step %d of %d", out, int(state["step"]), problem.steps)

    def save(state: State) -> None:
        writer.checkpoint(state)
        _log.info("%s: saved at step %d, path %d", out, int(state["step"]), int(state["first"]))

    try:
        with caught_signals() as caught, bar() as tick:
            complete = integrate_into(
                writer,
                problem,
                state=state,
                save=save,
                stopping=lambda: bool(caught),
                tick=tick,
            )
    except BlowUpError as error:
        name_what_is_left(error, out)
        raise
    warn_changed_itself(config, {"law": law_config(problem.law), "flow": flow_config(problem.flow)})
    raise_if_interrupted(caught, complete, out)
    _log.info("%s: complete", out)
    return writer.dataset()


# Runs in files, also of samplers
# -------------------------------


def open_writer(
    out: Path,
    config: dict[str, Any],
    layout: Callable[[], Layout],
    seed: int,
    if_exists: IfExists,
    *,
    progress: bool = False,
    history: Sequence[str] = (),
) -> tuple[RunWriter, State | None] | None:
    """Lay out the file of a run, or open it where it was interrupted.

    Parameters
    ----------
    layout : called where the file is new

    Returns
    -------
    the writer and the state to continue from, which is None at the start of a run; None for a run
    that is finished
    """
    if if_exists == "resume" and never_started(out, config):
        if_exists = "overwrite"
    if if_exists == "resume" and run_status(out) != "absent":
        check_comparable(config)
        if run_status(out) == "complete":
            return None
        return RunWriter.resume(out, config_text(config), progress=progress)
    warn_not_comparable(config, stacklevel=6)
    attrs = dataset_attrs(config, seed, history=history)
    return RunWriter.create(out, layout(), attrs, overwrite=if_exists == "overwrite"), None


def name_what_is_left(error: BlowUpError, out: Path) -> None:
    """Say in the error of a run where its records are, if there are any."""
    if partial_of(out).exists():
        error.args = (
            f"{error.args[0]}. What was recorded is in {out}.partial; run again with another "
            "output, or replace it (--overwrite)",
        )


def raise_if_interrupted(caught: Sequence[int], complete: bool, out: Path) -> None:
    """Raise Interrupted for a signal that ended a run, or came as it was done."""
    if not caught:
        return
    where = (
        f"came when the run was done: it is whole, in {out}"
        if complete
        else f"ended the run after a whole step; everything up to there is in {out}.partial"
    )
    raise interrupted(
        caught[0],
        f"{where}. Give the same command with --resume (in Python: if_exists='resume') to continue",
    )


def integrate_into(writer: RunWriter, problem: Problem, *, state: State | None, **how: Any) -> bool:
    """Integrate, and leave the run file whole, ready to be resumed, or gone if it is empty.

    Parameters
    ----------
    state : where to continue; None begins
    how : further arguments of `integrate`: save, stopping, tick

    Returns
    -------
    whether the run is complete
    """
    batch = batch_size(problem)
    how["save_every"] = problem.compute.checkpoint_every
    try:
        if state is None:
            write_initial_state(problem, writer)
        complete = integrate(problem, writer, batch=batch, state=state, **how)
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


def open_finished(config: dict[str, Any], out: Path) -> xarray.Dataset:
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
