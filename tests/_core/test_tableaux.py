"""The Butcher tableaux: consistency, order conditions, what each scheme admits, custom schemes."""

import dataclasses
import json

import numpy as np
import pytest

import wflow
from wflow import InputError, Tableau
from wflow._core.adaptive import scheme_from_config
from wflow._core.tableaux import TABLEAUX, order_of
from wflow.cli.commands import main

RALSTON = Tableau("ralston", 2, (0, 2 / 3), ((), (2 / 3,)), (1 / 4, 3 / 4))
KUTTA = Tableau("kutta", 3, (0, 0.5, 1), ((), (0.5,), (-1, 2)), (1 / 6, 2 / 3, 1 / 6))


@pytest.mark.parametrize("name", TABLEAUX)
def test_every_tableau_satisfies_the_conditions_of_its_order_alone(name):
    tableau = TABLEAUX[name]
    assert order_of(tableau.nodes, tableau.matrix, tableau.weights) == tableau.order
    if tableau.embedded is not None:
        embedded = order_of(tableau.nodes, tableau.matrix, tableau.embedded)
        assert embedded == tableau.embedded_order


@pytest.mark.parametrize("tableau", [*TABLEAUX.values(), RALSTON, KUTTA])
def test_the_error_of_one_step_falls_by_two_to_the_order_plus_one(tableau):
    def error(dt):
        slopes = []
        for c, row in zip(tableau.nodes, tableau.matrix, strict=True):
            x = 1 + dt * sum(a * k for a, k in zip(row, slopes, strict=True))
            slopes.append(np.cos(c * dt) * x)
        end = 1 + dt * sum(b * k for b, k in zip(tableau.weights, slopes, strict=True))
        return abs(end - np.exp(np.sin(dt)))

    assert np.log2(error(0.1) / error(0.05)) > tableau.order + 0.8


def test_noise_is_for_euler_and_sra1_and_error_estimates_for_the_pair():
    assert [name for name, tableau in TABLEAUX.items() if tableau.admits_noise] == ["euler", "sra1"]
    assert [name for name, tableau in TABLEAUX.items() if tableau.embedded] == ["dopri5"]
    assert abs(sum(TABLEAUX["dopri5"].error_weights)) < 1e-15
    assert TABLEAUX["dopri5"].first_same_as_last and not TABLEAUX["rk4"].first_same_as_last
    with pytest.raises(ValueError, match="no embedded pair"):
        _ = TABLEAUX["heun"].error_weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": 3}, "conditions of order 2, not of order = 3"),
        ({"order": 0}, "order of 'ralston'"), ({"name": ""}, "expected a text"),
        ({"nodes": (0.5, 2 / 3)}, "the first 0"), ({"nodes": (0, 1.5)}, "from 0 to 1"),
        ({"matrix": ((), (1 / 2,))}, "adds up to 0.5: expected its node"),
        ({"matrix": ((), (1 / 3, 1 / 3))}, "expected 1 numbers"),
        ({"matrix": ((),)}, "expected 2 rows"), ({"weights": (1.0,)}, "expected 2 numbers"),
        ({"noise": "ito"}, "2 stages and noise='ito'"), ({"noise": "white"}, "noise"),
        ({"noise": "additive"}, "shares"), ({"shares": (0.0, 4 / 3)}, "shares"),
        ({"noise": "additive", "shares": (0.0, 1.0)}, "1.5"),
        ({"noise": "additive", "shares": (1 - 0.5**0.5, 1 + 0.5**0.5)}, "the first is 0"),
        ({"embedded": (1, 0)}, "together, or neither"),
        ({"embedded": (1, 0), "embedded_order": 2}, "the embedded of 'ralston' satisfy"),
    ],
)  # fmt: skip
def test_a_tableau_refuses_coefficients_that_are_no_scheme_of_its_order(change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(RALSTON, **change)


def test_a_configuration_holds_the_name_of_a_known_scheme_and_the_coefficients_of_another():
    assert TABLEAUX["rk4"].config() == "rk4"
    stored = json.loads(json.dumps(KUTTA.config()))
    assert scheme_from_config(stored) == KUTTA
    other = Tableau("heun", 2, (0, 1 / 2), ((), (1 / 2,)), (0, 1))  # not the Heun of the package
    assert scheme_from_config(json.loads(json.dumps(other.config()))) == other
    with pytest.raises(InputError, match="no setting scheme"):
        scheme_from_config(stored | {"stages": 3})


def cloud(**options):
    x0 = wflow.tokens.uniform(n=8, d=3, seed=1)
    return wflow.solve(x0, wflow.heads.Oscillating(3), heads=2, t_final=1.0, **options)


def test_a_custom_scheme_runs_at_its_order_and_is_run_again_from_its_file(tmp_path, capsys):
    out = tmp_path / "kutta.h5"
    run = cloud(dt=0.05, scheme=KUTTA, out=out)
    finer = cloud(dt=0.025, scheme=KUTTA)
    ratio = abs(run.edi_residual.values[0, -1] / finer.edi_residual.values[0, -1])
    assert np.log2(ratio) > KUTTA.order - 0.3
    again = wflow.rerun(out)
    assert np.array_equal(again.energy.values, run.energy.values)
    assert wflow.verify(out).passed
    assert main(["info", str(out)]) == 0
    assert "kutta (order = 3)" in capsys.readouterr().out


def test_a_tableau_of_known_coefficients_gives_the_same_bits_as_the_name():
    heun = TABLEAUX["heun"]
    same = Tableau("mine", 2, list(heun.nodes), [list(row) for row in heun.matrix], heun.weights)
    by_name, by_table = cloud(dt=0.1, scheme="heun"), cloud(dt=0.1, scheme=same)
    assert np.array_equal(by_name.energy.values, by_table.energy.values)
