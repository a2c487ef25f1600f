"""Clouds of points: meshes, surfaces, ModelNet40 in its two formats, sets of pixels, batches."""

import io
import math
import zipfile

import h5py
import numpy as np
import pytest
import torch
from archives import fill, zipped

from wflow import InputError
from wflow.nets import data
from wflow.nets.data import archives, clouds, modelnet, shapes

pytestmark = pytest.mark.usefixtures("nothing_at_hand")

SQUARE = [[0, 0, 0], [2, 0, 0], [2, 2, 0], [0, 2, 0]]
OFF = "OFF\n4 2 0\n0 0 0\n2 0 0\n2 2 0\n0 2 0\n3 0 1 2\n3 0 2 3\n"
GLUED = OFF.replace("OFF\n4", "OFF4")


# OFF files.


@pytest.mark.parametrize(
    "text",
    [
        OFF,
        GLUED,  # of ModelNet40: OFF490 518 0
        OFF.replace("\n", "\r\n"),
        "OFF\n# a comment\n4 1 0\n\n0 0 0\n2 0 0 # a corner\n2 2 0\n0 2 0\n4 0 1 2 3 255 0 0\n",
        OFF.replace("3 0 1 2", "3 0 1 2 0.5 0.5 0.5"),
    ],
)
def test_off_files_in_all_their_forms_are_one_square(tmp_path, text):
    path = tmp_path / "square.off"
    path.write_text(text, newline="")
    mesh = data.read_off(path)
    assert mesh.vertices.tolist() == SQUARE
    assert mesh.faces.tolist() == [[0, 1, 2], [0, 2, 3]]


def test_off_files_that_are_damaged_are_refused(tmp_path):
    path = tmp_path / "square.off"
    faces = [OFF.replace("3 0 2 3", face) for face in ("3 0 2 4", "3 -1 2 3", "x 0 2 3")]
    corners = [OFF.replace("2 2 0\n", corner) for corner in ("2 2\n", "2 nan 0\n")]
    for text in ("", "PLY\n4 2 0", OFF[:-10], "OFF\n999999999999 1 0\n0 0 0\n", *faces, *corners):
        path.write_text(text)
        with pytest.raises(InputError, match=r"square\.off"):
            data.read_off(path)
    with pytest.raises(InputError, match=r"none\.off"):
        data.read_off(tmp_path / "none.off")


# Surfaces.


def test_points_on_a_surface_are_uniform_with_respect_to_area():
    # A triangle of area 1/2 in the plane z = 0, one of area 3/2 in z = 1, one without area.
    corners = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [0, 3, 1]]
    faces = [[0, 1, 2], [0, 0, 1], [3, 4, 5]]
    n = 40_000
    points = data.sample_surface(corners, faces, n, seed=3)
    low = points[points[:, 2] == 0]
    assert abs(len(low) / n - 0.25) < 4 * np.sqrt(0.25 * 0.75 / n)
    assert set(points[:, 2].round(12)) == {0.0, 1.0}
    # Mean and covariance of the uniform law on the triangle (0, 0), (1, 0), (0, 1).
    assert np.abs(low[:, :2].mean(0) - 1 / 3).max() < 4 * np.sqrt(1 / 18 / len(low))
    assert np.allclose(np.cov(low[:, :2].T), [[1 / 18, -1 / 36], [-1 / 36, 1 / 18]], atol=2e-3)
    assert (low[:, :2].sum(1) <= 1 + 1e-12).all() and (low >= 0).all()
    assert np.array_equal(points[:7], data.sample_surface(corners, faces, 7, seed=3))
    assert not np.array_equal(points[:7], data.sample_surface(corners, faces, 7, seed=4))


# ModelNet40, from files made in its formats.


def off_files(broken=0):
    """Return a mesh of each kind in both halves, at a height of its own; some without area."""
    files = {}
    for label, kind in enumerate(("chair", "airplane")):
        for half, count in (("train", 3), ("test", 2)):
            for k in range(count):
                text = (GLUED if k else OFF).replace(" 0\n", f" {10 * label + k}\n")
                text = text.replace(f"2 {10 * label + k}\n", "2 0\n", 1)  # the header
                files[f"ModelNet40/{kind}/{half}/{kind}_{k + 1:04}.off"] = text
    for name in list(files)[:broken]:
        files[name] = "OFF\n3 1 0\n0 0 0\n0 0 0\n0 0 0\n3 0 1 2\n"
    files |= {"ModelNet40/.DS_Store": "x", "__MACOSX/chair/train/._chair_0001.off": "x"}
    return {name: text.encode() for name, text in files.items()}


def packed(files):
    return {"ModelNet40.zip": zipped(files, zipfile.ZIP_DEFLATED)}


def small(folder, **options):
    """Return the clouds of an archive that has fewer of them than the published one."""
    return data.modelnet40(folder=folder, partial=True, **{"points": 9} | options)


@pytest.mark.parametrize("pack", [dict, packed])
def test_meshes_become_clouds_of_the_two_halves_once(tmp_path, pack, monkeypatch):
    folder = fill(tmp_path / "data", pack(off_files()))
    found = small(folder)
    assert found.names == ("airplane", "chair")
    assert found.train_points.shape == (6, 9, 3) and found.test_points.shape == (4, 9, 3)
    assert found.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    heights = found.train_points[:, :, 2]
    assert (heights == heights[:, :1]).all()
    assert heights[:, 0].tolist() == [10, 11, 12, 0, 1, 2]
    assert found.train_counts.tolist() == [9] * 6 and "6 training and 4 test" in found.source
    (kept,) = (tmp_path / "cache" / "modelnet40").iterdir()
    with monkeypatch.context() as second:
        second.setattr(modelnet, "parse_off", None)  # the second time nothing is read
        assert torch.equal(small(folder).train_points, found.train_points)
    kept.write_bytes(kept.read_bytes()[:100])  # a damaged cache is drawn again
    assert torch.equal(small(folder).test_points, found.test_points)
    assert not torch.equal(small(folder, seed=1).train_points, found.train_points)


def test_the_official_numbers_are_demanded(tmp_path):
    folder = fill(tmp_path / "data", packed(off_files()))
    for given, words in ((folder, "9843"), (tmp_path, r"ModelNet40\.zip"), (None, "ModelNet40")):
        with pytest.raises(InputError, match=words):
            data.modelnet40(folder=given)


def test_meshes_without_area_are_named_and_left_out_or_refused(tmp_path, monkeypatch):
    folder = fill(tmp_path / "data", packed(off_files(broken=1)))
    with pytest.raises(InputError, match=r"chair_0001\.off"):
        small(folder)
    monkeypatch.setattr(archives, "LOST", 0.1)
    for _ in range(2):  # drawn, and from the cache
        with pytest.warns(UserWarning, match=r"chair_0001\.off"):
            found = small(folder)
    assert found.train_labels.tolist() == [0, 0, 0, 1, 1]
    assert found.train_points.isfinite().all()


def test_archives_that_are_damaged_are_refused(tmp_path):
    path = fill(tmp_path / "data", packed(off_files())) / "ModelNet40.zip"
    whole = path.read_bytes()
    place = whole.index(b".off") + 6  # in the first compressed mesh
    flipped = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
    for content in (whole[: len(whole) // 2], zipped({"photographs/cat.jpg": b"x"}), flipped):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"ModelNet40\.zip"):
            small(path.parent)


def hdf5(points, labels):
    file = io.BytesIO()
    with h5py.File(file, "w") as out:
        out["data"], out["label"] = points, labels
    return file.getvalue()


def pointnet_files(tmp_path, **changes):
    """Return a folder with an archive of points in three files, and the points."""
    draw = np.random.default_rng(0)
    parts = [draw.standard_normal((n, 20, 3)).astype("f4") for n in (3, 2, 2)]
    labels = [np.array(v, "u1")[:, None] for v in ([1, 0, 1], [0, 0], [1, 0])]
    base = "modelnet40_ply_hdf5_2048/"
    names = ["ply_data_train0.h5", "ply_data_train1.h5", "ply_data_test0.h5"]
    listed = [f"data/{base}{name}\n" for name in names]
    files = {n: hdf5(p, v) for n, p, v in zip(names, parts, labels, strict=True)}
    files["train_files.txt"] = "".join(listed[:2]).encode()
    files["test_files.txt"] = listed[2].encode()
    files["shape_names.txt"] = b"airplane\nchair\n"
    files = {base + name: held for name, held in (files | changes).items() if held is not None}
    return fill(tmp_path, {"modelnet40_ply_hdf5_2048.zip": zipped(files)}), parts


def test_points_of_pointnet_are_read_in_place(tmp_path):
    folder, parts = pointnet_files(tmp_path / "data")
    found = small(folder, points=5)
    assert found.names == ("airplane", "chair")
    assert found.train_labels.tolist() == [0, 0, 0, 1, 1]
    rows = np.concatenate(parts[:2])[[1, 3, 4, 0, 2], :5]
    assert np.array_equal(found.train_points, rows)
    assert np.array_equal(found.test_points, parts[2][[1, 0], :5])
    every = data.modelnet40(folder=folder, partial=True)  # all points that there are
    assert every.train_points.shape == (5, 20, 3) and every.train_counts.tolist() == [20] * 5
    with pytest.raises(InputError, match="expected 40, 9840 and 2468"):
        data.modelnet40(folder=folder, points=5)
    with pytest.raises(InputError, match="points"):
        small(folder, points=21)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("shape_names.txt", None),
        ("test_files.txt", b""),
        ("ply_data_train0.h5", b"not HDF5"),
        ("ply_data_train0.h5", hdf5(np.ones((2, 20)), [0, 0])),
        ("ply_data_train0.h5", hdf5(np.ones((1, 20, 3)), [2])),
        ("ply_data_train0.h5", hdf5(np.full((1, 20, 3), np.nan), [1])),
    ],
)
def test_files_of_points_that_are_damaged_are_refused(tmp_path, name, content):
    folder, _ = pointnet_files(tmp_path / "data", **{name: content})
    with pytest.raises(InputError, match=name):
        small(folder, points=5)


# Sets of pixels, solids.


def test_pixels_of_an_image_are_points_with_their_place_and_grey_value():
    images = torch.zeros(2, 28, 28, dtype=torch.uint8)
    images[0, 0, 0], images[0, 13, 27], images[1, 27, 5] = 255, 51, 102
    points, counts = clouds.pixel_sets(images)
    assert counts.tolist() == [2, 1] and points.shape == (2, 2, 3)
    want = [[-13.5 / 7, 13.5 / 7, 1], [13.5 / 7, 0.5 / 7, 0.2]]
    assert torch.allclose(points[0], torch.tensor(want))
    assert torch.allclose(points[1, 0], torch.tensor([-8.5 / 7, -13.5 / 7, 0.4]))
    assert not points[1, 1].any()
    images[1] = 0
    with pytest.raises(InputError, match="image 1 is empty"):
        clouds.pixel_sets(images)


def test_solids_are_closed_surfaces_of_their_own_area():
    meshes = shapes.solid_meshes()
    area = {}
    for name, mesh in meshes.items():
        _, place = np.unique(mesh.vertices.round(9), axis=0, return_inverse=True)
        faces = place.reshape(-1)[mesh.faces]
        faces = faces[(faces != np.roll(faces, 1, axis=1)).all(1)]  # not those on the axis
        pairs = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), 1)
        _, times = np.unique(pairs, axis=0, return_counts=True)
        assert (times == 2).all(), name  # each edge is that of two triangles: there are no holes
        area[name] = np.linalg.norm(np.cross(*edges_of(mesh)), axis=1).sum() / 2
    assert len(area) == 12
    assert area["box"] == pytest.approx(6 * 1.6**2)
    assert area["tetrahedron"] == pytest.approx(3**0.5 * 8)
    assert area["ball"] == pytest.approx(4 * np.pi, rel=0.02)
    assert area["torus"] == pytest.approx(4 * np.pi**2 * 0.4, rel=0.02)
    assert area["capsule"] == pytest.approx(4 * np.pi * 0.7**2 + 2 * np.pi * 0.7 * 1.2, rel=0.02)


def edges_of(mesh):
    a, b, c = (mesh.vertices[mesh.faces[:, k]] for k in range(3))
    return b - a, c - a


def test_solids_are_the_same_however_many_there_are():
    few, many = (data.solids(train=n, test=12, points=8) for n in (12, 30))
    assert torch.equal(few.train_points, many.train_points[:12])
    assert torch.equal(few.test_points, many.test_points)
    assert not torch.equal(few.train_points, few.test_points)
    assert many.train_labels.tolist() == [k % 12 for k in range(30)]
    plain = data.solids(train=12, test=12, points=400, noise=0.0)
    radius = plain.train_points[0].norm(dim=1)  # a ball with axes from exp(-0.35) to exp(0.35)
    assert math.exp(-0.36) < radius.min() and radius.max() < math.exp(0.36)


def test_standardised_clouds_have_mean_zero_and_size_one():
    points = torch.randn(3, 50, 3, dtype=torch.float64) * 5 + torch.tensor([10.0, 0, -3])
    for centre in ("centroid", "scalar"):
        moved = data.standardised(points, centre=centre)
        assert torch.allclose(moved.square().mean((1, 2)), torch.ones(3, dtype=torch.float64))
        assert abs(float(moved.mean((1, 2)).abs().max())) < 1e-12
        assert (float(moved.mean(1).abs().max()) < 1e-12) is (centre == "centroid")
    assert not data.standardised(torch.ones(1, 4, 3)).any()


# Batches.

COUNTS = torch.tensor([5, 2, 6, 1, 4])
STORED = torch.where(
    (torch.arange(6) < COUNTS[:, None])[:, :, None],
    10.0 * torch.arange(5)[:, None, None] + torch.arange(6)[:, None] + torch.zeros(3),
    torch.tensor(0.0),
)


def batches(**options):
    given = {"batch": 2, "seed": 3} | options
    return data.CloudBatches(STORED, COUNTS, torch.arange(5), **given)


@pytest.mark.parametrize("points", [None, 3])
def test_batches_hold_points_of_their_clouds_and_masks(points):
    source = batches(points=points)
    assert source.per_epoch == 2 and source.padded
    seen = []
    for step in range(6):
        values, mask, labels = source(step)
        assert values.shape == (2, points or 6, 3) and labels.dtype == torch.int64
        for cloud, there, label in zip(values, mask, labels, strict=True):
            own = cloud[there, 0]
            assert len(own) == min(int(COUNTS[label]), points or 6)
            assert (own // 10 == label).all() and len(set(own.tolist())) == len(own)
            assert (own.diff() > 0).all() and not cloud[~there].any()
        seen.append(labels.tolist())
    assert len({k for pair in seen[:2] for k in pair}) == 4


def test_subsets_change_with_the_step_unless_they_are_fixed():
    points = torch.arange(40.0).repeat(4, 1)[:, :, None].expand(-1, -1, 3)
    counts, labels = torch.full((4,), 40), torch.zeros(4, dtype=torch.int64)
    free = data.CloudBatches(points, counts, labels, batch=2, points=10)
    fixed = data.CloudBatches(points, counts, labels, batch=2, points=10, fixed_subset=True)
    assert not free.padded and len(free(0)) == 2
    assert not torch.equal(free(0)[0], free(1)[0]) and not torch.equal(*free(0)[0])
    assert torch.equal(fixed(0)[0], fixed(7)[0]) and torch.equal(*fixed(0)[0])
    whole, pairs = (torch.cat([part for part, _ in free.evaluation(n)]) for n in (4, 3))
    assert torch.equal(whole, pairs)
    assert torch.equal(next(fixed.evaluation())[0], fixed(0)[0])
    one = data.CloudBatches(points, counts, labels, batch=1, points=10, seed=2)
    seen = torch.cat([one(step)[0] for step in range(4)])  # steps that are numbers of clouds
    taken = torch.cat([part for part, _ in one.evaluation()])
    assert not any(torch.equal(cloud, other) for cloud in seen for other in taken)


def test_posed_clouds_are_turned_and_stretched_within_their_bounds():
    points = torch.eye(3).repeat(50, 1, 1)
    source = data.CloudBatches(
        points, torch.full((50,), 3), torch.zeros(50, dtype=torch.int64), batch=50,
        augment=data.RandomPoses(),
    )  # fmt: skip
    values, _ = source(0)
    assert not torch.equal(values, source(1)[0])
    assert ((values[:, 2, 2] >= 0.8) & (values[:, 2, 2] <= 1.25)).all()
    assert not values[:, 2, :2].any() and not values[:, :2, 2].any()
    tangent = values[:, 0, 1].abs() / values[:, 0, 0]
    assert (tangent <= math.tan(0.1 * math.pi) * 1.25 / 0.8).all() and tangent.max() > 0.1
    assert torch.equal(next(source.evaluation())[0], points)


# Perturbations.


def test_points_are_dropped_from_padded_clouds_by_their_own_numbers():
    mask = torch.arange(6) < COUNTS[:, None]
    left, there = data.drop_points(STORED, 0.5, 1, mask=mask)
    assert there.sum(1).tolist() == [3, 1, 3, 1, 2] and left.shape == (5, 3, 3)
    for k in range(5):
        own = left[k][there[k]][:, 0]
        assert (own // 10 == k).all() and (own.diff() > 0).all()
    fewer, still = data.drop_points(STORED, 0.8, 1, mask=mask)
    assert set(fewer[0][still[0]][:, 0].tolist()) <= set(left[0][there[0]][:, 0].tolist())
    assert torch.equal(data.drop_points(STORED, 0.0, 1, mask=mask)[0], STORED)
    full = data.drop_points(STORED, 0.5, 1, mask=torch.ones(5, 6, dtype=torch.bool))
    assert torch.equal(full[0], data.drop_points(STORED, 0.5, 1))


@pytest.mark.parametrize("about", ["random", "third"])
def test_rotations_keep_distances_and_orientation(about):
    points = torch.randn(6, 5, 3, dtype=torch.float64)
    turned = data.rotate_points(points, 0.7, 2, about=about)
    assert torch.allclose(torch.cdist(turned, turned), torch.cdist(points, points))
    frame = torch.eye(3, dtype=torch.float64).repeat(6, 1, 1)
    matrices = data.rotate_points(frame, 0.7, 2, about=about)
    assert torch.allclose(torch.linalg.det(matrices), torch.ones(6, dtype=torch.float64))
    traces = matrices.diagonal(dim1=1, dim2=2).sum(1)
    assert torch.allclose(traces, torch.full((6,), 1 + 2 * math.cos(0.7), dtype=torch.float64))
    assert torch.allclose(points @ matrices, turned)
    back = data.rotate_points(turned, -0.7, 2, about=about)
    assert torch.allclose(back, points)
    if about == "third":
        assert torch.equal(turned[:, :, 2], points[:, :, 2])
        assert len({round(float(m[0, 1]), 9) for m in matrices}) == 2  # to both sides
