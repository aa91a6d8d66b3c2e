"""The one exception a user should ever see."""


class InputError(ValueError):
    """Wrong use or wrong input: one line that says what was expected, what came, and the remedy.

    The command line prints it as it is and ends with exit code 2. Where more ``options`` are the remedy, it adds the
    whole command to copy.
    """

    def __init__(self, message: str, *, options: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.options = options


class DivergedError(InputError):
    """A training whose loss or weights are not finite."""


class BusyError(InputError):
    """Another process is at work there."""


def require(condition: bool, message: str) -> None:
    """Raise ``InputError(message)`` unless ``condition`` holds."""
    if not condition:
        raise InputError(message)


def first_line(error: BaseException) -> str:
    """What an error says, on one line; its kind if it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)
