"""The report of a run or of a study, one HTML page.

`read` gives the numbers, curves and checks of a run (`Section`) and of a study (`Study`); `page`
writes one page of them. Start with `page.write`.
"""

from wflow.study.report.page import write

__all__ = ["write"]
