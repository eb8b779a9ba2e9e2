"""Atomic writes of folders, files and JSON lines: after a kill at any instant each holds its new or its old content.

A folder is written under a temporary name next to its target, flushed to disk with fsync and renamed. A killed writer can
leave two kinds of entries, which `recover` cleans up:

    .tmp-PID-RANDOM         incomplete, or about to be deleted: garbage once process PID is dead
    .old-PID-RANDOM-NAME    the previous content of NAME, moved aside for an instant while NAME is replaced

Writers of JSON lines to NAME lock `.NAME.lock`, and a process that has a model loaded locks `.lock` in its folder: empty
files that stay. Only one machine at a time may write to a folder. These guarantees hold for a killed process on every
system. Limits:

    macOS      After a power failure, data that fsync has handed to the drive may be missing: it was in the drive's cache.
    Windows    After a power failure a folder may have its previous content: folders cannot be fsynced. A file
               that another program (a virus scanner) has open cannot be renamed or deleted; retries last RETRY_S seconds.
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

from filelock import FileLock, Timeout

WINDOWS = os.name == "nt"
RETRY_S = 5.0
LOCK_S = 10.0  # to wait for a lock: a killed process may take some time to end

_LEFTOVER = re.compile(r"\.(?P<kind>tmp|old)-(?P<pid>\d+)-[0-9a-f]{8}(-(?P<name>.+))?")

# Temporary names that this process is using: in a container its PID may be that of a killed predecessor.
_in_use: set[str] = set()


def step_folder(directory: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint: `0007` for step 7."""
    return directory / f"{step:04d}"


def holds_model(folder: Path) -> bool:
    """Whether a folder holds a model or an adapter, as transformers and PEFT write them."""
    return any((folder / name).exists() for name in ("config.json", "adapter_config.json"))


def list_checkpoints(directory: Path) -> list[int]:
    """Return the steps that have a checkpoint, ascending; none when the directory does not exist. Changes nothing."""
    entries = directory.iterdir() if directory.exists() else ()
    return sorted(int(entry.name) for entry in entries if entry.name.isdecimal() and entry.is_dir())


def latest(directory: Path) -> int | None:
    """Return the last step that has a checkpoint."""
    return max(list_checkpoints(directory), default=None)


class DamagedCheckpoint(ValueError):
    """A file of a checkpoint is missing, truncated or altered."""


def set_aside(directory: Path, step: int) -> Path:
    """Rename the checkpoint of a step, so that it no longer counts as one. Returns its new folder."""
    aside = directory / f"damaged-{step:04d}-{secrets.token_hex(4)}"
    _retry_while_open(os.rename, step_folder(directory, step), aside)
    return aside


def lock_folder(folder: Path) -> FileLock:
    """Lock a folder for this process, which may lock it repeatedly, until the returned lock is released or the process ends.

    Raises: RuntimeError when another process still holds the lock after LOCK_S seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", is_singleton=True, thread_local=False)
    try:
        lock.acquire(timeout=LOCK_S)
    except Timeout as error:
        raise RuntimeError(f"another process is using {folder}: end it (a notebook kernel?), or use another path") from error
    return lock


def prune(directory: Path, keep: set[int]) -> None:
    """Delete the checkpoints of all steps not in `keep`; each disappears at once for every reader."""
    finish_replacements(directory)  # else a deleted checkpoint could come back from its `.old` folder
    for step in {*list_checkpoints(directory)} - keep:
        _delete(step_folder(directory, step))


def recover(directory: Path) -> None:
    """Clean up after killed writers, before a run's first read. Safe while other processes of this container write."""
    import psutil  # os.kill(pid, 0) would end the process on Windows

    finish_replacements(directory)
    for path, match in _leftovers(directory, "tmp"):
        pid = int(match["pid"])
        if not (path.name in _in_use if pid == os.getpid() else psutil.pid_exists(pid)):
            _delete(path)


def write_folder(path: str | Path, fill: Callable[[Path], None]) -> None:
    """Create or replace the folder `path`; `fill(folder)` writes its content into an empty folder.

    Afterwards `path` holds all of the new or all of the previous content. Re-raises an exception of `fill` and cleans up.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(path.parent) as new:
        new.mkdir()
        fill(new)
        for root, _, files in os.walk(new, topdown=False):
            for name in (*files, "."):
                _sync(Path(root, name))
        _replace_folder(new, path)


def write_file(path: str | Path, data: bytes, private: bool = False) -> None:
    """Create or replace the file `path`; it holds `data` or its previous content, never a part.

    private: only this user can read the file at any time, and enter its folder if that is new.
    """
    path = Path(path)
    path.parent.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    with _temporary(path.parent) as new:
        with open(new, "xb", opener=lambda name, flags: os.open(name, flags, 0o600 if private else 0o666)) as file:
            file.write(data)
        _sync(new)
        _retry_while_open(os.replace, new, path)
        _sync(path.parent)


def append_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Append one line of JSON per row and flush them to the disk. Several processes may append to one file.

    Adds no row if the write fails (disk full); a kill may leave the first few. First cuts off an incomplete last line.

    Raises: ValueError for a row that JSON cannot hold (NaN, infinity, objects); nothing is written.
    """
    data = b"".join(_line(path, number, row) for number, row in enumerate(rows))
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with FileLock(path.with_name(f".{path.name}.lock")), FileIO(path, "a+") as file:
        end = _end_of_last_complete_line(file)
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
    """Return the rows of a file of JSON lines; none when it does not exist. An incomplete last line is ignored.

    Raises: ValueError naming file and line when a complete line is not JSON: `append_jsonl` did not write it.
    """
    if not path.exists():
        return []
    rows = []
    *lines, _incomplete = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            message = f"{path}, line {number}, is not JSON ({error}): {line[:80]!r}. Restore or delete it."
            raise ValueError(message) from error
    return rows


@contextlib.contextmanager
def _temporary(directory: Path):
    """Yield a free path in `directory`, hence on the target's disk; on exit, delete what is there."""
    path = directory / f".tmp-{os.getpid()}-{secrets.token_hex(4)}"
    _in_use.add(path.name)
    try:
        yield path
    finally:
        try:
            if path.is_dir():
                _retry_while_open(shutil.rmtree, path)
            else:
                _retry_while_open(path.unlink, missing_ok=True)
        finally:
            _in_use.discard(path.name)


def _replace_folder(new: Path, path: Path) -> None:
    """Rename `new` to `path`. A folder that is not empty cannot be replaced by one rename: it is moved aside first.

    Between the two renames `path` is missing, and `recover` may move the old folder back, after a kill or while this
    process runs: hence the loop, which makes a lock unnecessary.
    """
    try:
        while not _rename(new, path, unless={errno.ENOTEMPTY, errno.EEXIST}):
            aside = path.parent / f".old-{os.getpid()}-{secrets.token_hex(4)}-{path.name}"
            _rename(path, aside, unless={errno.ENOENT})
        _sync(path.parent)
    finally:
        finish_replacements(path.parent)


def finish_replacements(directory: Path) -> None:
    """Move each `.old` folder back to its name, or delete it when the new folder has that name already."""
    for old, match in _leftovers(directory, "old"):
        if (path := directory / match["name"]).exists():
            _delete(old)
        else:
            _rename(old, path, unless={errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST})


def _delete(path: Path) -> None:
    """Delete a folder or file at once for every reader: rename it first."""
    with _temporary(path.parent) as garbage:
        _rename(path, garbage, unless={errno.ENOENT})  # deleted by another process


def _rename(source: Path, target: Path, unless: set[int]) -> bool:
    """Rename; return False if that fails with an error number in `unless`."""
    try:
        _retry_while_open(os.rename, source, target)
    except OSError as error:
        if error.errno in unless:
            return False
        raise
    return True


def _retry_while_open(operation: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Call `operation`; on Windows retry while another program has one of the files open."""
    deadline = time.monotonic() + RETRY_S
    while True:
        try:
            operation(*arguments, **options)
            return
        except PermissionError as error:
            if not WINDOWS:
                raise
            if time.monotonic() > deadline:
                error.add_note("Another program has it open: another notebook on this model, or a virus scanner?")
                raise
            time.sleep(0.02)


def _leftovers(directory: Path, kind: str) -> list[tuple[Path, re.Match]]:
    """Return the leftover entries of a kind ("tmp" or "old"), each with the match of its name."""
    names = sorted(os.listdir(directory)) if directory.exists() else []
    return [(directory / match[0], match) for match in map(_LEFTOVER.fullmatch, names) if match and match["kind"] == kind]


def _line(path: Path, number: int, row: dict[str, Any]) -> bytes:
    try:
        return json.dumps(row, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        allowed = "finite numbers, strings, None, lists and dicts"
        message = f"row {number} for {path.name} cannot be written as JSON ({error}); a row may hold {allowed}: {row!r:.300}"
        raise ValueError(message) from error


def _end_of_last_complete_line(file: FileIO) -> int:
    """Return the length of the file up to and including its last newline."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = file.seek(max(0, end - 65536))
        if (newline := file.read(end - start).rfind(b"\n")) >= 0:
            return start + newline + 1
        end = start
    return 0


def _sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk. Windows cannot open folders and syncs only writable files."""
    if WINDOWS and path.is_dir():
        return
    fd = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
