"""Flows: how the heads move the tokens, and in which metric.

With m_h the mobility of head h and g_h = P_x D_h S_h its gradient, `softmax` moves tokens by the
mean over heads of g_h/m_h, `unnormalised` by the mean gradient gbar, `effective` by gbar/b with
the harmonic mean b of the mobilities. These three have compiled kernels. A custom flow is a
subclass of `Flow` with a `velocity`, from which `evaluate` forms every term of the energy budget.
In the theory: :ref:`flows <theory-flows>`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from wflow._core.checks import Direction, FlowName, reading, returned, shown
from wflow._core.errors import InputError
from wflow._core.identity import Described, Registry
from wflow.attention.pairs import Array, Cloud, Doubles, scaled
from wflow.kernels import evaluate as fused
from wflow.kernels.evaluate import DIRECTIONS, EXACT, Evaluation, Sums, mark_overflow
from wflow.kernels.pairs.headsums import ENERGY_TERMS
from wflow.sphere.geometry import project_unchecked

__all__ = [
    "Cloud",
    "Flow",
    "Growth",
    "effective",
    "flow_config",
    "flow_from_config",
    "register",
    "softmax",
    "unnormalised",
]


def __dir__() -> list[str]:
    return __all__


class Growth(NamedTuple):
    """The parts of a growth constant of W₂.

    With v = P_x A, `turning` bounds ``|A|``, `own_ascent` and `own_descent` how A changes with the
    token itself, by the direction, and `others` how it changes with the cloud.

    Parameters
    ----------
    turning : ndarray of float64, shape (...)
        Bound on ``|A|``.
    own_ascent : ndarray of float64, shape (...)
        One-sided bound on the change of A with the token itself, in ascent.
    own_descent : ndarray of float64, shape (...)
        The same in descent.
    others : ndarray of float64, shape (...)
        Bound on the change of A with the cloud.

    Notes
    -----
    In the theory: :ref:`growth of distances <theory-growth>`.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> parts = wflow.flows.softmax.growth(np.array([1.0]))
    >>> bool(parts.one_sided("descent") < parts.lipschitz())
    True
    """

    turning: Doubles
    own_ascent: Doubles
    own_descent: Doubles
    others: Doubles

    def one_sided(self, direction: Direction) -> Doubles:
        """Return L with ``<x - y, v - w> <= L |x - y|^2`` in the mean over pairs.

        Parameters
        ----------
        direction : {"descent", "ascent"}
            Direction of the flow.

        Returns
        -------
        ndarray of float64, shape (...)
            Constant L, per unit time.
        """
        own = self.own_ascent if direction == "ascent" else self.own_descent
        return self.turning + own + self.others

    def lipschitz(self) -> Doubles:
        """Return L with ``|v - w| <= L |x - y|`` in the mean square over pairs, both directions.

        Returns
        -------
        ndarray of float64, shape (...)
            Constant L, per unit time.
        """
        return self.one_sided("ascent")


# The contract, and the three flows of wflow
# ------------------------------------------


class Flow(Described):
    r"""Flow of the tokens: a subclass defines their velocity in ascent, and its known properties.

    `wflow.solve` and the functions of one cloud take an object of a subclass as `flow`. The sign of
    `descent` is applied outside. Every method and attribute but `velocity` has a default that
    claims nothing. `wflow.flows.register` makes the class known to `wflow.rerun` and
    `wflow.verify`.

    Attributes
    ----------
    general_heads : bool
        Whether the flow is defined for heads that are no gradient: D that is not symmetric in
        `wflow.velocity`, general (Q, K, V) heads and a causal mask. False by default.
    potential : {"m", "log m"} or None
        With one head the velocity is the gradient of this function of its mobility, of which
        `wflow.stationary` makes the stationary laws; None, the default, for neither.

    Notes
    -----
    With s = 1 for ascent and -1 for descent, and b of the metric that `log_metric` states,

    .. math::

        \dot x_i = s\,v(x_i), \qquad
        \text{dissipation} = -\frac{s}{n} \sum_i \langle \bar g(x_i), v(x_i) \rangle, \qquad
        G^2 = \frac1n \sum_i b(x_i)\,|v(x_i)|^2 .

    In the theory: :ref:`flows <theory-flows>`, :ref:`the energy budget <theory-budget>`.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> class OneHead(wflow.Flow):
    ...     def __init__(self, head):
    ...         self.head = head
    ...
    ...     def velocity(self, cloud):
    ...         others = np.arange(cloud.D.shape[1]) != self.head
    ...         return cloud.attention(log_factors=np.where(others, -np.inf, 0.0)[:, None])
    >>> x = wflow.tokens.uniform(n=5, d=3, seed=0)
    >>> D = np.stack([np.eye(3), np.diag([1.0, 2.0, 3.0])])
    >>> v = wflow.velocity(x, D, flow=OneHead(1))
    >>> np.allclose(2 * v, wflow.velocity(x, D[1:]))
    True
    """

    general_heads: bool = False
    potential: Literal["m", "log m"] | None = None

    @property
    def name(self) -> str:
        """Name of the flow in messages, tables and figures."""
        return type(self).__name__

    def velocity(self, cloud: Cloud) -> Array:
        """Return the velocities of the tokens in ascent; a subclass must have this method.

        Parameters
        ----------
        cloud : Cloud
            Tokens and heads of several paths, with the sums over pairs.

        Returns
        -------
        ndarray, shape (paths, n, d)
            Velocities per unit time; their part along x is left out.

        Raises
        ------
        InputError
            By the base class.
        """
        raise InputError(f"the flow {self.name} has no velocity: give its class the method")

    def log_metric(self, cloud: Cloud) -> Doubles | None:
        """Return log b of the metric, in which ``G^2 = (1/n) sum_i b(x_i) |v_i|^2``.

        Parameters
        ----------
        cloud : Cloud
            Tokens and heads of several paths, with the sums over pairs.

        Returns
        -------
        ndarray of float64, shape (paths, n), or None
            Logarithms of b; None, the default, is W₂, where b = 1.
        """
        return None

    def gradient_flow(self, heads: int) -> bool:
        """Return whether the flow is the gradient flow of E in its metric: dissipation = G^2.

        `wflow.verify` then checks that both columns of a run agree.

        Parameters
        ----------
        heads : int
            Number of heads.

        Returns
        -------
        bool
            False by default.
        """
        return False

    def growth(self, norms: Doubles) -> Growth:
        """Return the parts of the growth constant of W₂.

        Parameters
        ----------
        norms : ndarray, shape (..., heads)
            Spectral norms of the heads.

        Returns
        -------
        Growth
            Parts of shape (...), per unit time.

        Raises
        ------
        InputError
            Where no bound is known: the default.
        """
        raise InputError(
            f"no bound on the growth of W₂ is known for the flow {self.name}: give its class the "
            "method growth, or take one of " + ", ".join(get_args(FlowName))
        )


class Softmax(Flow):
    """Multi-head self-attention: v = s (1/H) sum_h g_h/m_h, measured with the mobility b.

    With one head, or heads of equal mobility, it is `Effective`. D need not be symmetric [1]_.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, eq. 1 and 13;
       b: eq. 37.
    """

    name = "softmax"
    general_heads = True
    potential = "log m"

    def velocity(self, cloud: Cloud) -> Array:
        return cloud.attention()

    def log_metric(self, cloud: Cloud) -> Doubles:
        return cloud.log_effective_mobility()

    def gradient_flow(self, heads: int) -> bool:
        return heads == 1

    def growth(self, norms: Doubles) -> Growth:
        # `own` is D Cov D^T times the sign of the direction, positive semidefinite: it pulls tokens
        # apart in ascent, and together in descent, where it drops out.
        a, e, zero = _norms(norms)
        with np.errstate(over="ignore"):
            return Growth(_mean(a), _mean(a * a), zero, _mean(a * np.hypot(1.0, a) * e))


class Unnormalised(Flow):
    """Attention without the denominator: v = s gbar, the gradient flow of E in W₂, where b = 1.

    D is symmetric [1]_.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, Theorem 3.11.
    """

    name = "unnormalised"
    potential = "m"

    def velocity(self, cloud: Cloud) -> Array:
        return cloud.attention(log_factors=cloud.log_mobility())

    def gradient_flow(self, heads: int) -> bool:
        return True

    def growth(self, norms: Doubles) -> Growth:
        a, e, zero = _norms(norms)
        with np.errstate(over="ignore"):
            return Growth(_mean(a * e), _mean(a * a * e), zero, _mean(a * (1 + a) * e))


class Effective(Flow):
    """The gradient flow of E in the metric weighted by b: v = s gbar/b with b = 1/mean_h(1/m_h).

    D is symmetric [1]_.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, eq. 37 and
       Theorem 4.7.
    """

    name = "effective"
    potential = "log m"

    def velocity(self, cloud: Cloud) -> Array:
        log_b = cloud.log_effective_mobility()[:, None]
        return cloud.attention(log_factors=cloud.log_mobility() - log_b)

    def log_metric(self, cloud: Cloud) -> Doubles:
        return cloud.log_effective_mobility()

    def gradient_flow(self, heads: int) -> bool:
        return True

    def growth(self, norms: Doubles) -> Growth:
        # Sum over pairs of heads; a pair of one head with itself is softmax.
        a, e, _ = _norms(norms)
        alone, heads = softmax.growth(norms), a.shape[-1]
        with np.errstate(over="ignore"):
            ae = a * e
            mixed = _pairs(ae, ae)
            return Growth(
                alone.turning / heads + _pairs(ae, e),
                alone.own_ascent / heads + _pairs(a * ae, e) + mixed,
                mixed,
                alone.others / heads + _pairs((1 + a) * ae, e) + _pairs(ae, ae * e),
            )


def _norms(norms: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """Return a and e^a, and a zero for each set of heads."""
    a = np.asarray(norms, np.float64)
    with np.errstate(over="ignore"):
        return a, np.exp(a), np.zeros(a.shape[:-1])


def _mean(values: Doubles) -> Doubles:
    return np.asarray(values.mean(axis=-1))


def _pairs(f: Doubles, g: Doubles) -> Doubles:
    """Return (1/H^2) sum over h != k of f_h g_k, without cancellation of large sums."""
    others = _exclusive(g) + _exclusive(g[..., ::-1])[..., ::-1]
    # 0 * inf: a head of norm zero adds nothing, however large the others are.
    zero = (f == 0) | (others == 0)
    terms = np.where(zero, 0.0, np.where(zero, 1.0, f) * np.where(zero, 1.0, others))
    return np.asarray(terms.sum(axis=-1) / g.shape[-1] ** 2)


def _exclusive(g: Doubles) -> Doubles:
    """Return the sum of the entries before each one."""
    total = np.zeros_like(g)
    total[..., 1:] = np.cumsum(g[..., :-1], axis=-1)
    return total


softmax, unnormalised, effective = Softmax(), Unnormalised(), Effective()


# Flows by name, and in run files
# -------------------------------

FLOWS: Registry[Flow] = Registry(Flow, "flow", "flow", "wflow.flows")
_OF_WFLOW: dict[str, Flow] = {flow.name: flow for flow in (softmax, unnormalised, effective)}
_Class = TypeVar("_Class", bound=type[Flow])


def as_flow(flow: Any) -> Flow:
    """Return the flow of a name, or the given flow.

    Raises
    ------
    InputError
        For anything else.
    """
    if isinstance(flow, Flow):
        return flow
    if isinstance(flow, str) and flow in _OF_WFLOW:
        return _OF_WFLOW[flow]
    if isinstance(flow, type) and issubclass(flow, Flow):
        raise InputError(f"flow is the class {flow.__name__}: expected an object of it")
    raise InputError(
        f"flow is {shown(flow)}: expected one of {', '.join(_OF_WFLOW)}, or a wflow.Flow"
    )


def register(cls: _Class) -> _Class:
    """Register a class of flows under its name; a decorator.

    `wflow.rerun` and `wflow.verify` make such flows again from a run file: by `from_config`, from
    what `to_config` returned when the run began. The code of the class is not in the file: a flow
    that differs from that of the run, by its fingerprint, is refused.

    Parameters
    ----------
    cls : type
        Subclass of `wflow.Flow`; one that is registered again replaces the earlier one.

    Returns
    -------
    type
        The class itself.

    Raises
    ------
    InputError
        For anything but such a class, and for the name of another flow.

    Examples
    --------
    >>> import wflow
    >>> @wflow.flows.register
    ... class Slow(wflow.Flow):
    ...     def __init__(self, factor):
    ...         self.factor = factor
    ...
    ...     def velocity(self, cloud):
    ...         return self.factor * cloud.attention()
    ...
    ...     def to_config(self):
    ...         return {"factor": self.factor}
    >>> flow = wflow.flows.flow_from_config(wflow.flows.flow_config(Slow(0.5)))
    >>> flow.factor
    0.5
    """
    FLOWS.register(cls)
    return cls


def flow_config(flow: FlowName | Flow) -> str | dict[str, Any]:
    """Return what a run file holds of a flow: its name; of a custom one also its parameters.

    A custom flow is identified by its `fingerprint` (None, and the reason as `not_comparable`,
    where it cannot be compared).

    Parameters
    ----------
    flow : {"softmax", "unnormalised", "effective"} or wflow.Flow
        A flow, or its name.

    Returns
    -------
    str or dict
        The name of a flow of wflow; name, parameters and fingerprint of a custom one.

    Raises
    ------
    InputError
        For what is no flow, and a `to_config` that does not return a dict.

    Examples
    --------
    >>> import wflow
    >>> wflow.flows.flow_config(wflow.flows.softmax)
    'softmax'
    """
    flow = as_flow(flow)
    return FLOWS.config(flow) if FLOWS.is_custom(flow) else flow.name


def flow_from_config(config: str | dict[str, Any]) -> Flow:
    """Make a flow again from its `flow_config`.

    Parameters
    ----------
    config : str or dict
        What `flow_config` returned.

    Returns
    -------
    wflow.Flow
        The flow.

    Raises
    ------
    InputError
        For an unknown name, and for a custom flow whose class is not registered or is another than
        that of the run.

    Examples
    --------
    >>> import wflow
    >>> wflow.flows.flow_from_config("effective").name
    'effective'
    """
    return as_flow(config) if isinstance(config, str) else FLOWS.from_config(config)


# Velocities and terms of any flow
# --------------------------------


def evaluate(
    x: Array,
    D: Array,
    *,
    flow: FlowName | Flow = "softmax",
    values: Array | None = None,
    direction: Direction = "descent",
    causal: bool = False,
    sums: Sums = EXACT,
    **rest: Any,
) -> Evaluation:
    """Return velocities and all terms of the energy budget of several paths.

    The flows of wflow are evaluated by their compiled kernels in one pass, custom ones from their
    `velocity`. Tokens and heads are taken without checks.

    Parameters
    ----------
    x : ndarray, shape (paths, n, d)
        Tokens on the unit sphere.
    D : ndarray, shape (paths, heads, d, d)
        Interaction matrices.
    flow : {"softmax", "unnormalised", "effective"} or wflow.Flow, default "softmax"
        How the heads move the tokens.
    values : ndarray, shape (paths, heads, d, d), optional
        Values of (Q, K, V) heads, whatever the direction. None for tied heads.
    direction : {"descent", "ascent"}, default "descent"
        Sign s of the velocity: -1 or +1.
    causal : bool, default False
        Whether token i sees tokens j <= i only.
    sums : wflow.kernels.evaluate.Sums, default EXACT
        How the sums over pairs are formed.
    **rest
        Further arguments of `wflow.kernels.evaluate.evaluate`.

    Returns
    -------
    Evaluation
        Its `velocity` (paths, n, d), per unit time, and its `terms`, name -> (paths,).

    Raises
    ------
    InputError
        For velocities of a custom flow that have another shape.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x, D = wflow.tokens.uniform(n=5, d=3, seed=0), np.eye(3)[None]
    >>> found = wflow.flows.evaluate(x[None], D[None], flow="unnormalised")
    >>> found.velocity.shape
    (1, 5, 3)
    >>> terms = found.terms
    >>> bool(np.allclose(terms["dissipation"], terms["upper_gradient_sq"]))
    True
    """
    flow = as_flow(flow)
    common = {"values": values, "direction": direction, "causal": causal, "sums": sums} | rest
    if not FLOWS.is_custom(flow):
        return fused.evaluate(x, D, flow=flow.name, **common)
    # The energy and what weights and noise do to it are the same for every flow.
    terms = fused.evaluate(x, D, flow="unnormalised", **common).terms
    cloud = Cloud(x, D, values=values, causal=causal, sums=sums)
    with reading("flow", f"{flow.name}.velocity", "the cloud"):
        found = flow.velocity(cloud)
    sign = 1.0 if values is not None else DIRECTIONS[direction]
    found = returned(found, x.shape, f"{flow.name}.velocity(cloud)", finite=False)
    v = x.dtype.type(sign) * _tangential(cloud, found)
    with reading("flow", f"{flow.name}.log_metric", "the cloud"):
        log_b = flow.log_metric(cloud)
    if log_b is None:
        log_b = np.zeros(x.shape[:2])
    b = returned(log_b, x.shape[:2], f"{flow.name}.log_metric(cloud)", finite=False)
    terms |= _terms_of(cloud, v.astype(np.float64), b, sign)
    if sums.have_error:
        terms["sum_error"] = np.maximum(terms["sum_error"], cloud.error)
    mark_overflow(terms, ENERGY_TERMS, x.dtype)
    return Evaluation(v, terms)


def evaluator(flow: FlowName | Flow, **how: Any) -> Callable[..., Evaluation]:
    """Return `evaluate` with some arguments fixed, for many calls: the flow is resolved once."""
    flow = as_flow(flow)
    if FLOWS.is_custom(flow):
        return partial(evaluate, flow=flow, **how)
    return partial(fused.evaluate, flow=flow.name, **how)


def _tangential(cloud: Cloud, v: Array) -> Array:
    """Return the part of v in the tangent spaces; values that are not finite are kept."""
    with np.errstate(over="ignore", invalid="ignore"):
        v = v.astype(cloud.x.dtype, copy=False)
        part = project_unchecked(cloud.x, v)
    return np.where(np.isfinite(part), part, v)


def _terms_of(cloud: Cloud, v: Doubles, log_b: Doubles, sign: float) -> dict[str, Doubles]:
    """Return the terms that depend on the flow, from its velocity and its metric."""
    n = v.shape[1]
    scale, gradient = cloud.mean_gradient()
    with np.errstate(over="ignore", invalid="ignore"):
        speed_sq = np.einsum("pik,pik->pi", v, v)
        along = scaled(np.exp(scale), np.einsum("pik,pik->pi", gradient, v))
        # b |v|^2 is in range where |v|^2 is not.
        root = np.exp(log_b / 2)[..., None]
        weighted = scaled(root, v)
        over_b = scaled(np.exp(scale - log_b)[..., None], gradient)
        defect = np.einsum("pik,pik->pi", weighted, scaled(root, sign * v - over_b))
        return {
            "dissipation": -along.sum(axis=1) / n,
            "upper_gradient_sq": np.einsum("pik,pik->p", weighted, weighted) / n,
            "edi_defect": defect.sum(axis=1) / n,
            "speed_sq": speed_sq.sum(axis=1) / n,
            "max_speed": np.sqrt(speed_sq.max(axis=1)),
        }
