"""What the command does: check, apply, revert, diff. Each returns a line for the user."""

from __future__ import annotations

from pathlib import Path

from specswitch.patching.errors import PatchRefusal
from specswitch.patching.installation import Installation, State
from specswitch.patching.patch_set import PatchSet, for_release
from specswitch.patching.replacement import Replacement


def check(site_packages: Path | None) -> str:
    """Whether the engine is patched, or could be; changes nothing.

    Raises:
        PatchRefusal: it is neither, or an apply or revert was interrupted.
    """
    engine, patches, replaced = _open(site_packages)
    state = _state(engine, patches, replaced)
    where = f"SGLang {engine.release} in {engine.site_packages}"
    if state is State.PATCHED:
        return f"{where} is patched: {len(patches.files)} files"
    if state is State.INTERRUPTED:
        raise PatchRefusal(
            f"{where} is half patched, an apply or revert was interrupted: run either again"
        )
    patches.apply(_released(engine, patches))
    return f"{where} is as released: {len(patches.files)} files can be patched"


def is_half_patched(site_packages: Path | None) -> bool:
    """Whether an apply or revert was interrupted, or the engine installed again in part.

    False as well for an engine that `check` refuses: somebody's own build may have the patches.
    """
    try:
        engine = Installation(site_packages)
        return engine.state(for_release(engine.release)) is State.INTERRUPTED
    except PatchRefusal:
        return False


def apply(site_packages: Path | None) -> str:
    """Patch the engine.

    Raises:
        PatchRefusal: it cannot be patched; all files are as they were.
    """
    engine, patches, replaced = _open(site_packages)
    where = f"SGLang {engine.release} in {engine.site_packages}"
    state = _state(engine, patches, replaced)
    if state is State.PATCHED:
        return f"{where} is already patched"
    if state is State.INTERRUPTED:
        replaced.undo()
    replaced.do(patches.files, patches.apply(_released(engine, patches)))
    return f"{where} is patched now: {len(patches.files)} files; running servers are not affected"


def revert(site_packages: Path | None) -> str:
    """Put the released files back, as they were, byte for byte.

    Raises:
        PatchRefusal: it cannot be done.
    """
    engine = Installation(site_packages)
    replaced = Replacement(engine.site_packages)
    where = f"SGLang {engine.release} in {engine.site_packages}"
    if replaced.current():
        replaced.undo()
        return f"{where} is as released again"
    # Says so if the files are not.
    if engine.state(for_release(engine.release)) is State.RELEASED:
        return f"{where} is not patched"
    raise PatchRefusal(
        f"{where} is patched, but not by this command, which keeps the originals: install it "
        f"again with pip install --force-reinstall --no-deps sglang=={engine.release}"
    )


def diff(site_packages: Path | None) -> str:
    """The patches for the installed release.

    Raises:
        PatchRefusal: there are none.
    """
    return for_release(Installation(site_packages).release).text()


def _open(site_packages: Path | None) -> tuple[Installation, PatchSet, Replacement]:
    engine = Installation(site_packages)
    return engine, for_release(engine.release), Replacement(engine.site_packages)


def _state(engine: Installation, patches: PatchSet, replaced: Replacement) -> State:
    recorded = replaced.current()
    if recorded and set(recorded) != set(patches.files):
        raise PatchRefusal(
            f"{engine.site_packages} carries the patch of another specswitch: run "
            "specswitch patch revert first"
        )
    state = engine.state(patches)
    if state is State.INTERRUPTED and not recorded:
        raise PatchRefusal(
            f"some files of {engine.site_packages} are patched and some are not, and there are no "
            "originals: install the engine again with pip install --force-reinstall --no-deps "
            f"sglang=={engine.release}"
        )
    return state


def _released(engine: Installation, patches: PatchSet) -> dict[str, bytes]:
    found = {file.path: engine.content(file) for file in patches.files if file.before is not None}
    return {path: content for path, content in found.items() if content is not None}
