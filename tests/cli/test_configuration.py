"""`wflow solve`, and the configurations that `wflow info --config` writes for it."""

import json
import tomllib

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wflow
from wflow.cli import main
from wflow.cli.configuration import toml

X = wflow.tokens.uniform(n=7, d=3, seed=1)
EYE = np.eye(3)
OU = wflow.heads.OrnsteinUhlenbeck(EYE)
FROZEN = wflow.heads.Frozen()
MANY = np.random.default_rng(0).normal(size=(30, 2, 3, 3))
SCHEDULE = wflow.heads.Schedule(np.linspace(0, 1, 30), MANY + MANY.swapaxes(-1, -2))
RUNS = {
    "paths": (np.stack([X, -X]), OU, {"heads": 2, "paths": 2, "kappa": 0.1}),
    "matrices": (X, FROZEN, {"heads": np.stack([EYE, 2 * EYE]), "scheme": wflow.Dopri5(rtol=1e-6)}),
    "schedule": (X, SCHEDULE, {"direction": "ascent", "scheme": "rk4"}),
    "jumps": (X, wflow.heads.CompoundPoisson(OU, rate=3.0), {"heads": 3}),
    "fast": (X, OU, {"heads": 2, "compute": wflow.Compute(method="fast", dtype="float32")}),
    "often": (X, OU, {"heads": 2, "save": wflow.SaveAt(snapshots=np.linspace(0, 0.4, 150))}),
    "tableau": (X, FROZEN, {"heads": 2, "scheme": wflow.Tableau(
        name="ralston", order=2, nodes=(0, 2 / 3), matrix=((), (2 / 3,)), weights=(1 / 4, 3 / 4))}),
}  # fmt: skip


def digests(file) -> dict[str, str]:
    with h5py.File(file) as run:
        found = json.loads(run.attrs["digests"])
        return found | {"": run.attrs["config"]}


@pytest.mark.parametrize("name", RUNS)
def test_the_configuration_of_a_run_computes_it_again_bit_for_bit(name, tmp_path, capsys):
    x0, law, options = RUNS[name]
    run, again = tmp_path / "run.h5", tmp_path / "config.h5"
    steps = {"t_final": 0.4, "dt": 0.002 if name == "often" else 0.02}
    wflow.solve(x0, law, out=run, **steps, **options).close()
    assert main(["info", str(run), "--config"]) == 0
    again.with_suffix(".toml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["solve", str(again.with_suffix(".toml"))]) == 0
    assert main(["solve", str(run), "--out", str(tmp_path / "third.h5")]) == 0
    assert digests(run) == digests(again) == digests(tmp_path / "third.h5")


PLAIN = """
tokens = {kind = "uniform", n = 7, d = 3, seed = 1}
heads = 2
t_final = 0.1
dt = 0.02
law = "Frozen"
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.toml").write_text(PLAIN, encoding="utf-8")
    return tmp_path / "folder" / "a.toml"


def test_arrays_come_from_files_beside_the_configuration(config):
    q = np.random.default_rng(0).normal(size=(3, 2, 3, 3))
    np.save(config.parent / "x.npy", X)
    np.savez(config.parent / "q.npz", q=q[0], k=q[1], v=q[2])
    parts = ", ".join(f'{key} = {{file = "q.npz", key = "{key[0]}"}}' for key in ("query", "key"))
    heads = f'{{{parts}, value = {{file = "q.npz", key = "v"}}, scale = 0.5}}'
    text = PLAIN.replace("heads = 2", f"heads = {heads}")
    config.write_text(text.replace('{kind = "uniform", n = 7, d = 3, seed = 1}', '"x.npy"'))
    assert main(["solve", str(config)]) == 0
    asked = {"heads": wflow.heads.QKV(*q, scale=0.5), "t_final": 0.1, "dt": 0.02}
    wflow.solve(X, FROZEN, out="b.h5", **asked).close()
    assert digests(config.with_suffix(".h5")) == digests("b.h5")


def test_set_changes_values_and_its_files_lie_in_the_current_folder(config):
    np.save("x.npy", X)
    sets = [
        "tokens=x.npy", "law={name='OrnsteinUhlenbeck', mean=[[1,0,0],[0,1,0],[0,0,1]]}",
        "law.rate=2", "scheme=sra1", "save.every=5",
    ]  # fmt: skip
    words = [word for each in sets for word in ("--set", each)]
    assert main(["solve", str(config), "--out", "a.h5", *words]) == 0
    law = wflow.heads.OrnsteinUhlenbeck(EYE, rate=2.0)
    asked = {"heads": 2, "t_final": 0.1, "dt": 0.02, "save": wflow.SaveAt(every=5)}
    wflow.solve(X, law, scheme="sra1", out="b.h5", **asked).close()
    assert digests("a.h5") == digests("b.h5")


def test_values_may_be_written_as_in_python(config):
    sets = ["causal=True", "kappa=.1", "t_final=2.", "dt=1."]
    words = [word for each in sets for word in ("--set", each)]
    assert main(["solve", str(config), "--out", "a.h5", *words]) == 0
    with wflow.open("a.h5") as run:
        held = json.loads(run.attrs["config"])
    assert (held["causal"], held["kappa"], held["t_final"], held["dt"]) == (True, 0.1, 2.0, 1.0)


def test_a_run_file_takes_another_end_and_names_no_heads_that_it_lacks(config, capsys):
    assert main(["solve", str(config), "--out", "a.h5"]) == 0
    assert main(["solve", "a.h5", "--out", "b.h5", "--set", "t_final=.06"]) == 0
    with wflow.rerun("a.h5", t_final=0.06) as again, wflow.open("b.h5") as run:
        assert list(again.snapshot.values) == list(run.snapshot.values) == [0, 0.06]
    heads = wflow.heads.QKV(*np.ones((3, 1, 3, 3)))
    wflow.solve(X, FROZEN, heads=heads, t_final=0.1, dt=0.02, out="qkv.h5").close()
    capsys.readouterr()
    assert main(["info", "--config", "qkv.h5"]) == 2
    assert "a run file does not hold" in capsys.readouterr().err


def test_the_json_of_a_run_file_needs_its_tokens_which_are_compared(config, capsys):
    main(["solve", str(config), "--out", "a.h5"])
    with h5py.File("a.h5") as run:
        (config.parent / "b.json").write_text(run.attrs["config"])
    call = ["solve", str(config.parent / "b.json"), "--out", "b.h5"]
    assert main(call) == 2 and "digest" in capsys.readouterr().err
    assert main([*call, "--set", "tokens.file=a.h5"]) == 0
    assert digests("a.h5") == digests("b.h5")
    main(["solve", str(config), "--out", "c.h5", "--set", "tokens.seed=2"])
    assert main([*call, "--set", "tokens.file=c.h5"]) == 2 and "SHA-256" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("sceme=rk4", "scheme"), ("save.evry=2", "every"), ("compute.methd=fast", "method"),
        ("tokens.kind=unifrm", "uniform"), ("law=Frozn", "Frozen"), ("law.rate=1", "Frozen.rate"),
        ("law=OrnsteinUhlenbeck", "mean"), ("tokens=no.npy", "no.npy"), ("dt", "KEY=VALUE"),
        ("heads=[[1", "TOML"), ("flow=softmx", "flow"), ("scheme=rk5", "scheme"),
        ("t_final.x=1", "t_final"), ("save=3", "save"), ("heads={query=[1]}", "value"),
        ("flow=3", "flow is 3"), ("scheme.rtol=1e-6", "scheme.name"), ("law={}", "Frozen"),
        ("scheme={name='dopri5', rtl=1}", "rtol"), ("law.name=Schedule", "times"),
        ("heads=''", "heads"), ("out=''", "out"), ("causal=yes", "True or False"),
        ("dt=nan", "dt"), ("tokens={file='x.npy'}", "x.npy"), ("heads=x.npz", "x.npz"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_file_and_key(config, capsys, change, named):
    np.save("x.npy", np.array([{}]), allow_pickle=True)
    (config.parents[1] / "x.npz").write_bytes(b"PK\x03\x04")
    assert main(["solve", str(config), "--set", change]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert named in line and (str(config) in line or change in line)
    assert not list(config.parent.glob("*.h5*"))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.toml", b"a = [1"), ("a.toml", b"\xff"), ("a.toml", b"a=" + b"[" * 99999),
        ("a.json", b"[1]"), ("a.json", b'{"a":' * 99999), ("a.toml", b""), ("a.yaml", b""),
        ("a.toml", b"seed=" + b"9" * 9999), ("a.toml", b"tokens = 1\nx0 = 1"),
    ],
)  # fmt: skip
def test_a_damaged_configuration_is_one_line(tmp_path, capsys, name, data):
    (tmp_path / name).write_bytes(data)
    assert main(["solve", str(tmp_path / name)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    TEXTS | NUMBERS | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(TEXTS.filter(lambda key: key not in ("x0", "none")), VALUES, max_size=4))
def test_toml_is_read_back_as_it_was(config):
    assert tomllib.loads(toml(config)) == config
    assert toml(config | {"none": None}) == toml(config)
