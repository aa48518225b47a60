"""`specswitch doctor` against the real engine: hooks that took, refusals, what a server will be."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specswitch import tiny_pair
from specswitch.config_files import ready_configs
from specswitch.demo.launch import Launch
from specswitch.engine import compat
from specswitch.engine.plugin import engine_hooks, flag_hooks

# Not imported: this process has no stand-ins for what a GPU's packages hold.
ENGINE = Path(str(find_spec("sglang").origin)).parents[1]


def doctor(*flags: str, **variables: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Exit code, findings by section and name (of several the last), and error output.

    `server` also has `refusals`: the texts of all of them.
    """
    launch = Launch(tiny_pair.path("target"), tiny_pair.path("eagle3"), ready_configs()["cpu-demo"])
    words = [*launch.specswitch(30000), *flags]
    command = [sys.executable, "-c", "from specswitch.cli.main import app; app()"]
    done = subprocess.run(
        [*command, "doctor", "--json", "--", *words],
        env=launch.environment() | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    sections = json.loads(done.stdout)["sections"]
    found = {
        title: {each["name"]: each for each in findings} for title, findings in sections.items()
    }
    refused = [each for each in sections.get("server", ()) if each["status"] == "problem"]
    found.setdefault("server", {})["refusals"] = [each["text"] for each in refused]
    return done.returncode, found, done.stderr


def check_hooks(hooks: dict[str, Any]) -> None:
    """Each with both places and in place; or none, on a patched engine."""
    assert {hook["status"] for hook in hooks.values()} == {"ok"}
    if compat.is_patched():
        assert hooks["none"]["text"].startswith("the engine has the native patch")
        return
    assert set(hooks) == {hook.target for hook in (*flag_hooks(), *engine_hooks())}
    run_batch = hooks["sglang.srt.managers.scheduler.Scheduler.run_batch"]["text"]
    ours, engine = run_batch.removeprefix("AROUND run_batch (").split(") on ")
    for place, root in ((ours, Path(__file__).parents[2] / "src"), (engine, ENGINE)):
        file, line = place.split(":")
        assert (root / file).read_text().splitlines()[int(line) - 1].strip().startswith("def run_b")


def test_every_hook_is_shown_with_both_places_and_took() -> None:
    code, found, err = doctor()
    assert code == 0, err
    check_hooks(found["hooks"])

    server = found["server"]
    assert server["refused"]["text"] == "nothing"
    assert server["attention backend"]["text"] == (
        "prefill torch_native, decode torch_native, on cpu"
    )
    assert server["max_running_requests"]["text"] == "8 in either mode; 8 may speculate"
    assert found["configuration"]["policy.waiting.enter"]["text"] == "4 (file)"
    assert found["server"]["exactness"]["text"] == "strict"
    assert found["memory"]["graphs"]["text"] == "none: both modes run eagerly"
    # Three layers of 256 values in float32, and a token, for 8 requests and a row of padding.
    size = 9 * 64 * (3 * 256 * 4 + 8)
    assert found["memory"]["ring"]["text"].startswith(f"{size / 2**30:.3f} GiB on each GPU")


def test_all_that_would_be_refused_is_told_with_its_flag() -> None:
    code, found, _ = doctor("--enable-two-batch-overlap", "--disable-overlap-schedule")
    assert code == 1
    first, second = found["server"]["refusals"]
    assert first.endswith("drop --disable-overlap-schedule")
    assert second == "--enable-two-batch-overlap is not supported by specswitch: drop it"
    assert not found["memory"]


def test_a_plug_in_that_another_one_kept_out_is_found() -> None:
    code, found, _ = doctor(SGLANG_PLUGINS="another")
    assert code == 1
    assert found["versions"]["plug-in"]["status"] == "problem"
    assert {hook["status"] for hook in found["hooks"].values()} == {"problem"}
    says = "does not find the plug-in" if compat.is_patched() else "did not take"
    assert says in next(iter(found["hooks"].values()))["text"]


def test_it_reads_configurations_and_no_weights(tmp_path: Path) -> None:
    folders = []
    for name in ("target", "eagle3"):
        folder = tmp_path / name
        folder.mkdir()
        for file in tiny_pair.path(name).iterdir():
            if file.suffix != ".safetensors":
                (folder / file.name).write_bytes(file.read_bytes())
        folders.append(str(folder))
    (tmp_path / "target" / "generation_config.json").write_text('{"repetition_penalty": 1.05}')
    code, found, err = doctor(
        *("--model-path", folders[0], "--speculative-draft-model-path", folders[1])
    )
    assert code == 0, err
    assert found["server"]["refused"]["text"] == "nothing"
    note = found["server"]["exactness"]
    assert note["status"] == "note"
    assert "gives chat requests repetition_penalty 1.05" in note["text"]
