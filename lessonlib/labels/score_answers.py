"""Scoring a file of answers into a label store, in an order that wastes little padding, and going on after an interruption."""

from contextlib import closing

from lessonlib.errors import LessonError
from lessonlib.files import fingerprint
from lessonlib.labels.scorer import check_sequences, check_settings, score
from lessonlib.labels.store import LabelStore, StoreWriter
from lessonlib.labels.vllm_scorer import vllm_score
from lessonlib.pair.step import check_fits
from lessonlib.progress import Progress
from lessonlib.traffic.answers import check_written_by

WINDOW = 256  # sequences sorted by length together


def score_answers(target, answers, folder, k=64, temperatures=(), shard_rows=65_536, show=True, engine=None):
    """Label every answer (t3) into the store `folder` and open it; returns LabelStore. A finished store of the same run is opened at once.

    answers: Answers, of this target (LessonError otherwise); temperatures: besides 1, at which the tail mass is kept too.
    engine: a VllmEngine of the target to read the answers with instead; it knows the tail mass at temperature 1 only (LessonError for others).
    """
    check_written_by(answers, target)
    header = answers.header
    sequences = answers.sequences()
    if not sequences:
        raise LessonError("there is no answer with any token to score; generate some first.")
    check_settings(target, k, temperatures)  # all of it before the store is begun, so that a refusal leaves nothing behind
    check_sequences(target, sequences)
    if engine is not None:
        check_engine(target, sequences, temperatures)
    facts = {"target": header["target"], "tokenizer": header["tokenizer"], "template": header["template"],
             "vocabulary": target.config.get_text_config().vocab_size, "dtype": str(target.dtype).removeprefix("torch."),
             "text_temperature": header["temperature"], "seed": header["seed"], "answers": fingerprint([header, sequences])}
    if engine is not None:
        facts["engine"] = engine.name
    writer = StoreWriter(folder, k, facts, temperatures, shard_rows)
    if not writer.complete:
        waiting = _ordered(sequences)[writer.sequences:]
        progress = Progress("scoring", sum(len(resp) for _, resp in waiting), "positions", show=show)
        labels = vllm_score(engine, waiting, k) if engine is not None else score(target, waiting, k, extra_temperatures=writer.temperatures)
        with closing(labels):  # an engine's memory is free at once when this is interrupted
            for scored, (prompt_ids, resp_ids) in zip(labels, waiting):  # the labels first: so they are read to their end
                writer.add(prompt_ids, resp_ids, scored)
                progress.add(len(resp_ids))
        writer.close()
        progress.finish()
    return LabelStore(folder, expect={"target": header["target"], "k": k})


def check_engine(target, sequences, temperatures):
    """Refuse (LessonError) what vLLM cannot score: at other temperatures than 1, and a sequence that leaves no position free."""
    if temperatures:
        raise LessonError("vLLM gives no tail mass at temperatures other than 1; leave --temperatures out, or score without --engine vllm.")
    for prompt_ids, resp_ids in sequences:
        check_fits(target, [*prompt_ids, *resp_ids], 1)  # it writes at least one token more


def _ordered(sequences):
    """The sequences, sorted by length window by window: neighbours share a batch, and the order is the same every time."""
    return [sequence for start in range(0, len(sequences), WINDOW)
            for sequence in sorted(sequences[start:start + WINDOW], key=lambda pair: len(pair[0]) + len(pair[1]))]
