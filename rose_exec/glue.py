"""What the glue code of a loop or composite asks of the executor."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import threading
from collections.abc import Callable
from typing import Any


@functools.cache
def waits_for_errors(entry: Callable[..., Any]) -> bool:
    """Whether a body may see exceptions of the nodes it calls.

    A ``try`` or ``with`` around a call must see what the call raises, so every call in such a body is
    waited for. A body without source is treated as if it had one.
    """
    tree = _tree(entry)
    return tree is None or any(
        isinstance(x, ast.Try | ast.TryStar | ast.With | ast.AsyncWith) for x in ast.walk(tree)
    )


@functools.cache
def handles_errors(entry: Callable[..., Any]) -> bool:
    """Whether a body may go on after an exception of a node it calls.

    Then what ran before the exception must be just what ran natively, so nothing below is split or
    moved. A ``with`` is taken to pass exceptions on, unless it says ``suppress``.
    """
    tree = _tree(entry)
    return tree is None or any(
        isinstance(x, ast.Try | ast.TryStar) or _name(x) == "suppress" for x in ast.walk(tree)
    )


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
        case _:
            return ""


_parsing = threading.Lock()  # Python 3.11 loses count when two threads parse at once (gh-106905)


def _tree(entry: Callable[..., Any]) -> ast.AST | None:
    try:
        source = textwrap.dedent(inspect.getsource(entry))
        with _parsing:
            return ast.parse(source)
    except (OSError, TypeError, SyntaxError):
        return None
