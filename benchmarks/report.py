"""What every benchmark writes around its figures."""

import json
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wflow._study_session import machine
from wflow.schema import version_of

PACKAGES = ("wflow", "numpy", "scipy", "numba", "pot", "torch")


def write(file: Path, command: str, threads: int, **body: Any) -> None:
    """Write command, date, machine, threads and versions, then the body, as JSON."""
    versions = {"python": platform.python_version()} | {name: version_of(name) for name in PACKAGES}
    head = {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "threads": threads,
        "versions": versions,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(head | body, indent=2) + "\n")
    print(f"wrote {file}")
