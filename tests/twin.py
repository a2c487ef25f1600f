"""The same sums as the compiled kernel, written plainly with NumPy in extended precision."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

Extended = NDArray[np.longdouble]


def unit(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def symmetric(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    z = rng.normal(size=shape)
    return z + np.swapaxes(z, -1, -2)


def same(found: Any, expected: Any) -> bool:
    """Return whether the arrays of two results are equal to the bit."""
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def by_threads(call: Callable[[], Any]) -> list[Any]:
    """Return results of a call with one thread, with two and with all."""
    before = numba.get_num_threads()
    results = []
    try:
        for threads in sorted({1, min(2, before), before}):
            numba.set_num_threads(threads)
            results.append(call())
    finally:
        numba.set_num_threads(before)
    return results


def torch_velocity(x, D, *, values=None, flow="softmax", sign=1.0, causal=False):
    """Return the velocities (n, d) of one cloud, by their definition, for automatic derivatives."""
    torch = pytest.importorskip("torch")
    scores = torch.einsum("ia,hab,jb->hij", x, D, x)
    if causal:
        hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    log_m = torch.logsumexp(scores, -1, keepdim=True) - np.log(len(x))
    factor = torch.ones_like(log_m) if flow == "softmax" else torch.exp(log_m)
    if flow == "effective":
        factor = factor * torch.exp(-log_m).mean(0)
    turned = torch.softmax(scores, -1) @ x @ (D if values is None else values).transpose(-1, -2)
    v = sign * (factor * turned).mean(0)
    return v - (v * x).sum(-1, keepdim=True) * x


class Twin:
    """Every quantity of docs/theory/setting.md and energy.md for one cloud, without tricks."""

    def __init__(
        self,
        x: ArrayLike,
        D: ArrayLike,
        *,
        values: ArrayLike | None = None,
        flow: str = "softmax",
        sign: float = -1.0,
        causal: bool = False,
    ) -> None:
        self.x: Extended = np.asarray(x, np.longdouble)
        self.D: Extended = np.asarray(D, np.longdouble)
        n, heads = len(self.x), len(self.D)
        scores = self.pairs(self.D)
        if causal:
            scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
        self.shift = scores.max(axis=2, keepdims=True)
        self.U = np.exp(scores - self.shift)  # relative to exp(shift)
        self.log_m = self.shift[..., 0] + np.log(self.U.sum(2) / n)
        mean = np.einsum("hij,jb->hib", self.U, self.x) / self.U.sum(2)[..., None]
        self.attention = np.einsum("hab,hib->hia", self.D if values is None else values, mean)
        self.attention -= np.einsum("hia,ia->hi", self.attention, self.x)[..., None] * self.x
        # gradient / b and b |v|^2 with one scale per token, so that large scores cancel first
        top = self.log_m.max(0)
        low = self.log_m.min(0)
        self.log_b = low - np.log(np.mean(np.exp(low - self.log_m), 0))
        weight = np.exp(self.log_m - top)[..., None]
        self.log_gradient = top
        self.gradient = np.mean(weight * self.attention, 0)  # times exp(top)
        if flow == "softmax":
            self.velocity = sign * self.attention.mean(0)
        elif flow == "effective":
            self.velocity = sign * self.gradient * np.exp(top - self.log_b)[:, None]
        else:
            self.velocity = sign * self.gradient * np.exp(top)[:, None]
            self.log_b = np.zeros_like(self.log_b)
        self.heads, self.n = heads, n

    def pairs(self, matrices: ArrayLike) -> Extended:
        """Return <x_i, A_h x_j>, (heads, n, n)."""
        return self.x @ np.asarray(matrices, np.longdouble) @ self.x.T

    def pair_sum(self, factor: Extended) -> np.longdouble:
        """Return 1/(2 H n^2) sum_hij U_hij factor_hij."""
        full = self.U * np.exp(self.shift) * factor
        return full.sum() / (2 * self.heads * self.n**2)

    def terms(self, drift=None, noise=None, sigma2=None, moved=None) -> dict[str, np.longdouble]:
        gram = self.x @ self.x.T
        speed_sq = (self.velocity**2).sum(1)
        gbar = self.gradient * np.exp(self.log_gradient)[:, None]
        terms = {
            "energy": self.pair_sum(np.longdouble(1)),
            "dissipation": -(gbar * self.velocity).sum() / self.n,
            "upper_gradient_sq": (np.exp(self.log_b) * speed_sq).mean(),
            "speed_sq": speed_sq.mean(),
        }
        for name, given in (
            ("weight_power", drift), ("backward_work", moved), ("martingale", noise)
        ):  # fmt: skip
            if given is not None:
                terms[name] = self.pair_sum(self.pairs(given))
        if noise is not None and sigma2 is not None:
            terms["second_variation"] = self.pair_sum(self.pairs(noise) ** 2 / 2)
        if sigma2 is not None:
            sizes = np.asarray(sigma2)[:, None, None]
            terms["ito_power"] = self.pair_sum(sizes * (1 + gram**2) / 4)
        return terms
