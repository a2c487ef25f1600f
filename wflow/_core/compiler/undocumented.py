"""The names of Numba that this package uses and that Numba's documentation does not describe.

They are looked up when the first compiled function is defined. A version of Numba that lacks one
fails there, with its version and the name, instead of computing something else.
"""

import importlib
from functools import reduce
from typing import Any

import numba

# What for, and "module:name".
NAMES = {
    "write compiled code": "numba.core.compiler:CompileResult._reduce",
    "read compiled code": "numba.core.compiler:CompileResult._rebuild",
    "pickle compiled code": "numba.core.serialize:dumps",
    "attach a cache": "numba.core.dispatcher:Dispatcher.enable_caching",
    "find compiled code": "numba.core.dispatcher:Dispatcher.compile",
    "know code that cannot be kept": "numba.core.codegen:CPUCodeLibrary.has_dynamic_globals",
    "know the processor": "numba.core.codegen:CPUCodegen.magic_tuple",
    "find an address": "numba.core.codegen:JITCodeLibrary.get_pointer_to_function",
    "declare a task": "numba.core.callconv:CPUCallConv.get_function_type",
    "call a task": "numba.core.callconv:CPUCallConv.call_function",
    "pass on a task's error": "numba.core.callconv:CPUCallConv.return_status_propagate",
    "branch on an error": "numba.core.cgutils:if_unlikely",
    "reach the data of an array": "numba.core.base:BaseContext.make_array",
    "return nothing": "numba.core.base:BaseContext.get_dummy_value",
    "prepare for code that is read": "numba.core.base:BaseContext.refresh",
    "name the code generator": "numba.core.cpu:CPUContext.codegen",
    "know the calling convention": "numba.core.cpu:CPUContext.call_conv",
    "pass named tuples": "numba.core.types:BaseTuple.from_types",
    "name compiled code": "numba.core.funcdesc:FunctionDescriptor.llvm_func_name",
}


def look_up(name: str, purpose: str) -> Any:
    """The object of that name, "module:name".

    Raises
    ------
    ImportError
        Where this version of Numba has none.
    """
    module, _, path = name.partition(":")
    try:
        return reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"Numba {numba.__version__} has no {name}, which wflow needs to {purpose}: install "
            "another version of Numba, such as 0.61 or 0.68"
        ) from error


def attribute(instance: Any, name: str) -> Any:
    """An undocumented attribute that Numba's objects get when they are made."""
    if not hasattr(instance, name):
        raise ImportError(
            f"{type(instance).__name__} of Numba {numba.__version__} has no {name}, which wflow "
            "needs: install another version of Numba, such as 0.61 or 0.68"
        )
    return getattr(instance, name)


_found = {name: look_up(name, purpose) for purpose, name in NAMES.items()}
dumps = _found["numba.core.serialize:dumps"]
rebuild = _found["numba.core.compiler:CompileResult._rebuild"]
if_unlikely = _found["numba.core.cgutils:if_unlikely"]


def processor(codegen: Any) -> tuple[str, ...]:
    """Triple, name and features of the processor that code is compiled for."""
    described = tuple(map(str, codegen.magic_tuple()))
    if len(described) != 3:
        raise ImportError(
            f"magic_tuple of Numba {numba.__version__} is {described}: expected triple, name and "
            "features of the processor; install another version of Numba"
        )
    return described
