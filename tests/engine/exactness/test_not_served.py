"""What a server with specswitch does not take, as rows of the page."""

from __future__ import annotations

from harness.arguments import EAGLE3, SPECSWITCH
from harness.launcher import launch_forked

from .recorder import check
from .verdicts import Verdict


def test_a_server_with_adapters_is_refused_at_start_up() -> None:
    outcome = launch_forked([*EAGLE3, *SPECSWITCH, "--enable-lora", "--lora-paths", "a=/nowhere"])
    assert outcome.exit_code == 1
    assert outcome.lines == ["specswitch: --enable-lora is not supported by specswitch: drop it"]
    check("lora", Verdict.REFUSED_AT_START)
