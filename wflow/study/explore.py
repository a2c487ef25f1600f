"""`wflow.explore`: sliders over a small run in a notebook, its tokens and its energy.

`explore.js` is the page, which the site has as well, with a solver of its own; `globe.js` draws the
sphere. Here the trait `film`, what is shown, follows the trait `settings`, by `wflow.solve`.
"""

from __future__ import annotations

import functools
from inspect import signature
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from wflow._core.checks import Direction, FlowName, check_choice, number, positive, whole
from wflow._core.errors import InputError
from wflow._core.extras import required
from wflow.heads import Frozen, HeadLaw, OrnsteinUhlenbeck
from wflow.particles.options import SaveAt
from wflow.particles.solver import solve
from wflow.plots.tokens import principal_axes
from wflow.sphere import tokens

HeadsName = Literal["equal", "random", "ou"]
FRAMES = 500  # at most, of a film


def explore(
    *,
    n: int = 200,
    d: int = 3,
    beta: float = 4.0,
    heads: int = 8,
    sigma: float = 1.0,
    rate: float = 1.0,
    kappa: float = 0.0,
    dt: float = 0.02,
    steps: int = 500,
    seed: int = 0,
    flow: FlowName = "softmax",
    direction: Direction = "ascent",
    law: HeadsName = "equal",
) -> Any:
    r"""Show a run in a notebook with a slider for each argument, its tokens and its energy.

    A slider that is moved starts `wflow.solve` again with ``scheme="euler"`` from tokens that are
    uniform on the sphere. The button "Copy as code" gives the call. For d > 3 three principal
    components of the tokens are drawn.

    Parameters
    ----------
    n : int, default 200
        Number of tokens.
    d : int, default 3
        Dimension of the space, >= 2.
    beta : float, default 4.0
        Strength of the heads: they are beta times a matrix that `law` names, or near it.
    heads : int, default 8
        Number of heads. Equal ones are one head.
    sigma : float, default 1.0
        Size of the noise of Ornstein-Uhlenbeck heads, per square root of unit time, >= 0.
    rate : float, default 1.0
        Their rate of reversion, per unit time, > 0.
    kappa : float, default 0.0
        Diffusion of the tokens per unit time.
    dt : float, default 0.02
        Time step.
    steps : int, default 500
        Number of steps.
    seed : int, default 0
        Key of all random numbers.
    flow : {"softmax", "unnormalised", "effective"}, default "softmax"
        How the heads move the tokens.
    direction : {"descent", "ascent"}, default "ascent"
        Whether the tokens lower the energy or raise it (clustering).
    law : {"equal", "random", "ou"}, default "equal"
        Heads beta I; or random ones at rest; or Ornstein-Uhlenbeck ones that start at their mean
        beta I.

    Returns
    -------
    anywidget.AnyWidget
        The explorer, which a notebook shows. Its `settings` are the arguments, a dict to which
        another can be assigned; its `run` is the Dataset of `wflow.solve` that is shown. After an
        error both are what they were.

    Raises
    ------
    InputError
        Without the package anywidget, and for an argument that cannot be used.
    BlowUpError
        For a time step that is too large.

    See Also
    --------
    wflow.solve : Simulate tokens under any law, flow and scheme.

    Notes
    -----
    Random heads are, with Z iid standard normal,

    .. math:: D_h = \beta\,\frac{Z_h + Z_h^T}{2} .

    Examples
    --------
    >>> import wflow
    >>> explorer = wflow.explore(n=20, heads=2, law="ou")  # doctest: +SKIP
    >>> explorer.settings = {**explorer.settings, "beta": 6.0}  # doctest: +SKIP
    >>> explorer.run.sizes["time"]  # doctest: +SKIP
    501
    """
    return _explorer()(
        settings={
            "n": n,
            "d": d,
            "beta": beta,
            "heads": heads,
            "sigma": sigma,
            "rate": rate,
            "kappa": kappa,
            "dt": dt,
            "steps": steps,
            "seed": seed,
            "flow": flow,
            "direction": direction,
            "law": law,
        }
    )


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """Return settings in the types of the arguments of `explore`.

    Raises
    ------
    InputError
        For a setting that cannot be used, is missing or does not exist.
    """
    if odd := sorted(map(str, given.keys() ^ signature(_run).parameters.keys())):
        raise InputError(
            f"settings lack or do not have {', '.join(odd)}: assign {{**explorer.settings, ...}}"
        )
    for name, choices in {"law": HeadsName, "flow": FlowName, "direction": Direction}.items():
        check_choice(name, given[name], get_args(choices))
    return {
        **given,
        "n": whole(given["n"], "n"),
        "d": whole(given["d"], "d", least=2),
        "beta": number(given["beta"], "beta"),
        "heads": whole(given["heads"], "heads"),
        "sigma": number(given["sigma"], "sigma", least=0.0),
        "rate": positive(given["rate"], "rate"),
        "kappa": number(given["kappa"], "kappa", least=0.0),
        "dt": positive(given["dt"], "dt"),
        "steps": whole(given["steps"], "steps"),
        "seed": whole(given["seed"], "seed", least=0),
    }


@functools.cache
def _explorer() -> type:
    """Return the class of the widget, which needs the extra.

    Raises
    ------
    InputError
        Without anywidget.
    """
    anywidget = required("anywidget", "explore", "explorers in a notebook")
    traitlets = required("traitlets", "explore", "explorers in a notebook")

    class Settings(traitlets.Dict):  # type: ignore[misc, name-defined]
        def validate(self, explorer: Any, value: Any) -> dict[str, Any]:
            return _checked(super().validate(explorer, value))

    class Explorer(anywidget.AnyWidget):  # type: ignore[misc, name-defined]
        _esm = _module()
        _css = _file("explore.css")
        settings = Settings().tag(sync=True)
        film = traitlets.Dict().tag(sync=True)

        @traitlets.observe("settings")  # type: ignore[untyped-decorator]
        def _solve(self, change: Any) -> None:
            settings = change["new"]
            if settings == self.film.get("settings"):  # restored, below
                return
            try:
                run = _run(**settings)
            except BaseException as error:  # an interrupt, too: the page waits for an answer
                if self.film:
                    said = str(error) or type(error).__name__
                    self.film = {**self.film, "error": said, "failed": settings}
                    self.settings = self.film["settings"]
                raise
            self.run = run
            self.film = {"settings": settings, **_film(run)}

    return Explorer


def _module() -> str:
    """Return the page as a module of JavaScript, in the form of anywidget."""
    exported = "export default { render: wflowExplore.render };\n"
    return _file("globe.js") + _file("explore.js") + exported


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def _run(
    n: int,
    d: int,
    beta: float,
    heads: int,
    sigma: float,
    rate: float,
    kappa: float,
    dt: float,
    steps: int,
    seed: int,
    flow: FlowName,
    direction: Direction,
    law: HeadsName,
) -> Any:
    """Solve as the code in `explore.js` says."""
    x0, mean = tokens.uniform(n, d, seed=seed), beta * np.eye(d)
    follows: HeadLaw = Frozen()
    initial = mean[None]
    if law == "random":
        z = np.random.default_rng(seed).standard_normal((heads, d, d))
        initial = beta * (z + z.transpose(0, 2, 1)) / 2
    elif law == "ou":
        follows, initial = OrnsteinUhlenbeck(mean, rate, sigma**2), np.stack([mean] * heads)
    frames = np.unique(np.linspace(0, steps, min(steps, FRAMES) + 1).round())
    return solve(
        x0,
        follows,
        heads=initial,
        t_final=steps * dt,
        dt=dt,
        seed=seed,
        flow=flow,
        direction=direction,
        kappa=kappa,
        save=SaveAt(every=1, snapshots=frames * dt),
    )


def _film(run: Any) -> dict[str, Any]:
    """Return what is drawn of a run: times and energies as doubles, tokens as single floats."""
    x = run["tokens"].isel(snapshot_path=0).values  # (frames, n, d)
    times, d = run["snapshot"].values, x.shape[-1]
    energy = np.interp(times, run["time"].values, run["energy"].isel(path=0).values)
    if d > 3:
        x = x @ principal_axes(x.reshape(-1, d), 3)[0].T
    return {
        "d": d,
        "times": times.astype("<f8").tobytes(),
        "energy": energy.astype("<f8").tobytes(),
        "points": x.astype("<f4").tobytes(),
    }
