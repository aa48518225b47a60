"""An installed engine: where it is, which release, and how its files stand to the patch."""

from __future__ import annotations

from enum import Enum
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from specswitch.patching.errors import PatchRefusal
from specswitch.patching.patch_set import PatchSet, TouchedFile, sha256

PACKAGE = "sglang"


class State(str, Enum):
    """How the touched files are, taken together."""

    RELEASED = "released"
    PATCHED = "patched"
    INTERRUPTED = "interrupted"
    """Each is as released or as patched, but not all alike."""

    def __str__(self) -> str:
        return self.value


class Installation:
    """The engine in one ``site-packages``.

    Args:
        site_packages: folder with the package ``sglang`` and its metadata; None: the one that this
            Python imports.

    Attributes:
        site_packages: that folder.
        release: version of the engine.

    Raises:
        PatchRefusal: there is none.
    """

    def __init__(self, site_packages: Path | None = None) -> None:
        self.site_packages = _imported_from() if site_packages is None else site_packages
        if not (self.site_packages / PACKAGE).is_dir():
            raise PatchRefusal(
                f"no SGLang in {self.site_packages}: --site-packages takes the folder that holds "
                f"the package {PACKAGE}"
            )
        found = distributions(name=PACKAGE, path=[str(self.site_packages)])
        versions = [distribution.version for distribution in found]
        if len(versions) != 1:
            raise PatchRefusal(
                f"{self.site_packages} has {len(versions)} sglang-*.dist-info where one says the "
                "version: install SGLang there with pip"
            )
        self.release = versions[0]

    def path(self, file: TouchedFile) -> Path:
        """Where a touched file lies."""
        return self.site_packages / file.path

    def content(self, file: TouchedFile) -> bytes | None:
        """What is in a touched file, None where it is not there.

        Raises:
            PatchRefusal: it cannot be read.
        """
        try:
            return self.path(file).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PatchRefusal(f"cannot read {self.path(file)}: {error.strerror}") from None

    def state(self, patches: PatchSet) -> State:
        """How the files stand to the patch.

        Raises:
            PatchRefusal: one is neither as released nor as patched.
        """
        patched, changed = [], []
        for file in patches.files:
            found = sha256(self.content(file))
            if found not in (file.before, file.after):
                raise PatchRefusal(self._dirty(file, found))
            patched.append(found == file.after)
            if file.before is not None:
                changed.append(found == file.after)
        if all(patched):
            return State.PATCHED
        # A file that the patch adds may be there alone: pip does not know of it, and leaves it
        # behind when it installs the engine again. Nothing imports it then.
        return State.INTERRUPTED if any(changed) else State.RELEASED

    def _dirty(self, file: TouchedFile, found: str | None) -> str:
        if file.before is None:
            return f"{self.path(file)} is neither SGLang's nor what the patch adds: remove it"
        how = (
            "is missing"
            if found is None
            else f"is not the one of SGLang {self.release}, nor that one patched"
        )
        return (
            f"{self.path(file)} {how}: install the engine again with "
            f"pip install --force-reinstall --no-deps sglang=={self.release}"
        )


def _imported_from() -> Path:
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise PatchRefusal(
            "SGLang is not installed for this Python: name the folder with --site-packages"
        )
    return Path(next(iter(found.submodule_search_locations))).parent
