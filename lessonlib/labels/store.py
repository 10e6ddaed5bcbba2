"""The label store: the target's odds on disk, 388 bytes a position at k = 64, refused when anything about it does not match.

A folder: manifest.json and numbered shards. Of each position a shard keeps k ids (int32), k gaps to the largest logit (fp16) and the
log tail mass (fp32). Why gaps and not the logits: probabilities are then (1 - tail) * softmax(gaps), which no rounding can carry past 1,
while fp16 logits beside an exact logsumexp often leave a negative tail. Beside each shard lie its sequences' token ids.
"""

import os
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from lessonlib.errors import LessonError
from lessonlib.files import atomic_path, file_in_the_way, read_json, sha256, shown, write_json
from lessonlib.pair.tensor_files import write_tensors

FORMAT = 1
LARGEST_GAP = 60_000.0  # fp16 ends at 65,504; exp(-60,000) is 0 all the same
SHARD_ROWS = 65_536


class StoreWriter:
    """Writes a store shard by shard; each finished shard is in the manifest, so an interrupted store can be gone on with.

    facts: what the store must match later (target, tokenizer, template, vocabulary size, temperature, seed, answers ...), any JSON values.
    """

    def __init__(self, folder, k, facts, temperatures=(), shard_rows=SHARD_ROWS):
        self.folder, self.k, self.temperatures = Path(folder), k, tuple(float(T) for T in temperatures)
        self.manifest = {"labels": FORMAT, "k": k, **facts, "temperatures": list(self.temperatures),
                         "complete": False, "sequences": 0, "rows": 0, "shards": []}
        path = self.folder / "manifest.json"
        check_folder(self.folder)
        begun = os.path.lexists(path)
        if begun:
            found = read_manifest(self.folder)
            changing = ("complete", "sequences", "rows", "shards")
            differ = [name for name in {**self.manifest, **found} if name not in changing and found.get(name) != self.manifest.get(name)]
            begun = bool(found["shards"]) or not differ  # a run that was stopped before its first shard has left nothing to lose
            if begun and differ:
                raise LessonError(f"{shown(folder)} holds labels of another run ({', '.join(sorted(differ))} differ); "
                                  "give another folder, or delete it.")
            self.manifest = found if begun else self.manifest
        # one allocation for the whole run: a list of small tensors between large temporaries makes the heap grow without end
        try:
            self.ids = np.empty((shard_rows, k), np.int32)
            self.gaps = np.empty((shard_rows, k), np.float16)
            self.tails = np.empty((1 + len(self.temperatures), shard_rows), np.float32)
        except MemoryError:
            raise LessonError(f"there is no memory for {k:,} labels at each of {shard_rows:,} positions; give a smaller k.") from None
        self.filled, self.texts = 0, []
        if not begun:  # now, and not with the first shard: the folder is known as this run's, and one that cannot be written is found before the work
            write_json(path, self.manifest)

    @property
    def sequences(self):
        """How many sequences are safely in the store."""
        return self.manifest["sequences"]

    @property
    def complete(self):
        """Whether the store was closed: nothing more can be added."""
        return self.manifest["complete"]

    def add(self, prompt_ids, resp_ids, scored):
        """Add one sequence with its Scored labels; written to disk with its shard."""
        count = len(resp_ids)
        if count > len(self.ids):
            raise LessonError(f"a response of {count:,} tokens is longer than a shard of {len(self.ids):,} rows; give a larger shard_rows.")
        if self.filled + count > len(self.ids):
            self._write_shard()
        place = slice(self.filled, self.filled + count)
        self.ids[place] = scored.ids.numpy()
        gaps = (scored.logits - scored.logits[:, :1]).clamp(-LARGEST_GAP, 0)
        self.gaps[place] = gaps.numpy()
        for tail, value in zip(self.tails, [scored.log_tail, *(scored.log_tails[T] for T in self.temperatures)]):
            tail[place] = value.numpy()
        self.filled += count
        self.texts.append((list(prompt_ids), list(resp_ids)))

    def close(self):
        """Write what is left and mark the store complete."""
        if self.filled:
            self._write_shard()
        self.manifest["complete"] = True
        write_json(self.folder / "manifest.json", self.manifest)

    def _write_shard(self):
        number = len(self.manifest["shards"])
        n = self.filled
        labels = {"ids": self.ids[:n], "gaps": self.gaps[:n], "log_tail": self.tails[0, :n]}
        labels |= {f"log_tail_at_{T}": self.tails[i, :n] for i, T in enumerate(self.temperatures, 1)}
        prompts, responses = zip(*self.texts)
        texts = {}
        for name, lists in (("prompt", prompts), ("resp", responses)):
            texts[f"{name}_ids"] = np.concatenate([np.asarray(ids, np.int32) for ids in lists])
            texts[f"{name}_lengths"] = np.array([len(ids) for ids in lists], np.int32)
        entry = {"rows": n, "sequences": len(self.texts)}
        for name, arrays in (("labels", labels), ("texts", texts)):
            path = self.folder / f"{name}-{number:05d}.safetensors"
            with atomic_path(path) as temporary:
                write_tensors(temporary, {key: torch.from_numpy(value) for key, value in arrays.items()})
            entry[name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        self.manifest["shards"].append(entry)
        self.manifest["rows"] += n
        self.manifest["sequences"] += len(self.texts)
        write_json(self.folder / "manifest.json", self.manifest)
        self.filled, self.texts = 0, []


class LabelStore:
    """Reads a store, memory-mapped: sequence by sequence, labels ready for the losses.

    expect: facts that must agree with the manifest ({"target": ..., "tokenizer": ..., "k": ...}). Raises LessonError, in one sentence,
    for a store that is missing, incomplete, of something else, or torn: every file is read once and its checksum compared.
    """

    def __init__(self, folder, expect=None):
        self.folder = Path(folder)
        if not (self.folder / "manifest.json").is_file():
            raise LessonError(f"{shown(folder)} is no label store (it has no manifest.json); make one with `python -m lessonlib score`.")
        self.manifest = m = read_manifest(self.folder)
        if not m["complete"]:
            raise LessonError(f"{shown(folder)} is unfinished ({m['sequences']:,} sequences so far); "
                              "run the same `score` command again to finish it.")
        for name, wanted in (expect or {}).items():
            if m.get(name) != wanted:
                raise LessonError(f"{shown(folder)} was made for another {name} ({m.get(name)}, wanted {wanted}); "
                                  "score the answers again with this one.")
        self.k, self._shards, self._index = m["k"], [], []
        for number, entry in enumerate(m["shards"]):
            labels, texts = (self._open(name, number, entry[name]) for name in ("labels", "texts"))
            if not _fits(m, entry, labels, texts):
                raise LessonError(torn(folder))
            self._shards.append(labels)
            prompts, responses = (np.split(texts[f"{name}_ids"].numpy(), np.cumsum(texts[f"{name}_lengths"].numpy())[:-1])
                                  for name in ("prompt", "resp"))
            first = 0
            for prompt_ids, resp_ids in zip(prompts, responses):
                self._index.append((number, first, first + len(resp_ids), prompt_ids, resp_ids))
                first += len(resp_ids)

    def _open(self, name, number, entry):
        path = self.folder / f"{name}-{number:05d}.safetensors"
        damaged = f"the shard {shown(path)} is torn or damaged; delete {shown(self.folder)} and score the answers again."
        try:
            if sha256(path) != entry["sha256"]:
                raise LessonError(damaged)
            with safe_open(path, framework="pt") as file:
                return {key: file.get_tensor(key) for key in file.keys()}
        except (OSError, SafetensorError):
            raise LessonError(damaged) from None

    def __len__(self):
        return len(self._index)

    @property
    def rows(self):
        """How many response positions the store holds."""
        return self.manifest["rows"]

    def sequence(self, i):
        """(prompt_ids, resp_ids) of sequence i, as lists."""
        return self._index[i][3].tolist(), self._index[i][4].tolist()

    def kl_inputs(self, i, T=1.0):
        """(ids int64 [R, k], gaps fp32 [R, k], lse float64 [R]) of sequence i: gaps play the logits, and lse is the logsumexp of gaps / T.

        lse is float64 so that a tail of 1e-12 can still be told from it. Logits matter only up to a constant a row, so these are
        what `kl_loss` takes. T other than 1 must have been asked for when
        the answers were scored (LessonError otherwise): the tail at T does not follow from the tail at 1.
        """
        number, start, stop, *_ = self._index[i]
        shard = self._shards[number]
        gaps, log_tail = shard["gaps"][start:stop].float(), self._tail(shard, T)[start:stop].double()
        return shard["ids"][start:stop].long(), gaps, (gaps.double() / T).logsumexp(-1) - (-torch.expm1(log_tail)).log()

    def log_tail(self, i, T=1.0):
        """The log of the probability outside the stored k, fp32 [R], of sequence i; -10,000 stands for none at all."""
        number, start, stop, *_ = self._index[i]
        return self._tail(self._shards[number], T)[start:stop]

    def _tail(self, shard, T):
        name = "log_tail" if T == 1 else f"log_tail_at_{float(T)}"
        if name not in shard:
            others = ", ".join(map(str, self.manifest["temperatures"])) or "nothing else"
            raise LessonError(f"these labels hold no normaliser for T = {T} (they have: 1, {others}); "
                              "score the answers again with that temperature, or train at T = 1.")
        return shard[name]

    def top_mass(self):
        """The target's probability on its stored k, at every position: fp32 [rows]. Its mean is about the ceiling of what the labels can teach."""
        return torch.cat([1 - shard["log_tail"].exp() for shard in self._shards])


def check_folder(folder):
    """Refuse (LessonError) a place where a store cannot be begun: a file, a path through one, or a folder with files but no manifest."""
    if place := file_in_the_way(folder):
        raise LessonError(f"{shown(place)} is a file, so no label store can be made at {shown(folder)}; give another folder.")
    # hidden files are the system's own, or what is left of a write that was killed
    if os.path.isdir(folder) and not os.path.lexists(folder / "manifest.json") and any(not name.startswith(".") for name in os.listdir(folder)):
        raise LessonError(f"{shown(folder)} holds files but no manifest.json of a label store; give a new or an empty folder.")


def torn(folder):
    """The sentence for a store whose manifest is not what was written, or does not describe its shards."""
    return f"the label store {shown(folder)} is torn or edited; delete it and score again."


def read_manifest(folder):
    """The manifest of the store `folder`, sure to have the shape that StoreWriter gives it (LessonError otherwise)."""
    m = read_json(folder / "manifest.json")
    if isinstance(m, dict) and m.get("labels") != FORMAT:
        raise LessonError(f"{shown(folder)} is not a label store of this version; give another folder, or delete it and score again.")
    try:
        entries = m["shards"]
        counts = [m["k"], m["rows"], m["sequences"], m.get("vocabulary", 0), *chain(*((entry["rows"], entry["sequences"]) for entry in entries))]
        sums = [entry[name]["sha256"] for entry in entries for name in ("labels", "texts")]
        whole = (all(type(count) is int and count >= 0 for count in counts) and all(isinstance(value, str) for value in sums)
                 and type(m["complete"]) is bool and isinstance(entries, list) and (bool(entries) or not m["complete"])
                 and all(isinstance(T, float) for T in m["temperatures"])
                 and all(m[name] == sum(entry[name] for entry in entries) for name in ("rows", "sequences")))
    except (KeyError, TypeError):  # a name that is missing, or something else where a list or a mapping belongs
        whole = False
    if not whole:
        raise LessonError(torn(folder))
    return m


def _fits(manifest, entry, labels, texts):
    """Whether the tensors of a shard are those that the manifest and its entry describe, with no id outside the vocabulary."""
    rows, k, count = entry["rows"], manifest["k"], entry["sequences"]
    tails = {"log_tail", *(f"log_tail_at_{T}" for T in manifest["temperatures"])}
    shapes = {"ids": (rows, k), "gaps": (rows, k), **{name: (rows,) for name in tails}}
    if {name: tuple(tensor.shape) for name, tensor in labels.items()} != shapes:
        return False
    if set(texts) != {"prompt_ids", "resp_ids", "prompt_lengths", "resp_lengths"}:
        return False
    lengths = {name: texts[f"{name}_lengths"] for name in ("prompt", "resp")}
    if any(tuple(each.shape) != (count,) or (each < 0).any() or texts[f"{name}_ids"].shape != (int(each.sum()),) for name, each in lengths.items()):
        return False
    limit = manifest.get("vocabulary", float("inf"))
    every = [ids for ids in (labels["ids"], texts["prompt_ids"], texts["resp_ids"]) if ids.numel()]
    return len(texts["resp_ids"]) == rows and all(ids.min() >= 0 and ids.max() < limit for ids in every)
