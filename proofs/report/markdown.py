"""A summary as Markdown, for an issue tracker or a CI job's page.

What comes from a trace or an engine stands in code only: there no tracker sees markup, a mention or the number of an issue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from settled.model.properties import Contract, Property
from settled.model.trace_io import printable
from settled.proofs.report.summary import Case, Outcome, Suite

TRACE_LINES_MAX = 200
TRACE_CHARACTERS_MAX = 20_000
CHARACTERS_MAX = 60_000  # of all; trackers take 65,536
REST_MAX = 30
_SIGN = {Outcome.PASSED: "holds", Outcome.FAILED: "**violated**", Outcome.SKIPPED: "not judged", Outcome.ERROR: "**failed**"}
_WORSE = (Outcome.PASSED, Outcome.SKIPPED, Outcome.ERROR, Outcome.FAILED)


def markdown_text(suites: Sequence[Suite]) -> str:
    """The whole text: what holds and what does not as a table, then each violation, until the text is as long as trackers take."""
    text = "\n\n".join([f"# settled: {_headline(suites)}", *_tables(suites)])
    told = [(suite, case) for suite in suites for case in suite.cases if case.outcome in (Outcome.FAILED, Outcome.ERROR)]
    for number, (suite, case) in enumerate(told):
        finding = "\n\n".join(_finding(suite, case))
        if len(text) + len(finding) > CHARACTERS_MAX:
            rest = [f"- {_code(suite.subject)}: {_code(case.name)}" for suite, case in told[number:][:REST_MAX]]
            return "\n\n".join([text, f"{len(told) - number} more, for which there is no room here:", "\n".join(rest)]) + "\n"
        text += f"\n\n{finding}"
    return text + "\n"


def _headline(suites: Sequence[Suite]) -> str:
    failed = [case for suite in suites for case in suite.cases if case.outcome is Outcome.FAILED]
    failed = [case for case in failed if case.cause] or failed  # one without a cause of its own is told under another contract, and counted
    if any(case.outcome is Outcome.ERROR for suite in suites for case in suite.cases):
        return f"a run failed; {_violations(len(failed))}"
    if failed:
        return _violations(len(failed))
    return (
        "nothing is violated" if any(case.outcome is Outcome.PASSED for suite in suites for case in suite.cases) else "nothing was judged"
    )


def _violations(count: int) -> str:
    return f"{count} violation{'s' * (count != 1)}"


def _tables(suites: Sequence[Suite]) -> Iterator[str]:
    """One a suite: a row a property, a column a contract."""
    for suite in suites:
        contracts = list(dict.fromkeys(case.contract for case in suite.cases))
        properties = list(dict.fromkeys(case.property_name for case in suite.cases))
        rows = [["property", *map(_cell, contracts)], ["---"] * (1 + len(contracts))]
        for name in properties:
            rows.append([_cell(name), *(_verdict(suite, contract, name) for contract in contracts)])
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        yield f"{_code(suite.subject)}, {_code(suite.done)}:\n\n{table}"


def _verdict(suite: Suite, contract: str, name: str) -> str:
    outcomes = [case.outcome for case in suite.cases if (case.contract, case.property_name) == (contract, name)]
    return _SIGN[max(outcomes, key=_WORSE.index)] if outcomes else ""


def _finding(suite: Suite, case: Case) -> Iterator[str]:
    yield f"## {_code(suite.subject)}: {_code(case.property_name)}"
    yield _fenced([case.told])
    meaning = {each.value: each.meaning for each in (*Property, *Contract)}
    known = [f"- {_code(word)}: {meaning[word]}" for word in (case.property_name, case.contract) if word in meaning]
    cause = [f"- cause: {_code(case.cause)}"] if case.cause else []
    if known or cause:
        yield "\n".join([*known, *cause])
    if case.picture:
        yield _fenced(case.picture.splitlines())
    if case.commands:
        yield "To see it again:"
        yield _fenced(case.commands, "sh")
    if case.trace:
        yield _trace(case.trace)


def _trace(lines: Sequence[str]) -> str:
    shown, characters = 0, 0
    for line in lines[:TRACE_LINES_MAX]:
        characters += len(line) + 1
        if characters > TRACE_CHARACTERS_MAX:
            break
        shown += 1
    cut = "" if shown == len(lines) else f", of which the first {shown} are here"
    summary = f"<details><summary>Its trace, {len(lines)} lines{cut}</summary>"
    return f"{summary}\n\n{_fenced(lines[:shown], 'json')}\n\n</details>"


def _fenced(lines: Sequence[str], language: str = "text") -> str:
    """A block of code; its fence is longer than any in it."""
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
    return "\n".join([f"{fence}{language}", *map(printable, lines), fence])


def _cell(text: str) -> str:
    """Code in a table, where a bar would end the cell; elsewhere its backslash would be shown."""
    return _code(text.replace("|", "\\|"))


def _code(text: str) -> str:
    """Code within a line."""
    text = printable(text)
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{ticks} {text} {ticks}" if "`" in text else f"{ticks}{text}{ticks}"
