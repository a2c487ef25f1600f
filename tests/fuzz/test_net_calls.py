"""Calls of every public name of wflow.nets with wrong arguments: they work, or raise a wflow error.

A call is a valid one in which one argument is something else. What is given is never modified.
"""

import inspect
import random
import typing
import warnings
from collections.abc import Mapping

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from net_calls import ARGUMENTS, call_of, draw, ids  # noqa: E402
from public_names import public_names  # noqa: E402
from torch import nn  # noqa: E402
from trainings import network  # noqa: E402

from wflow import InputError, WflowError  # noqa: E402
from wflow._core.extras import missing  # noqa: E402
from wflow.nets.data import download  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def wrong(rng):
    """Something else than what was asked for; torch's and NumPy's numbers among it."""
    nan, inf = float("nan"), float("inf")
    return rng.choice(
        [
            None, True, False, np.True_, 0, 1, -1, 3, 2**62, 10**30, 1.5, 2.0, -0.5, nan, inf, -inf,
            "False", "", "cpu", "words", b"x", 1j, [], (), {}, set(), [1, "a"], [[1.0], [2.0, 3.0]],
            {"a": 1}, object(), int, lambda *given: None, range(3), "2020-01-01",
            np.int64(3), np.float32(0.5), np.datetime64("2020-01-01"), np.array("x"),
            np.array(0.5), np.zeros(0), np.ones((2, 2)), np.ones((2, 4), bool), np.array([1j]),
            np.ma.masked_array([1.0, 2.0], [True, False]), np.array([object()]),
            torch.tensor(1.0), torch.tensor(3), torch.zeros(0), torch.zeros(0, 3), draw(3),
            draw(2, 4, 8), draw(2, 4, 8).double(), draw(2, 4, 7), draw(4, 3).half(), ids(2, 5),
            ids(2, 5).to(torch.uint8), ids(2, 9, below=900) - 5, torch.ones(2, 4, dtype=torch.bool),
            torch.zeros(2, 4, dtype=torch.bool), torch.zeros(4, 3, dtype=torch.complex64),
            torch.full((4, 3), nan), torch.full((2, 4, 8), inf), draw(4, 3).to_sparse(),
            torch.empty(4, 3, device="meta"), torch.empty(2, 5, dtype=torch.int64, device="meta"),
            draw(4, 3).requires_grad_(), nn.Linear(8, 8), nn.Identity(), nn.Sequential(),
            [nn.Linear(8, 8)], [3], nn.ReLU, network(), *strange(),
        ]
    )  # fmt: skip


def strange():
    """Numbers and tensors that exist, and that few programs expect."""
    numbers = [7e-46, 1e-45, 5e-324, 1e-300, 1e300]  # 0 or infinite in single precision
    return [
        *numbers, [[0, 1, 2], [0, 1]], [draw(4).to_sparse()],
        torch.nested.nested_tensor([draw(3, 3), draw(2, 3)]),
        torch.nested.nested_tensor([draw(4, 8), draw(4, 8)]),
        torch.nested.nested_tensor([draw(3, 3), draw(2, 3)], layout=torch.jagged),
        draw(4, 3).to_sparse_csr(), draw(2, 4, 8).to_sparse(),
        torch.quantize_per_tensor(draw(4, 3), 0.1, 0, torch.qint8),
        torch.zeros(4, 2, dtype=torch.complex64).conj().imag,
        draw(4, 2).to(torch.float8_e4m3fn), ids(2, 5).to(torch.uint16), draw(1, 2).expand(4, 2),
    ]  # fmt: skip


def frozen(value):
    """Return what a value holds, to see afterwards that nobody has changed it."""
    if isinstance(value, torch.Tensor):
        if value.is_meta or value.layout != torch.strided or value.is_nested or value.is_quantized:
            return id(value)
        flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        raw = flat.view(torch.uint8).numpy().tobytes()
        return value.dtype, tuple(value.shape), raw, value.requires_grad
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes() if value.dtype != object else None
    if isinstance(value, Mapping):
        return [(key, frozen(entry)) for key, entry in value.items()]
    if isinstance(value, list | tuple):
        return [frozen(entry) for entry in value]
    return repr(value) if isinstance(value, int | float | str | bytes) else id(value)


def called(function, given):
    """Call a function, and take what it yields; None or a wflow error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = function(**given)
            if inspect.isgenerator(found):
                for _ in range(5):
                    next(found, None)
        except WflowError as error:
            return error
    return None


def is_called(thing):
    """Whether a public name is that of a call: no record, error or protocol."""
    if not inspect.isclass(thing):
        return inspect.isfunction(thing)
    return not (issubclass(thing, tuple | Exception) or typing.Protocol in thing.__bases__)


def test_every_public_name_is_called():
    records = {"data.Images", "data.PointClouds", "data.Text"}
    names = {
        public.name.removeprefix("wflow.nets.")
        for public in public_names()
        if public.room.startswith("wflow.nets") and not public.member and is_called(public.thing)
    }
    assert names == (ARGUMENTS.keys() & names) | records


def test_every_call_works_as_it_stands():
    refused = {"data.BytePairs", "metrics.check_encoder"}  # and what reads or writes a file
    if missing({name: "metrics" for name in ("sacrebleu", "sacremoses")}):
        refused |= {"metrics.bleu", "metrics.signature"}
    if missing({name: "metrics" for name in ("sacrebleu", "sacremoses", "rouge_score")}):
        refused.add("metrics.scores")
    for name in ARGUMENTS:
        function, given = call_of(name)
        error = called(function, given)
        foreign = name in refused or not given.keys().isdisjoint({"folder", "path", "out"})
        assert (error is not None) == foreign, f"{name}: {error}"


def offline(*given):
    raise InputError("downloads are not tried here")


def test_calls_with_wrong_arguments_work_or_raise_a_wflow_error(cases, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for those that name a file
    monkeypatch.delenv("WFLOW_DATA", raising=False)
    monkeypatch.setattr(download, "download", offline)
    rng = random.Random(2024)
    names = list(ARGUMENTS)
    rng.shuffle(names)
    faults = []
    for number in range(cases(150, 600)):
        name = names[number % len(names)]
        torch.manual_seed(number)
        function, given = call_of(name)
        if not given:
            continue
        changed = rng.choice(list(given))
        given[changed] = wrong(rng)
        before = frozen(given)
        try:
            called(function, given)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            faults.append(f"{name}({changed}={given[changed]!r:.80}): {reason:.200}")
        else:
            assert frozen(given) == before, f"{name}({changed}=...) changed what it was given"
    assert not faults, "\n".join(faults)
