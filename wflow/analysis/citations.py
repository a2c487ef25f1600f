"""The papers that a run or a study relies on, as BibTeX, each with its reason.

`references.bib` beside this module holds every paper, and the page of references in the theory is
written from it. What a run used is read from its configuration.
"""

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wflow._core.checks import path_of
from wflow._core.errors import InputError, WflowWarning
from wflow._version import __version__
from wflow.runs.schema import flow_name, is_movement, law_name

if TYPE_CHECKING:
    from xarray import Dataset, DataTree

_LAWS = {
    "Frozen": ("GLPR", "heads that stay as they are"),
    "OrnsteinUhlenbeck": ("MHT", "the Ornstein-Uhlenbeck heads"),
    "Oscillating": ("MHT", "the oscillating heads"),
    "Schedule": ("MHT", "heads that change from layer to layer"),
    "CompoundPoisson": ("MHT", "the jumps of the heads"),
}
_FLOWS = {
    "softmax": (("GLPR", "the flow softmax"), ("MHT", "its energy balance")),
    "unnormalised": (
        ("GLPR", "the flow unnormalised"),
        ("MHT", "its energy balance"),
    ),
    "effective": (("MHT", "the flow effective"),),
}
_SCHEMES = {
    "heun": ("HNW1993", "the scheme heun"),
    "rk4": ("HNW1993", "the scheme rk4"),
    "sra1": ("R2010", "the scheme sra1"),
    "dopri5": ("DP1980", "the scheme dopri5"),
}
_METRICS = {
    "w2": ("MHT", "minimizing movements in W₂"),
    "weighted": ("MHT", "minimizing movements in the weighted metric"),
}
_MESHES = {
    "Circle": ("EGH2000", "the finite volumes"),
    "Sphere": ("DGJ2003", "the finite volumes on the sphere"),
    "Fourier": ("Lawson1967", "the integrating factor of the spectral method"),
    "Harmonics": ("Lawson1967", "the integrating factor of the spectral method"),
}
_SAMPLERS = {
    "brwp": (("HOL2025", "the sampler brwp"), ("RWPO", "the interaction of the sampler")),
    "myula": (("DMP2018", "the sampler myula"),),
    "ula": (("RT1996", "the sampler ula"),),
}


class Citations(dict[str, str]):
    """Papers to cite: keys of BibTeX entries to reasons; printed as BibTeX.

    Parameters
    ----------
    reasons : mapping of str to str
        Keys of entries to reasons.
    version : str
        Version of wflow that made the numbers.

    Attributes
    ----------
    bibtex : str
        The entries, each below a comment with its reason.
    """

    def __init__(self, reasons: Mapping[str, str], version: str) -> None:
        super().__init__(reasons)
        entries = dict(bibliography())
        entries["wflow"] = entries["wflow"].removesuffix("}") + f"  version = {{{version}}},\n}}"
        self.bibtex = "\n\n".join(f"% for {reason}\n{entries[key]}" for key, reason in self.items())

    def __repr__(self) -> str:
        return self.bibtex


def cite(source: "Dataset | DataTree | str | Path") -> Citations:
    """Return the papers that a run or a study relies on, and wflow itself, as BibTeX.

    They are those of the head law, the flow, the scheme, the metric, the mesh, the sampler and the
    prior, and of a study those that its findings test. A custom part has none: cite its own.

    Parameters
    ----------
    source : xarray.Dataset, xarray.DataTree, str or Path
        A run, an open study, a run file, or the folder of a study or of a sweep.

    Returns
    -------
    Citations
        A dict of keys to reasons, which prints as BibTeX; its attribute `bibtex` is the text.

    Raises
    ------
    InputError
        For a Dataset that is no run.
    RunFileError
        For a file or folder that cannot be read.

    Examples
    --------
    >>> import numpy as np, wflow
    >>> law = wflow.heads.OrnsteinUhlenbeck(np.eye(3))
    >>> x0 = wflow.tokens.uniform(n=5, d=3, seed=0)
    >>> run = wflow.solve(x0, law, heads=2, t_final=0.1, dt=0.05, scheme="sra1")
    >>> wflow.cite(run)["R2010"]
    'the scheme sra1'
    >>> print(wflow.cite(run))  # doctest: +ELLIPSIS
    % for the simulation
    @software{wflow,
      author = {{The wflow developers}},
    ...
    """
    if isinstance(source, str | Path):
        return _from_disk(path_of(source, "source"))
    nodes = source.subtree if hasattr(source, "subtree") else (source,)
    all_attrs = [dict(getattr(node, "attrs", {})) for node in nodes]
    found: dict[str, list[str]] = {"wflow": ["the simulation"]}
    runs = 0
    for attrs in all_attrs:
        runs += "config" in attrs or "findings" in attrs
        for key, reason in _papers(attrs):
            reasons = found.setdefault(key, [])
            reasons += [] if reason in reasons else [reason]
    if not runs:
        raise InputError(
            f"source is a {type(source).__name__} without the configuration of a run: expected "
            "what wflow.solve, wflow.open or wflow.open_study returned, a run file, or a folder, "
            "such as `out` of a sweep, whose table has no configuration"
        )
    made = [str(attrs["wflow_version"]) for attrs in all_attrs if "wflow_version" in attrs]
    version = made[0] if made and re.fullmatch(r"[\w.+-]{1,40}", made[0]) else __version__
    return Citations({key: ", ".join(reasons) for key, reasons in found.items()}, version)


def _from_disk(path: Path) -> Citations:
    from wflow.runs.read import open_run
    from wflow.runs.studies import open_study

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WflowWarning)  # an unfinished run has the same papers
        with open_study(path) if path.is_dir() else open_run(path) as opened:
            return cite(opened)


def _papers(attrs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield keys and reasons for the attributes of a run, or of the root of a study."""
    for finding in _json(attrs, "findings", list):
        said = str(finding.get("source", "")) if isinstance(finding, dict) else ""
        for key in re.findall(r"\[(\w+)\]", said):
            if key in bibliography():
                yield key, "what the study tests"
    config = _json(attrs, "config", dict)
    if "law" in config:
        yield from _known(_LAWS, law_name(config))
        yield from _inner(config["law"])
    yield from _FLOWS.get(flow_name(config), ())
    if isinstance(config.get("mesh"), dict):
        yield "MHT", "the mean-field equation"
        yield from _known(_MESHES, _name(config["mesh"], "kind"))
        if config.get("kappa") and _name(config["mesh"], "kind") in ("Circle", "Sphere"):
            yield "SG1969", "the fluxes with diffusion"
    if is_movement(config):
        yield "AGS2008", "minimizing movements"
        yield from _known(_METRICS, _name(config.get("metric")).lower())
    yield from _known(_SCHEMES, _name(config.get("scheme")))
    if _json(config, "compute", dict).get("method") == "fast":
        yield "DLMF", "the expansion of the fast sums"
    yield from _SAMPLERS.get(str(config.get("sampler")), ())
    prior = config.get("prior")
    if _name(prior) in ("L1", "SmoothL1") and "fingerprint" not in prior:  # type: ignore[operator]
        yield "RWPO", f"the prior {_name(prior)}"


def _inner(law: Any) -> Iterator[tuple[str, str]]:
    """Yield the papers of the law within a law."""
    if isinstance(law, dict) and isinstance(law.get("law"), dict):
        yield from _known(_LAWS, law_name(law))


def _known(table: Mapping[str, tuple[str, str]], name: str) -> Iterator[tuple[str, str]]:
    if name in table:
        yield table[name]


def _name(part: Any, key: str = "name") -> str:
    return str(part.get(key, "") if isinstance(part, dict) else part or "")


def _json(attrs: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return a JSON attribute of a kind, as text or read; empty where it is missing or damaged."""
    value = attrs.get(name)
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        value = None
    return value if isinstance(value, kind) else kind()


@cache
def bibliography() -> dict[str, str]:
    """Return the BibTeX entries of `references.bib` by key, in its order."""
    text = resources.files(__package__).joinpath("references.bib").read_text(encoding="utf-8")
    found = re.findall(r"^(@\w+\{(\w+),\n.*?\n\})$", text, re.MULTILINE | re.DOTALL)
    return {key: entry for entry, key in found}
