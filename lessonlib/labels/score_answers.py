"""Scoring a file of answers into a label store, in an order that wastes little padding, and going on after an interruption."""

from lessonlib.errors import LessonError
from lessonlib.files import fingerprint
from lessonlib.labels.scorer import check_sequences, check_settings, score
from lessonlib.labels.store import LabelStore, StoreWriter
from lessonlib.progress import Progress
from lessonlib.traffic.answers import check_written_by

WINDOW = 256  # sequences sorted by length together


def score_answers(target, answers, folder, k=64, temperatures=(), shard_rows=65_536, show=True):
    """Label every answer (t3) into the store `folder` and open it; returns LabelStore. A finished store of the same run is opened at once.

    answers: Answers, of this target (LessonError otherwise); temperatures: besides 1, at which the tail mass is kept too.
    """
    check_written_by(answers, target)
    header = answers.header
    sequences = answers.sequences()
    if not sequences:
        raise LessonError("there is no answer with any token to score; generate some first.")
    check_settings(target, k, temperatures)  # all of it before the store is begun, so that a refusal leaves nothing behind
    check_sequences(target, sequences)
    facts = {"target": header["target"], "tokenizer": header["tokenizer"], "template": header["template"],
             "vocabulary": target.config.get_text_config().vocab_size, "dtype": str(target.dtype).removeprefix("torch."),
             "text_temperature": header["temperature"], "seed": header["seed"], "answers": fingerprint([header, sequences])}
    writer = StoreWriter(folder, k, facts, temperatures, shard_rows)
    if not writer.complete:
        waiting = _ordered(sequences)[writer.sequences:]
        progress = Progress("scoring", sum(len(resp) for _, resp in waiting), "positions", show=show)
        for (prompt_ids, resp_ids), scored in zip(waiting, score(target, waiting, k, extra_temperatures=writer.temperatures)):
            writer.add(prompt_ids, resp_ids, scored)
            progress.add(len(resp_ids))
        writer.close()
        progress.finish()
    return LabelStore(folder, expect={"target": header["target"], "k": k})


def _ordered(sequences):
    """The sequences, sorted by length window by window: neighbours share a batch, and the order is the same every time."""
    return [sequence for start in range(0, len(sequences), WINDOW)
            for sequence in sorted(sequences[start:start + WINDOW], key=lambda pair: len(pair[0]) + len(pair[1]))]
