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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# What is kept of every token after the attention (d) and the gradient (d): see `_headsums`.
SCALARS = (
    "inverse", "e_gradient", "e_inverse", "energy", "power", "ito", "increment", "largest",
)  # fmt: skip
# Kernel values of a tile: 4 MB of doubles on the CPU, in cache; 512 MB on a GPU, or a 32nd of a
# small one. Tokens j of a tile, and heads that it holds at least where there are as many.
_TILE_CPU, _TILE_CUDA, _TILE_SHARE = 2**19, 2**26, 32
_COLUMNS, _ABREAST = 1024, 8


@contextmanager
def _whole_products(x: torch.Tensor) -> Iterator[None]:
    """Matrix products without the shortened formats that a program may have allowed: autocast, and
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


@dataclass(frozen=True)
class Tile:
    """How many paths, heads, tokens i and tokens j are treated at once."""

    paths: int
    heads: int
    rows: int
    columns: int

    @classmethod
    def of(cls, x: torch.Tensor, heads: int) -> Tile:
        """Decided by sizes and by the card's whole memory, not by what is free: the same bits."""
        paths, n, _ = x.shape
        values = _TILE_CPU
        if x.is_cuda:
            memory = torch.cuda.get_device_properties(x.device).total_memory
            values = min(_TILE_CUDA, memory // (_TILE_SHARE * x.element_size()))
        columns = min(n, _COLUMNS)
        rows = min(n, max(32, values // (min(heads, _ABREAST) * columns)))
        abreast = min(heads, max(1, values // (rows * columns)))
        batch = min(paths, max(1, values // (rows * columns * abreast)))
        return cls(batch, abreast, rows, columns)


def tiled_sums(
    x: torch.Tensor, score: torch.Tensor, value: torch.Tensor, drift: torch.Tensor,
    noise: torch.Tensor, sigma2: torch.Tensor, causal: bool, strong: NDArray[np.bool_],
) -> torch.Tensor:  # fmt: skip
    """Running sums over heads of every token, tile by tile: (2 d + 8, paths, n)."""
    paths, n, d = x.shape
    heads = score.shape[1]
    tile = Tile.of(x, heads)
    out = torch.empty((2 * d + len(SCALARS), paths, n), dtype=x.dtype, device=x.device)
    batch = 1 if strong.any() else tile.paths
    with _whole_products(x):
        for p in range(0, paths, batch):
            chosen = slice(p, p + batch)
            cloud = x[chosen]
            weighted = torch.cat([torch.ones_like(cloud[..., :1]), cloud], dim=-1)
            for start in range(0, n, tile.rows):
                own = cloud[:, start : start + tile.rows]
                sums = _Sums(own)
                for some, shifted in _head_chunks(strong[p], tile.heads):
                    row_sums = _shifted if shifted else _moderate
                    m, S, q, shift, square = row_sums(
                        own, cloud, weighted, score[chosen, some], sigma2.shape[1] > 0,
                        start if causal else None, tile.columns,
                    )  # fmt: skip
                    sums.absorb(
                        m, S, q, shift, square, value[chosen, some],
                        drift[chosen, some] if drift.shape[1] else None,
                        noise[chosen, some] if noise.shape[1] else None,
                        sigma2[chosen, some] if sigma2.shape[1] else None,
                    )  # fmt: skip
                sums.store(out[:, chosen, start : start + tile.rows])
    return out


def _head_chunks(strong: NDArray[np.bool_], size: int) -> Iterator[tuple[slice | list[int], bool]]:
    """Heads to treat together, as an index, and whether they need a shift: the strong come last."""
    if not strong.any():
        for first in range(0, len(strong), size):
            yield slice(first, first + size), False
        return
    for shifted in (False, True):
        some = np.flatnonzero(strong == shifted).tolist()
        for first in range(0, len(some), size):
            yield some[first : first + size], shifted


RowSums = tuple[
    "torch.Tensor", "torch.Tensor", "torch.Tensor | None", "torch.Tensor", "torch.Tensor"
]


def _masked(tile: torch.Tensor, start: int, first: int, value: float) -> torch.Tensor:
    """Give the pairs j > i of a tile (..., i, j), which begins at (start, first), a value."""
    rows, columns = tile.shape[-2:]
    i = torch.arange(start, start + rows, device=tile.device)[:, None]
    j = torch.arange(first, first + columns, device=tile.device)
    return tile.masked_fill_(j > i, value)


def _pair_factor(own: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """1 + <x_i, x_j>^2 of a tile: (paths, 1, i, j)."""
    gram = torch.bmm(own, columns.transpose(1, 2))
    return gram.square_().add_(1.0)[:, None]


def _moderate(
    own: torch.Tensor, cloud: torch.Tensor, weighted: torch.Tensor, score: torch.Tensor,
    ito: bool, start: int | None, size: int,
) -> RowSums:  # fmt: skip
    """m, S, q, shift = 0 and |D^T x|^2 of the tokens `own` (paths, rows, d) for moderate scores."""
    paths, rows, d = own.shape
    heads = score.shape[1]
    z = torch.matmul(own[:, None], score)  # (paths, heads, rows, d)
    total = torch.zeros((paths, heads * rows, d + 1), dtype=own.dtype, device=own.device)
    q = own.new_zeros((paths, heads, rows)) if ito else None
    stop = cloud.shape[1] if start is None else start + rows
    for first in range(0, stop, size):
        columns = cloud[:, first : min(first + size, stop)]
        u = torch.bmm(z.reshape(paths, heads * rows, d), columns.transpose(1, 2)).exp_()
        pairs = u.view(paths, heads, rows, -1)
        if start is not None and first + columns.shape[1] > start:
            _masked(pairs, start, first, 0.0)
        total += torch.bmm(u, weighted[:, first : min(first + size, stop)])
        if q is not None:
            q += pairs.mul_(_pair_factor(own, columns)).sum(-1)
    total = total.view(paths, heads, rows, d + 1)
    return total[..., 0], total[..., 1:], q, torch.zeros_like(total[..., 0]), z.square().sum(-1)


def _coarse(a: torch.Tensor, bits: int, dims: tuple[int, ...]) -> torch.Tensor:
    """`a` rounded to `bits` bits below the power of two above the largest entry along `dims`."""
    largest = a.abs().amax(dims, keepdim=True)
    power = largest / torch.frexp(largest).mantissa
    grid = torch.where(largest == 0, torch.ones_like(power), power) * 2.0**-bits
    return torch.round(a / grid) * grid


def _shifted(
    own: torch.Tensor, cloud: torch.Tensor, weighted: torch.Tensor, score: torch.Tensor,
    ito: bool, start: int | None, size: int,
) -> RowSums:  # fmt: skip
    """(m, S, q) exp(-shift), shift = max_j <x_i, D x_j>, and |D^T x|^2, for scores of any size.

    Rounding in a score is relative error in its exponential, so scores are formed in nearly twice
    the precision: factors are cut into a coarse part of so few bits that the product of the coarse
    parts is exact whatever its order, and a rest whose products are small (Ozaki's splitting).
    """
    d = own.shape[-1]
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
        top = torch.maximum(top, scores(first)[0].amax(-1))
    total = torch.zeros((*z.shape[:-1], d + 1), dtype=own.dtype, device=own.device)
    q = torch.zeros_like(top) if ito else None
    for first in range(0, stop, size):
        part = slice(first, min(first + size, stop))
        high, low = scores(first)
        u = high.sub_(top[..., None]).add_(low).exp_()
        total += torch.matmul(u, weighted[:, None, part])
        if q is not None:
            q += u.mul_(_pair_factor(own, cloud[:, part])).sum(-1)
    return total[..., 0], total[..., 1:], q, top, z.square().sum(-1)


class _Sums:
    """Running sums over heads of a block of tokens own (paths, rows, d), as `_headsums` keeps them.

    The sums of D S and of 1/m have scales of their own, exp(e_gradient) and exp(e_inverse), since
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
        """Factors that bring the sum and summands (paths, heads, rows) to the larger scale."""
        before = self.fields[name]
        after = torch.maximum(before, exponent.amax(1))
        self.fields[name] = after
        return (before - after).exp(), (exponent - after[:, None]).exp()

    def absorb(
        self, m: torch.Tensor, S: torch.Tensor, q: torch.Tensor | None, shift: torch.Tensor,
        square: torch.Tensor, value: torch.Tensor, drift: torch.Tensor | None,
        noise: torch.Tensor | None, sigma2: torch.Tensor | None,
    ) -> None:  # fmt: skip
        """Add (m, S, q) exp(-shift) of some heads; all (paths, heads, rows) or one axis more."""
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
        for name, matrices in (("power", drift), ("increment", noise)):
            if matrices is not None:
                along = (torch.matmul(S, matrices.mT) * self.own[:, None]).sum(-1)
                fields[name] = fields[name] + (along * grow).sum(1)
        if q is not None and sigma2 is not None:
            fields["ito"] = fields["ito"] + (q * sigma2[..., None] * grow).sum(1)
        fields["largest"] = torch.maximum(fields["largest"], square.amax(1))

    def store(self, out: torch.Tensor) -> None:
        """Write them to out (2 d + 8, paths, rows)."""
        d = self.own.shape[-1]
        out[:d] = self.attention.permute(2, 0, 1)
        out[d : 2 * d] = self.gradient.permute(2, 0, 1)
        for at, name in enumerate(SCALARS):
            out[2 * d + at] = self.fields[name]
