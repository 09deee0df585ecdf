"""The one exception for input that cannot be used as it is."""


class InputError(ValueError):
    """A file, option or prompt that cannot be used.

    The message is complete: it names the file and the place, what was found, what was expected and the next step.
    The command line prints it without a traceback and exits with 2.
    """
