"""Tiers of memory and the policy that fills them: which bytes may live where.

A machine's tiers are its figures `sram_ hbm_ host_ nvme_ remote_` (bytes and bandwidth per GPU) and whatever its file
lists under `memory:`. A placement names, for each class of bytes, the tiers it may live in, first choice first, and
the order in which the classes choose. Both meet here, on the host; the cost model sees room, slowdowns and a list of
steps (`sweep.cost.placement`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweep.errors import BadInput, closest
from sweep.point import Hardware

# what is placed: everything dense, routed experts, the cache of running requests, activations, and the cache of
# conversations that wait for their next turn
CLASSES = ("weights", "experts", "kv", "activations", "prefix")
BUILT_IN = ("sram", "hbm", "host", "nvme", "remote")
READS = ("serial", "overlapped")
RELOADS = ("serial", "overlapped", "fastest")
KEYS = ("name", "order", *CLASSES, "reads", "reload", "idle_per_running")


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One kind of memory of one GPU."""

    name: str
    bytes: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A policy: for each class the tiers it may live in with the largest share that may, and who chooses first."""

    id: str
    steps: tuple[tuple[str, str, float], ...]  # class, tier, share of the class at most
    overlapped: bool
    reload_overlapped: bool
    reload_fastest: bool
    idle_per_running: float

    @property
    def plain(self) -> bool:
        """Whether all bytes live in the main memory, as without any policy."""
        return self.idle_per_running == 0 and all(tier == "hbm" and share >= 1 for _, tier, share in self.steps)

    def tiers(self, of: str | None = None) -> tuple[str, ...]:
        """Names of the tiers that a class, or any, may live in, first choice first."""
        return tuple(dict.fromkeys(tier for name, tier, _ in self.steps if of in (None, name)))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A placement on a machine: the tiers that it uses and the machine has."""

    placement: Placement
    tiers: tuple[Tier, ...]
    unknown: tuple[str, ...]  # figures that it needs and nobody has published

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth of the fastest tier in use [B/s]; NaN without any."""
        return max((t.bytes_per_s for t in self.tiers), default=math.nan)

    @property
    def capacity_bytes(self) -> float:
        """Room in all tiers in use [B]; NaN without any."""
        return sum(t.bytes for t in self.tiers) if self.tiers else math.nan

    @property
    def reserved_in(self) -> Tier | None:
        """The tier that a reserve is kept in: the main memory, or the largest where that is not in use."""
        main = [t for t in self.tiers if t.name == "hbm"]
        return main[0] if main else max(self.tiers, key=lambda t: t.bytes, default=None)

    @property
    def reserved_bytes(self) -> float:
        """Capacity that the reserve is a fraction of [B]."""
        tier = self.reserved_in
        return math.nan if tier is None else tier.bytes


def check_placement(raw: Any, name: str) -> Placement:
    """A placement from its file.

    Args:
        raw: a mapping from classes to a tier, a list of tiers, or `{tier: largest share}` entries; `order` of the
            classes; `reads`, `reload`, `idle_per_running`.
    Raises: `BadInput` naming the key.
    """
    if not isinstance(raw, Mapping):
        raise BadInput(f"placement={raw}: choose a policy")
    for key in raw:
        if key not in KEYS:
            raise BadInput(f"placement.{key}: no such key; {closest(str(key), KEYS)}")
    order = [str(c) for c in raw.get("order") or CLASSES]
    for c in order:
        if c not in CLASSES:
            raise BadInput(f"placement.order={c}: no such class; {closest(c, CLASSES)}")
    if len(set(order)) != len(order):
        raise BadInput(f"placement.order={order}: each class once")
    where = {c: _where(c, raw.get(c)) for c in CLASSES}
    for c in ("weights", "kv", "activations"):
        if not where[c]:
            raise BadInput(f"placement.{c}: must name at least one tier; known are {', '.join(BUILT_IN)}")
    where["experts"] = where["experts"] or where["weights"]
    idle = raw.get("idle_per_running") or 0
    if isinstance(idle, bool) or not isinstance(idle, int | float) or not (math.isfinite(idle) and idle >= 0):
        raise BadInput(f"placement.idle_per_running={idle}: must be a number, 0 or more")
    if idle > 0 and not where["prefix"]:
        raise BadInput("placement.prefix: must name a tier for the caches of idle_per_running conversations")
    reads, reload = str(raw.get("reads") or "serial"), str(raw.get("reload") or "serial")
    if reads not in READS:
        raise BadInput(f"placement.reads={reads}: allowed are {', '.join(READS)}")
    if reload not in RELOADS:
        raise BadInput(f"placement.reload={reload}: allowed are {', '.join(RELOADS)}")
    chosen = [*order, *(c for c in CLASSES if c not in order)]
    return Placement(
        id=name,
        steps=tuple((c, tier, share) for c in chosen for tier, share in where[c]),
        overlapped=reads == "overlapped",
        reload_overlapped=reload != "serial",
        reload_fastest=reload == "fastest",
        idle_per_running=float(idle),
    )


def _where(of: str, spec: Any) -> list[tuple[str, float]]:
    entries = [] if spec is None else [spec] if isinstance(spec, str | Mapping) else list(spec)
    found: list[tuple[str, float]] = []
    for entry in entries:
        pairs = entry.items() if isinstance(entry, Mapping) else [(entry, 1.0)]
        for tier, share in pairs:
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
                raise BadInput(f"placement.{of}.{tier}={share}: a share must lie above 0 and be at most 1")
            found.append((str(tier), float(share)))
    if len({t for t, _ in found}) != len(found):
        raise BadInput(f"placement.{of}={entries}: each tier once")
    return found


def check_memory(spec: Any, of: str) -> tuple[Tier, ...]:
    """The tiers that a machine's file lists under `memory:`, each with name, bytes and bandwidth."""
    keys = ("name", "bytes", "bytes_per_s", "link_bytes_per_s", "source")
    found: list[Tier] = []
    for i, entry in enumerate(spec or ()):
        where = f"hardware.memory[{i}]"
        if not isinstance(entry, Mapping):
            raise BadInput(f"{where}={entry}: must have {', '.join(keys[:3])}")
        for key in entry:
            if key not in keys:
                raise BadInput(f"{where}.{key}: no such key; {closest(str(key), keys)}")
        name = str(entry.get("name") or "")
        if not name or name in BUILT_IN or name in [t.name for t in found]:
            raise BadInput(f"{where}.name={name or 'null'}: a new name; {', '.join(BUILT_IN)} are keys of {of} itself")
        sizes = {}
        for key in keys[1:4]:
            value = entry.get(key)
            if value is None and key == "link_bytes_per_s":
                value = math.inf
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise BadInput(f"{where}.{key}={value}: must be greater than 0")
            sizes[key] = float(value)
        rate = min(sizes["bytes_per_s"], sizes["link_bytes_per_s"])
        found.append(Tier(name=name, bytes=sizes["bytes"], bytes_per_s=rate))
    return tuple(found)


def tiers_of(hardware: Hardware, more: Sequence[Tier] = ()) -> dict[str, Tier]:
    """Tiers of a machine by name: those with a known size and a known bandwidth.

    Host memory and flash are reached over the host link, a remote store over the scale-out network: the slower of
    memory and link counts. A tier without a published figure is left out, never guessed.
    """
    links = {"host": hardware.host_link_bytes_per_s, "nvme": hardware.host_link_bytes_per_s}
    links["remote"] = hardware.scaleout_bytes_per_s
    found: dict[str, Tier] = {}
    for name in BUILT_IN:
        size, own = getattr(hardware, f"{name}_bytes"), getattr(hardware, f"{name}_bytes_per_s")
        # a drive's own rate is needed; memory behind a link is at least as fast as the link
        known = [float(r) for r in (own, links.get(name)) if r is not None]
        if size is None or not known or (own is None and name not in ("host", "remote")) or size <= 0:
            continue
        found[name] = Tier(name=name, bytes=float(size), bytes_per_s=min(known))
    return found | {t.name: t for t in more}


def check_tiers(placements: Sequence[Placement], own: Sequence[str]) -> None:
    """Refuse a tier that no machine of the grid can have: a built-in name, or one of a machine's own.

    Raises: `BadInput` with the nearest name.
    """
    known = (*BUILT_IN, *own)
    for placement in placements:
        for of, tier, _ in placement.steps:
            if tier not in known:
                raise BadInput(f"placement.{of}={tier}: no such tier; {closest(tier, known)}")


def plan(placement: Placement, hardware: Hardware, more: Sequence[Tier] = ()) -> Plan | None:
    """A placement on a machine; None where all bytes live in the main memory anyway."""
    if placement.plain:
        return None
    have = tiers_of(hardware, more)
    unknown = [
        f"placement.{c}"
        for c in ("weights", "experts", "kv", "activations")
        if not any(tier in have for tier in placement.tiers(c))
    ]
    return Plan(
        placement=placement, tiers=tuple(have[t] for t in placement.tiers() if t in have), unknown=tuple(unknown)
    )
