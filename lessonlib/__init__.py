"""Train your own draft model: distil a small language model to guess as a big one would, and decode faster with no change to the text.

The public names, each loaded when it is first used, so that a script that needs one does not wait for all.
"""

import os
from importlib import import_module

# Threads that wait for each other by spinning are quick on an idle machine and ruinous on a shared one, and those that sleep at once the
# other way round. One step of the tiny target on two cores, idle and beside one busy process: 51 and 1,384 ms with torch's own spinning,
# 72 and 89 ms without any, 54 and 162 ms with this little. It must be said before torch is imported; what the reader has set stays.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

_HOMES = {
    "LessonError": "errors",
    "preset": "pair.presets", "load_target": "pair.load", "load_tokenizer": "pair.load", "load_draft": "pair.draft_files", "save_draft": "pair.draft_files",
    "chat_ids": "pair.chat",
    "generate": "traffic.answers",
    "score_one": "labels.scorer", "score_answers": "labels.score_answers", "LabelStore": "labels.store", "check_alignment": "labels.alignment",
    "truncated_draft": "drafts.truncated",
    "ce_loss": "distil.losses", "kl_loss": "distil.losses", "Objective": "distil.losses", "Recipe": "distil.train", "train_draft": "distil.distil",
    "spec_greedy": "decode.decoder", "spec_sample": "decode.decoder", "decode_batch": "decode.batch",
    "offline_alpha": "measure.offline", "AdaptiveK": "measure.adaptive", "sweep": "measure.sweep",
    "speedup": "measure.speedup", "best_k": "measure.speedup", "break_even_alpha": "measure.speedup",
}
__all__ = list(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'lessonlib' has no attribute {name!r}")
    return getattr(import_module(f"lessonlib.{_HOMES[name]}"), name)


def __dir__():
    return sorted([*globals(), *__all__])
