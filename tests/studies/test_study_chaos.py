"""The study of Lyapunov exponents, end to end at a size of seconds."""

import numpy as np
import pytest

from wflow import InputError

FLAGS = ["--n", "4", "--paths", "2", "--heads", "4", "--betas", "2", "--t-final", "15"]


def test_study_tells_agreement_from_a_cluster_at_rest(run_study):
    done = run_study("chaos", *FLAGS)
    exponents = done.table["exponent"].sel(direction="ascent").mean("path").squeeze()
    assert float(exponents.sel(law="ornstein-uhlenbeck")) < -0.2
    assert np.abs(exponents.sel(law="oscillating")).max() < 0.2
    assert done.verdicts("three or more oscillating heads")[0] in ("confirmed", "inconclusive")
    assert done.verdicts("one token")[0] in ("confirmed", "inconclusive")
    assert done.drawn("exponents")


def test_too_short_a_run_is_refused(run_study):
    with pytest.raises(InputError, match="12"):
        run_study("chaos", "--t-final", "5")
