"""The one exception a reader is meant to see."""


class LessonError(Exception):
    """A problem the reader can mend: one sentence that says what is wrong and what to do about it."""
