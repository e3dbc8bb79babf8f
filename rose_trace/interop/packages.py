"""Packages that only interop needs, and that an installation may lack."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from rose_trace.parquet import TraceError


@contextlib.contextmanager
def needs_extra() -> Generator[None]:
    """Turn a missing package into one line that says how to install it.

    Raises:
        TraceError: If what is imported within is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise TraceError(
            f"{error.name}: expected the packages of the extra 'export', got none of that name. "
            "Run: pip install 'rose-rl[export]'"
        ) from error
