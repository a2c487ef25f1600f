"""The one place that imports POT: without the array libraries it would bring along."""

import importlib
import os
import sys
from types import ModuleType

# POT imports every array library it finds, of which torch alone takes seconds and 200 MB.
_OPTIONAL = {
    "POT_BACKEND_DISABLE_PYTORCH": "torch",
    "POT_BACKEND_DISABLE_JAX": "jax",
    "POT_BACKEND_DISABLE_CUPY": "cupy",
    "POT_BACKEND_DISABLE_TENSORFLOW": "tensorflow",
}


def load_pot() -> ModuleType:
    """Import POT as `ot`, with the array libraries that are loaded already and no others.

    A setting of the user's in the environment stays as it is. A program that wants POT for tensors
    of torch too imports torch, or POT, before its first call of `wflow.transport`.
    """
    if "ot" in sys.modules:
        return sys.modules["ot"]
    switched_off = [
        key
        for key, module in _OPTIONAL.items()
        if key not in os.environ and module not in sys.modules
    ]
    os.environ.update(dict.fromkeys(switched_off, "1"))
    try:
        return importlib.import_module("ot")
    finally:
        for key in switched_off:  # a child process decides for itself
            os.environ.pop(key, None)
