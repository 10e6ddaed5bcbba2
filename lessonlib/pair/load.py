"""Models and tokenizers by name, folder or hub id, and one sentence for everything that goes wrong on the way."""

import re
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, OfflineModeIsEnabled, RepositoryNotFoundError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from lessonlib.errors import LessonError, causes
from lessonlib.files import CHECKPOINTS, shown
from lessonlib.pair import embedded

OFF_THE_SHELF, DISTILLED, MEDUSA, EAGLE = "off-the-shelf", "distilled", "medusa", "eagle"  # the drafts that the course ships
MADE_BY = {OFF_THE_SHELF: "generic-text, then python -m lessonlib heal --preset tiny --out checkpoints/off-the-shelf",
           DISTILLED: "reference trainings --preset tiny, then python -m lessonlib reference distilled --preset tiny",
           MEDUSA: "reference heads --preset tiny", EAGLE: "reference heads --preset tiny"}
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def locate(name):
    """Where to load `name` from: the embedded target (made now if need be), a shipped draft, a folder, or a hub id.

    Returns a Path, or the hub id as it is. Raises LessonError for a folder that is missing, a shipped draft's among them, and for an
    embedded target that cannot be made.
    """
    if str(name) == embedded.NAME:
        return embedded.ensure_embedded_target()
    if str(name) in MADE_BY:
        if Path(name).is_dir() and Path(name).resolve() != (CHECKPOINTS / name).resolve():
            raise LessonError(f"{name} is a draft that the course ships and a folder here too; write ./{name} for the folder, or give the folder another name.")
        name = CHECKPOINTS / name
        if not name.is_dir():
            raise LessonError(f"{shown(name)} is missing; get a whole copy of the course, or make it anew: python -m lessonlib {MADE_BY[name.name]}")
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    local = isinstance(name, Path) or not HUB_ID.fullmatch(name) or name.startswith(".") or ("/" in name and Path(name).parent.is_dir())
    if local:  # such as checkpoints/misspelt: no reason to ask the hub
        raise LessonError(f"The folder {shown(name)} is missing; check the path of the model.")
    return name


def load_tokenizer(preset):
    """The tokenizer of a preset's target (or of a name, folder or hub id). Raises LessonError where it cannot be found or loaded."""
    place = locate(getattr(preset, "target", preset))
    with explained_load(place):
        tokenizer = AutoTokenizer.from_pretrained(place)
    tokenizer.model_max_length = int(1e9)  # lengths are checked against the model itself, in one sentence, not warned about
    return tokenizer


def load_target(preset):
    """The target of a preset, on its device in its dtype, in eval mode, frozen. Raises LessonError as `load_model` does."""
    return load_model(preset.target, preset.device, preset.dtype).requires_grad_(False)


def load_model(name, device="cpu", dtype=torch.float32):
    """A causal LM by name, folder or hub id, in eval mode; a LessonError says what is missing, forbidden, torn or too large.

    Nothing of its generation_config stays but the ids of special tokens, so what is sampled is the model's own distribution.
    """
    place = locate(name)
    local = isinstance(place, Path)
    if local:  # seconds: a bar would only litter a notebook; a download keeps its own
        transformers.logging.disable_progress_bar()
    with explained_load(place):
        config = AutoConfig.from_pretrained(place)
        if torch.device(device).type == "cpu":
            check_memory(place, config, dtype)
        model, info = AutoModelForCausalLM.from_pretrained(place, config=config, dtype=dtype, output_loading_info=True)
        if info["missing_keys"]:
            raise LessonError(f"{shown(place)} lacks the weights {', '.join(sorted(info['missing_keys'])[:3])}; "
                              "get a whole copy of it.")
        model = model.to(device).eval()
    ids = model.generation_config
    model.generation_config = GenerationConfig(bos_token_id=ids.bos_token_id, eos_token_id=ids.eos_token_id,
                                               pad_token_id=ids.pad_token_id)
    return model


def check_memory(place, config, dtype):
    """Refuse a model whose weights alone are larger than the free main memory (where that is known)."""
    try:
        free = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        return
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    needed = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
    if needed > free:
        raise too_large(place, f"{needed / 1e9:.1f} GB of weights, {free / 1e9:.1f} GB free")


def too_large(place, detail):
    """The LessonError for a model that does not fit."""
    return LessonError(f"{shown(place)} does not fit into memory ({detail}); take a smaller model or a smaller dtype, "
                       "or free memory first.")


@contextmanager
def explained_load(place):
    """Turn what transformers, the hub and torch say while `place` is loaded into one sentence with the fix."""
    name = shown(place) if isinstance(place, Path) else place
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise too_large(place, str(error).split(". ")[0] or "out of memory") from error
    except SafetensorError as error:
        raise LessonError(f"The weights in {name} are torn ({error}); get a whole copy of it.") from error
    except (OSError, ValueError, RuntimeError) as error:
        behind = list(causes(error))
        for kind, sentence in (
                (GatedRepoError, f"{name} needs its licence accepted: do that on its page on the Hugging Face hub, "
                                 "then run: hf auth login (or set LESSON_PRESET=spark-open, which needs no account)."),
                (RepositoryNotFoundError, f"There is no folder {name}, and no model of that name on the hub, unless it is "
                                          "private; check the name, or run: hf auth login."),
                ((LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError),
                 f"{name} is not on this machine and the hub cannot be reached; connect once to fetch it, or give "
                 "the folder of a copy.")):
            if any(isinstance(cause, kind) for cause in behind):
                raise LessonError(sentence) from error
        if "not enough memory" in str(error):
            raise too_large(place, "the system gave no more") from error
        raise LessonError(f"{name} cannot be loaded ({str(error).splitlines()[0]}); give the folder or hub id of a causal "
                          "language model with its tokenizer.") from error
