"""Which file a configuration is: a path, or the name of a ready one.

The ready files lie in the installed package, where nobody wants to look for them. So whatever
takes a file takes their bare names as well.
"""

from __future__ import annotations

import os
from pathlib import Path

from specswitch.config_lines import UnreadableError

_PACKAGE = Path(__file__).resolve().parent
_SUFFIX = ".yaml"


def ready_configs() -> dict[str, Path]:
    """Files that come with specswitch, by name; empty where they are not installed."""
    # A wheel has them in the package, a checkout beside `src`.
    for folder in (_PACKAGE / "configs", _PACKAGE.parents[1] / "configs"):
        if folder.is_dir():
            return {file.stem: file for file in sorted(folder.glob(f"*{_SUFFIX}"))}
    return {}


def locate(path: Path) -> Path:
    """The file that is meant: what exists at that path, else the ready file of that name.

    Raises:
        UnreadableError: neither, for a name without a folder; the message lists the ready files.
            A path with a folder comes back as it is, for the reader to say why it cannot be read.
    """
    # Not `path.exists`, which raises for a name that is too long.
    if os.path.exists(path) or len(path.parts) != 1:
        return path
    ready = ready_configs()
    if path.name in ready:
        return ready[path.name]
    names = ", ".join(ready) or "none: install specswitch again, with its configs"
    raise UnreadableError(
        f"cannot read it: No such file, and no ready configuration has this name ({names})"
    )
