"""From the results of a sweep to a comparison that can be trusted, in tables and a figure."""

from weince_lightning.reporting.comparison import Comparison, compare, report
from weince_lightning.reporting.results import Results, read_results
from weince_lightning.reporting.writing import write_report

__all__ = ["Comparison", "Results", "compare", "read_results", "report", "write_report"]
