"""Figures with labels: what one process tells of itself, and what the store says of all of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ..domain.tallies import Histogram

Labels = tuple[str, ...]
Told = Sequence[tuple[Sequence[str], Any]]  # as JSON: the values of the labels, and the figure


@dataclass(frozen=True)
class Counters:
    """Counts that only rise, one for each set of labels that `read` finds."""

    meaning: str
    labels: Labels
    read: Callable[[], Mapping[Labels, float]]

    def told(self) -> Told:
        """For other processes."""
        return [(list(labels), count) for labels, count in sorted(self.read().items())]

    def family(self, name: str, more: Labels = ()) -> CounterMetricFamily:
        """Empty; `more` are labels beside its own."""
        return CounterMetricFamily(name, self.meaning, labels=[*self.labels, *more])

    @staticmethod
    def add(family: Any, labels: Sequence[str], figure: Any) -> None:
        """One line."""
        family.add_metric(labels, figure)


@dataclass(frozen=True)
class Histograms:
    """Distributions, one for each set of labels that `read` finds."""

    meaning: str
    labels: Labels
    read: Callable[[], Mapping[Labels, Histogram]]

    def told(self) -> Told:
        """See `Counters.told`."""
        found = sorted(self.read().items(), key=lambda item: item[0])
        return [(list(labels), (each.buckets(), each.sum)) for labels, each in found]

    def family(self, name: str, more: Labels = ()) -> HistogramMetricFamily:
        """See `Counters.family`."""
        return HistogramMetricFamily(name, self.meaning, labels=[*self.labels, *more])

    @staticmethod
    def add(family: Any, labels: Sequence[str], figure: Any) -> None:
        """See `Counters.add`."""
        buckets, total = figure
        family.add_metric(labels, [tuple(each) for each in buckets], total)


Families = Mapping[str, Counters | Histograms]


class Labelled(Collector):
    """The families of one process, or of several by their number."""

    def __init__(self, families: Families, told: Mapping[str | None, Mapping[str, Told]]) -> None:
        self._families, self._told = families, told

    def collect(self) -> Iterable[CounterMetricFamily | HistogramMetricFamily]:
        """See `Collector.collect`."""
        several = None not in self._told
        for name, each in self._families.items():
            family = each.family(name, ("process",) if several else ())
            for process, figures in self._told.items():
                for labels, figure in figures.get(name, ()):
                    whose = () if process is None else (process,)
                    each.add(family, [*labels, *whose], figure)
            yield family


class OwnFamilies(Collector):
    """Those of this process, as they are when they are asked for."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterable[CounterMetricFamily | HistogramMetricFamily]:
        """See `Collector.collect`."""
        told = {name: each.told() for name, each in self._families.items()}
        yield from Labelled(self._families, {None: told}).collect()


# What is the same whoever is asked: it has no label of a process.
OF_THE_STORE: Mapping[str, str] = {
    "outlast_store_up": "1 while the store answers; else no other figure of the store is told.",
    "outlast_queue_depth": "Tasks that wait for a worker.",
    "outlast_queue_oldest_seconds": "For how long the first of them has waited.",
    "outlast_tasks_held": "Tasks that workers hold, all processes together.",
    "outlast_outbox_depth": "Webhook deliveries that wait or are on their way.",
    "outlast_outbox_oldest_seconds": "For how long the first one has been due.",
    "outlast_expiry_lag_seconds": "For how long the first task has been there beyond its time.",
    "outlast_audit_lag_events": "Positions of the log that the Merkle tree has not reached yet.",
    "outlast_audit_unsigned_leaves": "Leaves of the tree that no checkpoint covers yet.",
    "outlast_audit_checkpoint_age_seconds": "The age of the newest checkpoint.",
}


class OfTheStore(Collector):
    """Those of them that could be read."""

    def __init__(self, found: Mapping[str, float]) -> None:
        self._found = found

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """See `Collector.collect`."""
        for name, meaning in OF_THE_STORE.items():
            if name in self._found:
                yield GaugeMetricFamily(name, meaning, value=self._found[name])
