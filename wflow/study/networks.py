"""Studies of networks: presets, training of every run, tables over seeds.

Torch is loaded when something is trained, so that a script shows its flags without it.
"""

import hashlib
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wflow import nets
from wflow._core import checks
from wflow._core.checks import whole
from wflow._core.command_line import Folder, check_folder
from wflow._core.errors import InputError
from wflow._core.extras import install, missing
from wflow._core.files import open_hdf5, opened, read_json, replace_file
from wflow._core.fingerprint import NotComparable, fingerprint
from wflow._core.printable import printable
from wflow.study.flags import Checked, OutputFlags, Switch
from wflow.study.frame import Finding, Verdict, first_process, markdown_table, session

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor, nn
    from xarray import Dataset

    from wflow.nets import train

FloatArray = NDArray[np.float64]
AnyFlags = TypeVar("AnyFlags", bound="NetFlags")
Data = TypeVar("Data")
Result = TypeVar("Result")
Record = dict[str, Any]
Seeds = int | Mapping[str, int]  # of every model, or of each by its name
NEEDS = {"torch": "nets"}
Steps = Annotated[int, Checked(partial(whole, most=100_000))]
"""Type of the flag --steps, of a model that is continuous in time."""
RECORD = "record.json"  # what was measured of a training, in its folder
MOTION = ("straightness", "speed_variation", "transport")


@dataclass(frozen=True, kw_only=True)
class NetFlags(OutputFlags):
    """Flags of every study of networks."""

    needs: ClassVar[dict[str, str]] = NEEDS
    torchrun: ClassVar[Literal["batches", "trainings"]] = "trainings"
    """What several processes of torchrun share: each batch, or the trainings, each of which one
    process does alone, with the numbers that it has without torchrun."""
    indifferent: ClassVar[frozenset[str]] = frozenset()
    """Fields by which a preset stays the one that the findings are about."""
    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    """smoke: data that needs no download; cpu: networks for two cores; paper: the published set-up,
    for a GPU, whose hours are those at 20 TFLOP per second."""
    only: tuple[str, ...] = ()
    """Models to train, by name. With --resume the finished ones are in the tables, too."""
    seeds: Annotated[int, Checked(partial(whole, most=1000))] = 1
    """Number of training runs of each model, with seeds 0, 1, ..."""
    device: str = "auto"
    """Device: auto (a GPU where there is one), cpu, cuda, cuda:1, ..."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the forward pass in training; bfloat16 by autocast."""
    compile: Switch = False
    """Compile the networks by torch.compile."""
    data: str | None = None
    """Folder with the data; default: $WFLOW_DATA, then a download."""
    out: Folder = Path("results/study")
    """Folder for checkpoints, metrics, summary and figures."""

    def check(self) -> None:
        super().check()
        check_folder(self.data, "--data")
        if self.presets and self.preset not in self.presets:
            raise InputError(
                f"--preset is {self.preset}: expected one of {', '.join(self.presets)}"
            )
        if len(set(self.only)) < len(self.only):
            raise InputError(f"--only is {' '.join(self.only)}: name every model once")
        need_torch()
        nets.train.device(self.device)  # refused before anything is written


def need_torch() -> None:
    """Refuse to begin a study of networks where torch is not installed.

    Raises
    ------
    InputError
        That says how it is installed.
    """
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError(
            f"this study trains networks and torch is not installed: {install('nets')}"
        ) from None


def chosen(names: Iterable[str], seeds: Seeds, flags: NetFlags) -> list[str]:
    """Return the models that `--only` names and, with `--resume`, those finished; or all.

    Raises
    ------
    InputError
        For a name that is none of them.
    """
    names = list(names)
    unknown = [name for name in flags.only if name not in names]
    if unknown:
        raise InputError(f"--only {' '.join(unknown)}: expected some of {', '.join(names)}")
    if not flags.only:
        return names

    def finished(name: str) -> bool:
        runs = range(_seeds_of(seeds, name))
        files = [folder_of(flags.out, name, seed) / nets.train.METRICS for seed in runs]
        return flags.resume and all(map(_complete, files))

    return [name for name in names if name in flags.only or finished(name)]


def _jobs(names: Sequence[str], seeds: Seeds) -> list[tuple[str, int]]:
    """Return model and seed of all trainings, the first seed of every model first."""
    last = max(_seeds_of(seeds, name) for name in names)
    return [(n, k) for k in range(last) for n in names if k < _seeds_of(seeds, n)]


def _seeds_of(seeds: Seeds, name: str) -> int:
    return seeds if isinstance(seeds, int) else seeds[name]


def folder_of(out: Path, name: str, seed: int) -> Path:
    """Return the folder of a training in that of its study."""
    return out / f"{name.replace(' ', '-')}-{seed}"


def _complete(file: Path) -> bool:
    if not os.path.lexists(file):
        return False

    with opened(file, "the metrics of a training"), open_hdf5(file) as found:
        return np.array_equal(np.ravel(found.attrs.get("complete", 0)), [1])


class Run(NamedTuple):
    """One training run: everything that `train.train` is given."""

    model: "nn.Module"
    objective: "train.Objective"
    batches: "train.Batches"
    config: "train.TrainConfig"
    evaluate: "Callable[[nn.Module], dict[str, float]]"


class Trained(NamedTuple):
    """A network after its training, in evaluation mode on its device, and its history."""

    model: "nn.Module"
    history: "Dataset"
    device: "torch.device"
    diverged: bool  # the loss was not finite; the model is then not to be asked


class Results(NamedTuple):
    """What came out: model -> one entry per seed."""

    records: dict[str, list[Record]]
    histories: "dict[str, list[Dataset]]"

    @property
    def devices(self) -> str:
        """Where the training was, in words: all places of all runs."""
        places = [
            place
            for runs in self.histories.values()
            for history in runs
            for place in str(history.attrs["devices"]).split("; ")
            if place  # none where the first step diverged
        ]
        return "; ".join(dict.fromkeys(places))

    @property
    def seconds(self) -> float:
        """Time of all training steps, whenever they were taken."""
        runs = [history for found in self.histories.values() for history in found]
        return sum(float(history["seconds"].sum()) for history in runs)

    def values(self, name: str, key: str, place: Any = ...) -> FloatArray:
        """Return one quantity of a model for each seed; `place` is that of a number in a list."""
        return np.array([np.asarray(r[key], dtype=float)[place] for r in self.records[name]])

    def diverged(self) -> str:
        """Name the models that did not get to the end, for the report; nothing if all did."""
        counts = {name: sum(r["diverged"] for r in runs) for name, runs in self.records.items()}
        return ", ".join(
            f"{name} diverged in {count} of {len(self.records[name])} runs"
            for name, count in counts.items()
            if count
        )


def train_all(
    flags: NetFlags,
    names: Sequence[str],
    seeds: Seeds,
    plan: Callable[[str, int], Run],
    examine: Callable[[str, int, Trained], Record],
) -> Results:
    """Train every model with every seed, each in a separate folder, and examine it.

    Processes of torchrun share the trainings, or each of their batches, as `flags.torchrun` says;
    all of them call this and get the same.

    Parameters
    ----------
    seeds : number of runs of every model, or of each by its name; their seeds are 0, 1, ...
    plan : (model, seed) -> Run
    examine : (model, seed, Trained) -> numbers by name; those of a diverged run are NaN
    """
    jobs = _jobs(names, seeds)

    def trained(job: tuple[str, int]) -> "tuple[Record, Dataset]":
        found = _trained(flags, *job, plan(*job))
        record = on_rank_zero(flags, partial(examine, *job, found))
        return record | {"diverged": found.diverged}, found.history

    if flags.torchrun == "trainings":
        from wflow.nets.training.parallel import distribute

        found = distribute(jobs, trained)
    else:
        found = [trained(job) for job in jobs]
    results = Results({name: [] for name in names}, {name: [] for name in names})
    for (name, _), (record, history) in zip(jobs, found, strict=True):
        results.records[name].append(record)
        results.histories[name].append(history)
    return results


@dataclass(frozen=True, kw_only=True)
class Experiment(Generic[AnyFlags, Data]):
    """A study of networks: what is trained on which data, what is measured, what follows.

    Each function takes the flags first. A model is what `models` has under its name.
    """

    name: str
    """Name of the study."""
    models: Callable[[AnyFlags], Mapping[str, Any]]
    """Flags -> the models by name."""
    load: Callable[[AnyFlags], Data]
    """Flags -> the data; in the first process of torchrun alone where it shares batches, and in
    each where it shares trainings."""
    plan: Callable[[AnyFlags, Data, Any, int], Run]
    """Flags, data, model, seed -> the training."""
    measure: Callable[[AnyFlags, Data, Any, Trained, int], Record]
    """Flags, data, model, trained network, seed -> numbers by name; those left out are NaN."""
    numbers: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Key of what is measured -> (text, unit)."""
    along: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    """Key of a list that is measured -> (name in the summary, dimension, text)."""
    coords: Callable[[AnyFlags], Mapping[str, tuple[Sequence[float], str]]] = lambda _: {}
    """Flags -> dimension of lists -> (values, text)."""
    table: Callable[[AnyFlags, Results], "Dataset"] | None = None
    """Flags, results -> the summary; without it the `numbers` over (model, seed)."""
    text: Callable[[AnyFlags, Data, Results], str] | None = None
    """Flags, data, results -> the tables; without it mean and spread of the `numbers`."""
    findings: Callable[[AnyFlags, Data, Results], Sequence[Finding]] = lambda *_: ()
    """Flags, data, results -> claims with verdicts, asked for unchanged presets with all models."""
    figures: Callable[[AnyFlags, Results], "Mapping[str, Figure]"] = lambda *_: {}
    """Flags, results -> figures by name."""
    texts: Callable[[AnyFlags, Results], Mapping[str, str]] = lambda *_: {}
    """Flags, results -> other texts by the name of their file."""
    seeds: Callable[[AnyFlags], Seeds] = lambda flags: flags.seeds
    """Flags -> number of trainings of every model, or of each by its name."""


def run(experiment: Experiment[AnyFlags, Data], flags: AnyFlags) -> None:
    """Train every model with every seed, measure, decide on the claims, and write the results.

    What was measured is kept beside each training, and with --resume is measured again where a
    setting or the code of `measure` changed or a package was installed.

    Parameters
    ----------
    experiment : Experiment
        The study.
    flags : NetFlags
        Its flags, of `wflow.study.command_line`.
    """
    models, seeds = experiment.models(flags), experiment.seeds(flags)
    names = chosen(models, seeds, flags)
    with session(experiment.name, flags) as opened_session:
        load = partial(experiment.load, flags)
        data = load() if flags.torchrun == "trainings" else on_rank_zero(flags, load)
        source = getattr(data, "source", None)
        setting = [source, settings(flags), missing(flags.needs), *experiment.numbers]
        setting += experiment.along
        code = cache(lambda: code_of(experiment.measure))  # takes seconds: only to measure
        coords = experiment.coords(flags)
        unknown: Record = dict.fromkeys(experiment.numbers, np.nan)
        unknown |= {
            k: [np.nan] * len(coords[dim][0]) for k, (_, dim, _) in experiment.along.items()
        }

        def examine(name: str, seed: int, trained: Trained) -> Record:
            def measured() -> Record:
                found = experiment.measure(flags, data, models[name], trained, seed)
                return unknown | times(trained.history) | found

            folder = folder_of(flags.out, name, seed)
            known = [*setting, code()]
            return cached_record(folder, known, trained, measured, resume=flags.resume)

        results = train_all(
            flags,
            names,
            seeds,
            lambda name, seed: experiment.plan(flags, data, models[name], seed),
            examine,
        )
        if not first_process(flags):
            return
        for name, seed in _jobs(names, seeds):
            if not results.records[name][seed]["diverged"]:
                folder = folder_of(flags.out, name, seed)
                opened_session.files[folder.name] = folder / nets.train.METRICS
        from wflow.nets.training.parallel import alone

        with alone():  # the other processes are done
            found: Sequence[Finding] = ()
            if is_published(flags) and len(names) == len(models):
                found = experiment.findings(flags, data, results)
                if "paper" in flags.presets and not has_settings_of(flags, "paper"):
                    found = [finding.at_this_size() for finding in found]
            opened_session.finish(
                table=experiment.table(flags, results)
                if experiment.table
                else dataset(results, experiment.numbers, experiment.along, coords),
                text=(
                    experiment.text(flags, data, results)
                    if experiment.text
                    else _summary(experiment, flags, source, results)
                ),
                findings=found,
                figures=experiment.figures(flags, results),
                texts=experiment.texts(flags, results),
            )


def _summary(
    experiment: Experiment[Any, Any], flags: NetFlags, source: str | None, results: Results
) -> str:
    """Return mean and spread of the numbers of a study, model by model."""
    seeds = max(map(len, results.records.values()))
    columns = {"model": list(results.records)}
    columns |= {
        f"{text} ({unit})" if unit != "1" else text: column(results, key, ".4g")
        for key, (text, unit) in experiment.numbers.items()
    }
    head = caption(flags, seeds, results, source or "of the study")
    return f"{head}\n\n{markdown_table(columns)}"


def settings(flags: NetFlags) -> dict[str, Any]:
    """Return what the flags of a study set beside those of every study: what is trained."""
    shared = {each.name for each in fields(NetFlags)}
    return {
        each.name: getattr(flags, each.name) for each in fields(flags) if each.name not in shared
    }


def settings_text(flags: NetFlags) -> str:
    """Return the settings in words, such as "batch 100, rate 0.01"; switches only where on."""

    def text(value: Any) -> str:
        if isinstance(value, tuple):
            return " x ".join(map(text, value))
        if isinstance(value, float):
            return f"{value:g}"
        return f"{value:,}" if isinstance(value, int) else str(value)

    given = {k.replace("_", " "): v for k, v in settings(flags).items() if v or v == 0}
    shown = {name: value for name, value in given.items() if value is not False}
    return ", ".join(k if v is True else f"{k} {text(v)}" for k, v in shown.items())


def times(history: "Dataset") -> Record:
    """Return how many iterations a training had, and how long they took."""
    seconds = history["seconds"].values
    return {
        "iterations": history.sizes["step"],
        "seconds": float(seconds.sum()),
        "milliseconds": 1e3 * float(np.median(seconds)) if seconds.size else np.nan,
    }


def is_published(flags: NetFlags) -> bool:
    """Whether claims apply to what is trained: an unchanged preset other than `smoke`.

    A study without presets has no claims.
    """
    return flags.preset != "smoke" and has_settings_of(flags, flags.preset)


def has_settings_of(flags: NetFlags, preset: str) -> bool:
    """Whether a preset trains the same; seeds and indifferent fields are not asked."""
    kept = {name: getattr(flags, name) for name in flags.indifferent}
    return preset in flags.presets and settings(flags) == settings(type(flags).of(preset, **kept))


def on_rank_zero(flags: NetFlags, task: Callable[[], Result]) -> Result:
    """Do something in the first process of torchrun alone, whose result all of them get."""
    return nets.train.process_group(flags.device).on_rank_zero(task)


def _trained(flags: NetFlags, name: str, seed: int, run: Run) -> Trained:
    """Train one run, or take up what `--resume` finds of it."""
    train = nets.train
    out = folder_of(flags.out, name, seed)
    diverged = False
    try:
        history = train.train(
            run.model,
            run.objective,
            run.batches,
            run.config,
            out=out,
            evaluate=run.evaluate,
            resume=flags.resume,
            overwrite=flags.overwrite,
            label=out.name,
        )
    except train.NonFiniteLossError as error:  # that is a result, and not the end of the study
        print(printable(f"{out.name}: {error}", lines=False), file=sys.stderr)
        history, diverged = error.history, True
    device = train.device(run.config.device)
    return Trained(run.model.to(device).eval(), history, device, diverged)


def cached_record(
    folder: Path,
    setting: object,
    run: Trained,
    examine: Callable[[], Record],
    *,
    resume: bool = True,
) -> Record:
    """Return what was measured of a training, from record.json in its folder or measured now.

    A study that is resumed measures nothing again, unless its code changed. The record is that of
    the same training, known by its losses and its configuration, and of the same setting.

    Parameters
    ----------
    folder : that of the training
    setting : what else the record depends on, for JSON
    run : the training
    examine : what measures it; numbers, texts and lists, for JSON
    resume : whether a record that is there may be taken

    Raises
    ------
    InputError
        For what is measured and cannot be written as JSON.
    """
    file = folder / RECORD
    text = json.dumps([setting, run.history.attrs["config"]], sort_keys=True)
    key = hashlib.sha256(text.encode() + run.history["loss"].values.tobytes()).hexdigest()
    if resume and os.path.lexists(file):
        with opened(file, "the record of a training") as source:
            try:
                found = read_json(source, file)
            except (ValueError, RecursionError):  # damaged: it is made again
                found = None
        if isinstance(found, dict) and found.get("key") == key:
            return checks.field(found, "record", dict, file)
    measured = examine()
    try:
        content = json.dumps({"key": key, "record": measured}, default=_plain)
    except TypeError as error:
        raise InputError(f"what `measure` returns is not for JSON: {error}") from None
    record: Record = json.loads(content)["record"]  # as a study that is resumed reads it
    if folder.is_dir():  # none where the first step diverged
        replace_file(file, lambda draft: draft.write_text(content, encoding="utf-8"))
    return record


def _plain(value: Any) -> Any:
    """Return the numbers of NumPy and torch as those of Python."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"it holds {type(value).__name__}: expected numbers, texts and lists of these")


def code_of(measure: Callable[..., Record]) -> str:
    """Return what identifies a measurement by its code; a new text each time where nothing does."""
    try:
        return fingerprint(measure)
    except NotComparable:
        return os.urandom(16).hex()


def joint(verdicts: Sequence[Verdict]) -> Verdict:
    """Return one verdict of several: the common one, confirmed in part, or not confirmed."""
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return "confirmed in part" if "confirmed" in verdicts else "not confirmed"


def caption(flags: NetFlags, seeds: int, results: Results, source: str) -> str:
    """Return data, preset, device, seeds, time and settings: what every table has to say."""
    count = f"{seeds} seed{'s' if seeds > 1 else ''}"
    fewer = {name: len(runs) for name, runs in results.records.items() if len(runs) < seeds}
    if fewer:
        count += f" ({', '.join(f'{name}: {runs}' for name, runs in fewer.items())})"
    gone = results.diverged()
    return (
        f"Preset {flags.preset}; data: {source}; {results.devices}, {flags.precision}; {count}; "
        f"{results.seconds:.0f} s of training in all"
        f"{'; ' + gone if gone else ''}. ± is the standard deviation over seeds. "
        f"Settings: {settings_text(flags)}."
    )


def outputs(
    model: "nn.Module", batches: "Iterable[tuple[Tensor, ...]]", device: "torch.device"
) -> "Iterator[tuple[Tensor, Tensor]]":
    """Return (output, targets) of every batch (inputs..., targets), in evaluation mode."""
    import torch

    with nets.blocks.evaluating(model):
        for *inputs, targets in batches:
            with torch.no_grad():
                output = model(*(each.to(device) for each in inputs)).output
            yield output, targets.to(device)


def classified(
    model: "nn.Module",
    batches: "Iterable[tuple[Tensor, ...]]",
    device: "torch.device",
    processes: "nets.train.Processes | None" = None,
) -> dict[str, float]:
    """Return the share of right answers and mean cross-entropy over batches (inputs..., labels).

    A label stands for a sample, or for each token of a text. The processes take turns with the
    batches, and all get the result.
    """
    import torch

    rows, right, loss = 0, 0, 0.0
    if processes is not None:
        batches = islice(batches, processes.rank, None, processes.count)
    for output, targets in outputs(model, batches, device):
        logits, labels = output.flatten(0, -2), targets.flatten()
        rows += len(labels)
        right += int((logits.argmax(1) == labels).sum())
        loss += float(torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum"))
    if processes is not None:
        rows, right, loss = map(sum, zip(*processes.collect((rows, right, loss)), strict=True))
    return {"accuracy": right / rows, "test_loss": loss / rows}


def motion(body: "nn.Module", hidden: "Tensor", **context: Any) -> Record:
    """Measure how straight hidden states move through a body, and at which cost.

    NaN for bodies that are not continuous in time.
    """
    import torch

    if not isinstance(body, nets.ContinuousTransformer | nets.NodeTransformer):
        return dict.fromkeys(MOTION, np.nan)
    with torch.no_grad():
        path = body.trajectory(hidden.detach(), **context)
    valid = context.get("valid")
    return {
        "straightness": float(nets.diagnostics.straightness(path, valid=valid).mean()),
        "speed_variation": float(nets.diagnostics.speed_variation(path, valid=valid).mean()),
        "transport": float(path.costs.sum()),
    }


def memory(call: Callable[[], None], device: "torch.device") -> float:
    """Measure the peak of the tensors (MB) of a call beyond what stays between two calls."""
    import torch

    call()
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        return float(torch.cuda.max_memory_allocated(device) - before) / 1e6
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its profiler says otherwise when it starts
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.json")
        found.export_chrome_trace(trace)
        with open(trace, encoding="utf-8") as source:
            events = json.load(source)["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    return float(np.cumsum([size for _, size in changes]).max()) / 1e6


def compared(better: ArrayLike, worse: ArrayLike, unit: str = "") -> tuple[str, Verdict]:
    """Whether the first numbers lie above the second, for a finding: (text, verdict).

    Confirmed if the gap of the means is larger than the standard deviations over seeds together,
    not confirmed if it is as large in the other direction; inconclusive between, and for one seed,
    whose spread is unknown. Numbers that are not finite are those of runs that diverged: the claim
    is then not confirmed if they are of the model that it is about, and inconclusive if only the
    other one diverged, which leaves nothing to compare with.

    Parameters
    ----------
    better, worse : one number per seed, of the model that a claim is about and of the other one;
        their negatives where less is better, as of losses
    unit : "points" for accuracies, which are then given in per cent
    """
    high, low = (np.asarray(values, dtype=float) for values in (better, worse))
    scale = 100 if unit == "points" else 1
    gone = [int((~np.isfinite(values)).sum()) for values in (high, low)]
    if any(gone):
        which, runs = ("the model", high) if gone[0] else ("the model compared with", low)
        text = f"{which} diverged in {gone[0] or gone[1]} of {runs.size} runs"
        return text, "not confirmed" if gone[0] else "inconclusive"
    gap = scale * float(high.mean() - low.mean())
    text = f"{gap:+.3g} {unit}".strip()
    if min(high.size, low.size) == 1:
        return f"{text}, one seed, spread unknown", "inconclusive"
    noise = scale * float(np.hypot(high.std(ddof=1), low.std(ddof=1)))
    verdict: Verdict = "inconclusive"
    if abs(gap) > noise:
        verdict = "confirmed" if gap > 0 else "not confirmed"
    return f"{text}, standard deviation {noise:.2g} over seeds", verdict


def paired(
    better: ArrayLike, worse: ArrayLike, style: str = "+.3g", *, ratio: bool = False
) -> tuple[str, Verdict]:
    """Whether the first numbers lie above the second, seed by seed, for a finding: (text, verdict).

    Confirmed if the 95 % interval of the mean difference, by Student's t, lies above zero, not
    confirmed if it lies below; inconclusive where it holds zero, and for one seed, whose spread is
    unknown.

    Parameters
    ----------
    better, worse : one number per seed, in the order of the seeds
    style : format of the difference and its bounds
    ratio : compare logarithms, and give the geometric mean of the ratios in place of a difference
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        pair = [np.asarray(values, dtype=float) for values in (better, worse)]
        gaps = np.subtract(*map(np.log, pair)) if ratio else np.subtract(*pair)
    mean = float(gaps.mean())

    def text(value: float) -> str:
        return f"{np.exp(value):.3g}" if ratio else f"{value:{style}}"

    if not np.isfinite(gaps).all():
        return "a model diverged", "not confirmed"
    if gaps.size == 1:
        return f"{text(mean)}, one seed, spread unknown", "inconclusive"
    from scipy.stats import t

    half = float(t.ppf(0.975, gaps.size - 1) * gaps.std(ddof=1) / gaps.size**0.5)
    verdict: Verdict = "inconclusive"
    if mean - half > 0:
        verdict = "confirmed"
    elif mean + half < 0:
        verdict = "not confirmed"
    return f"{text(mean)} (95 % {text(mean - half)} to {text(mean + half)})", verdict


def claim(
    statement: str,
    source: str,
    pairs: Mapping[str, tuple[ArrayLike, ArrayLike]],
    compare: Callable[..., tuple[str, Verdict]] = paired,
) -> Finding:
    """Decide whether the first numbers of every case lie above the second ones.

    Parameters
    ----------
    statement, source : the prediction, and who makes it
    pairs : case -> numbers that are said to be more, and less, one per seed
    compare : `paired` or `compared`
    """
    found = {case: compare(*pair) for case, pair in pairs.items()}
    text = "; ".join(f"{case}: {text}" for case, (text, _) in found.items())
    return Finding(statement, source, text, joint([verdict for _, verdict in found.values()]))


def column(
    results: Results, key: str, style: str | Callable[[float], str], place: Any = ...
) -> list[str]:
    """Return one quantity of every model, mean and standard deviation over its seeds.

    The style is a format, such as ".3f", or what makes a text of a number; `place` is that of a
    number in a list.
    """
    write = (lambda value: format(value, style)) if isinstance(style, str) else style
    return [mean_and_spread(results.values(name, key, place), write) for name in results.records]


def mean_and_spread(values: Sequence[Any] | FloatArray, style: Callable[[float], str]) -> str:
    """Return mean and standard deviation over seeds; the value alone for one seed, a dash for none.

    Diverged runs are left out, and the rest of them counted.
    """
    found = _finite(values)
    if not found.size:
        return "–"
    text = style(float(found.mean()))
    if found.size > 1:
        text += f" ± {style(float(found.std(ddof=1)))}"
    return text if found.size == len(values) else f"{text} ({found.size} of {len(values)})"


def differences(
    results: Results, key: str, published: Mapping[str, float], style: str, scale: float = 1.0
) -> list[str]:
    """Return mean minus the published value of every model; a dash where there is none."""
    cells = []
    for name, runs in results.records.items():
        found = _finite([record[key] for record in runs])
        known = name in published and found.size
        cells.append(f"{scale * found.mean() - published[name]:{style}}" if known else "–")
    return cells


def means(printed: Mapping[str, str]) -> dict[str, float]:
    """Return the means of published entries such as "93.0 ± 0.67", by model; without "NaN"."""
    return {name: float(text.split()[0]) for name, text in printed.items() if text != "NaN"}


def _finite(values: Sequence[Any] | FloatArray) -> FloatArray:
    """Return the numbers of the runs that came to an end."""
    found = np.asarray(values, dtype=float)
    return found[np.isfinite(found)]


def unpublished(table: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return a table without the columns that hold published values, or differences from them."""
    return {
        title: cells
        for title, cells in table.items()
        if title != "difference" and not title.startswith("published")
    }


def dataset(
    results: Results,
    scalars: Mapping[str, tuple[str, str]],
    along: Mapping[str, tuple[str, str, str]] = MappingProxyType({}),
    coords: Mapping[str, tuple[Sequence[float], str]] = MappingProxyType({}),
) -> "Dataset":
    """Return all numbers as a Dataset over (model, seed), NaN where a model has fewer seeds.

    Parameters
    ----------
    scalars : key of the records -> (text, unit)
    along : key -> (name in the Dataset, dimension, text), a list of numbers along the dimension
    coords : dimension -> (values, text)
    """
    import xarray

    one = ("model", "seed")
    seeds = max(map(len, results.records.values()))

    def table(key: str) -> FloatArray:
        """Return (model, seed, ...), NaN where a model has fewer seeds."""
        found = [np.array([r[key] for r in runs], dtype=float) for runs in results.records.values()]
        filled = np.full((len(found), seeds, *found[0].shape[1:]), np.nan)
        for row, numbers in zip(filled, found, strict=True):
            row[: len(numbers)] = numbers
        return filled

    values = {key: table(key) for key in (*scalars, *along)}
    variables: dict[str, Any] = {
        key: (one, values[key], {"long_name": text, "units": unit})
        for key, (text, unit) in scalars.items()
    }
    for key, (name, dim, text) in along.items():
        variables[name] = ((*one, dim), values[key], {"long_name": text, "units": "1"})
    places: dict[str, Any] = {
        "model": ("model", list(results.records), {"long_name": "model"}),
        "seed": ("seed", range(seeds), {"long_name": "seed"}),
    }
    for dim, (numbers, text) in coords.items():
        places[dim] = (dim, list(numbers), {"long_name": text})
    return xarray.Dataset(variables, places)
