"""The native patch on a small stand-in for an engine: all files or none, and back byte for byte."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specswitch.cli.main import app
from specswitch.patching import actions, patch_set, replacement
from specswitch.patching.errors import PatchRefusal
from specswitch.patching.patch_set import MANIFEST, write_manifest

RELEASE = "1.2.3"
ONE, TWO, ADDED = "sglang/one.py", "sglang/srt/two.py", "sglang/srt/added.py"
# Away from what the patches touch, a form feed and a line separator, which end a line for Python
# but not in a file; and no newline at the end.
RELEASED = {
    ONE: "first\nsecond\nthird\n",
    TWO: "".join(f"line {number}\n" for number in range(30)) + "odd\x0c\u2028end",
}
STEPS: list[dict[str, tuple[str, str]]] = [
    {ONE: ("second", "2"), TWO: ("line 20", "line twenty\nand more")},
    {TWO: ("line 3\n", ""), ADDED: ("", "new\nfile\n")},
]


def diff_of(path: str, before: str, after: str) -> str:
    lines = [text.split("\n") for text in (before, after)]
    if path == ADDED:
        lines = [[], after.split("\n")[:-1]]
    old = "/dev/null" if path == ADDED else f"a/python/{path}"
    body = difflib.unified_diff(*lines, fromfile=old, tofile=f"b/python/{path}", lineterm="")
    return "\n".join([f"diff --git a/python/{path} b/python/{path}", *body, ""])


def write_patches(folder: Path) -> dict[str, str]:
    """Patches in a folder; returns what the files are with all of them."""
    now = dict(RELEASED)
    for number, step in enumerate(STEPS, 1):
        text = f"From 0000\nSubject: [PATCH] step {number}\n\nWhy.\n---\n"
        for path, (old, new) in step.items():
            before = now.get(path, "")
            now[path] = before.replace(old, new, 1) if old else new
            text += diff_of(path, before, now[path])
        (folder / f"{number:04}-step.patch").write_text(text)
    return now


class Tree:
    """A stand-in for site-packages, and the patches for it."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site"
        for path, text in RELEASED.items():
            (self.site / path).parent.mkdir(parents=True, exist_ok=True)
            (self.site / path).write_bytes(text.encode())
        (self.site / ONE).chmod(0o640)
        info = self.site / f"sglang-{RELEASE}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {RELEASE}\n")
        self.patches = folder / "patches" / f"sglang-{RELEASE}"
        self.patches.mkdir(parents=True)
        self.patched = write_patches(self.patches)
        write_manifest(self.patches, self.site)
        self.released = self.files()

    def files(self) -> dict[str, tuple[bytes, int]]:
        """Content and mode of every file."""
        return {
            file.relative_to(self.site).as_posix(): (file.read_bytes(), file.stat().st_mode)
            for file in self.site.rglob("*")
            if file.is_file()
        }

    def is_patched(self) -> bool:
        return all(
            (self.site / path).read_bytes() == t.encode() for path, t in self.patched.items()
        )


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    made = Tree(tmp_path)
    monkeypatch.setattr(patch_set, "available", lambda: {RELEASE: made.patches})
    return made


class Stopped(BaseException):
    """Stands for the end of the process."""


def stop_at(monkeypatch: pytest.MonkeyPatch, move: int, error: BaseException) -> Callable[[], None]:
    """Let the nth move of a file raise; returns what lets moves work again."""
    moves = iter(range(1, 1000))
    real = os.replace

    def fail(source: Path, target: Path) -> None:
        if next(moves) == move:
            raise error
        real(source, target)

    monkeypatch.setattr(replacement.os, "replace", fail)
    return lambda: monkeypatch.setattr(replacement.os, "replace", real)


def refused(action: Callable[[Path], str], tree: Tree) -> str:
    """The refusal, which is one line and has changed nothing."""
    before = tree.files()
    with pytest.raises(PatchRefusal) as refusal:
        action(tree.site)
    assert tree.files() == before
    said = str(refusal.value)
    assert "\n" not in said
    return said


# --- as it should go ---------------------------------------------------------------------------


def test_a_released_engine_can_be_patched_and_checking_changes_nothing(tree: Tree) -> None:
    assert "is as released: 3 files can be patched" in actions.check(tree.site)
    assert tree.files() == tree.released


def test_applied_all_files_are_as_the_patches_make_them(tree: Tree) -> None:
    assert "is patched now" in actions.apply(tree.site)
    assert tree.is_patched()
    assert (tree.site / ONE).stat().st_mode == tree.released[ONE][1]
    assert "is patched: 3 files" in actions.check(tree.site)


def test_applied_twice_it_says_so(tree: Tree) -> None:
    actions.apply(tree.site)
    before = tree.files()
    assert "already patched" in actions.apply(tree.site)
    assert tree.files() == before


def test_reverted_every_file_is_what_it_was(tree: Tree) -> None:
    actions.apply(tree.site)
    assert "as released again" in actions.revert(tree.site)
    assert tree.files() == tree.released
    assert "not patched" in actions.revert(tree.site)
    assert tree.files() == tree.released


def test_patched_again_after_a_revert(tree: Tree) -> None:
    for action in (actions.apply, actions.revert, actions.apply):
        action(tree.site)
    assert tree.is_patched()


def test_the_diff_is_all_patches_in_order(tree: Tree) -> None:
    text = actions.diff(tree.site)
    assert text.index("step 1") < text.index("step 2")
    assert text == "".join(file.read_text() for file in sorted(tree.patches.glob("*.patch")))


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("action", [actions.check, actions.apply, actions.revert])
@pytest.mark.parametrize("path", [ONE, TWO])
def test_a_file_that_someone_changed_is_named(
    tree: Tree, action: Callable[[Path], str], path: str
) -> None:
    (tree.site / path).write_text("mine\n")
    said = refused(action, tree)
    assert str(tree.site / path) in said
    assert f"pip install --force-reinstall --no-deps sglang=={RELEASE}" in said


def test_somebodys_own_build_is_not_half_patched(tree: Tree) -> None:
    actions.apply(tree.site)
    assert not actions.is_half_patched(tree.site)
    (tree.site / TWO).write_text("built here\n")
    assert not actions.is_half_patched(tree.site)


def test_a_file_that_is_missing_is_named(tree: Tree) -> None:
    (tree.site / TWO).unlink()
    assert f"{tree.site / TWO} is missing" in refused(actions.apply, tree)


def test_a_file_where_the_patch_adds_one_is_named(tree: Tree) -> None:
    (tree.site / ADDED).write_text("someone else's\n")
    assert f"{tree.site / ADDED} is neither" in refused(actions.apply, tree)


def test_a_release_without_patches_is_refused_with_those_that_have_some(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patch_set, "available", lambda: {"9.9": tree.patches})
    assert f"no patch for SGLang {RELEASE}: install one of 9.9" in refused(actions.apply, tree)


def test_a_folder_without_an_engine_is_refused(tree: Tree, tmp_path: Path) -> None:
    with pytest.raises(PatchRefusal, match=r"no SGLang in .*--site-packages"):
        actions.check(tmp_path)


@pytest.mark.parametrize("how", ["none", "two"])
def test_an_engine_of_unknown_version_is_refused(tree: Tree, how: str) -> None:
    info = tree.site / f"sglang-{RELEASE}.dist-info"
    if how == "none":
        (info / "METADATA").unlink()
        info.rmdir()
    else:
        other = tree.site / "sglang-0.1.dist-info"
        other.mkdir()
        (other / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.1\n")
    assert "dist-info" in refused(actions.apply, tree)


def test_patches_that_were_changed_are_not_applied(tree: Tree) -> None:
    file = next(tree.patches.glob("0001*"))
    file.write_text(file.read_text().replace("line twenty", "line 20"))
    for action in (actions.check, actions.apply):
        assert "install specswitch again" in refused(action, tree)


def test_patches_that_do_not_fit_are_not_applied(tree: Tree) -> None:
    file = next(tree.patches.glob("0001*"))
    file.write_text(file.read_text().replace(" third", " fourth"))
    assert f"{file.name} does not fit {ONE}" in refused(actions.apply, tree)


def test_without_permission_nothing_is_changed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(path: Path, *_args: object, **_kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", deny)
    said = refused(actions.apply, tree)
    assert "no permission to write" in said
    assert "as the owner" in said


# --- what goes wrong on the way ----------------------------------------------------------------

# Of the record, then of the three files.
MOVES = [1, 2, 3, 4]


@pytest.mark.parametrize("move", MOVES)
def test_a_full_disk_leaves_all_files_as_they_were(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, move: int
) -> None:
    stop_at(monkeypatch, move, OSError(28, "No space left on device"))
    with pytest.raises(PatchRefusal, match="No space left"):
        actions.apply(tree.site)
    assert tree.files() == tree.released


@pytest.mark.parametrize("then", [actions.apply, actions.revert])
@pytest.mark.parametrize("move", MOVES)
def test_an_apply_that_was_cut_off_can_be_repeated_or_taken_back(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, move: int, then: Callable[[Path], str]
) -> None:
    go_on = stop_at(monkeypatch, move, Stopped())
    with pytest.raises(Stopped):
        actions.apply(tree.site)
    go_on()
    if move > 2:  # Before that no file has been moved.
        assert "interrupted" in refused(actions.check, tree)
    assert actions.is_half_patched(tree.site) is (move > 2)
    then(tree.site)
    if then is actions.apply:
        assert tree.is_patched()
        actions.revert(tree.site)
    else:
        # Without a record there is nothing to take back, and what was prepared may lie there.
        actions.apply(tree.site)
        actions.revert(tree.site)
    assert tree.files() == tree.released


@pytest.mark.parametrize("then", [actions.apply, actions.revert])
@pytest.mark.parametrize("move", [1, 2])
def test_a_revert_that_was_cut_off_can_be_repeated_or_taken_back(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, move: int, then: Callable[[Path], str]
) -> None:
    actions.apply(tree.site)
    go_on = stop_at(monkeypatch, move, Stopped())
    with pytest.raises(Stopped):
        actions.revert(tree.site)
    go_on()
    then(tree.site)
    if then is actions.apply:
        assert tree.is_patched()
    else:
        assert tree.files() == tree.released


def test_a_file_changed_after_the_patch_is_not_overwritten_by_a_revert(tree: Tree) -> None:
    actions.apply(tree.site)
    (tree.site / TWO).write_text("mine\n")
    assert f"{tree.site / TWO} was changed after the patch" in refused(actions.revert, tree)


def test_damaged_originals_are_not_put_back(tree: Tree) -> None:
    actions.apply(tree.site)
    kept = tree.site / replacement.FOLDER / "originals" / ONE
    kept.write_text("damaged\n")
    assert str(kept) in refused(actions.revert, tree)


def test_a_damaged_record_is_refused(tree: Tree) -> None:
    actions.apply(tree.site)
    (tree.site / replacement.FOLDER / "record.json").write_text("{")
    for action in (actions.check, actions.apply, actions.revert):
        assert "record.json" in refused(action, tree)


def test_a_patched_engine_without_its_originals_is_not_reverted(tree: Tree) -> None:
    for path, text in tree.patched.items():
        (tree.site / path).write_bytes(text.encode())
    assert "is patched: 3 files" in actions.check(tree.site)
    assert "install it again" in refused(actions.revert, tree)


# --- over time ---------------------------------------------------------------------------------


def other_patches(tree: Tree) -> None:
    """The patches as a later specswitch has them."""
    file = next(tree.patches.glob("0001*"))
    file.write_text(file.read_text().replace("line twenty", "line XX"))
    before = actions.Installation(tree.site)
    assert before.release == RELEASE
    manifest = json.loads((tree.patches / MANIFEST).read_text())
    released = {path: RELEASED[path].encode() for path in RELEASED}
    changed = patch_set.apply_all(tuple(sorted(tree.patches.glob("*.patch"))), released)
    manifest[TWO]["after"] = patch_set.sha256(changed[TWO])
    (tree.patches / MANIFEST).write_text(json.dumps(manifest))


def test_the_patch_of_another_specswitch_is_taken_off_first(tree: Tree) -> None:
    actions.apply(tree.site)
    other_patches(tree)
    for action in (actions.check, actions.apply):
        assert "run specswitch patch revert first" in refused(action, tree)
    actions.revert(tree.site)
    assert tree.files() == tree.released
    actions.apply(tree.site)
    assert b"line XX" in (tree.site / TWO).read_bytes()


def test_an_engine_that_was_installed_again_is_as_released(tree: Tree) -> None:
    actions.apply(tree.site)
    for path, text in RELEASED.items():
        (tree.site / path).write_bytes(text.encode())
    # pip has never heard of the added file, and leaves it.
    assert (tree.site / ADDED).exists()
    assert "as released" in actions.check(tree.site)
    assert "not patched" in actions.revert(tree.site)
    actions.apply(tree.site)
    actions.revert(tree.site)
    assert {path: content for path, (content, _) in tree.files().items()} == {
        path: content for path, (content, _) in tree.released.items()
    }


# --- the command -------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["patch", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_patches_and_reverts(tree: Tree) -> None:
    where = ["--site-packages", str(tree.site)]
    for word, says in (
        ("check", "as released"),
        ("apply", "patched now"),
        ("apply", "already patched"),
        ("revert", "as released again"),
    ):
        code, out, err = run(word, *where)
        assert (code, err) == (0, "")
        assert says in out
    code, out, _ = run("diff", *where)
    assert (code, out) == (0, actions.diff(tree.site))
    assert tree.files() == tree.released


@pytest.mark.parametrize("word", ["check", "apply", "revert", "diff"])
def test_the_command_refuses_in_one_line(tree: Tree, tmp_path: Path, word: str) -> None:
    code, out, err = run(word, "--site-packages", str(tmp_path))
    assert (code, out) == (1, "")
    assert err.startswith("specswitch: no SGLang in ")
    assert err.count("\n") == 1
