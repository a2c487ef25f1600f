r"""Log determinant of a layer in many dimensions, estimated with random vectors.

The Jacobian of the way to the base, A = D + f Cov_w(c) with a positive diagonal D and f > 0, is
symmetric and positive definite. For vectors v of random signs E[v^T log(A) v] = log det A, and
Lanczos' method gives each of them from some products A v: stochastic Lanczos quadrature [1, 2]. Its
gradient is estimated from the same vectors, with the solution of A u = v in the same Krylov space:

    d log det A = tr(A^{-1} dA) = E[u^T dA v].

A product takes O(n m d) operations for n queries and m tokens, and no covariance is formed.

[1] Ubaru, Chen, Saad, "Fast Estimation of tr(f(A)) via Stochastic Lanczos Quadrature", SIAM Journal
on Matrix Analysis and Applications 38 (2017).
[2] Dong, Eriksson, Nickisch, Bindel, Wilson, "Scalable Log Determinants for Gaussian Process Kernel
Learning", NeurIPS 2017.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from wflow.nets.generative.moments import Scores, averages, parts

STEPS = 20  # of Lanczos' method: products with each vector
ENTRIES = 2**23  # that are held at a time


class Estimate(NamedTuple):
    """Attention with the log determinant of its layer.

    mean : (n, d), the weighted mean of the context
    log_det : (n,), a backward pass goes through it once
    error : (n,), standard error of log_det over the vectors
    """

    mean: Tensor
    log_det: Tensor
    error: Tensor


def signs(d: int, count: int, like: Tensor, seed: int | None) -> Tensor:
    """Return vectors of random signs, (d, count); with a seed always the same."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 2, (d, count), generator=generator)
    return (2 * drawn - 1).to(like)


def log_det_estimate(
    scores: Scores,
    context: Tensor,
    diagonal: Tensor,
    factor: float | Tensor,
    vectors: Tensor,
    exclude_self: bool,
) -> Estimate:
    """Estimate log det (diag(diagonal) + factor Cov_w(context)) for each query."""
    d, count = vectors.shape
    origin = context.detach().mean(0)
    centred = context - origin
    size = max(1, ENTRIES // (count * (len(context) + STEPS * d)))
    with torch.no_grad():
        found = [
            _quadrature(*piece, centred, factor, vectors)
            for rows, weights, total, _ in parts(scores.query, centred, scores.bias, exclude_self)
            for piece in zip(
                weights.div_(total[:, None]).split(size), diagonal[rows].split(size), strict=True
            )
        ]
        each, solved = (torch.cat(pieces) for pieces in zip(*found, strict=True))
    products = centred[:, :, None] * (centred @ vectors)[:, None]
    values = torch.cat([centred, products.flatten(1)], 1)
    moments = averages(scores, centred, values, exclude_self)[0]
    mean = moments[:, :d]
    spread = moments[:, d:].view(-1, d, count) - mean[:, :, None] * (mean @ vectors)[:, None]
    image = diagonal[:, :, None] * vectors + factor * spread
    slope = (solved * image).sum(1).mean(1)  # d at any weights, with the gradient of log det
    log_det = each.mean(1) + slope - slope.detach()
    return Estimate(mean + origin, log_det, each.std(1) / count**0.5)


def _quadrature(
    weights: Tensor, diagonal: Tensor, tokens: Tensor, factor: float | Tensor, vectors: Tensor
) -> tuple[Tensor, Tensor]:
    """Return v^T log(A) v, (n, vectors), and A^{-1} v, (n, d, vectors), by Lanczos' method."""
    n, (d, count) = len(weights), vectors.shape
    mean = (weights @ tokens)[:, None]
    first = (vectors / d**0.5).expand(n, d, count)
    basis, alphas, betas = [first], [], []
    alive = torch.ones_like(first[:, 0])
    for _ in range(min(d, STEPS)):
        vector = basis[-1]
        image = torch.einsum("nm,nmp,md->ndp", weights, tokens @ vector, tokens)
        image = factor * (image - mean.mT * (mean @ vector)) + diagonal[:, :, None] * vector
        alpha = (image * vector).sum(1)
        size = image.norm(dim=1)
        for other in basis:  # against the loss of orthogonality by rounding
            image = image - other * (other * image).sum(1, keepdim=True)
        beta = image.norm(dim=1)
        alphas.append(torch.where(alive > 0, alpha, 1.0))
        alive = alive * (beta > 100 * torch.finfo(beta.dtype).eps * size)
        betas.append(beta * alive)
        basis.append(image * (alive / beta.clamp_min(torch.finfo(beta.dtype).tiny))[:, None])
    matrix = torch.diag_embed(torch.stack(alphas, -1))
    if betas[1:]:
        beside = torch.stack(betas[:-1], -1)
        matrix = matrix + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)
    values, columns = torch.linalg.eigh(matrix)
    values = values.clamp_min(torch.finfo(values.dtype).tiny)
    top = columns[..., 0, :]
    each = d * (top.square() * values.log()).sum(-1)
    shares = torch.einsum("npkj,npj->npk", columns, top / values) * d**0.5
    solved = torch.einsum("ndpk,npk->ndp", torch.stack(basis[:-1], -1), shares)
    return each, solved
