"""The entry of a node with `graph=True`: the function itself until CUDA is in use, then captured calls.

Capturing needs torch and belongs to the executor, which is found by name here as for `ROSE_PLAN`: tracing
works without either.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rose_trace.node import ExecutionNode

log = logging.getLogger("rose_trace")


def captured(definition: ExecutionNode) -> Callable[..., Any]:
    """What runs for a node with `graph=True`.

    Args:
        definition: The node.

    Returns:
        A function with the signature and the results of the node's own.
    """
    function = definition.function
    calls: Any = None
    said = False

    @functools.wraps(function)
    def entry(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls, said
        torch: Any = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            if not said:
                said = True
                log.debug("%s: CUDA is not in use, calls run eagerly.", definition.graph_name)
            return function(*args, **kwargs)
        if torch._C._len_torch_dispatch_stack() or torch.cuda.is_current_stream_capturing():  # noqa: SLF001
            return function(*args, **kwargs)  # somebody else watches or captures
        if calls is None:
            calls = importlib.import_module("rose_exec.graphs").Calls(definition)
        return calls.make(args, kwargs)

    entry.__rose_node__ = definition  # type: ignore[attr-defined]
    return entry
