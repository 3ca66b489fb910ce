"""A report of runs that opens in a browser: one HTML file that needs nothing else."""

from vqlab.results.report.page import write_report

__all__ = ["write_report"]
