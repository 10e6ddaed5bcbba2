"""Who writes the answers: what an engine must do, and the engine that does it with a model of transformers."""

from typing import Protocol

import numpy as np
import torch
from transformers import DynamicCache

from lessonlib.kernels.copies import to_device
from lessonlib.kernels.draw import COLDEST, draw
from lessonlib.pair.batch_step import BatchStep
from lessonlib.pair.step import cache_argument


class Engine(Protocol):
    """Writes answers to tokenised prompts. Each row depends on its own prompt, number and the seed only, never on its neighbours."""

    name: str
    coldest: float  # the lowest temperature above 0 that it samples at

    def answer(self, prompts, temperature, max_new_tokens, seed, eos_token_ids):
        """Yield (number, answer ids) for (number, prompt ids) in `prompts`, in any order.

        temperature 0 is greedy; otherwise the whole distribution is sampled: no top-k, no top-p, no penalties, whatever the model's own
        generation settings say. An answer ends with one of eos_token_ids, included, or after max_new_tokens without one.
        """


class TransformersEngine:
    """Answers in batches with a model of transformers, sampling by inverse CDF from numbers that belong to each row.

    batch_size: rows at once, by default 32 on a processor and 256 on a GPU, whose steps cost the same up to about there.
    """

    name = "transformers"
    coldest = COLDEST

    def __init__(self, model, batch_size=None):
        self.model, self.batch_size = model, batch_size or (32 if model.device.type == "cpu" else 256)

    def answer(self, prompts, temperature, max_new_tokens, seed, eos_token_ids):
        """Yield (number, answer ids), batch after batch of prompts of similar length (less padding)."""
        prompts = sorted(prompts, key=lambda row: len(row[1]))
        for start in range(0, len(prompts), self.batch_size):
            batch = prompts[start:start + self.batch_size]
            yield from zip([number for number, _ in batch], self._batch(batch, temperature, max_new_tokens, seed, set(eos_token_ids)))

    @torch.inference_mode()
    def _batch(self, batch, temperature, max_new_tokens, seed, eos):
        device = next(self.model.parameters()).device
        ids, mask = left_padded([prompt for _, prompt in batch], device)
        uniforms = torch.from_numpy(np.stack([row_uniforms(seed, number, max_new_tokens) for number, _ in batch])).to(device)
        answers = [[] for _ in batch]
        alive = torch.arange(len(batch), device=device)
        cache, argument = DynamicCache(config=self.model.config), cache_argument(self.model)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        for t in range(max_new_tokens):
            logits = self.model(ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1,
                                **{argument: cache}).logits[:, -1]
            if temperature == 0:
                tokens = logits.argmax(-1)
            else:
                tokens = draw((logits.float() / temperature).softmax(-1), uniforms[alive, t])
            for row, token in zip(alive.tolist(), tokens.tolist()):
                answers[row].append(token)
            going = torch.tensor([answers[row][-1] not in eos for row in alive.tolist()], device=device)
            if not going.any():
                break
            ids, positions = tokens[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones_like(ids)], -1)
            if not going.all():
                keep = going.nonzero()[:, 0]
                cache.batch_select_indices(keep)
                ids, mask, positions, alive = ids[keep], mask[keep], positions[keep], alive[keep]
        return answers


class BatchEngine(TransformersEngine):
    """Answers in batches by lessonlib's own step: on a GPU a captured graph, which is told to run once and not operation by operation.

    Rows and numbers as in TransformersEngine. Raises LessonError, when it answers, for a model whose arithmetic lessonlib does not have.
    """

    name = "lessonlib"

    @torch.inference_mode()
    def _batch(self, batch, temperature, max_new_tokens, seed, eos):
        texts, answers, rows = [prompt for _, prompt in batch], [[] for _ in batch], list(range(len(batch)))
        step = BatchStep(self.model, len(texts), max(map(len, texts)) + max_new_tokens)
        step.prepare(1, last=1)
        step.read(texts)
        uniforms = torch.from_numpy(np.stack([row_uniforms(seed, number, max_new_tokens) for number, _ in batch])).to(step.device)
        last = to_device(torch.tensor([text[-1:] for text in texts]), step.device)
        for t in range(max_new_tokens):
            logits = step.run(last, [len(texts[row]) - 1 + t for row in rows], last=1)[:, 0]
            last = (logits.argmax(-1) if temperature == 0 else draw((logits.float() / temperature).softmax(-1), uniforms[:, t]))[:, None]
            for row, token in zip(rows, last[:, 0].tolist()):
                if not (answers[row] and answers[row][-1] in eos):
                    answers[row].append(token)
            going = [place for place, row in enumerate(rows) if answers[row][-1] not in eos]
            if not going:
                break
            if len(going) < len(rows) and not step.captures:  # another number of rows is another graph
                rows, last, uniforms = [rows[place] for place in going], last[going], uniforms[going]
                step.keep(going)
        return answers


def left_padded(sequences, device):
    """(ids, mask), each int64 [B, S], padded on the left so that all sequences end together; padding is masked out.

    A model must then also be given position ids counted from each sequence's own start: its logits would move otherwise.
    """
    longest = max(map(len, sequences))
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, sequence in enumerate(sequences):
        ids[i, longest - len(sequence):] = torch.tensor(sequence)
        mask[i, longest - len(sequence):] = 1
    return ids.to(device), mask.to(device)


def row_uniforms(seed, number, count):
    """`count` numbers in [0, 1), float64, that belong to row `number` under `seed`: the same in any batch and after any interruption."""
    return np.random.Generator(np.random.Philox(key=[seed, number])).random(count)
