"""Files of other tools as traces: Nsight Systems and Kineto in."""

from rose_trace.interop.convert import ImportSettings, import_trace, read_profile

__all__ = ["ImportSettings", "import_trace", "read_profile"]
