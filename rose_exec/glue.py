"""What the glue code of a loop or composite asks of the executor."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any


@functools.cache
def waits_for_errors(entry: Callable[..., Any]) -> bool:
    """Whether a body may handle exceptions of the nodes it calls.

    A ``try`` or ``with`` around a call must see what the call raises, so every call in such a body is
    waited for. A body without source is treated as if it had one.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(entry)))
    except (OSError, TypeError, SyntaxError):
        return True
    return any(
        isinstance(x, ast.Try | ast.TryStar | ast.With | ast.AsyncWith) for x in ast.walk(tree)
    )
