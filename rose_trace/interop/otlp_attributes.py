"""Which OpenTelemetry attribute holds which column of the spans table, in both directions.

Spans of other instrumentation keep their own attributes, which a trace holds as text, and say what
else they are in attributes under ``otel.``, the prefix reserved for that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from rose_trace.interop.otlp_values import text_of

SCOPE = "rose_trace"
"""Instrumentation scope of invocations."""

LIMIT_CHARACTERS = 32_768  # ours: of one attribute; collectors and stores cut off or refuse more

TEXTS = {
    "kind": "rose.kind",
    "node": "rose.node",
    "path": "rose.path",
    "key": "code.function.name",
    "fingerprint": "rose.fingerprint",
    "declaration": "rose.declaration",
    "worker": "rose.worker",
    "structure": "rose.structure",
    "error": "error.type",
}
NUMBERS = {
    "thread": "thread.id",
    "stream": "rose.stream",
    "ordinal": "rose.ordinal",
    "count": "rose.count",
    "group": "rose.group",
    "groups": "rose.groups",
    "row_start": "rose.row_start",
    "row_stop": "rose.row_stop",
    "device_end_ns": "rose.device_end_ns",
    "cpu_ns": "rose.cpu_ns",
    "wait_ns": "rose.wait_ns",
    "threads": "rose.threads",
}
LISTS = {"inputs": "rose.inputs", "outputs": "rose.outputs", "states": "rose.states"}
ITERATION = "rose.iteration"
PROCESS = "rose.process"
USUAL = {"group": -1, "groups": 1}
"""Values that are left out, and stand where there is none."""

PLACES = frozenset({"kind", "path", "thread", "ordinal", "stream", "device_end_ns", "worker"})
"""Columns that a span of other instrumentation has as well."""

_KNOWN = frozenset({*TEXTS.values(), *NUMBERS.values(), *LISTS.values(), ITERATION, PROCESS})
_SPARE = "rose.attribute."
"""Prefix of an attribute of a row that is called like a column."""


def attributes_of(row: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Attributes of the span that stands for a row.

    Args:
        row: Columns of the spans table.

    Returns:
        Attributes by name, and how many data references and states were too many for one attribute.
    """
    foreign = row["kind"] == "foreign"
    found: dict[str, Any] = {}
    left_out = 0
    for column, name in (TEXTS | NUMBERS).items():
        value = row[column]
        if value is not None and value != USUAL.get(column) and (not foreign or column in PLACES):
            found[name] = value
    if row["iteration"]:
        found[ITERATION] = list(row["iteration"])
    for column, name in LISTS.items():
        if row[column]:
            found[name], missing = _listed(row[column])
            left_out += missing
    if left_out:
        found["rose.left_out"] = left_out
    for key, value in row["attributes"] or ():
        if foreign:
            if not key.startswith("otel."):
                found.setdefault(key, value or "")
        else:
            name = f"rose.{key}"
            found[f"{_SPARE}{key}" if name in _KNOWN else name] = value or ""
    said: dict[str, str] = dict(row["attributes"] or ())
    told = '"exception.type"' in said.get("otel.events", "")
    if foreign and row["error"] not in {None, "error"} and not told:
        found.setdefault("error.type", row["error"])
    return found, left_out


def _listed(items: list[dict[str, Any]]) -> tuple[str, int]:
    """JSON of references or states, of as many as fit into one attribute."""
    texts: list[str] = []
    length = 2
    for item in items:
        kept = {key: value for key, value in item.items() if value is not None}
        if "producer" in kept:  # a span id, written like one
            kept["producer"] = f"{kept['producer']:016x}"
        text = json.dumps(kept, separators=(",", ":"))
        length += len(text) + 1
        if length > LIMIT_CHARACTERS:
            break
        texts.append(text)
    return f"[{','.join(texts)}]", len(items) - len(texts)


def columns_of(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `attributes_of`, for a span with ``rose.kind``.

    Args:
        attributes: Attributes of the span.

    Returns:
        Columns of the spans table, ``attributes`` among them; those that are not there are left out.

    Raises:
        ValueError: If an attribute of ours does not hold what we put there.
    """
    found: dict[str, Any] = dict(USUAL)
    foreign = attributes.get("rose.kind") == "foreign"
    own = PLACES if foreign else {*TEXTS, *NUMBERS}
    taken = {ITERATION, *LISTS.values(), PROCESS}
    for column, name in TEXTS.items():
        if column in own and name in attributes:
            found[column] = _typed(attributes[name], str, name)
            taken.add(name)
    for column, name in NUMBERS.items():
        if column in own and name in attributes:
            found[column] = _typed(attributes[name], int, name)
            taken.add(name)
    indices = attributes.get(ITERATION, [])
    found["iteration"] = [_typed(n, int, ITERATION) for n in _typed(indices, list, ITERATION)]
    for column, name in LISTS.items():
        found[column] = _read_list(attributes[name], name) if name in attributes else []
    rest: list[tuple[str, str]] = []
    for key, value in attributes.items():
        if key not in taken:
            plain = key if foreign else key.removeprefix(_SPARE).removeprefix("rose.")
            rest.append((plain, text_of(value)))
    found["attributes"] = rest
    return found


def _typed(value: object, kind: type[Any], name: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}")
    return value


def _read_list(text: object, name: str) -> list[dict[str, Any]]:
    try:
        items: object = json.loads(_typed(text, str, name))
    except RecursionError as error:
        raise ValueError(f"{name} is nested too deeply") from error
    for item in _typed(items, list, name):
        kept = cast("dict[str, Any]", _typed(item, dict, name))
        if "producer" in kept:
            kept["producer"] = int(_typed(kept["producer"], str, name), 16)
    return cast("list[dict[str, Any]]", items)
