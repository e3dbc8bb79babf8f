"""Calls of a node with `graph=True`: eager ones first, then a captured one, again and again.

Every call of the node is one call of the function or one replay, never both, so what the node does to
states in place happens once per call. The first call with a signature is looked at, the second one is
made on a side stream as a capture will be, the third one is captured and replayed.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch

from rose_exec.graphs.capture import Capture, hand_over, of_foreign_stream, side_stream
from rose_exec.graphs.signature import Signature, read, replace_tensors
from rose_exec.graphs.state import State
from rose_exec.graphs.unfit import UnfitError
from rose_exec.graphs.watched import Watch, watched_call
from rose_trace.node import ExecutionNode

log = logging.getLogger("rose_exec")

MAX_CAPTURES = 8  # ours: signatures per node and component
MAX_RENEWALS = 8  # ours: times in a row that new weights come before a capture has paid
MIN_REPLAYS = 16  # ours: a capture costs about as much as this many eager calls
MAX_FORGOTTEN = 64  # ours: signatures given up for others before no new ones are looked at
MAX_UNSETTLED = 3  # ours: calls in a row that leave another state behind on the host

_preparing = threading.Lock()
"""Held while a call is looked at or captured; another call then runs eagerly and does not wait."""


@dataclass(slots=True, eq=False)
class _Slot:
    """What is known about one signature.

    Attributes:
        ready: The capture and the state that it holds for, once there is one.
        state: State that calls have found and left.
        replays: Replays of the capture.
        draws: Whether the call draws from the device's default generator.
        rehearsed: Whether a call has run on the side stream.
        unsettled: Calls in a row that left another state or another generator behind on the host.
        renewals: Times in a row that the state was replaced before a capture had paid.
        eager: Whether it is run eagerly for good.
    """

    ready: tuple[Capture, State] | None = None
    state: State | None = None
    replays: int = 0
    draws: bool = False
    rehearsed: bool = False
    unsettled: int = 0
    renewals: int = 0
    eager: bool = False


_EAGER = _Slot(eager=True)


class Calls:
    """Calls of one node, by component and signature.

    Args:
        definition: The node.
    """

    def __init__(self, definition: ExecutionNode) -> None:
        self.function = definition.function
        self._definition = definition
        self._slots: dict[int, OrderedDict[Signature, _Slot]] = {}
        self._said: set[str] = set()
        self._forgotten = 0
        self._lock = threading.Lock()

    def make(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make one call, eagerly or as a replay.

        Args:
            args: Positional arguments, the component first for a method.
            kwargs: Keyword arguments.

        Returns:
            What the function returns.
        """
        owner = args[0] if self._definition.is_method and args else None
        given = args if owner is None else args[1:]
        try:
            device = torch.device("cuda", torch.cuda.current_device())
            key, tensors = read(given, kwargs, device)
            slot = self._slot(owner, (device.index, of_foreign_stream(), *key))
        except UnfitError as unfit:
            self._say(unfit)
            return self.function(*args, **kwargs)
        if slot.eager:
            return self.function(*args, **kwargs)
        ready = slot.ready
        if ready is not None and ready[1].difference() is None:
            slot.replays += 1
            return ready[0].replay(tensors)
        if not _preparing.acquire(blocking=False):
            return self.function(*args, **kwargs)
        try:
            return self._prepare(slot, owner, args, kwargs, tensors)
        finally:
            _preparing.release()

    def _prepare(
        self, slot: _Slot, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Any
    ) -> Any:
        """One of the calls before the first replay, or after the state was replaced."""
        changed = None if slot.state is None else slot.state.difference()
        if changed is not None:
            slot.renewals = 0 if slot.replays >= MIN_REPLAYS else slot.renewals + 1
            slot.ready, slot.state, slot.rehearsed, slot.replays = None, None, False, 0
            if slot.renewals > MAX_RENEWALS:
                action = "Copy new values into it in place (copy_, load_state_dict)"
                self._give_up(slot, UnfitError(f"another '{changed}' again and again", action))
                return self.function(*args, **kwargs)
        if slot.state is None:
            return self._watched(slot, owner, args, kwargs, tensors)
        if not slot.rehearsed:
            return self._rehearsed(slot, args, kwargs)
        return self._captured(slot, owner, args, kwargs, tensors)

    def _watched(
        self, slot: _Slot, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Any
    ) -> Any:
        try:
            state = State(self.function, owner)
        except UnfitError as unfit:
            self._give_up(slot, unfit)
            return self.function(*args, **kwargs)
        device = torch.device("cuda", torch.cuda.current_device())
        watch = Watch(device, tensors, state.storages)
        result = watched_call(lambda: self.function(*args, **kwargs), watch)
        try:
            watch.judge(result)
            state.keep(watch.used)
            unsettled, changed = watch.drawn, state.difference()
            if changed is not None:
                action = "Write into it in place (copy_), or leave it to the caller"
                unsettled = UnfitError(f"a call that replaces '{changed}'", action)
            if unsettled is None:
                slot.state, slot.draws, slot.unsettled = state, watch.draws, 0
                return result
            slot.unsettled += (
                1  # another thread may have done it, or a first call that sets things up
            )
            if slot.unsettled >= MAX_UNSETTLED:
                raise unsettled
        except UnfitError as unfit:
            self._give_up(slot, unfit)
        return result

    def _rehearsed(self, slot: _Slot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        current = torch.cuda.current_stream()
        with side_stream():
            result = self.function(*args, **kwargs)
        hand_over(result, current)
        slot.rehearsed = True
        return result

    def _captured(
        self, slot: _Slot, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Any
    ) -> Any:
        given = args if owner is None else args[1:]
        first = () if owner is None else (owner,)

        def call(buffers: list[Any]) -> Any:
            others, named = replace_tensors((given, kwargs), iter(buffers))
            return self.function(*first, *others, **named)

        try:
            made = Capture(call, tensors, draws=slot.draws)
            changed = None if slot.state is None else slot.state.difference()
            if changed is not None:
                raise UnfitError(f"a call that replaces '{changed}'", "Write into it in place")
        except UnfitError as unfit:
            self._give_up(slot, unfit)
            return self.function(*args, **kwargs)
        except Exception as error:
            fact = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            self._give_up(slot, UnfitError(fact, "Leave out what CUDA cannot capture"))
            return self.function(*args, **kwargs)
        if slot.state is not None:
            slot.ready = made, slot.state
        return made.replay(tensors)

    def _slot(self, owner: Any, key: Signature) -> _Slot:
        """What is known about a signature; the one not used for longest makes room for a new one."""
        with self._lock:
            slots = self._slots.get(id(owner))
            if slots is None:
                slots = self._new_owner(owner)
            slot = slots.get(key)
            if slot is not None:
                slots.move_to_end(key)
                return slot
            if len(slots) < MAX_CAPTURES:
                slot = slots[key] = _Slot()
                return slot
            if self._forgotten < MAX_FORGOTTEN:
                self._forgotten += 1
                slots.popitem(last=False)
                slot = slots[key] = _Slot()
        self._say_crowded()
        return slot or _EAGER

    def _new_owner(self, owner: Any) -> OrderedDict[Signature, _Slot]:
        """Slots of another component, until that is gone.

        Raises:
            UnfitError: If nobody would learn when that is.
        """
        if owner is not None:
            try:
                weakref.finalize(owner, self._slots.pop, id(owner), None).atexit = False
            except TypeError:
                action = "Add __weakref__ to its __slots__"
                raise UnfitError("a component without weak references", action) from None
        slots = self._slots[id(owner)] = OrderedDict()
        return slots

    def _give_up(self, slot: _Slot, unfit: UnfitError) -> None:
        slot.eager, slot.ready, slot.state = True, None, None
        self._say(unfit)

    def _say(self, unfit: UnfitError) -> None:
        self._say_once(
            f"{self._definition.graph_name}: expected device work that can be captured, got {unfit.fact}. Such calls run "
            f"eagerly, with the same results. {unfit.action}, or drop graph=True."
        )

    def _say_crowded(self) -> None:
        self._say_once(
            f"{self._definition.graph_name}: expected at most {MAX_CAPTURES} sets of argument shapes and values, got "
            "another one. Those not used for longest run eagerly again. Pad to fewer shapes, and pass "
            "numbers that change from call to call as tensors."
        )

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning(text)
