"""Reprs of laws, flows, options and results: one short line, evaluable where that is possible."""

import numpy as np
import pytest
from numpy import array  # of the values that are written out

import wflow
from wflow._core.tableaux import TABLEAUX
from wflow.heads import Frozen, HeadLaw, OrnsteinUhlenbeck, Oscillating, Schedule, law_config
from wflow.study import Finding

NAMES = {
    **{law.__name__: law for law in (Frozen, OrnsteinUhlenbeck, Oscillating, Schedule)},
    "SaveAt": wflow.SaveAt, "Compute": wflow.Compute, "Dopri5": wflow.Dopri5,
    "Tableau": wflow.Tableau, "W2": wflow.transport.W2, "Weighted": wflow.transport.Weighted,
    "array": array,
}  # fmt: skip


@pytest.mark.parametrize(
    "thing",
    [
        Frozen(), Oscillating(4, "common"), OrnsteinUhlenbeck([[1, 0.5], [0.5, 2]], exact=True),
        wflow.SaveAt(), wflow.SaveAt(every=5, snapshots=[0.0, 1.0], heads=True, budget=False),
        wflow.Compute(method="fast", threads=2), wflow.Dopri5(rtol=1e-6), TABLEAUX["euler"],
        TABLEAUX["heun"], wflow.transport.W2(), wflow.transport.Weighted(segments=8),
    ],
    ids=repr,
)  # fmt: skip
def test_a_law_an_option_a_scheme_and_a_metric_are_made_again_from_their_repr(thing):
    again = eval(repr(thing), NAMES)
    assert law_config(again) == law_config(thing) if isinstance(thing, HeadLaw) else again == thing


def test_identities_large_arrays_and_custom_priors_are_short_as_text_and_as_html():
    law = OrnsteinUhlenbeck(np.eye(3), rate=1, sigma2=2)
    assert repr(law) == "OrnsteinUhlenbeck(mean=I₃, rate=1, sigma2=2)"
    assert "<td" in law._repr_html_() and "I₃" in law._repr_html_()
    assert "mean=-2.5 I₁₂," in repr(OrnsteinUhlenbeck(-2.5 * np.eye(12)))
    assert "mean=array(5, 12, 12)," in repr(OrnsteinUhlenbeck(np.ones((5, 12, 12))))
    prior = wflow.sampling.separable(abs, divmod)
    assert repr(prior) == "separable(value=abs, derivative=divmod)"
    assert "style" in prior._repr_html_() and "color" not in prior._repr_html_()
    hostile = HeadLaw(drift=type("<script>", (), {"__call__": lambda *_: 0})())
    assert "<script>" not in hostile._repr_html_()


def test_a_law_whose_parameters_cannot_be_read_is_shown_all_the_same():
    class Broken(HeadLaw):
        def to_config(self):
            raise RuntimeError("not now")

    assert repr(Broken()) == "Broken(...)"
    assert "Broken" in Broken()._repr_html_()
    assert repr(Broken.__new__(Broken)) == "Broken(...)"
    assert repr(OrnsteinUhlenbeck.__new__(OrnsteinUhlenbeck)) == "OrnsteinUhlenbeck(...)"


def results() -> list:
    rng = np.random.default_rng(0)
    x, D = np.eye(3), np.eye(3)[None]
    numbers = 3.0 / np.arange(1, 6)[:, None] * np.exp(0.1 * rng.normal(size=(5, 8)))
    run = wflow.solve(x, Frozen(), heads=D, t_final=2.0, dt=0.05)
    wide = {"prediction": "a prediction of many words " * 9, "source": "eq. 1", "found": "0.1"}
    return [
        wflow.fits.power_law(np.arange(1, 6), numbers), wflow.fits.line(np.arange(1, 6), numbers),
        wflow.jko.step(x, D, 0.1), wflow.jko.energy_inequality(x, D, 0.1),
        wflow.metric.weighted_distance(x, x[::-1], D), wflow.metric.bounds(x, x[::-1], D),
        wflow.transport.entropic(x, x[::-1]),
        wflow.clusters.persistent_count(wflow.tokens.uniform(20, 3, seed=0)),
        wflow.clusters.plateaus([0.0, 1.0, 4.0, 5.0], [8, 3, 3, 1])[0],
        wflow.clusters.stationarity(x, D), wflow.clusters.omega_limit(run),
        wflow.stability.growth_rate([0.0, 1.0, 2.0], numbers[:3].T), wflow.verify(run),
        *wflow.verify(run).checks[:2], Finding(verdict="confirmed", **wide),
    ]  # fmt: skip


def test_results_are_shown_on_one_line():
    for result in results():
        text = repr(result)
        assert "\n" not in text and len(text) <= 330, text
        assert text.startswith(type(result).__name__), text
