"""The one exception a reader is meant to see, and what lies behind an exception."""


class LessonError(Exception):
    """A problem the reader can mend: one sentence that says what is wrong and what to do about it."""


def causes(error):
    """An exception and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
