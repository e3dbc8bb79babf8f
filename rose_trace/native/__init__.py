"""The recorder's hot path in C++, where it has been built; without it, all of the recorder is Python."""

from rose_trace.native.library import BuildError, build
from rose_trace.native.load import HotPath, hot_path, recorder_class

__all__ = ["BuildError", "HotPath", "build", "hot_path", "recorder_class"]
