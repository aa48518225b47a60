"""Ready configurations go by their names, wherever a file is taken."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from specswitch.cli.main import app
from specswitch.config import ConfigError, load_config
from specswitch.config_files import locate, ready_configs


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_names_are_those_of_the_files_in_configs() -> None:
    files = (Path(__file__).parents[2] / "configs").glob("*.yaml")
    assert set(ready_configs()) == {file.stem for file in files} != set()


@pytest.mark.parametrize("name", ready_configs())
def test_name_of_a_ready_configuration(name) -> None:
    assert load_config(name) == load_config(ready_configs()[name])


def test_a_file_of_that_name_wins() -> None:
    Path("throughput").write_text("max_speculative_batch: 7")
    assert load_config("throughput").max_speculative_batch == 7


def test_a_name_in_a_folder_is_a_path() -> None:
    with pytest.raises(ConfigError, match=r"^here/throughput: cannot read it: No such file"):
        load_config("here/throughput")


@pytest.mark.parametrize("name", ["throughputt", "throughput.yaml"])
def test_unknown_name_is_refused_with_the_known_ones(name) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(name)
    assert refused.value.problems == (
        f"{name}: cannot read it: No such file, and no ready configuration has this name "
        f"({', '.join(sorted(ready_configs()))})",
    )


def test_without_ready_files_the_refusal_says_so(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("specswitch.config_files._PACKAGE", tmp_path / "a" / "b")
    assert ready_configs() == {}
    with pytest.raises(ConfigError, match="install specswitch again"):
        load_config("throughput")


def test_problems_are_told_with_the_file_of_the_name(monkeypatch, tmp_path) -> None:
    folder = tmp_path / "package" / "configs"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("guard: {vote: 2}")
    monkeypatch.setattr("specswitch.config_files._PACKAGE", folder.parent)
    assert locate(Path("mine")) == folder / "mine.yaml"
    with pytest.raises(ConfigError) as refused:
        load_config("mine")
    assert str(refused.value).startswith(f"{folder / 'mine.yaml'}:1: guard.vote: ")


def test_check_and_show_take_names() -> None:
    checked = CliRunner().invoke(app, ["config", "check", "throughput", "nothing"])
    assert (checked.exit_code, checked.stdout) == (1, "throughput: ok\n")
    assert "nothing: cannot read it" in checked.stderr
    shown = [
        CliRunner().invoke(app, ["config", "show", file, "--json"]).stdout
        for file in ("throughput", str(ready_configs()["throughput"]))
    ]
    assert shown[0] == shown[1] != ""
