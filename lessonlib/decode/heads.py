"""The drafter that heads on disk come to."""

from lessonlib.decode.eagle import EagleDrafter
from lessonlib.decode.medusa import MedusaDrafter
from lessonlib.decode.sparse_tree import sparse_tree
from lessonlib.drafts.head_files import heads_note, load_heads, noted_ways
from lessonlib.errors import LessonError
from lessonlib.files import shown


def heads_drafter(folder, target, tree=None, vocabulary=None):
    """The drafter of the heads in a folder: a chain, or the `tree` proposals that, by the ways in their note, are worth their place most.

    Raises LessonError as `load_heads` does, and for a tree of heads whose ways were never counted.
    """
    heads, ways = load_heads(folder, target), noted_ways(heads_note(folder))
    if tree is not None and not ways:
        raise LessonError(f"the note in {shown(folder)} does not say how often each guess is right, so no tree can be chosen; train these heads again.")
    shape = None if tree is None else sparse_tree(ways, tree)
    return EagleDrafter(heads, vocabulary=vocabulary, tree=shape) if hasattr(heads, "taps") else MedusaDrafter(heads, target, shape, vocabulary)
