"""OpenTelemetry's own files: OTLP/JSON, one object or one after the other, and protobuf.

The Collector's file exporter writes objects line by line, or protobuf messages with their length before
each. Either may be gzipped.

Does not handle: metrics and logs, which are passed over; files larger than memory.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1 import trace_pb2

from rose_trace.parquet import TraceError

pb: Any = trace_pb2
ID_DIGITS = {"traceId": 32, "spanId": 16, "parentSpanId": 16}
"""Hexadecimal digits of the ids in OTLP/JSON."""

_SPACE = re.compile(r"\s*")


def read_otlp(file: Path) -> list[Any]:
    """Read the spans of a file.

    Args:
        file: OTLP/JSON or protobuf, gzipped or not.

    Returns:
        ``TracesData`` messages.

    Raises:
        TraceError: If it is truncated, corrupt or holds no traces.
    """
    try:
        raw = file.read_bytes()
        if raw.startswith(b"\x1f\x8b"):
            raw = gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise TraceError(
            f"{file}: expected a readable OTLP file, got {error}. It is truncated or corrupt; export it again."
        ) from error
    if raw.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{":
        return _read_json(file, raw)
    try:
        return [pb.TracesData.FromString(part) for part in _framed(raw)]
    except (DecodeError, ValueError) as error:
        raise TraceError(
            f"{file}: expected OTLP traces as protobuf, got {error}. It is truncated, corrupt or of another "
            "kind; export it again."
        ) from error


def _framed(raw: bytes) -> Iterator[bytes]:
    """The messages of a file: the whole of it, or each after its length in four bytes.

    Raises:
        ValueError: If the last one is cut off.
    """
    if raw[:1] != b"\0":
        yield raw
        return
    place = 0
    while place < len(raw):
        end = place + 4 + int.from_bytes(raw[place : place + 4], "big")
        if end > len(raw):
            raise ValueError(
                f"a message of {end - place - 4} bytes of which {len(raw) - place - 4} are there"
            )
        yield raw[place + 4 : end]
        place = end


def _read_json(file: Path, raw: bytes) -> list[Any]:
    found: list[Any] = []
    try:
        for item in _objects(raw.decode("utf-8-sig")):
            kept = {"resourceSpans": item["resourceSpans"]} if "resourceSpans" in item else {}
            _ids_to_base64(kept)
            found.append(json_format.ParseDict(kept, pb.TracesData(), ignore_unknown_fields=True))
    except json.JSONDecodeError as error:
        raise TraceError(
            f"{file}: expected OTLP/JSON, got {error}. It is truncated or corrupt; export it again."
        ) from error
    except (ValueError, RecursionError, json_format.Error, AttributeError, TypeError) as error:
        raise TraceError(
            f"{file}: expected traces as OTLP/JSON has them, got {error}. Export it again."
        ) from error
    return found


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The objects of a file, one after the other.

    Raises:
        ValueError: If something else is among them.
    """
    decoder = json.JSONDecoder()
    place = _end_of_space(text, 0)
    while place < len(text):
        item: object
        item, place = decoder.raw_decode(text, place)
        if not isinstance(item, dict):
            raise ValueError(f"{str(item)[:40]} in place of an object")
        yield cast("dict[str, Any]", item)
        place = _end_of_space(text, place)


def _end_of_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _ids_to_base64(data: dict[str, Any]) -> None:
    """Turn hexadecimal ids into what protobuf's JSON has in their place.

    Raises:
        ValueError: If one is not hexadecimal, or of another length.
    """
    for resource_spans in _listed(data, "resourceSpans"):
        for scope_spans in _listed(resource_spans, "scopeSpans"):
            for span in _listed(scope_spans, "spans"):
                for item in (span, *_listed(span, "links")):
                    for name, digits in ID_DIGITS.items():
                        text = item.get(name)
                        if not text:
                            continue
                        if not isinstance(text, str) or len(text) != digits:
                            raise ValueError(
                                f"{name} {text!r} in place of {digits} hexadecimal digits"
                            )
                        item[name] = base64.b64encode(bytes.fromhex(text)).decode()


def _listed(item: Any, name: str) -> list[dict[str, Any]]:
    found: object = item.get(name)
    return cast("list[dict[str, Any]]", found) if isinstance(found, list) else []
