"""The trainer on a GPU: copies that overlap, numbers that are read late, half precision, NCCL."""

import numpy as np
import pytest
import torch
import xarray
from trainings import Body, Points, assert_same, crash, network, run, torchrun

from wflow import InputError
from wflow.nets import GPT, ContinuousTransformer, data, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = {"device": "cuda"}


@pytest.fixture(autouse=True)
def whole_digits():
    """Products of matrices in single precision, without the short form that GPUs have."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def evaluate(model):
    x, labels = (t.cuda() for t in Points(64, seed=7)(0))
    found = model(x)
    logits = found[0] if isinstance(found, tuple) else found
    return {"accuracy": (logits.argmax(1) == labels).double().mean()}


def test_a_gpu_trains_as_the_processor_does():
    _, expected = run(model=Body(), evaluate=None)
    model, found = run(model=Body(), evaluate=None, config=GPU)
    assert all(p.device.type == "cuda" for p in model.parameters())
    for name in ("loss", "data", "transport", "gradient_norm"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, err_msg=name)
    assert found.attrs["peak_memory_bytes"] > 0
    assert torch.cuda.get_device_name() in found.attrs["devices"]


@pytest.mark.parametrize("at", [3, 7, 11])
def test_a_crashed_training_resumes_to_the_same_curve(tmp_path, at):
    options = {"config": GPU, "evaluate": evaluate}
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, batches=Points(fault=crash, at=at), **options)
    model, found = run(tmp_path, resume=True, **options)
    whole = run(**options)
    found.attrs["peak_memory_bytes"] = whole[1].attrs["peak_memory_bytes"]
    assert_same((model, found), whole)


def test_a_training_resumes_on_the_gpu_from_the_processor(tmp_path):
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path, batches=Points(fault=crash, at=7), model=network(dropout=0), evaluate=None)
    _, found = run(tmp_path, model=network(dropout=0), evaluate=None, resume=True, config=GPU)
    _, expected = run(model=network(dropout=0), evaluate=None)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-4)
    assert len(found.attrs["devices"].split("; ")) == 2


def test_a_loss_that_is_not_finite_is_named_with_its_step_although_it_is_read_later():
    def batches(step):
        x, labels = Points()(step)
        return (x * float("nan") if step == 6 else x), labels

    often = {"evaluate_every": None, "checkpoint_every": 12} | GPU
    with pytest.raises(train.NonFiniteLossError, match="step 6") as caught:
        run(batches=batches, evaluate=None, config=often)
    assert caught.value.step == 6


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_compiled_network_trains_as_it_does(precision):
    if precision == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("this GPU has no bfloat16")
    options = GPU | {"precision": precision}
    _, plain = run(model=Body(), evaluate=None, config=options)
    _, found = run(model=Body(), evaluate=None, config=options | {"compile": True})
    tolerance = 1e-4 if precision == "float32" else 2e-2
    np.testing.assert_allclose(found["loss"], plain["loss"], rtol=tolerance)


def test_a_gpt_learns_from_crops_and_writes():
    text = data.embedded_text()
    torch.manual_seed(0)
    net = GPT(vocabulary=text.vocabulary, context=16, width=32, depth=2, heads=2, dropout=0.1)
    net.body = ContinuousTransformer(net.body, steps=2, checkpointing=True)
    batches = data.CropBatches(text.train, context=16, batch=8, seed=0, vocabulary=text.vocabulary)
    config = train.TrainConfig(steps=30, batch=8, accumulate=2, clip=1.0, device="cuda")
    found = train.train(net, train.objective(train.cross_entropy, 1.0), batches, config)
    assert found["data"][-5:].mean() < found["data"][0] - 0.3
    start = text.encode("\n")[None].cuda()
    one, two = (
        net.generate(start, 20, generator=torch.Generator("cuda").manual_seed(1)) for _ in range(2)
    )
    assert torch.equal(one, two) and one.shape == (1, 21)


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="no GPU number"):
        run(config={"device": f"cuda:{torch.cuda.device_count()}"})


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_are_one_with_the_same_batch(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from trainings import *\n"
        f"run({str(tmp_path / 'two')!r}, model=Body(), evaluate=None, config={GPU!r})\n"
        "assert torch.distributed.get_backend() == 'nccl'\n"
    )
    torchrun(program)
    _, expected = run(model=Body(), evaluate=None, config=GPU)
    with xarray.open_dataset(tmp_path / "two" / train.METRICS, engine="h5netcdf") as found:
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-4)
