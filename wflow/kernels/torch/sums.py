"""Velocities and energy terms of all paths with PyTorch: on a CUDA GPU, and on the CPU for tests.

The contract is that of `pairs.fused.fused_sums`. On a GPU and up to d = 16 the sums are one Triton
kernel (`triton`); otherwise kernel values are formed in tiles of (paths, heads, i, j) as
matrix products (`tiles`). Both leave the running sums over heads of every token,
from which `finish` makes velocities and terms: memory is O(paths (n d + heads d^2)) and the tile.

Sums have a fixed order and no atomic additions: the same arrays on the same device give the same
bits. The kernel sums a path in the same order whatever paths are beside it; libraries of matrix
products may choose by shape. Numbers differ from `pairs.fused` by rounding, as the order does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from wflow._core.errors import InputError, WflowWarning, warn
from wflow._core.extras import install
from wflow._core.forks import threads_lost
from wflow.kernels.pairs.headsums import (
    DISSIPATION,
    MAX_SCORE,
    MAX_SPEED,
    N_TERMS,
    PAIRS,
    SOFTMAX,
    UNNORMALISED,
)
from wflow.kernels.pairs.sweep import DIRECT_BOUND_DOUBLE, DIRECT_BOUND_SINGLE
from wflow.kernels.pairs.weighted import direct_bounds, largest_squares

try:
    import torch

    from wflow.kernels.torch.tiles import tiled_head_sums, tiled_laplacian, tiled_sums
except ImportError:  # `resolve_device` says what to do
    torch = None  # type: ignore[assignment]

_KERNEL_D = 16  # largest d of the Triton kernel


def resolve_device(device: str | None) -> str:
    """Return the name of the device that computes: "cpu" or "cuda:N".

    Parameters
    ----------
    device : "cpu", "cuda", "cuda:N", or None for "cuda"

    Raises
    ------
    InputError
        Where PyTorch is not installed, the name is none of these, there is no such GPU, or CUDA
        cannot use it.
    """
    if torch is None:
        raise InputError(
            f"backend 'torch' needs PyTorch, which is not installed: {install('nets')}, or take "
            "backend='numba'"
        )
    name = "cuda" if device is None else device
    if name == "cpu":
        if threads_lost("torch"):
            torch.set_num_threads(1)
        return name
    if not isinstance(name, str) or not re.fullmatch(r"cuda(:\d+)?", name):
        raise InputError(f"device is {device!r}: expected 'cpu', 'cuda' or 'cuda:N'")
    advice = "take device='cpu', or backend='numba', which is faster on a CPU"
    if not torch.cuda.is_available():
        found = "is built without CUDA"
        if torch.version.cuda is not None:
            found = f"is built for CUDA {torch.version.cuda} but finds no GPU that it can use"
        raise InputError(
            f"device {name!r} is absent: PyTorch {torch.__version__} {found}; {advice}"
        )
    try:
        count = torch.cuda.device_count()
        number = int(name[5:]) if ":" in name else torch.cuda.current_device()
        if number < count:
            torch.cuda.mem_get_info(number)  # opens the card, which may be taken
            return f"cuda:{number}"
    except RuntimeError as error:  # of CUDA too, whose further lines say how to debug kernels
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"device {name!r} cannot be used: {reason}; another program may hold the GPU or its "
            f"memory (nvidia-smi shows which): end it, or {advice}"
        ) from None
    raise InputError(
        f"device {name!r} is absent: PyTorch finds {count} GPU(s), cuda:0 to cuda:{count - 1}; "
        f"take one of them, or {advice[5:]}"
    )


def torch_sums(
    x: NDArray[np.floating],
    score: NDArray[np.floating],
    value: NDArray[np.floating],
    drift: NDArray[np.floating],
    noise: NDArray[np.floating],
    sigma2: NDArray[np.floating],
    flow: int,
    sign: float,
    causal: bool,
    device: str,
) -> tuple[NDArray[np.floating], NDArray[np.float64]]:
    """Return velocities and energy terms of all paths in one pass over all pairs, on a device.

    Parameters
    ----------
    x, ..., causal : as for `pairs.fused.fused_sums`: x (paths, n, d), score and value
        (paths, heads, d, d), drift and noise likewise or (paths, 0, d, d), sigma2 (paths, heads)
        or (paths, 0); one dtype, float64 or float32
    device : as `resolve_device` returns it

    Returns
    -------
    v (paths, n, d), terms (paths, N_TERMS) float64 in the order of `headsums.TERMS`

    Raises
    ------
    InputError
        Where the arrays do not fit into the memory of the GPU.
    """
    strong = strong_heads(score)
    with within_memory(x, score, device):
        tokens, scores = upload(x, device), upload(score, device)
        values = scores if value is score else upload(value, device)
        f, B, s = (upload(array, device) for array in (drift, noise, sigma2))
        v, terms = device_sums(tokens, scores, values, f, B, s, flow, sign, causal, strong)
        return download(v), download(terms)


def torch_laplacian(
    x: NDArray[np.floating], score: NDArray[np.floating], device: str
) -> NDArray[np.float64]:
    """Return the Laplacian of the energy summed over the tokens (paths,), on a device.

    Parameters
    ----------
    x, score : as for `wflow.kernels.pairs.diffusion.energy_laplacian`
    device : as `resolve_device` returns it

    Raises
    ------
    InputError
        Where the arrays do not fit into the memory of the GPU.
    """
    with within_memory(x, score, device):
        found = tiled_laplacian(upload(x, device), upload(score, device), strong_heads(score))
        return download(found)


def torch_head_sums(
    x: NDArray[np.floating],
    D: NDArray[np.floating],
    sources: NDArray[np.floating],
    weights: NDArray[np.floating] | None,
    causal: bool,
    vectors: bool,
    device: str,
) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]]:
    """Return (shift, m, S) of every head at every target, on a device, by tiles.

    Parameters
    ----------
    x, ..., vectors : as for `pairs.weighted.pair_head_sums`
    device : as `resolve_device` returns it

    Raises
    ------
    InputError
        Where the arrays do not fit into the memory of the GPU.
    """
    reach = np.sqrt(largest_squares(x) * largest_squares(sources))
    strong = strong_heads(D * reach.astype(D.dtype)[:, None, None, None])
    strong |= direct_bounds(sources, weights) < 0
    with within_memory(x, D, device):
        results = tiled_head_sums(
            upload(x, device), upload(D, device), upload(sources, device),
            None if weights is None else upload(weights, device), causal, vectors, strong,
        )  # fmt: skip
        shift, m, S = map(download, results)
        return shift, m, S


@contextmanager
def within_memory(
    x: NDArray[np.floating], score: NDArray[np.floating], device: str
) -> Iterator[None]:
    """Keep tensors free of gradients; raise InputError where the GPU lacks memory for them."""
    try:
        with torch.inference_mode():
            yield
    except torch.OutOfMemoryError:
        free, total = torch.cuda.mem_get_info(device)
        raise InputError(
            f"{x.shape[0]} paths of {x.shape[1]} tokens with {score.shape[1]} heads do not fit "
            f"into the memory of {device}, of whose {total / 1e9:.1f} GB {free / 1e9:.1f} are "
            "free: run fewer paths at a time, or end what else uses the GPU"
        ) from None


def strong_heads(score: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return heads (paths, heads) that may need a shift: |D^T x| beyond the bound of `sweep`.

    Judged by |D|_F and, where that is too large, by tr((D D^T)^8)^(1/16) >= |D|_2, which exceeds
    the norm by no more than d^(1/16). True where D is not finite.
    """
    bound = DIRECT_BOUND_SINGLE if score.dtype == np.float32 else DIRECT_BOUND_DOUBLE
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.einsum("phij,phij->ph", score, score, dtype=np.float64))
        doubtful = ~(norms <= bound)
        if doubtful.any():
            D = score[doubtful].astype(np.float64)
            power = D @ D.swapaxes(-1, -2)
            for _ in range(2):
                power = power @ power
            norms[doubtful] = np.einsum("hij,hij->h", power, power) ** (1 / 16)
        return ~(norms <= bound)


def upload(array: NDArray, device: str) -> torch.Tensor:
    """Copy the array to the device, to a GPU through pinned memory, which PyTorch keeps."""
    host = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    if device == "cpu":
        return host
    pinned = torch.empty(host.shape, dtype=host.dtype, device="cpu", pin_memory=True)
    return pinned.copy_(host).to(device, non_blocking=True)


def download(tensor: torch.Tensor) -> NDArray:
    """Return the tensor as a NumPy array."""
    if tensor.device.type == "cpu":
        return tensor.numpy()
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return pinned.numpy()


def device_sums(
    x: torch.Tensor,
    score: torch.Tensor,
    value: torch.Tensor,
    drift: torch.Tensor,
    noise: torch.Tensor,
    sigma2: torch.Tensor,
    flow: int,
    sign: float,
    causal: bool,
    strong: NDArray[np.bool_],
    triton: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `torch_sums` of tensors that are on one device; `strong` is from `strong_heads`.

    `triton` chooses the kernel, or an error where it does not run, or the tiles; None takes the
    kernel where it runs.
    """
    arguments = (x, score, value, drift, noise, sigma2, causal)
    any_size = bool(strong.any())
    state = None
    if triton:
        state = _kernel_sums(*arguments, any_size)
    elif triton is None and _wants_kernel(x):
        state = _kernel_sums_or_none(*arguments, any_size)
    if state is None:
        state = tiled_sums(*arguments, strong)[None]
    return finish(state, x, score.shape[1], flow, sign)


def _wants_kernel(x: torch.Tensor) -> bool:
    """Return whether to try the Triton kernel; WFLOW_TRITON=0 switches it off."""
    return x.is_cuda and x.shape[-1] <= _KERNEL_D and os.environ.get("WFLOW_TRITON", "1") != "0"


def _kernel_sums(*arguments) -> torch.Tensor:
    """Return running sums from the Triton kernel."""
    from wflow.kernels.torch.triton import group_sums

    with _on_device(arguments[0]):
        return group_sums(*arguments)


_BROKEN: set[tuple[int, torch.dtype, bool]] = set()  # builds that do not run: d, dtype, any_size


def _kernel_sums_or_none(*arguments) -> torch.Tensor | None:
    """Return `_kernel_sums`, or None with one warning where this build does not run."""
    x, any_size = arguments[0], arguments[-1]
    build = (x.shape[-1], x.dtype, any_size)
    if build in _BROKEN:
        return None
    try:
        return _kernel_sums(*arguments)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # no Triton, no C compiler, an old GPU, ...: the tiles need none
        if not _BROKEN:
            warn(
                f"the Triton kernel does not run here ({error}); the sums go through slower matrix "
                "products. WFLOW_TRITON=0 in the environment silences this",
                WflowWarning,
            )
        _BROKEN.add(build)
        return None


@contextmanager
def _on_device(x: torch.Tensor) -> Iterator[None]:
    """Make the device of the tensor the current one, on which Triton launches."""
    if not x.is_cuda:
        yield
        return
    with torch.cuda.device(x.device):
        yield


def finish(
    state: torch.Tensor, x: torch.Tensor, heads: int, flow: int, sign: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return velocities and terms from the running sums, as `headsums.finish_block`.

    state (groups, 2 d + 10, paths, n) of groups of heads; returns v (paths, n, d) in the precision
    of x and terms (paths, N_TERMS) float64.
    """
    paths, n, d = x.shape
    tokens = x.to(torch.float64).permute(2, 0, 1)  # (d, paths, n)
    sums = state.to(torch.float64)
    attention = sums[:, :d].sum(0)
    inverses, e_gradients, e_inverses = sums[:, 2 * d], sums[:, 2 * d + 1], sums[:, 2 * d + 2]
    e_gradient, e_inverse = e_gradients.amax(0), e_inverses.amax(0)
    gradient = (sums[:, d : 2 * d] * (e_gradients - e_gradient).exp()[:, None]).sum(0)
    inverse = (inverses * (e_inverses - e_inverse).exp()).sum(0)
    totals = sums[:, 2 * d + 3 : 2 * d + 3 + DISSIPATION].sum(0)  # the terms of pairs

    # exp(e_gradient) gradient / (heads n) is D S summed over heads; likewise for 1/m.
    to_gradient = e_gradient.exp() / (heads * n)
    attention = attention - (attention * tokens).sum(0) * tokens
    gradient = gradient - (gradient * tokens).sum(0) * tokens
    if flow == UNNORMALISED:
        root = torch.ones_like(inverse)
        over_mobility = to_gradient
    else:
        root = (heads / (inverse * n) * (-e_inverse).exp()).sqrt()
        over_mobility = inverse / heads / heads * (e_gradient + e_inverse).exp()  # gbar / b
    velocity = sign / heads * attention if flow == SOFTMAX else sign * over_mobility * gradient

    # b |v|^2 is in range where |v|^2 is not, and the factors of <gbar, v> may be infinite.
    speed_sq = velocity.square().sum(0)
    scaled = root * velocity
    along = (velocity * gradient).sum(0)
    excess = root * (sign * velocity - over_mobility * gradient)
    zero = torch.zeros_like(inverse)  # 0 inf is 0 here: the token rests
    dissipated = torch.where(along != 0, -to_gradient * along, zero)
    squared = torch.where(speed_sq != 0, scaled.square().sum(0), zero)
    defect = torch.where(speed_sq != 0, (scaled * excess).sum(0), zero)
    rates = _token_sums(torch.stack([*totals, dissipated, squared, defect, speed_sq]))
    terms = torch.empty((paths, N_TERMS), dtype=torch.float64, device=x.device)
    terms[:, :DISSIPATION] = rates[:DISSIPATION].T / (2.0 * heads * n * n)
    terms[:, :DISSIPATION] /= torch.tensor(PAIRS, dtype=torch.float64, device=x.device)
    terms[:, DISSIPATION:MAX_SPEED] = rates[DISSIPATION:].T / n
    terms[:, MAX_SPEED] = speed_sq.amax(-1).sqrt()
    terms[:, MAX_SCORE] = sums[:, 2 * d + 3 + DISSIPATION].amax(0).amax(-1).sqrt()
    return velocity.permute(1, 2, 0).to(x.dtype).contiguous(), terms


def _token_sums(values: torch.Tensor) -> torch.Tensor:
    """Return sums over the last axis, by halves: other axes do not change their order."""
    while values.shape[-1] > 1:
        half = (values.shape[-1] + 1) // 2
        folded = values[..., :half].clone()
        folded[..., : values.shape[-1] - half] += values[..., half:]
        values = folded
    return values[..., 0]
