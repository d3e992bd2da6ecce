"""A summary as JUnit XML, as CI systems read it: a suite an engine, a case a property, the contract as its class."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from settled.model.trace_io import printable
from settled.proofs.report.summary import Case, Outcome, Suite

_ELEMENT = {Outcome.FAILED: "failure", Outcome.ERROR: "error", Outcome.SKIPPED: "skipped"}
_COUNT = {Outcome.FAILED: "failures", Outcome.ERROR: "errors", Outcome.SKIPPED: "skipped"}


def junit_text(suites: Sequence[Suite]) -> str:
    """The whole file. Characters that XML cannot hold are escaped."""
    root = ElementTree.Element("testsuites", {"name": "settled", **_counts([case for suite in suites for case in suite.cases])})
    for suite in suites:
        element = ElementTree.SubElement(root, "testsuite", {"name": printable(suite.subject), **_counts(suite.cases)})
        element.set("time", f"{suite.seconds:.3f}")
        for case in suite.cases:
            _add(element, suite, case)
        ElementTree.SubElement(element, "system-out").text = printable(suite.done)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    outcomes = [case.outcome for case in cases]
    return {"tests": str(len(cases)), **{name: str(outcomes.count(outcome)) for outcome, name in _COUNT.items()}}


def _add(parent: ElementTree.Element, suite: Suite, case: Case) -> None:
    attributes = {"classname": printable(f"{suite.subject}.{case.contract}"), "name": printable(case.name), "time": "0.000"}
    element = ElementTree.SubElement(parent, "testcase", attributes)
    if case.outcome is Outcome.PASSED:
        return
    told = ElementTree.SubElement(element, _ELEMENT[case.outcome], {"message": printable(case.told)})
    if case.outcome is not Outcome.SKIPPED:
        told.set("type", printable(case.property_name))
    lines = [*case.picture.splitlines(), *case.commands]
    if lines:
        told.text = "\n".join(["", *map(printable, lines), ""])
