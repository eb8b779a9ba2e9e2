"""Atomic writes of folders and files, and appends to JSON Lines files, that a kill at any instant does not corrupt.

A folder or file is written under a temporary name next to its target, flushed to disk with fsync and renamed: it has either
its new or its previous content. A killed writer can leave two kinds of entries, which `recover` cleans up:

    .tmp-PID-RANDOM         incomplete, or about to be deleted: garbage once process PID is dead
    .old-PID-RANDOM-NAME    the previous content of NAME, moved aside for an instant while NAME is replaced

Appends to NAME lock `.NAME.lock`, and `lock_folder` locks `.lock` in the folder; these empty files may remain. Only one
machine at a time may write to a folder. After a kill these guarantees hold on every system. Other limits:

    macOS      A power failure may lose data that fsync has written, because fsync does not flush the drive's own cache.
    Windows    A power failure may restore a folder's previous content, because folders cannot be fsynced. A file that
               another program (a virus scanner) has open cannot be renamed or deleted; both are retried for RETRY_S seconds.
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
LOCK_S = 10.0  # seconds to wait for a lock: a killed process may take some time to end

_LEFTOVER = re.compile(r"\.(?P<kind>tmp|old)-(?P<pid>\d+)-[0-9a-f]{8}(-(?P<name>.+))?")

# Temporary names that this process is using. In a container, a killed predecessor may have had the same PID.
_in_use: set[str] = set()


def step_folder(directory: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint: `0007` for step 7."""
    return directory / f"{step:04d}"


def holds_model(folder: Path) -> bool:
    """Return whether a folder contains a model saved by transformers, or an adapter saved by PEFT."""
    return any((folder / name).exists() for name in ("config.json", "adapter_config.json"))


def list_checkpoints(directory: Path) -> list[int]:
    """Return the steps that have a checkpoint, ascending; [] when the directory does not exist. Changes nothing."""
    entries = directory.iterdir() if directory.exists() else ()
    return sorted(int(entry.name) for entry in entries if entry.name.isdecimal() and entry.is_dir())


def latest(directory: Path) -> int | None:
    """Return the last step that has a checkpoint; None when there is none."""
    return max(list_checkpoints(directory), default=None)


class DamagedCheckpoint(ValueError):
    """A file of a checkpoint is missing, truncated or altered."""


def set_aside(directory: Path, step: int) -> Path:
    """Rename the checkpoint of a step, so that `list_checkpoints` omits it. Returns its new folder."""
    aside = directory / f"damaged-{step:04d}-{secrets.token_hex(4)}"
    _retry_while_open(os.rename, step_folder(directory, step), aside)
    return aside


def lock_folder(folder: Path) -> FileLock:
    """Lock a folder for this process, until the lock has been released as often as it was acquired, or the process ends.

    Keep the returned lock: garbage collection releases it. Raises: RuntimeError when another process holds it for LOCK_S.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", is_singleton=True, thread_local=False)
    try:
        lock.acquire(timeout=LOCK_S)
    except Timeout as error:
        raise RuntimeError(f"another process is using {folder}: end it (a notebook kernel?), or use another path") from error
    return lock


def prune(directory: Path, keep: set[int]) -> None:
    """Delete the checkpoints of all steps not in `keep`, each atomically for readers."""
    finish_replacements(directory)  # else a deleted checkpoint could come back from its `.old` folder
    for step in {*list_checkpoints(directory)} - keep:
        _delete(step_folder(directory, step))


def recover(directory: Path) -> None:
    """Clean up after killed writers; call it before a run's first read. Other processes of this container may be writing."""
    import psutil  # os.kill(pid, 0) would end the process on Windows

    finish_replacements(directory)
    for path, match in _leftovers(directory, "tmp"):
        pid = int(match["pid"])
        if not (path.name in _in_use if pid == os.getpid() else psutil.pid_exists(pid)):
            _delete(path)


def write_folder(path: str | Path, fill: Callable[[Path], None]) -> None:
    """Create or replace the folder `path`; `fill(folder)` writes its content into an empty folder.

    If `fill` raises, the previous content stays. After a kill and `recover`, `path` has all of its new or previous content.
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
    """Create or replace the file `path` atomically: it contains all of `data`, or its previous content.

    private: on POSIX systems, only this user can ever read the file, and enter its folder if this call creates it.
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
    """Append one line of JSON per row and flush them to disk. Several processes may append to one file.

    Removes an incomplete last line first. If the write fails (disk full), no row is added; a kill may leave the first few.

    Raises: ValueError for a row that JSON cannot represent (NaN, infinity, objects); nothing is written.
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
    """Return the rows of a JSON Lines file; [] when it does not exist. Ignores an incomplete last line.

    Raises: ValueError when a complete line is not JSON, which `append_jsonl` never writes; names the file and the line.
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
    """Yield an unused path in `directory`, which is on the target's file system; on exit, delete it if it exists."""
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
    """Rename `new` to `path`. One rename cannot replace a folder that is not empty, so that is moved aside first.

    Between the two renames `path` is missing, and another process's `recover` may move the old folder back. The loop then
    tries again, so that no lock is needed.
    """
    try:
        while not _rename(new, path, unless={errno.ENOTEMPTY, errno.EEXIST}):
            aside = path.parent / f".old-{os.getpid()}-{secrets.token_hex(4)}-{path.name}"
            _rename(path, aside, unless={errno.ENOENT})
        _sync(path.parent)
    finally:
        finish_replacements(path.parent)


def finish_replacements(directory: Path) -> None:
    """Move each `.old` folder back to its name, or delete it when the new folder already has that name."""
    for old, match in _leftovers(directory, "old"):
        if (path := directory / match["name"]).exists():
            _delete(old)
        else:
            _rename(old, path, unless={errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST})


def _delete(path: Path) -> None:
    """Delete a folder or file atomically for readers, by renaming it first."""
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
    """Flush a file, or a folder's entries, to disk. Windows cannot open folders, and syncs only files opened for writing."""
    if WINDOWS and path.is_dir():
        return
    fd = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
