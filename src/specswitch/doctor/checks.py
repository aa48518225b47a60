"""Checks that need no engine: versions, the GPU, the configuration."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

from specswitch.config import ConfigError, resolve
from specswitch.doctor.findings import Finding, Section, Status
from specswitch.engine import compat

PLUGIN_GROUP, WORKERS_GROUP = "sglang.srt.plugins", "sglang.srt.speculative_workers"
CPU_VARIABLE = "SPECSWITCH_CPU"


def versions() -> Section:
    """Versions of the engine and what matters to it; whether the engine finds the plug-in."""
    return Section("versions", [*_packages(), _engine(), *_patch(), _entry_point()])


def _packages() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()} at {sys.executable}")
    for package in ("specswitch", "torch", "transformers", "sgl-kernel", "matplotlib"):
        found = _version(package)
        if found is not None:
            yield Finding(package, found)


def _engine() -> Finding:
    found = compat.installed_version()
    tested = ", ".join(compat.SUPPORTED)
    if found is None:
        return Finding(
            "sglang",
            "not installed",
            Status.PROBLEM,
            "pip install 'specswitch[engine]', in the environment that serves",
        )
    if found in compat.SUPPORTED:
        return Finding("sglang", f"{found}, a tested release")
    if compat.is_supported():
        return Finding(
            "sglang", f"{found}, not tested, allowed by {compat.ALLOW_UNTESTED}", Status.NOTE
        )
    return Finding(
        "sglang",
        f"{found} is not a tested release",
        Status.PROBLEM,
        f"install one of {tested}, or set {compat.ALLOW_UNTESTED}=1 to try it as it is",
    )


def _patch() -> Iterator[Finding]:
    if compat.installed_version() is not None:
        yield Finding(
            "native patch",
            "applied: specswitch hooks nothing"
            if compat.is_patched()
            else "not applied: specswitch hooks the engine's functions",
        )


def _entry_point() -> Finding:
    group = WORKERS_GROUP if compat.is_patched() else PLUGIN_GROUP
    names = {entry.name for entry in metadata.entry_points(group=group)}
    chosen = os.environ.get("SGLANG_PLUGINS")
    if "specswitch" not in names:
        return Finding(
            "plug-in",
            f"not registered under {group}",
            Status.PROBLEM,
            "install specswitch with pip, a checkout with pip install --editable",
        )
    if chosen and "specswitch" not in [name.strip() for name in chosen.split(",")]:
        return Finding(
            "plug-in",
            f"kept out by SGLANG_PLUGINS={chosen}",
            Status.PROBLEM,
            "add specswitch to SGLANG_PLUGINS, or unset it",
        )
    return Finding("plug-in", f"registered under {group}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def devices() -> Section:
    """The GPUs, or that there is none."""
    return Section("devices", list(_devices()))


def _devices() -> Iterator[Finding]:
    if util.find_spec("torch") is None:
        yield Finding("GPU", "not known: PyTorch is not installed", Status.NOTE)
        return
    import torch

    if not torch.cuda.is_available():
        wanted = os.environ.get(CPU_VARIABLE)
        yield Finding(
            "GPU",
            f"none; {CPU_VARIABLE}={wanted} runs SGLang on the CPU"
            if wanted
            else f"none that PyTorch {torch.__version__} can use",
            Status.NOTE,
            None if wanted else f"set {CPU_VARIABLE}=1 to try SGLang on the CPU",
        )
        return
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        free, whole = torch.cuda.mem_get_info(index)
        yield Finding(
            f"GPU {index}",
            f"{device.name}, compute capability {device.major}.{device.minor}, "
            f"{free / 2**30:.1f} of {whole / 2**30:.1f} GiB free",
        )


def configuration(path: Path | None) -> Section:
    """Every value in effect and where it comes from, or what is wrong with the file."""
    try:
        resolved = resolve(path, {})
    except ConfigError as error:
        found = [Finding("file", line, Status.PROBLEM) for line in error.problems]
        return Section("configuration", found)
    source = "no file: defaults" if path is None else str(path)
    values = [
        Finding(key, f"{json.dumps(value)} ({origin})") for key, value, origin in resolved.values()
    ]
    return Section("configuration", [Finding("file", source), *values])
