"""Settings shared by the suite."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib
import pytest
from hypothesis import settings

from wflow.attention.flows import FLOWS
from wflow.heads.laws import LAWS
from wflow.plots import figure
from wflow.transport.metric import METRICS

matplotlib.use("Agg")
# The same examples in every run; HYPOTHESIS_PROFILE=random looks for others.
settings.register_profile("same", derandomize=True)
settings.register_profile("random", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores
# Glyphs as they are and few pixels: a third of the time of a figure.
figure.STYLE.update({"pdf.fonttype": 3, "savefig.dpi": 50, "figure.dpi": 50})

# Files that take longest, longest first: begun last, one would keep a single worker busy.
LONGEST = (
    "studies/test_studies.py", "studies/test_study_stability.py", "cli/test_cli.py",
    "distributed/test_distributed.py", "particles/test_adaptive.py", "particles/test_resume.py",
    "fuzz/test_laws.py", "nets/test_nets_parallel.py", "fuzz/test_damage.py", "fuzz/test_kills.py",
    "studies/test_study_clustering.py", "studies/test_study_mean_field.py",
    "studies/test_study_phase_transition.py", "meanfield/test_density_files.py",
    "studies/test_study_jko.py", "studies/test_study_networks.py", "fuzz/test_calls.py",
    "studies/test_study_rwpo_benchmarks.py", "studies/test_study_rwpo_digits.py",
    "kernels/test_fast_sums.py", "analysis/test_verify.py", "studies/test_study_noisy_tokens.py",
    "studies/test_study_trained_heads.py", "particles/test_token_noise.py", "plots/test_plots.py",
    "study/test_report.py", "test_docstrings.py", "docs/test_guide.py",
    "study/test_report_browser.py",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="only tests that have many cases, with all of them"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what --long or its absence leaves out, and begin with the longest files."""
    if config.getoption("--long"):
        kept = [item for item in items if "cases" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept
    places = {Path(__file__).parent / file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """Return `cases(few, all)`: the number of cases to try, all of them with --long."""
    long = request.config.getoption("--long")
    return lambda few, every: every if long else few


@pytest.fixture
def only_long(cases: Callable[[int, int], int]) -> None:
    """Skip what is slow and repeats in part what cheaper tests show."""
    if not cases(0, 1):
        pytest.skip("runs with --long")


@pytest.fixture
def silent_address() -> Iterator[str]:
    """Yield address of a port that is taken, and at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let studies find no data and no cache."""
    monkeypatch.setenv("WFLOW_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a few bytes in the place of each figure: drawing takes most of the time."""

    def draw(drawn: object, kind: str, file: Path) -> None:
        marks = {"png": b"\x89PNG Software\0wflow", "pdf": b"%PDF /Creator (wflow)"}
        file.write_bytes(marks[kind])

    monkeypatch.setattr(figure, "draw", draw)


@pytest.fixture(autouse=True)
def same_classes_every_time() -> Iterator[None]:
    """Laws, flows and metrics that a test registers are forgotten at its end."""
    before = [(registry.classes, dict(registry.classes)) for registry in (LAWS, FLOWS, METRICS)]
    yield
    for classes, known in before:
        classes.clear()
        classes.update(known)


@pytest.fixture(autouse=True)
def same_weights_every_time():
    """Networks that a test makes without a seed are the same in every run."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="module")
def one_thread():
    """Networks this small lose time with more threads, most of all beside other tests."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
