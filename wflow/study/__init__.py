"""The frame of a study: flags, runs, summary, findings, figures.

`flags` are the options of the command line and the types of their values, `folder` what may be
written where, `frame` a session of any study and its findings, `cases` tables of labelled
cases, `heads` the study over head counts, `networks` the study of networks, `texts` what those of
texts share, `report` the page of a run or a study, `explore` sliders over a run in a
notebook. The scripts in `studies/` import the package. Start with `frame`.
"""

from typing import TYPE_CHECKING

from wflow._core.checks import Direction, FlowName, MetricName, SchemeName
from wflow._core.command_line import Folder
from wflow.study.cases import FloatArray, dataset, initial_heads, seed_of, tabulate
from wflow.study.flags import (
    Angle,
    Checked,
    Compared,
    Count,
    Dimension,
    Distinct,
    Flags,
    Natural,
    Nonnegative,
    OutputFlags,
    Positive,
    Share,
    StudyFlags,
    Switch,
    TokenFlags,
    TwoOrMore,
    command_line,
    distinct,
)
from wflow.study.frame import Finding, Session, markdown_table, mean_text, session, slope_text
from wflow.study.heads import SNAPSHOTS, run

if TYPE_CHECKING:  # types for annotations in scripts; --help loads neither library
    from matplotlib.figure import Figure as Figure
    from xarray import Dataset as Dataset

__all__ = [
    "SNAPSHOTS",
    "Angle",
    "Checked",
    "Compared",
    "Count",
    "Dimension",
    "Direction",
    "Distinct",
    "Finding",
    "Flags",
    "FloatArray",
    "FlowName",
    "Folder",
    "MetricName",
    "Natural",
    "Nonnegative",
    "OutputFlags",
    "Positive",
    "SchemeName",
    "Session",
    "Share",
    "StudyFlags",
    "Switch",
    "TokenFlags",
    "TwoOrMore",
    "command_line",
    "dataset",
    "distinct",
    "initial_heads",
    "markdown_table",
    "mean_text",
    "run",
    "seed_of",
    "session",
    "slope_text",
    "tabulate",
]


def __dir__() -> list[str]:
    return __all__
