"""Draft shape B: the target's own first layers under its own embedding, final norm and head."""

from lessonlib.errors import LessonError
from lessonlib.pair.layers_draft import layers_draft


def truncated_draft(target, n_layers=4):
    """A draft of copies of the target's first n_layers layers; embedding, final norm and head are the target's own tensors, frozen.

    Only the layers train, as fp32 copies. Near useless before it is trained. Raises LessonError for a number of layers the target does
    not have, or a target that is not Llama-like. Built in notebook 07.
    """
    if isinstance(n_layers, bool) or n_layers != int(n_layers) or n_layers < 1:
        raise LessonError(f"a truncated draft cannot have {n_layers} layers; keep at least 1.")
    return layers_draft(target, range(int(n_layers)))
