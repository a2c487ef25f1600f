"""Large texts become token files: the same from every format, after a kill, by any processes."""

import errno
import hashlib
import json
import os
import pickle
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
from wflow._core import processes  # noqa: E402
from wflow.cli import main  # noqa: E402
from wflow.nets.data import documents, preparing  # noqa: E402
from wflow.nets.data.token_files import INDEX, JOURNAL, digest_of  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FILES = {"train.bin", "val.bin", "encoder.json", "vocab.bpe", INDEX}
TEXTS = [f"Text {k}: " + "an owl and a cat; " * (k % 7) + f"é{k}\nend" for k in range(60)]
OPTIONS = {"validation": 0.2, "seed": 3, "workers": 1, "name": "trial"}
END = "<|endoftext|>"


def pairs(*merges):
    """A tokenizer of bytes, some joined pairs and the mark."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), *("".join(pair) for pair in merges), END]
    lines = "\n".join(["#version: 0.2", *map(" ".join, merges), ""])
    return json.dumps({token: k for k, token in enumerate(tokens)}).encode(), lines.encode()


PAIRS = pairs(("a", "n"), ("o", "w"), ("ow", "l"))


def write(folder, kind="jsonl", texts=TEXTS, name="part", **more):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.{'txt' if kind == 'text' else kind}"
    if kind == "jsonl":
        rows = [json.dumps({"id": k, "text": text}) for k, text in enumerate(texts)]
        file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    elif kind == "text":
        file.write_text(END.join(texts), encoding="utf-8")
    else:
        arrow = pytest.importorskip("pyarrow")
        table = arrow.table({"id": list(range(len(texts))), "text": texts})
        if kind == "parquet":
            from pyarrow import parquet

            parquet.write_table(table, file, row_group_size=7)
        else:
            with arrow.ipc.new_stream(str(file), table.schema) as stream:
                stream.write_table(table, max_chunksize=7)
            (folder / "state.json").write_text(
                json.dumps({"_data_files": [{"filename": file.name}]})
            )
    return folder


def prepare(source, out, **options):
    return nets.data.prepare_text(source, out, tokenizer=PAIRS, **OPTIONS | options)


def bytes_of(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def documents_of(tokens, end):
    """Texts of a file of tokens, in their order, as bytes of the tokenizer."""
    ends = np.flatnonzero(tokens.numpy() == end)
    return [part for part in np.split(tokens.numpy(), ends + 1) if len(part)]


@pytest.fixture
def whole(tmp_path):
    """The texts from JSON lines, prepared without disturbance."""
    prepare(write(tmp_path / "texts"), tmp_path / "whole")
    return bytes_of(tmp_path / "whole")


# What comes out
# --------------


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


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow", "text"])
@pytest.mark.parametrize("block", [1, 300, 10**6])
def test_the_files_depend_on_the_documents_alone(tmp_path, whole, kind, block):
    prepare(write(tmp_path / kind, kind), tmp_path / "out", block=block)
    found = bytes_of(tmp_path / "out")
    for name in ("train.bin", "val.bin"):
        assert found[name] == whole[name]


def test_several_files_are_read_in_the_order_of_their_names(tmp_path, whole):
    write(tmp_path / "two", texts=TEXTS[:20], name="a")
    write(tmp_path / "two", texts=TEXTS[20:], name="b")
    prepare(tmp_path / "two", tmp_path / "out")
    assert bytes_of(tmp_path / "out")["train.bin"] == whole["train.bin"]


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


def test_lines_begin_documents_of_plain_text(tmp_path):
    (tmp_path / "wiki.txt").write_text("= A =\nowl\n== a ==\n= B =\ncat\n= C =\ndog\n" * 3)
    text = prepare(tmp_path / "wiki.txt", tmp_path / "out", begins="^= ", validation=0.4, seed=0)
    assert text.description["documents"] == 9
    decode = text.tokenizer().decode
    decoded = "".join(decode(part[:]) for part in (text.train, text.validation))
    assert decoded.count("= A =\nowl\n== a ==\n" + END) == 3


ENDS = ["", "\n", "\r\n"]


@pytest.mark.parametrize("size", [1, 5, 13, 40, 10**6])
@pytest.mark.parametrize("end", ENDS)
def test_documents_between_marks_are_the_same_for_every_size_of_blocks(tmp_path, size, end):
    texts = ["", "owl", f"cat{end}dog<|endof", "<", "é" * 20, f"{end}two{end}", "last"]
    file = tmp_path / "marks.txt"
    file.write_bytes(b"\xef\xbb\xbf" + (END + end).join(texts).encode())
    corpus = documents.find(file)
    cut = documents.blocks(corpus, size)
    assert cut[0].pieces[0].first == 0
    assert sum(block.size for block in cut) == file.stat().st_size
    found = [text for block in cut for text in documents.documents(corpus, block)]
    assert found == [text.replace("\r\n", "\n") for text in texts]


@pytest.mark.parametrize("size", [1, 5, 13, 40, 10**6])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_documents_of_lines_are_the_same_for_every_size_of_blocks(tmp_path, size, end):
    lines = ["before", "= A =", "owl", "== a ==", "= B =", "= C =", "dog", "", "= D ="]
    (tmp_path / "wiki.txt").write_bytes(end.join(lines).encode())
    corpus = documents.find(tmp_path / "wiki.txt", begins=r"^= .* =$")
    cut = documents.blocks(corpus, size)
    found = [text for block in cut for text in documents.documents(corpus, block)]
    assert found == ["before\n", "= A =\nowl\n== a ==\n", "= B =\n", "= C =\ndog\n\n", "= D ="]


def test_small_files_share_a_block(tmp_path):
    for k in range(30):
        (tmp_path / f"{k:02}.txt").write_text(f"document {k}")
    corpus = documents.find(tmp_path)
    (block,) = documents.blocks(corpus, 10**6)
    assert list(documents.documents(corpus, block)) == [f"document {k}" for k in range(30)]
    assert len(documents.blocks(corpus, 110)) == 3


@pytest.mark.parametrize(("contents", "said"), [([""], "hold no document"), (["", " \n"], "empty")])
def test_a_corpus_without_text_is_named_so(tmp_path, contents, said):
    source = tmp_path / "texts"
    source.mkdir()
    for k, content in enumerate(contents):
        (source / f"{k}.txt").write_text(content)
    with pytest.raises(InputError, match=said):
        prepare(source, tmp_path / "out")


def test_empty_documents_and_halves_of_surrogates_are_counted(tmp_path):
    rows = [{"text": text} for text in (*TEXTS, "", " \n", None, "broken \ud83d owl")]
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    found = prepare(file, tmp_path / "out").description
    assert (found["documents"], found["empty"], found["repaired"]) == (61, 3, 1)


# Kills, full disks, several processes
# ------------------------------------


class Power(BaseException):
    """A power cut."""


def cut_off(monkeypatch, source, out, blocks, **options):
    """A preparation that ends after some blocks, each of which is in the journal."""
    real, seen = preparing._Encoder.__call__, []

    def encode(self, block):
        if len(seen) == blocks:
            raise Power
        seen.append(block)
        return real(self, block)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_COMMIT", -1.0)
        patch.setattr(preparing._Encoder, "__call__", encode)
        with pytest.raises(Power):
            prepare(source, out, block=300, **options)


@pytest.mark.parametrize("blocks", [0, 1, 5])
def test_a_preparation_that_was_cut_off_continues_to_the_same_bytes(
    tmp_path, whole, monkeypatch, blocks
):
    out = tmp_path / "out"
    cut_off(monkeypatch, tmp_path / "texts", out, blocks)
    assert json.loads((out / JOURNAL).read_text())["blocks"] == blocks
    with pytest.raises(InputError, match=r"not finished.*--resume"):
        nets.data.TokenFiles(out)
    with pytest.raises(InputError, match=r"--resume.*--overwrite"):
        prepare(tmp_path / "texts", out, block=300)
    with open(out / "train.bin.partial", "ab") as file:
        file.write(b"not in the journal")
    calls = []
    real = preparing._Encoder.__call__
    monkeypatch.setattr(preparing._Encoder, "__call__", lambda *a: calls.append(a) or real(*a))
    prepare(tmp_path / "texts", out, block=300, resume=True)
    assert bytes_of(out) == whole
    total = len(documents.blocks(documents.find(tmp_path / "texts"), 300))
    assert len(calls) == total - blocks
    prepare(tmp_path / "texts", out, resume=True)  # finished: nothing is read again
    assert len(calls) == total - blocks and bytes_of(out) == whole


@pytest.mark.parametrize("moment", ["first half", "both halves", "index"])
def test_a_kill_between_the_last_steps_leaves_nothing_that_passes_for_whole(
    tmp_path, whole, monkeypatch, moment
):
    out, real = tmp_path / "out", os.replace
    moves = []

    def replace(source, target):
        if str(source).endswith(".partial") or str(target).endswith(INDEX):
            if len(moves) == ["first half", "both halves", "index"].index(moment):
                raise Power
            moves.append(target)
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(Power):
            prepare(tmp_path / "texts", out)
    with pytest.raises(InputError, match="not finished"):
        nets.data.TokenFiles(out)
    prepare(tmp_path / "texts", out, resume=True)
    assert bytes_of(out) == whole


@pytest.mark.parametrize("damage", ["cut off", "changed"])
def test_files_that_are_not_what_the_journal_says_are_refused(tmp_path, monkeypatch, damage):
    source, out = write(tmp_path / "texts"), tmp_path / "out"
    cut_off(monkeypatch, source, out, 4)
    file = out / "train.bin.partial"
    data = bytearray(file.read_bytes())
    data[10] ^= 1
    file.write_bytes(data if damage == "changed" else data[:-3])
    with pytest.raises(InputError, match="--overwrite"):
        prepare(source, out, block=300, resume=True)
    prepare(source, out, block=300, overwrite=True).verify()


def test_another_preparation_does_not_continue_this_one(tmp_path, monkeypatch):
    source, out = write(tmp_path / "texts"), tmp_path / "out"
    cut_off(monkeypatch, source, out, 2)
    for changed, word in (({"seed": 9}, "seed"), ({"validation": 0.3}, "share")):
        with pytest.raises(InputError, match=f"differ in {word}"):
            prepare(source, out, block=300, resume=True, **changed)
    os.utime(source / "part.jsonl", ns=(1, 1))
    with pytest.raises(InputError, match="differ in listing"):
        prepare(source, out, block=300, resume=True)


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no limits of files here")
def test_a_disk_that_fills_leaves_what_can_be_continued(tmp_path, whole, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(preparing, "_COMMIT", -1.0)
    size = len(whole["train.bin"]) - 500
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert max(map(len, PAIRS)) < size  # the tokenizer and the journal fit, the tokens do not
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        with pytest.raises(InputError, match="--resume"):
            prepare(tmp_path / "texts", out, block=300)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert {file.name for file in out.iterdir()} & {INDEX, "train.bin", "val.bin"} == set()
    assert json.loads((out / JOURNAL).read_text())["blocks"] > 0
    prepare(tmp_path / "texts", out, block=300, resume=True)
    assert bytes_of(out) == whole


def test_a_disk_that_is_full_at_the_last_moment_is_no_end(tmp_path, whole, monkeypatch):
    out, real = tmp_path / "out", os.fsync

    def full(number):
        if Path(f"/proc/self/fd/{number}").resolve().name.startswith(INDEX):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(number)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("the name of an open file is not known here")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="--resume"):
            prepare(tmp_path / "texts", out)
    with pytest.raises(InputError, match="not finished"):
        nets.data.TokenFiles(out)
    prepare(tmp_path / "texts", out, resume=True)
    assert bytes_of(out) == whole


PROGRAM = """
import sys
from pathlib import Path
from wflow.nets.data import preparing

if __name__ == "__main__":
    source, out, workers, resume = sys.argv[1:]
    if resume != "finish":  # an entry in the journal for each block
        preparing._COMMIT = -1.0
    tokenizer = tuple(Path(source, name).read_bytes() for name in ("encoder.json", "vocab.bpe"))
    preparing.prepare_text(
        Path(source, "part.jsonl"), out, tokenizer=tokenizer, validation=0.2, seed=3, name="trial",
        workers=int(workers), block=300, resume=bool(resume),
    )
"""


def start(source, out, workers=1, resume=""):
    program = out.parent / "program.py"
    program.write_text(PROGRAM)
    for name, content in zip(("encoder.json", "vocab.bpe"), PAIRS, strict=True):
        (source / name).write_bytes(content)
    return subprocess.Popen(
        [sys.executable, str(program), str(source), str(out), str(workers), resume],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process, file, least):
    """Wait until the journal has that many blocks, or the process has ended."""
    while process.poll() is None:
        if file.exists() and json.loads(file.read_text())["blocks"] >= least:
            return
        time.sleep(0.002)


def test_a_preparation_killed_at_random_moments_continues_to_the_same_bytes(tmp_path, cases):
    if not cases(0, 1):
        pytest.skip("with --long: processes are slow to start")
    source = write(tmp_path / "texts", texts=TEXTS * 40)
    prepare(source / "part.jsonl", tmp_path / "whole")
    for seed in range(6):
        out, workers = tmp_path / f"out{seed}", 1 + seed % 2
        for least in random.Random(seed).sample(range(100), 2):
            process = start(source, out, workers, "resume")
            wait_for(process, out / JOURNAL, least)
            process.kill()
            process.communicate(timeout=60)
        again = start(source, out, workers, "finish")
        _, said = again.communicate(timeout=300)
        assert again.returncode == 0, said
        assert bytes_of(out) == bytes_of(tmp_path / "whole")


def test_processes_that_make_tokens_end_with_the_one_that_started_them(tmp_path, cases):
    if not cases(0, 1):
        pytest.skip("with --long: processes are slow to start")
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


def test_what_a_process_is_given_fits_into_its_pipe(tmp_path, monkeypatch):
    """Else the first process waits for ever for one that dies while it starts."""
    given = []

    def executor(count, context, begin, values):
        given.append(pickle.dumps((begin, values)))
        raise Power

    monkeypatch.setattr(processes, "ProcessPoolExecutor", executor)
    source = tmp_path / "texts"
    for k in range(300):
        write(source, "text", ["an owl"], name=f"a long name of a file {k}")
    with pytest.raises(Power):
        prepare(source, tmp_path / "out", workers=2, block=10)
    assert len(given[0]) < 2000


def test_a_process_that_dies_while_it_starts_is_an_error_and_no_end_of_waiting(tmp_path, cases):
    """It imports the script of the first one before it reads what it is to do."""
    if not cases(0, 1):
        pytest.skip("with --long: processes are slow to start")
    source = write(tmp_path / "texts")
    encoder = json.loads(PAIRS[0])
    encoder |= {f"word {k}": len(encoder) + k for k in range(8000)}  # more than a pipe holds
    (source / "encoder.json").write_text(json.dumps(encoder))
    (source / "vocab.bpe").write_bytes(PAIRS[1])
    program = tmp_path / "dies.py"
    dies = 'import os\nif __name__ != "__main__":\n    os._exit(1)\n'
    program.write_text(dies + PROGRAM)
    run = subprocess.run(
        [sys.executable, str(program), str(source), str(tmp_path / "out"), "2", ""],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 1 and "was killed" in run.stderr and "__main__" in run.stderr
    with pytest.raises(InputError, match="not finished"):
        nets.data.TokenFiles(tmp_path / "out")


def test_of_two_preparations_at_once_one_is_refused(tmp_path, monkeypatch):
    source, out = write(tmp_path / "texts"), tmp_path / "out"
    real, said = preparing._Encoder.__call__, []

    def encode(self, block):
        if not said:
            said.append("")
            with pytest.raises(InputError, match="preparation") as caught:
                prepare(source, out, resume=True)
            said[0] = str(caught.value)
        return real(self, block)

    monkeypatch.setattr(preparing._Encoder, "__call__", encode)
    prepare(source, out).verify()
    assert str(out) in said[0]


# Files of others, and bad input
# ------------------------------


@pytest.mark.parametrize("name", ["train.bin", INDEX, JOURNAL, "encoder.json", "val.bin.partial"])
def test_files_of_others_are_never_replaced(tmp_path, name):
    source, out = write(tmp_path / "texts"), tmp_path / "out"
    out.mkdir()
    (out / name).write_text('{"of": "others"}')
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(InputError, match=r"wflow|exists"):
            prepare(source, out, **options)
        assert bytes_of(out) == {name: b'{"of": "others"}'}


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path):
    source, out = write(tmp_path / "texts"), tmp_path / "out"
    prepare(source, out)
    (tmp_path / "mine").write_text("mine")
    (out / "val.bin").unlink()
    (out / "val.bin").symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="no regular file"):
        prepare(source, out, overwrite=True)
    assert (tmp_path / "mine").read_text() == "mine"


def bad_line(folder):
    file = folder / "part.jsonl"
    file.write_text(file.read_text()[:-20])


def bad_field(folder):
    (folder / "part.jsonl").write_text('{"text": 5}\n')


def no_field(folder):
    (folder / "part.jsonl").write_text('{"content": "an owl"}\n')


def no_utf8(folder):
    (folder / "part.jsonl").unlink()
    (folder / "part.txt").write_bytes(b"an owl \xff")


def two_kinds(folder):
    (folder / "more.txt").write_text("an owl")


def nothing(folder):
    (folder / "part.jsonl").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (bad_line, "JSON"),
        (bad_field, "'text'"),
        (no_field, "'text'"),
        (no_utf8, "byte 7"),
        (two_kinds, "several"),
        (nothing, "holds no texts"),
    ],
)
def test_texts_that_cannot_be_read_are_named(tmp_path, spoil, message):
    source = write(tmp_path / "texts")
    spoil(source)
    with pytest.raises(InputError, match=message) as caught:
        prepare(source, tmp_path / "out")
    assert str(source) in str(caught.value)
    with pytest.raises(InputError, match=r"not finished|does not exist"):
        nets.data.TokenFiles(tmp_path / "out")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
def test_tables_that_were_cut_off_are_named(tmp_path, kind, keep):
    source = write(tmp_path / "texts", kind)
    file = source / f"part.{kind}"
    data = file.read_bytes()
    file.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(InputError, match=rf"part\.{kind} is (damaged, )?cut off"):
        prepare(source, tmp_path / "out")


def test_a_part_without_documents_is_an_error_that_says_what_to_do(tmp_path):
    source = write(tmp_path / "texts")
    with pytest.raises(InputError, match="validation"):
        prepare(source, tmp_path / "out", validation=1e-9)
    assert not (tmp_path / "out" / INDEX).exists()


def test_a_document_without_end_is_refused_with_advice(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "_LONGEST", 100)
    (tmp_path / "long.txt").write_text("an owl\n" * 100)
    with pytest.raises(InputError, match="64 MiB"):
        prepare(tmp_path / "long.txt", tmp_path / "out")


def test_a_tokenizer_without_the_mark_is_refused(tmp_path):
    source = write(tmp_path / "texts")
    encoder = json.loads(PAIRS[0])
    del encoder[END]
    with pytest.raises(InputError, match="endoftext"):
        nets.data.prepare_text(
            source, tmp_path / "out", tokenizer=(json.dumps(encoder).encode(), PAIRS[1])
        )


@pytest.mark.parametrize("change", [{"validation": 0.0}, {"validation": 1.0}, {"seed": -1},
                                    {"workers": 0}, {"block": 0}, {"begins": "("},
                                    {"resume": True, "overwrite": True}])  # fmt: skip
def test_options_out_of_range_are_refused_before_anything_is_written(tmp_path, change):
    source = write(tmp_path / "texts")
    with pytest.raises(InputError):
        prepare(source, tmp_path / "out", **change)
    assert not (tmp_path / "out").exists()


def test_splits_of_a_saved_data_set(tmp_path, whole):
    write(tmp_path / "saved" / "train", "arrow")
    listing = tmp_path / "saved" / "dataset_dict.json"
    listing.write_text('{"splits": ["train"]}')
    prepare(tmp_path / "saved", tmp_path / "out")
    assert bytes_of(tmp_path / "out")["train.bin"] == whole["train.bin"]
    listing.write_text('{"splits": ["train", "test"]}')
    with pytest.raises(InputError, match=r"saved.train"):
        prepare(tmp_path / "saved", tmp_path / "again")
    state = tmp_path / "saved" / "train" / "state.json"
    state.write_text(json.dumps({"_indices_data_files": [{"filename": "i"}]}))
    with pytest.raises(InputError, match="flatten_indices"):
        prepare(tmp_path / "saved" / "train", tmp_path / "again")


# The command
# -----------


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


def resealed(found):
    return found | {"sha256": digest_of(found)}


def test_an_edited_index_is_refused(tmp_path, whole):
    out = tmp_path / "whole"
    found = json.loads((out / INDEX).read_text())
    found["vocabulary"] += 1
    (out / INDEX).write_text(json.dumps(found))
    with pytest.raises(InputError, match="was edited"):
        nets.data.TokenFiles(out)
    found["vocabulary"] -= 1
    for name, value in (("vocabulary", None), ("end_of_text", "0"), ("documents", -1)):
        (out / INDEX).write_text(json.dumps(resealed(found | {name: value})))
        with pytest.raises(InputError, match=name) as caught:
            nets.data.TokenFiles(out)
        assert str(out / INDEX) in str(caught.value)
    del found["files"]
    (out / INDEX).write_text(json.dumps(resealed(found)))
    with pytest.raises(InputError, match="files"):
        nets.data.TokenFiles(out)
