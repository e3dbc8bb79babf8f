from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from rose_trace import native
from rose_trace.cli import app
from rose_trace.native import library, load
from rose_trace.parquet import read_spans
from rose_trace.recorder import Recorder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and nothing loaded yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(load.VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, load.NAME, raising=False)
    return tmp_path / "rose"


def _compiler(place: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A compiler that does what `script` says; its argument after ``-o`` is ``$out``."""
    made = place / "compiler"
    find_out = 'while [ "$1" != -o ]; do shift; done; out="$2"'
    made.write_text(f"#!/bin/sh\n{find_out}\n{script}\n", encoding="utf-8")
    made.chmod(made.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(made))


def test_it_is_compiled_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _compiler(tmp_path, monkeypatch, f'echo run >> {tmp_path}/runs; echo made > "$out"')
    made = native.build()
    assert native.build() == made == library.library_path(torch)
    assert made.read_text() == "made\n"
    assert (tmp_path / "runs").read_text() == "run\n"
    assert list(cache.iterdir()) == [made]


def test_one_that_is_built_beside_ours_does_no_harm(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = library.library_path(torch)
    _compiler(tmp_path, monkeypatch, f'echo theirs > {target}; echo ours > "$out"')
    assert native.build().read_text() == "ours\n"
    assert list(cache.iterdir()) == [target]


def test_another_torch_python_or_source_gets_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = library.library_path(torch)
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    second = library.library_path(torch)
    monkeypatch.setattr(sys, "version", "9.9")
    third = library.library_path(torch)
    source = tmp_path / "hot_path.cpp"
    source.write_bytes(library.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(library, "SOURCE", source)
    assert len({first, second, third, library.library_path(torch)}) == 4


@pytest.mark.usefixtures("cache")
def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    ran = CliRunner().invoke(app, ["build"])
    assert ran.exit_code == 4
    assert ran.stderr == (
        "rose-trace build: expected a C++ compiler, got none called no-such-compiler. Install one (Debian and "
        "Ubuntu: apt-get install g++) or name one in CXX; without it recording stays in Python.\n"
    )


def test_with_a_compiler_that_fails(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _compiler(tmp_path, monkeypatch, "echo no such header >&2; exit 1")
    with pytest.raises(
        native.BuildError, match=r"to compile hot_path\.cpp, it failed with\nno such header\n"
    ):
        native.build()
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("cache")
def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(native.BuildError, match="expected torch, got"):
        native.build()
    assert native.recorder_class() is Recorder


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(taken))
    _compiler(tmp_path, monkeypatch, "exit 0")
    with pytest.raises(
        native.BuildError, match=r"expected a folder to build in.*Set XDG_CACHE_HOME"
    ):
        native.build()


def test_nothing_is_compiled_by_recording(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _compiler(tmp_path, monkeypatch, f"echo run >> {tmp_path}/runs")
    assert native.recorder_class() is Recorder
    assert not (tmp_path / "runs").exists()
    assert not cache.exists()


def test_a_library_that_does_not_load_leaves_recording_in_python(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    built = library.library_path(torch)
    cache.mkdir()
    built.write_text("no library")
    assert native.recorder_class() is Recorder
    assert f"{load.NAME}: expected a hot path that loads, got ImportError: {built}" in caplog.text


@pytest.mark.usefixtures("cache")
def test_nor_does_a_source_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreadable(_: Any) -> Path:
        raise FileNotFoundError("hot_path.cpp")

    monkeypatch.setattr(load, "library_path", unreadable)
    assert native.recorder_class() is Recorder
    assert "got FileNotFoundError: hot_path.cpp. Recording stays in Python" in caplog.text


@pytest.mark.usefixtures("built")
def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(load.VARIABLE, raising=False)
    kind: Any = native.recorder_class()
    assert kind.__name__ == "NativeRecorder"
    assert native.recorder_class() is kind
    monkeypatch.setenv(load.VARIABLE, "0")
    assert native.recorder_class() is Recorder


@pytest.mark.usefixtures("built")
def test_the_command_says_where_it_is() -> None:
    ran = CliRunner().invoke(app, ["build", "--format", "json"])
    assert ran.exit_code == 0
    assert json.loads(ran.stdout) == {"library": str(library.library_path(torch))}


@pytest.mark.usefixtures("built")
def test_a_program_that_imports_torch_after_its_recording_began(tmp_path: Path) -> None:
    program = """
import sys
import rose_trace as rose
from rose_trace import hooks
assert "torch" not in sys.modules
print(type(hooks.active).__name__)
import torch

@rose.node(pure=True)
def double(x):
    return x * 2

@rose.iteration
def iteration():
    x = torch.ones(2)
    for _ in range(20):
        x = double(x)

iteration()
print(type(hooks.active).__name__)
"""
    trace = tmp_path / "t.parquet"
    asked = {"ROSE_TRACE": str(trace), "ROSE_TRACE_STEPS": "2", "ROSE_ACTIVITY": "none"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ROSE_")}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=kept | asked,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["SamplingRecorder", "SamplingNativeRecorder"]
    rows = read_spans(trace).to_pylist()
    made = {row["outputs"][0]["ref"]: row["span_id"] for row in rows if row["outputs"]}
    assert len(made) == 20
    for row in rows[2:]:
        assert row["inputs"][0]["producer"] == made[row["inputs"][0]["ref"]]
