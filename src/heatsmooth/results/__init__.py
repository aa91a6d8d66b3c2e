"""What is written to disk and read again, each with one type, one reader and one writer. No torch."""

COMPARISON_FILE = "comparison.json"
"""What ``compare`` writes beside its runs."""
