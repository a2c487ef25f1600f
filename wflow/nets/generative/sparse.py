r"""Flow with a sparse-transformer layer after each drift step: [RWPO] Algorithm 1, and its repair.

With the attention M(x; C) of a context C, the proximal map S of h lambda |x|_1 and n steps h = T/n,
[RWPO] moves tokens forwards by

    x <- x + h grad phi(x, t),    x <- x + (S(x) - M(x; X)) / 2,                          (eq. 22)

and trains with maps (23) and traces (24) that are no inverse of it. The flow here is defined by its
way back instead: for k = n, ..., 1

    x <- B(x; C_k) = x - (S(x) - M(x; C_k)) / 2,    x <- F_k(x),

where the Jacobian of B is at least 1/2 for contexts without the query, and F_k follows grad phi
from t_k back to t_{k-1}: by a Runge-Kutta step, or by x - h grad phi(x, t_{k-1}) with Euler steps.
With DM = (beta / (2h)) Cov_w(c) it has the log density

    log rho_0(x_0) + sum_k [log det DB + log det DF_k],

where log det DF_k is minus the integral of the Laplacian for Runge-Kutta steps. Samples invert both
maps: B and Euler steps by Newton's method, Runge-Kutta steps by corrections.

With the convention `attracting` the layers are reversed: samples move by B, towards the local
mean of the context, and the way to the base inverts it. (23) has that sign.

[RWPO] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein Proximal
Operator with L1 Prior", 2025.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from wflow._core.checks import check_choice, positive, switch, whole
from wflow._core.errors import AccuracyWarning, InputError, warn
from wflow.nets.checks import listed
from wflow.nets.generative.determinant import log_det_estimate, signs
from wflow.nets.generative.flows import Generated, GradientFlow, ToBase, corrected, log_normal
from wflow.nets.generative.moments import (
    KERNELS,
    PROXES,
    Kernel,
    Prox,
    Scores,
    attend,
    effective_size,
    interaction,
    proximal,
    weight,
    with_itself,
)
from wflow.nets.generative.potential import Derivatives, Potential, points
from wflow.nets.generative.runge_kutta import integrals
from wflow.nets.registry import register
from wflow.sampling.priors import L1, too_long, warn_of_absorption

__all__ = ["SparseTransformerFlow"]

Convention = Literal["inverse", "attracting", "published"]
Drift = Literal["rk4", "euler"]
Context = Literal["independent", "masked", "batch"]
Determinant = Literal["exact", "estimate"]

_CONVENTIONS = ("inverse", "attracting", "published")
_DRIFTS = ("rk4", "euler")
_CONTEXTS = ("independent", "masked", "batch")
_DETERMINANTS = ("exact", "estimate")
_TRAINABLE = ("lam", "beta")


@register
class SparseTransformerFlow(GradientFlow):
    r"""Flow along a potential with a sparse-transformer layer after each step [1]_.

    With ``convention="inverse"`` the flow is defined by the way from the data to the base: for
    k = M, ..., 1 and h = T/M

    .. math::

        x \leftarrow x - \tfrac12\big(S(x) - M(x; C_k)\big), \qquad
        x \leftarrow x - h\,\nabla\phi(x, t_{k-1}),

    where S is the proximal map of ``h lambda |x|_1``, M(x; C) the weighted mean of a context and
    C_k the context, moved by the same maps. The second map is the one of ``drift="euler"``, which
    has an inverse where no eigenvalue of ``h Hess phi`` reaches 1, and training does not keep to
    that. ``drift="rk4"``, the default, follows :math:`\dot x = \nabla\phi(x, t)` back from t_k to
    t_{k-1} by a step of the classical Runge-Kutta method, as `OTFlow` does: a flow without layers
    is an `OTFlow`. For a context that does not contain the query the flow with Euler steps has the
    exact density

    .. math::

        \log\rho_T(x) = \log\rho_0(x_0) + \sum_k \Big[\log\det\Big(I - \tfrac12 DS +
        \tfrac{\beta}{4h}\,\mathrm{Cov}_w(c)\Big) + \log\det(I - h\,\nabla^2\phi)\Big],

    and with the Runge-Kutta method minus the integral of the Laplacian, by the same method, stands
    in place of the last term: the density of the flow is then known up to the error of that method,
    which falls like h^4. Compare with more steps, or with the determinant of `to_base`, where it
    matters.

    With ``convention="attracting"`` the layers are reversed: the way to the base inverts
    x - (S(x) - M(x; C_k)) / 2 by Newton's method and subtracts its log determinant, so that a
    sample moves halfway to the local mean of the context in each layer, and not away from it. The
    gradients are those of the implicit function.

    With ``convention="published"`` it is eqs. 22 to 24 as printed, but for the sign of x in S:
    samples by (22), training by (23), which is no inverse of (22), and traces (24) in place of log
    determinants.

    Parameters
    ----------
    potential : Potential
        The potential phi; its condition makes the flow a conditional one.
    steps : int, default 8
        Number M of steps.
    t_final : float, default 1.0
        Time T of the data.
    lam : float, default 2.0
        Weight lambda of the prior, at the beginning if it is trained; 0 for none.
    beta : float, default 1.0
        Inverse temperature, at the beginning if it is trained.
    trainable : sequence of {"lam", "beta"}, default ()
        Which of the two are trained, as logarithms.
    kernel : {"exact", "laplace", "published"}, optional
        Kernel of the attention, as in `attention`. The default is `exact`, and `published` for the
        published convention.
    convention : {"inverse", "attracting", "published"}
        `inverse`, an invertible flow; `attracting`, the same with reversed layers;
        `published`, the printed algorithm.
    drift : {"rk4", "euler"}, optional
        Scheme of the drift. The default is `rk4`, and `euler` for the published convention.
    context : {"independent", "masked", "batch"}, optional
        Context in training: `independent`, the first `tokens` rows of each batch, which have no
        part in the loss; `masked`, the other tokens of the batch; `batch`, all of them. The default
        is `independent`, and `batch` for the published convention.
    tokens : int, default 256
        Number of tokens in an independent context.
    itself : bool, default False
        Let a token attend to itself beside its context, for the convention `inverse`, an
        independent context and the kernels `exact` and `laplace`. It stays where it is where the
        context is far away. Without it a sample outside of the context doubles its distance in
        every layer: with many steps take it, or few of the steps as `attended`.
    prox : {"soft", "smooth"}, optional
        Proximal map: soft thresholding, or x - lambda h tanh(x / (lambda h)), which has unbiased
        gradients in lambda. The default is `smooth` where lambda is trained, and `soft` otherwise
        and for the published convention.
    attended : sequence of int, optional
        Steps k, from 1 at the base to M at the data, that have a sparse-transformer layer; all of
        them by default.
    checkpointing : bool, default False
        Keep only the tokens between steps for the backward pass and compute the rest again.
    determinant : {"exact", "estimate"}, default "exact"
        Of a layer's Jacobian: from the covariance of the context, or estimated by Lanczos' method
        from random vectors, for the convention `inverse` and the kernels `exact` and `laplace`.
        In training the vectors are drawn for every batch; otherwise they are always the same.
    probes : int, default 8
        Number of random vectors of an estimate.

    Raises
    ------
    InputError
        For numbers out of range and unknown choices.

    Notes
    -----
    With a context that contains the query (`masked`, `batch`) the tokens of a batch are coupled:
    the determinant is that of a token's own map, and its density is none of independent samples.

    An exact determinant takes O(n m d^2 + n d^3) operations a layer for n queries and m tokens, an
    estimate O(20 n m d) for each random vector. `ToBase.log_det_error` has the standard error of
    the estimate over the vectors, without that of Lanczos' method, which shows where condition
    numbers reach a thousand. The vectors are the same for all points, so that a mean over points
    has no smaller error. ``benchmarks/rwpo.py`` compares times.

    References
    ----------
    .. [1] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein Proximal
       Operator with L1 Prior", 2025, Algorithm 1.

    Examples
    --------
    >>> import torch
    >>> from wflow.nets import generative
    >>> phi = generative.Potential(2, width=8)
    >>> flow = generative.SparseTransformerFlow(phi, steps=4, lam=0.5)
    >>> flow.set_context(torch.randn(64, 2))
    >>> flow.log_density(flow.sample(5, seed=1)).shape
    torch.Size([5])
    """

    context_x: Tensor
    context_y: Tensor
    has_context: Tensor

    def __init__(
        self,
        potential: Potential,
        *,
        steps: int = 8,
        t_final: float = 1.0,
        lam: float = 2.0,
        beta: float = 1.0,
        trainable: Iterable[str] = (),
        kernel: Kernel | None = None,
        convention: Convention = "inverse",
        drift: Drift | None = None,
        context: Context | None = None,
        tokens: int = 256,
        itself: bool = False,
        prox: Prox | None = None,
        attended: Iterable[int] | None = None,
        checkpointing: bool = False,
        determinant: Determinant = "exact",
        probes: int = 8,
    ) -> None:
        super().__init__(potential, steps, t_final)
        self.trainable = tuple(listed(trainable, "trainable"))
        for name in self.trainable:
            check_choice("trainable", name, _TRAINABLE)
        check_choice("convention", convention, _CONVENTIONS)
        self.convention = convention
        closest: Kernel = "published" if convention == "published" else "exact"
        self.kernel: Kernel = closest if kernel is None else kernel
        check_choice("kernel", self.kernel, KERNELS)
        usual: Drift = "euler" if convention == "published" else "rk4"
        self.drift: Drift = usual if drift is None else drift
        check_choice("drift", self.drift, _DRIFTS)
        if convention == "published" and self.drift != "euler":
            raise InputError(
                "drift is 'rk4', and the published algorithm takes Euler steps: expected 'euler'"
            )
        first: Context = "batch" if convention == "published" else "independent"
        self.context: Context = first if context is None else context
        check_choice("context", self.context, _CONTEXTS)
        if convention == "attracting" and self.context != "independent":
            raise InputError(
                f"context is {self.context!r}, and a layer that attracts is inverted for tokens "
                "outside of its context: expected 'independent'"
            )
        if convention == "published" and self.context == "independent":
            raise InputError(
                "context is 'independent', and the published algorithm attends to its own batch: "
                "expected 'batch' or 'masked'"
            )
        self.itself = switch(itself, "itself")
        if self.itself and (
            convention != "inverse"
            or self.context != "independent"
            or self.kernel == "published"
            or determinant == "estimate"
        ):
            raise InputError(
                "itself is True: expected the convention 'inverse', the context 'independent', the "
                "kernel 'exact' or 'laplace', and exact determinants"
            )
        smooth = "lam" in self.trainable and convention != "published"
        usual_map: Prox = "smooth" if smooth else "soft"
        self.prox: Prox = usual_map if prox is None else prox
        check_choice("prox", self.prox, PROXES)
        self.attended = None if attended is None else tuple(listed(attended, "attended"))
        for k in self.attended or ():
            whole(k, "a step of attended", most=self.steps)
        self.checkpointing = switch(checkpointing, "checkpointing")
        check_choice("determinant", determinant, _DETERMINANTS)
        if determinant == "estimate" and (convention != "inverse" or self.kernel == "published"):
            raise InputError(
                f"determinant is 'estimate', convention {convention!r} and kernel {self.kernel!r}: "
                "expected the convention 'inverse' and the kernel 'exact' or 'laplace', whose "
                "Jacobians are symmetric"
            )
        self.determinant, self.probes = determinant, whole(probes, "probes", 2)
        self._lam, self._beta = weight(lam, "lam", zero=True), weight(beta, "beta")
        if "lam" in self.trainable:
            self.log_lam = nn.Parameter(torch.tensor(math.log(positive(lam, "a trained lam"))))
        if "beta" in self.trainable:
            self.log_beta = nn.Parameter(torch.tensor(math.log(beta)))
        count = whole(tokens, "tokens")
        self.register_buffer("context_x", torch.zeros(count, self.dim))
        self.register_buffer("context_y", torch.zeros(count, potential.condition))
        self.register_buffer("has_context", torch.zeros((), dtype=torch.bool))
        self._warned = False

    @property
    def lam(self) -> float:
        """Present weight of the prior."""
        return float(torch.as_tensor(self._weights()[0]).detach())

    @property
    def beta(self) -> float:
        """Present inverse temperature."""
        return float(torch.as_tensor(self._weights()[1]).detach())

    @property
    def tokens(self) -> int:
        """Number of tokens in an independent context."""
        return len(self.context_x)

    def set_context(self, x: Tensor, y: Tensor | None = None) -> None:
        """Store a context for densities and samples; it is saved with the weights.

        Parameters
        ----------
        x : Tensor, shape (tokens, dim)
            Data, best such as the network was not trained on.
        y : Tensor, shape (condition,) or (tokens, condition), optional
            Features, of all tokens or of each.

        Raises
        ------
        InputError
            For tensors of other shapes, types or devices.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> flow = generative.SparseTransformerFlow(generative.Potential(2, width=8))
        >>> flow.set_context(torch.randn(32, 2))
        >>> flow.tokens
        32
        """
        x = points(x, "x", self.dim, self.potential.w)
        if not bool(torch.isfinite(x).all()):
            raise InputError("x holds values that are not finite: expected finite tokens")
        y = self.potential.features(y, len(x))
        self.context_x = x.detach().clone()
        none = x.new_zeros(len(x), 0)
        self.context_y = none if y is None else y.detach().expand(len(x), -1).clone()
        self.has_context = torch.ones_like(self.has_context)

    def forward(self, x: Tensor, y: Tensor | None = None) -> ToBase:
        """Follow a batch to the base with the context of the training, as `Likelihood` calls it.

        Parameters
        ----------
        x : Tensor, shape (n, dim)
            Data. In training the first `tokens` rows are the context of a flow whose contexts are
            independent.
        y : Tensor, shape (condition,) or (n, condition), optional
            Features, of all points or of each.

        Returns
        -------
        ToBase
            As of `to_base`, without the rows of the context.

        Raises
        ------
        InputError
            For tensors of other shapes, types or devices, and a batch without other rows.
        """
        if self.context != "independent" or not self.training:
            return self.to_base(x, y)
        x = points(x, "x", self.dim, self.potential.w)
        check_rows(len(x), self.tokens)
        y = self.potential.features(y, len(x))
        each = y is not None and y.ndim == 2
        context, others = (
            (x[rows], y[rows] if each and y is not None else y)
            for rows in (slice(self.tokens), slice(self.tokens, None))
        )
        return self.to_base(*others, context=context)

    def to_base(
        self,
        x: Tensor,
        y: Tensor | None = None,
        *,
        context: Tensor | tuple[Tensor, Tensor | None] | None = None,
    ) -> ToBase:
        r"""Follow data to the base, with log determinant and penalties.

        Parameters
        ----------
        x : Tensor, shape (n, dim)
            Data.
        y : Tensor, shape (condition,) or (n, condition), optional
            Features, of all points or of each.
        context : Tensor, shape (m, dim), or a pair of it and its features, optional
            Data that are the context. By default it is that of `set_context`; without one, and in
            training, a flow whose context is not independent takes the batch x.

        Returns
        -------
        ToBase
            Points, log determinant, transport cost and penalty. With the convention `inverse` the
            last two are those of OT-Flow, ``h sum |grad phi|^2 / 2`` and
            ``h sum |d phi/dt + |grad phi|^2 / 2|``; with `published`, log_det has the traces of
            (24), and the costs are (19) and (21) with the Huber function of the prior.

        Raises
        ------
        InputError
            For tensors of other shapes, types or devices, and a context that is missing.

        Warns
        -----
        UserWarning
            Where a layer folds: its determinant is not positive, so that it has no inverse. In
            training once; the share of tokens is in the result.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> flow = generative.SparseTransformerFlow(generative.Potential(2, width=8), steps=2)
        >>> flow.to_base(torch.zeros(3, 2), context=torch.randn(32, 2)).z.shape
        torch.Size([3, 2])
        """
        x = points(x, "x", self.dim, self.potential.w)
        path = self._path_of(context)
        total = _rest(x)
        for k in range(self.steps, 0, -1):
            tokens = None if path is None else path[k - 1]
            total = total.then(self._kept(self._back, k, total.x, y, tokens))
        share = total.folded.to(x).mean()
        self._warn(float(share))
        sums = total.log_det, total.transport, total.hjb
        return ToBase(total.x, *sums, share, total.error)

    def from_base(
        self,
        z: Tensor,
        y: Tensor | None = None,
        *,
        context: Tensor | tuple[Tensor, Tensor | None] | None = None,
    ) -> Tensor:
        """Follow points of the base to the data.

        Parameters
        ----------
        z : Tensor, shape (n, dim)
            Points at the base.
        y : Tensor, shape (condition,) or (n, condition), optional
            Features, of all points or of each.
        context : Tensor, shape (m, dim), or a pair of it and its features, optional
            Data that are the context; by default that of `set_context`. With the convention
            `published` the tokens are their own context, as in (22).

        Returns
        -------
        Tensor, shape (n, dim)
            Data; but with the convention `published` the inverse of `to_base` to rounding.

        Raises
        ------
        InputError
            For tensors of other shapes, types or devices, and a context that is missing.

        Warns
        -----
        UserWarning
            Where Newton's method found no point: a drift step is too long for the potential. With
            `published`, where a layer folds, with the share of its tokens, and where its steps
            absorb coordinates; the other conventions have layers with an inverse.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> phi = generative.Potential(2, width=8)
        >>> flow = generative.SparseTransformerFlow(phi).double()
        >>> z, context = flow.draws(3, seed=0), torch.randn(32, 2, dtype=torch.float64)
        >>> x = flow.from_base(z, context=context)
        >>> bool((flow.to_base(x, context=context).z - z).abs().max() < 1e-12)
        True
        """
        x = points(z, "z", self.dim, self.potential.w)
        y = self.potential.features(y, len(x))
        if self.convention == "published":
            x, folded = self._printed_points(x, y)
            self._warn(float(folded.to(x).mean()))
            prior = L1(self.lam)
            if too_long(prior, h=self._h, beta=self.beta):
                warn_of_absorption(prior, h=self._h, beta=self.beta)
            return x
        path = self._path_of(context, own=False)
        assert path is not None
        pieces, lost = [], 0
        size = max(1, _ENTRIES // self.dim**2)
        for start in range(0, len(x), size):
            rows = slice(start, start + size)
            piece, failed = self._forwards(x[rows], _rows_of(y, rows), path)
            pieces.append(piece)
            lost += failed
        if lost:
            warn(
                f"{lost} of {len(x)} points have no inverse that Newton's method finds: raise "
                "steps, or train with a larger weight of the transport",
                AccuracyWarning,
            )
        return torch.cat(pieces)

    def generate(
        self,
        z: Tensor,
        y: Tensor | None = None,
        *,
        context: Tensor | tuple[Tensor, Tensor | None] | None = None,
    ) -> Generated:
        r"""Follow points of the base to samples, with their density, for a backward pass.

        Parameters
        ----------
        z : Tensor, shape (n, dim)
            Points at the base.
        y : Tensor, shape (condition,) or (n, condition), optional
            Features, of all points or of each.
        context : Tensor, shape (m, dim), or a pair of it and its features, optional
            As in `from_base`.

        Returns
        -------
        Generated
            Samples and log densities; a backward pass goes through both, to the weights of the
            flow.

        Raises
        ------
        InputError
            For tensors of other shapes, types or devices, and a context that is missing.

        Warns
        -----
        UserWarning
            Where a layer of `published` folds, or an Euler step has no inverse, with the share of
            the tokens; in training once.

        Notes
        -----
        With ``drift="rk4"`` the equation between the layers is integrated forwards; the density is
        that of `log_density` up to the error of the scheme. The layers of the convention `inverse`,
        and the steps of ``drift="euler"``, are solved as f(x) = z by Newton's method, without a
        graph, and one more step

        .. math:: x = x_* + Df(x_*)^{-1} (z - f_\theta(x_*))

        with the derivative held fixed has the gradient of the implicit function. Layers of the
        convention `attracting` are maps forwards. With `published` it is (22) with the traces of
        (24), forwards, as in [1]_, section 4.2: what it sums is no log density.

        References
        ----------
        .. [1] Han, Osher, Li, "Sparse Transformer Architectures via Regularized Wasserstein
           Proximal Operator with L1 Prior", 2025, Algorithm 1.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> flow = generative.SparseTransformerFlow(generative.Potential(2, width=8), steps=2)
        >>> found = flow.generate(torch.randn(5, 2), context=torch.randn(32, 2))
        >>> found.x.requires_grad
        True
        """
        x = points(z, "z", self.dim, self.potential.w)
        y = self.potential.features(y, len(x))
        path = self._path_of(context, own=False)
        total = _rest(x)
        for k in range(1, self.steps + 1):
            at = total.x
            total = total.then(
                self._printed(k, at, y) if path is None else self._onwards(k, at, y, path[k - 1])
            )
        self._warn(float(total.folded.to(x).mean()))
        return Generated(total.x, log_normal(x) - total.log_det, total.transport, total.hjb)

    @torch.no_grad()
    def ess(
        self,
        x: Tensor,
        y: Tensor | None = None,
        *,
        context: Tensor | tuple[Tensor, Tensor | None] | None = None,
    ) -> Tensor:
        r"""Return the effective sample size ``1 / sum_l w_l^2`` of attention towards the base.

        Parameters
        ----------
        x : Tensor, shape (n, dim)
            Data.
        y : Tensor, shape (condition,) or (n, condition), optional
            Features, of all points or of each.
        context : Tensor, shape (m, dim), or a pair of it and its features, optional
            As in `to_base`.

        Returns
        -------
        Tensor, shape (steps, n)
            From 1, a copy of a token, to the number of tokens, their plain mean; row k - 1 is that
            of step k, and NaN for steps without attention.

        Raises
        ------
        InputError
            For tensors of other shapes, types or devices, and a context that is missing.

        Examples
        --------
        >>> import torch
        >>> from wflow.nets import generative
        >>> flow = generative.SparseTransformerFlow(generative.Potential(2, width=8), steps=2)
        >>> flow.ess(torch.zeros(3, 2), context=torch.randn(32, 2)).shape
        torch.Size([2, 3])
        """
        x = points(x, "x", self.dim, self.potential.w)
        path = self._path_of(context)
        sizes = x.new_full((self.steps, len(x)), math.nan)
        for k in range(self.steps, 0, -1):
            tokens = None if path is None else path[k - 1]
            if self._attends(k):
                keys = x if tokens is None else tokens
                at = self._released(x, keys) if self.convention == "attracting" else x
                alone = tokens is None and self.context == "masked"
                scores = self._scores(at, keys)
                found = effective_size(scores, keys, alone)
                if self.itself:
                    moments = attend(scores, keys, "mean", alone)
                    share = with_itself(moments, scores, at, keys)[1]
                    found = 1 / (share.square() + (1 - share).square() / found)
                sizes[k - 1] = found
            x = self._back(k, x, y, tokens).x
        return sizes

    def extra_repr(self) -> str:
        """Describe the layer, for printing.

        Returns
        -------
        str
            Options by name.
        """
        return (
            f"{super().extra_repr()}, kernel={self.kernel}, convention={self.convention}, "
            f"context={self.context}, prox={self.prox}"
        )

    # One step
    # --------

    @property
    def _h(self) -> float:
        return self.t_final / self.steps

    def _attends(self, k: int) -> bool:
        return self.attended is None or k in self.attended

    def _weights(self) -> tuple[float | Tensor, float | Tensor]:
        """Return lambda and beta: numbers, or tensors where they are trained."""
        lam = self.log_lam.exp() if "lam" in self.trainable else self._lam
        beta = self.log_beta.exp() if "beta" in self.trainable else self._beta
        return lam, beta

    def _scores(self, x: Tensor, context: Tensor) -> Scores:
        lam, beta = self._weights()
        forms = self.kernel, self.prox
        return interaction(x, context, self._h, lam, beta, *forms)

    def _layer(
        self,
        x: Tensor,
        context: Tensor,
        *,
        alone: bool = False,
        itself: bool = False,
        jacobian: bool = False,
    ) -> "_Layer":
        """Return the layer's S(x) - M(x; C) and, where asked for, the Jacobians of its parts."""
        scores = self._scores(x, context)
        shrunk, slope = proximal(x, self._weights()[0] * self._h, self.prox)
        at, share = attend(scores, context, "covariance" if jacobian else "mean", alone), None
        if itself:
            at, share = with_itself(at, scores, x, context)
        if at.covariance is None:
            return _Layer(shrunk - at.mean, slope, None)
        steep = scores.slope
        if isinstance(steep, Tensor) and steep.ndim:
            steep = steep[:, None]  # of the columns
        attention = at.covariance * steep
        if share is not None:
            attention = attention + torch.diag_embed(share[:, None].expand_as(x))
        return _Layer(shrunk - at.mean, slope, attention)

    def _printed_costs(self, x: Tensor, at: Derivatives) -> tuple[Tensor, Tensor]:
        """Return the terms of (19) and (21) at tokens, with the Huber function of the prior."""
        assert at.laplacian is not None
        lam, beta = self._weights()
        shrunk, slope = proximal(x, lam * self._h, self.prox)
        velocity = at.gradient - (x - shrunk) / self._h  # minus the gradient of the Huber function
        drift = at.laplacian - (1 - slope).sum(1) / self._h
        energy = velocity.square().sum(1) / 2
        return energy, (at.time + energy + drift / beta).square()

    def _estimated(
        self, k: int, x: Tensor, keys: Tensor, alone: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens after the layer of step k to the base, log determinant and error."""
        scores = self._scores(x, keys)
        shrunk, slope = proximal(x, self._weights()[0] * self._h, self.prox)
        vectors = signs(self.dim, self.probes, x, None if self.training else k)
        found = log_det_estimate(scores, keys, 1 - slope / 2, scores.slope / 2, vectors, alone)
        return x - (shrunk - found.mean) / 2, found.log_det, found.error

    def _back(self, k: int, x: Tensor, y: Tensor | None, context: Tensor | None) -> "_Step":
        """Compute step k towards the base."""
        published, attracting = (self.convention == name for name in ("published", "attracting"))
        h, sign = self._h, 1.0 if published else -1.0
        log_det = x.new_zeros(len(x))
        folded = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        error = torch.zeros_like(log_det)
        alone = context is None and self.context == "masked"
        keys = x if context is None else context
        if self._attends(k) and self.determinant == "estimate":
            x, log_det, error = self._estimated(k, x, keys, alone)
        elif self._attends(k):
            x = self._released(x, keys) if attracting else x
            layer = self._layer(x, keys, alone=alone, itself=self.itself, jacobian=True)
            assert layer.attention is not None
            x = x if attracting else x + sign / 2 * layer.change
            matrix = identity(layer.attention, layer.slope, sign / 2)
            value, folded = log_abs_det(matrix)
            log_det = layer.trace() / 2 if published else -value if attracting else value
        if self.drift == "rk4":
            x, slopes, bent = self._stages(len(x), y).step(x, k * h, -h, laplacian=True)
            assert bent is not None
            laplacian, energy, residual = integrals(slopes, bent, h)
            return _Step(x, log_det - laplacian, energy, residual, folded, error)
        t = (k - 0.5 if published else k - 1.0) * h
        at = self.potential.derivatives(x, t, y, hessian=True)
        assert at.hessian is not None and at.laplacian is not None
        value, turned = log_abs_det(drift_jacobian(at.hessian, h))
        log_det = log_det - h * at.laplacian if published else log_det + value
        if published:
            energy, residual = self._printed_costs(x, at)
        else:
            energy = at.gradient.square().sum(1) / 2
            residual = (at.time + energy).abs()
        folded = folded | turned
        return _Step(x - h * at.gradient, log_det, h * energy, h * residual, folded, error)

    def _moved(self, k: int, c: Tensor, y: Tensor | None) -> Tensor:
        """Compute step k of a context, which is its own context."""
        if self._attends(k):
            attracting = self.convention == "attracting"
            c = self._released(c, c) if attracting else c - self._layer(c, c).change / 2
        if self.drift == "rk4":
            return self._stages(len(c), y).step(c, k * self._h, -self._h, laplacian=False)[0]
        at = self.potential.derivatives(c, (k - 1) * self._h, y, laplacian=False)
        return c - self._h * at.gradient

    def _path_of(self, given: Any, *, own: bool = True) -> list[Tensor] | None:
        """Return the contexts C_1, ..., C_M; None where the tokens are their own."""
        if self.convention == "published":
            if given is not None:
                raise InputError(
                    "context is given, and in the published convention the tokens are their own: "
                    "leave it out"
                )
            return None
        kept = bool(self.has_context)
        if given is None and own and self.context != "independent" and (self.training or not kept):
            return None
        if given is None and not kept:
            raise InputError(
                "the flow has no context: give one here, or keep one with set_context(x)"
            )
        x, y = (self.context_x, self.context_y) if given is None else _pair(given)
        c = points(x, "context", self.dim, self.potential.w)
        y = self.potential.features(y if self.potential.condition else None, len(c))
        path = [c]
        for k in range(self.steps, 1, -1):
            c = self._kept(self._moved, k, c, y)
            path.append(c)
        return path[::-1]

    def _forwards(self, x: Tensor, y: Tensor | None, path: list[Tensor]) -> tuple[Tensor, int]:
        """Compute all steps from the base to the data; return also the number of lost points."""
        lost = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for k in range(1, self.steps + 1):
            x, failed = self._drifted(x, y, k)
            lost |= failed
            if not self._attends(k):
                continue
            if self.convention == "attracting":
                x = x - self._layer(x, path[k - 1]).change / 2
                continue
            x, failed = self._solved(x, path[k - 1])
            lost |= failed
        return x, int(lost.sum())

    def _drifted(self, x: Tensor, y: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
        """Invert the drift of step k towards the base; return also rows without an inverse."""
        h, t = self._h, (k - 1) * self._h
        if self.drift == "rk4":
            stages = self._stages(len(x), y)

            def forwards(at: Tensor) -> Tensor:
                return stages.step(at, t, h, laplacian=False)[0]

            def backwards(at: Tensor) -> Tensor:
                return stages.step(at, t + h, -h, laplacian=False)[0]

            return corrected(forwards(x), forwards, backwards)

        start = x + h * self.potential.derivatives(x, t, y, laplacian=False).gradient
        return newton(lambda at: self._euler(at, y, k), x, start)

    def _euler(self, x: Tensor, y: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
        """Compute the Euler step k to the base, x - h grad phi(x, t_{k-1}), and its Jacobian."""
        at = self.potential.derivatives(x, (k - 1) * self._h, y, hessian=True)
        assert at.hessian is not None
        return x - self._h * at.gradient, drift_jacobian(at.hessian, self._h)

    def _attracted(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return B(x) = x - (S(x) - M(x; C)) / 2 and its Jacobian."""
        found = self._layer(x, context, itself=self.itself, jacobian=True)
        assert found.attention is not None
        return x - found.change / 2, identity(found.attention, found.slope, -0.5)

    def _solved(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Solve B(found) = x, without gradients; and the rows without a solution."""
        with torch.no_grad():
            start = x + self._layer(x, context, itself=self.itself).change / 2
            return newton(lambda at: self._attracted(at, context), x, start)

    def _released(self, x: Tensor, context: Tensor) -> Tensor:
        """Solve B(found) = x, with the gradients of the implicit function."""
        found, _ = self._solved(x, context)
        if not torch.is_grad_enabled():
            return found
        with torch.no_grad():
            jacobian = self._attracted(found, context)[1]
        value = found - self._layer(found, context, itself=self.itself).change / 2
        return implicit(found, jacobian, x - value)

    def _onwards(self, k: int, x: Tensor, y: Tensor | None, context: Tensor) -> "_Step":
        """Compute step k to the data; a step defined by its inverse has an implicit derivative."""
        drift = self._drift_along if self.drift == "rk4" else self._drift_solved
        step = drift(k, x, y)
        if not self._attends(k):
            return step
        if self.convention == "attracting":
            x, jacobian = self._attracted(step.x, context)
            return step._replace(x=x, log_det=step.log_det + log_abs_det(jacobian)[0])
        x = self._released(step.x, context)
        value, _ = log_abs_det(self._attracted(x, context)[1])
        return step._replace(x=x, log_det=step.log_det - value)

    def _drift_along(self, k: int, x: Tensor, y: Tensor | None) -> "_Step":
        """Integrate the equation over step k to the data; nowhere without an inverse."""
        h = self._h
        x, slopes, bent = self._stages(len(x), y).step(x, (k - 1) * h, h, laplacian=True)
        assert bent is not None
        laplacian, energy, residual = integrals(slopes, bent, h)
        return _rest(x)._replace(log_det=laplacian, transport=energy, hjb=residual)

    def _drift_solved(self, k: int, x: Tensor, y: Tensor | None) -> "_Step":
        """Invert the Euler step k to the base, with the gradients of the implicit function."""
        h = self._h
        with torch.no_grad():
            found, failed = self._drifted(x, y, k)
        value, jacobian = self._euler(found, y, k)
        x = implicit(found, jacobian.detach(), x - value)
        at = self.potential.derivatives(x, (k - 1) * h, y, hessian=True)
        assert at.hessian is not None
        energy = at.gradient.square().sum(1) / 2
        change, turned = log_abs_det(drift_jacobian(at.hessian, h))
        residual = (at.time + energy).abs()
        none = torch.zeros_like(energy)
        return _Step(x, -change, h * energy, h * residual, failed | turned, none)

    def _printed(self, k: int, x: Tensor, y: Tensor | None) -> "_Step":
        """Compute step k of (22) to the data with the traces of (24), by own contexts."""
        h = self._h
        at = self.potential.derivatives(x, (k - 1) * h, y)
        assert at.laplacian is not None
        energy, residual = self._printed_costs(x, at)
        x, log_det = x + h * at.gradient, h * at.laplacian
        folded = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        if self._attends(k):
            layer = self._layer(x, x, alone=self.context == "masked", jacobian=True)
            assert layer.attention is not None
            x, log_det = x + layer.change / 2, log_det + layer.trace() / 2
            with torch.no_grad():
                folded = log_abs_det(identity(layer.attention, layer.slope, 0.5))[1]
        return _Step(x, log_det, h * energy, h * residual, folded, torch.zeros_like(energy))

    def _printed_points(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute all steps of (22) from the base to the data; return also the folded tokens."""
        folded = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for k in range(1, self.steps + 1):
            at = self.potential.derivatives(x, (k - 1) * self._h, y, laplacian=False)
            x = x + self._h * at.gradient
            if self._attends(k):
                folded |= self._folds(x)
                x = x + self._layer(x, x, alone=self.context == "masked").change / 2
        return x, folded

    @torch.no_grad()
    def _folds(self, x: Tensor) -> Tensor:
        """Return where I + (DS - DM)/2 has a determinant <= 0, tokens being their own context."""
        alone, scores = self.context == "masked", self._scores(x, x)
        variance = attend(scores, x, "variance", alone).covariance
        assert variance is not None
        folded = (variance * scores.slope).sum(1) >= 2  # an eigenvalue of DM is 2 or more
        some = torch.ones_like(folded) if alone else folded.clone()
        if bool(folded.any()):
            layer = self._layer(x[some], x, alone=alone, jacobian=True)
            assert layer.attention is not None
            folded[some] = log_abs_det(identity(layer.attention, layer.slope, 0.5))[1]
        return folded

    def _kept(self, step: Callable[..., Any], *arguments: Any) -> Any:
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(step, *arguments, use_reentrant=False)
        return step(*arguments)

    def _warn(self, share: float) -> None:
        if not share or (self.training and self._warned):
            return
        self._warned = self._warned or self.training
        if self.convention == "published":
            text = (
                "the published layers fold: the map has a determinant <= 0 in some step at "
                f"{share:.2%} of the tokens, so that it has no inverse there and what (24) sums "
                "is no log density; the convention 'inverse' has one"
            )
        else:
            text = (
                f"h Hess phi exceeds 1 in some step at {share:.2%} of the tokens, so that the "
                "flow has no inverse there: raise steps, or the weight of the transport"
            )
        warn(text, AccuracyWarning)


class _Layer(NamedTuple):
    """S(x) - M(x; C), the diagonal of DS, and DM where it was asked for."""

    change: Tensor
    slope: Tensor
    attention: Tensor | None

    def trace(self) -> Tensor:
        """Return the trace of DS - DM, in (24)."""
        assert self.attention is not None
        return self.slope.sum(1) - self.attention.diagonal(dim1=1, dim2=2).sum(1)


class _Step(NamedTuple):
    """Tokens after a step, to the base or to the data, and its terms."""

    x: Tensor
    log_det: Tensor
    transport: Tensor
    hjb: Tensor
    folded: Tensor
    error: Tensor  # standard error of log_det

    def then(self, step: "_Step") -> "_Step":
        """Return both steps as one; their errors are independent."""
        return _Step(
            step.x,
            self.log_det + step.log_det,
            self.transport + step.transport,
            self.hjb + step.hjb,
            self.folded | step.folded,
            torch.hypot(self.error, step.error),
        )


def _rest(x: Tensor) -> _Step:
    """Return a step that does not move the tokens."""
    zero = x.new_zeros(len(x))
    return _Step(x, zero, zero, zero, torch.zeros_like(zero, dtype=torch.bool), zero)


# Small matrices
# --------------

_ENTRIES = 2**22  # of the Jacobians that are held at a time
_NEWTON = 60
_HALVINGS = 30


def log_abs_det(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithm of the modulus of determinants, and where they are not positive."""
    if matrix.shape[1] > 3:
        sign, value = torch.linalg.slogdet(matrix)
        return value, sign <= 0
    m = matrix.permute(1, 2, 0)
    if len(m) == 1:
        det = m[0, 0]
    elif len(m) == 2:
        det = m[0, 0] * m[1, 1] - m[0, 1] * m[1, 0]
    else:
        det = (torch.linalg.cross(m[0], m[1], dim=0) * m[2]).sum(0)
    return det.abs().log(), det.detach() <= 0


def drift_jacobian(hessian: Tensor, h: float) -> Tensor:
    """Return I - h Hess phi, of an Euler step to the base."""
    return torch.eye(hessian.shape[-1], dtype=hessian.dtype, device=hessian.device) - h * hessian


def identity(attention: Tensor, slope: Tensor, share: float) -> Tensor:
    """Return I + share (DS - DM)."""
    return torch.diag_embed(1 + share * slope) - share * attention


def implicit(found: Tensor, jacobian: Tensor, left: Tensor) -> Tensor:
    """Return the given solution, with the gradient of the implicit function.

    It is one more step of Newton's method with a fixed Jacobian: what is left to solve is zero to
    rounding, its gradient is not.
    """
    step, _ = torch.linalg.solve_ex(jacobian, left)
    return found + step


@torch.no_grad()
def newton(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], target: Tensor, start: Tensor
) -> tuple[Tensor, Tensor]:
    """Solve function(x) = target by rows, with halved steps; and the rows without a solution.

    function : values (n, d) and Jacobians (n, d, d)
    """
    floor = 64 * torch.finfo(start.dtype).eps * (1 + target.abs().amax(1))
    x = start
    value, jacobian = function(x)
    residual = target - value
    size = residual.abs().amax(1)
    stuck = torch.zeros_like(size, dtype=torch.bool)  # no shorter step is better: at its rounding
    for _ in range(_NEWTON):
        step, _ = torch.linalg.solve_ex(jacobian, residual)
        share = torch.ones_like(size)
        for _ in range(_HALVINGS):
            tried = x + share[:, None] * step
            value, slopes = function(tried)
            left = target - value
            length = left.abs().amax(1)
            worse = ~(length < size) & (size > floor) & ~stuck
            if not bool(worse.any()):
                break
            share = torch.where(worse, share / 2, share)
        better = length < size
        stuck |= ~better & (size > floor)
        if not bool(better.any()):
            break
        x = torch.where(better[:, None], tried, x)
        residual = torch.where(better[:, None], left, residual)
        jacobian = torch.where(better[:, None, None], slopes, jacobian)
        size = torch.where(better, length, size)
    return x, ~(size <= 1e3 * floor)


def check_rows(rows: int, tokens: int) -> None:
    """Check that a batch whose first rows are the context has others."""
    if rows <= tokens:
        raise InputError(
            f"the batch has {rows} rows, and the first {tokens} are the context: expected more of "
            "them, or fewer tokens"
        )


def _pair(given: Any) -> tuple[Any, Any]:
    """Return a context and its features."""
    if isinstance(given, Tensor):
        return given, None
    parts = listed(given, "context")
    if len(parts) != 2:
        raise InputError(f"context has {len(parts)} parts: expected tokens, or tokens and features")
    return parts[0], parts[1]


def _rows_of(y: Tensor | None, rows: slice) -> Tensor | None:
    return y if y is None or y.ndim == 1 else y[rows]
