"""The patches for one release of the engine, and what they make of its files.

``manifest.json`` beside the patches states the SHA-256 of each file before and after. Patches are
applied to texts in memory, so a result is known to be right before anything is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import whatthepatch

from specswitch.patching.errors import PatchRefusal

MANIFEST = "manifest.json"
_PACKAGE = Path(__file__).resolve().parents[1]
# In the engine's repository the package lies in this folder, in an installation beside others.
_PREFIX = "python/"


@dataclass(frozen=True)
class TouchedFile:
    """One file that the patches change or add.

    Attributes:
        path: relative to site-packages, with slashes.
        before: SHA-256 as released; None for a file that is added.
        after: SHA-256 with all patches.
    """

    path: str
    before: str | None
    after: str


@dataclass(frozen=True)
class PatchSet:
    """All patches for one release, in the order in which they are applied.

    Attributes:
        release: version of SGLang.
        patches: files in the format of ``git format-patch``.
        files: what they touch.
    """

    release: str
    patches: tuple[Path, ...]
    files: tuple[TouchedFile, ...]

    @classmethod
    def load(cls, folder: Path) -> PatchSet:
        """Read patches and manifest of a folder named ``sglang-VERSION``."""
        listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = tuple(TouchedFile(path, **hashes) for path, hashes in listed.items())
        return cls(folder.name.removeprefix("sglang-"), _patches_in(folder), files)

    def apply(self, released: Mapping[str, bytes]) -> dict[str, bytes]:
        """The touched files with all patches.

        Args:
            released: content of each touched file that exists, by path.

        Raises:
            PatchRefusal: the result is not what the manifest says; the patches were changed.
        """
        changed = apply_all(self.patches, released)
        for file in self.files:
            if sha256(changed.get(file.path)) != file.after:
                raise PatchRefusal(
                    f"the patches do not give {file.path} as the manifest has it: "
                    "install specswitch again"
                )
        return changed

    def text(self) -> str:
        """All patches one after the other, as ``git am`` takes them."""
        return "".join(patch.read_text(encoding="utf-8") for patch in self.patches)


def available() -> dict[str, Path]:
    """Folders with patches, by release."""
    # A wheel has them in the package, a checkout beside `src`.
    for folder in (_PACKAGE / "patches", _PACKAGE.parents[1] / "patches"):
        if folder.is_dir():
            found = sorted(folder.glob(f"sglang-*/{MANIFEST}"))
            return {file.parent.name.removeprefix("sglang-"): file.parent for file in found}
    return {}


def for_release(version: str) -> PatchSet:
    """The patches for an installed engine.

    Raises:
        PatchRefusal: there are none for this release.
    """
    folders = available()
    if version not in folders:
        known = ", ".join(folders) or "none: install specswitch again, with its patches"
        raise PatchRefusal(f"there is no patch for SGLang {version}: install one of {known}")
    return PatchSet.load(folders[version])


def write_manifest(folder: Path, site_packages: Path) -> None:
    """For maintainers: state the hashes that a folder's patches give on a released engine."""
    patches = _patches_in(folder)
    paths = {path for patch in patches for path, _ in _diffs(patch)}
    released = {
        path: file.read_bytes()
        for path in sorted(paths)
        if (file := site_packages / PurePosixPath(path)).is_file()
    }
    changed = apply_all(patches, released)
    listed = {
        path: {"before": sha256(released.get(path)), "after": sha256(changed[path])}
        for path in sorted(paths)
    }
    (folder / MANIFEST).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


def apply_all(patches: tuple[Path, ...], released: Mapping[str, bytes]) -> dict[str, bytes]:
    """Apply patches in order; no line may be elsewhere than they say.

    Raises:
        PatchRefusal: a patch does not fit.
    """
    # Split at newlines only: what else Python takes for the end of a line may be in a string.
    lines = {path: content.decode("utf-8").split("\n") for path, content in released.items()}
    for patch in patches:
        for path, diff in _diffs(patch):
            try:
                lines[path] = whatthepatch.apply_diff(diff, lines.get(path, [""]))
            except whatthepatch.exceptions.HunkApplyException as error:
                raise PatchRefusal(f"{patch.name} does not fit {path}: {error}") from None
    return {path: "\n".join(text).encode("utf-8") for path, text in lines.items()}


def sha256(content: bytes | None) -> str | None:
    """Hexadecimal SHA-256; None for a file that is not there."""
    return None if content is None else hashlib.sha256(content).hexdigest()


def _patches_in(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(folder.glob("*.patch")))


def _diffs(patch: Path) -> Iterator[tuple[str, whatthepatch.patch.diffobj]]:
    for diff in whatthepatch.parse_patch(patch.read_text(encoding="utf-8")):
        if diff.header is not None and diff.changes:
            yield diff.header.new_path.removeprefix("b/").removeprefix(_PREFIX), diff
