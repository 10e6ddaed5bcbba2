"""Every draft that the course has, in the decoder on one machine: what it weighs, what is kept of it, what it costs and what it earns."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lessonlib.decode.decoder import as_drafter
from lessonlib.decode.drafter import ModelDrafter
from lessonlib.decode.eagle import EagleDrafter
from lessonlib.decode.medusa import MedusaDrafter
from lessonlib.decode.heads import heads_drafter
from lessonlib.drafts.head_files import heads_note, load_heads
from lessonlib.files import CHECKPOINTS, read_json, write_json
from lessonlib.lesson import NGRAM
from lessonlib.measure.costs import step_costs
from lessonlib.measure.sweep import sweep
from lessonlib.pair.chat import chat_ids, end_of_turn_ids
from lessonlib.pair.load import DISTILLED, EAGLE, MEDUSA, OFF_THE_SHELF
from lessonlib.pair.short_head import short_headed
from lessonlib.reference import REFERENCE, figure, recorded_by
from lessonlib.reference_heads import decoded_prompts

TOKENS, KS = 96, (2, 4)
LARGE_VOCABULARY, SHORT_VOCABULARY = 128_256, 32_768  # of the 1B, and its most frequent part


def record_board(lesson):
    """Decode held-out real prompts plainly and with every draft, greedily; writes data/reference/board_gpu.json or board_cpu.json.

    The drafts are those that the course ships, so that the same command shows what they come to on the reader's machine.
    """
    made, target, tokenizer = recorded_by(), lesson.target, lesson.tokenizer
    prompts, end, rows = [chat_ids(tokenizer, text) for text in decoded_prompts(lesson)], end_of_turn_ids(tokenizer, target.generation_config), {}
    for name, (drafter, alpha, minutes) in every_drafter(lesson).items():
        found = sweep(target, drafter, prompts, KS, TOKENS, end, show=False)
        rows[name] = {"parameters": parameters(drafter), "bytes": {row.K: step_bytes(drafter, row.K) for row in found.rows[1:]}, "minutes": minutes, "alpha": alpha,
                      "plain_tokens_per_second": found.rows[0].tokens_per_second, "target_seconds": found.costs.target_seconds, "paths": found.costs.paths,
                      "K": {row.K: of_row(row, found) for row in found.rows[1:]}, "warnings": [line.strip() for line in [*found.warnings(), *found.parted()]]}
        best = found.best
        print(f"  {name:<28} K = {best.K}: {best.counts.tokens_per_round:.2f} tokens a round, c {found.costs.c_at[best.K]:.3f}, {best.speedup:.2f} x {best.speedup.interval('.2f')}, "
              f"by position {best.predicted_by_position:.2f} x, identical {best.identical} of {len(prompts)}", flush=True)
    result = {**made, "prompts": len(prompts), "tokens": TOKENS, "drafts": rows}
    if target.device.type == "cuda":
        result["output layer of the 1B"] = {"vocabulary": LARGE_VOCABULARY, **short_output_layer(target.device)}
    write_json(REFERENCE / f"board_{'gpu' if target.device.type == 'cuda' else 'cpu'}.json", result)


def of_row(row, found):
    """One K of one draft as the record holds it."""
    counts = row.counts
    return {"tokens_per_round": counts.tokens_per_round, "per_tested": counts.per_tested, "conditional": counts.conditional, "proposed_per_round": sum(counts.proposed) / counts.rounds,
            "c": found.costs.c_at[row.K], "v": found.costs.v[row.K], "predicted": row.predicted, "predicted_by_position": row.predicted_by_position, "speedup": figure(row.speedup), "identical": row.identical}


def every_drafter(lesson):
    """{name: (the drafter, its offline alpha on record or None, minutes of training on record or None)}."""
    target, chains = lesson.target, {name: CHECKPOINTS / name for name in (MEDUSA, EAGLE)}
    notes = {name: heads_note(folder) for name, folder in chains.items()}
    vocabulary = notes[EAGLE]["vocabulary"]
    head, shipped = load_heads(chains[EAGLE], target), read_json(REFERENCE / "heads.json")["shipped"]
    alphas = {OFF_THE_SHELF: read_json(REFERENCE / "off_the_shelf.json")["before_distillation"]["heldout"]["alpha"],
              DISTILLED: read_json(REFERENCE / "distilled.json")["drafts"]["as shipped"]["heldout"]["alpha"],
              **{name: shipped[name]["heldout"]["alpha"][0] for name in chains}}
    made = {NGRAM: lesson.load(NGRAM), OFF_THE_SHELF: lesson.load(OFF_THE_SHELF), DISTILLED: lesson.load(DISTILLED)}
    made[f"{DISTILLED}, 8k"] = ModelDrafter(made[DISTILLED], vocabulary)
    for name, folder in chains.items():
        made[name] = heads_drafter(folder, target)
        made[f"{name}, 8k"] = heads_drafter(folder, target, vocabulary=vocabulary)
        for tree in (7, 15, 63):
            made[f"{name}, tree of {tree}"] = heads_drafter(folder, target, tree)
    made[f"{EAGLE}, tree of 7, 8k"] = heads_drafter(chains[EAGLE], target, 7, vocabulary)
    made[f"{EAGLE}, tree of 15, 8k"] = heads_drafter(chains[EAGLE], target, 15, vocabulary)
    made[f"{EAGLE}, growing tree of 15"] = EagleDrafter(head, budget=15)
    minutes = {name: note["training"]["seconds"] / 60 for name, note in notes.items()}
    return {name: (as_drafter(draft, target), alphas.get(name), minutes.get(name.partition(",")[0])) for name, draft in made.items()}


def parameters(drafter):
    """How many weights a draft has of its own: none of those it shares with the target are counted."""
    own = {ModelDrafter: lambda: drafter.step.model.model.layers.parameters(), MedusaDrafter: lambda: drafter.heads.parameters(), EagleDrafter: lambda: drafter.module.parameters()}
    return sum(weight.numel() for weight in own.get(type(drafter), lambda: ())())


def step_bytes(drafter, K):
    """Bytes of weights that are read for each of the K tokens drafted one after another: a round's, shared out."""
    def size(weights):
        return sum(weight.numel() * weight.element_size() for weight in weights)

    if isinstance(drafter, ModelDrafter):
        model = drafter.step.model
        return size([*model.model.layers.parameters(), model.lm_head.weight])
    if isinstance(drafter, MedusaDrafter):
        return (size(drafter.heads.heads[:K].parameters()) + size([drafter.head.weight])) / K
    if isinstance(drafter, EagleDrafter):
        once, head = size(drafter.module.fuse.parameters()), size([drafter.head.weight])
        return size(drafter.module.parameters()) - once + once / K + head
    return 0


def short_output_layer(device):
    """{"whole", "short": seconds a step}: a model of the 1B's shapes in bf16, with its output layer and with one for the most frequent tokens alone."""
    config = LlamaConfig(vocab_size=LARGE_VOCABULARY, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                         head_dim=64, tie_word_embeddings=True, max_position_embeddings=4096)
    with torch.device(device):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval().requires_grad_(False)
    costs = step_costs(model, short_headed(model, torch.arange(SHORT_VOCABULARY))[0], (4,))
    return {"whole": costs.target_seconds, "short": costs.draft_seconds}
