"""How each finding reads: what was promised, what happened, and the annotation that is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rose_exec.readiness import TaskId
from rose_exec.sanitizer.findings import Finding
from rose_exec.sanitizer.handed import Overwritten
from rose_exec.sanitizer.touches import Pair, Touch


def writes(
    node: str,
    invocation: str,
    path: str,
    kind: str,
    holder: str,
    declared: Sequence[str],
    pure: bool,
) -> Finding:
    """A node wrote something that it does not declare."""
    promised = "no state at all (pure)" if pure else ", ".join(declared) or "what it declares"
    component, _, attribute = path.partition(".")
    top = attribute.partition(".")[0].partition("[")[0]
    if kind == "generator":
        what = "a draw from the generator"
        advice = f"Add updates={top!r} to the node, or draw from a rose RowGenerator, which keeps no state."
    elif holder == "component":
        what = "a write of"
        advice = f"Add updates= with the state of {component} that '{attribute}' belongs to, or keep it in the node."
    else:
        what = f"a write of the {holder} variable"
        advice = (
            "Move it into the component and declare it, or declare one absolute state for it on every "
            "node that touches it, e.g. updates='counters.total'."
        )
    return Finding(
        "undeclared write", node, path, invocation, "",
        f"only {promised}", f"{what} '{path}'", advice,
    )  # fmt: skip


def shared(node: str, invocation: str, path: str, partner: str) -> Finding:
    """A node wrote what another component holds under another name."""
    owner = partner.partition(".")[0]
    return Finding(
        "shared state", node, path, invocation, "",
        "components that share no memory", f"a write of '{path}', which is also '{partner}'",
        f"Name it as one state in both components, e.g. '{owner}.weights' in reads= and updates=, or "
        "give each component a copy.",
    )  # fmt: skip


def draws(node: str, invocation: str, generator: str) -> Finding:
    """A node drew from a process-wide generator without saying so."""
    return Finding(
        "undeclared generator", node, f"generator.{generator}", invocation, "",
        f"no draw from the process-wide generator of {generator}", "one",
        f"Draw from a rose RowGenerator, keyed by row and step, or add updates='generator.{generator}'.",
    )  # fmt: skip


def glue_draws(generator: str, place: str) -> Finding:
    """Glue drew from a process-wide generator."""
    return Finding(
        "glue writes", "the program's glue", f"generator.{generator}", place, "",
        "glue without side effects", f"a draw from the process-wide generator of {generator}",
        "Draw in a node, or before the iteration.",
    )  # fmt: skip


def glue_writes(path: str, node: str, place: str) -> Finding:
    """The body of a loop, composite or root wrote something."""
    return Finding(
        "glue writes", node, path, place, "",
        "glue without side effects", f"a write of '{path}'",
        "Put it into a node that declares the state, or return the value as carry or output.",
    )  # fmt: skip


def two_states(
    node: str, invocation: str, first: str, path: str, owners: Sequence[str], states: Sequence[str]
) -> Finding:
    """Two nodes write one value under different states."""
    return Finding(
        "two states", node, path, invocation, first,
        f"'{path}' in one state ({', '.join(owners)})", f"a write of it as {', '.join(states)}",
        f"Add updates={owners[0].partition('.')[2]!r} to the node, or keep the value in two attributes.",
    )  # fmt: skip


def input_written(node: str, invocation: str, name: str, producers: Sequence[str]) -> Finding:
    """A node wrote into an argument."""
    return Finding(
        "input written", node, f"argument {name}", invocation, producers[-1] if producers else "",
        "arguments that stay as they are", f"a write into argument '{name}'",
        "Work on a copy (clone() or copy()) and return it.",
    )  # fmt: skip


def overwritten(item: Overwritten, names: Mapping[TaskId, tuple[str, str]]) -> Finding:
    """A result was used after its memory was written over."""
    node, invocation = names[item.producer]
    user = "the program" if item.consumer is None else names[item.consumer][1]
    return Finding(
        "output overwritten", node, item.place, invocation, item.writer.invocation,
        "results that nobody writes over",
        f"output {item.index}, a view of '{item.place}', used by {user} after {item.writer.invocation} "
        "wrote into it",
        "Return a copy (clone() or copy()).",
    )  # fmt: skip


def rows_interfere(node: str, invocation: str, differing: str, kept: slice) -> Finding:
    """A row depends on other rows."""
    return Finding(
        "rows interfere", node, "rows", invocation, "",
        f"rows {kept.start}..{kept.stop - 1} that depend only on themselves (rows=)",
        f"{differing} when only the others changed",
        "Drop rows= from the node, or take out what mixes rows (batch statistics, sorting, padding).",
    )  # fmt: skip


def inherits(node: str, invocation: str, states: Sequence[str], attribute: str) -> Finding:
    """A refresh depends on the value it replaces."""
    state = states[0]
    short = state.partition(".")[2]
    return Finding(
        "refresh inherits", node, state, invocation, "",
        f"a new value of '{state}' that inherits nothing",
        f"another {attribute} when the state was another before",
        f"Declare updates={short!r} instead of refreshes={short!r}, or make what it uses an argument.",
    )  # fmt: skip


def unordered(pair: Pair, writer: Touch, other: Touch) -> Finding:
    """Two accesses that the declarations leave unordered."""
    kind = "inversion" if pair.inverted else "race"
    state = (writer.declared or (pair.place,))[0]
    if not other.writes:
        return Finding(
            "undeclared read" if kind == "race" else kind,
            other.node, pair.place, other.invocation, writer.invocation,
            f"a declared read of '{state}'", f"a read of '{pair.place}', which {writer.node} writes",
            f"Add reads={_relative(state, other.node)!r} to the node.",
        )  # fmt: skip
    return Finding(
        kind, pair.later.node, pair.place, pair.later.invocation, pair.earlier.invocation,
        f"writes of '{pair.place}' in program order", "two that nothing orders",
        "Declare one state for it in both nodes; give a batch state shards if its rows are served apart.",
    )  # fmt: skip


def _relative(state: str, node: str) -> str:
    """A state as the node would name it."""
    component, _, name = state.partition(".")
    return name if node.rpartition("/")[2].startswith(f"{component}.") else state


def out_of_order(earlier: tuple[str, str], later: tuple[str, str]) -> Finding:
    """The executor ran two ordered invocations the other way round."""
    return Finding(
        "inversion", later[0], earlier[0], later[1], earlier[1],
        f"to run after {earlier[1]}, as declared", "the opposite order",
        "This is a mistake of the executor: please report it, with the plan.",
    )  # fmt: skip
