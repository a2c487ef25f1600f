"""The study of web text: from token files, resumed, and by two processes as by one."""

import json

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from scripts import call, script  # noqa: E402

from wflow import InputError, nets  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_data")
SMOKE = ["--preset", "smoke", "--device", "cpu"]


def test_it_trains_from_token_files_and_resumes(tmp_path, run_study, resumed):
    done = resumed("web_text", "--device", "cpu", only="baseline")
    file = done.out / "tokens" / "train.bin"
    first, before = nets.data.TokenFiles(file.parent), file.stat().st_mtime_ns
    assert first.source in done.said and done.table.sizes["model"] == 3
    assert before < (done.out / "baseline-0" / "checkpoint.pt").stat().st_mtime_ns  # made once
    assert np.allclose(done.table["perplexity"], np.exp(done.table["final"]))
    assert (done.table["straightness"].sel(model=["unregularised", "continuous"]) >= 1).all()
    other = ["--iterations", "3", "--overwrite", "--only", "baseline"]
    run_study("web_text", *SMOKE, *other, "--share", "0.5")
    assert file.stat().st_mtime_ns != before  # made again
    with xr.open_dataset(done.out / "baseline-0" / "metrics.h5", engine="h5netcdf") as history:
        assert history["loss"].size == 3
        assert first.train.sha256 in history.attrs["config"]


def test_token_files_of_another_vocabulary_or_text_are_refused(tmp_path, monkeypatch):
    source = tmp_path / "texts.txt"
    source.write_text("<|endoftext|>".join(f"an owl {k} " * 9 for k in range(40)))
    pairs = script("web_text").byte_pairs()
    text = nets.data.prepare_text(source, tmp_path / "tokens", tokenizer=pairs, validation=0.3,
                                  workers=1)  # fmt: skip
    flags = ["--tokens", str(tmp_path / "tokens"), "--out", str(tmp_path / "out"), "--device",
             "cpu"]  # fmt: skip
    with pytest.raises(InputError, match="4,096"):
        call("web_text", monkeypatch, *flags, "--preset", "cpu")
    data = bytearray((tmp_path / "tokens" / "train.bin").read_bytes())
    data[0] ^= 1
    (tmp_path / "tokens" / "train.bin").write_bytes(data)
    with pytest.raises(InputError, match="SHA-256"):
        call("web_text", monkeypatch, *flags, "--preset", "smoke")
    assert text.vocabulary == 257


@pytest.mark.parametrize(("preset", "way"), [("paper", "--tokens"), ("cpu", "wikitext-2")])
def test_text_that_is_missing_names_the_way_to_it(preset, way, tmp_path, monkeypatch):
    monkeypatch.setenv("WFLOW_DATA", str(tmp_path))
    with pytest.raises(InputError, match=way):
        call("web_text", monkeypatch, "--preset", preset, "--device", "cpu", "--out",
             str(tmp_path / "out"))  # fmt: skip


def test_byte_pairs_are_the_first_of_a_longer_list():
    web = script("web_text")
    encoder, _ = web.byte_pairs()
    numbers = json.loads(encoder)
    del numbers[web.END]
    more = [("a", "n"), ("o", "w"), ("ow", "l")]
    numbers |= {"".join(pair): 256 + k for k, pair in enumerate(more)} | {web.END: 259}
    lines = "\n".join(["#version: 0.2", *map(" ".join, more)])
    few = web.fewer_pairs(json.dumps(numbers).encode(), lines.encode(), 259)
    tokenizer = nets.data.BytePairs(*few)
    assert tokenizer.vocabulary == 259
    found = tokenizer.encode("an owl")
    assert found[0] == 256 and found[-1] == numbers["l"] and found[-2] == 257
    assert json.loads(few[0])[web.END] == 258
