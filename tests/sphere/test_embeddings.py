"""Tokens from files: every format gives the same rows, and other contents are refused."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_tokens import DATA, is_on_sphere, refused

from wflow import InputError, tokens
from wflow.sphere import embeddings, normalise

WITH_FILES = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def write_columns(path: Path, **options) -> Path:
    arrow = pytest.importorskip("pyarrow", reason="reading parquet needs pyarrow")
    table = arrow.table(options.pop("columns"))
    pytest.importorskip("pyarrow.parquet").write_table(table, path, **options)
    return path


def columns_of(array: np.ndarray) -> dict[str, np.ndarray]:
    return {f"c{i}": column for i, column in enumerate(array.T)}


def write(path: Path, array: np.ndarray) -> Path:
    match path.suffix:
        case ".npy":
            np.save(path, array)
        case ".npz":
            np.savez(path, emb=array, labels=np.arange(len(array)))
        case ".csv":
            np.savetxt(path, array, delimiter=",", fmt="%.17g")
        case ".parquet":
            write_columns(path, columns=columns_of(array))
        case _:
            with h5py.File(path, "w") as handle:
                handle["group/emb"] = array
                handle["labels"] = np.arange(len(array))
    return path


@pytest.mark.parametrize(
    "suffix", [".npy", ".npz", ".csv", ".parquet", ".h5", ".hdf5", ".nc", ".NPY"]
)
def test_every_kind_of_file_gives_the_same_normalised_rows(tmp_path, suffix):
    path = write(tmp_path / f"embeddings{suffix.lower()}", DATA)
    path = path.rename(path.with_suffix(suffix))
    x = tokens.load(path)
    assert np.allclose(x, normalise(DATA), rtol=0, atol=1e-15)
    assert np.array_equal(tokens.load(str(path), d=6), x)  # as is: neither centred nor turned
    reduced = tokens.load(path, d=3)
    assert np.array_equal(reduced, tokens.as_tokens(tokens.pca(DATA, 3)))
    assert np.array_equal(tokens.make(str(path), d=3), reduced)


@pytest.mark.parametrize("dtype", ["f2", "f4", "i4", "u1", "bool", "longdouble", ">f8"])
def test_real_types_of_numbers_are_read(tmp_path, dtype):
    array = (np.abs(DATA) + 1).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    assert np.allclose(tokens.load(tmp_path / "a.npy"), normalise(array.astype(float)), atol=1e-15)


@given(n=st.integers(1, 40), seed=st.integers(0, 1000), d=st.sampled_from([None, 2, 6]))
@WITH_FILES
def test_subset_is_rows_of_the_whole_in_their_order_chosen_by_the_seed(tmp_path, n, seed, d):
    path = write(tmp_path / "a.npy", DATA)
    whole = tokens.load(path, d=d)
    part = tokens.load(path, d=d, n=n, seed=seed)
    rows = [int(np.flatnonzero((whole == token).all(axis=1))[0]) for token in part]
    assert len(set(rows)) == n and rows == sorted(rows)
    assert np.array_equal(part, tokens.load(path, d=d, n=n, seed=seed))


@pytest.mark.parametrize("kind", ["npy", "fortran", "npz", "h5", "chunks", "parquet", "lists"])
def test_blocks_of_rows_give_what_the_whole_file_gives(tmp_path, monkeypatch, kind):
    whole = tokens.load(write(tmp_path / "a.csv", DATA))
    suffixes = {"fortran": "npy", "chunks": "h5", "lists": "parquet"}
    path = tmp_path / f"b.{suffixes.get(kind, kind)}"
    if kind == "npy":
        np.save(path, DATA)
    elif kind == "npz":
        np.savez_compressed(path, x=DATA)
    elif kind == "fortran":
        np.save(path, np.asfortranarray(DATA))
    elif path.suffix == ".parquet":  # in groups of rows
        columns = columns_of(DATA) if kind == "parquet" else {"emb": DATA.tolist()}
        write_columns(path, columns=columns, row_group_size=7)
    else:
        with h5py.File(path, "w") as handle:
            handle.create_dataset("x", data=DATA, chunks=(7, 4) if kind == "chunks" else None)
    monkeypatch.setattr(embeddings, "_BLOCK", 3 * 8 * DATA.shape[1])
    assert np.array_equal(tokens.load(path), whole)
    expected = tokens.load(tmp_path / "a.csv", n=5, seed=3)
    assert np.array_equal(tokens.load(path, n=5, seed=3), expected)
    assert np.array_equal(tokens.load(path, n=5, d=2), tokens.load(tmp_path / "a.csv", n=5, d=2))


def test_key_names_the_array_among_several(tmp_path):
    np.savez(tmp_path / "two.npz", train=DATA, test=DATA[:7] + 1, names=np.array(["a", "b"]))
    with h5py.File(tmp_path / "two.h5", "w") as handle:
        handle["train"], handle["deep/test"] = DATA, DATA[:7] + 1
    with refused("arrays"):
        tokens.load(tmp_path / "two.npz")
    with refused("'valid'"):
        tokens.load(tmp_path / "two.npz", key="valid")
    assert len(tokens.load(tmp_path / "two.npz", key="test")) == 7
    assert len(tokens.load(tmp_path / "two.h5", key="/deep/test")) == 7
    assert len(tokens.make(f"{tmp_path / 'two.h5'}::deep/test", d=2)) == 7
    with refused("no array 'deep'"):  # a group
        tokens.load(tmp_path / "two.h5", key="deep")
    for name in ("a.npy", "a.csv"):
        with refused("names"):
            tokens.load(write(tmp_path / name, DATA), key="a")


def test_run_file_offers_its_initial_tokens(tmp_path):
    x = tokens.uniform(10, 3, seed=0)
    with h5py.File(tmp_path / "run.h5", "w") as handle:
        handle.attrs["schema"] = "wflow-run/1"
        handle["energy"], handle["dissipation"] = np.ones((2, 5)), np.ones((2, 5))
        handle["initial_tokens"] = x
    with refused("initial_tokens"):
        tokens.load(tmp_path / "run.h5")
    got = tokens.load(tmp_path / "run.h5", key="initial_tokens")
    assert np.allclose(got, x, rtol=0, atol=1e-15)


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path(self.target),))

    def __init__(self, target):
        self.target = str(target)


def test_pickled_objects_are_refused_and_never_run(tmp_path):
    hit = tmp_path / "hit"
    objects = np.array([[Bomb(hit), Bomb(hit)]], dtype=object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "a.npz", bad=objects, allow_pickle=True)
    for name in ("a.npy", "a.npz"):
        with refused(str(tmp_path / name)):
            tokens.load(tmp_path / name)
    with refused("allow_pickle"):
        tokens.load(tmp_path / "a.npz", key="bad")
    np.savez(tmp_path / "b.npz", bad=objects, good=DATA, allow_pickle=True)
    assert len(tokens.load(tmp_path / "b.npz")) == 40
    assert not hit.exists()


@pytest.mark.parametrize(
    ("content", "options", "match"),
    [
        (DATA[0], {}, r"shape \(6,\); expected \(n, d\)"),
        (np.ones((2, 3, 4)), {}, r"shape \(2, 3, 4\)"),
        (np.ones((4, 1)), {}, "one column only"),
        (np.array([["a", "b"]]), {}, "expected real numbers"),
        (np.ones((3, 2)) * 1j, {}, "complex"),
        (np.array([[1.0, 2], [3, np.inf]]), {}, "row 1, column 1"),
        (np.array([[1.0, 2], [0, 0]]), {}, "row 1 of 2"),
        (np.array([[1.0, 2], [0, 0]]), {"n": 1}, "row 1 of 2"),
        # Centring would give such a row a direction that it does not have.
        (np.array([[1.0, 2, 0], [0, 0, 0], [3, 1, 1]]), {"d": 2}, "row 1 of 3"),
        (np.full((5, 3), 0.1), {"d": 2}, "equal"),
        (np.array([[1.0, 2, 3], [3, 2, 1], [2, 2, 2]]), {"d": 2}, "row 2 of 3"),
        (DATA, {"d": 7}, "6 columns, d = 7 asked; choose d <= 6"),
        (DATA, {"d": 1}, "d is 1"),
        (DATA, {"n": 41}, "40 rows, n = 41 asked; choose n <= 40"),
        ("", {}, "no values"),
        ("a,b\n", {}, "no values"),
        ("a,b\n1,2\n3,x\n", {}, "line 3 holds 'x'"),
        ("1,2\n3\n", {}, "line 2"),
        ("1.5,,2\n1,2,3\n", {}, "line 1 holds ''"),
        ("x,1.5\n1,2\n", {}, "line 1 holds 'x'"),
        (",0,1\n0,1,2\n", {}, "index=False"),
        ("a;b\n1;2\n", {}, "line 2"),
        ("1,nan\n2,3\n", {}, "row 0, column 1"),
        ("1,1_0\n", {}, "line 1 holds '1_0'"),
    ],
)
def test_contents_that_are_no_tokens_are_refused_by_name(tmp_path, content, options, match):
    path = tmp_path / "bad.npy"
    if isinstance(content, str):
        path = path.with_suffix(".csv")
        path.write_text(content)
    else:
        np.save(path, content)
    with refused(match) as caught:
        tokens.load(path, **options)
    if content is not DATA:
        assert path.name in str(caught.value)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("1,2\n3,4\n", 2),
        ("a,b\n1,2\n3,4\n", 2),
        ("\n\n# a,b\n1,2\n\n3,4", 2),
        ('"a","b"\r\n"1","2"\r\n', 1),
        ("0,1\n1,0\n", 2),
        ("\ufeffa,b\n1,2\n", 1),
        (" 1e3 , -2E-1 \n", 1),
    ],
)
def test_csv_is_read_with_or_without_a_line_of_names(tmp_path, text, rows):
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    assert len(tokens.load(tmp_path / "a.csv")) == rows


def test_csv_line_of_column_numbers_is_a_token_and_a_warning_says_so(tmp_path):
    (tmp_path / "a.csv").write_text("0,1,2\n1,0,5\n")
    with pytest.warns(UserWarning, match="token"):
        x = tokens.load(tmp_path / "a.csv")
    assert np.allclose(x, normalise(np.array([[0.0, 1, 2], [1, 0, 5]])), rtol=0, atol=1e-15)


def test_missing_unknown_and_foreign_files_are_refused(tmp_path):
    (tmp_path / "folder.npy").mkdir()
    for name, said in (
        ("none.npy", "no such file"), ("folder.npy", "not a file"), ("a.pkl", ".pkl"),
        ("a", "files without a suffix"),
    ):  # fmt: skip
        with refused(said):
            tokens.load(tmp_path / name)
    for suffix in (".npy", ".npz", ".h5"):
        for content in (b"", b"hello\nworld, this is no array"):
            (tmp_path / f"foreign{suffix}").write_bytes(content)
            with refused(f"foreign{suffix}"):
                tokens.load(tmp_path / f"foreign{suffix}")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".h5", ".parquet"])
@given(data=st.data())
@WITH_FILES
def test_damaged_file_is_read_or_refused_but_never_breaks_out(tmp_path, suffix, data):
    whole = write(tmp_path / f"whole{suffix}", DATA[:5]).read_bytes()
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            at = data.draw(st.integers(0, len(damaged) - 1))
            damaged[at] = data.draw(st.integers(0, 255))
    (tmp_path / f"damaged{suffix}").write_bytes(damaged)
    try:
        x = tokens.load(tmp_path / f"damaged{suffix}")
    except InputError as error:
        assert f"damaged{suffix}" in str(error)
    else:
        assert is_on_sphere(x)


def test_parquet_takes_columns_of_numbers_or_one_column_of_lists(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="reading parquet needs pyarrow")

    def file(**columns) -> Path:
        return write_columns(tmp_path / "a.parquet", columns=columns)

    x = tokens.load(write(tmp_path / "plain.parquet", DATA))
    names = [f"w{i}" for i in range(40)]
    fixed = arrow.FixedSizeListArray.from_arrays(arrow.array(DATA.ravel()), 6)
    for lists in (arrow.array(DATA.tolist()), fixed):
        assert np.array_equal(tokens.load(file(word=names, emb=lists)), x)
        path = file(emb=lists, other=lists)
        assert np.array_equal(tokens.load(path, key="other"), x)
        with refused("'emb'"):
            tokens.load(path)
    with refused("'word'"):
        tokens.load(file(word=names, c0=DATA[:, 0], c1=DATA[:, 1]))
    for rows in ([[1.0, 2.0], [3.0]], [[1.0, 2.0], None]):
        with refused("differ in length"):
            tokens.load(file(emb=rows))
    with refused("row 1, column 0"):
        tokens.load(file(a=[1, None], b=[1.0, 2.0]))
    with refused("no values"):
        tokens.load(file(emb=arrow.array([], arrow.list_(arrow.float64()))))


def test_missing_package_of_an_extra_is_named_with_the_command_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with refused(r"\[studies\]"):
        tokens.load(tmp_path / "a.parquet")
    with refused(r"\[studies\]"):
        tokens.digits()


def test_hdf5_that_reads_other_files_or_states_huge_dimensions_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(np.ones(12).tobytes())
    outside, huge, virtual = (tmp_path / f"{name}.h5" for name in ("outside", "huge", "virtual"))
    with h5py.File(outside, "w") as file:
        kept = [(str(tmp_path / "secret"), 0, 96)]
        file.create_dataset("x", (4, 3), "f8", external=kept)
    with h5py.File(huge, "w") as file:
        file.create_dataset("x", (2**40, 3), "f8", chunks=(100, 3))
    with h5py.File(virtual, "w") as file:
        layout = h5py.VirtualLayout((4, 3), "f8")
        layout[:] = h5py.VirtualSource(str(outside), "x", (4, 3))
        file.create_virtual_dataset("x", layout)
    elsewhere = "in another file"
    for path, message in ((outside, elsewhere), (virtual, elsewhere), (huge, "are not stored")):
        with pytest.raises(InputError, match=message):
            tokens.load(path)
