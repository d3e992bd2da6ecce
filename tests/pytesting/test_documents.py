"""What docs/pytest.md and docs/ci show is what is there: the example runs, options exist, commands of workflows are understood."""

from __future__ import annotations

import doctest
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from settled.proofs.cli.main import cli

pytest_plugins = ("pytester",)

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "pytest.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
CONSOLE = re.findall(r"^```console\n\$ pytest ([^\n]*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
PLUGIN = ["-p", "no:settled", "-p", "settled.proofs.pytest_plugin", "-p", "no:cacheprovider"]
WORKFLOWS = sorted((DOCS / "ci").glob("*.yml"))


def test_the_ten_lines_are_those_that_the_engines_run() -> None:
    """tests/engines/test_pytest_plugin.py runs them, and compares what is printed."""
    lines = (DOCS / "pytest" / "test_windows.py").read_text(encoding="utf-8")
    assert PYTHON[0] == lines
    assert len(lines.splitlines()) <= 10


def test_the_example_of_an_own_engine_prints_what_is_shown(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # the picture needs room
    pytester.makepyfile(test_own=PYTHON[1])
    options, expected = CONSOLE[-1]
    printed = pytester.runpytest_inprocess(*PLUGIN, *shlex.split(options)).stdout.str()
    assert doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE), printed


def test_the_table_has_all_options_and_no_others(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig(*PLUGIN)
    options = {name for each in config._parser._groups if each.name == "settled" for option in each.options for name in option.names()}
    assert set(re.findall(r"^\| `(--settled-\w+)", TEXT, re.MULTILINE)) == options
    settings = re.findall(r"^\| `--settled[^|]*\| `(settled_\w+)`", TEXT, re.MULTILINE)
    assert set(settings) == {name for name in config._parser._inidict if name.startswith("settled")}


def commands(workflow: dict[Any, Any]) -> Iterator[list[str]]:
    """Each command of each step, as a shell would split it."""
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            for line in step.get("run", "").splitlines():
                yield shlex.split(re.sub(r"\$\{?GITHUB_RUN_NUMBER\}?", "7", line))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_one_that_github_accepts(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(workflow) == {"name", True, "permissions", "jobs"}, "YAML 1.1 reads the key `on` as true"
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        assert job["timeout-minutes"] <= 60
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert re.fullmatch(r"[\w-]+(/[\w-]+){1,2}@v\d+", step.get("uses", "a/b@v1"))
            assert set(step) <= {"name", "id", "uses", "with", "run", "if", "env"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_it_installs_is_never_looked_for_in_an_index(path: Path) -> None:
    """There somebody else may have taken the name; a file is there once the repository is checked out."""
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    version = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for job in workflow["jobs"].values():
        assert job["env"]["SETTLED"] == f"./settled-{version}-py3-none-any.whl"
        assert job["steps"][0]["uses"].startswith("actions/checkout@")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_was_found_is_shown_and_kept_when_the_job_fails(path: Path) -> None:
    (job,) = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    by_use = {step.get("uses", step.get("name", "")).partition("@")[0]: step for step in job["steps"]}
    upload = by_use["actions/upload-artifact"]
    assert (upload["if"], upload["with"]["if-no-files-found"]) == ("always()", "ignore")
    (summary,) = [step for step in job["steps"] if "GITHUB_STEP_SUMMARY" in step.get("run", "")]
    assert summary["if"] == "always()"
    (file,) = set(re.findall(r"findings/\w+\.md", summary["run"]))
    (hunt,) = [step for step in job["steps"] if step.get("run", "").startswith("settled hunt")]
    assert f"--markdown {file}" in hunt["run"]
    ids = {step["id"] for step in job["steps"] if "id" in step}
    assert {name for step in job["steps"] for name in re.findall(r"steps\.(\w+)\.", str(step))} <= ids


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_its_commands_are_understood(path: Path, pytester: pytest.Pytester) -> None:
    """Options and values are read as when they are run, and nothing is."""
    understood = []
    for words in commands(yaml.safe_load(path.read_text(encoding="utf-8"))):
        if words[:1] == ["settled"]:
            context = cli.make_context("settled", words[1:])
            name, command, rest = cli.resolve_command(context, [*context._protected_args, *context.args])
            assert isinstance(command, click.Command)
            command.make_context(name, rest, parent=context)
            understood.append("settled")
        elif words[:3] == ["python", "-m", "pytest"]:
            pytester.parseconfig(*PLUGIN, *[word for word in words[3:] if word not in ("-n", "auto")])
            understood.append("pytest")
    assert "settled" in understood
    assert ("pytest" in understood) == (path.stem == "test-scheduler")


def test_an_option_that_is_not_there_would_be_noticed() -> None:
    context = cli.make_context("settled", ["hunt", "vllm", "--junitxml", "f"])
    _, command, rest = cli.resolve_command(context, [*context._protected_args, *context.args])
    assert command is not None
    with pytest.raises(click.NoSuchOption):
        command.make_context("hunt", rest, parent=context)
