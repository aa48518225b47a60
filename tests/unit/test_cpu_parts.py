"""Parts of the CPU engine that can be tried one by one: import hooks, stubs, server arguments."""

from __future__ import annotations

import importlib
import importlib.resources
import sys
from types import SimpleNamespace

import pytest

from specswitch.cpu import server_args, stubs
from specswitch.cpu.errors import CpuEngineError
from specswitch.cpu.import_hooks import ImportHooks

# --- import hooks ---------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `hooked_package` with a module `part`, forgotten after the test."""
    root = tmp_path / "hooked_package"
    root.mkdir()
    (root / "__init__.py").write_text("order = ['package']\n")
    (root / "part.py").write_text("from hooked_package import order\norder.append('part')\n")
    (root / "data.txt").write_text("text")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "hooked_package"
    for name in [n for n in sys.modules if n.startswith("hooked_package")]:
        del sys.modules[name]


def test_functions_run_just_before_and_just_after_the_module(package):
    order = []
    hooks = ImportHooks(
        before={package: lambda: order.append(package in sys.modules)},
        after={f"{package}.part": lambda module: order.append(list(module.order))},
    )
    hooks.activate()
    importlib.import_module(f"{package}.part")
    # The module object exists by then, as for any code that runs during an import.
    assert order == [True, ["package", "part"]]


def test_several_hooks_on_one_module_all_run(package):
    order = []
    ImportHooks(after={package: lambda module: order.append(1)}).activate()
    ImportHooks(after={package: lambda module: order.append(2)}).activate()
    importlib.import_module(package)
    assert order == [1, 2]


def test_a_hooked_module_keeps_the_loader_that_others_know(package):
    ImportHooks(before={package: lambda: None}).activate()
    module = importlib.import_module(package)
    assert importlib.resources.files(module).joinpath("data.txt").read_text() == "text"


def test_an_error_in_a_function_fails_the_import(package):
    def refuse(module):
        raise CpuEngineError("no")

    ImportHooks(after={package: refuse}).activate()
    with pytest.raises(CpuEngineError, match="no"):
        importlib.import_module(package)
    assert package not in sys.modules


def test_a_module_that_does_not_exist_is_still_missing(package):
    ImportHooks(after={f"{package}.absent": lambda module: None}).activate()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{package}.absent")


# --- stubs ----------------------------------------------------------------------------------------


@pytest.fixture
def stubbed(monkeypatch):
    # An engine test of the same run may have left the stubs in place.
    others = [finder for finder in sys.meta_path if not isinstance(finder, stubs._StubFinder)]
    monkeypatch.setattr(sys, "meta_path", others)
    for name in [n for n in sys.modules if n.partition(".")[0] in ("sgl_kernel", "torchvision")]:
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    yield stubs.activate
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_names_of_a_stub_can_be_imported_but_not_called(stubbed):
    stubbed()
    from sgl_kernel.speculative import anything

    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.speculative\.anything needs a GPU"):
        anything(1)


def test_optional_kernels_stay_absent(stubbed):
    stubbed()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("sgl_kernel.flash_attn")


def test_a_torchvision_that_is_installed_is_left_alone(stubbed, tmp_path, monkeypatch):
    (tmp_path / "torchvision.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    stubbed()
    assert importlib.import_module("torchvision").real is True


# --- server arguments -----------------------------------------------------------------------------


def arguments(**said):
    unsaid = dict.fromkeys(
        (
            "device",
            "attention_backend",
            "prefill_attention_backend",
            "decode_attention_backend",
            "speculative_draft_attention_backend",
            "max_total_tokens",
            "mem_fraction_static",
            "speculative_algorithm",
            "speculative_eagle_topk",
        )
    )
    return SimpleNamespace(**{**unsaid, "dtype": "auto", "disable_overlap_schedule": False, **said})


def test_what_was_not_said_is_filled_in():
    given = arguments()
    server_args.fill_defaults(given)
    assert given.device == "cpu"
    assert given.attention_backend == "torch_native"
    assert given.dtype == "float32"
    assert given.max_total_tokens == server_args.MAX_TOTAL_TOKENS
    assert given.mem_fraction_static == 0.8


def test_what_was_said_is_kept():
    given = arguments(dtype="bfloat16", max_total_tokens=100, device="cpu")
    server_args.fill_defaults(given)
    assert (given.dtype, given.max_total_tokens) == ("bfloat16", 100)


@pytest.mark.parametrize(
    ("argument", "value", "advice"),
    [
        ("device", "cuda", "use --device cpu"),
        ("attention_backend", "fa3", "use --attention-backend torch_native"),
        ("decode_attention_backend", "triton", "use --decode-attention-backend torch_native"),
    ],
)
def test_what_cannot_work_is_refused_with_what_can(argument, value, advice):
    with pytest.raises(CpuEngineError, match=advice):
        server_args.fill_defaults(arguments(**{argument: value}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speculative_algorithm": "NGRAM"}, "use one of EAGLE, EAGLE3, STANDALONE"),
        ({"speculative_eagle_topk": 4}, "--speculative-eagle-topk is 4"),
        ({"disable_overlap_schedule": True}, "--disable-overlap-schedule"),
    ],
)
def test_speculation_without_kernels_is_refused(change, message):
    given = {"speculative_algorithm": "EAGLE3", "speculative_eagle_topk": 1} | change
    with pytest.raises(CpuEngineError, match=message):
        server_args.refuse_unsupported(arguments(**given))


def test_without_speculation_there_is_nothing_to_refuse():
    server_args.refuse_unsupported(arguments(disable_overlap_schedule=True))
