"""Short tracebacks, without the frames of this package and asyncio."""

import asyncio
import os
import sysconfig
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType

from art_nb.rollouts.gathering import outermost

PACKAGE = os.path.dirname(os.path.dirname(__file__))
INSTALLED = (sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
LIBRARIES = ("<frozen ", *(os.path.join(folder, "") for folder in (PACKAGE, *INSTALLED)))


class ShortTraceback(AbstractContextManager):
    """A context manager that shortens the traceback of an exception that leaves its block, and those of its causes.

    Removes the frames of this package and asyncio, except the innermost frame of the traceback. An interrupt
    (KeyboardInterrupt, or the CancelledError that Jupyter turns it into) may occur anywhere: all libraries' frames are then
    removed. `error.full_traceback` keeps all frames: `traceback.print_tb(sys.last_value.full_traceback)`.

    Inside a gather call it does nothing: that call records the full traceback.
    """

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if outermost() is None:
            for each in _with_causes(error):
                each.__dict__.setdefault("full_traceback", each.__traceback__)  # an inner block may have set it
                kept, each.__traceback__ = _own_frames(each), None
                for entry in reversed(kept):
                    each.__traceback__ = TracebackType(each.__traceback__, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
            if isinstance(error, asyncio.CancelledError):
                error.add_note("The cell was interrupted, or its task was cancelled.")


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and not any(error is each for each in seen):
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


def _own_frames(error: BaseException) -> list[TracebackType]:
    frames, entry = [], error.__traceback__
    while entry is not None:
        frames.append(entry)
        entry = entry.tb_next
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return [each for each in frames if not each.tb_frame.f_code.co_filename.startswith(LIBRARIES)]
    packages = [each.tb_frame.f_globals.get("__name__", "").partition(".")[0] for each in frames[:-1]]
    own = [each for each, package in zip(frames, packages, strict=False) if package not in ("art_nb", "asyncio")]
    return own + frames[-1:]
