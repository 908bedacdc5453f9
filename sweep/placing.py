"""Machines of one grid with memories of one shape: the union of their tiers and of the steps that fill them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import TypeAlias

from sweep.machine import Memory, Resolved
from sweep.tiers import CLASSES, Placement, Plan, Tier

Step: TypeAlias = tuple[str, str]  # class, tier

_MAIN = Placement(
    id="hbm",
    steps=tuple((c, "hbm", 1.0) for c in CLASSES if c != "prefix"),
    overlapped=False,
    reload_overlapped=False,
    reload_fastest=False,
    idle_per_running=0.0,
)


def align(machines: Iterable[Resolved]) -> tuple[tuple[Resolved, ...], tuple[tuple[int, int], ...]]:
    """Give every machine a memory of the same tiers and steps, so that they stack into arrays.

    A step that a placement does not have places nothing; a tier that a machine does not have has no room.

    Returns: the machines, and (class, tier) of each step; no steps and the machines as they were where all bytes of
        all machines live in the main memory.
    """
    found = tuple(machines)
    if all(r.plan is None for r in found):
        return found, ()
    plans = [_plan_of(r) for r in found]
    names = list(dict.fromkeys(t for p in plans for t in p.placement.tiers()))
    steps: list[Step] = []
    for placement in dict.fromkeys(p.placement for p in plans):
        steps = merged(steps, [(c, t) for c, t, _ in placement.steps])
    aligned = []
    for r, p in zip(found, plans, strict=True):
        share, at = [0.0] * len(steps), -1
        for c, t, most in p.placement.steps:
            at = steps.index((c, t), at + 1)
            share[at] = most
        aligned.append(_with_memory(r, p, names, share))
    return tuple(aligned), tuple((CLASSES.index(c), names.index(t)) for c, t in steps)


def merged(first: Sequence[Step], second: Sequence[Step]) -> list[Step]:
    """A short sequence that holds both in their own order: what they share in order is there once."""
    out: list[Step] = []
    i = j = 0
    for block in SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks():
        out += [*first[i : block.a], *second[j : block.b], *first[block.a : block.a + block.size]]
        i, j = block.a + block.size, block.b + block.size
    return out


def _plan_of(r: Resolved) -> Plan:
    if r.plan is not None:
        return r.plan
    main = Tier(name="hbm", bytes=r.machine.hbm_bytes, bytes_per_s=r.machine.peak_bytes_per_s)
    return Plan(placement=_MAIN, tiers=(main,), unknown=r.unknown)


def _with_memory(r: Resolved, p: Plan, names: Sequence[str], share: Sequence[float]) -> Resolved:
    have = {t.name: t for t in p.tiers}
    reserved = p.reserved_in
    room = [
        0.0 if n not in have else have[n].bytes - (r.machine.reserve_bytes if have[n] is reserved else 0.0)
        for n in names
    ]
    home = next((t for t in p.placement.tiers("kv") if t in have), None)
    memory = Memory(
        tier_bytes=tuple(room),
        slowdown=tuple(p.bytes_per_s / have[n].bytes_per_s if n in have else 1.0 for n in names),
        share=tuple(share),
        home=tuple(float(n == home) for n in names),
        overlapped=float(p.placement.overlapped),
        reload_overlapped=float(p.placement.reload_overlapped),
        reload_fastest=float(p.placement.reload_fastest),
        idle_per_running=p.placement.idle_per_running,
    )
    return dataclasses.replace(r, machine=dataclasses.replace(r.machine, memory=memory))


def uses_reload(machines: Iterable[Resolved]) -> bool:
    """Whether some machine keeps prefixes in a tier of their own."""
    return any(r.plan is not None and r.plan.placement.tiers("prefix") for r in machines)
