"""The house rules hold: dependencies, import direction, set-up scripts and the test switches."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.rose_exec.worker_requests import loaded

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ("rose_trace", "rose_opt", "rose_exec")
MAX_LINES = 500
CUDA_LIBRARIES = re.compile(r"cuda-toolkit|triton|nvidia-(?!ml-py)")  # pinned by torch itself


def python(code: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def requirements() -> list[Requirement]:
    project = PYPROJECT["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    lines: list[str] = project["dependencies"] + [line for e in extras.values() for line in e]
    return [Requirement(line) for line in lines]


def pins() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9A-Za-z.]+)", line)
            assert match, f"constraints.txt: expected name==version, got {line!r}"
            found[canonicalize_name(match[1])] = match[2]
    return found


def test_every_dependency_is_pinned_within_its_range() -> None:
    known = pins()
    for requirement in requirements():
        if CUDA_LIBRARIES.match(canonicalize_name(requirement.name)):
            continue
        version = known.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} has no pin in constraints.txt"
        assert requirement.specifier.contains(version), f"{requirement} excludes {version}"


def test_every_package_a_dependency_brings_is_pinned_too() -> None:
    """Follow the metadata of what is installed, from the project's own requirements."""
    from importlib import metadata

    known = pins()
    queue = [(r, extra) for r in requirements() for extra in ("", *r.extras)]
    seen: set[tuple[str, str]] = set()
    while queue:
        requirement, extra = queue.pop()
        name = canonicalize_name(requirement.name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed here
        if not CUDA_LIBRARIES.match(name):
            assert name in known, f"{name} has no pin in constraints.txt"
        for line in needs:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                queue += [(need, e) for e in ("", *need.extras)]


VIOLATIONS = {
    "rose_trace <- rose_opt <- rose_exec": ("rose_trace/node.py", "import rose_opt.graph"),
    "rose_exec takes only plan and measure from rose_opt": (
        "rose_exec/driver.py",
        "import rose_opt.graph",
    ),
    "training needs neither solver nor database": ("rose_opt/plan.py", "import rose_opt.schedule"),
    "pyarrow only in the trace's schema, files and interop": (
        "rose_opt/graph.py",
        "import pyarrow.parquet",
    ),
    "duckdb only in rose_opt.facts.store": ("rose_opt/facts/windows.py", "import duckdb"),
    "ortools only in rose_opt.schedule": (
        "rose_opt/graph.py",
        "from ortools.sat.python import cp_model",
    ),
}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [script, "--no-logo", "--no-cache"], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture
def small_packages(tmp_path: Path) -> Path:
    """The three packages in miniature, every contract kept."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    files = {
        "rose_trace/__init__.py": "",
        "rose_trace/node.py": "",
        "rose_trace/schema.py": "import pyarrow",
        "rose_opt/__init__.py": "",
        "rose_opt/graph.py": "import rose_trace.node",
        "rose_opt/plan.py": "import rose_trace.node",
        "rose_opt/facts/__init__.py": "",
        "rose_opt/facts/store.py": "import duckdb",
        "rose_opt/facts/windows.py": "",
        "rose_opt/schedule/__init__.py": "from ortools.sat.python import cp_model",
        "rose_exec/__init__.py": "",
        "rose_exec/driver.py": "from rose_opt.plan import Plan",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return tmp_path


def test_import_contracts_keep_what_is_allowed(small_packages: Path) -> None:
    done = lint_imports(small_packages)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("contract", VIOLATIONS)
def test_import_contract_catches_its_violation(small_packages: Path, contract: str) -> None:
    name, line = VIOLATIONS[contract]
    with (small_packages / name).open("a") as file:
        file.write(line + "\n")
    done = lint_imports(small_packages)
    assert done.returncode == 1, done.stdout
    assert f"{contract} BROKEN" in done.stdout


def test_every_import_contract_has_a_violation_here() -> None:
    assert {c["name"] for c in PYPROJECT["tool"]["importlinter"]["contracts"]} == set(VIOLATIONS)


def test_tracing_imports_without_torch() -> None:
    """Torch is optional in rose_trace: no module asks for it when it is imported."""
    python(
        "import sys, importlib, pkgutil\n"
        "sys.modules['torch'] = None\n"
        "import rose_trace\n"
        "for module in pkgutil.walk_packages(rose_trace.__path__, 'rose_trace.'):\n"
        "    importlib.import_module(module.name)\n"
    )


@pytest.mark.usefixtures("workers_from_a_clean_process")
def test_training_loads_neither_solver_nor_database() -> None:
    """In a process that has imported what workers import, and nothing of this one."""
    clean = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=clean) as pool:
        names = {"rose_exec", "ortools", "duckdb", "bokeh"}
        assert pool.submit(loaded, names).result() == {"rose_exec"}


@pytest.mark.parametrize("script", sorted(PYPROJECT["project"]["scripts"]))
def test_console_script_answers_help(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, app = PYPROJECT["project"]["scripts"][script].split(":")
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as done:
        getattr(importlib.import_module(module), app)()
    assert done.value.code == 0
    shown = capsys.readouterr().out
    assert "Usage: " in shown
    assert script in shown


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_are_named_by_a_noun_and_stay_readable(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert path.stem not in {"utils", "helpers", "common"}, path
        lines = len(path.read_text().splitlines())
        assert lines <= MAX_LINES, f"{path}: expected at most {MAX_LINES} lines, got {lines}"


def test_pre_commit_runs_the_commands_of_tools_test() -> None:
    hooks = re.findall(r"^ +entry: (.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.M)
    script = (ROOT / "tools" / "test").read_text().splitlines()
    checks = [s for s in script if s.startswith(("ruff", "pyright", "lint-imports"))]
    assert hooks == checks
    assert len(checks) == 4


@pytest.mark.parametrize("name", ["tools/test", "tools/demo", ".ci/run"])
def test_script_is_executable_bash(name: str) -> None:
    path = ROOT / name
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", path], check=True)
    assert path.read_text().startswith("#!/usr/bin/env bash\n")


def test_setup_without_a_python_says_what_to_do(tmp_path: Path) -> None:
    for tool in ("dirname", "cat"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    done = subprocess.run(
        ["/bin/bash", ROOT / "tools" / "demo", "--json"],
        env={"PATH": str(tmp_path), "ROSE_VENV": str(tmp_path / "venv")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert done.stdout == ""
    assert "python: expected version 3.11, 3.12 or 3.13 on PATH" in done.stderr


def test_setup_leaves_a_folder_that_is_no_environment_alone(tmp_path: Path) -> None:
    (tmp_path / "diary").write_text("mine")
    done = subprocess.run(
        ["bash", ROOT / "tools" / "test"],
        env={**os.environ, "ROSE_PYTHON": "", "ROSE_VENV": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "expected a virtual environment or nothing, found something else" in done.stderr
    assert (tmp_path / "diary").read_text() == "mine"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.Pytester]:
    """A suite of its own that uses this one's conftest."""
    profile = settings.get_current_profile_name()
    monkeypatch.setenv(
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"
    )  # loading them takes longer than it runs
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    pytester.makeini("[pytest]\nmarkers = gpu\n  mps\n  slow\n")
    yield pytester
    settings.load_profile(profile)


def test_golden_is_written_then_compared(suite: pytest.Pytester) -> None:
    suite.makepyfile("def test_text(golden): golden.check('a/b.txt', 'one\\n')")
    missing = suite.runpytest_inprocess()
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines("golden a/b.txt: expected a file in tests/golden, got none.*")
    suite.runpytest_inprocess("--update-golden").assert_outcomes(passed=1)
    suite.runpytest_inprocess().assert_outcomes(passed=1)
    (suite.path / "golden" / "a" / "b.txt").write_text("two\n")
    changed = suite.runpytest_inprocess()
    changed.assert_outcomes(failed=1)
    changed.stdout.fnmatch_lines(["-two", "+one"])


def test_marked_tests_run_only_when_asked(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        "import pytest\n"
        "@pytest.mark.gpu\ndef test_gpu(): assert False\n"
        "@pytest.mark.mps\ndef test_mps(): assert False\n"
        "@pytest.mark.slow\ndef test_slow(): pass\n"
    )
    suite.runpytest_inprocess().assert_outcomes(skipped=3)
    suite.runpytest_inprocess("--slow").assert_outcomes(passed=1, skipped=2)


def test_gpu_without_a_device_is_an_error_not_a_skip(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.makepyfile("def test_nothing(): pass")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    refused = suite.runpytest_inprocess("--gpu")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines("*--gpu: expected a CUDA device that torch can use*")
