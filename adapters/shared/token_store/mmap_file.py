"""Memory maps without a file descriptor, so that thousands can exist."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from functools import cache


def map_file(descriptor: int) -> memoryview:
    """Return the bytes of an open file, read-only; the descriptor may be closed, and the map ends with its last view.

    Raises ``OSError``.
    """
    size = os.fstat(descriptor).st_size
    if size == 0:
        return memoryview(b"")
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, trackfd=False))
    return _map_with_libc(descriptor, size)


def _map_with_libc(descriptor: int, size: int) -> memoryview:
    # before Python 3.13 the mmap module keeps a duplicate of the descriptor for as long as the map
    library = _libc()
    address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    array = (ctypes.c_ubyte * size).from_address(address)
    # not at exit: another thread may still read
    weakref.finalize(array, library.munmap, address, size).atexit = False
    return memoryview(array).cast("B").toreadonly()


@cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library
