"""What a person reads: tables, figures and one self-contained page, from files alone."""

from heatsmooth.reporting.page import build_report

__all__ = ["build_report"]
