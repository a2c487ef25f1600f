"""Python in another process."""

import os
import subprocess
import sys
from typing import Any


def python(*words: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these words and variables, which must succeed."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], env=os.environ | environment, capture_output=True,
        text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done
