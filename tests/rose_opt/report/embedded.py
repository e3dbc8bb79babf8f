"""Reads back what a page holds: the tables that its charts draw."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any, cast

import numpy as np


def sources(page: str) -> list[dict[str, Any]]:
    """Columns of every table of a page, by recording."""
    found: list[tuple[str, dict[str, Any]]] = []
    for item in _models(_document(page)):
        if item.get("name") == "ColumnDataSource":
            attributes = item["attributes"]
            entries: list[Any] = attributes["data"]["entries"]
            found.append((attributes["name"], {name: _column(data) for name, data in entries}))
    return [columns for _, columns in sorted(found, key=lambda pair: pair[0])]


def paths(page: str) -> tuple[str, ...]:
    """Node paths by number, the same list for every chart."""
    found = {
        tuple(value)
        for item in _models(_document(page))
        if item.get("name") == "CustomJSHover"
        for name, value in item["attributes"]["args"]["entries"]
        if name == "paths"
    }
    (only,) = found
    return only


def invocations(page: str) -> list[dict[str, Any]]:
    """Tables with one row per invocation."""
    return [table for table in sources(page) if "row" in table]


def bands(page: str) -> list[dict[str, Any]]:
    """Tables of merged blocks, coarse to fine."""
    return [table for table in sources(page) if "count" in table]


def samples(page: str) -> list[dict[str, Any]]:
    """Tables of activity, one per device."""
    return [table for table in sources(page) if "percent" in table]


def _document(page: str) -> Any:
    found = re.search(r"const docs_json = '(.*?)';$", page, re.MULTILINE)
    assert found, "expected the documents of the charts in the page"
    text = unescape(found[1].encode().decode("unicode_escape"))
    (document,) = json.loads(text).values()
    return document


def _models(value: Any) -> Iterator[dict[str, Any]]:
    inner: list[Any] = []
    if isinstance(value, dict):
        item = cast("dict[str, Any]", value)
        if item.get("type") == "object":
            yield item
        inner = [*item.values()]
    elif isinstance(value, list):
        inner = cast("list[Any]", value)
    for each in inner:
        yield from _models(each)


def _column(value: Any) -> Any:
    if isinstance(value, list):
        return cast("list[Any]", value)
    assert value["type"] == "ndarray"
    raw = base64.b64decode(value["array"]["data"])
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    return np.frombuffer(raw, dtype=value["dtype"]).reshape(value["shape"])
