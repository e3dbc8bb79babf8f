"""Values of OpenTelemetry attributes: from Python, to Python, and to the text that a trace keeps."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from opentelemetry.proto.common.v1 import common_pb2

pb: Any = common_pb2
INT64 = range(-(2**63), 2**63)


def any_value(value: object) -> Any:
    """An ``AnyValue``; integers of more than 64 bits and values of other types become text."""
    if isinstance(value, str):
        return pb.AnyValue(string_value=value.encode("utf-8", "replace").decode())
    if isinstance(value, bool):
        return pb.AnyValue(bool_value=value)
    if isinstance(value, int) and value in INT64:
        return pb.AnyValue(int_value=value)
    if isinstance(value, float):
        return pb.AnyValue(double_value=value)
    if isinstance(value, Mapping):
        items = key_values(cast("Mapping[str, object]", value))
        return pb.AnyValue(kvlist_value=pb.KeyValueList(values=items))
    if isinstance(value, list | tuple):
        values = [any_value(item) for item in cast("Iterable[object]", value)]
        return pb.AnyValue(array_value=pb.ArrayValue(values=values))
    return pb.AnyValue() if value is None else pb.AnyValue(string_value=str(value))


def key_values(attributes: Mapping[str, object]) -> list[Any]:
    """``KeyValue`` messages of attributes."""
    return [pb.KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def python_value(value: Any) -> Any:
    """What an ``AnyValue`` holds; bytes as base64 text."""
    which = value.WhichOneof("value")
    if which is None:
        return None
    found = getattr(value, which)
    if which == "array_value":
        return [python_value(item) for item in found.values]
    if which == "kvlist_value":
        return python_values(found.values)
    return base64.b64encode(found).decode() if which == "bytes_value" else found


def python_values(attributes: Iterable[Any]) -> dict[str, Any]:
    """Attributes by name; the first of a name that stands twice."""
    found: dict[str, Any] = {}
    for item in attributes:
        found.setdefault(item.key, python_value(item.value))
    return found


def text_of(value: object) -> str:
    """A value as text: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
