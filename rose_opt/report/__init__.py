"""The report: one HTML page that shows a recorded program before and after planning."""

from rose_opt.report.page import report_html
from rose_opt.report.recorded import Recorded, ReportError, read_recorded

__all__ = ["Recorded", "ReportError", "read_recorded", "report_html"]
