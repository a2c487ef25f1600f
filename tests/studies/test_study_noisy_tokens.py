"""The study of tokens with noise: order below the critical diffusion, and its findings."""

import json

import numpy as np
import xarray as xr
from scripts import call, script

import wflow

SMALL = ["--n", "40", "--paths", "2", "--t-final", "15", "--dt", "0.05", "--ratios", "0.4", "2"]
SMALL += ["--ledger-paths", "100", "--ledger-t", "0.4", "--threads", "1"]


def test_study_finds_order_below_the_critical_diffusion_only(
    tmp_path, monkeypatch, capsys, sketched
) -> None:
    call("noisy_tokens", monkeypatch, *SMALL, "--out", str(tmp_path))
    summary = json.loads((tmp_path / "summary.json").read_text())
    verdicts = [finding["verdict"] for finding in summary["findings"]]
    assert verdicts[0] == "confirmed" and verdicts[1] != "not confirmed"
    assert "critical kappa 0.5373" in capsys.readouterr().out
    with wflow.open(tmp_path / "start=uniform,ratio=0.4.h5") as run:
        order = np.linalg.norm(run["tokens"].values[:, -1].mean(axis=1), axis=1)
    assert np.all(order > 0.7)
    for name in ("order.png", "energy_balance.pdf", "summary.h5", "summary.md"):
        assert (tmp_path / name).exists()


def judged(order, theory, residual, error) -> list[str]:
    """Return verdicts on an order above the critical diffusion, and on residuals at three steps."""
    noisy = script("noisy_tokens")
    values = np.full((2, 1, 3), order)
    found = xr.Dataset(
        {"order": (("start", "ratio", "path"), values), "theory": ("ratio", [theory])}
    )
    found = found.assign_coords(ratio=[2.0])
    budget = xr.Dataset(
        {
            "edi_residual": ("dt", np.array(residual)),
            "edi_residual_error": ("dt", np.full(3, error)),
            "work_diffusion": ("dt", np.full(3, 0.12)),
        }
    )
    flags = noisy.NoisyTokens()
    return [finding.verdict for finding in noisy.findings(flags, (0.4, 0.1), budget, found)[1:]]


def test_fluctuations_that_are_not_there_fail_their_prediction() -> None:
    balance = ([0.016, 0.008, 0.004], 1e-4)
    assert judged(0.044, 0.045, *balance) == ["confirmed", "confirmed"]
    assert judged(0.0, 0.045, *balance) == ["confirmed", "not confirmed"]


def test_balance_that_too_few_paths_measure_is_not_called_held() -> None:
    assert judged(0.044, 0.045, [0.01, -0.2, -0.2], 0.5)[0] == "inconclusive"
    assert judged(0.044, 0.045, [0.1, 0.1, 0.1], 1e-4)[0] == "not confirmed"
