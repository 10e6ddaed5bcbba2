"""Heads on disk: their own weights, and a note of what they were made for."""

from pathlib import Path

import torch

from lessonlib.drafts.eagle import EagleHead
from lessonlib.drafts.medusa import MedusaHeads
from lessonlib.errors import LessonError
from lessonlib.files import atomic_path, read_json, shown, write_json
from lessonlib.pair.draft_files import NOTE, check_draft_folder, whole
from lessonlib.pair.few_bits import BITS, dequantise_layers, quantise_layers, stored_at
from lessonlib.pair.tensor_files import read_tensors, write_tensors
from lessonlib.pair.tokenizer_check import model_fingerprint

WEIGHTS = "heads.safetensors"
SHAPES = {"medusa": "count", "eagle": "taps"}  # of each kind, what its note says besides


def save_heads(heads, folder, target, bits=32, ways=None, **notes):
    """Write MedusaHeads or an EagleHead to `folder`, replacing what is there; `bits`, 8, 7 or 4, rounds the matrices (`quantise_layers`).

    ways: (share, ranks) pairs as LookedAhead has them, by which a tree is chosen later. `notes` go
    into draft.json as they are. Raises LessonError where `folder` holds something other than a draft, and for other bits.
    """
    if bits not in (32, *BITS):
        raise LessonError(f"heads cannot be stored in {bits} bits a weight; give 32, {' or '.join(map(str, BITS))}.")
    check_draft_folder(folder)
    own = {name: weight.detach() for name, weight in heads.named_parameters()}
    shape = {"kind": "eagle", "taps": list(heads.taps)} if hasattr(heads, "taps") else {"kind": "medusa", "count": len(heads)}
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        write_tensors(stored_at(temporary / WEIGHTS, bits), own if bits == 32 else quantise_layers(own, bits))
        write_json(temporary / NOTE, {**shape, "bits": bits, "target": Path(target.config._name_or_path).name, "target_fingerprint": model_fingerprint(target),
                                      "ways": ways and [[round(share, 5), *ranks] for share, ranks in ways], **notes})


def heads_note(folder):
    """The note of the heads in a folder, or None where there are none."""
    note = read_json(Path(folder) / NOTE) if (Path(folder) / NOTE).is_file() else None
    if not isinstance(note, dict) or note.get("kind") not in list(SHAPES):
        return None
    if not (well_shaped(note) and note.get("bits") in (32, *BITS) and "target_fingerprint" in note and "ways" in note and well_counted(note["ways"])):
        raise LessonError(f"{shown(Path(folder) / NOTE)} is not the whole note of {note['kind']} heads; make them again.")
    return note


def well_shaped(note):
    """Whether a note says of its heads what SHAPES asks for: how many there are, or behind which layers they read."""
    said = note.get(SHAPES[note["kind"]])
    return whole(said) and said > 0 if note["kind"] == "medusa" else isinstance(said, list) and whole(*said)


def well_counted(ways):
    """Whether `ways` is what a note may hold: nothing, or a list of [share, rank, rank, ...], each behind the way that it begins with."""
    if ways is None:
        return True
    if not isinstance(ways, list) or not all(isinstance(way, list) and len(way) > 1 and isinstance(way[0], float | int) and whole(*way[1:]) and min(way[1:]) >= 0 for way in ways):
        return False
    known = {()}
    for _, *ranks in ways:
        if tuple(ranks[:-1]) not in known:
            return False
        known.add(tuple(ranks))
    return True


def noted_ways(note):
    """The (share, ranks) pairs in the note of heads, or None where they were never counted."""
    return note["ways"] and [(share, tuple(ranks)) for share, *ranks in note["ways"]]


def load_heads(folder, target):
    """The MedusaHeads or EagleHead in a folder, on the target's device in its dtype, frozen, in eval mode.

    Raises LessonError for a folder without heads, heads of another target, torn files, and weights that are not those of such heads.
    """
    note = heads_note(folder)
    if note is None:
        raise LessonError(f"{shown(folder)} holds no heads; make some with `python -m lessonlib train --medusa 3` or `--eagle`.")
    if (found := model_fingerprint(target)) != note.get("target_fingerprint"):
        raise LessonError(f"The heads in {shown(folder)} were made for another target ({note.get('target')}, {note.get('target_fingerprint')}; this one is {found}); "
                          "load that target, or train new heads.")
    heads = MedusaHeads(target, note["count"]) if note["kind"] == "medusa" else EagleHead(target, note["taps"])
    path = stored_at(Path(folder) / WEIGHTS, note["bits"])
    stored = read_tensors(path)
    stored = stored if note["bits"] == 32 else dequantise_layers(stored)
    own = dict(heads.named_parameters())
    if not all(tensor.isfinite().all() for tensor in stored.values()):
        raise LessonError(f"{shown(path)} holds weights that are no numbers (NaN); make the heads again.")
    if {name: tensor.shape for name, tensor in stored.items()} != {name: tensor.shape for name, tensor in own.items()}:
        raise LessonError(f"{shown(path)} does not hold the heads that {NOTE} describes; make them again.")
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(stored[name])
    return heads.to(target.dtype).eval().requires_grad_(False)
