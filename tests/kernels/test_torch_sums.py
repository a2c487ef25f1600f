"""The torch sums on the CPU, and the Triton kernel in its interpreter, against the Numba kernel."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twin import symmetric, unit

import wflow
from wflow import InputError
from wflow.kernels.evaluate import mark_overflow
from wflow.kernels.pairs import diffusion, fused
from wflow.kernels.pairs.diffusion import energy_laplacian
from wflow.kernels.pairs.headsums import (
    EFFECTIVE,
    ENERGY_TERMS,
    SOFTMAX,
    TERMS,
    UNNORMALISED,
)

torch = pytest.importorskip("torch")
from wflow.kernels.torch import sums, tiles  # noqa: E402

FLOWS = (SOFTMAX, UNNORMALISED, EFFECTIVE)
HAS_TRITON = importlib.util.find_spec("triton") is not None
HERE = Path(__file__).parent


def make(seed, paths, n, d, heads, size, dtype="f8", *, general=False, ledger=True):
    """Random arguments x, score, value, drift with last moves, noise, sigma2; |D_h| = size."""
    rng = np.random.default_rng(seed)
    x = unit(rng, paths, n, d)
    D, drift, noise, moved = symmetric(rng, 4, paths, heads, d, d)
    drift = np.concatenate([drift, moved], axis=1)
    D *= (np.asarray(size) / np.abs(np.linalg.eigvalsh(D)).max(-1))[..., None, None]
    sigma2 = rng.uniform(0, 2, (paths, heads))
    if not ledger:
        drift, noise, sigma2 = drift[:, :0], noise[:, :0], sigma2[:, :0]
    x, D, drift, noise, sigma2 = (
        np.ascontiguousarray(a, dtype) for a in (x, D, drift, noise, sigma2)
    )
    value = rng.normal(size=D.shape).astype(dtype) if general else D
    return x, D, value, drift, noise, sigma2


def assert_same(found, expected, arguments, tolerance):
    """Velocities and terms agree relative to their scale; what overflows, overflows in both."""
    x, _, _, drift, noise, sigma2 = arguments
    tables = []
    for v, terms in (found, expected):
        table = dict(zip(TERMS, np.array(terms).T, strict=True))
        mark_overflow(table, ENERGY_TERMS, x.dtype)
        tables.append(table)
        assert v.dtype == x.dtype and terms.dtype == np.float64
    (v, _), (u, _) = found, expected
    finite = np.isfinite(u)
    assert np.array_equal(np.isfinite(v), finite)
    largest = np.abs(u[finite]).max(initial=0)
    size = float(tables[1]["max_score"].max())
    speed = max(largest, size)
    assert np.abs(v[finite] - u[finite]).max(initial=0) <= tolerance * speed
    ours, theirs = tables
    norms = [np.linalg.norm(a, 2, (-2, -1)).max(initial=0) for a in (drift, noise)]
    energy, speed_sq = theirs["energy"], theirs["max_speed"] ** 2
    with np.errstate(over="ignore", invalid="ignore"):
        scales = {
            "energy": energy, "weight_power": energy * norms[0], "backward_work": energy * norms[0],
            "ito_power": energy * sigma2.max(initial=0), "martingale": energy * norms[1],
            "second_variation": energy * norms[1] ** 2, "dissipation": 2 * energy * size * speed,
            "upper_gradient_sq": theirs["upper_gradient_sq"] + 2 * energy * speed_sq,
            "edi_defect": theirs["upper_gradient_sq"] + 2 * energy * speed * size,
            "speed_sq": speed_sq + speed**2, "max_speed": speed, "max_score": size,
        }  # fmt: skip
    given = {
        "weight_power": drift, "backward_work": drift, "martingale": noise, "ito_power": sigma2,
        "second_variation": noise if sigma2.size else sigma2,
    }  # fmt: skip
    for name in TERMS:
        if given.get(name, x).size == 0:  # not asked for
            assert not ours[name].any() and not theirs[name].any(), name
            continue
        for p, value in enumerate(theirs[name]):
            scale = np.broadcast_to(scales[name], theirs[name].shape)[p]
            if np.isfinite(value) and np.isfinite(scale):
                assert abs(ours[name][p] - value) <= tolerance * scale, (name, p)
            elif not np.isfinite(value):
                assert not np.isfinite(ours[name][p]), (name, p)


def compare(arguments, flow, sign, causal, tolerance=1e-12, triton=None):
    expected = fused.fused_sums(*arguments, flow, sign, causal, False)
    if triton is None:
        found = sums.torch_sums(*arguments, flow, sign, causal, "cpu")
    else:
        tensors = [torch.from_numpy(a) for a in arguments]
        strong = sums.strong_heads(arguments[1])
        pair = sums.device_sums(*tensors, flow, sign, causal, strong, triton)
        found = tuple(t.numpy() for t in pair)
    assert_same(found, expected, arguments, tolerance)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), paths=st.integers(1, 3), n=st.integers(1, 60),
    d=st.sampled_from((2, 3, 16, 64)), heads=st.integers(1, 5),
    size=st.sampled_from([0.0, 1.0, 20.0, 63.0, 100.0, 600.0, 1e4]), flow=st.sampled_from(FLOWS),
    sign=st.sampled_from([-1.0, 1.0]), ledger=st.booleans(),
)  # fmt: skip
def test_velocities_and_terms_equal_the_numba_kernel(
    seed, paths, n, d, heads, size, flow, sign, ledger
):
    compare(make(seed, paths, n, d, heads, size, ledger=ledger), flow, sign, False)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(1, 60), d=st.sampled_from((2, 3)),
    size=st.sampled_from([1.0, 30.0, 300.0, 1e4]), causal=st.booleans(),
    dtype=st.sampled_from(["f8", "f4"]),
)  # fmt: skip
def test_general_heads_and_causal_mask_equal_the_numba_kernel(seed, n, d, size, causal, dtype):
    if dtype == "f4":  # beyond 85 terms overflow in one place sooner than in the other
        size = min(size, 40.0)
    arguments = make(seed, 2, n, d, 3, size, dtype, general=True, ledger=False)
    compare(arguments, SOFTMAX, 1.0, causal, 1e-12 if dtype == "f8" else 1e-5)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(1, 60), d=st.sampled_from((2, 3, 16)),
    size=st.sampled_from([0.0, 1.0, 8.0, 20.0, 40.0]), flow=st.sampled_from(FLOWS),
)  # fmt: skip
def test_single_precision_is_within_2e_5_of_the_numba_kernel(seed, n, d, size, flow):
    compare(make(seed, 2, n, d, 3, size, "f4"), flow, -1.0, False, 2e-5)


@pytest.mark.parametrize("size", [90.0, 1e3, 1e4])
def test_single_precision_velocities_are_right_beyond_the_range_of_the_exponential(size):
    arguments = make(2, 2, 40, 3, 3, size, "f4")
    v, _ = sums.torch_sums(*arguments, SOFTMAX, -1.0, False, "cpu")
    double = [a.astype("f8") for a in arguments]
    exact, _ = fused.fused_sums(*double, SOFTMAX, -1.0, False, False)
    assert np.abs(v - exact).max() <= 1e-6 * size


@pytest.mark.parametrize("sizes", [(63, 400), (1, 690, 5), (60, 600), (5, 1e4, 65, 2)])
@pytest.mark.parametrize("flow", FLOWS)
def test_heads_of_very_different_size_keep_their_digits_together(sizes, flow):
    compare(make(0, 2, 30, 3, len(sizes), sizes), flow, -1.0, False)


@pytest.mark.parametrize("flow", FLOWS)
def test_heads_of_strongly_negative_scores_do_not_vanish(flow):
    x, D, *rest = make(1, 1, 30, 3, 3, 1.0)
    x[..., 0] = np.abs(x[..., 0]) + 1
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    D[:] = -np.array([300.0, 550.0, 600.0])[:, None, None] * np.eye(3)
    compare((x, D, D, *rest[1:]), flow, -1.0, False)


@pytest.mark.parametrize("size", [2.0, 300.0])
@pytest.mark.parametrize("causal", [False, True])
def test_many_tiles_of_tokens_heads_and_paths_give_the_same_numbers(monkeypatch, size, causal):
    monkeypatch.setattr(tiles, "_TILE_CPU", 3000)
    monkeypatch.setattr(tiles, "_COLUMNS", 33)
    arguments = make(3, 5, 101, 3, 7, size)
    tile = tiles.Tile.of(*[torch.from_numpy(arguments[0])] * 2, 7)
    assert tile.rows < 101 and tile.columns < 101 and tile.heads < 7
    compare(arguments, SOFTMAX, -1.0, causal)


def test_one_strong_head_in_one_path_leaves_the_others_right():
    x, D, *_, drift, noise, sigma2 = make(5, 3, 30, 3, 4, 2.0)
    D[1, 2] *= 200
    assert sums.strong_heads(D).sum() == 1
    compare((x, D, D, drift, noise, sigma2), SOFTMAX, -1.0, False)


def test_same_arrays_give_the_same_bits():
    arguments = make(6, 2, 300, 3, 6, 3.0)
    results = [sums.torch_sums(*arguments, SOFTMAX, -1.0, False, "cpu") for _ in range(3)]
    for v, terms in results[1:]:
        assert np.array_equal(v, results[0][0]) and np.array_equal(terms, results[0][1])


@pytest.mark.parametrize("size", [2.0, 300.0])
def test_no_array_is_larger_than_a_tile(size):
    """Least of all one of size heads x n x n, here eight times a tile."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else (out,):
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.numel())
            return out

    arguments = make(7, 1, 724, 3, 8, size)
    tensors = [torch.from_numpy(a) for a in arguments]
    with torch.no_grad(), Watch():
        strong = sums.strong_heads(arguments[1])
        sums.device_sums(*tensors, SOFTMAX, -1.0, False, strong)
    assert 0 < largest <= tiles._TILE_CPU < 8 * 724**2 / 7.9


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("where", ["token", "head"])
def test_what_is_no_number_stays_in_its_path_and_shows(flow, where):
    arguments = make(8, 3, 20, 3, 2, 2.0)
    expected, _ = sums.torch_sums(*arguments, flow, -1.0, False, "cpu")
    arguments[0 if where == "token" else 1][(1, 1, 0)] = np.nan
    v, terms = sums.torch_sums(*arguments, flow, -1.0, False, "cpu")
    assert np.isnan(v[1]).all(axis=-1).any() and np.isnan(terms[1, TERMS.index("speed_sq")])
    for p in (0, 2):
        assert np.abs(v[p] - expected[p]).max() <= 1e-13


def test_device_names_are_checked(monkeypatch):
    assert sums.resolve_device("cpu") == "cpu"
    with pytest.raises(InputError, match="expected 'cpu', 'cuda' or 'cuda:N'"):
        sums.resolve_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"is absent: PyTorch .* device='cpu'"):
        sums.resolve_device(None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * 10**9, 8 * 10**9))
    assert sums.resolve_device(None) == sums.resolve_device("cuda") == "cuda:1"
    assert sums.resolve_device("cuda:0") == "cuda:0"
    with pytest.raises(InputError, match=r"'cuda:2' is absent: PyTorch finds 2 GPU\(s\)"):
        sums.resolve_device("cuda:2")


def test_without_triton_the_tiles_do_the_work_and_one_warning_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "wflow.kernels.torch.triton", None)
    monkeypatch.setattr(sums, "_BROKEN", set())
    monkeypatch.setattr(sums, "_wants_kernel", lambda x: True)
    with pytest.warns(UserWarning, match="Triton kernel does not run here"):
        compare(make(9, 1, 9, 3, 2, 2.0), SOFTMAX, -1.0, False)
    compare(make(9, 1, 9, 3, 2, 2.0), SOFTMAX, -1.0, False)
    compare(make(9, 1, 9, 3, 2, 200.0), SOFTMAX, -1.0, False)  # warnings are errors here
    assert {(3, torch.float64, False), (3, torch.float64, True)} == sums._BROKEN


def test_precision_of_products_that_a_program_chose_is_given_back():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        compare(make(10, 1, 50, 16, 2, 5.0, "f4"), SOFTMAX, -1.0, False, 2e-5)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_autocast_of_a_program_does_not_shorten_the_numbers():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compare(make(10, 1, 50, 16, 2, 5.0, "f4"), SOFTMAX, -1.0, False, 2e-5)


def test_importing_the_solver_does_not_import_torch():
    code = "import sys, wflow.particles.solver, wflow.kernels; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


ON_CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@ON_CARD
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("size", [2.0, [1.0, 90.0, 3.0, 400.0, 2.0]])
@pytest.mark.parametrize("d", [2, 3, 5, 24])
@pytest.mark.parametrize("triton", [None, False])
def test_card_gives_the_numbers_of_the_processor_and_the_same_bits_again(
    monkeypatch, dtype, size, d, triton
):
    if dtype == "f4":  # beyond 85 terms overflow in one place sooner than in the other
        size = np.minimum(size, 40.0)
    if triton is False:
        monkeypatch.setenv("WFLOW_TRITON", "0")
    arguments = make(16, 3, 75, d, 5, size, dtype)
    expected = sums.torch_sums(*arguments, SOFTMAX, -1.0, False, "cpu")
    found, again = (sums.torch_sums(*arguments, SOFTMAX, -1.0, False, "cuda:0") for _ in range(2))
    assert_same(found, expected, arguments, 1e-12 if dtype == "f8" else 2e-5)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(found, again, strict=True))


@ON_CARD
def test_more_tokens_than_a_partial_sum_holds_on_a_card_equal_the_numba_kernel():
    arguments = make(17, 1, 2100, 3, 5, 3.0)
    expected = fused.fused_sums(*arguments, SOFTMAX, -1.0, False, False)
    found = sums.torch_sums(*arguments, SOFTMAX, -1.0, False, "cuda:0")
    assert_same(found, expected, arguments, 1e-12)


@ON_CARD
def test_run_on_a_card_equals_the_run_by_numba():
    import wflow

    x0 = unit(np.random.default_rng(18), 40, 3)
    law = wflow.heads.OrnsteinUhlenbeck(np.eye(3))
    options = {"heads": 5, "t_final": 0.2, "dt": 0.01, "paths": 3, "seed": 7}
    expected = wflow.solve(x0, law, **options, compute=wflow.Compute(method="exact"))
    found = wflow.solve(x0, law, **options, compute=wflow.Compute(backend="torch", device="cuda"))
    again = wflow.solve(x0, law, **options, compute=wflow.Compute(backend="torch", device="cuda"))
    for name in expected.data_vars:
        exact, ours, others = (run[name].values for run in (expected, found, again))
        if exact.dtype.kind == "f":
            assert np.array_equal(ours, others, equal_nan=True), name
            scale = max(1.0, float(np.abs(exact).max(initial=0)))
            np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-10 * scale, err_msg=name)


@ON_CARD
def test_arrays_that_do_not_fit_the_real_card_are_an_input_error():
    arguments = make(19, 1, 2_000_000, 3, 1, 2.0, ledger=False)  # running sums of 224 MB
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(100e6 / total, 0)
    try:
        with pytest.raises(InputError, match="do not fit into the memory of cuda:0"):
            sums.torch_sums(*arguments, SOFTMAX, -1.0, False, "cuda:0")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)


# (paths, n, d, heads, size, dtype, flow, causal, general): few and tiny, since the interpreter
# takes a second per thousand pairs. More rows than a program holds, odd heads, both ways of scores.
INTERPRETED = [
    (3, 11, 3, 3, 2.0, "f8", SOFTMAX, False, False),
    (1, 4, 2, 3, [1.0, 90.0, 400.0], "f8", EFFECTIVE, False, False),
    (1, 5, 5, 1, 300.0, "f8", SOFTMAX, True, True),
    (1, 5, 3, 3, 3.0, "f4", UNNORMALISED, False, False),
    (1, 1, 16, 1, 3.0, "f8", SOFTMAX, False, False),
]


def kernel(arguments):
    tensors = [torch.from_numpy(a) for a in arguments]
    strong = sums.strong_heads(arguments[1])
    return sums.device_sums(*tensors, SOFTMAX, -1.0, False, strong, True)


def interpret():
    for paths, n, d, heads, size, dtype, flow, causal, general in INTERPRETED:
        arguments = make(11, paths, n, d, heads, size, dtype, general=general)
        compare(arguments, flow, -1.0, causal, 1e-12 if dtype == "f8" else 2e-5, triton=True)
    from wflow.kernels.torch import triton as triton_kernel

    bare = make(15, 1, 3, 2, 1, 1e4, ledger=False)
    compare(bare, SOFTMAX, -1.0, False, triton=True)  # rates not asked for are 0, not 0 inf
    triton_kernel._CHUNK = 4
    compare(make(12, 1, 9, 3, 1, 2.0), SOFTMAX, -1.0, False, triton=True)
    together = make(14, 3, 4, 2, 2, 2.0)
    together[1][1, 1] *= 100  # a strong head beside moderate paths
    found = kernel(together)
    for p in (0, 1, 2):
        alone = kernel([a[p : p + 1].copy() for a in together])
        assert all(torch.equal(a[0], b[p]) for a, b in zip(alone, found, strict=True))
    x, *rest = make(13, 1, 3, 3, 2, 2.0)
    x[0, 1] = np.nan
    v, _ = kernel((x, *rest))
    assert torch.isnan(v).any()
    for dtype in ("f8", "f4"):
        x, D, _, *rest = make(13, 2, 2, 2, 3, 2.0, dtype)
        value = D.copy()
        D[1, 1, 0, 0] = np.nan  # a head that is no number, with values that are
        v, terms = kernel((x, D, value, *rest))
        assert torch.isnan(v[1]).all() and torch.isfinite(v[0]).all()
        assert torch.isnan(terms[1]).all() and torch.isfinite(terms[0]).all()


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_triton_kernel_in_its_interpreter_equals_the_numba_kernel():
    paths = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    code = "import test_torch_sums; test_torch_sums.interpret()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("the interpreter of this Triton does not know this NumPy")
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_compiled_triton_kernel_computes_in_double_precision_without_atomics():
    """Compiled for an H100 without one: a constant that Triton rounds to float32 would show."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from wflow.kernels.torch import triton as triton_kernel

    source = ASTSource(
        triton_kernel._group_sums,
        signature=triton_kernel.signature("fp64"),
        constexprs=triton_kernel.options(
            3, 8, True, ledger=(True, True, True, True), causal=False, any_size=False
        ),
    )
    built = compile(source, target=GPUTarget("cuda", 90, 32), options=triton_kernel.LAUNCH)
    ptx = built.asm["ptx"]
    for constant in ("0d3FE62E42FEFA39EF", "0d3DFE9D3FE3952179", "0d3FF71547652B82FE"):
        assert constant in ptx  # ln 2, the last coefficient, log2 e
    assert "fma.rn.f64" in ptx and ".f32" not in ptx
    assert "atom." not in ptx and "red." not in ptx and "ld.local" not in ptx


@pytest.mark.parametrize(
    ("n", "d", "heads", "scale", "kind", "tolerance"),
    [
        (50, 3, 4, 1.0, np.float64, 1e-13),
        (1500, 2, 3, 2.0, np.float64, 1e-12),  # more tokens than a tile has columns
        (70, 5, 2, 30.0, np.float64, 1e-12),  # scores beyond the range of a direct exponential
        (40, 12, 3, 1.0, np.float64, 1e-13),
        (50, 3, 4, 1.0, np.float32, 1e-4),
    ],
)
def test_the_laplacian_of_the_energy_equals_the_numba_kernel(n, d, heads, scale, kind, tolerance):
    rng = np.random.default_rng(n)
    x = unit(rng, 2, n, d).astype(kind)
    D = (scale * symmetric(rng, 2, heads, d, d)).astype(kind)
    found = sums.torch_laplacian(x, D, "cpu")
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, energy_laplacian(x, D), rtol=tolerance)


def test_tokens_with_noise_on_a_device_use_no_sums_of_numba(monkeypatch):
    monkeypatch.setattr(diffusion, "energy_laplacian", lambda *_: pytest.fail("sums by Numba"))
    x0 = wflow.tokens.uniform(20, 3, seed=0)
    run = wflow.solve(
        x0, wflow.heads.Frozen(), heads=2, t_final=0.1, dt=0.01, kappa=0.1,
        compute=wflow.Compute(backend="torch", device="cpu"),
    )  # fmt: skip
    assert float(abs(run["work_diffusion"][0, -1])) > 0
