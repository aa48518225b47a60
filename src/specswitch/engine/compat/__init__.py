"""Which SGLang release is installed, and the one module that knows its names.

Each supported release has a module in this package. A module states the engine's dotted paths that
specswitch hooks (``Targets``) and offers the few classes and read-outs whose names or shapes differ
between releases. Nothing outside this package spells them. ``CONTRIBUTING.md`` says how to add one.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from specswitch.engine.errors import StartupRefusal

SUPPORTED: dict[str, str] = {"0.5.12.post1": "v0_5_12_post1"}

#: Set to 1 to run on a release that is not in SUPPORTED, with the module of the newest one.
ALLOW_UNTESTED = "SPECSWITCH_ALLOW_UNTESTED_ENGINE"

# Equal in every release with plug-ins (0.5.11 on), so that even an unsupported engine knows the
# flags and can say why it refuses them.
ADD_CLI_ARGS = "sglang.srt.server_args.ServerArgs.add_cli_args"
FROM_CLI_ARGS = "sglang.srt.server_args.ServerArgs.from_cli_args"
SERVER_ARGS_INIT = "sglang.srt.server_args.ServerArgs.__init__"


def installed_version() -> str | None:
    """Version of the installed SGLang distribution, None when there is none."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def is_supported() -> bool:
    """Whether ``release()`` would return a module for the installed engine."""
    return installed_version() in SUPPORTED or os.environ.get(ALLOW_UNTESTED) == "1"


# The native patch (``patches/``) names its entry-point group here. Not the module that it adds: pip
# does not know of that one, and would leave it behind when it installs another release.
_GROUPS, _GROUP = "srt/plugins/__init__.py", "SPECULATIVE_WORKERS_GROUP = "


@cache
def is_patched() -> bool:
    """Whether the engine has the points that specswitch needs natively, so that it hooks nothing.

    Imports nothing: where this is first asked, the engine is still being imported.
    """
    found = find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        return False
    groups = Path(next(iter(found.submodule_search_locations)), _GROUPS)
    return groups.is_file() and _GROUP in groups.read_text(encoding="utf-8")


@cache
def release() -> ModuleType:
    """The compat module for the installed engine.

    Raises:
        StartupRefusal: the installed release is not supported and
            ``SPECSWITCH_ALLOW_UNTESTED_ENGINE``
            is not set.
    """
    found = installed_version()
    if not is_supported():
        names = ", ".join(SUPPORTED)
        raise StartupRefusal(
            f"SGLang {found} is not a tested release: install one of {names}, "
            f"or set {ALLOW_UNTESTED}=1 to try it as it is"
        )
    module = SUPPORTED.get(found or "", next(reversed(SUPPORTED.values())))
    return importlib.import_module(f"{__name__}.{module}")
