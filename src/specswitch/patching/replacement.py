"""Replaces several files so that all are new, or all are as they were.

A file is written beside its final place and moved there in one step, so it is never half written.
Between the first move and the last the set is mixed. Before the first one, the originals and a
record of what each file was and becomes are on the disk: with them whoever comes next puts the
originals back, even after a power cut, and even another release of specswitch. They are kept for as
long as the engine is patched.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from specswitch.patching.errors import PatchRefusal
from specswitch.patching.patch_set import TouchedFile, sha256

#: In the engine's package, so that moves stay on one file system.
FOLDER = "sglang/.native-patch"
_RECORD, _ORIGINALS, _NEW = "record.json", "originals", "new"


class Replacement:
    """The replaced files of one installation.

    Args:
        site_packages: folder that the paths of files are relative to.
    """

    def __init__(self, site_packages: Path) -> None:
        self._root = site_packages
        self._folder = site_packages / FOLDER

    def record(self) -> tuple[TouchedFile, ...]:
        """What is, or is being, replaced; empty where nothing is.

        Raises:
            PatchRefusal: the record is damaged.
        """
        try:
            text = (self._folder / _RECORD).read_text(encoding="utf-8")
            return tuple(TouchedFile(path, **hashes) for path, hashes in json.loads(text).items())
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError, AttributeError):
            raise PatchRefusal(
                f"cannot make sense of {self._folder / _RECORD}: install SGLang again"
            ) from None

    def current(self) -> tuple[TouchedFile, ...]:
        """The record, empty where no file is what it says any more: the engine was installed
        again since.

        Raises:
            PatchRefusal: as ``record``, or a file cannot be read.
        """
        recorded = self.record()
        with self._or_refused():
            held = any(self._hash(file) == file.after for file in recorded if file.before)
        return recorded if held else ()

    def do(self, files: tuple[TouchedFile, ...], new: Mapping[str, bytes]) -> None:
        """Put the new content in place of files that are as they were released.

        Raises:
            PatchRefusal: it cannot be done; all files are as they were.
        """
        try:
            with self._or_refused():
                self._prepare(files, new)
                for file in files:
                    os.replace(self._folder / _NEW / file.path, self._root / file.path)
                shutil.rmtree(self._folder / _NEW)
        except PatchRefusal:
            self.undo()
            raise

    def _prepare(self, files: tuple[TouchedFile, ...], new: Mapping[str, bytes]) -> None:
        """Write originals, new files and, when all of them are on the disk, the record."""
        # Left over: the engine was installed again since, or the last attempt ended before it
        # changed anything.
        shutil.rmtree(self._folder, ignore_errors=True)
        for file in files:
            place = self._root / file.path
            if file.before is not None:
                _write(self._folder / _ORIGINALS / file.path, place)
            _write(self._folder / _NEW / file.path, new[file.path], mode_of=place)
        listed = {file.path: {"before": file.before, "after": file.after} for file in files}
        _write(self._folder / _NEW / _RECORD, json.dumps(listed, indent=2).encode())
        os.replace(self._folder / _NEW / _RECORD, self._folder / _RECORD)
        _sync(self._folder)

    def undo(self) -> None:
        """Put the originals of all recorded files back.

        Raises:
            PatchRefusal: a file is neither original nor new, or an original is damaged; nothing was
                changed. Or files cannot be written; then it can be tried again.
        """
        files = self.record()
        with self._or_refused():
            for file in files:
                self._check(file)
            for file in files:
                place = self._root / file.path
                if file.before is None:
                    place.unlink(missing_ok=True)
                else:
                    # A copy: the original stays until all are back.
                    copy = self._folder / _NEW / file.path
                    _write(copy, self._folder / _ORIGINALS / file.path)
                    os.replace(copy, place)
            # First, so that a folder without it is one that says nothing.
            (self._folder / _RECORD).unlink(missing_ok=True)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _check(self, file: TouchedFile) -> None:
        place, original = self._root / file.path, self._folder / _ORIGINALS / file.path
        if self._hash(file) not in (file.before, file.after):
            raise PatchRefusal(
                f"{place} was changed after the patch: undo that, or install SGLang again"
            )
        if file.before is not None and (
            not original.exists() or sha256(original.read_bytes()) != file.before
        ):
            raise PatchRefusal(f"{original} is not what it was: install SGLang again")

    def _hash(self, file: TouchedFile) -> str | None:
        place = self._root / file.path
        return sha256(place.read_bytes()) if place.exists() else None

    @contextmanager
    def _or_refused(self) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise PatchRefusal(
                f"no permission to write {error.filename or self._root}: run this as the owner of "
                "that environment"
            ) from None
        except OSError as error:
            raise PatchRefusal(
                f"cannot write {error.filename or self._root}: {error.strerror}"
            ) from None


def _write(place: Path, source: bytes | Path, *, mode_of: Path | None = None) -> None:
    """Write bytes or a copy of a file, and wait until they are on the disk."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, Path):
        shutil.copy2(source, place)
    else:
        place.write_bytes(source)
        if mode_of is not None and mode_of.exists():
            shutil.copymode(mode_of, place)
    _sync(place)


def _sync(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
