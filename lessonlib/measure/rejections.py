"""What happens in the rounds of a decoding: each proposal, what was kept of it, and both models' bets where the target had its own word."""

from dataclasses import dataclass

import torch

from lessonlib.decode.decoder import Decoder, as_drafter
from lessonlib.errors import LessonError
from lessonlib.pair.hidden import body_and_head, logits_of


@dataclass(frozen=True)
class Round:
    """One round of greedy speculative decoding.

    text: all ids before the round, prompt included; proposed: the draft's ids; kept: how many of them the target kept; written: the ids
    the round added to the text. target_bets, draft_bets: each model's likeliest (id, probability) for the last of them, best first.
    """

    text: list
    proposed: list
    kept: int
    written: list
    target_bets: list
    draft_bets: list

    @property
    def rejected(self):
        """Whether the round ended in a rejection (its last token is then what the target wanted in place of a proposal)."""
        return self.kept < len(self.proposed) and self.kept < len(self.written)

    @property
    def before(self):
        """The ids before the last one written: where the bets were made."""
        return self.text + self.written[:-1]

    @property
    def wanted(self):
        """The last id written: at a rejection what the target wanted, else its bonus token."""
        return self.written[-1]

    @property
    def refused(self):
        """The proposal that was rejected, or None."""
        return self.proposed[self.kept] if self.rejected else None


def record_rounds(target, draft, prompt_ids, K, max_new_tokens, eos_token_ids=(), bets=5):
    """Decode greedily with a draft model and keep a record of every round; returns (Decoded, list of Round).

    target, draft: causal LMs, for both then read the finished text once (what was kept is the target's own text, so the odds read there
    are those of the round itself); bets: how many of each model's likeliest tokens to note; the other arguments as in `spec_greedy`.
    Raises LessonError for K = 0 and where `spec_greedy` does.
    """
    if K == 0:
        raise LessonError("a record of rounds with K = 0 would hold no proposals; propose at least one token a round.")
    seen = []
    decoded = Decoder(target).decode(prompt_ids, K, max_new_tokens, as_drafter(draft, target), eos_token_ids,
                                     on_round=lambda text, block, kept, written, logits: seen.append((text, block.tokens.tolist(), kept, written)))
    ids = [*map(int, prompt_ids), *decoded.tokens]
    places = [len(text) + len(written) - 1 for text, _, _, written in seen]
    columns = [_bets(model, ids, places, bets) for model in (target, draft)]
    return decoded, [Round(*what, *own) for what, *own in zip(seen, *columns)]


@torch.inference_mode()
def _bets(model, ids, places, count):
    """For each place in a text, the likeliest (id, probability) there given everything before it."""
    body, head = body_and_head(model)
    hidden = body(torch.tensor([ids], device=head.weight.device))[0, torch.tensor(places) - 1]
    probs, tokens = logits_of(head, hidden).float().softmax(-1).topk(count)
    return [list(zip(row, odds)) for row, odds in zip(tokens.tolist(), probs.tolist())]
