"""Reading and writing files so that nothing is ever half-written and every failure is one sentence."""

import errno
import gzip
import hashlib
import json
import os
import zlib
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from lessonlib.errors import LessonError

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
CHECKPOINTS = ROOT / "checkpoints"


def shown(path):
    """`path` as a reader should see it: relative to the checkout when it lies inside it."""
    path = Path(path)
    try:
        return str(path.resolve().relative_to(ROOT))
    except ValueError:
        return str(path)


@contextmanager
def explained_write(path):
    """Turn what the operating system says while `path` is written into one sentence with the fix."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LessonError(f"The disk is full: {shown(path)} was not written; free some space and run the same command "
                              "again, what was finished before is kept.") from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise LessonError(f"{shown(path)} cannot be written (permission denied); choose a folder you may write to.") from error
        if isinstance(error, (FileExistsError, NotADirectoryError, IsADirectoryError)) or error.errno == errno.ENAMETOOLONG:
            raise LessonError(f"{shown(path)} cannot be written ({error.strerror.lower()}); name another place for it.") from error
        raise


def file_in_the_way(path):
    """What lies at `path`, or above it, where a folder would have to be, or None."""
    return next((place for place in (path, *path.parents) if os.path.exists(place) and not os.path.isdir(place)), None)


def check_writable(path):
    """Refuse (LessonError), before any work, a path that could not be written afterwards; makes the folder it is to lie in."""
    with explained_write(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=Path(path).parent):
            pass


@contextmanager
def atomic_path(path):
    """Give a temporary path beside `path` to write to (a file or a folder), renamed to `path` only if the block ends well."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with explained_write(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            replace(temporary, path)
        finally:
            remove(temporary)


def replace(temporary, path):
    """Rename `temporary` to `path`. A folder may take the place of a folder: that is moved aside, put back if the renaming fails, and deleted after it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        if temporary.is_dir() and path.is_dir():  # the operating system puts a file in the place of a file, but no folder in the place of one
            os.replace(path, aside)
        os.replace(temporary, path)
    finally:
        if os.path.lexists(aside):
            remove(aside) if os.path.lexists(path) else os.replace(aside, path)


def remove(path):
    """Delete a file or a folder, if it is there."""
    import shutil

    path = Path(path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sha256(path):
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(value):
    """A short stable hash of any JSON value, to recognise it later: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


def write_json(path, value):
    """Write `value` as indented JSON (gzip by name), atomically."""
    text = (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
    with atomic_path(path) as temporary:
        # no clock in the gzip header: the same value makes the same bytes
        temporary.write_bytes(gzip.compress(text, mtime=0) if str(path).endswith(".gz") else text)


def read_json(path):
    """Read a JSON file (gzip by name); a missing or broken one is a LessonError."""
    try:
        with open_text(path) as file:
            return json.load(file)
    except FileNotFoundError:
        raise LessonError(f"{shown(path)} is missing; check the path, or run the command that makes it.") from None
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise LessonError(f"{shown(path)} cannot be read as JSON ({error}); make it again.") from None


def open_text(path, mode="r"):
    """Open a text file, through gzip when its name ends in .gz."""
    return (gzip.open if str(path).endswith(".gz") else open)(path, mode + "t", encoding="utf-8")


def read_jsonl(path, field=None):
    """Yield the objects of a JSON Lines file (gzip by name), each sure to have `field`; a LessonError names the line at fault."""
    path = Path(path)
    if path.is_dir():
        raise LessonError(f"{shown(path)} is a folder; give the path of a file with one JSON object a line.")
    if not path.is_file():
        raise LessonError(f"{shown(path)} is missing; give the path of a file with one JSON object a line.")
    number, found = 0, False
    try:
        with open_text(path) as lines:
            for number, line in enumerate(lines, 1):
                if number == 1:
                    line = line.removeprefix("\ufeff")  # the byte order mark that some editors put before UTF-8
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):  # the latter for brackets nested by the thousand
                    raise LessonError(f"{shown(path)} line {number} is not JSON; each line must be one JSON object.") from None
                if not isinstance(row, dict):
                    raise LessonError(f"{shown(path)} line {number} is not a JSON object; each line must be one.")
                if field is not None and field not in row:
                    raise LessonError(f'{shown(path)} line {number} has no field "{field}" (it has: {", ".join(row) or "nothing"}); '
                                      "name the right field.")
                found = True
                yield row
    except UnicodeDecodeError:
        raise LessonError(f"{shown(path)} is not UTF-8 text; save it as UTF-8.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise LessonError(f"{shown(path)} cannot be read past line {number} ({error}); get a whole copy of it.") from None
    if not found:
        raise LessonError(f"{shown(path)} is empty; it must hold at least one line of JSON.")
