"""A folder of findings. For each: a trace that `settled check` judges, a JSON file whose workload runs again, the picture, a script."""

from __future__ import annotations

import json
import shlex
import tempfile
from pathlib import Path
from typing import Any

from settled.proofs.folder import Folder, file_name
from settled.proofs.hunting.campaign import Plan, WorkloadFailedError
from settled.proofs.hunting.finding import Finding, contract_name, finding_as_dict, rank
from settled.proofs.hunting.plain import workload_as_dict, workload_of
from settled.reference.engines.operations import Workload


class HuntCorpus:
    """Findings of one key and engine have one name: a smaller one takes the place of a larger. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self.folder = Folder(path)

    def write(self, finding: Finding, *, picture: str, script: str | None, is_shrunk: bool) -> Path | None:
        """The path of the JSON file; None where one is there already, and this one may still become smaller."""
        path = self.folder.path / f"{finding.name}.json"
        if path.exists() and not is_shrunk:
            return None
        trace = path.with_suffix(".ndjson")
        self.folder.replace(trace, "".join(f"{line}\n" for line in finding.trace))
        self.folder.replace(path.with_suffix(".txt"), picture)
        if script is not None:
            self.folder.replace(path.with_suffix(".py"), script)
        told = {**finding_as_dict(finding, with_trace=False), "reproduce": reproducing_commands(finding, path)}
        self.folder.replace(path, json.dumps(told, indent=1) + "\n")
        return path

    def write_failed(self, engine: str, workload: Workload, number: int) -> Path:
        """Keeps the workload with which the harness failed."""
        path = self.folder.path / f"harness-failed-{file_name((engine, str(number)))}.json"
        self.folder.replace(path, json.dumps({"engine": engine, "workload": workload_as_dict(workload)}, indent=1) + "\n")
        return path


def kept_failure(corpus: HuntCorpus | None, plan: Plan, error: WorkloadFailedError) -> str:
    """Keeps the workload with which the harness failed, in a folder of its own without a corpus; tells how it is run again."""
    corpus = corpus or HuntCorpus(Path(tempfile.mkdtemp(prefix="settled-hunt-")))
    path = corpus.write_failed(plan.engine, error.workload, error.number)
    command = ["settled", "hunt", plan.engine, "--workload", str(path), "--contract", contract_name(plan.contract)]
    return f"workload {error.number} is kept: {shlex.join(command)}"


def reproducing_commands(finding: Finding, path: Path) -> list[str]:
    """They run the workload of a finding again, and judge its trace again, where it is the trace that shows it."""
    contract = ["--contract", contract_name(finding.contract)]
    commands = [shlex.join(["settled", "hunt", finding.engine, "--workload", str(path), *contract])]
    if rank(finding.key):
        return commands
    judging = ["settled", "check", str(path.with_suffix(".ndjson"))]
    return [*commands, shlex.join(judging if finding.contract is None else [*judging, *contract])]


def workload_in(raw: dict[str, Any]) -> Workload:
    """The workload of a file that `HuntCorpus` wrote. Raises KeyError, TypeError, ValueError."""
    return workload_of(raw["workload"])
