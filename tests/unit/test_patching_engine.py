"""The patches that are shipped, on the engine's real files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from specswitch.engine import compat
from specswitch.patching import actions
from specswitch.patching.installation import Installation, State
from specswitch.patching.patch_set import MANIFEST, PatchSet, available, write_manifest

ROOT = Path(__file__).parents[2]
RELEASES = sorted(available())


def files(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A folder with the installed engine's metadata and those of its files that are patched."""
    if find_spec("sglang") is None:
        pytest.skip("needs SGLang: make venv")
    installed = Installation()
    patches = PatchSet.load(available()[installed.release])
    if installed.state(patches) is not State.RELEASED:
        pytest.skip("the installed engine is patched")
    for file in patches.files:
        if file.before is not None:
            place = tmp_path / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(installed.path(file), place)
    (info,) = installed.site_packages.glob("sglang-*.dist-info")
    shutil.copytree(info, tmp_path / info.name)
    return tmp_path


def test_each_supported_release_has_patches() -> None:
    assert set(compat.SUPPORTED) == set(RELEASES)


def test_the_engine_can_be_patched_and_is_what_it_was_after_a_revert(engine: Path) -> None:
    before = files(engine)
    actions.apply(engine)
    changed = {path for path, content in files(engine).items() if before.get(path) != content}
    touched = {file.path for file in PatchSet.load(available()[RELEASES[0]]).files}
    assert {path for path in changed if ".native-patch" not in path} == touched
    actions.revert(engine)
    assert files(engine) == before


def test_what_is_patched_compiles(engine: Path) -> None:
    actions.apply(engine)
    folder = str(engine / "sglang" / "srt")
    done = subprocess.run(
        [sys.executable, "-m", "compileall", "-q", folder], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_manifest_is_that_of_the_patches(engine: Path, tmp_path: Path) -> None:
    shipped = available()[Installation(engine).release]
    fresh = tmp_path / shipped.name
    shutil.copytree(shipped, fresh)
    write_manifest(fresh, engine)
    assert (fresh / MANIFEST).read_text() == (shipped / MANIFEST).read_text()


def test_git_applies_the_same(engine: Path, tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    patches = PatchSet.load(available()[Installation(engine).release])
    upstream = tmp_path / "repository"
    (upstream / "python").mkdir(parents=True)
    shutil.copytree(engine / "sglang", upstream / "python" / "sglang")
    for patch in patches.patches:
        subprocess.run(["git", "apply", "--whitespace=error", str(patch)], cwd=upstream, check=True)
    actions.apply(engine)
    for file in patches.files:
        there = (upstream / "python" / file.path).read_bytes()
        assert there == (engine / file.path).read_bytes()


@pytest.mark.parametrize("release", RELEASES)
def test_the_patches_speak_of_the_engine_alone(release: str) -> None:
    added = [
        line
        for patch in PatchSet.load(available()[release]).patches
        for line in patch.read_text().splitlines()
        if not line.startswith(("From:", "From "))
    ]
    assert not [line for line in added if "specswitch" in line.lower()]


def test_each_patch_is_explained() -> None:
    text = (ROOT / "patches" / "README.md").read_text()
    for release in RELEASES:
        for patch in PatchSet.load(available()[release]).patches:
            assert patch.name in text
            for file in re.findall(r"^\+\+\+ b/python/sglang/srt/(.+)$", patch.read_text(), re.M):
                assert file in text, f"{patch.name} changes {file}, README says nothing of it"


def test_a_wheel_holds_the_patches() -> None:
    # tomllib comes with Python 3.11.
    text = (ROOT / "pyproject.toml").read_text()
    included = text.partition("[tool.hatch.build.targets.wheel.force-include]")[2].partition("\n[")
    assert '"patches" = "specswitch/patches"' in included[0].splitlines()
