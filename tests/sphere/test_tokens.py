"""Initial tokens: on the sphere, reproducible, distributed as stated, and strict."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wflow import InputError, tokens
from wflow.sphere import normalise

CLOUDS = {"cross": tokens.cross_polytope, "uniform": tokens.uniform, "clusters": tokens.clusters}
QUICK = settings(max_examples=40, deadline=None)
DATA = np.random.default_rng(5).standard_normal((40, 6)) * [5, 4, 3, 2, 1, 0.5] + 2.0


def is_on_sphere(x: np.ndarray) -> bool:
    return bool(np.all(np.abs(np.sum(x * x, axis=1) - 1) < 1e-14))


def refused(match: str):
    return pytest.raises(InputError, match=match)


@pytest.mark.parametrize("cloud", CLOUDS.values(), ids=list(CLOUDS))
@given(n=st.integers(4, 50), d=st.integers(2, 12), seed=st.integers(0, 2**64))
@QUICK
def test_clouds_have_the_shape_asked_lie_on_the_sphere_and_follow_the_seed(cloud, n, d, seed):
    x = cloud(n, d, seed=seed)
    assert x.shape == (n, d) and x.dtype == np.float64
    assert is_on_sphere(x)
    assert np.array_equal(x, cloud(n, d, seed=seed))
    assert not np.array_equal(x, cloud(n, d, seed=seed + 1))


def test_tokens_of_a_seed_do_not_change_between_versions():
    x = tokens.cross_polytope(200, 3, spread=0.05, seed=42)
    first = [0.07220691685146101, 0.03380681002126225, -0.9968165632427024]
    assert x[0].tolist() == pytest.approx(first, rel=1e-14)


@given(n=st.integers(1, 60), d=st.integers(2, 9), seed=st.integers(0, 1000))
@QUICK
def test_cross_polytope_without_spread_is_exactly_at_vertices(n, d, seed):
    x = tokens.cross_polytope(n, d, spread=0, seed=seed)
    assert np.array_equal(np.sort(np.abs(x), axis=1)[:, -1], np.ones(n))
    assert np.count_nonzero(x) == n


def test_cross_polytope_takes_each_vertex_equally_often_with_the_stated_spread():
    n, d, spread = 60_000, 3, 0.05
    x = tokens.cross_polytope(n, d, spread=spread, seed=1)
    axis = np.abs(x).argmax(axis=1)
    vertex = 2 * axis + (x[np.arange(n), axis] < 0)
    counts = np.bincount(vertex, minlength=2 * d)
    assert np.abs(counts - n / 6).max() < 5 * np.sqrt(n * (1 / 6) * (5 / 6))
    across = np.sort(np.abs(x), axis=1)[:, :-1]  # off the vertex: N(0, spread^2) to second order
    assert np.sqrt(np.mean(across**2)) == pytest.approx(spread, rel=0.02)


def test_uniform_has_zero_mean_and_isotropic_covariance():
    n, d = 60_000, 4
    x = tokens.uniform(n, d, seed=3)
    assert np.abs(x.mean(axis=0)).max() < 5 / np.sqrt(n * d)
    assert np.allclose(x.T @ x / n, np.eye(d) / d, atol=5 / np.sqrt(n))


@given(n=st.integers(1, 40), k=st.integers(1, 8), seed=st.integers(0, 1000))
@QUICK
def test_clusters_are_balanced_and_token_i_belongs_to_cluster_i_mod_k(n, k, seed):
    k = min(k, n)
    x = tokens.clusters(n, 3, clusters=k, spread=0, seed=seed)
    assert np.abs(x - x[np.arange(n) % k]).max() < 1e-15
    assert len(np.unique(x.round(12), axis=0)) == k


def test_clusters_spread_is_the_deviation_around_the_centres():
    x = tokens.clusters(40_000, 3, clusters=1, spread=0.02, seed=2)
    centre = normalise(x.mean(axis=0))
    off = x - (x @ centre)[:, None] * centre
    assert np.sqrt(np.sum(off**2) / (2 * len(x))) == pytest.approx(0.02, rel=0.02)


@given(
    n=st.integers(1, 30), columns=st.integers(1, 9), d=st.integers(1, 9),
    seed=st.integers(0, 10_000), exponent=st.integers(-300, 300),
)  # fmt: skip
@QUICK
def test_pca_is_the_projection_to_the_first_singular_vectors(n, columns, d, seed, exponent):
    z = np.random.default_rng(seed).standard_normal((n, columns)) + 1.0
    z *= np.linspace(1, 3, columns)  # separates the axes
    d = min(d, columns)
    got = tokens.pca(z * 10.0**exponent, d) / 10.0**exponent
    centred = z - z.mean(axis=0)
    _, values, _ = np.linalg.svd(centred, full_matrices=False)
    want = np.zeros(d)
    want[: min(d, len(values))] = values[:d]
    assert got.shape == (n, d)
    assert np.allclose(got.mean(axis=0), 0, atol=1e-13)
    assert np.allclose(np.linalg.norm(got, axis=0), want, atol=1e-11)  # second order in the axes
    if d == columns:  # an orthogonal map: distances stay, to rounding
        assert np.allclose(got @ got.T, centred @ centred.T, atol=1e-12)


@given(seed=st.integers(0, 10_000))
@QUICK
def test_pca_has_deterministic_signs_and_does_not_care_for_the_order_of_rows(seed):
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((25, 4)) * [4, 3, 2, 1]
    scores = tokens.pca(z, 3)
    order = rng.permutation(25)
    assert np.allclose(tokens.pca(z[order], 3), scores[order], atol=1e-6)
    centred = z - z.mean(axis=0)
    axes = np.linalg.lstsq(scores, centred, rcond=None)[0]
    assert np.all(axes[np.arange(3), np.abs(axes).argmax(axis=1)] > 0)
    # With the other sign of the data the axes stay and the scores turn.
    assert np.allclose(tokens.pca(-z, 3), -scores, atol=1e-6)


def test_pca_gives_zero_along_axes_without_variance():
    line = np.outer(np.arange(7.0), [1.0, 2.0, 2.0]) + 0.1
    scores = tokens.pca(line, 3)
    assert np.allclose(scores[:, 0], 3 * (np.arange(7) - 3), atol=1e-6)
    assert np.all(scores[:, 1:] == 0)
    assert np.all(tokens.pca(np.full((1000, 3), 0.1), 2) == 0)


def test_pca_has_the_same_bits_for_one_and_two_threads():
    code = (
        "import numpy as np; from wflow.sphere.tokens import pca; "
        "z = np.random.default_rng(0).standard_normal((6000, 120)) * np.linspace(1, 9, 120); "
        "print(pca(z, 3).tobytes().hex()[:20000])"
    )

    def bits(threads: str) -> str:
        names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
        env = {**os.environ, **dict.fromkeys(names, threads)}
        env["PYTHONPATH"] = str(Path(tokens.__file__).parents[2])
        return subprocess.run(
            [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
        ).stdout

    assert bits("1") == bits("2")


def test_digits_are_the_normalised_principal_scores_of_the_data_set():
    datasets = pytest.importorskip("sklearn.datasets", reason="digits need scikit-learn")
    decomposition = pytest.importorskip("sklearn.decomposition")
    x = tokens.digits()
    assert x.shape == (1797, 3) and is_on_sphere(x)
    scores = decomposition.PCA(3, svd_solver="full").fit_transform(datasets.load_digits().data)
    inner = np.sum(x * normalise(scores), axis=0)
    assert np.allclose(x, normalise(scores) * np.sign(inner), atol=1e-6)
    part = tokens.digits(50, 3, seed=4)
    assert part.shape == (50, 3)
    assert all((x == token).all(axis=1).any() for token in part)
    assert np.array_equal(part, tokens.make("digits", 50, 3, seed=4))
    assert tokens.digits(9, 64).shape == (9, 64)


def test_make_names_every_cloud_with_the_defaults_of_the_published_study():
    for word, cloud in zip(tokens.CLOUDS, CLOUDS.values(), strict=True):
        assert np.array_equal(tokens.make(word, 30, 5, seed=9), cloud(30, 5, seed=9))
        assert tokens.make(word).shape == (200, 3)
    assert tokens.make("clusters", 2, 3).shape == (2, 3)


def test_make_reads_a_file_whose_name_holds_colons(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("odd::name.npy", DATA)
    assert len(tokens.make("odd::name.npy")) == 40


BAD_NUMBERS = [
    ({"n": 0, "d": 3}, "n is 0"),
    ({"n": -4, "d": 3}, "n is -4"),
    ({"n": 10, "d": 1}, "d is 1"),
    ({"n": 10, "d": 3, "seed": -1}, "seed is -1"),
]
REFUSED = [
    *((cloud, *bad) for cloud in CLOUDS.values() for bad in BAD_NUMBERS),
    (tokens.clusters, {"n": 2, "d": 3, "clusters": 3}, "choose clusters <= n"),
    (tokens.pca, {"z": DATA, "d": 7}, "6 columns, d = 7"),
    (tokens.pca, {"z": DATA, "d": 0}, "d is 0"),
    (tokens.pca, {"z": DATA[0], "d": 2}, r"shape \(6,\)"),
    (tokens.pca, {"z": np.empty((0, 3)), "d": 2}, "shape"),
    (tokens.pca, {"z": [[1.0, 2.0], [np.nan, 1.0]], "d": 2}, "row 1, column 0"),
    (tokens.digits, {"n": 1798, "d": 3}, "1797 rows"),
    (tokens.digits, {"n": 5, "d": 65}, "64 columns"),
    (tokens.digits, {"n": 5, "d": 1}, "d is 1"),
    (tokens.digits, {"n": 0, "d": 3}, "n"),
    (tokens.make, {"spec": "clusters", "n": 0, "d": 3}, "n is 0"),
    (tokens.make, {"spec": "cross_polytope"}, "cross-polytope"),
    (tokens.make, {"spec": "unifrom"}, "uniform"),
    (tokens.make, {"spec": ""}, "cross-polytope"),
    (tokens.make, {"spec": "none.npy"}, "no such file"),
    (tokens.make, {"spec": "none.npz::emb"}, "no such file"),
    (tokens.make, {"spec": "x" * 5000 + ".npy"}, "file systems take 255"),
]


@pytest.mark.parametrize(("function", "given", "match"), REFUSED)
def test_what_cannot_be_used_is_refused(function, given, match):
    if function is tokens.digits:
        pytest.importorskip("sklearn.datasets", reason="digits need scikit-learn")
    with refused(match):
        function(**given)
