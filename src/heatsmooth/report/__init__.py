"""What a person sees: tables, figures and one self-contained page, from files alone."""

from heatsmooth.report.page import build_report

__all__ = ["build_report"]
