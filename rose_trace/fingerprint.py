"""Fingerprint of a definition: changes when its code or declaration does, not when its layout does."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from types import CodeType
from typing import Any

from rose_trace.records import Declaration


def fingerprint(entry: Callable[..., Any], declaration: Declaration | None = None) -> str:
    """Hash of a function's normalised source and its declaration.

    Comments, formatting, docstrings and decorators do not count; the declaration, which decorators
    carry, does. Where no source can be found (an interactive session), the bytecode stands in.

    Args:
        entry: The undecorated function.
        declaration: What was declared about it.

    Returns:
        16 hexadecimal digits.
    """
    try:
        body = _normalised(inspect.getsource(entry))
    except (OSError, TypeError, SyntaxError):
        body = _compiled(getattr(entry, "__code__", None))
    text = f"{entry.__qualname__}\n{body}\n{declaration!r}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _compiled(code: Any) -> str:
    """Bytecode and constants, nested functions included; a built-in has none and counts by name."""
    if code is None:
        return "built in"
    constants = [_compiled(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return repr((code.co_code.hex(), code.co_names, code.co_varnames, constants))


def _normalised(source: str) -> str:
    tree = ast.parse(textwrap.dedent(source))
    for item in ast.walk(tree):
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            item.decorator_list = []
            first = item.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                item.body = item.body[1:] or [ast.Pass()]
    return ast.dump(tree, include_attributes=False)
