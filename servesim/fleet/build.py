"""From the fleet that is asked for to engines that can be driven: every kind of replica built and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from servesim.config.build import Server, build_server
from servesim.config.fleet import FleetSpec, KindSpec
from servesim.config.server import ServerSpec
from servesim.cost.model import CostModel
from servesim.errors import InputError
from servesim.fleet.autoscale import ScaledFleet, scaling_of, with_scaling
from servesim.fleet.disaggregation import Disaggregation, Link
from servesim.fleet.fleet import Fleet, Kind
from servesim.fleet.router import ROUTERS
from servesim.fleet.usage import Worked
from servesim.runs.records import Run
from servesim.units import suggest
from servesim.workload.workload import Workload


@dataclass(slots=True, frozen=True, kw_only=True)
class Built:
    """One kind of replica, built; `count` has its data-parallel ranks in it, each of which is an engine."""

    kind: KindSpec
    server: Server
    count: int

    @property
    def name(self) -> str:
        return self.kind.name or self.server.hardware.name


@dataclass(slots=True, frozen=True, kw_only=True)
class Deployment:
    """A fleet that can be run: what was asked for, and the kinds that it comes to."""

    asked: ServerSpec
    spec: FleetSpec
    kinds: tuple[Built, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def single_engine(self) -> Server | None:
        """The one server that this is, if it is no fleet."""
        is_single = len(self.kinds) == 1 and self.kinds[0].count == 1 and self.spec.autoscale is None
        return self.kinds[0].server if is_single else None

    def without_tiers(self) -> Deployment:
        """Return the same fleet with nothing below its devices' caches."""
        kinds = []
        for built in self.kinds:
            config = replace(built.server.config, kv_tiers=())
            kinds.append(replace(built, server=replace(built.server, config=config)))
        return replace(self, kinds=tuple(kinds))

    @property
    def has_tiers(self) -> bool:
        return any(built.server.config.kv_tiers for built in self.kinds)

    def worked(self, run: Run) -> list[Worked]:
        """Return what each replica of a run of this fleet did, and how long it was paid for."""
        totals = run.engine
        assert totals is not None  # it was simulated
        if not run.replicas:
            paid_s = totals.elapsed_s if run.scaling is None else run.scaling.replica_seconds
            return [Worked(server=self.kinds[0].server, paid_s=paid_s, busy_s=totals.busy_s, steps=totals.steps)]
        servers = [built.server for built in self.kinds for _ in range(built.count)]
        return [
            Worked(
                server=servers[replica.replica],
                paid_s=totals.elapsed_s if run.scaling is None else run.scaling.seconds[replica.replica],
                busy_s=(replica.busy or 0.0) * totals.elapsed_s,
                steps=replica.steps,
            )
            for replica in run.replicas
        ]

    @property
    def can_compress_log(self) -> bool:
        """Whether every token but a request's first comes a plain decode step after the one before it, for whoever
        waits for it."""
        configs = [built.server.config for built in self.kinds]
        return all(
            config.client_timeout_s is None and not config.spec_tokens and config.adapters is None for config in configs
        )

    def describe(self) -> dict[str, Any]:
        """Return every value in force, as a document's `config` has it.

        With a fleet file the server's keys are those that were asked for, and each kind has its own, `effective`.
        """
        spec = self.spec
        fleet = spec.as_dict()
        if spec.fleet is None:
            return {**self.kinds[0].server.describe(), **fleet}
        kinds = [{**built.kind.as_dict(), "effective": built.server.describe()} for built in self.kinds]
        return {**self.asked.as_dict(), "num_blocks": None, **fleet, "fleet": {"replicas": kinds}}

    def drive(self, workload: Workload, costs: Sequence[CostModel], seed: int) -> Fleet:
        """Return the fleet over `workload`, with a cost model for each kind."""
        roles: dict[str, list[Kind]] = {"both": [], "prefill": [], "decode": []}
        for built, cost in zip(self.kinds, costs, strict=True):
            config = replace(built.server.config, seed=seed)
            kind = Kind(name=built.name, config=config, cost=cost, count=built.count)
            roles[built.kind.role].append(kind)
        spec = self.spec
        scaling = scaling_of(spec)
        if scaling is not None:
            return ScaledFleet(workload, roles["both"][0], scaling, router=spec.router, seed=seed)
        if not spec.is_disaggregated:
            return Fleet(workload, roles["both"], router=spec.router, seed=seed)
        assert spec.link_bytes_per_s is not None
        model_server = self.kinds[0].server
        return Disaggregation(
            workload,
            roles["prefill"],
            roles["decode"],
            Link(
                bytes_per_s=spec.link_bytes_per_s,
                latency_s=spec.link_latency_s,
                scope=spec.link_scope,
                overlap=spec.transfer_overlap,
            ),
            kv_bytes_per_token=model_server.plan.whole_kv_bytes_per_token,
            layers=model_server.model.layers,
            router=spec.router,
            seed=seed,
        )


def build_deployment(asked: ServerSpec, spec: FleetSpec) -> Deployment:
    """Return the fleet that `asked` and `spec` come to.

    Raises `InputError` for limits that contradict each other and `CapacityError` where memory does not suffice.
    """
    if spec.router not in ROUTERS:
        raise suggest("router", spec.router, ROUTERS)
    spec = with_scaling(spec)
    kinds = []
    for kind in spec.kinds():
        server = build_server(kind.server(asked))
        kinds.append(Built(kind=kind, server=server, count=kind.count * server.spec.data_parallel_size))
    first = kinds[0].server
    if spec.is_disaggregated:
        sent = first.plan.whole_kv_bytes_per_token
        for built in kinds:
            read = built.server.plan.whole_kv_bytes_per_token
            if read != sent:
                raise InputError(
                    f"a token's KV has {sent:,} bytes on {kinds[0].name} and {read:,} on {built.name}; "
                    "it cannot cross from one to the other"
                )
    return Deployment(
        asked=asked,
        spec=spec,
        kinds=tuple(kinds),
        notes=tuple(dict.fromkeys(note for built in kinds for note in built.server.notes)),
        warnings=tuple(dict.fromkeys(_warnings(kinds))),
    )


def _warnings(kinds: Sequence[Built]) -> list[str]:
    warnings = [warning for built in kinds for warning in built.server.warnings]
    if any(built.server.spec.data_parallel_size > 1 and built.server.model.experts is not None for built in kinds):
        warnings.append("data-parallel ranks that share experts step together in a real server; here each for itself")
    return warnings
