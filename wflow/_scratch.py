"""Room for the compiled sums that is kept from one call to the next.

A block of memory that is allocated and given back at every step is, each time, made of fresh
pages, which the operating system hands out slowly.
"""

import threading

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 64  # bytes: a vector that straddles two cache lines costs two accesses
_KEPT_BYTES = 1 << 25  # unless the caller says otherwise: longer steps do not notice


class _Kept(threading.local):
    def __init__(self) -> None:
        self.rooms: dict[np.dtype, NDArray[np.floating]] = {}


_kept = _Kept()


def scratch(vectors: int, dtype: np.dtype, kept: int = _KEPT_BYTES) -> NDArray[np.floating]:
    """A flat array of at least so many vectors of 64 bytes, aligned, with anything in it.

    The next call in the same thread may return the same memory, if it is at most `kept` bytes.
    """
    room = _kept.rooms.get(dtype)
    if room is not None and room.nbytes >= vectors * _ALIGNMENT:
        return room
    fresh = np.empty((vectors + 1) * _ALIGNMENT, np.uint8)
    first = -fresh.ctypes.data % _ALIGNMENT
    room = fresh[first : first + vectors * _ALIGNMENT].view(dtype)
    if room.nbytes <= kept:
        _kept.rooms[dtype] = room
    return room
