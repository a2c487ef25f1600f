"""`wflow study`, `wflow report` and `wflow --version`: scripts by their names, from any folder."""

import json
import re
import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from interpreters import python
from scripts import NAMES, OF_NETWORKS, SCRIPTS, call

import wflow
from wflow import InputError
from wflow.cli import main, studies
from wflow.study import heads

ROOT = Path(wflow.__file__).parents[1]
SMALL = ["--heads", "2", "--n", "12", "--paths", "2", "--t-final", "0.1", "--threads", "1"]
STUDY = ["study", "ou_heads", *SMALL, "--out", "first run"]


@pytest.fixture(autouse=True)
def undrawn(monkeypatch) -> None:
    """Draw no figures: that takes most of the time."""
    monkeypatch.setattr(heads, "draw", lambda *_: {})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """Return the folder of a study that was started by its name in an empty folder."""
    folder = tmp_path_factory.mktemp("empty")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(heads, "draw", lambda *_: {})
        assert main(STUDY) == 0
    return folder / "first run"


def test_version_is_printed(capsys) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"wflow {wflow.__version__}\n"


def test_list_names_every_study_with_what_it_is_about(capsys) -> None:
    assert main(["study", "list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    lines = dict(line.split(maxsplit=1) for line in listed if re.match(r"  \w", line))
    assert sorted(lines) == NAMES and all(len(text) > 20 for text in lines.values())
    subjects = [line for line in listed if not line.startswith("  ")]
    assert len(subjects) == len({file.parent for file in SCRIPTS})
    assert lines["ou_heads"].startswith("Ornstein-Uhlenbeck heads: ")
    after = dict(pairwise(listed))
    (line,) = (line for line in listed if line.startswith("  ou_heads "))
    assert "--preset published" in after[line]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("inof run.h5", "did you mean info"), ("ou_heads", "did you mean wflow study ou_heads"),
        ("frobnicate", "info, plot, verify, compare"), ("study", "wflow study list"),
        ("study xyz", "wflow study list"), ("study --heads 4", "wflow study list"),
        ("study ou-heads", "did you mean ou_heads"), ("study studies/jko.py", "did you mean jko"),
        ("study mean_feld_limit --n 4", "did you mean mean_field_limit"),
    ],
)  # fmt: skip
def test_a_word_that_is_no_command_or_study_is_one_message(words, said, capsys) -> None:
    assert main(words.split()) == 2
    out, errors = capsys.readouterr()
    assert not out and errors.count("\n") == 1
    assert errors.startswith("wflow: error: ") and said in errors


HELPS = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Absent())
from wflow.cli import main
heavy = {"numpy", "numba", "xarray", "h5py", "matplotlib"}
try:
    main(["--help"])
except SystemExit:
    assert not heavy & set(sys.modules)
for name in sys.argv[1:]:
    assert main(["study", name, "--help"]) == 0
"""


def test_help_needs_no_torch_names_the_extra_that_is_missing_and_loads_little(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = python("-c", HELPS, *NAMES, PYTHONPATH=str(ROOT))
    assert not done.stderr
    own, *said = done.stdout.split("usage: ")[1:]
    assert "verify" in own and "python studies/" not in done.stdout
    for name, text in zip(NAMES, said, strict=True):
        assert text.startswith(f"wflow study {name} ") and "--out" in text
        own, output, *machine = re.split("─ (?:output|machine) options ─", text)
        assert "--out " in output and not {"--out ", "--device ", "--threads "} & set(own.split())
        assert name.startswith("rwpo_") or machine
        assert ("pip install 'wflow-transformers[nets]'" in text) == (name in OF_NETWORKS), name


def test_a_study_by_its_name_computes_what_its_script_does_and_records_how_to_repeat_it(
    recorded, tmp_path, monkeypatch
) -> None:
    call("ou_heads", monkeypatch, *SMALL, "--out", str(tmp_path))
    expected = shlex.join(["wflow", *STUDY])
    with wflow.open(recorded / "H00002.h5") as ds, wflow.open(tmp_path / "H00002.h5") as script:
        assert ds.attrs["command"] == expected
        assert ds.drop_attrs().identical(script.drop_attrs())
    assert json.loads((recorded / "summary.json").read_text())["command"] == expected


def test_a_study_by_its_name_resumes(recorded, tmp_path, monkeypatch, capsys) -> None:
    copy = shutil.copytree(recorded, tmp_path / recorded.name)
    monkeypatch.chdir(tmp_path)
    assert main(STUDY) == 2 and "--resume" in capsys.readouterr().err
    assert main([*STUDY, "--resume"]) == 0
    assert (copy / "H00002.h5").read_bytes() == (recorded / "H00002.h5").read_bytes()


def test_workers_of_a_study_compute_the_same(recorded, tmp_path) -> None:
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    words = ["study", "ou_heads", *SMALL, "--workers", "1", "--out", str(tmp_path)]
    assert main(words) == 0
    with wflow.open(recorded / "H00002.h5") as ds, wflow.open(tmp_path / "H00002.h5") as spread:
        assert spread.attrs["command"] == shlex.join(["wflow", *words])
        assert ds.drop_attrs().identical(spread.drop_attrs())


def test_a_study_in_this_process_leaves_the_process_as_it_was(tmp_path, capsys) -> None:
    before = list(sys.argv), list(sys.path)
    assert main(["study", "jko", "--tau", "x"]) == 2
    assert (sys.argv, sys.path) == before
    assert "wflow study jko --help" in capsys.readouterr().err


def test_a_copy_without_studies_says_so(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(studies, "_PLACES", (tmp_path / "_studies", tmp_path / "studies"))
    with pytest.raises(InputError, match="has no studies"):
        studies.names()


def test_studies_of_a_wheel_come_before_a_folder_beside_it(monkeypatch, tmp_path) -> None:
    for place, text in (("_studies", "Of the wheel."), ("studies", "Something else.")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "mine.py").write_text(f'"""{text}"""\nimport _mine\n')
        (tmp_path / place / "_mine.py").write_text("import sys\nsys.exit(7)\n")
    monkeypatch.setattr(studies, "_PLACES", (tmp_path / "_studies", tmp_path / "studies"))
    assert "mine  Of the wheel." in studies.listing()
    assert main(["study", "mine"]) == 7
