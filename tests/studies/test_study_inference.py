"""The studies of inference and of steering, end to end and small."""


def test_intervals_and_undecided_directions_of_the_study_of_inference(run_study):
    done = run_study("inference", "--n", "8", "12", "--noises", "0.01", "0.02", "--times", "2", "5",
                     "--paths", "2", "--threads", "1")  # fmt: skip
    table = done.table
    assert table["error"].sizes == {"n": 2, "noise": 2, "times": 2, "path": 2}
    assert done.drawn("errors") and (table["decided"] == 1).all()
    assert ((table["error"] / table["expected"]).mean() - 1) ** 2 < 0.25
    assert done.verdicts("named") == ["confirmed"]


def test_the_study_of_steering_measures_cost_and_hamiltonian(run_study):
    done = run_study("steering", "--n", "6", "--heads", "1", "--depths", "0.25", "0.5", "--pieces",
                     "2", "--starts", "1", "--iterations", "3", "--threads", "1")  # fmt: skip
    table = done.table
    assert done.drawn("steering") and table["hamiltonian"].sizes["piece"] == 2
    assert (table["terminal"] < table["before"]).all() and (table["effort"] > 0).all()
    assert ((table["slope"] <= 1e-5) == table["converged"]).all()
    constant = table["spread"].isel(split=-1) < table["spread"].isel(split=0) / 2
    said = {True: ["confirmed"], False: ["not confirmed"]}
    assert done.verdicts("mean cosine") == said[True] == said[bool(constant[0])]
    assert done.verdicts("W₂² to a target") == said[bool(constant[1])]
