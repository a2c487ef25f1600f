"""Tables of labelled cases, and what studies start from."""

import numpy as np
import pytest

import wflow
from wflow import InputError, study

SIZES = {"n": ([2, 4, 8], "number of tokens"), "flow": (["softmax", "effective"], "flow")}


def test_a_table_puts_every_case_at_its_labels() -> None:
    seen, steps = [], []

    def measure(n: int, flow: str) -> dict:
        seen.append((n, flow))
        return {"size": n * len(flow), "series": [n, -n, 0.5], "exact": n == 2}

    table = study.tabulate(
        SIZES,
        measure,
        {
            "size": "size of a case",
            "series": (("time",), "series of a case"),
            "exact": "whether it is exact",
        },
        {"time": ([0.0, 0.5, 1.0], "time")},
        steps.append,
    )
    assert seen == [(n, flow) for n in (2, 4, 8) for flow in ("softmax", "effective")]
    assert steps == [1] * 6
    assert dict(table["series"].sizes) == {"n": 3, "flow": 2, "time": 3}
    assert float(table["series"].sel(n=4, flow="effective", time=0.5)) == -4
    assert int(table["size"].sel(n=8, flow="softmax")) == 56
    assert table["exact"].dtype == bool and table["exact"].sum() == 2
    assert table["size"].attrs == {"long_name": "size of a case", "units": "1"}
    assert table["flow"].attrs == {"long_name": "flow"}


def test_a_table_names_the_case_that_does_not_fit() -> None:
    with pytest.raises(InputError, match=r"the case \(4, 'softmax'\) has \['other'\]"):
        study.tabulate(SIZES, lambda n, _: {"size" if n == 2 else "other": n}, {"size": "size"})
    with pytest.raises(InputError, match=r"size of the case \(2, 'softmax'\) has shape \(2,\)"):
        study.tabulate(SIZES, lambda n, _: {"size": [n, n]}, {"size": "size"})


def test_initial_heads_are_those_of_a_run_with_that_seed() -> None:
    run = wflow.solve(
        wflow.tokens.uniform(4, 3), wflow.heads.Frozen(), heads=2, t_final=0.1, dt=0.1, seed=7,
        save=wflow.SaveAt(heads=True), compute=wflow.Compute(threads=1),
    )  # fmt: skip
    assert np.array_equal(run["heads"].values[0, 0], study.initial_heads(7, 2, 3))


def test_seeds_of_different_keys_differ() -> None:
    keys = [(a, b) for a in range(10) for b in range(10)]
    assert len({study.seed_of(*key) for key in keys}) == 100
    assert study.seed_of(1, 2) == study.seed_of(1, 2)


@pytest.mark.parametrize(
    ("values", "least"), [((), 1), ((4, 4), 1), ((0.5,), 2), ((1.0, 1.0000001), 2)]
)
def test_numbers_that_come_twice_or_are_too_few_are_refused(values, least) -> None:
    with pytest.raises(InputError, match="--taus"):
        study.distinct(values, "--taus", least)
    study.distinct((1, 1000000, 1000001), "--taus", 3)
