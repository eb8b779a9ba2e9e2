"""Files that are whole or not there: checkpoint folders and JSON lines that survive a kill at any instant.

It knows nothing of what is stored. A folder is filled under a temporary name beside its target, brought to
the disk and only then renamed. Two kinds of leftovers tell how far a killed writer came:

    .tmp-PID-RANDOM         unfinished, or on its way out: rubbish as soon as process PID is dead
    .old-PID-RANDOM-NAME    what NAME held before, moved aside for one instant while it is replaced

Writers of the JSON lines NAME lock `.NAME.lock`, an empty file that stays. One machine at a time may write to a
folder. A kill breaks no promise on any system. What else a system cannot promise:

    macOS      What fsync has brought to the drive may still be in the drive's cache when the power fails.
    Windows    A folder cannot be brought to the disk, so after a power cut a name may hold what it held before.
               What somebody has open (a reader, a virus scanner) cannot be renamed, replaced or deleted: this is tried
               for PATIENCE seconds, then PermissionError is raised and everything is as it was.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path
from typing import Any

from filelock import FileLock

WINDOWS = os.name == "nt"
PATIENCE = 5.0  # seconds

_LEFTOVER = re.compile(r"\.(?P<kind>tmp|old)-(?P<pid>\d+)-[0-9a-f]{8}(-(?P<name>.+))?")

# Temporary names in use by this very process: in a container it may have the PID of its killed predecessor.
_in_use: set[str] = set()


def step_folder(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step lies: `0007` for step 7."""
    return Path(directory) / f"{step:04d}"


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Create or replace the folder `path` by what `fill(folder)` writes into an empty folder.

    Whatever happens, `path` afterwards holds all of the new content or what it held before. An exception of
    `fill` (disk full, KeyboardInterrupt) is passed on and leaves nothing behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(path.parent) as new:
        new.mkdir()
        fill(new)
        _sync_tree(new)
        _put_in_place(new, path)


def write_file(path: Path, data: bytes) -> None:
    """Create or replace the file `path`; it holds `data` or what it held before, never a part."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(path.parent) as new:
        new.write_bytes(data)
        _sync(new)
        _patiently(os.replace, new, path)
        _sync(path.parent)


def append_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Append one line of JSON per row; on return the lines are on the disk.

    A line is there whole or not at all. When the write fails (disk full), no row is added; when the process
    is killed, the first few may be. What a killed writer left of its last line is cut off first. Several
    processes may append to one file. Raises: ValueError for a row that JSON cannot hold (NaN, infinity,
    objects), naming it; nothing is written.
    """
    path = Path(path)
    data = b"".join(_line(path, number, row) for number, row in enumerate(rows))
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with FileLock(path.with_name(f".{path.name}.lock")), FileIO(path, "a+") as file:
        end = _end_of_last_whole_line(file)
        file.truncate(end)
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, f"{len(data)} bytes do not fit on the disk", str(path))
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(end)
            raise
    if is_new:
        _sync(path.parent)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines; none when it does not exist. A torn last line does not count.

    Raises: ValueError naming file and line when a line before the end is not JSON: then something else than
    `append_jsonl` has changed the file.
    """
    path = Path(path)
    if not path.exists():
        return []
    *lines, _torn_or_empty = path.read_bytes().split(b"\n")
    return [_row(path, number, line) for number, line in enumerate(lines, start=1)]


def list_checkpoints(directory: Path) -> list[int]:
    """The steps that have a checkpoint, ascending; none when the directory does not exist."""
    directory = Path(directory)
    _settle(directory)
    return sorted(_checkpoints(directory))


def latest(directory: Path) -> int | None:
    """The last step that has a checkpoint."""
    return max(list_checkpoints(directory), default=None)


def prune(directory: Path, keep: set[int]) -> None:
    """Delete the checkpoints of all steps that are not in `keep`, each at once for every reader."""
    directory = Path(directory)
    _settle(directory)
    for step, folder in _checkpoints(directory).items():
        if step not in keep:
            _discard(folder)


def sweep(directory: Path) -> None:
    """Repair and remove what killed writers left in a directory; what living ones are writing stays.

    Call it when a run starts. Safe at any time, from several processes at once.
    """
    directory = Path(directory)
    _settle(directory)
    for path, leftover in _leftovers(directory, "tmp"):
        if not _is_being_written(path.name, int(leftover["pid"])):
            _discard(path)


@contextlib.contextmanager
def _temporary(directory: Path):
    """A free temporary path in `directory`, so on the disk of the target. What is left there is removed."""
    path = directory / f".tmp-{_owner()}"
    _in_use.add(path.name)
    try:
        yield path
    finally:
        try:
            _remove(path)
        finally:
            _in_use.discard(path.name)


def _owner() -> str:
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def _remove(path: Path) -> None:
    if path.is_dir():
        _patiently(shutil.rmtree, path)
    else:
        _patiently(path.unlink, missing_ok=True)


def _put_in_place(new: Path, path: Path) -> None:
    """Rename `new` to `path`. A full folder cannot be replaced in one step: it moves aside first.

    Between the two renames `path` is missing. Whoever looks then (`_settle`, also in another process) moves
    the old folder back, hence the loop; after a kill the next reader does so.
    """
    try:
        while not _rename(new, path, unless={errno.ENOTEMPTY, errno.EEXIST}):
            _rename(path, path.parent / f".old-{_owner()}-{path.name}", unless={errno.ENOENT})
        _sync(path.parent)
    finally:
        _settle(path.parent)


def _settle(directory: Path) -> None:
    """Finish interrupted replacements: the old folder moves back, or goes if the new one is in its place.

    Needs no lock: a writer whose old folder was moved back moves it aside again.
    """
    for old, leftover in _leftovers(directory, "old"):
        path = directory / leftover["name"]
        if path.exists():
            _discard(old)
        else:
            _rename(old, path, unless={errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST})


def _discard(path: Path) -> None:
    """Remove a folder or file at once for every reader: rename first, then delete."""
    with _temporary(path.parent) as rubbish:
        _rename(path, rubbish, unless={errno.ENOENT})  # gone: another process was faster


def _rename(source: Path, target: Path, unless: set[int]) -> bool:
    """Whether the rename was done; it is not when it fails with one of the error numbers in `unless`."""
    try:
        _patiently(os.rename, source, target)
    except OSError as error:
        if error.errno in unless:
            return False
        raise
    return True


def _patiently(act: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """`act(...)`; on Windows again and again while somebody has one of the files open."""
    start = time.monotonic()
    while True:
        try:
            act(*arguments, **options)
            return
        except PermissionError as error:
            if not WINDOWS:
                raise
            if time.monotonic() - start > PATIENCE:
                error.add_note("Another program has it open: another notebook on this model, or a virus scanner?")
                raise
            time.sleep(0.02)


def _is_being_written(name: str, pid: int) -> bool:
    """Whether the process that made a temporary path is alive and at it."""
    import psutil  # os.kill(pid, 0), which only asks elsewhere, ends the process on Windows

    return name in _in_use if pid == os.getpid() else psutil.pid_exists(pid)


def _leftovers(directory: Path, kind: str) -> list[tuple[Path, re.Match]]:
    """The entries of a directory that are leftovers of a kind ("tmp", "old"), with the parts of their
    names."""
    names = sorted(os.listdir(directory)) if directory.exists() else []
    matches = [match for match in map(_LEFTOVER.fullmatch, names) if match and match["kind"] == kind]
    return [(directory / match[0], match) for match in matches]


def _checkpoints(directory: Path) -> dict[int, Path]:
    if not directory.exists():
        return {}
    folders = [entry for entry in directory.iterdir() if entry.name.isdecimal() and entry.is_dir()]
    return {int(folder.name): folder for folder in folders}


def _line(path: Path, number: int, row: dict[str, Any]) -> bytes:
    try:
        return json.dumps(row, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"row {number} for {path.name} cannot be written as JSON ({error}); a row may hold finite "
            f"numbers, strings, None, lists and dicts: {repr(row)[:300]}"
        ) from error


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(
            f"{path}, line {number}, is not JSON ({error}): {line[:80]!r}. Restore it or delete the line."
        ) from error


def _end_of_last_whole_line(file: FileIO) -> int:
    """The length of the file up to and including its last newline."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = file.seek(max(0, end - 65536))
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _sync_tree(folder: Path) -> None:
    """Bring a folder to the disk, the deepest entries first."""
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            _sync(Path(root) / name)
        _sync(Path(root))


def _sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk. Windows opens no folder, and syncs only what may be written."""
    if WINDOWS and path.is_dir():
        return
    fd = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
