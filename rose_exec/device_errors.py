"""What to do about an error of a device: it names memory or an address, and not what comes next."""

from __future__ import annotations

import os
import sys

from rose_exec.streams import is_device_error

LOST = "expected a working CUDA context"
MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"


def advice(error: BaseException, path: str) -> str:
    """What an error of a task's device means for the session.

    Args:
        error: What the task raised, with the notes of its worker.
        path: Its node.

    Returns:
        One note; empty where the error is no device's.
    """
    if is_out_of_memory(error):
        return (
            f"{path}: expected device memory for what it allocates, got too little. Plan with "
            "--max-instances 1 or use smaller batches; the next iteration runs in native order, where less is alive "
            "at a time."
        )
    notes: list[str] = getattr(error, "__notes__", [])
    if not is_lost(error) or any(LOST in note for note in notes):
        return ""
    pipe = os.environ.get(MPS_PIPE)
    daemon = f" and look whether the MPS daemon of {pipe} still runs" if pipe else ""
    return (
        f"{path}: {LOST}, got one that no longer works after this error. Start the program again from its last "
        f"checkpoint{daemon}."
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device had too little memory."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


def is_lost(error: BaseException) -> bool:
    """Whether a device's context no longer works after an error."""
    told = isinstance(error, RuntimeError) and "CUDA error" in str(error)
    return (is_device_error(error) or told) and not is_out_of_memory(error)
