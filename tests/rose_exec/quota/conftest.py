"""A control program that stands in for NVIDIA's: it starts, answers, refuses and dies like a daemon."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rose_exec.quota.mps import CONTROL

SCRIPT = """#!{python}
import os, signal, sys
pipe = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
pid_file = os.path.join(pipe, "nvidia-cuda-mps-control.pid")
if sys.argv[1:] == ["-d"]:
    if "{refuse}":
        sys.exit("{refuse}")
    ready, told = os.pipe()
    if os.fork() == 0:
        os.setsid()
        for stream in (0, 1, 2):
            os.close(stream)
        with open(pid_file, "w") as file:
            file.write(str(os.getpid()))
        os.close(told)
        signal.pause()
        os._exit(0)
    os.close(told)
    os.read(ready, 1)
    sys.exit(0)
command = sys.stdin.read().split()
try:
    pid = int(open(pid_file).read())
    os.kill(pid, 0)
except (OSError, ValueError):
    sys.exit("Cannot find MPS control daemon process")
answers = {{"get_server_list": "4711", "get_client_list": "10\\n11"}}
if command[0] == "quit":
    if {deaf}:
        sys.exit("no answer")
    os.kill(pid, signal.SIGTERM)
    os.remove(pid_file)
else:
    print(answers[command[0]])
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put the stand-in on the PATH: one that refuses to start, or is deaf to `quit`, where asked."""

    def install(refuse: str = "", deaf: bool = False) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        script = folder / CONTROL
        script.write_text(SCRIPT.format(python=sys.executable, refuse=refuse, deaf=deaf))
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    return install


@pytest.fixture
def ended() -> Callable[[int], None]:
    """Wait until a process is gone."""

    def wait(pid: int) -> None:
        try:
            psutil.Process(pid).wait(timeout=60)
        except psutil.NoSuchProcess:
            return
        except psutil.TimeoutExpired:  # whoever inherited it need not have reaped it
            assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

    return wait
