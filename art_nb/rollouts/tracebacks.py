"""What a learner sees of an error: the frames of their own code and the message, not the machinery in between."""

import asyncio
import os
import sysconfig
from collections.abc import Iterator
from types import TracebackType

from art_nb.rollouts.gathering import outermost

PACKAGE = os.path.dirname(os.path.dirname(__file__))
INSTALLED = (sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
LIBRARIES = ("<frozen ", *(os.path.join(folder, "") for folder in (PACKAGE, *INSTALLED)))


class ShortTraceback:
    """Around what the learner calls: an error leaves this block with a short traceback, its causes as well.

    An error loses the frames of this package and of asyncio that it only passed through. An interrupt (KeyboardInterrupt,
    or the CancelledError that Jupyter makes of it) loses those of every library: where it struck is chance.
    `error.full_traceback` keeps them all: `traceback.print_tb(sys.last_value.full_traceback)`.

    Does nothing inside a rollout, where the outer gathering still counts and keeps what went wrong.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if outermost() is None:
            for each in _with_causes(error):
                each.__dict__["full_traceback"] = each.__traceback__
                each.__traceback__ = _joined(_own_frames(each))
            if isinstance(error, asyncio.CancelledError):
                error.add_note("The cell was interrupted, or its task cancelled: what still ran was stopped.")


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and not any(error is each for each in seen):
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


def _own_frames(error: BaseException) -> list[TracebackType]:
    frames = list(_frames(error.__traceback__))
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return [each for each in frames if not each.tb_frame.f_code.co_filename.startswith(LIBRARIES)]
    return [each for each in frames[:-1] if _package(each) not in ("art_nb", "asyncio")] + frames[-1:]


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _package(traceback: TracebackType) -> str:
    return traceback.tb_frame.f_globals.get("__name__", "").partition(".")[0]


def _joined(frames: list[TracebackType]) -> TracebackType | None:
    joined = None
    for each in reversed(frames):
        joined = TracebackType(joined, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return joined
