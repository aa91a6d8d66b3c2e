"""What is written to disk and read again: one type, one reader and one writer each. No torch."""
