"""A trace as a file of another tool: Perfetto, Chrome's trace event format, OpenTelemetry."""

from rose_trace.interop.export.trace import Exported, ExportFormat, export_trace, format_of

__all__ = ["ExportFormat", "Exported", "export_trace", "format_of"]
