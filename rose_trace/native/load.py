"""Which recorder a recording gets: the native one where it has been built, otherwise the Python one."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import Any, Protocol

from rose_trace import current_span, identity, otel
from rose_trace.identity import Identity
from rose_trace.native.library import library_path
from rose_trace.recorder import Recorder

VARIABLE = "ROSE_NATIVE"
"""Environment variable; ``0`` keeps recording in Python."""

NAME = "rose_trace.native.hot_path"

log = logging.getLogger("rose_trace")


class HotPath(Protocol):
    """The compiled module."""

    def method(self, recorder: type[Recorder], /) -> Any:
        """The method `invoke` of a class of recorders."""
        ...

    def of_storage(self, storage: Any, /) -> Identity | None:
        """Identity of a storage; ``None`` for an object that is not torch's own."""
        ...

    def known_storages(self) -> int:
        """How many storages that are in use have an identity."""
        ...


def hot_path() -> HotPath | None:
    """The native hot path; ``None`` where it is switched off, not built, or does not fit.

    It reads torch's own objects, so there is none in a process that has not imported torch.
    """
    loaded: Any = sys.modules.get(NAME)
    torch = sys.modules.get("torch")
    if torch is None or otel.variable is None or os.environ.get(VARIABLE) == "0":
        return None
    if loaded is not None:
        return loaded
    try:
        built = library_path(torch)
        return _loaded(built) if built.exists() else None
    except Exception as error:  # whatever is wrong with it, recording goes on without
        log.warning(
            "%s: expected a hot path that loads, got %s: %s. Recording stays in Python; delete the library and run "
            "rose-trace build, or set %s=0.",
            NAME,
            type(error).__name__,
            error,
            VARIABLE,
        )
        return None


def _loaded(built: Path) -> HotPath:
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(built))
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    module: Any = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[NAME] = module
    return module


def recorder_class() -> type[Recorder]:
    """The recorder of a recording that begins now; identities of storages are kept where it reads them."""
    found = hot_path()
    identity.keep_in(None if found is None else found.of_storage)
    if found is None:
        return Recorder
    current_span.install()
    return _native_recorder(found)


@functools.cache
def _native_recorder(found: HotPath) -> type[Recorder]:
    kind = type("NativeRecorder", (Recorder,), {})
    kind.invoke = found.method(kind)
    return kind
