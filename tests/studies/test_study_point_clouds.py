"""The study of point clouds, end to end and small, and its verdicts."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scripts import script  # noqa: E402

from wflow import nets  # noqa: E402
from wflow.study.networks import Results, Trained  # noqa: E402

study = script("point_clouds")
NAMES = ("baseline", "node", "unregularised", "slight", "continuous")


def test_study_writes_its_tables_and_resumes(resumed, no_data):
    done = resumed("point_clouds", "--epochs", "1", "--seeds", "1", only="continuous")
    table = done.table
    assert "solids: 48 training" in done.said
    assert table["accuracy_dropped"].sizes == {"model": 5, "seed": 1, "share": 6}
    for name, coord in (("accuracy_dropped", "share"), ("accuracy_rotated", "angle")):
        assert np.array_equal(table[name].sel({coord: 0}), table["final"])
    assert (table["straightness"].sel(model=list(NAMES[1:])) >= 1).all()
    assert not table["diverged"].any()


def test_sets_of_pixels_go_through_every_measurement(monkeypatch):
    # The padded path, with digits that are made here.
    images = (torch.rand(30, 28, 28) < 0.1).to(torch.uint8) * 200
    images[:, 14, 14] = 255
    points, counts = nets.data.clouds.pixel_sets(images)
    labels = torch.arange(30) % 10
    clouds = nets.data.PointClouds(
        *(points, counts, labels), *(points, counts, labels), tuple("0123456789"), "random"
    )
    monkeypatch.setattr(nets.data, "mnist_clouds", lambda **_: clouds)
    flags = study.PointClouds.of(
        "smoke", dataset="mnist", points=int(counts.max()), epochs=1, batch=10, device="cpu"
    )
    data = study.load(flags)
    assert data.mask is not None and torch.equal(data.mask.sum(1), counts)
    for name in ("continuous", "baseline"):
        model = study.models(flags)[name]
        run = study.plan(flags, data, model, 0)
        history = nets.train.train(run.model, run.objective, run.batches, run.config)
        history["accuracy"] = ("evaluation", [0.1])
        trained = Trained(run.model.eval(), history, torch.device("cpu"), False)
        record = study.measure(flags, data, model, trained, 0)
        assert np.isfinite(record["dropped"] + record["rotated"]).all()
        assert np.isfinite(record["transport"]) == (name == "continuous")
        assert record["training"] > 0


def test_the_paper_preset_is_the_published_one():
    flags = study.PointClouds.of("paper")
    assert (flags.points, flags.batch, flags.epochs, flags.seeds) == (5_000, 64, 200, 5)
    assert (flags.steps, flags.lam, flags.lam_node, flags.rate) == (8, 1.0, 0.1, 1e-3)
    clouds = nets.data.PointClouds(
        *[torch.zeros(1, 1, 3), torch.ones(1).long(), torch.zeros(1).long()] * 2,
        tuple(map(str, range(40))),
        "none",
    )
    for name, printed in study.ott.PUBLISHED["Table 6"]["parameters"].items():
        net = study.network(flags, study.models(flags)[name], clouds, 0)
        assert f"{study.size_of_blocks(net)[1] / 1e6:.2f}M" == printed, name


@pytest.mark.parametrize(
    ("line", "sizes"),
    [
        ("--preset paper --dataset solids", ("solids", 0, 0, 5_000, 200)),
        ("--dataset mnist --preset paper", ("mnist", 0, 0, 5_000, 200)),  # all of them
        ("", ("mnist", 10_000, 2_000, 96, 5)),
        ("--dataset=solids", ("solids", 2_400, 600, 64, 20)),
        ("--dataset solids --epochs 7", ("solids", 2_400, 600, 64, 7)),
        ("--dataset modelnet40", ("modelnet40", 0, 0, 96, 5)),
        ("--preset smoke --dataset mnist", ("mnist", 10_000, 2_000, 16, 2)),
    ],
)
def test_a_preset_has_sizes_for_every_data_set(line, sizes, monkeypatch):
    monkeypatch.setattr("sys.argv", ["study", *line.split()])
    flags = study.study.command_line(study.PointClouds, None)
    assert (flags.dataset, flags.train, flags.test, flags.points, flags.epochs) == sizes
    changed = "--epochs" in line or flags.preset == "smoke"
    assert study.networks.is_published(flags) == (not changed)


@pytest.mark.parametrize("points", ["8", "64"])
def test_points_of_pointnet_go_through_the_study(
    points, tmp_path, monkeypatch, run_study, sketched
):
    folder = tmp_path / "data" / "modelnet40_ply_hdf5_2048"
    folder.mkdir(parents=True)
    (folder / "shape_names.txt").write_text("airplane\nchair\n")
    draw = np.random.default_rng(0)
    for half, count in (("train", 12), ("test", 6)):
        (folder / f"{half}_files.txt").write_text(f"data/{folder.name}/ply_data_{half}0.h5\n")
        with h5py.File(folder / f"ply_data_{half}0.h5", "w") as file:
            file["data"] = draw.standard_normal((count, 20, 3)).astype("f4")
            file["label"] = (np.arange(count) % 2).astype("u1")[:, None]
    whole = nets.data.modelnet40
    monkeypatch.setattr(nets.data, "modelnet40", lambda **given: whole(**given, partial=True))
    flags = ["--preset", "smoke", "--dataset", "modelnet40", "--points", points, "--device", "cpu"]
    flags += ["--data", str(tmp_path / "data"), "--seeds", "1", "--only", "continuous"]
    done = run_study("point_clouds", *flags)
    assert "ModelNet40" in done.said and "published" in done.said
    assert np.isfinite(done.table["final"]).all()
    assert np.isfinite(done.table["accuracy_dropped"]).all()


def results(diverged):
    """Return records of two seeds: the models in `diverged` have no numbers."""
    records = {}
    for k, name in enumerate(NAMES):
        gone = name in diverged
        value = np.nan if gone else 0.5 + 0.1 * k
        records[name] = [
            {"final": value + s / 1e3, "best": value + 0.01 + s / 1e3, "training": 1 - value}
            | {"straightness": 2 - value, "diverged": gone, "gradient": np.nan if gone else 3.0}
            | {"dropped": [value, *[value - 0.5 + 0.1 * k + s / 1e3] * 5]}
            for s in range(2)
        ]
    return Results(records, {})


@pytest.mark.parametrize(
    ("diverged", "verdicts"),
    [
        ((), ["not confirmed", "not confirmed", "inconclusive"]),
        (("unregularised",), ["confirmed", "not confirmed", "confirmed"]),
        (("unregularised", "slight"), ["confirmed", "confirmed", "confirmed"]),
        (("unregularised", "slight", "node"), ["confirmed", "confirmed", "not confirmed"]),
    ],
)
def test_explosions_decide_the_verdicts(diverged, verdicts):
    found = study.findings(study.PointClouds.of("cpu"), None, results(diverged))
    assert [finding.verdict for finding in found[-3:]] == verdicts
    assert found[0].verdict == "confirmed"
    assert found[2].verdict == ("confirmed" if "node" in diverged else "not confirmed")
    assert found[4].verdict == found[5].verdict == "confirmed" and "50 %: " in found[5].found
    straight = found[6]
    assert straight.verdict == ("inconclusive" if "unregularised" in diverged else "confirmed")
