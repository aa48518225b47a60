"""The demo with its servers replaced by `fake_server`; also runnable, for tests of signals."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from specswitch.demo import main as demo_main
from specswitch.demo.traffic import Plan

FAKE_SERVER = Path(__file__).with_name("fake_server.py")
SMALL_PLAN = Plan(calm_requests=4, calm_clients=1, burst_requests=16, new_tokens=24, settle_s=0.1)


@dataclass(frozen=True)
class FakeLaunch:
    """Has the interface of `launch.Launch`; extra arguments make a server misbehave."""

    extra: tuple[str, ...] = ()
    reference_extra: tuple[str, ...] = ()

    def specswitch(self, port: int) -> list[str]:
        return [
            sys.executable,
            str(FAKE_SERVER),
            "--port",
            str(port),
            "--specswitch",
            *self.extra,
        ]

    def reference(self, port: int) -> list[str]:
        return [sys.executable, str(FAKE_SERVER), "--port", str(port), *self.reference_extra]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONUNBUFFERED": "1"}


def replace_servers(launch: FakeLaunch, plan: Plan = SMALL_PLAN) -> None:
    """Make `specswitch demo` start `launch`'s servers in this process from now on."""
    demo_main.Launch = lambda *_: launch  # type: ignore[assignment,misc]
    demo_main.Plan = lambda: plan  # type: ignore[assignment,misc]
    demo_main.tiny_pair.path = lambda name: Path(name)  # type: ignore[assignment]


if __name__ == "__main__":
    from specswitch.cli.main import app

    pid_file, new_tokens, *arguments = sys.argv[1:]
    extra = ("--child-pid-file", pid_file)
    replace_servers(
        FakeLaunch(extra, extra),
        Plan(calm_requests=4, calm_clients=1, burst_requests=16, new_tokens=int(new_tokens)),
    )
    app(arguments)
