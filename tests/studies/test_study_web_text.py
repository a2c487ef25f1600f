"""The study of web text: from token files, resumed, and by two processes as by one."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts import call, script  # noqa: E402

from wflow import InputError, nets  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_data")
SMOKE = ["--preset", "smoke", "--device", "cpu"]


def test_it_trains_from_token_files_and_resumes(tmp_path, monkeypatch, capsys, sketched):
    out = tmp_path / "web"
    flags = [*SMOKE, "--out", str(out)]
    assert call("web_text", monkeypatch, *flags, "--only", "baseline") == 0
    first = nets.data.TokenFiles(out / "tokens")
    before = (out / "tokens" / "train.bin").stat().st_mtime_ns
    assert call("web_text", monkeypatch, *flags, "--resume") == 0
    said = capsys.readouterr().out
    assert first.source in said and "published" not in said.lower().replace("published code", "")
    assert (out / "tokens" / "train.bin").stat().st_mtime_ns == before
    assert json.loads((out / "summary.json").read_text())["findings"] == []
    with xr.open_dataset(out / "summary.h5", engine="h5netcdf") as table:
        assert table.sizes["model"] == 3
        assert np.allclose(table["perplexity"], np.exp(table["final"]))
        straight = table["straightness"].sel(model=["unregularised", "continuous"])
        assert (straight >= 1).all()
    other = ["--iterations", "3", "--overwrite", "--only", "baseline"]
    assert call("web_text", monkeypatch, *flags, *other, "--share", "0.5") == 0
    assert (out / "tokens" / "train.bin").stat().st_mtime_ns != before  # made again
    with xr.open_dataset(out / "baseline-0" / "metrics.h5", engine="h5netcdf") as history:
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


def test_text_that_is_missing_names_the_way_to_it(tmp_path, monkeypatch):
    monkeypatch.setenv("WFLOW_DATA", str(tmp_path))
    with pytest.raises(InputError, match="--tokens"):
        call("web_text", monkeypatch, "--preset", "paper", "--device", "cpu", "--out",
             str(tmp_path / "out"))  # fmt: skip
    with pytest.raises(InputError, match="wikitext-2"):
        call("web_text", monkeypatch, "--preset", "cpu", "--device", "cpu", "--out",
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


def test_other_studies_say_that_they_are_one_process(monkeypatch, tmp_path):
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    with pytest.raises(InputError, match="one process"):
        call("nanogpt_sizes", monkeypatch, *SMOKE, "--out", str(tmp_path / "out"))
