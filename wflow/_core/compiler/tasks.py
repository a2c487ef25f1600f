"""Functions that parallel loops call by address, so that each is compiled once.

Numba optimises and translates what the body of a parallel loop calls four times: for the loop, for
two wrappers of it, and in the function that holds it. Behind an address it is one function more,
and the four are a call each.
"""

from typing import Any

import numpy as np
from numba import from_dtype, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from wflow._core.compiler.undocumented import if_unlikely

# The tasks that have code for each list of types. A call with other types would read memory that is
# not there; that the address belongs to these types is up to the caller. Kept here, for their code
# goes with them.
_known: dict[tuple[types.Type, ...], list[Any]] = {}


def address(task: Any, arguments: tuple[types.Type, ...]) -> int:
    """Where the code of a task for such arguments lies; compiled, or read from disk, if need be.

    Parameters
    ----------
    task : made by `loop_body`, not parallel and without a result
    """
    task.compile(arguments)
    code = task.overloads[arguments]
    place = code.library.get_pointer_to_function(code.fndesc.llvm_func_name)
    assert place, task
    _known.setdefault(arguments, []).append(task)
    return place


def arrays(dtype: np.typing.DTypeLike) -> tuple[types.Array, ...]:
    """Types of arrays in C order with one to four axes."""
    real = from_dtype(np.dtype(dtype))
    return tuple(types.Array(real, axes, "C") for axes in range(1, 5))


@intrinsic
def call(_context, address, arguments):
    """Run the task at this address with a tuple of arguments; in compiled code only."""
    if tuple(map(_as_declared, arguments.types)) not in _known:
        raise TypingError(f"no task takes arguments of the types {arguments.types}")

    def codegen(context, builder, signature, values):
        kinds = tuple(signature.args[1].types)
        given = [builder.extract_value(values[1], place) for place in range(len(kinds))]
        function = context.call_conv.get_function_type(types.none, kinds)
        pointer = builder.inttoptr(values[0], function.as_pointer())
        status, _ = context.call_conv.call_function(builder, pointer, types.none, kinds, given)
        with if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.none(address, arguments), codegen


def _as_declared(kind: types.Type) -> types.Type:
    """The type whose values look the same in memory: arrays that may be written, no constants."""
    if isinstance(kind, types.Array):
        return types.Array(kind.dtype, kind.ndim, kind.layout)
    if isinstance(kind, types.NamedTuple):
        fields = tuple(map(_as_declared, kind.types))
        return types.BaseTuple.from_types(fields, kind.instance_class)
    return types.unliteral(kind)
