"""The mock connector of a script: what it loads, stores and reports, as `mock_connector.py` and `workers.py` have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm

from settled.reference.engines.operations import Add, Operation, Report
from settled.reference.engines.protocol import Ending, Offer
from settled.reference.engines.setup import MOCK_CONNECTOR, EngineSetup, KVRole, SetupError
from settled.reference.engines.vllm.releases import Release

_FAILURE_POLICY = "kv_load_failure_policy"  # a setting of its own, all others go into a dictionary
_FAILED = {Ending.GOOD: "slice(0)", Ending.FIRST_FAILED: "slice(1)", Ending.ALL_FAILED: "slice(None)"}


class ScriptedConnector:
    """What the script's connector needs to know. `serves`: the script reports what its operations leave unreported.

    Raises SetupError for a connector that is not the mock.
    """

    def __init__(self, setup: EngineSetup, operations: Sequence[Operation], release: Release, *, serves: bool = False) -> None:
        if setup.connector is not None and setup.connector.name != MOCK_CONNECTOR:
            raise SetupError(f"no script for connector {setup.connector.name}: only the mock is known to one")
        self._setup = setup
        self._release = release
        self._serves = serves
        self._adds = [operation for operation in operations if isinstance(operation, Add)]
        self._reports = [operation for operation in operations if isinstance(operation, Report)]
        self._has_one_group = len(setup.groups) == 1

    @property
    def features(self) -> Mapping[str, bool]:
        """Regions of the template."""
        synchronous = [offer for offer in self._offers.values() if not offer.is_async]
        has_failures = self._has_failures
        return {
            "connector": self._setup.connector is not None,
            "synchronous": bool(synchronous),
            "synchronous_failures": self._has_one_group
            and self._release.has("failed_blocks")
            and any(offer.ending is not Ending.GOOD for offer in synchronous),
            "stores": bool(self._stored),
            "reports": any(not report.again for report in self._reports) or (self._serves and self._has_to_report),
            "block_failures": self._has_one_group and has_failures,
            "request_failures": not self._has_one_group and has_failures,
        }

    @property
    def gaps(self) -> dict[str, str]:
        """Gaps of the template."""
        synchronous = {name: offer for name, offer in self._offers.items() if not offer.is_async}
        workers = {name: offer.workers for name, offer in self._offers.items() if offer.is_async and offer.workers > 1}
        failures = self._has_failures
        return {
            "offers": _dictionary({name: str(self._available(name)) for name in self._offers}),
            "synchronous": _dictionary({name: _FAILED[offer.ending] for name, offer in synchronous.items()}),
            "and_asynchronous": " and request.request_id not in WITHIN_STEP" if synchronous else "",
            "but_synchronous": ' if transfer.kind == "store" or transfer.request_id not in WITHIN_STEP' if synchronous else "",
            "stored": "{" + ", ".join([f'"{name}"' for name in self._stored]) + "}",
            "workers": f'{workers}.get(request_id, 1) if kind == "load" else 1'.replace("'r", '"r').replace("':", '":') if workers else "1",
            "failed_parameter": ", failed=slice(0)" if failures else "",
            "failed_argument": ", failed=failed" if failures else "",
            "failed_text": "; it failed for blocks {transfer.blocks[failed]}" if failures else "",
            "has_requests": "(scheduler.has_requests() or reports)" if self.features["reports"] else "scheduler.has_requests()",
            "connector_arguments": self._arguments(),
            "connector_names": ", ".join(["KVConnectorBase_V1", "KVConnectorMetadata", *self._also_served]),
            "connector_bases": ", ".join(["KVConnectorBase_V1", *self._also_served]),
            "and_groups": ", kv_cache_config" if self._also_served else "",
        }

    def call(self, report: Report) -> str | None:
        """The call that does a report; None for one that vLLM swallows because all workers have reported before."""
        if report.again:
            return None
        arguments = [str(report.which)] if report.which else []
        if self._fails(report):
            arguments.append(f"failed={_FAILED[report.ending]}")
        return f"report({', '.join(arguments)})"

    @property
    def _also_served(self) -> list[str]:
        """What tells vLLM that the connector serves several groups."""
        return ["SupportsHMA"] if self._release.has("connector_groups") else []

    @property
    def _has_to_report(self) -> bool:
        """Whether there are transfers beside the steps: all but loads within one."""
        return bool(self._stored) or any(offer.is_async for offer in self._offers.values())

    @property
    def _has_failures(self) -> bool:
        return any(self._fails(report) for report in self._reports)

    def _fails(self, report: Report) -> bool:
        """Before releases that know failed requests, only blocks of a single group can fail; before those that know failed blocks, none."""
        can_be_told = self._release.has("failed_blocks" if self._has_one_group else "failed_requests")
        return report.ending is not Ending.GOOD and can_be_told

    @property
    def _offers(self) -> dict[str, Offer]:
        connector = self._setup.connector
        if connector is None or not connector.is_consumer:
            return {}
        return {add.request_id: add.offer for add in self._adds if add.offer is not None}

    @property
    def _stored(self) -> list[str]:
        connector = self._setup.connector
        if connector is None or connector.role is KVRole.CONSUMER:
            return []
        return [add.request_id for add in self._adds if add.is_stored]

    def _available(self, request_id: str) -> int:
        """Tokens: whole blocks of every group, or the whole prompt; a load within a step leaves one token to compute."""
        offer = self._offers[request_id]
        prompt = next(add.prompt_tokens for add in self._adds if add.request_id == request_id)
        if offer.tokens < prompt:
            alignment = lcm(*[spec.block_size for spec in self._setup.groups])
            return offer.tokens // alignment * alignment
        return prompt if offer.is_async else prompt - 1

    def _arguments(self) -> str:
        connector = self._setup.connector
        if connector is None:
            return ""
        extra = dict(connector.extra)
        policy = f', {_FAILURE_POLICY}="{extra.pop(_FAILURE_POLICY)}"' if _FAILURE_POLICY in extra else ""
        return f'kv_connector="MockConnector", kv_connector_module_path="__main__", kv_role="{connector.role.value}"{policy}'


def _dictionary(entries: Mapping[str, str]) -> str:
    return "{" + ", ".join([f'"{name}": {text}' for name, text in entries.items()]) + "}"
