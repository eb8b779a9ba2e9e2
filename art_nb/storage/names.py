"""Names of models and projects, which must be valid folder names on Linux, macOS and Windows."""

import re

NAME = re.compile(r"\w([\w .+=-]*[\w+=-])?")
DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]) *(\..*)?", re.IGNORECASE)  # with any extension


def folder_name(argument: str, name: str) -> str:
    """Return `name` if it can name a folder on Linux, macOS and Windows. Raises: ValueError, which names `argument`."""
    if not NAME.fullmatch(name) or DEVICE.fullmatch(name) or len(name.encode(errors="replace")) > 200:
        raise ValueError(
            f"{argument} is {name!r:.220}: it names a folder, so use letters, digits, spaces and _ - . + =, a letter, digit "
            "or _ first, no dot or space at the end, at most 200 bytes, and no Windows device name such as CON or NUL"
        )
    return name
