"""Building the native hot path: some C++, compiled once per version of torch and of Python.

The library lies in the user's cache under a name that says what it was built from and for, so one that
fits nothing any more is never loaded.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("hot_path.cpp")
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-std=c++20",
    "-O2",
    "-fPIC",
    "-fno-plt",
    "-shared",
    "-fvisibility=hidden",
    "-Wno-deprecated-declarations",
)
BUILD_SECONDS = 600  # ours: longer than any compiler takes for one file


class BuildError(Exception):
    """The hot path cannot be built here; the message says why and what to do."""


def library_path(torch: Any) -> Path:
    """Where the hot path lies, built or not, for this source, this Python and this torch.

    Args:
        torch: The imported module.
    """
    about = (*FLAGS, torch.__version__, sys.version, platform.machine(), sys.platform)
    texts = [path.read_bytes() for path in sorted(SOURCE.parent.glob("*.[ch]*"))]
    key = hashlib.sha256(b"".join((repr(about).encode(), *texts))).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "rose" / f"hot_path-{key}.so"


def build() -> Path:
    """Compile the hot path, unless that has been done.

    Returns:
        The library.

    Raises:
        BuildError: If there is no torch, no compiler or no place for it, or the compiler fails.
    """
    torch = _torch()
    target = library_path(torch)
    if target.exists():
        return target
    compiler = _compiler()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may build at once: each its own file, and the last one stays.
        with tempfile.TemporaryDirectory(dir=target.parent) as place:
            made = Path(place) / target.name
            _run(_command(compiler, torch, made))
            os.replace(made, target)
    except OSError as error:
        raise BuildError(
            f"{target.parent}: expected a folder to build in, got {error}. Set XDG_CACHE_HOME to one."
        ) from error
    return target


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise BuildError(
            f"rose-trace build: expected torch, got {error}. Install torch; until then recording needs nothing "
            "native."
        ) from error


def _compiler() -> str:
    asked = os.environ.get("CXX")
    for name in (asked,) if asked else COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise BuildError(
        f"rose-trace build: expected a C++ compiler, got none called {asked or ', '.join(COMPILERS)}. Install one "
        "(Debian and Ubuntu: apt-get install g++) or name one in CXX; without it recording stays in Python."
    )


def _command(compiler: str, torch: Any, made: Path) -> list[str]:
    root = Path(torch.__file__).parent
    return [
        compiler,
        *FLAGS,
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-isystem{root / 'include'}",
        f"-isystem{sysconfig.get_path('include')}",
        str(SOURCE),
        "-o",
        str(made),
        f"-L{root / 'lib'}",
        "-lc10",  # found by its name at run time: torch has loaded it
    ]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(
            f"rose-trace build: expected {command[0]} to end within {BUILD_SECONDS} s, it did not. Run it again on a "
            "machine that is less busy."
        ) from error
    if done.returncode:
        raise BuildError(
            f"rose-trace build: expected {command[0]} to compile {SOURCE.name}, it failed with\n{done.stderr.strip()}\n"
            "It needs C++20 and the headers of Python and torch (Debian and Ubuntu: apt-get install g++ python3-dev); "
            "without the native hot path recording stays in Python."
        )
