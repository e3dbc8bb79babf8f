"""Something to do as soon as a module is imported, without importing it: a worker may never need torch."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_waiting: dict[str, dict[str, Callable[[], None]]] = {}


def after_import(name: str, action: Callable[[], None], what: str = "") -> None:
    """Call `action` once the module called `name` is there: now, or right after its first import.

    A later call for the same module and the same `what` replaces an action that still waits.
    """
    if name in sys.modules:
        action()
        return
    _waiting.setdefault(name, {})[what] = action
    if not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds nothing itself; lets the loader of a watched module run the actions after it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have, with a loader that goes on to the actions."""
        if fullname not in _waiting:
            return None
        actions = _waiting.pop(fullname)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for action in actions.values():
                action()

        loader.exec_module = exec_module
        return spec
