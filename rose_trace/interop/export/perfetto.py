"""Perfetto's ``.pftrace``: packets written one by one, so that memory does not grow with the trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from rose_trace.interop.export.counters import Gap, Point
from rose_trace.interop.export.slices import arguments
from rose_trace.interop.export.tracks import Begin, End, Track, stable_id

pb: Any = perfetto_trace_pb2
SEQUENCE = 1
UNIT_FRACTION = "fraction"
ABOUT = stable_id("about")
"""Track of what the file says about itself."""

_INTERNED = {
    "event_names": "EventName",
    "event_categories": "EventCategory",
    "debug_annotation_names": "DebugAnnotationName",
    "debug_annotation_string_values": "InternedString",
}
_SHARED_VALUES = frozenset({"node", "path", "status", "key", "worker", "states", "iteration"})
"""Arguments whose values repeat: written once."""


class PerfettoWriter:
    """Writes packets.

    Args:
        file: Where they go.
        first_ns: Start of the trace [Unix ns].
    """

    def __init__(self, file: IO[bytes], first_ns: int) -> None:
        self._file = file
        self._iids: dict[tuple[str, str], int] = {}
        self._described: set[int] = set()
        packet = pb.TracePacket()
        packet.sequence_flags = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        # Times of events are Unix times; this tells the viewer so.
        packet.clock_snapshot.primary_trace_clock = pb.BUILTIN_CLOCK_BOOTTIME
        for clock in (pb.BUILTIN_CLOCK_BOOTTIME, pb.BUILTIN_CLOCK_REALTIME):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=first_ns)
        self._write(packet)

    def about(self, first_ns: int, headline: str, facts: dict[str, str]) -> None:
        """Say what the file is, as metadata and as an event at the start of a track of its own.

        Args:
            first_ns: Start of the trace [Unix ns].
            headline: Name of the event.
            facts: What to say, by name.
        """
        packet = pb.TracePacket()
        for name, value in facts.items():
            packet.chrome_events.metadata.add(name=f"rose.{name}", string_value=value)
        self._write(packet)
        self._describe(pb.TrackDescriptor(uuid=ABOUT, name="Rose"))
        self._event(pb.TrackEvent.TYPE_INSTANT, ABOUT, first_ns, headline, "rose", facts)

    def slices(self, drawn: Iterable[Begin | End]) -> None:
        """Write slices with their tracks and flows."""
        for event in drawn:
            if isinstance(event, End):
                self._end(event.track.uuid, event.time_ns)
                continue
            item, track = event.item, event.track
            self._describe_track(track)
            begin, name = pb.TrackEvent.TYPE_SLICE_BEGIN, item.row["node"] or ""
            shown = arguments(item.row)
            self._event(
                begin,
                track.uuid,
                item.start_ns,
                name,
                item.category,
                shown,
                event.out,
                event.into,
            )

    def counters(self, points: Iterable[Point | Gap]) -> None:
        """Write counters; gaps are slices on a track beside the counter."""
        for point in points:
            uuid = point.counter.uuid
            if isinstance(point, Gap):
                beside = stable_id(uuid, "gaps")
                name = f"{point.counter.name}: no samples"
                self._describe(pb.TrackDescriptor(uuid=beside, name=name))
                begin = pb.TrackEvent.TYPE_SLICE_BEGIN
                self._event(begin, beside, point.start_ns, "no samples", "activity", {})
                self._end(beside, point.end_ns)
                continue
            described = pb.TrackDescriptor(uuid=uuid, name=point.counter.name)
            described.counter.unit_name = UNIT_FRACTION
            self._describe(described)
            packet = self._packet(pb.TrackEvent.TYPE_COUNTER, uuid, point.start_ns)
            packet.track_event.double_counter_value = point.activity
            self._write(packet)

    def _event(
        self,
        kind: int,
        track: int,
        time_ns: int,
        name: str,
        category: str,
        shown: dict[str, Any],
        out: Iterable[int] = (),
        into: Iterable[int] = (),
    ) -> None:
        packet = self._packet(kind, track, time_ns)
        event = packet.track_event
        event.name_iid = self._iid(packet, "event_names", name)
        event.category_iids.append(self._iid(packet, "event_categories", category))
        event.flow_ids.extend(out)
        event.terminating_flow_ids.extend(into)
        for label, value in shown.items():
            item = event.debug_annotations.add()
            item.name_iid = self._iid(packet, "debug_annotation_names", label)
            if isinstance(value, int):
                item.int_value = value
            elif label in _SHARED_VALUES:
                item.string_value_iid = self._iid(packet, "debug_annotation_string_values", value)
            else:
                item.string_value = value
        self._write(packet)

    def _end(self, track: int, time_ns: int) -> None:
        self._write(self._packet(pb.TrackEvent.TYPE_SLICE_END, track, time_ns))

    def _packet(self, kind: int, track: int, time_ns: int) -> Any:
        packet = pb.TracePacket()
        packet.timestamp = time_ns
        packet.sequence_flags = pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet

    def _iid(self, packet: Any, table: str, text: str) -> int:
        """Number of a string; the packet that is first to use it brings it along."""
        found = self._iids.get((table, text))
        if found is None:
            found = self._iids[table, text] = len(self._iids) + 1
            entry = getattr(packet.interned_data, table).add()
            entry.iid = found
            if table == "debug_annotation_string_values":
                entry.str = text.encode("utf-8", "replace")
            else:
                entry.name = text
        return found

    def _describe(self, descriptor: Any) -> None:
        if descriptor.uuid not in self._described:
            self._described.add(descriptor.uuid)
            self._write(pb.TracePacket(track_descriptor=descriptor))

    def _describe_track(self, track: Track) -> None:
        if track.uuid in self._described:
            return
        process = track.process
        owner = stable_id("process", process.name, process.pid)
        above = pb.TrackDescriptor(uuid=owner)
        above.process.pid = process.shown_pid
        above.process.process_name = process.shown_name
        self._describe(above)
        descriptor = pb.TrackDescriptor(uuid=track.uuid, parent_uuid=owner)
        if track.tid is None:
            descriptor.name = track.name
            descriptor.sibling_order_rank = track.number
        else:
            descriptor.thread.pid = process.shown_pid
            descriptor.thread.tid = track.tid
            descriptor.thread.thread_name = track.name
        self._describe(descriptor)

    def _write(self, packet: Any) -> None:
        packet.trusted_packet_sequence_id = SEQUENCE
        data = packet.SerializeToString()
        self._file.write(b"\x0a" + _varint(len(data)) + data)  # Trace.packet is field 1


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
