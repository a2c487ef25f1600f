"""`wflow.solve`, which simulates the particle system."""

from __future__ import annotations  # the signature of `solve` shows short names

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from wflow._core.adaptive import Dopri5
from wflow._core.checks import Direction, FlowName, SchemeName
from wflow._core.errors import InputError
from wflow._core.tableaux import Tableau
from wflow.attention.flows import Flow
from wflow.heads.laws import QKV, HeadLaw
from wflow.particles.integrate import ParticleRun
from wflow.particles.options import Compute, SaveAt
from wflow.particles.problem import Problem, problem_of
from wflow.runs.driver import IfExists, run

if TYPE_CHECKING:
    import xarray


def solve(
    x0: ArrayLike,
    law: HeadLaw,
    *,
    heads: int | ArrayLike | QKV | None = None,
    t_final: float,
    dt: float | None = None,
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
        Initial tokens, one cloud for all paths or one for each. They are put on the unit
        sphere, with a warning where they are further than 1e-6 away from it.
    law : wflow.heads.HeadLaw
        How the heads move: `wflow.heads.OrnsteinUhlenbeck`, `Oscillating`, `Frozen`, `Schedule`, or
        a custom `HeadLaw`.
    heads : int, array_like of shape (heads, d, d), or wflow.heads.QKV, optional
        Number of heads (then D_h(0) = Z + Z^T is drawn from the seed, the same for all paths), or
        initial matrices. Left out where the law prescribes them.
    t_final : float
        End time, in units of time of the flow; a whole number of steps.
    dt : float, optional
        Time step. With ``scheme="dopri5"``, which chooses its steps, it is the unit of the recorded
        times alone: of ``save.every``, and snapshots are taken at its multiples. It may be large,
        and None is t_final/100. Other schemes need it.
    paths : int, default 1
        Number of Monte Carlo paths.
    seed : int, default 0
        Key of all random numbers, together with the numbers of path and step.
    flow : {"softmax", "unnormalised", "effective"} or wflow.Flow, default "softmax"
        How the heads move the tokens.
    direction : {"descent", "ascent"}, default "descent"
        Whether the tokens lower the energy or raise it (clustering). Without effect on `QKV` heads,
        whose values are taken as they are.
    scheme : str, wflow.Dopri5 or wflow.Tableau, default "euler"
        Time stepping: "euler" (Euler-Maruyama, order 1), "sra1" (strong order 1.5 under additive
        noise of the heads), and for deterministic laws "heun", "rk4" and "dopri5", of order 2, 4
        and 5. "dopri5" chooses the lengths of its steps by their error, with the tolerances of
        ``Dopri5()`` or those of the object given. A `Tableau` holds the coefficients of another
        explicit Runge-Kutta scheme.
    kappa : float, default 0.0
        Diffusion of the tokens per unit time: Brownian motion on the sphere, with generator kappa
        times its Laplacian. Only for ``scheme="euler"``.
    causal : bool, default False
        Whether token i attends to tokens j <= i only.
    out : str or pathlib.Path, optional
        Run file (HDF5) to write. Without it the result is kept in memory.
    if_exists : {"error", "overwrite", "resume"}, default "error"
        What happens where `out` exists already. "resume" continues an unfinished run, extends one
        that ended before `t_final`, opens a finished one, and starts one that never started.
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
        If the step size is too large in all paths, or with ``Compute(stop_at_blow_up=True)`` in
        one; its `run` holds what was recorded when nothing is on disk. Otherwise a path that blows
        up is NaN from there on, with a RuntimeWarning.
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
    problem.check_size(in_memory=out is None)
    try:
        return run(ParticleRun(problem), out, if_exists, progress, history)
    except MemoryError:
        records = problem.paths * (problem.steps // problem.save.every + 1)
        raise InputError(
            f"the run needs more memory than there is: {records:.3g} record times over "
            f"{problem.paths} paths of {problem.x0.shape[-2]} tokens, {problem.heads} heads; "
            "raise save.every or dt, or take fewer paths, tokens or heads"
        ) from None
