"""How the CPU engine gets into a process: on request only, before sglang, and never past a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

# What the real package would find at import: the engine's variables set, CUDA-only packages there.
FAKE_SGLANG = """
import os, sys
assert os.environ["SGLANG_USE_CPU_ENGINE"] == "1"
assert os.environ["TORCHDYNAMO_DISABLE"] == "1"
import specswitch.cpu
assert specswitch.cpu.is_installed()
from sgl_kernel import verify_tree_greedy
"""


# What loading touches of torch, without the seconds that importing the real one takes.
FAKE_TORCH = """
class Tensor: ...
def tensor(): ...
class cuda:
    is_available = staticmethod(lambda: False)
"""


_SET_BY_LOADING = ("SPECSWITCH_", "SGLANG_", "TORCHDYNAMO", "TRITON", "CUDA", "OMP_")


class Interpreter:
    """Runs code in a fresh interpreter that has the .pth file and stand-ins for what it loads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "torch.py").write_text(FAKE_TORCH)

    def add_sglang(self, version: str = "0.5.12.post1", body: str = FAKE_SGLANG) -> None:
        package = self._directory / "sglang"
        package.mkdir()
        (package / "__init__.py").write_text(body)
        metadata = self._directory / f"sglang-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: sglang\nVersion: {version}\n")

    def run(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_SET_BY_LOADING)
        }
        # addsitedir() treats the directory like site-packages: it runs the .pth files in it. -S
        # keeps an installed specswitch from doing the same before.
        prepare = f"import site, sys; sys.path.insert(0, {str(self._directory)!r});"
        prepare += f"site.addsitedir({str(SOURCE)!r}); site.main()\n"
        return subprocess.run(
            [sys.executable, "-S", "-c", prepare + code],
            env=inherited | environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def python(tmp_path: Path) -> Interpreter:
    return Interpreter(tmp_path)


LOADED = "print([m in sys.modules for m in ('specswitch.cpu.autoload', 'torch', 'sglang')])"


@pytest.mark.parametrize("value", ["", "0"])
def test_nothing_of_it_is_loaded_when_it_is_not_asked_for(python, value):
    python.add_sglang()
    result = python.run(LOADED, SPECSWITCH_CPU=value)
    # "0" costs the import of a few small modules, an empty variable not even that.
    assert result.stdout in ("[False, False, False]\n", "[True, False, False]\n")
    assert python.run("import sglang", SPECSWITCH_CPU=value).returncode != 0, "fake sglang wants it"


def test_an_unset_variable_loads_nothing(python):
    assert python.run(LOADED).stdout == "[False, False, False]\n"


def test_asking_for_it_does_not_import_torch_before_sglang_is(python):
    python.add_sglang()
    assert python.run(LOADED, SPECSWITCH_CPU="1").stdout == "[True, False, False]\n"


def test_it_is_in_place_before_the_first_line_of_sglang_runs(python):
    python.add_sglang()
    result = python.run("import sglang; print('imported')", SPECSWITCH_CPU="1")
    assert (result.stdout, result.returncode) == ("imported\n", 0), result.stderr


def test_looking_for_sglang_does_not_load_anything(python):
    python.add_sglang()
    code = "import importlib.util; assert importlib.util.find_spec('sglang')\n" + LOADED
    assert python.run(code, SPECSWITCH_CPU="1").stdout == "[True, False, False]\n"


def test_install_in_a_script_also_sets_the_variable_for_children(python):
    python.add_sglang()
    code = """
import os, specswitch.cpu
specswitch.cpu.install()
specswitch.cpu.install()
import sglang
print(os.environ["SPECSWITCH_CPU"])
"""
    result = python.run(code)
    assert (result.stdout, result.returncode) == ("1\n", 0), result.stderr


def only_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr.strip()


def test_a_value_that_is_not_understood_stops_sglang_with_one_line(python):
    python.add_sglang()
    line = only_line(python.run("import sglang", SPECSWITCH_CPU="yes"))
    assert line == "specswitch: SPECSWITCH_CPU=yes is not understood: use 1, force or 0"


def test_a_value_that_is_not_understood_does_not_disturb_other_programs(python):
    assert python.run("print('fine')", SPECSWITCH_CPU="yes").stdout == "fine\n"


# Stands in for a machine with a GPU: CUDA is there unless the variable hides it.
WITH_CUDA = """
import os, torch
torch.cuda.is_available = lambda: os.environ.get("CUDA_VISIBLE_DEVICES") != ""
"""


def test_it_refuses_where_cuda_is_present(python):
    python.add_sglang()
    line = only_line(python.run(WITH_CUDA + "import sglang", SPECSWITCH_CPU="1"))
    assert line.startswith("specswitch: CUDA is present")
    assert "SPECSWITCH_CPU=force" in line


def test_force_hides_the_gpus_instead(python):
    python.add_sglang()
    code = WITH_CUDA + "import sglang; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    result = python.run(code, SPECSWITCH_CPU="force")
    assert (result.stdout, result.returncode) == ("''\n", 0), result.stderr


def test_force_refuses_where_cuda_can_no_longer_be_hidden(python):
    python.add_sglang()
    code = "import torch; torch.cuda.is_available = lambda: True\nimport sglang"
    line = only_line(python.run(code, SPECSWITCH_CPU="force"))
    assert line.startswith("specswitch: CUDA is already in use")


def test_another_release_of_sglang_is_refused_by_name(python):
    python.add_sglang(version="0.6.0")
    line = only_line(python.run("import sglang", SPECSWITCH_CPU="1"))
    assert line == "specswitch: no CPU kernels for sglang 0.6.0: install one of 0.5.12.post1"


def test_install_after_sglang_is_refused(python):
    python.add_sglang(body="")
    code = """
import sglang, specswitch.cpu
try:
    specswitch.cpu.install()
except specswitch.cpu.CpuEngineError as error:
    print(error)
"""
    assert python.run(code).stdout == (
        "the CPU engine must be installed before sglang is imported\n"
    )


def test_the_interpreter_for_triton_is_switched_on_before_triton_is_imported(python):
    python.add_sglang(body="import os; print(os.environ.get('TRITON_INTERPRET'))")
    assert python.run("import sglang", SPECSWITCH_CPU="1").stdout == "None\n"
    assert (
        python.run("import sglang", SPECSWITCH_CPU="1", SPECSWITCH_CPU_TRITON="1").stdout == "1\n"
    )


def test_the_interpreter_for_triton_is_refused_once_triton_is_imported(python):
    python.add_sglang()
    code = "sys.modules['triton'] = type(sys)('triton'); import sglang"
    line = only_line(python.run(code, SPECSWITCH_CPU="1", SPECSWITCH_CPU_TRITON="1"))
    assert "set TRITON_INTERPRET=1 as well" in line


def test_threads_are_one_unless_the_user_says_otherwise(python):
    python.add_sglang(body="import os; print(os.environ['OMP_NUM_THREADS'])")
    assert python.run("import sglang", SPECSWITCH_CPU="1").stdout == "1\n"
    assert python.run("import sglang", SPECSWITCH_CPU="1", OMP_NUM_THREADS="3").stdout == "3\n"
