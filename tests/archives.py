"""Files, zip archives and a trap that tests put into folders."""

import io
import zipfile
from pathlib import Path
from typing import Any


def zipped(contents: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip archive with these contents by name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return file.getvalue()


def fill(folder: Path, contents: dict[str, bytes]) -> Path:
    """Write files by name below a folder, and return the folder."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


class Hostile:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")
