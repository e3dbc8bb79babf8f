"""Errors of a device come with the node and with what to do; errors of anything else come as they are."""

from __future__ import annotations

import pytest
import torch

from rose_exec.device_errors import advice
from rose_exec.replay import replay
from tests.rose_exec.failing import ROWS, Program
from tests.rose_exec.observe import observed_plan

TOLD = "CUDA out of memory. Tried to allocate 1000.00 GiB. GPU 0 has a total capacity of 139.81 GiB"
NODE = "iteration/learn/learner.learn"


def exhausted(order: object) -> None:
    if order == ("oom",):
        raise torch.OutOfMemoryError(TOLD)


def test_too_little_memory_in_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.rose_exec.failing.act_on", exhausted)
    plan = observed_plan(lambda: Program().iteration, rows=ROWS)
    with replay(plan, build=Program, strict=True) as session:
        session.built.orders = {1: ("oom",)}
        with pytest.raises(
            torch.OutOfMemoryError, match=r"Tried to allocate 1000\.00 GiB"
        ) as caught:
            session.built.iteration()
        session.built.orders = {}
        session.built.iteration()
    assert caught.value.__notes__ == [
        f"Raised by {NODE}, iteration [0, 1].",
        f"{NODE}: expected device memory for what it allocates, got too little. Plan with --max-instances 1 or "
        "use smaller batches; the next iteration runs in native order, where less is alive at a time.",
    ]


def test_a_lost_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    error = torch.AcceleratorError("CUDA error: device-side assert triggered", 710)
    assert advice(error, "root/step") == (
        "root/step: expected a working CUDA context, got one that no longer works after this error. Start the "
        "program again from its last checkpoint."
    )
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps/pipe")
    assert advice(RuntimeError("CUDA error: unspecified launch failure"), "step").endswith(
        "from its last checkpoint and look whether the MPS daemon of /tmp/mps/pipe still runs."
    )
    error.add_note("Worker a: expected a working CUDA context, got one that no longer works.")
    assert advice(error, "root/step") == ""


@pytest.mark.parametrize("error", [ValueError("CUDA error"), RuntimeError("shape"), KeyError(1)])
def test_other_errors_are_left_alone(error: Exception) -> None:
    assert advice(error, "root/step") == ""
