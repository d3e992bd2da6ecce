"""The online check of a trace: `Monitor(config, contract)`, `feed(line, event)`, `finish()`."""

from settled.model.monitor.monitor import ALL_PROPERTIES, Monitor, default_contract
from settled.model.monitor.report import PropertyResult, Report, Verdict
from settled.model.monitor.violation import Loss, Violation

__all__ = ["ALL_PROPERTIES", "Loss", "Monitor", "PropertyResult", "Report", "Verdict", "Violation", "default_contract"]
