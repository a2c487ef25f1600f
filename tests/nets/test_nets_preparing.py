"""Large texts become token files: the same from every format, after a kill, by any processes."""

import gzip
import hashlib
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from wflow import InputError, nets  # noqa: E402
from wflow._core.files import own_folder  # noqa: E402
from wflow.cli import main  # noqa: E402
from wflow.nets.data import preparing  # noqa: E402
from wflow.nets.data.token_files import INDEX, JOURNAL  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FILES = {"train.bin", "val.bin", "encoder.json", "vocab.bpe", INDEX}
TEXTS = [f"Text {k}: " + "an owl and a cat; " * (k % 7) + f"é{k}\nend" for k in range(60)]
OPTIONS = {"validation": 0.2, "seed": 3, "workers": 1, "name": "trial"}
END = "<|endoftext|>"


def pairs(*merges):
    """Return a tokenizer of bytes, some joined pairs and the mark."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), *("".join(pair) for pair in merges), END]
    lines = "\n".join(["#version: 0.2", *map(" ".join, merges), ""])
    return json.dumps({token: k for k, token in enumerate(tokens)}).encode(), lines.encode()


PAIRS = pairs(("a", "n"), ("o", "w"), ("ow", "l"))


def state_of(file):
    return json.dumps({"_data_files": [{"filename": file.name}]})


def write(folder, kind="jsonl", texts=TEXTS, name="part"):
    """Write texts as a file whose name ends like that; `saved` is the form of `datasets`."""
    file = folder / ("data-00000-of-00001.arrow" if kind == "saved" else f"{name}.{kind}")
    folder.mkdir(parents=True, exist_ok=True)
    if kind in ("parquet", "arrow", "saved"):
        arrow = pytest.importorskip("pyarrow")
        table = arrow.table({"id": list(range(len(texts))), "text": texts})
        if kind == "parquet":
            from pyarrow import parquet

            parquet.write_table(table, file, row_group_size=7)
            return folder
        make = arrow.ipc.new_file if kind == "arrow" else arrow.ipc.new_stream
        with make(str(file), table.schema) as stream:
            stream.write_table(table, max_chunksize=7)
        if kind == "saved":
            (folder / "state.json").write_text(state_of(file))
            (folder / "cache-1f.arrow").write_bytes(file.read_bytes())  # of `map`
        return folder
    rows = [json.dumps({"id": k, "text": text}) for k, text in enumerate(texts)]
    data = (END.join(texts) if "txt" in kind.lower() else "\n".join(rows)).encode()
    if kind.endswith((".gz", ".bz2", ".lz4", ".zst")):
        with pytest.importorskip("pyarrow").output_stream(str(file)) as stream:
            stream.write(data)
    else:
        file.write_bytes(data)
    return folder


def prepare(source, out, **options):
    return nets.data.prepare_text(source, out, **{"tokenizer": PAIRS} | OPTIONS | options)


def bytes_of(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def documents_of(tokens, end):
    """Return texts of a file of tokens, in their order, as bytes of the tokenizer."""
    ends = np.flatnonzero(tokens.numpy() == end)
    return [part for part in np.split(tokens.numpy(), ends + 1) if len(part)]


@pytest.fixture
def whole(tmp_path):
    """Return the texts from JSON lines, prepared without disturbance."""
    prepare(write(tmp_path / "texts"), tmp_path / "whole")
    return bytes_of(tmp_path / "whole")


def test_every_document_is_in_one_part_with_the_mark_behind_it(tmp_path):
    text = prepare(write(tmp_path / "texts"), tmp_path / "out")
    tokenizer, found = text.tokenizer(), []
    for part in (text.train, text.validation):
        pieces = documents_of(part[:], text.end_of_text)
        assert all(piece[-1] == text.end_of_text for piece in pieces)
        found.append([tokenizer.decode(torch.from_numpy(piece[:-1])) for piece in pieces])
    train, held = found
    assert sorted([*train, *held]) == sorted(TEXTS)
    assert [t for t in TEXTS if t in set(train)] == train  # in the order of the corpus
    assert 3 <= len(held) <= 25  # 12 of 60 are expected; a binomial number beyond has p < 1e-3
    assert {file.name for file in (tmp_path / "out").iterdir()} == FILES
    assert np.array_equal(np.memmap(tmp_path / "out" / "train.bin", "<u2", "r"), text.train[:])
    sums = {half: kept["sha256"] for half, kept in text.description["files"].items()}
    for half, name in (("train", "train.bin"), ("validation", "val.bin")):
        assert sums[half] == hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest()


KINDS = ["jsonl", "NDJSON", "json.gz", "jsonl.zst", "TXT", "txt.gz", "parquet", "arrow", "saved"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 10**6])
def test_the_files_depend_on_the_documents_alone(tmp_path, whole, kind, batch, monkeypatch):
    monkeypatch.setattr(preparing, "_BATCH", batch)
    prepare(write(tmp_path / kind, kind), tmp_path / "out")
    found = bytes_of(tmp_path / "out")
    for name in ("train.bin", "val.bin"):
        assert found[name] == whole[name]


def test_copies_of_a_text_are_in_one_part_and_order_does_not_matter(tmp_path):
    doubled = [text for text in TEXTS for _ in range(2)]
    first = prepare(write(tmp_path / "a", texts=doubled), tmp_path / "one")
    second = prepare(write(tmp_path / "b", texts=TEXTS[::-1]), tmp_path / "two")
    sets = [
        {piece.tobytes() for piece in documents_of(text.validation[:], text.end_of_text)}
        for text in (first, second)
    ]
    assert sets[0] == sets[1]
    train = {piece.tobytes() for piece in documents_of(first.train[:], first.end_of_text)}
    assert not sets[0] & train
    other = prepare(tmp_path / "b", tmp_path / "three", seed=4)
    assert other.validation.sha256 != second.validation.sha256


def read(file, begins=None):
    corpus = preparing.find(file, begins=begins)
    return [text for text, _ in preparing.documents(corpus, file)]


@pytest.mark.parametrize("size", [1, 5, 13, 10**6])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_documents_lie_between_marks(tmp_path, size, end, monkeypatch):
    monkeypatch.setattr(preparing, "_BATCH", size)  # also what is read at a time
    texts = ["", "owl", f"cat{end}dog<|endof", "<", "é" * 20, f"{end}two{end}", "last"]
    file = tmp_path / "marks.txt"
    file.write_bytes(b"\xef\xbb\xbf" + (END + end).join(texts).encode())
    assert read(file) == [text.replace("\r\n", "\n") for text in texts]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_documents_begin_with_a_line(tmp_path, end):
    lines = ["before", "= A =", "owl", "== a ==", "= B =", "= C =", "dog", "", "= D ="]
    (tmp_path / "wiki.txt").write_bytes(end.join(lines).encode())
    found = ["before\n", "= A =\nowl\n== a ==\n", "= B =\n", "= C =\ndog\n\n", "= D ="]
    assert read(tmp_path / "wiki.txt", r"^= .* =$") == found


def test_what_is_no_document_is_left_out_and_counted(tmp_path, whole):
    source = write(tmp_path / "two", texts=[*TEXTS[:20], "", " \n", None], name="a")
    write(source, texts=TEXTS[20:], name="b")  # files are read in the order of their names
    (source / "._a.jsonl").write_bytes(b"\0\5\x16\7")  # as macOS leaves them
    (source / ".b.txt").write_text("hidden")
    found = prepare(source, tmp_path / "out").description
    assert (found["documents"], found["empty"], found["repaired"]) == (60, 3, 0)
    assert bytes_of(tmp_path / "out")["train.bin"] == whole["train.bin"]
    source = write(tmp_path / "halves", texts=[*TEXTS, "broken \ud83d owl"])  # of a surrogate pair
    assert prepare(source, tmp_path / "repaired").description["repaired"] == 1


class Power(BaseException):
    """A power cut."""


@pytest.fixture
def every_batch(monkeypatch):
    """Batches are some documents, and each is in the journal."""
    monkeypatch.setattr(preparing, "_BATCH", 300)
    monkeypatch.setattr(preparing, "_COMMIT", -1.0)


def cut_off(monkeypatch, source, out, batches, **options):
    """Return a preparation that ends after some batches."""
    real, seen = preparing._encode, []

    def encode(*given):
        if len(seen) == batches:
            raise Power
        seen.append(given)
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_encode", encode)
        with pytest.raises(Power):
            prepare(source, out, **options)


@pytest.mark.usefixtures("every_batch")
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "several"])
@pytest.mark.parametrize("batches", [0, 5])
def test_a_preparation_that_was_cut_off_continues_to_the_same_bytes(
    tmp_path, monkeypatch, batches, kind
):
    source, out = tmp_path / "corpus", tmp_path / "out"
    for k in range(0, 60, 6 if kind == "several" else 60):
        part = TEXTS[k : k + 6] if kind == "several" else TEXTS
        write(source, "txt" if kind == "several" else kind, part, f"{k:02}")
    prepare(source, tmp_path / "undisturbed")
    whole = bytes_of(tmp_path / "undisturbed")
    cut_off(monkeypatch, source, out, batches)
    with pytest.raises(InputError, match=r"not finished.*--resume"):
        nets.data.TokenFiles(out)
    with pytest.raises(InputError, match=r"--resume.*--overwrite"):
        prepare(source, out)
    with open(out / "train.bin", "ab") as file:
        file.write(b"not in the journal")
    calls, real = [], preparing._encode
    monkeypatch.setattr(
        preparing, "_encode", lambda *given: calls.extend(given[-1]) or real(*given)
    )
    prepare(source, out, resume=True)
    assert bytes_of(out) == whole
    assert calls == TEXTS[-len(calls) :] and (len(calls) < 60) == (batches > 0)
    count = len(calls)
    prepare(source, out, resume=True)  # finished: nothing is read again
    assert len(calls) == count and bytes_of(out) == whole


@pytest.mark.parametrize("moment", ["index", "journal"])
def test_a_kill_between_the_last_steps_leaves_nothing_that_passes_for_whole(
    tmp_path, whole, monkeypatch, moment
):
    out, describe = tmp_path / "out", preparing.write_description

    def write_and_die(path, content):
        if path.name != INDEX or moment == "journal":
            describe(path, content)
        if path.name == INDEX:
            raise Power

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "write_description", write_and_die)
        with pytest.raises(Power):
            prepare(tmp_path / "texts", out)
    if moment == "index":
        with pytest.raises(InputError, match="not finished"):
            nets.data.TokenFiles(out)
    prepare(tmp_path / "texts", out, resume=True)
    assert bytes_of(out) == whole


@pytest.mark.usefixtures("every_batch")
def test_another_preparation_or_a_shorter_file_does_not_continue(tmp_path, monkeypatch):
    source, out = write(tmp_path / "texts"), tmp_path / "out"
    cut_off(monkeypatch, source, out, 4)
    for changed in ({"seed": 9}, {"validation": 0.3}, {"name": "other"}):
        with pytest.raises(InputError, match="differ"):
            prepare(source, out, resume=True, **changed)
    (out / "train.bin").write_bytes((out / "train.bin").read_bytes()[:-3])
    with pytest.raises(InputError, match="--overwrite"):
        prepare(source, out, resume=True)
    os.utime(source / "part.jsonl", ns=(1, 1))
    with pytest.raises(InputError, match="changed"):
        prepare(source, out, resume=True)
    prepare(source, out, overwrite=True).verify()


def test_two_preparations_do_not_share_a_folder(tmp_path):
    source = write(tmp_path / "texts")
    with own_folder(tmp_path / "out", "preparation"), pytest.raises(InputError, match="out"):
        prepare(source, tmp_path / "out")
    prepare(source, tmp_path / "out")


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no limits of files here")
@pytest.mark.usefixtures("every_batch")
def test_a_disk_that_fills_leaves_what_can_be_continued(tmp_path, whole):
    out = tmp_path / "out"
    size = len(whole["train.bin"]) - 500
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert max(map(len, PAIRS)) < size  # the tokenizer and the journal fit, the tokens do not
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        with pytest.raises(InputError, match="--resume"):
            prepare(tmp_path / "texts", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with pytest.raises(InputError, match="not finished"):
        nets.data.TokenFiles(out)
    assert (out / "train.bin").stat().st_size > 0
    prepare(tmp_path / "texts", out, resume=True)
    assert bytes_of(out) == whole


PROGRAM = """
import sys
from pathlib import Path
from wflow.nets.data import preparing

if __name__ == "__main__":
    source, out, workers, resume = sys.argv[1:]
    preparing._BATCH = 300
    if resume != "finish":  # an entry in the journal for each batch
        preparing._COMMIT = -1.0
    tokenizer = tuple(Path(source, name).read_bytes() for name in ("encoder.json", "vocab.bpe"))
    preparing.prepare_text(
        Path(source, "part.jsonl"), out, tokenizer=tokenizer, validation=0.2, seed=3, name="trial",
        workers=int(workers), resume=bool(resume),
    )
"""


def start(source, out, workers=1, resume=""):
    (out.parent / "program.py").write_text(PROGRAM)
    for name, content in zip(("encoder.json", "vocab.bpe"), PAIRS, strict=True):
        (source / name).write_bytes(content)
    return child(out.parent / "program.py", source, out, workers, resume)


def child(program, *arguments):
    return subprocess.Popen(
        [sys.executable, *map(str, (program, *arguments))],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(process, file, least):
    """Wait until the journal has so many documents, or the process has ended."""
    while process.poll() is None:
        if file.exists() and json.loads(file.read_text())["end"][1] >= least:
            return
        time.sleep(0.002)


def test_a_preparation_killed_at_random_moments_continues_to_the_same_bytes(tmp_path, only_long):
    source = write(tmp_path / "texts", texts=TEXTS * 40)
    prepare(source / "part.jsonl", tmp_path / "whole")
    for seed in range(6):
        out, workers = tmp_path / f"out{seed}", 1 + seed % 2
        for least in random.Random(seed).sample(range(2000), 2):
            process = start(source, out, workers, "resume")
            wait_for(process, out / JOURNAL, least)
            process.kill()
            process.communicate(timeout=60)
        again = start(source, out, workers, "finish")
        _, said = again.communicate(timeout=300)
        assert again.returncode == 0, said
        assert bytes_of(out) == bytes_of(tmp_path / "whole")


def test_processes_that_make_tokens_end_with_the_one_that_started_them(tmp_path, only_long):
    source = write(tmp_path / "texts", texts=TEXTS * 400)
    process = start(source, tmp_path / "out", 2)
    wait_for(process, tmp_path / "out" / JOURNAL, 1)
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not listed.exists():
        pytest.skip("the children of a process are not known here")
    children = listed.read_text().split()
    process.kill()
    process.communicate(timeout=60)
    assert children
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["train.bin", INDEX, JOURNAL])
@pytest.mark.parametrize("content", [b'{"of": "others"}', b"{", b"[]", b"\xff"])
def test_files_of_others_and_damaged_ones_are_named_and_never_replaced(tmp_path, name, content):
    source, out = write(tmp_path / "texts"), tmp_path / "out"
    out.mkdir()
    (out / name).write_bytes(content)
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(InputError, match=name):
            prepare(source, out, **options)
        assert bytes_of(out) == {name: content}
    with pytest.raises(InputError, match=INDEX if name == INDEX else str(out)):
        nets.data.TokenFiles(out)


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path):
    source, out = write(tmp_path / "texts"), tmp_path / "out"
    prepare(source, out)
    (tmp_path / "mine").write_text("mine")
    (out / "val.bin").unlink()
    (out / "val.bin").symlink_to(tmp_path / "mine")
    prepare(source, out, overwrite=True)
    assert (tmp_path / "mine").read_text() == "mine"


BAD = {
    "no JSON": ("part.jsonl", b'{"text": "an owl"}\n{"text": "an o'),
    "a number": ("part.jsonl", b'{"text": 5}\n'),
    "another field": ("part.jsonl", b'{"content": "an owl"}\n'),
    "a list": ("part.jsonl", b'["text"]\n'),
    "no UTF-8": ("part.txt", b"an owl \xff"),
    "no UTF-8 in JSON": ("part.jsonl", b'{"text": "an owl \xff"}\n'),
    "not packed": ("part.jsonl.gz", b'{"text": "an owl"}\n'),
    "cut off": ("part.txt.gz", gzip.compress(b"an owl" * 99)[:-9]),
    "a changed byte": ("part.txt.gz", gzip.compress(b"an owl")[:-8] + bytes(8)),
    "no table": ("part.parquet", b"an owl"),
    "no Arrow": ("part.arrow", b"an owl"),
    "empty": ("part.arrow", b""),
    "no mark for long": ("part.txt", b"an owl\n" * 100),
    "no text": ("part.txt", b""),
    "blank": ("part.txt", b" \n"),
}


@pytest.mark.parametrize("what", BAD)
def test_texts_that_cannot_be_read_are_named(tmp_path, what, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(preparing, "_LONGEST", 600)
    name, content = BAD[what]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="documents" if what in ("no text", "blank") else name):
        prepare(tmp_path, tmp_path / "out")
    with pytest.raises(InputError):
        nets.data.TokenFiles(tmp_path / "out")


def list_refused(files, found):
    """Read all files, and write the names of those that are refused."""
    for file in files:
        try:
            for _ in preparing.documents(preparing.find(file), file):
                pass
        except InputError as error:
            assert str(file) in str(error), error
            with open(found, "a") as names:
                print(file.name, file=names)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no copies of a process here")
def test_damaged_tables_are_named_and_never_end_the_interpreter(tmp_path):
    """A changed offset in a table of Arrow is a segmentation fault where nobody looks at it."""
    refused, rng, cases = set(), random.Random(0), {}
    for kind in ("arrow", "saved", "parquet"):
        data = next(write(tmp_path / kind, kind).glob("[dp]a*")).read_bytes()
        suffix = "parquet" if kind == "parquet" else "arrow"
        cut = {f"{kind}-cut{k}.{suffix}": data[: k * len(data) // 10] for k in range(0, 10, 3)}
        if kind != "parquet":
            ends = np.cumsum([0, *(len(text.encode()) for text in TEXTS[:7])]).astype("<i4")
            place = data.index(ends.tobytes())  # of the first batch
            for k in range(8):
                wrong = np.array([rng.choice([-1, 10**6, 2**31 - 1])], "<i4").tobytes()
                offset = place + 4 * k
                changed = data[:offset] + wrong + data[offset + 4 :]
                cut[f"{kind}-offset{k}.{suffix}"] = changed
        refused |= cut.keys()
        cases |= cut
        for k in range(20):
            changed = bytearray(data)
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            cases[f"{kind}-bit{k}.{suffix}"] = changed
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
    given = [tmp_path / name for name in cases], tmp_path / "found"
    process = multiprocessing.get_context("fork").Process(target=list_refused, args=given)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert refused <= set(given[1].read_text().split())


MEMORY = """
import resource, sys
from pathlib import Path
from wflow import nets
folder = Path(sys.argv[1])
pairs = tuple((folder / name).read_bytes() for name in ("encoder.json", "vocab.bpe"))
peaks = []
for name in ("short", "long"):
    nets.data.prepare_text(
        folder / f"{name}.jsonl", folder / name, tokenizer=pairs, validation=0.2, workers=1
    )
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(1024 * (peaks[1] - peaks[0]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="its unit is another one elsewhere")
def test_a_long_line_takes_little_memory(tmp_path):
    """The library takes 150 bytes for each character that it is given at a time."""
    write(tmp_path, name="short")
    write(tmp_path, texts=["an owl " * 150_000, *TEXTS], name="long")
    for name, content in zip(preparing.PAIRS, PAIRS, strict=True):
        (tmp_path / name).write_bytes(content)
    process = child("-c", MEMORY, tmp_path)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert int(out) < 40 * (tmp_path / "long.jsonl").stat().st_size


@pytest.mark.parametrize("change", [
    {"validation": 0.0}, {"validation": 1.0}, {"seed": -1}, {"workers": 0}, {"begins": "("},
    {"resume": True, "overwrite": True}, {"tokenizer": (b'{"a": 0}', PAIRS[1])},
])  # fmt: skip
def test_options_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, change):
    source = write(tmp_path / "texts")
    with pytest.raises(InputError):
        prepare(source, tmp_path / "out", **change)
    assert not (tmp_path / "out").exists()
    (source / "more.TXT").write_text("an owl")
    with pytest.raises(InputError, match="several kinds"):
        prepare(source, tmp_path / "out")


def test_a_part_without_documents_is_not_finished(tmp_path):
    with pytest.raises(InputError, match="validation"):
        prepare(write(tmp_path / "texts"), tmp_path / "out", validation=1e-9)
    assert not (tmp_path / "out" / INDEX).exists()


def test_a_split_of_a_saved_data_set_has_all_its_files(tmp_path):
    split = write(tmp_path / "saved" / "train", "saved")
    with pytest.raises(InputError, match="one split"):
        prepare(tmp_path / "saved", tmp_path / "out")
    (split / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(InputError, match=r"data-00000.* is missing"):
        prepare(split, tmp_path / "out")


def test_the_command_prepares_and_says_what_it_made(tmp_path, whole, capsys):
    tokenizer = tmp_path / "pairs"
    tokenizer.mkdir()
    for name, content in zip(("encoder.json", "vocab.bpe"), PAIRS, strict=True):
        (tokenizer / name).write_bytes(content)
    flags = ["--validation", "0.2", "--seed", "3", "--workers", "1", "--tokenizer", str(tokenizer)]
    command = ["data", "prepare", "trial", str(tmp_path / "texts"), *flags]
    assert main(command) == 0
    said = capsys.readouterr().out
    out = tmp_path / "texts-tokens"
    assert bytes_of(out) == whole
    assert str(out) in said and "of 60 documents (vocabulary 260)" in said
    assert main(command) == 2
    assert "add --resume" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 0


@pytest.mark.parametrize("found", ['{"_data_files": [{}]}', '{"_data_files": 5}', '["a"]'])
def test_a_list_of_files_that_names_none_is_named(tmp_path, found):
    (tmp_path / "state.json").write_text(found)
    with pytest.raises(InputError, match=r"state\.json"):
        prepare(tmp_path, tmp_path / "out")


def test_a_column_that_is_there_twice_and_a_damaged_journal_are_named(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table([["a"], ["b"], ["c"]], names=["text", "text", "id"])
    (tmp_path / "in").mkdir()
    with arrow.ipc.new_file(str(tmp_path / "in/part.arrow"), table.schema) as stream:
        stream.write_table(table)
    with pytest.raises(InputError, match="2 columns 'text'"):
        prepare(tmp_path / "in", tmp_path / "out")
    journal = tmp_path / "out" / preparing.JOURNAL
    found = json.loads(journal.read_text())
    del found["end"]
    journal.write_text(json.dumps(found))
    with pytest.raises(InputError, match=r"no end.*--overwrite"):
        prepare(tmp_path / "in", tmp_path / "out", resume=True)
