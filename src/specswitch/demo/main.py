"""One demo on one terminal: prepare, run, write the report, say where it is."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from specswitch import tiny_pair
from specswitch.config import Config, ConfigError, load_config
from specswitch.config_files import locate
from specswitch.demo.errors import DemoError
from specswitch.demo.launch import Launch
from specswitch.demo.report import summary, write
from specswitch.demo.run import Demo
from specswitch.demo.screen import screen_for
from specswitch.demo.signals import run_until_signal
from specswitch.demo.traffic import Plan


def run_demo(console: Console, folder: Path, config_file: Path | None) -> bool:
    """Run the demo and write its report.

    Args:
        console: where progress and the summary go.
        folder: made when it is missing; files of an earlier demo are overwritten.
        config_file: a YAML file or the name of a ready one; None for the demo's own.

    Returns:
        Whether all checks held.

    Raises:
        DemoError: it could not be run; nothing is left running.
        Interrupted: the user ended it; nothing is left running.
    """
    file = config_file or Path("cpu-demo")
    config, launch = _prepare(file, folder)
    plan = Plan()
    phases = plan.phases(tiny_pair.prompts(plan.total, seed=2))
    with screen_for(console) as screen:
        screen.note(f"controller: {file}")
        outcome = run_until_signal(
            Demo(launch, phases, folder, plan.settle_s).run(screen),
            lambda number: screen.note(f"{number.name}: the servers are being stopped"),
        )
    enter, resume = waiting_marks(config)
    written = write(folder, outcome, enter=enter, resume=resume)
    console.print()
    console.print(summary(outcome), markup=False, highlight=False, soft_wrap=True, end="")
    console.print(
        "report: " + ", ".join(str(path) for path in written), soft_wrap=True, markup=False
    )
    return outcome.passed


def _prepare(file: Path, folder: Path) -> tuple[Config, Launch]:
    """Find everything before the first process starts, so that what is missing is said at once."""
    try:
        config = load_config(file)
        path = locate(file).resolve()
        launch = Launch(tiny_pair.path("target"), tiny_pair.path("eagle3"), path)
    except (ConfigError, FileNotFoundError) as error:
        raise DemoError(str(error)) from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.txt").unlink(missing_ok=True)
    except OSError as error:
        raise DemoError(f"cannot write to {folder}: {error.strerror}; give another --out") from None
    return config, launch


def waiting_marks(config: Config) -> tuple[int | None, int | None]:
    """Enter and resume marks of the waiting queue; None for policies that have none."""
    marks = getattr(config.policy, "waiting", None)
    return (None, None) if marks is None else (marks.enter, marks.resume)
