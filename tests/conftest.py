"""Shared by all tests: golden files, and the markers gpu, mps and slow."""

from __future__ import annotations

import contextlib
import difflib
import functools
import gc
import multiprocessing
import os
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import properties

GOLDEN = Path(__file__).parent / "golden"
PROFILES = Path(__file__).resolve().parents[2] / "shared" / "data"
# What a worker imports sooner or later; pyarrow takes pandas along with the first rows of a recording.
PRELOADED = [
    "rose_exec.workers.serve",
    "rose_trace.recording",
    "torch",
    "pandas",
    "tests.rose_exec.worker_requests",
]
_update = pytest.StashKey[bool]()

if "PYTEST_XDIST_WORKER" in os.environ:  # a core each: teams of threads would wait for one another
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@dataclass(frozen=True, slots=True)
class Golden:
    """Compares text with the readable files under `tests/golden`.

    Args:
        folder: Where the golden files live.
        update: Whether to write the files instead of comparing (`pytest --update-golden`).
    """

    folder: Path
    update: bool

    def check(self, name: str, text: str) -> None:
        """Fail unless the golden file holds exactly this text.

        Args:
            name: Path below `tests/golden`, for example "transforms/split/free-loop.rose".
            text: What the code under test produced.
        """
        path = self.folder / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(
                f"golden {name}: expected a file in tests/golden, got none."
                " Run pytest --update-golden and read what it wrote.",
                pytrace=False,
            )
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            diff = "".join(
                difflib.unified_diff(
                    expected.splitlines(keepends=True),
                    text.splitlines(keepends=True),
                    f"tests/golden/{name}",
                    "this run",
                )
            )
            pytest.fail(
                f"golden {name}: expected the stored text, got another (below)."
                f" If the change is meant, run pytest --update-golden.\n{diff}",
                pytrace=False,
            )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare text with a golden file: `golden.check("facts/loop.txt", text)`."""
    return Golden(GOLDEN, update=request.config.stash[_update])


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A real profiler file as a trace, imported once for all tests and test processes: read it only."""
    from rose_trace.interop import import_trace

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def convert(name: str) -> Path:
        file = PROFILES / name
        if not file.exists():
            pytest.skip(f"no real profiler file at {file}")
        folder = shared / "imported" / name
        if not folder.exists():
            own = tmp_path_factory.mktemp("imported")
            import_trace(file, own / "trace.parquet")
            folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):  # another process was first
                own.rename(folder)
        return folder / "trace.parquet"

    return convert


@pytest.fixture(scope="session", autouse=True)
def cheap_set_ups(pytestconfig: pytest.Config) -> Generator[None]:
    """Build each command's parser once, and open databases with one thread: their tables are small here.

    With --slow databases have all the threads that they take by themselves.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "typer.testing" in sys.modules:
            import typer.testing

            built = functools.cache(typer.main.get_command)
            patch.setattr(typer.testing, "_get_command", built)
        if "duckdb" in sys.modules and not pytestconfig.getoption("--slow"):
            import duckdb

            connect = duckdb.connect

            def on_one_thread(*args: Any, config: dict[str, Any], **kwargs: Any) -> Any:
                return connect(*args, config={**config, "threads": 1}, **kwargs)

            patch.setattr(duckdb, "connect", on_one_thread)
        yield


@pytest.fixture(scope="module")
def workers_from_a_clean_process() -> Generator[None]:
    """Start the workers of a module as copies of one clean process that has imported torch already.

    They begin as spawned ones do, with nothing of this process in them, only sooner. What is about the
    start itself spawns.
    """
    from rose_exec.workers import process

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # as workers have it
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()  # now, not inside a recording, which it would belong to
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "START_METHOD", "forkserver")
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switches of this test suite."""
    group = parser.getgroup("rose")
    group.addoption("--update-golden", action="store_true", help="rewrite tests/golden")
    group.addoption("--gpu", action="store_true", help="run tests marked gpu or mps too")
    group.addoption("--slow", action="store_true", help="run tests marked slow too")


def pytest_configure(config: pytest.Config) -> None:
    """Choose how properties are tried, and refuse --gpu where there is no CUDA device.

    Skipping everything would read as success.
    """
    config.stash[_update] = bool(config.getoption("--update-golden"))
    properties.register()
    if not config.getoption("--hypothesis-profile", None):
        thorough = config.getoption("--slow")
        settings.load_profile(properties.THOROUGH if thorough else properties.DEFAULT)
    if config.getoption("--gpu"):
        import torch

        if not torch.cuda.is_available():
            raise pytest.UsageError(
                "--gpu: expected a CUDA device that torch can use,"
                f" got none (torch {torch.__version__})."
                " Run it on a machine with a GPU and a CUDA build of torch."
            )


def pytest_collection_finish() -> None:
    """Spare collections, and recordings that look for open invocations, what was imported for good."""
    if not gc.get_freeze_count():  # not again in a suite inside a test
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this run did not ask for, by marker."""
    for item in items:
        needs_gpu = item.get_closest_marker("gpu") or item.get_closest_marker("mps")
        if needs_gpu and not config.getoption("--gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device: pass --gpu"))
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: pass --slow"))
