"""The particle sums with PyTorch as matrix products of tiles: for large d, or without Triton.

Kernel values are formed in tiles of (paths, heads, i, j), whose size does not grow with n, and
folded at once into the running sums over heads of every token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

# What is kept of every token after the attention (d) and the gradient (d): see `pairs.headsums`.
SCALARS = (
    "inverse", "e_gradient", "e_inverse", "energy", "power", "ito", "increment", "second",
    "work", "largest",
)  # fmt: skip
# Kernel values of a tile: 4 MB of doubles on the CPU, in cache; 512 MB on a GPU, or a 32nd of a
# small one. Tokens j of a tile, and heads that it holds at least where there are as many.
_TILE_CPU, _TILE_CUDA, _TILE_SHARE = 2**19, 2**26, 32
_COLUMNS, _HEADS = 1024, 8


@contextmanager
def _whole_products(x: torch.Tensor) -> Iterator[None]:
    """Keep matrix products from shortened formats that a program may have allowed: autocast, and
    in single precision TF32 and the like."""
    with torch.autocast(x.device.type, enabled=False):
        if x.dtype == torch.float64:
            yield
            return
        # PyTorch from 2.9 has a setting per library, and may refuse to read the common one.
        library = torch.backends.cuda if x.is_cuda else torch.backends.mkldnn
        settings: Any = getattr(library, "matmul", None)
        choose: Callable[[str], None]
        if hasattr(settings, "fp32_precision"):
            before, whole = settings.fp32_precision, "ieee"
            choose = partial(setattr, settings, "fp32_precision")
        else:
            before, whole = torch.get_float32_matmul_precision(), "highest"
            choose = torch.set_float32_matmul_precision
        choose(whole)
        try:
            yield
        finally:
            choose(before)


def tile_values(x: torch.Tensor) -> int:
    """Return numbers of the type of x that a tile holds on its device."""
    if not x.is_cuda:
        return _TILE_CPU
    memory = torch.cuda.get_device_properties(x.device).total_memory
    return min(_TILE_CUDA, memory // (_TILE_SHARE * x.element_size()))


@dataclass(frozen=True)
class Tile:
    """How many paths, heads, tokens i and tokens j are treated at once."""

    paths: int
    heads: int
    rows: int
    columns: int

    @classmethod
    def of(cls, x: torch.Tensor, cloud: torch.Tensor, heads: int) -> Tile:
        """Choose a tile by sizes and the card's whole memory, not what is free: the same bits."""
        paths, targets, _ = x.shape
        values = tile_values(x)
        columns = min(cloud.shape[1], _COLUMNS)
        rows = min(targets, max(32, values // (min(heads, _HEADS) * columns)))
        chunk = min(heads, max(1, values // (rows * columns)))
        batch = min(paths, max(1, values // (rows * columns * chunk)))
        return cls(batch, chunk, rows, columns)


class Sources(NamedTuple):
    """The tokens j of all pairs, with their weights.

    cloud : (paths, n, d)
    weighted : (paths, n, 1 + d) or, where heads have weights, (paths, heads, n, 1 + d): w_j and
        w_j y_j; (..., 1) without the vectors
    exponents : None, or (paths, 1 or heads, 1, n) e_j log 2 of weights f_j 2^e_j, -inf for w_j = 0;
        `weighted` is then made of f_j for heads that need a shift, and `whole` of w_j
    """

    cloud: torch.Tensor
    weighted: torch.Tensor
    exponents: torch.Tensor | None = None
    whole: torch.Tensor | None = None

    @classmethod
    def of(
        cls, cloud: torch.Tensor, weights: torch.Tensor | None = None, *, vectors: bool = True
    ) -> Sources:
        """Return sources (paths, n, d) with weights (paths, 1 or heads, n); None is one each."""
        if weights is None:
            ones = torch.ones_like(cloud[..., :1])
            return cls(cloud, torch.cat([ones, cloud], dim=-1) if vectors else ones)

        def times(w: torch.Tensor) -> torch.Tensor:
            column = w[..., None]
            both = torch.cat([column, column * cloud[:, None]], dim=-1) if vectors else column
            return both[:, 0] if w.shape[1] == 1 else both

        fraction, exponent = torch.frexp(weights)
        logs = exponent.to(weights.dtype) * math.log(2.0)
        logs = logs.masked_fill(weights == 0, -math.inf)[:, :, None]
        return cls(cloud, times(fraction), logs, times(weights))

    def part(self, paths: slice, heads: slice | list[int], shifted: bool) -> Sources:
        """Return those of some paths, with the weights of some heads."""
        chosen = self.weighted if shifted or self.whole is None else self.whole
        weighted, exponents = chosen[paths], self.exponents
        if weighted.dim() == 4:
            weighted = weighted[:, heads]
        if exponents is not None:
            exponents = exponents[paths]
            exponents = exponents[:, heads] if exponents.shape[1] > 1 else exponents
        return Sources(self.cloud[paths], weighted, exponents)


class _Block(NamedTuple):
    """A block has some targets of some paths, and sums their heads chunk by chunk.

    own : (paths, rows, d); sums : heads as an index, and (m, S, q, r, shift, |D^T x|^2) for those
    """

    paths: slice
    rows: slice
    own: torch.Tensor
    sums: Iterator[tuple[slice | list[int], RowSums]]


def blocks(
    x: torch.Tensor, sources: Sources, score: torch.Tensor, strong: NDArray[np.bool_],
    second: Second, causal: bool, noise: torch.Tensor | None = None,
) -> Iterator[_Block]:  # fmt: skip
    """Yield all targets x (paths, targets, d) by tiles; `noise` (paths, heads, d, d) is for r."""
    paths, targets, _ = x.shape
    tile = Tile.of(x, sources.cloud, score.shape[1])
    batch = 1 if strong.any() else tile.paths

    def sums(chosen: slice, own: torch.Tensor, start: int):
        for some, shifted in _head_chunks(strong[chosen.start], tile.heads):
            row_sums = _shifted if shifted else _moderate
            yield some, row_sums(
                own, sources.part(chosen, some, shifted), score[chosen, some], second,
                start if causal else None, tile.columns,
                None if noise is None else noise[chosen, some],
            )  # fmt: skip

    with _whole_products(x):
        for p in range(0, paths, batch):
            chosen = slice(p, p + batch)
            for start in range(0, targets, tile.rows):
                rows = slice(start, start + tile.rows)
                own = x[chosen, rows]
                yield _Block(chosen, rows, own, sums(chosen, own, start))


def tiled_sums(
    x: torch.Tensor, score: torch.Tensor, value: torch.Tensor, drift: torch.Tensor,
    noise: torch.Tensor, sigma2: torch.Tensor, causal: bool, strong: NDArray[np.bool_],
) -> torch.Tensor:  # fmt: skip
    """Return running sums over heads of every token, tile by tile: (2 d + 10, paths, n)."""
    paths, n, d = x.shape
    out = torch.empty((2 * d + len(SCALARS), paths, n), dtype=x.dtype, device=x.device)
    second: Second = "pairs" if sigma2.shape[1] else None
    along = noise if second and noise.shape[1] else None
    for block in blocks(x, Sources.of(x), score, strong, second, causal, along):
        sums = RunningSums(block.own)
        for some, found in block.sums:
            chosen = block.paths, some
            sums.absorb(
                *found, value[chosen],
                drift[:, : score.shape[1]][chosen] if drift.shape[1] else None,
                drift[:, score.shape[1] :][chosen] if drift.shape[1] > score.shape[1] else None,
                noise[chosen] if noise.shape[1] else None,
                sigma2[chosen] if sigma2.shape[1] else None,
            )  # fmt: skip
        sums.store(out[:, block.paths, block.rows])
    return out


def tiled_laplacian(
    x: torch.Tensor, score: torch.Tensor, strong: NDArray[np.bool_]
) -> torch.Tensor:
    """Return Laplacians of the energy (paths,), in double precision.

    The formula is that of `pairs.diffusion`; score (paths, heads, d, d) is symmetric.
    """
    paths, n, _ = x.shape
    heads = score.shape[1]
    shares = torch.zeros((paths, n), dtype=torch.float64, device=x.device)
    for block in blocks(x, Sources.of(x), score, strong, "scores", False):
        own, place = block.own, (block.paths, block.rows)
        for some, sums in block.sums:
            m, S, q, shift, square = (a.to(torch.float64) for a in sums if a is not None)  # no r
            D = score[block.paths, some].to(torch.float64)
            share = laplacian_share(own.to(torch.float64), D, m, S, q, shift, square)
            shares[place] += share.sum(1)
    return shares.sum(-1) / (heads * float(n) * n)


def laplacian_share(
    own: torch.Tensor, D: torch.Tensor, m: torch.Tensor, S: torch.Tensor, q: torch.Tensor | None,
    shift: torch.Tensor, square: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Return shares (paths, heads, rows) in the Laplacian; without q but for it."""
    d = own.shape[-1]
    z = torch.matmul(own[:, None], D)
    itself = (z * own[:, None]).sum(-1)
    trace = D.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None]
    share = square * m - (d - 1) * (z * S).sum(-1)
    share = share if q is None else share - q
    return share * shift.exp() + itself.exp() * (square - itself.square() + trace - itself)


def tiled_head_sums(
    x: torch.Tensor, score: torch.Tensor, cloud: torch.Tensor, weights: torch.Tensor | None,
    causal: bool, vectors: bool, strong: NDArray[np.bool_],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return (shift, m, S) of every head at every target, as `kernels.evaluate.head_sums`."""
    paths, targets, d = x.shape
    shape = (paths, score.shape[1], targets)
    shift, m = (torch.zeros(shape, dtype=x.dtype, device=x.device) for _ in range(2))
    S = torch.zeros((*shape[:2], targets if vectors else 0, d), dtype=x.dtype, device=x.device)
    divisor = cloud.shape[1] if weights is None else 1
    sources = Sources.of(cloud, weights, vectors=vectors)
    for block in blocks(x, sources, score, strong, None, causal):
        for some, (mass, vector, _, _, exponent, _) in block.sums:
            heads = torch.arange(shape[1])[some]
            for place, h in enumerate(heads.tolist()):
                at = block.paths, h, block.rows
                shift[at], m[at] = exponent[:, place], mass[:, place] / divisor
                if vectors:
                    S[at] = vector[:, place] / divisor
    return shift, m, S


def _head_chunks(strong: NDArray[np.bool_], size: int) -> Iterator[tuple[slice | list[int], bool]]:
    """Yield heads to treat together, and whether they need a shift: the strong come last."""
    if not strong.any():
        for first in range(0, len(strong), size):
            yield slice(first, first + size), False
        return
    for shifted in (False, True):
        some = np.flatnonzero(strong == shifted).tolist()
        for first in range(0, len(some), size):
            yield some[first : first + size], shifted


# What q sums beside the kernel values: 1 + <x_i, x_j>^2 of the pairs, or the squares of the scores.
Second = Literal["pairs", "scores"] | None
RowSums = tuple[
    "torch.Tensor", "torch.Tensor", "torch.Tensor | None", "torch.Tensor | None", "torch.Tensor",
    "torch.Tensor",
]  # fmt: skip


def _masked(tile: torch.Tensor, start: int, first: int, value: float) -> torch.Tensor:
    """Give the pairs j > i of a tile (..., i, j), which begins at (start, first), a value."""
    rows, columns = tile.shape[-2:]
    i = torch.arange(start, start + rows, device=tile.device)[:, None]
    j = torch.arange(first, first + columns, device=tile.device)
    return tile.masked_fill_(j > i, value)


def _pair_factor(own: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return 1 + <x_i, x_j>^2 of a tile: (paths, 1, i, j)."""
    gram = torch.bmm(own, columns.transpose(1, 2))
    return gram.square_().add_(1.0)[:, None]


def _along(noisy: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return <N^T x_i, x_j>^2 of a tile, (paths, heads, i, j)."""
    return torch.matmul(noisy, columns[:, None].mT).square_()


def _moderate(
    own: torch.Tensor, sources: Sources, score: torch.Tensor, second: Second, start: int | None,
    size: int, noise: torch.Tensor | None,
) -> RowSums:  # fmt: skip
    """Return m, S, q, r, shift = 0, |D^T x|^2 of tokens (paths, rows, d), moderate scores."""
    paths, rows, d = own.shape
    heads = score.shape[1]
    cloud, weighted, _, _ = sources
    fields = weighted.shape[-1]
    z = torch.matmul(own[:, None], score)  # (paths, heads, rows, d)
    total = torch.zeros((paths, heads * rows, fields), dtype=own.dtype, device=own.device)
    q = own.new_zeros((paths, heads, rows)) if second else None
    r = None if noise is None else own.new_zeros((paths, heads, rows))
    noisy = None if noise is None else torch.matmul(own[:, None], noise)
    stop = cloud.shape[1] if start is None else start + rows
    for first in range(0, stop, size):
        part = slice(first, min(first + size, stop))
        columns = cloud[:, part]
        scores = torch.bmm(z.reshape(paths, heads * rows, d), columns.transpose(1, 2))
        u = scores.exp() if second == "scores" else scores.exp_()
        pairs = u.view(paths, heads, rows, -1)
        if start is not None and first + columns.shape[1] > start:
            _masked(pairs, start, first, 0.0)
        if weighted.dim() == 3:
            total += torch.bmm(u, weighted[:, part])
        else:
            total += torch.matmul(pairs, weighted[:, :, part]).view_as(total)
        if r is not None and noisy is not None:
            r += _along(noisy, columns).mul_(pairs).sum(-1)
        if q is not None:
            squares = second == "scores"
            factor = scores.view_as(pairs).square_() if squares else _pair_factor(own, columns)
            q += pairs.mul_(factor).sum(-1)
    total = total.view(paths, heads, rows, fields)
    zero = torch.zeros_like(total[..., 0])
    return total[..., 0], total[..., 1:], q, r, zero, z.square().sum(-1)


def _coarse(a: torch.Tensor, bits: int, dims: tuple[int, ...]) -> torch.Tensor:
    """Round `a` to `bits` bits below the power of two above the largest entry along `dims`."""
    largest = a.abs().amax(dims, keepdim=True)
    power = largest / torch.frexp(largest).mantissa
    grid = torch.where(largest == 0, torch.ones_like(power), power) * 2.0**-bits
    return torch.round(a / grid) * grid


def _shifted(
    own: torch.Tensor, sources: Sources, score: torch.Tensor, second: Second, start: int | None,
    size: int, noise: torch.Tensor | None,
) -> RowSums:  # fmt: skip
    """Return (m, S, q, r) exp(-shift), shift = max_j <x_i, D x_j>, |D^T x|^2 for any scores.

    With weights the shift is the largest score plus e_j log 2, as in `pairs.sweep`. Rounding in a
    score is relative error in its exponential, so scores are formed in nearly twice the precision:
    factors are cut into a coarse part of so few bits that the product of the coarse parts is exact
    whatever its order, and a rest whose products are small (Ozaki's splitting).
    """
    d = own.shape[-1]
    cloud, weighted, exponents, _ = sources
    if weighted.dim() == 3:
        weighted = weighted[:, None]
    bits = (53 if own.dtype == torch.float64 else 24) - math.ceil(math.log2(d))
    bits //= 2
    D_1 = _coarse(score, bits, (-2, -1))
    own_1, cloud_1 = (_coarse(a, bits, (-1,))[:, None] for a in (own, cloud))
    exact = torch.matmul(own_1, D_1)
    rest = torch.matmul(own[:, None] - own_1, D_1) + torch.matmul(own[:, None], score - D_1)
    z = exact + rest
    z_1 = _coarse(z, bits, (-1,))
    z_2 = (z - z_1) + ((exact - z) + rest)
    stop = cloud.shape[1] if start is None else start + own.shape[1]

    def scores(first: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = slice(first, min(first + size, stop))
        y, y_1 = cloud[:, None, part].mT, cloud_1[:, :, part].mT
        high = torch.matmul(z_1, y_1)
        if start is not None and first + high.shape[-1] > start:
            _masked(high, start, first, -math.inf)
        return high, torch.matmul(z_1, y - y_1).add_(torch.matmul(z_2, y))

    top = torch.full_like(z[..., 0], -math.inf)
    for first in range(0, stop, size):
        high = scores(first)[0]
        if exponents is not None:
            high = high + exponents[..., first : first + high.shape[-1]]
        top = torch.maximum(top, high.amax(-1))
    top = top.masked_fill(top == -math.inf, 0.0)  # no token has a weight
    fields = weighted.shape[-1]
    total = torch.zeros((*z.shape[:-1], fields), dtype=own.dtype, device=own.device)
    q = torch.zeros_like(top) if second else None
    r = None if noise is None else torch.zeros_like(top)
    noisy = None if noise is None else torch.matmul(own[:, None], noise)
    for first in range(0, stop, size):
        part = slice(first, min(first + size, stop))
        high, low = scores(first)
        squares = (high + low).square_() if second == "scores" else None
        u = high.sub_(top[..., None]).add_(low)
        if exponents is not None:
            u = u.add_(exponents[..., part])
        u = u.exp_()
        total += torch.matmul(u, weighted[:, :, part])
        if r is not None and noisy is not None:
            r += _along(noisy, cloud[:, part]).mul_(u).sum(-1)
        if q is not None:
            factor = _pair_factor(own, cloud[:, part]) if squares is None else squares
            q += u.mul_(factor).sum(-1)
    return total[..., 0], total[..., 1:], q, r, top, z.square().sum(-1)


class RunningSums:
    """Running sums over heads of a block of tokens own (paths, rows, d), as `headsums` keeps them.

    The sums of D S and of 1/m have separate scales, exp(e_gradient) and exp(e_inverse), since
    their summands may differ by more than the range of floats.
    """

    def __init__(self, own: torch.Tensor) -> None:
        self.own = own
        zero = torch.zeros_like(own[..., 0])
        self.attention = torch.zeros_like(own)
        self.gradient = torch.zeros_like(own)
        self.fields = {name: zero for name in SCALARS}
        self.fields["e_gradient"] = self.fields["e_inverse"] = zero - 1e30

    def _rescale(self, name: str, exponent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return factors that bring sum and summands (paths, heads, rows) to the larger scale."""
        before = self.fields[name]
        after = torch.maximum(before, exponent.amax(1))
        self.fields[name] = after
        return (before - after).exp(), (exponent - after[:, None]).exp()

    def absorb(
        self, m: torch.Tensor, S: torch.Tensor, q: torch.Tensor | None, r: torch.Tensor | None,
        shift: torch.Tensor, square: torch.Tensor, value: torch.Tensor, drift: torch.Tensor | None,
        moved: torch.Tensor | None, noise: torch.Tensor | None, sigma2: torch.Tensor | None,
    ) -> None:  # fmt: skip
        """Add (m, S, q, r) exp(-shift) of some heads; all (paths, heads, rows) or one axis more."""
        fields = self.fields
        inverse = 1 / m
        ds = torch.matmul(S, value.mT)
        keep, add = self._rescale("e_inverse", -shift)
        fields["inverse"] = fields["inverse"] * keep + (add * inverse).sum(1)
        keep, add = self._rescale("e_gradient", shift)
        self.attention = self.attention + (ds * inverse[..., None]).sum(1)
        self.gradient = self.gradient * keep[..., None] + (ds * add[..., None]).sum(1)
        grow = shift.exp()
        fields["energy"] = fields["energy"] + (m * grow).sum(1)
        for name, matrices in (("power", drift), ("work", moved), ("increment", noise)):
            if matrices is not None:
                along = (torch.matmul(S, matrices.mT) * self.own[:, None]).sum(-1)
                fields[name] = fields[name] + (along * grow).sum(1)
        if q is not None and sigma2 is not None:
            fields["ito"] = fields["ito"] + (q * sigma2[..., None] * grow).sum(1)
        if r is not None:
            fields["second"] = fields["second"] + (r * grow).sum(1)
        fields["largest"] = torch.maximum(fields["largest"], square.amax(1))

    def store(self, out: torch.Tensor) -> None:
        """Write them to out (2 d + 10, paths, rows)."""
        d = self.own.shape[-1]
        out[:d] = self.attention.permute(2, 0, 1)
        out[d : 2 * d] = self.gradient.permute(2, 0, 1)
        for at, name in enumerate(SCALARS):
            out[2 * d + at] = self.fields[name]
