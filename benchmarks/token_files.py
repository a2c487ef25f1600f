"""Preparing a large text and training from it: speed, memory, and the time that a step waits.

    python benchmarks/token_files.py [--megabytes 2048] [--json benchmarks/results/token_files.json]

The text is synthetic: words of 2 to 9 letters whose frequencies fall as 1/rank, in documents of
about 5 kB, as JSON lines. The size of the page in docs is 2048 megabytes; the default, 32, takes
about a minute.

- tokens per second and core: those of the library tokenizers alone, one call for each document
  that is in memory already, and those of `wflow data prepare` with one process and with one for
  each core, both by the time that the processors worked, so that others on the machine count less.
  What the command needs for a few documents is taken off: the start of Python and torch.
- memory: private memory of all processes of the command together, in the second half of the time
  against the first (from a tenth of the time on).
- waiting: the time in which training asks for its batches, as a share of all of it. The network is
  that of the study `web_text --preset cpu`, whose steps are short: it sees token numbers modulo
  its vocabulary of 4,096. Beside it the time for a batch of the published size,
  240 crops of 1,025 tokens, from pages in memory and after these were given back to the disk.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import goal, spread, write

from wflow._core.checks import whole
from wflow.cli import script
from wflow.nets import GPT, data, train
from wflow.nets.data.datasets import gpt2_pairs
from wflow.nets.data.token_files import TokenFile

WORDS = 20_000
LETTERS = np.array([*"etaoinshrdlucmfwypvbgkjqxz"])
PER_DOCUMENT = 900  # words
ALONE = 4 << 20  # bytes of text for the library alone
STEPS = 12
VOCABULARY = 4096  # of the network of which the steps are timed
EVERY = 0.1  # seconds between looks at the memory
GOAL_WAITING, GOAL_MEMORY, GOAL_SPEED = 0.02, 1.1, 0.7


def words(seed: int = 0) -> np.ndarray:
    """Different words, the most frequent first."""
    generator = np.random.default_rng(seed)
    chances = 1.0 / np.arange(1, len(LETTERS) + 1)
    lengths = generator.integers(2, 10, 3 * WORDS)
    drawn = generator.choice(LETTERS, lengths.sum(), p=chances / chances.sum())
    pieces = ("".join(part) for part in np.split(drawn, lengths.cumsum()[:-1]))
    return np.array(list(dict.fromkeys(pieces))[:WORDS])


def documents(size: int, seed: int = 0) -> Any:
    """Documents of together about `size` bytes."""
    known, generator = words(), np.random.default_rng(seed)
    chances = 1.0 / np.arange(1, len(known) + 1)
    bounds = np.cumsum(chances / chances.sum())
    done = 0
    while done < size:
        text = " ".join(known[np.searchsorted(bounds[:-1], generator.random(PER_DOCUMENT))])
        done += len(text)
        yield text


def make(file: Path, size: int) -> int:
    """Write the text; returns its bytes."""
    with open(file, "w", encoding="utf-8") as target:
        for text in documents(size):
            target.write(json.dumps({"text": text}) + "\n")
    return file.stat().st_size


def alone(pairs: tuple[bytes, bytes]) -> float:
    """Tokens per second of processor time of the library, on documents in memory."""
    texts = list(documents(ALONE))
    tokenizer = data.BytePairs(*pairs)._tokenizer
    begun, count = time.process_time(), 0
    for text in texts:
        count += len(tokenizer.encode_batch_fast([text])[0].ids)
    return count / (time.process_time() - begun)


def private(process: int) -> int:
    """Private memory (bytes) of a process and of those that it started."""
    total = 0
    listed = Path(f"/proc/{process}/task/{process}/children")
    try:
        total = sum(private(int(child)) for child in listed.read_text().split())
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                total += 1024 * int(line.split()[1])
    except OSError:  # it has ended
        return total
    return total


def prepared(source: Path, out: Path, workers: int) -> dict[str, Any]:
    """What `wflow data prepare` takes: seconds of clock and of processors, memory over time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun, seen = time.perf_counter(), []
    command = [sys.executable, "-m", "wflow", "data", "prepare", "synthetic", str(source)]
    flags = ["--out", str(out), "--workers", str(workers), "--validation", "0.05"]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE) as process:
        while process.poll() is None:
            seen.append((time.perf_counter() - begun, private(process.pid)))
            time.sleep(EVERY)
    if process.returncode:
        raise SystemExit(process.returncode)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = sum(getattr(after, key) - getattr(before, key) for key in ("ru_utime", "ru_stime"))
    text = data.TokenFiles(out)
    return {
        "workers": workers,
        "tokens": len(text.train) + len(text.validation),
        "clock_s": time.perf_counter() - begun,
        "processor_s": worked,
        "memory": seen,
    }


def growth(seen: list[tuple[float, int]]) -> tuple[float, float]:
    """Largest memory in megabytes, and that of the second half over that of the first."""
    end = seen[-1][0]
    first = [size for when, size in seen if 0.1 * end <= when < 0.5 * end]
    second = [size for when, size in seen if when >= 0.5 * end]
    return max(first + second) / 1e6, max(second) / max(first)


def waiting(file: TokenFile) -> tuple[float, list[float]]:
    """Share of a training that waits for its batches, and seconds of the steps."""
    net = GPT(vocabulary=VOCABULARY, context=128, width=128, depth=3, heads=4, bias=True)
    crops, spent = data.CropBatches(file, context=128, batch=16), []

    def batches(step: int) -> tuple[torch.Tensor, ...]:
        begun = time.perf_counter()
        found = crops(step)
        spent.append(time.perf_counter() - begun)
        return tuple(part % VOCABULARY for part in found)

    config = train.TrainConfig(steps=STEPS, batch=16, device="cpu")
    history = train.train(net, train.objective(train.cross_entropy), batches, config)
    steps = history["seconds"].values[2:]
    return float(np.sum(spent[2:]) / steps.sum()), [float(value) for value in steps]


def published(file: TokenFile, path: Path) -> dict[str, list[float]]:
    """Seconds for a batch of the published size, from memory and from the disk."""
    crops = data.CropBatches(file, context=1024, batch=240)
    times: dict[str, list[float]] = {"memory": [], "disk": []}
    for step in range(10):
        for place, found in times.items():
            if place == "disk":
                with open(path, "rb") as raw:
                    os.posix_fadvise(raw.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                crops(step)
            begun = time.perf_counter()
            crops(step)
            found.append(time.perf_counter() - begun)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--folder", help="for the text and its tokens; default: a temporary one")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    size, workers = whole(flags.megabytes, "--megabytes") << 20, whole(flags.workers, "--workers")
    torch.set_num_threads(1)
    pairs = gpt2_pairs()
    library = alone(pairs)
    print(f"tokenizers alone: {library:,.0f} tokens per second and core")
    with tempfile.TemporaryDirectory(dir=flags.folder) as place:
        folder = Path(place)
        make(folder / "few.jsonl", 200_000)
        length = make(folder / "text.jsonl", size)
        runs = []
        for count in dict.fromkeys((1, workers)):
            start = prepared(folder / "few.jsonl", folder / f"few-{count}", count)
            run = prepared(folder / "text.jsonl", folder / f"text-{count}", count)
            worked = run["processor_s"] - start["processor_s"]
            largest, grown = growth(run.pop("memory"))
            run |= {
                "start_processor_s": start["processor_s"],
                "tokens_per_second_and_core": run["tokens"] / worked,
                "memory_mb": largest,
                "second_half_over_first": grown,
            }
            runs.append(run)
            print(
                f"prepare, {count} process(es): {run['tokens']:,} tokens of {length / 1e6:,.0f} MB "
                f"in {run['clock_s']:.1f} s; {run['tokens_per_second_and_core']:,.0f} tokens per "
                f"second and core, {run['tokens_per_second_and_core'] / library:.2f} of the "
                f"library alone; {largest:.0f} MB of memory, second half over first {grown:.2f}"
            )
        path = folder / f"text-{workers}" / "train.bin"
        file = data.TokenFiles(path.parent).train
        share, steps = waiting(file)
        batch = published(file, path)
        print(
            f"a training step of {1e3 * np.median(steps):.0f} ms waits {100 * share:.2f} % of its "
            f"time for data; 240 crops of 1,025 tokens: {1e3 * np.median(batch['memory']):.1f} ms "
            f"from memory, {1e3 * np.median(batch['disk']):.1f} ms from the disk"
        )
    grown = max(run["second_half_over_first"] for run in runs)
    speed = min(run["tokens_per_second_and_core"] for run in runs) / library
    command = f"python benchmarks/token_files.py --megabytes {flags.megabytes}"
    goals = [
        goal("a training step that waits for data", command, share, GOAL_WAITING, least=False,
             unit="%"),
        goal("tokens per second and core over those of tokenizers alone", command, speed,
             GOAL_SPEED, least=True),
        goal("memory of the second half over that of the first", command, grown, GOAL_MEMORY,
             least=False),
    ]  # fmt: skip
    if flags.json is not None:
        write(
            flags.json,
            command,
            1,
            text_bytes=length,
            library_tokens_per_second=library,
            prepare=runs,
            waiting={"share": share, "step": spread(steps)},
            batch={place: spread(found) for place, found in batch.items()},
            goals=goals,
        )
    return 0


if __name__ == "__main__":
    script(main)
