"""Names that become folders, on every system: of models and of projects."""

import re

NAME = re.compile(r"\w([\w .+=-]*[\w+=-])?")
DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]) *(\..*)?", re.IGNORECASE)  # with any ending


def folder_name(what: str, given: str) -> str:
    """The name as it is given.

    what: whose it is, for the error. Raises: ValueError with what was given and what is allowed.
    """
    if not NAME.fullmatch(given) or DEVICE.fullmatch(given) or len(given.encode(errors="replace")) > 200:
        raise ValueError(
            f"{what} is {given!r:.220}: it names a folder, so use letters, digits, spaces and _ - . + =, a letter, digit "
            "or _ first, no dot or space at the end, at most 200 bytes, and no name of a Windows device as CON or NUL"
        )
    return given
