"""Initial tokens: random clouds on the sphere, and real data mapped to it.

Every function returns an (n, d) float64 array of unit vectors and is a function of its arguments
alone: one seed gives the same tokens bit for bit. The exception is data reduced by `pca`, whose
axes come from LAPACK; its docstring says how far they are kept independent of the machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow._core.checks import did_you_mean, number, path_of, reals, shown, whole
from wflow._core.errors import InputError
from wflow._core.memory import check_memory
from wflow.sphere.embeddings import COPIES, SUFFIXES, optional_module, read_array
from wflow.sphere.geometry import as_tokens

__all__ = [
    "CLOUDS",
    "clusters",
    "cross_polytope",
    "digits",
    "load",
    "make",
    "pca",
    "uniform",
]


def __dir__() -> list[str]:
    return __all__


Tokens = NDArray[np.float64]

CLOUDS = ("cross-polytope", "uniform", "clusters")
DEFAULT_N, DEFAULT_D = 200, 3  # [MHT] section 6
_EPS = float(np.finfo(np.float64).eps)
_ROWS = "(rows count from 0)"


def cross_polytope(n: int, d: int, *, spread: float = 0.05, seed: int = 0) -> Tokens:
    """Draw tokens near random vertices of the cross-polytope.

    Parameters
    ----------
    n : int
        Number of tokens, >= 1.
    d : int
        Dimension of the space, >= 2.
    spread : float, default 0.05
        Standard deviation of each coordinate of the noise, >= 0; 0 gives the vertices.
    seed : int, default 0
        Key of the random numbers, >= 0.

    Returns
    -------
    ndarray of float64, shape (n, d)
        Unit vectors.

    Raises
    ------
    InputError
        For n < 1, d < 2, a negative or infinite spread, or a seed that is not an integer >= 0.

    Notes
    -----
    Tokens are x = R(+-e_k + spread z) with z ~ N(0, I) and ``R(x) = x/|x|``; vertex and sign are
    uniform over the 2d vertices. The experiments of [1]_ take n = 200 and spread = 0.05.

    References
    ----------
    .. [1] Massucco, Del Grande, Carioni, Brune and Schönlieb, *Multi-Headed Transformer
       Architectures as Time-dependent Wasserstein Gradient Flows*, arXiv:2605.18870, section 6.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x = wflow.tokens.cross_polytope(n=4, d=3, spread=0.0, seed=0)
    >>> np.abs(x).max(axis=1)
    array([1., 1., 1., 1.])
    """
    n, d, rng = whole(n, "n"), _dimension(d), _generator(seed)
    spread = _spread(spread)
    _check_size(n, d)
    vertex = rng.integers(2 * d, size=n)
    tokens = spread * rng.standard_normal((n, d))
    tokens[np.arange(n), vertex // 2] += 1.0 - 2.0 * (vertex % 2)
    return as_tokens(tokens, name="cross_polytope")


def uniform(n: int, d: int, *, seed: int = 0) -> Tokens:
    """Draw tokens independently from the uniform law on the sphere.

    Parameters
    ----------
    n : int
        Number of tokens, >= 1.
    d : int
        Dimension of the space, >= 2.
    seed : int, default 0
        Key of the random numbers, >= 0.

    Returns
    -------
    ndarray of float64, shape (n, d)
        Unit vectors R(z) with z ~ N(0, I) and ``R(x) = x/|x|``.

    Raises
    ------
    InputError
        For n < 1, d < 2, or a seed that is not an integer >= 0.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> x = wflow.tokens.uniform(n=5, d=3, seed=0)
    >>> bool(np.allclose(np.linalg.norm(x, axis=1), 1.0))
    True
    """
    n, d, rng = whole(n, "n"), _dimension(d), _generator(seed)
    _check_size(n, d)
    return as_tokens(rng.standard_normal((n, d)), name="uniform")


def clusters(n: int, d: int, *, clusters: int = 4, spread: float = 0.1, seed: int = 0) -> Tokens:
    """Draw tokens around random centres.

    Parameters
    ----------
    n : int
        Number of tokens, >= 1.
    d : int
        Dimension of the space, >= 2.
    clusters : int, default 4
        Number of centres, 1 to n.
    spread : float, default 0.1
        Standard deviation of each coordinate of the noise, >= 0.
    seed : int, default 0
        Key of the random numbers, >= 0.

    Returns
    -------
    ndarray of float64, shape (n, d)
        Unit vectors; token i belongs to cluster i mod `clusters`.

    Raises
    ------
    InputError
        For n < 1, d < 2, clusters outside 1 to n, a negative or infinite spread, or a bad seed.

    Notes
    -----
    Tokens are x_i = R(c_k + spread z_i) with k = i mod `clusters`, z_i ~ N(0, I) and ``R(x) =
    x/|x|``. The centres c_k are uniform on the sphere; cluster sizes differ by at most one.

    Examples
    --------
    >>> import wflow
    >>> x = wflow.tokens.clusters(n=6, d=3, clusters=2, spread=0.01, seed=0)
    >>> bool(x[0] @ x[2] > 0.99)
    True
    """
    n, d, rng = whole(n, "n"), _dimension(d), _generator(seed)
    k, spread = whole(clusters, "clusters"), _spread(spread)
    if k > n:
        raise InputError(f"clusters = {k} with n = {n} tokens: choose clusters <= n")
    _check_size(n, d)
    centres = as_tokens(rng.standard_normal((k, d)), name="cluster centres")
    noise = spread * rng.standard_normal((n, d))
    return as_tokens(centres[np.arange(n) % k] + noise, name="clusters")


def digits(n: int | None = None, d: int = 3, *, seed: int = 0) -> Tokens:
    """Load handwritten digits as tokens: 1797 images of 8 x 8, centred, PCA to d, normalised.

    The principal axes are those of all 1797 images, whatever n.

    Parameters
    ----------
    n : int, optional
        Number of images, a random subset chosen by the seed. None takes all 1797.
    d : int, default 3
        Dimension after reduction, 2 to 64.
    seed : int, default 0
        Key of the random numbers, >= 0.

    Returns
    -------
    ndarray of float64, shape (n, d)
        Unit vectors, in the order of the data set.

    Raises
    ------
    InputError
        Where scikit-learn is missing, for n outside 1 to 1797 or d outside 2 to 64.

    Notes
    -----
    The data set is [1]_, as shipped with scikit-learn.

    References
    ----------
    .. [1] Alpaydin and Kaynak, *Optical recognition of handwritten digits*, UCI Machine Learning
       Repository (1998).

    Examples
    --------
    >>> import wflow
    >>> try:
    ...     shape = wflow.tokens.digits(n=10, d=3).shape
    ... except wflow.InputError:  # without scikit-learn
    ...     shape = 10, 3
    >>> shape
    (10, 3)
    """
    n, d, _ = None if n is None else whole(n, "n"), _dimension(d), _generator(seed)
    data = optional_module("sklearn.datasets", "the handwritten digits").load_digits().data
    return _place(np.asarray(data, dtype=np.float64), "digits", n, d, seed, reduce=True)


def load(
    path: str | os.PathLike[str],
    *,
    d: int | None = None,
    n: int | None = None,
    key: str | None = None,
    seed: int = 0,
) -> Tokens:
    """Read embeddings from a file, reduce them by PCA if asked, and put them on the sphere.

    A file is data: pickled objects are refused and nothing in it is executed.

    Parameters
    ----------
    path : str or pathlib.Path
        File of an array (n', d'): .npy; .npz; .csv (comma-separated numbers, optionally below one
        line of names); .parquet (all columns numbers, or one column of lists); .h5, .hdf5, .nc
        (HDF5, a wflow run file included).
    d : int, optional
        Dimension. None or d': rows are normalised as they are. d < d': rows of the whole file are
        centred and projected to their first d principal axes, then normalised.
    n : int, optional
        Number of tokens, a random subset without replacement chosen by the seed. None takes all.
        Where d is None or d', a file .npy, .npz, .parquet or HDF5 is read in blocks of rows, and
        only the subset is kept in memory. An array of NumPy in Fortran order is one block, a row
        group of .parquet another; one much larger than its file is refused.
    key : str, optional
        Name of the array in .npz and HDF5, of a column of lists in .parquet. None takes the only
        one that has two dimensions.
    seed : int, default 0
        Key of the random numbers, >= 0.

    Returns
    -------
    ndarray of float64, shape (n, d)
        Unit vectors, in the order of the file.

    Raises
    ------
    InputError
        For a missing, damaged, empty or unknown kind of file; text, objects or complex numbers;
        values that are not finite or rows without a direction; n or d larger than the file holds;
        an array that memory has no room for.

    Examples
    --------
    >>> import numpy as np, tempfile, wflow
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/embeddings.npy", [[3.0, 4.0], [0.0, 2.0]])
    ...     wflow.tokens.load(f"{folder}/embeddings.npy")
    array([[0.6, 0.8],
           [0. , 1. ]])
    """
    n = None if n is None else whole(n, "n")
    d = None if d is None else _dimension(d)
    _generator(seed)
    what = f"{path}" if key is None else f"{path}, {key!r}"
    total = 0

    def pick(rows: int, columns: int) -> NDArray[np.int64] | None:
        """Return the rows of the subset, or None if all are needed for their principal axes."""
        nonlocal total
        _check_sizes(rows, columns, what, n, d)
        total = rows
        whole_file = n is None or (d is not None and d < columns)
        return None if whole_file else _subset(rows, n, seed)

    def check(block: Tokens, first: int) -> None:
        _check_rows(block, what, first, total)

    data = read_array(path_of(path, "path"), _key(key), pick, check)
    reduce = d is not None and d < data.shape[1]
    if n is not None and not reduce:
        return as_tokens(data, name=what)
    return _place(data, what, n, d, seed, reduce=reduce)


def pca(z: ArrayLike, d: int) -> NDArray[np.float64]:
    """Centre data and project it to its first d principal axes.

    Parameters
    ----------
    z : array_like, shape (n, d')
        Real finite data.
    d : int
        Number of axes, 1 to d'.

    Returns
    -------
    ndarray of float64, shape (n, d)
        Coordinates (z - mean z) V_d, not normalised.

    Raises
    ------
    InputError
        For an array that is not (n, d') with n, d' >= 1 real finite numbers, or d outside 1 to d'.

    Notes
    -----
    V_d holds the first d right singular vectors of the centred data; each has its largest entry
    positive (of entries equal to 1e-6, the first). An axis along which the data has no variance
    gives coordinates zero. LAPACK's last bits depend on its number of threads, and tokens should
    not: so the axes are rounded to multiples of 2^-24 and then made orthonormal again. They are
    principal to 2^-25 in each entry and orthonormal to rounding, and the projection keeps off BLAS.

    Examples
    --------
    >>> import wflow
    >>> wflow.tokens.pca([[1.0, 1.0], [3.0, 3.0]], d=1).round(6)
    array([[-1.414214],
           [ 1.414214]])
    """
    d = whole(d, "d")
    z = reals(z, "z", finite=False)
    if z.ndim != 2 or z.size == 0:
        raise InputError(f"z has shape {z.shape}; expected (n, d) with n, d >= 1")
    _check_finite(z, "z")
    if d > z.shape[1]:
        raise InputError(f"z has {z.shape[1]} columns, d = {d} asked; choose d <= {z.shape[1]}")
    # A power of two brings the largest entry into [1, 2): no square under- or overflows.
    exponent = int(np.frexp(np.abs(z).max())[1]) - 1
    work = np.ldexp(z, -exponent)
    size = np.sqrt(np.sum(work * work))
    work = work - work.mean(axis=0)
    work -= work.mean(axis=0)  # the first mean is a plain sum and errs with n
    _, values, axes = np.linalg.svd(np.linalg.qr(work, mode="r"), full_matrices=False)
    noise = _EPS * (max(z.shape) * values[0] + 8 * size)
    axes = _canonical(axes[:d][values[:d] > noise])
    scores = np.zeros((len(z), d))
    scores[:, : len(axes)] = np.einsum("nk,ak->na", work, axes)
    return np.ldexp(scores, exponent)


def make(spec: str, n: int | None = None, d: int | None = None, seed: int = 0) -> Tokens:
    """Return tokens named by one word or a file name, as in the `--tokens` flag of studies.

    Parameters
    ----------
    spec : str
        "cross-polytope", "uniform", "clusters", "digits", or a file for `load`; FILE::KEY names the
        array KEY in it.
    n : int, optional
        Number of tokens. None: all rows of data, 200 of a cloud.
    d : int, optional
        Dimension. None: as the file has it, 3 otherwise.
    seed : int, default 0
        Key of the random numbers, >= 0.

    Returns
    -------
    ndarray of float64, shape (n, d)
        Unit vectors.

    Raises
    ------
    InputError
        For a word that is not known, and whatever the function it names raises.

    Examples
    --------
    >>> import wflow
    >>> wflow.tokens.make("uniform", d=4).shape
    (200, 4)
    """
    if not isinstance(spec, str):
        raise InputError(f"spec is {shown(spec)}: expected a word such as uniform, or a file name")
    cloud_n = DEFAULT_N if n is None else n
    cloud_d = DEFAULT_D if d is None else d
    match spec:
        case "cross-polytope":
            return cross_polytope(cloud_n, cloud_d, seed=seed)
        case "uniform":
            return uniform(cloud_n, cloud_d, seed=seed)
        case "clusters":
            count = min(4, whole(cloud_n, "n"))  # fewer than four tokens: one each
            return clusters(cloud_n, cloud_d, clusters=count, seed=seed)
        case "digits":
            return digits(n, cloud_d, seed=seed)
    name, _, key = (spec, "", "") if _is_file(spec) else spec.partition("::")
    if Path(name).suffix or _is_file(name):
        return load(name, d=d, n=n, key=key or None, seed=seed)
    words = (*CLOUDS, "digits")
    raise InputError(
        f"tokens {shown(spec)}: expected {', '.join(words)}, or a file that ends in "
        f"{', '.join(SUFFIXES)}{did_you_mean(spec, words)}"
    )


def _is_file(name: str) -> bool:
    try:
        return os.path.isfile(name)
    except ValueError:  # a null byte, or text that no file system can encode
        return False


def _place(
    data: Tokens, what: str, n: int | None, d: int | None, seed: int, *, reduce: bool
) -> Tokens:
    """Check, reduce, choose n rows and normalise: the common end of `digits` and `load`."""
    rows, columns = data.shape
    _check_sizes(rows, columns, what, n, d)
    _check_rows(data, what, 0, rows)
    if reduce:
        floor = 64 * _EPS * float(np.abs(data).max())  # what is left of a row equal to the mean
        data = pca(data, columns if d is None else d)
        bad = np.flatnonzero(np.abs(data).max(axis=1) <= floor)
        if len(bad) == rows and rows > 1:
            raise InputError(
                f"{what}: all {rows} rows are equal, so no axis is principal; leave d out"
            )
        if len(bad):
            raise InputError(
                f"{what}: row {bad[0]} of {rows} equals the mean in the axes kept and has no "
                f"direction; remove it or choose larger d {_ROWS}"
            )
    if n is not None:
        data = data[_subset(rows, n, seed)]
    return as_tokens(data, name=what)


def _subset(rows: int, n: int | None, seed: int) -> NDArray[np.int64]:
    """Return the ascending numbers of n rows, a random subset without replacement."""
    return np.sort(_generator(seed).choice(rows, size=n, replace=False))


def _check_sizes(rows: int, columns: int, what: str, n: int | None, d: int | None) -> None:
    """Check that a file has as many rows and columns as are asked for."""
    if n is not None and n > rows:
        raise InputError(f"{what}: holds {rows} rows, n = {n} asked; choose n <= {rows}")
    if columns < 2:
        raise InputError(f"{what}: one column only; tokens need d >= 2: add a coordinate")
    if d is not None and d > columns:
        raise InputError(f"{what}: has {columns} columns, d = {d} asked; choose d <= {columns}")


def _check_rows(data: Tokens, what: str, first: int, rows: int) -> None:
    """Check that rows `first`, ... of a file are finite and have directions."""
    _check_finite(data, what, first)
    zero = np.flatnonzero(~data.any(axis=1))
    if len(zero):
        raise InputError(
            f"{what}: row {first + zero[0]} of {rows} has norm zero and no direction on the "
            f"sphere; remove it or shift the data {_ROWS}"
        )


def _canonical(axes: Tokens) -> Tokens:
    """Fix the sign of axes (a, d') and round off the last bits, in which LAPACK may differ."""
    grid = np.round(axes * 2.0**24) / 2.0**24
    for i, axis in enumerate(grid):
        # Not np.dot: BLAS may split a sum over threads.
        axis -= np.einsum("j,jk->k", np.einsum("jk,k->j", grid[:i], axis), grid[:i])
        size = np.abs(axis)
        axis *= np.sign(axis[np.argmax(size >= (1 - 1e-6) * size.max())]) / np.sqrt(np.sum(axis**2))
    return grid


def _key(key: Any) -> str | None:
    if key is not None and not isinstance(key, str):
        raise InputError(f"key is {shown(key)}: expected the name of an array, or None")
    return key


def _dimension(d: Any) -> int:
    return whole(d, "d", 2, why="tokens live on S^(d-1)")


def _generator(seed: Any) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(whole(seed, "seed", 0, most=np.inf)))


def _spread(spread: Any) -> float:
    given = number(spread, "spread", least=0.0)
    if given > 1e300:
        raise InputError(f"spread is {given:g}: expected at most 1e300, so that tokens are finite")
    return given


def _check_size(n: int, d: int) -> None:
    check_memory(8 * COPIES * n * d, f"a cloud of {n} tokens in R^{d}", "take a smaller n or d")


def _check_finite(data: Tokens, what: str, first: int = 0) -> None:
    bad = np.flatnonzero(~np.isfinite(data).all(axis=1))
    if len(bad):
        row = data[bad[0]]
        column = int(np.argmin(np.isfinite(row)))
        raise InputError(
            f"{what}: row {first + bad[0]}, column {column} is {row[column]}; {len(bad)} of "
            f"{len(data)} rows hold values that are not finite; remove or repair them {_ROWS}"
        )
