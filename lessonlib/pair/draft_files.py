"""Drafts on disk: what a draft has of its own and a note of what it shares, or a whole checkpoint where it shares nothing.

A folder holds config.json, draft.json (kind, the target's fingerprint, the layers kept, the parts shared, bits a weight, the draft it is
the difference from, if any) and layers.safetensors (its own layers, with .gz where of few bits) or model.safetensors (everything).
"""

import re
from pathlib import Path

import torch

from lessonlib.errors import LessonError
from lessonlib.files import atomic_path, check_writable, read_json, shown, write_json
from lessonlib.pair.few_bits import BITS, dequantise_layers, quantise_layers, stored_at
from lessonlib.pair.layers_draft import SHARED, cast_parameters, layers_draft, shared_parts
from lessonlib.pair.load import load_model, locate
from lessonlib.pair.tensor_files import read_tensors, write_tensors
from lessonlib.pair.tokenizer_check import check_pair, model_fingerprint

NOTE, LAYERS = "draft.json", "layers.safetensors"
OURS = re.compile(r"draft\.json|(layers|heads)\.safetensors(\.gz)?|(generation_)?config\.json|model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")


def save_draft(draft, folder, target, kind="draft", bits=32, base=None, **notes):
    """Write `draft` to `folder`, replacing what is there: its layers alone if the rest is the target's, else all of it.

    `bits`, 8, 7 or 4, rounds the layers (`quantise_layers`); `base` names the draft that this one was trained from, and then only the difference
    is written: it is small, so few bits hold it well. `notes` go into draft.json as they are. A draft that another program loads without the
    target is saved with its own `save_pretrained`. Raises LessonError where `folder` holds something other than a draft, for other bits, and
    for a base of other layers.
    """
    shares = shared_parts(draft, target)
    own = own_layers(draft)
    compact = shares == list(SHARED) and hasattr(draft, "kept_layers")
    if bits not in (32, *BITS) or (not compact and (bits != 32 or base)):
        raise LessonError("Few bits (8, 7 or 4) and a base are for drafts of which only the layers are their own; leave bits at 32 and name no base.")
    if base:
        if Path(locate(base)).resolve() == Path(folder).resolve():
            raise LessonError(f"A draft cannot be stored as its difference from the draft that it replaces ({shown(folder)}); name another folder.")
        beginning = load_draft(base, target, torch.float32)
        if getattr(beginning, "kept_layers", None) != draft.kept_layers:
            raise LessonError(f"The draft {base} has other layers than this one; name the draft that this one was trained from, or none.")
        own = {name: weight.detach().float() - old for (name, weight), old in zip(own.items(), own_layers(beginning).values())}
        notes = {"base": str(base), "base_fingerprint": model_fingerprint(beginning), **notes}
    check_draft_folder(folder)
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        if compact:
            draft.config.save_pretrained(temporary)
            write_tensors(stored_at(temporary / LAYERS, bits), own if bits == 32 else quantise_layers(own, bits))
        else:
            draft.save_pretrained(temporary)
        write_json(temporary / NOTE, {
            "kind": kind, "layers": list(draft.kept_layers) if compact else None, "shares": shares if compact else [],
            "bits": bits, "target": Path(target.config._name_or_path).name,
            "target_fingerprint": model_fingerprint(target), **notes})


def own_layers(draft):
    """{name: parameter} of a draft's layers, which is what it does not share with its target."""
    return {name: parameter for name, parameter in draft.named_parameters() if name.startswith("model.layers.")}


def check_draft_folder(folder):
    """Refuse (LessonError) to write a draft over a file, or over a folder that holds something else."""
    folder = Path(folder)
    if folder.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise LessonError(f"A draft cannot take the place of {folder}, where you are; name a folder that does not exist yet.")
    check_writable(folder)
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else [] if not folder.exists() else [folder.name]
    foreign = [name for name in names if not folder.is_dir() or NOTE not in names or not OURS.fullmatch(name)]
    if foreign:
        raise LessonError(f"{shown(folder)} holds {foreign[0]}, which is no part of a draft and would be lost; name a folder that does not exist yet.")


def whole(*values):
    """Whether all values, read from JSON, are whole numbers."""
    return all(type(value) is int for value in values)


def load_draft(name, target, dtype=None):
    """The draft in a folder (or a whole model by name or hub id), ready to propose for `target`, on its device.

    `dtype` is that of the draft's own weights: the target's unless given (fp32 to train on). Raises LessonError for a draft
    that was made for another target, for one stored as its difference from a draft that has changed since, for torn files, and where
    the vocabularies differ.
    """
    place, dtype = locate(name), dtype or target.dtype
    note = read_json(place / NOTE) if isinstance(place, Path) and (place / NOTE).is_file() else None
    if note is not None and not (isinstance(note, dict) and {"target_fingerprint", "target", "layers", "bits"} <= note.keys() and note["bits"] in (32, *BITS)
                                 and isinstance(note["layers"], list | None) and whole(*note["layers"] or ()) and isinstance(note.get("base", ""), str)):
        raise LessonError(f"{shown(place / NOTE)} is not the note of a draft; make the draft again.")
    if note and (found := model_fingerprint(target)) != note["target_fingerprint"]:
        raise LessonError(f"The draft in {shown(place)} was made for another target ({note['target']}, "
                          f"{note['target_fingerprint']}; this one is {found}); load that target, or distil a new draft.")
    if not (note and note["layers"]):
        draft = load_model(place, target.device, dtype)
        check_pair(target, draft)
        return draft
    path = stored_at(place / LAYERS, note["bits"])
    tensors = read_tensors(path)
    draft = layers_draft(target, note["layers"])
    own = own_layers(draft)
    stored = tensors if note["bits"] == 32 else dequantise_layers(tensors)
    if {key: tensor.shape for key, tensor in stored.items()} != {key: parameter.shape for key, parameter in own.items()}:
        raise LessonError(f"{shown(path)} does not hold the layers that {NOTE} lists; make the draft again.")
    if "base" in note:
        beginning = load_draft(note["base"], target, torch.float32)
        if model_fingerprint(beginning) != note.get("base_fingerprint"):
            raise LessonError(f"The draft in {shown(place)} is stored as its difference from the draft {note['base']}, which has changed since; make it again.")
        stored = {key: stored[key].to(old.device) + old for key, old in own_layers(beginning).items()}
    with torch.no_grad():
        for key, parameter in own.items():
            parameter.copy_(stored[key])
    cast_parameters(draft.model.layers, dtype)
    draft.config.dtype = dtype
    return draft
