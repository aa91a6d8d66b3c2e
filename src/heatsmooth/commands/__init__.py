"""Every command is a frozen dataclass: its fields are its options, and ``run`` returns its typed result.

The command line is derived from these dataclasses (``line``); Python calls them directly.
"""
