"""Exact Pareto frontiers of stored or streamed points, on the host: numpy and polars only.

A point is on the frontier of its group if no other point of the group is at least as good in every objective and
better in one. Exact duplicates do not beat each other: all of them are kept. Rows with a NaN or an infinite objective
are never on a frontier and never push another point off it. Arrays are always **maximised**; an objective to be
minimised is negated on the way in (exact in floating point), see `Objective.sign`.

Layers, from the inside out:

* `nondominated`: one array, any number of objectives, with groups. A sieve throws out nearly everything, then a
  divide and conquer without a Python loop over points decides the rest: O(n log^(k-2) n) for k >= 3 objectives.
* `RunningFrontier`: the same for batches that arrive one after the other, in any order, with bounded memory; its
  `staircase` is the table by which a kernel drops points before they reach the host.
* `frontier`: a polars frame or scan, with filters and group columns; reads the columns it needs in batches.
* `epsilon_thin`, `thin_to`, `epsilon_front`, `tie_front`, `hypervolume`, `hypervolume_contribution`, `area`, `rank`:
  what a report says about a frontier.
"""

from __future__ import annotations

import bisect
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from sweep.errors import BadInput, closest

Floats = npt.NDArray[Any]  # float32 or float64; both are compared exactly
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

CHUNK = 1 << 16  # points sieved at a time: three float columns stay in the second-level cache
SMALL = 1 << 14  # below this no sieve is built
BUFFER = 20_000  # survivors a running frontier collects before it merges them (or twice the front, if that is more)
SIEVED_BUFFER = 1_000_000  # the same where a bar drops most of them again before they are merged
CHAMPIONS = 16
WINDOW_BITS = 4  # neighbours up to 2^4 - 1 places apart are compared directly
TABLE_CELLS = 1 << 20  # over all groups
TABLE_LEVELS, TABLE_EDGES = 256, 512
RAY_CELLS = 1 << 19  # of rays, made at a time


# ---------------------------------------------------------------------------------------------------------------------
# Objectives

_COSTS = frozenset(
    {"ttft_s", "tpot_s", "request_s", "usd_per_mtok", "usd_per_mtok_total", "usd_per_mtok_input", "usd_per_mtok_output"}
    | {"usd_per_request", "joule_per_tok", "joule_per_tok_drawn", "watts_drawn", "gpus", "layout.gpus"}
)
_MINIMISE = frozenset({"loss", "loss_sigma", "power_share", "kv_link_share", *_COSTS})
_NEVER_ZERO = _COSTS | {"tok_per_usd"}


@dataclass(frozen=True)
class Objective:
    """A column to be maximised or minimised."""

    column: str
    maximise: bool = True

    @property
    def sign(self) -> int:
        """+1 to maximise, -1 to minimise: column times sign is what the algorithms maximise."""
        return 1 if self.maximise else -1

    @property
    def rate(self) -> bool:
        """Whether the column counts tokens per second (per GPU, per user, per MW)."""
        return "tok_s" in self.column

    @property
    def positive(self) -> bool:
        """Whether 0 means "no such point" rather than a figure: rates, latencies, prices and energies."""
        return self.rate or self.column in _NEVER_ZERO

    def __str__(self) -> str:
        return f"{self.column}:{'max' if self.maximise else 'min'}"


def is_minimised(column: str) -> bool:
    """Whether less of a column is better, by its name: losses, seconds, bytes, prices and energies per token."""
    if column.endswith(("tok_s", "_per_s", "req_s")):  # a rate, though it ends like a duration
        return False
    return column in _MINIMISE or column.endswith(("_s", "_bytes", "_usd", "_per_mtok", "_per_tok"))


def parse_objectives(text: str | Iterable[str | Objective]) -> tuple[Objective, ...]:
    """Objectives from `"accuracy,tok_s_gpu,-ttft_s"` or a list of such items.

    The direction follows from the name (`is_minimised`); `-name` and `name:min` minimise, `+name` and `name:max`
    maximise whatever the name.
    """
    items = text.split(",") if isinstance(text, str) else list(text)
    parsed: list[Objective] = []
    for item in items:
        if isinstance(item, Objective):
            parsed.append(item)
            continue
        name, colon, direction = item.strip().partition(":")
        name, direction = name.strip(), direction.strip()
        if colon and direction not in ("min", "max"):
            raise BadInput(f"objectives={item.strip()}: the direction after the colon must be min or max")
        if name[:1] in ("-", "+"):
            if colon:
                raise BadInput(f"objectives={item.strip()}: give either a sign or :min/:max")
            direction, name = ("min" if name[0] == "-" else "max"), name[1:].strip()
        if not name:
            raise BadInput(f"objectives={text}: an objective is empty; write accuracy,tok_s_gpu,tok_s_user")
        parsed.append(Objective(name, direction == "max" if direction else not is_minimised(name)))
    if not parsed:
        raise BadInput("objectives: none given; write accuracy,tok_s_gpu,tok_s_user")
    names = [objective.column for objective in parsed]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"objectives={name}: given twice")
    return tuple(parsed)


# ---------------------------------------------------------------------------------------------------------------------
# The exact core


def _dense(column: npt.NDArray[Any]) -> tuple[Ints, int]:
    """Rank of each value among the distinct values, 0 for the smallest, and how many there are."""
    order = np.argsort(column)
    ordered = column[order]
    step = np.empty(len(column), dtype=np.int64)
    step[:1] = 0
    np.not_equal(ordered[1:], ordered[:-1], out=step[1:], casting="unsafe")
    np.cumsum(step, out=step)
    rank = np.empty_like(step)
    rank[order] = step
    return rank, (int(step[-1]) + 1 if len(step) else 1)


def _folded(parts: Iterable[tuple[Ints, int]], n: int) -> Ints:
    """One integer per row that orders rows as the parts do, the first part first; a part is (integers, their bound)."""
    key, bound = np.zeros(n, dtype=np.int64), 1
    for part, size in parts:
        if bound * size >= 1 << 62:
            key, bound = _dense(key)
        key, bound = key * size + part, bound * size
    return key


def _stable(key: Ints, bound: int) -> Ints:
    """`argsort(key, kind="stable")` for 0 <= key < bound, by a radix sort or a sort of packed integers if possible."""
    n = len(key)
    if bound <= 1 << 16:
        return np.argsort(key.astype(np.uint16), kind="stable")
    if bound * n < 1 << 62:
        packed = key * n
        packed += np.arange(n)
        packed.sort()
        packed %= n
        return packed
    return np.argsort(key, kind="stable")


def _beaten(segment: Ints, columns: Sequence[Ints], source: Mask | None, query: Mask | None) -> Mask:
    """Queries for which an earlier source of the same segment is at least as large in every column.

    Rows come ordered by `segment` (non-decreasing); "earlier" is the position in the arrays, which the caller sorted by
    the objective that is not among the columns. `None` means every row. Divide and conquer on the bits of the position:
    at each bit the left half of a block holds the sources and the right half the queries; all blocks of a bit are
    handled at once, ordered by (block, segment, first column descending), where one running maximum of the second
    column decides (or, with more columns, a recursion). O(n log^(c-1) n) for c columns. A beaten row is dropped at
    once: what it beats is beaten by the row that beat it.
    """
    n = len(segment)
    hit = np.zeros(n, dtype=np.bool_)
    if n < 2:
        return hit
    last = int(columns[-1].max()) + 1
    if len(columns) == 1:
        key = segment * last + columns[0]
        best = np.maximum.accumulate(key if source is None else np.where(source, key, -1))
        np.greater_equal(best[:-1], key[1:], out=hit[1:])
        return hit if query is None else hit & query

    spread = int(segment[-1]) + 1
    narrow = [*columns, segment]
    if max(n, spread) < 1 << 31:
        narrow = [column.astype(np.int32) for column in narrow]
    for shift in range(1, min(1 << WINDOW_BITS, n)):
        near = narrow[-1][:-shift] == narrow[-1][shift:]
        for column in narrow[:-1]:
            near &= column[:-shift] >= column[shift:]
        if source is not None:
            near &= source[:-shift]
        hit[shift:] |= near
    if query is not None:
        hit &= query

    live = ~hit
    if source is not None and query is not None:
        live &= source | query
    place = np.flatnonzero(live)
    first = int(columns[0].max()) + 1
    place = place[_stable(segment[place] * first + (first - 1 - columns[0][place]), first * spread)]
    if len(columns) == 2:
        flat = segment * last + columns[1]
    for bit in range((n - 1).bit_length() - 1, WINDOW_BITS - 1, -1):
        left = (place >> bit) & 1 == 0
        block = place >> (bit + 1)
        gives = left if source is None else left & source[place]
        asks = ~left if query is None else ~left & query[place]
        if len(columns) == 2:  # block and segment never decrease along this order, so their sum separates both
            key = block * last + flat[place]
            lost = asks & (np.maximum.accumulate(np.where(gives, key, -1)) >= key)
        else:
            lost = _beaten(block + segment[place], [column[place] for column in columns[1:]], gives, asks)
        hit[place[lost]] = True
        place = place[~lost]
        place = place[_stable(place >> bit, (n >> bit) + 1)]
    return hit


def _front_mask(columns: Sequence[Floats], groups: Ints | None) -> Mask:
    """Non-dominated rows of finite columns, duplicates kept."""
    n = len(columns[0])
    if n < 2:
        return np.ones(n, dtype=np.bool_)
    ranks = [_dense(column) for column in columns]
    group = (np.zeros(n, dtype=np.int64), 1) if groups is None else (groups, int(groups.max()) + 1)
    key = _folded([group, *((size - 1 - rank, size) for rank, size in ranks)], n)
    order = np.argsort(key)
    ordered = key[order]
    new = np.empty(n, dtype=np.bool_)
    new[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    one = order[new]  # one of each set of duplicates, in order
    rest = [rank[one] for rank, _ in ranks[1:]] or [np.zeros(len(one), dtype=np.int64)]
    kept = ~_beaten(group[0][one], rest, None, None)
    mask = np.empty(n, dtype=np.bool_)
    mask[order] = kept[np.cumsum(new) - 1]
    return mask


def _steps(column: Floats, count: int) -> Floats:
    """At most `count` of a column's values, ascending: all of them if they are few, or quantiles."""
    values = np.unique(column[:: 1 + len(column) // (64 * count)])
    if len(values) <= count:
        return values
    return values[np.linspace(0, len(values) - 1, count).astype(np.int64)]


def _search(edges: Floats, values: Floats, groups: Ints | None, side: Literal["left", "right"]) -> Ints:
    """`np.searchsorted` in edges [E] that all groups share, or in each point's own row of edges [G, E]."""
    if edges.ndim == 1 or groups is None:
        return np.searchsorted(edges if edges.ndim == 1 else edges[0], values, side=side)
    found = np.zeros(len(values), dtype=np.int64)
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(len(edges) + 1))
    for row, lo, hi in zip(edges, starts[:-1], starts[1:], strict=True):
        which = order[lo:hi]
        found[which] = np.searchsorted(row, values[which], side=side)
    return found


def _table(columns: Sequence[Floats], groups: Ints | None, n_groups: int, levels: Floats, edges: Floats) -> Floats:
    """T[g, l, e] = largest second column with first >= levels[l] and third >= edges[e] in group g, else -inf."""
    x, y, z = columns
    n_edges = edges.shape[-1]
    table = np.full((n_groups, len(levels), n_edges), -np.inf, dtype=y.dtype)
    level = np.searchsorted(levels, x, side="right") - 1
    edge = _search(edges, z, groups, "right") - 1
    inside = (level >= 0) & (edge >= 0)
    cell = level * n_edges + edge
    if groups is not None:
        cell += groups * (len(levels) * n_edges)
    np.maximum.at(table.reshape(-1), cell[inside], y[inside])
    for axis in (1, 2):
        backwards = np.flip(table, axis)
        np.maximum.accumulate(backwards, axis=axis, out=backwards)
    return table


class _Sieve:
    """Drops points that a given front beats, cheaply; never drops a point that the front does not beat.

    First a few champions per group (front points that do well in all objectives at once), then, with two or three
    objectives, a staircase table. Costs 5 to 30 ns per point.
    """

    def __init__(self, columns: Sequence[Floats], groups: Ints | None, n_groups: int) -> None:
        self.n_groups = n_groups
        self.champions = self._choose(columns, groups if n_groups > 1 else None)
        self.table: Floats | None = None
        if len(columns) in (2, 3) and len(columns[0]) and n_groups <= TABLE_CELLS // 16:
            x, y = columns[0], columns[1]
            z = columns[2] if len(columns) == 3 else None
            cells = max(TABLE_CELLS // n_groups, 64)
            want_levels = min(TABLE_LEVELS, max(8, math.isqrt(cells // 2))) if z is not None else min(cells, 1 << 14)
            self.levels = _steps(x, want_levels)
            self.edges = x[:0] if z is None else _steps(z, min(TABLE_EDGES, max(8, cells // len(self.levels))))
            table = _table(
                (x, y, np.zeros_like(x) if z is None else z),
                groups if n_groups > 1 else None,
                n_groups,
                self.levels,
                np.zeros(1, dtype=x.dtype) if z is None else self.edges,
            )
            # One more row and column for points above every level or edge: nothing can be said of them.
            widened = np.pad(table, ((0, 0), (0, 1), (0, 0 if z is None else 1)), constant_values=-np.inf)
            self.table = widened.reshape(-1)
            self.shape = widened.shape
            self.above_levels = np.append(self.levels, x.dtype.type(np.inf))
            self.above_edges = np.append(self.edges, x.dtype.type(np.inf))

    def _choose(self, columns: Sequence[Floats], groups: Ints | None) -> list[Floats]:
        """For each champion a row per group, as [objective, group]; -inf where there is none."""
        count = CHAMPIONS * 2 if len(columns) > 3 else CHAMPIONS if len(columns) > 1 else 1
        draws = np.random.default_rng(0).dirichlet(np.ones(len(columns)), size=count)
        draws[0] = 1 / len(columns)
        chosen = np.full((count, len(columns), self.n_groups), -np.inf, dtype=columns[0].dtype)
        n = len(columns[0])
        order = np.arange(n) if groups is None else np.argsort(groups, kind="stable")
        group = np.zeros(n, dtype=np.int64) if groups is None else groups[order]
        starts = np.searchsorted(group, np.arange(self.n_groups + 1))
        stride = 1 + np.diff(starts) // 512  # some hundred candidates per group are enough
        taken = (np.arange(n) - starts[group]) % stride[group] == 0
        order, group = order[taken], group[taken]
        if not len(order):
            return list(chosen)
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        block = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(group)))
        heights = []
        for column in columns:
            rank, _ = _dense(_folded([(group, self.n_groups), _dense(column[order])], len(order)))
            heights.append(np.log1p(rank - np.minimum.reduceat(rank, starts)[block]))
        for weights, champion in zip(draws, chosen, strict=True):
            score = weights @ np.stack(heights)
            best = np.flatnonzero(score == np.maximum.reduceat(score, starts)[block])
            best = best[np.flatnonzero(np.diff(group[best], prepend=-1))]
            for objective, column in enumerate(columns):
                champion[objective, group[best]] = column[order[best]]
        return list(chosen)

    def survivors(self, columns: Sequence[Floats], groups: Ints | None) -> Ints:
        """Positions of the points that may be on the front; non-finite ones may be among them."""
        index: Ints | None = None
        single = self.n_groups == 1 or groups is None
        current, group = list(columns), groups
        for champion in self.champions:
            weak: Mask | None = None
            strict: Mask | None = None
            for column, per_group in zip(current, champion, strict=True):
                mark = per_group[0] if single else per_group[group]
                below, under = column <= mark, column < mark
                weak = below if weak is None else np.logical_and(weak, below, out=weak)
                strict = under if strict is None else np.logical_or(strict, under, out=strict)
            assert weak is not None and strict is not None
            beaten = np.logical_and(weak, strict, out=weak)
            lost = np.count_nonzero(beaten)
            if lost * 16 < len(beaten):
                continue  # not worth a copy; a point that stays is only a point too many
            keep = np.flatnonzero(~beaten)
            index = keep if index is None else index[keep]
            current = [column[keep] for column in current]
            group = None if single or group is None else group[keep]
            if not len(index):
                return index
        if index is None:
            index = np.arange(len(columns[0]), dtype=np.int64)
        if self.table is None or not len(index):
            return index
        level = np.searchsorted(self.levels, current[0], side="left")
        cell = level if single or group is None else group * self.shape[1] + level
        better = self.above_levels[level] > current[0]
        if len(columns) == 3:
            edge = np.searchsorted(self.edges, current[2], side="left")
            cell = cell * self.shape[2] + edge
            better |= self.above_edges[edge] > current[2]
        best = self.table[cell]
        beaten = (current[1] < best) | ((current[1] == best) & better)
        return index[np.flatnonzero(~beaten)]


def _as_values(values: npt.ArrayLike) -> Floats:
    array = np.asarray(values)
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"values must be [n, k] with k >= 1, not {array.shape}")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _as_groups(groups: npt.ArrayLike | None, n: int) -> Ints | None:
    if groups is None:
        return None
    array = np.asarray(groups)
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise ValueError(f"groups must be {n} integers, not {array.dtype} {array.shape}")
    return array.astype(np.int64, copy=False)


def _usable(columns: Sequence[Floats], positive: Iterable[int]) -> Mask:
    mask = np.isfinite(columns[0])
    for column in columns[1:]:
        mask &= np.isfinite(column)
    for objective in positive:
        mask &= columns[objective] > 0
    return mask


def nondominated(values: npt.ArrayLike, groups: npt.ArrayLike | None = None, *, positive: tuple[int, ...] = ()) -> Mask:
    """Rows that no other row of their group beats.

    A row beats another if it is at least as large in every objective and larger in one. Ties are kept: of exact
    duplicates on the front all are marked. Exact for float32, float64 and integers below 2^53.

    Args:
        values: [n, k], all maximised.
        groups: [n] integers; rows compete within their group only. `None`: one group.
    Keyword args:
        positive: objectives (column numbers) that must be above 0; other rows are left out.
    Returns:
        [n] booleans; False for rows with a NaN or an infinity.
    Complexity: O(n) sieve by the front of a sample, then O(m log^(k-2) m) for m survivors (O(m log m) for k <= 3).
    """
    array = _as_values(values)
    n, k = array.shape
    columns = [array[:, objective] for objective in range(k)]
    group = _as_groups(groups, n)
    n_groups = 1
    if group is not None and n:
        n_groups = int(group.max()) + 1
        if group.min() < 0 or n_groups > max(1024, n // 64):
            group, n_groups = _dense(group)
    result = np.zeros(n, dtype=np.bool_)
    if n <= SMALL:
        index = np.arange(n)
    else:
        size = min(max(n // 40, SMALL, 256 * n_groups), 100_000, n // 2)
        index = np.unique(np.random.default_rng(0).integers(0, n, size))
        front = _front_of(columns, group, index, positive)
        sieve = _Sieve([column[front] for column in columns], None if group is None else group[front], n_groups)
        parts = []
        for start in range(0, n, CHUNK):
            stop = min(start + CHUNK, n)
            chunk = [np.ascontiguousarray(column[start:stop]) for column in columns]
            parts.append(start + sieve.survivors(chunk, None if group is None else group[start:stop]))
        index = np.concatenate(parts)
    result[_front_of(columns, group, index, positive)] = True
    return result


def _front_of(columns: Sequence[Floats], group: Ints | None, index: Ints, positive: Iterable[int]) -> Ints:
    """The part of `index` that is on the front of the rows in `index`."""
    index = index[_usable([column[index] for column in columns], positive)]
    if not len(index):
        return index
    return index[_front_mask([column[index] for column in columns], None if group is None else group[index])]


# ---------------------------------------------------------------------------------------------------------------------
# Batches


@dataclass(frozen=True)
class Front:
    """The points of a frontier: values [m, k] as maximised, group and id of each, ordered by group, then best first."""

    values: Floats
    groups: Ints
    ids: Ints

    def __len__(self) -> int:
        return len(self.ids)


class RunningFrontier:
    """The exact frontier of all points seen so far, whatever the batches and their order; ties are kept.

    Survivors of a sieve wait in a buffer and are merged when it exceeds max(20 000, 2 x front). Memory is that of the
    front, the buffer and a table of about a million cells. Group ids are integers 0 ... n_groups - 1; a higher one
    enlarges `n_groups`.
    """

    def __init__(self, n_objectives: int, n_groups: int = 1, *, positive: tuple[int, ...] = ()) -> None:
        if n_objectives < 1 or n_groups < 1:
            raise ValueError("a frontier needs an objective and a group")
        self.n_objectives = n_objectives
        self.n_groups = n_groups
        self.positive = tuple(positive)
        self.seen = 0
        self._columns: list[Floats] = [np.empty(0, dtype=np.float32) for _ in range(n_objectives)]
        self._groups: Ints = np.empty(0, dtype=np.int64)
        self._ids: Ints = np.empty(0, dtype=np.int64)
        self._buffer: list[tuple[list[Floats], Ints, Ints]] = []
        self._waiting = 0
        self._sieve: _Sieve | None = None

    def add(
        self,
        values: npt.ArrayLike,
        groups: npt.ArrayLike | int = 0,
        ids: npt.ArrayLike | None = None,
        *,
        sieved: bool = False,
    ) -> None:
        """Offer a batch.

        Args:
            values: [n, k], all maximised; float32 stays float32.
            groups: [n] group ids, or one for the whole batch.
            ids: [n] integers by which the caller knows the points; by default the running number of the row.
            sieved: whether a bar made of this frontier has let them through, so that no sieve is worth its time.
        """
        array = _as_values(values)
        n, k = array.shape
        if k != self.n_objectives:
            raise ValueError(f"{k} objectives given, {self.n_objectives} expected")
        number = np.arange(self.seen, self.seen + n) if ids is None else np.asarray(ids, dtype=np.int64)
        if number.shape != (n,):
            raise ValueError(f"{n} rows but {number.shape} ids")
        self.seen += n
        if not n:
            return
        group = np.full(n, groups, dtype=np.int64) if np.ndim(groups) == 0 else _as_groups(groups, n)
        assert group is not None
        if group.min() < 0:
            raise ValueError("group ids must not be negative")
        highest = int(group.max())
        if highest >= self.n_groups:
            self._merge()
            self.n_groups = highest + 1
            self._sieve = None
        for start in range(0, n, CHUNK):
            part = slice(start, start + CHUNK)
            columns = [np.ascontiguousarray(array[part, objective]) for objective in range(k)]
            if self._sieve is None and len(self._ids) and not sieved:
                self._build()
            sieve = None if sieved else self._sieve
            index = np.arange(len(columns[0])) if sieve is None else sieve.survivors(columns, group[part])
            index = index[_usable([column[index] for column in columns], self.positive)]
            if len(index):
                self._buffer.append(([column[index] for column in columns], group[part][index], number[part][index]))
                self._waiting += len(index)
                if self._waiting > max(SIEVED_BUFFER if sieved else BUFFER, 2 * len(self._ids)):
                    self._merge()

    def merge(self, other: RunningFrontier) -> None:
        """Take in another frontier of the same objectives and groups (a shard, another worker)."""
        front, seen = other.result(), self.seen
        self.add(front.values, front.groups, front.ids)
        self.seen = seen + other.seen

    def _build(self) -> None:
        self._sieve = _Sieve(self._columns, self._groups, self.n_groups)

    def _merge(self) -> None:
        if not self._buffer:
            return
        columns = [np.concatenate(parts) for parts in zip(self._columns, *(b[0] for b in self._buffer), strict=True)]
        groups = np.concatenate([self._groups, *(b[1] for b in self._buffer)])
        ids = np.concatenate([self._ids, *(b[2] for b in self._buffer)])
        kept = _front_mask(columns, groups if self.n_groups > 1 else None)
        self._columns = [column[kept] for column in columns]
        self._groups, self._ids = groups[kept], ids[kept]
        self._buffer, self._waiting, self._sieve = [], 0, None

    def __len__(self) -> int:
        """Points on the frontier."""
        self._merge()
        return len(self._ids)

    @property
    def candidates(self) -> int:
        """Points on the frontier when it was last merged, and those that wait: at once, where `len` has to merge."""
        return len(self._ids) + self._waiting

    def result(self) -> Front:
        """The frontier so far; adding may go on afterwards."""
        self._merge()
        order = np.lexsort((self._ids, *(-column for column in reversed(self._columns)), self._groups))
        return Front(
            np.stack([column[order] for column in self._columns], axis=1), self._groups[order], self._ids[order]
        )

    def staircase(self, levels: npt.ArrayLike, edges: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Table by which a kernel drops points of three objectives before they are stored.

            T[g, l, e] = best second objective among front points of group g
                         with first objective >= levels[l] and third >= edges[e]; -inf if there is none

        A point (x, y, z) of group g may be dropped if y < T[g, l, e] for some l, e with levels[l] >= x and
        edges[e] >= z: a front point is at least as good in x and z and better in y. Strictly smaller: with `<=` a front
        point would drop itself. For a box of points use its largest x, y and z. The entries are rounded down to
        float32, so the test is safe for float64 points too.

        Args:
            levels: [L] ascending values of the first objective, such as the accuracies that occur.
            edges: [E] ascending values of the third, or [n_groups, E] when each group has its own.
        Returns: [n_groups, L, E] float32. Complexity: O(front log(L E) + n_groups L E).
        """
        if self.n_objectives != 3:
            raise ValueError(f"a staircase needs three objectives, not {self.n_objectives}")
        steps = []
        for name, given in (("levels", levels), ("edges", edges)):
            array = np.asarray(given, dtype=np.float64)
            shapes = ((array.size,), (self.n_groups, array.shape[-1])) if name == "edges" else ((array.size,),)
            if (
                array.shape not in shapes
                or not array.size
                or np.isnan(array).any()
                or (array[..., 1:] < array[..., :-1]).any()
            ):
                raise ValueError(f"{name} must be ascending numbers")
            steps.append(array)
        self._merge()
        exact = _table([column.astype(np.float64) for column in self._columns], self._groups, self.n_groups, *steps)
        with np.errstate(over="ignore"):
            table = exact.astype(np.float32)
        return np.where(table > exact, np.nextafter(table, np.float32(-np.inf)), table)

    def rays(
        self, levels: npt.ArrayLike, ratios: npt.ArrayLike, costs: tuple[bool, bool] = (False, False)
    ) -> npt.NDArray[np.float32]:
        """How far the front of three objectives reaches along rays of the last two.

            R[l, d, g] = largest x for which some front point of group g with first objective >= levels[l] has a second
                         one >= x and a third one >= ratios[d] x; 0 if there is none

        A point on the ray (third = ratio x second) with a second objective below R is beaten by a front point of at
        least its level.

        Args:
            levels: [L] ascending values of the first objective.
            ratios: [D] ascending, above 0.
            costs: second or third objective is the negative of a cost; the rays are those of one over the cost then.
        Returns: [L, D, n_groups] float32, rounded to nearest. Complexity: O(front log(L D) + n_groups L D).
        """
        if self.n_objectives != 3:
            raise ValueError(f"rays need three objectives, not {self.n_objectives}")
        level_values, slopes = np.asarray(levels, dtype=np.float64), np.asarray(ratios, dtype=np.float64)
        for name, array in (("levels", level_values), ("ratios", slopes)):
            if array.ndim != 1 or not array.size or np.isnan(array).any() or (array[1:] < array[:-1]).any():
                raise ValueError(f"{name} must be ascending numbers")
        waiting = zip(self._columns, *(columns for columns, _, _ in self._buffer), strict=True)  # they beat as well
        first, *pair = (np.concatenate(parts).astype(np.float64) for parts in waiting)
        groups = np.concatenate([self._groups, *(group for _, group, _ in self._buffer)])
        with np.errstate(divide="ignore", invalid="ignore"):
            x, y = (-1.0 / column if cost else column for column, cost in zip(pair, costs, strict=True))
            beyond = np.searchsorted(slopes, y / x, side="right")  # the first ray that is steeper than the point's
        level = np.searchsorted(level_values, first, side="right") - 1
        usable = np.flatnonzero((level >= 0) & (x > 0) & (y > 0))
        usable = usable[np.argsort(level[usable], kind="stable")]
        n_levels, shape = len(level_values), (len(slopes), self.n_groups)
        starts = np.searchsorted(level[usable], np.arange(n_levels + 1))
        table = np.zeros((n_levels, *shape), dtype=np.float32)
        above: list[npt.NDArray[np.float32]] = []  # of the level above, as it stands
        some = max(RAY_CELLS // (shape[0] * shape[1]), 1)  # levels at a time: what is in the making stays in the cache
        for stop in range(n_levels, 0, -some):
            start = max(stop - some, 0)
            reaches, own = table[start:stop], usable[starts[start] : starts[stop]]
            rises = np.zeros_like(reaches)
            for i, (part, at, value) in enumerate(((reaches, beyond - 1, x), (rises, beyond, y))):
                inside = own[(at[own] >= 0) & (at[own] < len(slopes))]
                cell = ((level[inside] - start) * shape[0] + at[inside]) * shape[1] + groups[inside]
                np.maximum.at(part.reshape(-1), cell, value[inside].astype(np.float32))
                if above:
                    np.maximum(part[-1], above[i], out=part[-1])
                for lower in range(len(part) - 2, -1, -1):  # a level holds what higher ones do
                    np.maximum(part[lower], part[lower + 1], out=part[lower])
            for d in range(1, len(slopes)):  # flatter rays end at a point's second objective, steeper at its third
                np.maximum(reaches[:, -d - 1], reaches[:, -d], out=reaches[:, -d - 1])
                np.maximum(rises[:, d], rises[:, d - 1], out=rises[:, d])
            above = [reaches[0].copy(), rises[0].copy()]
            rises /= slopes.astype(np.float32)[:, None]
            np.maximum(reaches, rises, out=reaches)
        return table

    def drop_under(self, table: Floats, levels: Floats, ratios: Floats, costs: tuple[bool, bool], slack: float) -> None:
        """Drop points that wait to be merged and lie under rays (`rays`) by more than a relative slack.

        Far cheaper than to merge them; a point between two rays is compared with the steeper one.
        """
        left, self._waiting = [], 0
        for columns, group, ids in self._buffer:
            first, *pair = (column.astype(np.float64) for column in columns)
            with np.errstate(divide="ignore", invalid="ignore"):
                x, y = (-1.0 / column if cost else column for column, cost in zip(pair, costs, strict=True))
                ray = np.searchsorted(ratios, y / x * (1.0 - slack / 8.0))
            level = np.searchsorted(levels, first)
            known = np.flatnonzero((level < len(levels)) & (ray < len(ratios)) & (x > 0))
            limit = table[level[known], ray[known], group[known]]
            beaten = np.zeros(len(ids), dtype=np.bool_)
            beaten[known] = x[known] < limit * (1.0 - slack)
            kept = ~beaten
            left.append(([column[kept] for column in columns], group[kept], ids[kept]))
            self._waiting += int(np.count_nonzero(kept))
        self._buffer = left

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything needed to go on later, as arrays: `numpy.savez(path, **state)`."""
        front = self.result()
        return {
            "values": front.values,
            "groups": front.groups,
            "ids": front.ids,
            "n_groups": np.asarray(self.n_groups),
            "seen": np.asarray(self.seen),
            "positive": np.asarray(self.positive, dtype=np.int64),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, npt.NDArray[Any]]) -> RunningFrontier:
        """A frontier as `state` left it."""
        values = np.asarray(state["values"])
        positive = tuple(int(objective) for objective in state["positive"])
        running = cls(values.shape[1], int(state["n_groups"]), positive=positive)
        running._columns = [np.ascontiguousarray(column) for column in values.T]
        running._groups = np.asarray(state["groups"], dtype=np.int64)
        running._ids = np.asarray(state["ids"], dtype=np.int64)
        running.seen = int(state["seen"])
        return running


def under_staircase(
    values: npt.ArrayLike,
    groups: npt.ArrayLike | int,
    table: npt.NDArray[np.float32],
    levels: npt.ArrayLike,
    edges: npt.ArrayLike,
) -> Mask:
    """Points that `RunningFrontier.staircase` proves beaten: the test a kernel makes, on the host.

    Args: values [n, 3], their groups, and the table with the levels and edges it was made for. A point above all levels
    or edges, or with a NaN, is never under the staircase.
    """
    array = _as_values(values)
    level = np.searchsorted(np.asarray(levels), array[:, 0], side="left")
    group = np.broadcast_to(np.asarray(groups, dtype=np.int64), level.shape)
    edge = _search(np.asarray(edges), array[:, 2], group, "left")
    inside = (level < table.shape[1]) & (edge < table.shape[2])
    result = np.zeros(len(array), dtype=np.bool_)
    result[inside] = array[inside, 1] < table[group[inside], level[inside], edge[inside]]
    return result


# ---------------------------------------------------------------------------------------------------------------------
# Frames

_WORDS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+""")


def _known(names: Iterable[str], schema: Mapping[str, Any], key: str) -> None:
    for name in names:
        if name not in schema:
            raise BadInput(f"{key}={name}: no such column; {closest(name, schema)}")


def condition(where: str, schema: Mapping[str, Any], key: str = "where") -> pl.Expr:
    """A polars filter from an SQL condition such as `tok_s_user >= 100 and hardware = 'gb300_nvl72'`.

    Columns with a dot in their name need no quotes (`layout.tpa = 8`). Unknown columns, bad syntax and conditions that
    are not true or false are BadInput. `schema` maps the columns to polars types.
    """

    def quoted(match: re.Match[str]) -> str:
        word = match[0]
        if word[0] in "'\"":
            return word
        if word not in schema and word.split(".")[0] not in schema:
            raise BadInput(f"{key}={where}: no column {word}; {closest(word, schema)}")
        return f'"{word}"' if word in schema else word

    text = _WORDS.sub(quoted, where)
    try:
        expression = pl.sql_expr(text)
    except pl.exceptions.PolarsError as error:
        raise BadInput(f"{key}={where}: not an SQL condition ({_line(error)})") from None
    for name in expression.meta.root_names():
        if name not in schema:
            raise BadInput(f"{key}={where}: no column {name}; {closest(name, schema)}")
    try:
        kind = pl.DataFrame(schema=dict(schema)).lazy().select(expression).collect_schema().dtypes()
    except pl.exceptions.PolarsError as error:
        raise BadInput(f"{key}={where}: {_line(error)}") from None
    if kind != [pl.Boolean]:
        raise BadInput(f"{key}={where}: must be true or false for each point, not {kind[0]}")
    return expression


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _checked(objectives: Iterable[Objective], by: Sequence[str], schema: Mapping[str, pl.DataType]) -> None:
    columns = [objective.column for objective in objectives]
    _known(columns, schema, "objectives")
    _known(by, schema, "by")
    for column in columns:
        if not schema[column].is_numeric():
            raise BadInput(f"objectives={column}: not a number but {schema[column]}")


def _matrix(frame: pl.DataFrame, objectives: Sequence[Objective]) -> Floats:
    """The objectives as maximised, [n, k] stored by columns; null becomes NaN, a zero that is no figure too."""
    columns = []
    for objective in objectives:
        series = frame[objective.column]
        column = series.to_numpy() if series.dtype == pl.Float32 else series.cast(pl.Float64).to_numpy()
        if objective.positive:
            low = column <= 0
            if low.any():
                column = np.where(low, column.dtype.type(np.nan), column)
        columns.append(column if objective.maximise else -column)
    return np.stack(columns).T


class _Groups:
    """Numbers the combinations of the group columns in the order in which they turn up."""

    def __init__(self, by: Sequence[str]) -> None:
        self.by = list(by)
        self.known: pl.DataFrame | None = None

    def of(self, frame: pl.DataFrame) -> Ints:
        if not self.by:
            return np.zeros(frame.height, dtype=np.int64)
        keys = frame.select(self.by)
        fresh = keys.unique(maintain_order=True)
        start = 0
        if self.known is not None:
            start = self.known.height
            fresh = fresh.join(self.known, on=self.by, how="anti", nulls_equal=True)
        if fresh.height:
            fresh = fresh.with_columns(pl.int_range(start, start + fresh.height, dtype=pl.Int64).alias("|group"))
            self.known = fresh if self.known is None else pl.concat([self.known, fresh])
        if self.known is None or self.known.height == 1:
            return np.zeros(frame.height, dtype=np.int64)
        joined = keys.join(self.known, on=self.by, how="left", nulls_equal=True, maintain_order="left")
        return joined["|group"].to_numpy()


def _batches(rows: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    yield from rows.collect_batches(chunk_size=8 * CHUNK, maintain_order=False, engine="streaming")


def frontier(
    frame: pl.LazyFrame | pl.DataFrame,
    objectives: str | Iterable[str | Objective],
    by: Sequence[str] = (),
    where: str | None = None,
    *,
    columns: Sequence[str] | None = None,
) -> pl.DataFrame:
    """The rows on the frontier, per combination of the group columns.

    Left out before anything is compared: rows whose `feasible` is not true (if there is such a column), rows that fail
    `where`, rows with a null, NaN or infinite objective, and rows where a rate, latency, price or energy is 0 or less.
    Exact; of rows that tie in all objectives every one is kept.

    Args:
        frame: points; a LazyFrame is read twice (only the columns needed, in batches; then the rows found), so it must
            give its rows in the same order each time, as scans do.
        objectives: as for `parse_objectives`.
        by: columns that define the groups; null is a group of its own.
        where: an SQL condition, see `condition`.
    Keyword args:
        columns: the columns to return, by default all.
    Returns:
        Rows ordered by the group columns, then by the first objective from best to worst, the next, and last by their
        order in the frame.
    """
    goals = parse_objectives(objectives)
    by = [by] if isinstance(by, str) else list(dict.fromkeys(by))
    lazy = frame.lazy()
    schema = lazy.collect_schema()
    _checked(goals, by, schema)
    wanted = list(schema) if columns is None else list(columns)
    _known(wanted, schema, "columns")
    names = [goal.column for goal in goals]
    row = "row"
    while row in schema:
        row = "_" + row
    numbered = lazy.with_row_index(row)
    rows = numbered
    if "feasible" in schema:
        rows = rows.filter(pl.col("feasible").cast(pl.Boolean))
    if where is not None:
        rows = rows.filter(condition(where, schema))
    rows = rows.select(list(dict.fromkeys([row, *names, *by])))

    running, groups = RunningFrontier(len(goals)), _Groups(by)
    for batch in _batches(rows):
        if batch.height:
            running.add(_matrix(batch, goals), groups.of(batch), batch[row].to_numpy())
    ids = np.sort(running.result().ids)
    needed = list(dict.fromkeys([*wanted, *names, *by]))
    if isinstance(frame, pl.DataFrame):
        found = frame.select(needed)[ids].with_columns(pl.Series(row, ids))
    else:
        chosen = pl.Series(row, ids, dtype=pl.Int64).cast(numbered.collect_schema()[row])
        found = numbered.filter(pl.col(row).is_in(chosen.implode())).select([*needed, row]).collect(engine="streaming")
    descending = [*(False for _ in by), *(goal.maximise for goal in goals), False]
    return found.sort([*by, *names, row], descending=descending).select(wanted)


# ---------------------------------------------------------------------------------------------------------------------
# Thinning and ties


def _per_objective(given: Any, k: int, name: str) -> list[Any]:
    listed = [given] * k if isinstance(given, (bool, int, float)) else list(given)
    if len(listed) != k:
        raise ValueError(f"{name}: {len(listed)} given for {k} objectives")
    return listed


def _scaled(values: npt.ArrayLike, log: bool | Sequence[bool]) -> tuple[list[Floats], Mask]:
    """Columns in float64, logarithmic where asked (of the magnitude, keeping the order), and the rows that have all."""
    array = _as_values(values).astype(np.float64)
    columns = []
    with np.errstate(divide="ignore", invalid="ignore"):
        for column, logarithmic in zip(array.T, _per_objective(log, array.shape[1], "log"), strict=True):
            columns.append(np.sign(column) * np.log(np.abs(column)) if logarithmic else column)
    for objective, logarithmic in enumerate(_per_objective(log, array.shape[1], "log")):
        original = array[:, objective]
        if logarithmic and (original > 0).any() and (original < 0).any():
            raise ValueError(f"objective {objective} changes sign: no logarithm")
    return columns, _usable(columns, ())


def _extremes(columns: Sequence[Floats], group: Ints, index: Ints) -> Ints:
    """Per group and objective the best row; ties go to the one best in the other objectives, then to the first."""
    found = []
    for objective in range(len(columns)):
        keys = [columns[objective], *(column for other, column in enumerate(columns) if other != objective)]
        order = index[np.lexsort((index, *(-column[index] for column in reversed(keys)), group[index]))]
        found.append(order[np.flatnonzero(np.diff(group[order], prepend=-1))])
    return np.concatenate(found) if len(index) else index


def epsilon_thin(
    values: npt.ArrayLike,
    eps: float | Sequence[float],
    *,
    groups: npt.ArrayLike | None = None,
    log: bool | Sequence[bool] = False,
) -> Mask:
    """A subset without near duplicates: one row per box of side `eps`, and the best row of each objective.

    Of the rows in a box the one with the largest first objective stays, then the largest second, ..., then the first
    row: the outcome depends on the rows alone. Every row left out has a row of its group that stays within `eps` of it
    in every objective. Exact duplicates are thinned too.

    Args:
        values: [n, k], maximised, usually a front; rows with NaN or infinity (or 0 where `log`) are never kept.
        eps: side of the boxes, one number or one per objective, in the unit of the objective; where `log` is set the
            relative distance, as a natural logarithm (0.01: one per cent). 0: only equal values share a box.
    Keyword args:
        groups: [n] integers thinned separately.
        log: objectives measured by their ratio.
    Complexity: O(n log n).
    """
    columns, usable = _scaled(values, log)
    k, n = len(columns), len(usable)
    sides = _per_objective(eps, k, "eps")
    if any(not side >= 0 for side in sides):
        raise ValueError("eps must not be negative")
    group = _as_groups(groups, n)
    group = np.zeros(n, dtype=np.int64) if group is None else _dense(group)[0]
    index = np.flatnonzero(usable)
    result = np.zeros(n, dtype=np.bool_)
    if not len(index):
        return result
    parts = [(group[index], int(group.max()) + 1)]
    for column, side in zip(columns, sides, strict=True):
        parts.append(_dense(np.floor(column[index] / side) if side else column[index]))
    key = _folded(parts, len(index))
    order = np.lexsort((index, *(-column[index] for column in reversed(columns)), key))
    new = np.empty(len(order), dtype=np.bool_)
    new[0] = True
    np.not_equal(key[order][1:], key[order][:-1], out=new[1:])
    result[index[order[new]]] = True
    result[_extremes(columns, group, index)] = True
    return result


def thin_to(
    values: npt.ArrayLike,
    limit: int,
    *,
    groups: npt.ArrayLike | None = None,
    log: bool | Sequence[bool] = False,
) -> Mask:
    """`epsilon_thin` with the finest boxes (a power of two to the range of each objective) that leave at most `limit`.

    All usable rows if they are few enough. The best row of each group and objective always stays, so the result can
    exceed a limit smaller than that.
    """
    columns, usable = _scaled(values, log)
    if np.count_nonzero(usable) <= limit:
        return usable
    spans = [float(np.ptp(column[usable])) for column in columns]
    array = np.stack(columns, axis=1)
    kept = epsilon_thin(array, [2 * span for span in spans], groups=groups)
    for power in range(20):
        finer = epsilon_thin(array, [span / 2**power for span in spans], groups=groups)
        if np.count_nonzero(finer) > limit:
            break
        kept = finer
    return kept


def epsilon_front(
    values: npt.ArrayLike, eps: float, *, groups: npt.ArrayLike | None = None, objective: int = 0
) -> Mask:
    """Rows that could stand for a front point if `objective` (accuracy) is only known to within `eps`.

        row p: some front point f of its group has f <= p in every other objective and f <= p + eps in this one

    Contains the front. With `eps` 0 it is the front. Rows with NaN or infinity are left out.

    Args:
        values: [n, k], maximised.
        eps: in the unit of the objective, for instance the standard error of the accuracy proxy.
    Complexity: that of `nondominated`, without its sieve: O(n log^(k-2) n).
    """
    array = _as_values(values).astype(np.float64)
    n, k = array.shape
    if not eps >= 0:
        raise ValueError("eps must not be negative")
    group = _as_groups(groups, n)
    front = nondominated(array, groups)
    if eps == 0:
        return front
    asks = np.flatnonzero(_usable(list(array.T), ()))
    gives = np.flatnonzero(front)
    both = np.concatenate([gives, asks])
    source = np.arange(len(both)) < len(gives)
    raised = np.where(source, array[both, objective], array[both, objective] + eps)
    others = [_dense(-array[both, other])[0] for other in range(k) if other != objective]
    others = others or [np.zeros(len(both), dtype=np.int64)]
    segment = np.zeros(len(both), dtype=np.int64) if group is None else _dense(group[both])[0]
    order = np.lexsort((~source, raised, segment))  # negated: a smaller front point comes first; it precedes its ties
    hit = _beaten(segment[order], [other[order] for other in others], source[order], ~source[order])
    result = front.copy()
    result[both[order[hit]]] = True
    return result


def tie_front(
    values: npt.ArrayLike,
    kinds: npt.ArrayLike,
    eps: float,
    eps_between: float,
    *,
    groups: npt.ArrayLike | None = None,
) -> Mask:
    """Rows that no other row surely beats, where the first objective is only known to within `eps`.

        row p goes if some row q of its group has q >= p in every other objective and
            q[0] >= p[0] + eps (eps_between where their kinds differ), or both are of one design and q beats p

    So a beaten row stays if what beats it leads by less than the doubt. Rows of equal kind and first objective are of
    one design, whose doubt they share: there the exact rule holds. Contains the front. Rows with NaN or infinity are
    left out.

    Args:
        values: [n, k], maximised; the first one in doubt (minus the loss, say).
        kinds: [n] integers, such as dense 0 and mixture of experts 1.
        eps, eps_between: above 0, in the unit of the first objective.
    Complexity: that of `nondominated`, without its sieve, once per pair of kinds.
    """
    array = _as_values(values).astype(np.float64)
    if not (eps > 0 and eps_between > 0):
        raise ValueError("eps must be above 0")
    n, k = array.shape
    kind, n_kinds = _dense(np.asarray(kinds, dtype=np.int64))
    group = _as_groups(groups, n)
    group = np.zeros(n, dtype=np.int64) if group is None else _dense(group)[0] if n else np.zeros(0, dtype=np.int64)
    result = np.zeros(n, dtype=np.bool_)
    usable = np.flatnonzero(_usable(list(array.T), ()))
    if not len(usable):
        return result
    level, n_levels = _dense(array[usable, 0])
    design = _dense((group[usable] * n_kinds + kind[usable]) * n_levels + level)[0]
    kept = usable[_front_mask([array[usable, i] for i in range(k)], design)]
    if k == 1:
        others = [np.zeros(2 * len(kept), dtype=np.int64)]
    else:
        others = [np.tile(_dense(array[kept, i])[0], 2) for i in range(1, k)]
    both = np.tile(kept, 2)
    gives = np.arange(len(both)) < len(kept)
    lost = np.zeros(n, dtype=np.bool_)
    for of in range(n_kinds):
        for asked in range(n_kinds):
            lead = eps if of == asked else eps_between
            height = np.where(gives, array[both, 0], array[both, 0] + lead)
            order = np.lexsort((~gives, -height, group[both]))
            source, query = gives & (kind[both] == of), ~gives & (kind[both] == asked)
            hit = _beaten(group[both][order], [column[order] for column in others], source[order], query[order])
            lost[both[order[hit]]] = True
    result[kept] = ~lost[kept]
    return result


# ---------------------------------------------------------------------------------------------------------------------
# Hypervolume


def _sweep3(points: Floats) -> tuple[float, list[float]]:
    """Volume under three-dimensional points and the part that each alone covers, all above 0 and none beaten or equal.

    Sweeps downwards in the third coordinate over the staircase of the first two. The region that a point alone covers
    is a row of boxes, kept with the point: a new point opens boxes of its own between the old staircase and itself, and
    cuts those of its two neighbours (Emmerich and Fonseca, "Computing hypervolume contributions in low dimensions",
    2011). Amortised O(n log n) and the moves within two sorted lists.
    """
    order = np.lexsort((-points[:, 1], -points[:, 0], -points[:, 2]))
    xs, ys = [0.0, math.inf], [math.inf, 0.0]  # staircase: x ascending, y descending, a sentinel at each end
    owner = [-1, -1]
    height = points[:, 2].tolist()
    boxes: list[deque[list[float]]] = [deque() for _ in height]  # [x from, x to, y from]; y to is the owner's y
    alone = [0.0] * len(height)
    volume = 0.0
    for new, (x, y, z) in zip(order.tolist(), points[order].tolist(), strict=True):
        right = bisect.bisect_right(xs, x)
        left = right - 1
        while ys[left] <= y:
            left -= 1
        # Points between the neighbours end here.
        mine: deque[list[float]] = deque()
        start = xs[left]
        for place in range(left + 1, right):
            gone = owner[place]
            for x_from, x_to, floor in boxes[gone]:
                alone[gone] += (x_to - x_from) * (ys[place] - floor) * (height[gone] - z)
            boxes[gone].clear()
            mine.append([start, xs[place], ys[place]])
            start = xs[place]
        if x > start:
            mine.append([start, x, ys[right]])
        volume += z * math.fsum((x_to - x_from) * (y - floor) for x_from, x_to, floor in mine)
        boxes[new] = mine
        # The left neighbour loses what lies below y, the right one what lies left of x.
        other = owner[left]
        if other >= 0:
            row, top = boxes[other], height[other]
            x_to = x_from = -1.0
            while row and row[-1][2] < y:
                box = row.pop()
                alone[other] += (box[1] - box[0]) * (y - box[2]) * (top - z)
                x_from, x_to = box[0], (box[1] if x_to < 0 else x_to)
            if x_to >= 0:
                row.append([x_from, x_to, y])
        other = owner[right]
        if other >= 0:
            row, top, roof = boxes[other], height[other], ys[right]
            while row and row[0][1] <= x:
                x_from, x_to, floor = row.popleft()
                alone[other] += (x_to - x_from) * (roof - floor) * (top - z)
            if row and row[0][0] < x:
                alone[other] += (x - row[0][0]) * (roof - row[0][2]) * (top - z)
                row[0][0] = x
        xs[left + 1 : right], ys[left + 1 : right], owner[left + 1 : right] = [x], [y], [new]
    for place in range(1, len(xs) - 1):
        last = owner[place]
        for x_from, x_to, floor in boxes[last]:
            alone[last] += (x_to - x_from) * (ys[place] - floor) * height[last]
    return volume, alone


def _volume(points: Floats) -> float:
    """Volume between the origin and points above it, none beaten or equal."""
    n, k = points.shape
    if n == 0:
        return 0.0
    if k == 1:
        return float(points[:, 0].max())
    if k == 2:
        ordered = points[np.argsort(points[:, 0])]
        return float(np.diff(ordered[:, 0], prepend=0.0) @ ordered[:, 1])
    if k == 3:
        return _sweep3(points)[0]
    ordered = points[np.argsort(-points[:, -1], kind="stable")]
    return math.fsum(_alone(ordered[place], ordered[place + 1 :]) for place in range(n))


def _alone(point: Floats, others: Floats) -> float:
    """Volume under the point and under none of the others (While, Bradstreet and Barone, "WFG", 2012)."""
    limited = np.unique(np.minimum(point, others), axis=0)
    return float(np.prod(point)) - _volume(limited[_front_mask(list(limited.T), None)])


def _above(values: npt.ArrayLike, reference: npt.ArrayLike) -> tuple[Floats, Ints, int]:
    """Distinct front points relative to the reference and above it, and for each row the number of its point or -1."""
    array = _as_values(values).astype(np.float64)
    origin = np.asarray(reference, dtype=np.float64)
    if origin.shape != (array.shape[1],) or not np.isfinite(origin).all():
        raise ValueError(f"reference must be {array.shape[1]} finite numbers")
    kept = np.flatnonzero(nondominated(array - origin, positive=tuple(range(array.shape[1]))))
    points, inverse = np.unique(array[kept] - origin, axis=0, return_inverse=True)
    number = np.full(len(array), -1, dtype=np.int64)
    number[kept] = inverse.reshape(-1)
    return points, number, len(points)


def hypervolume(values: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Volume of all that the points beat and that beats the reference: one number for how good a frontier is.

    Args:
        values: [n, k], maximised; beaten rows, duplicates, rows not above the reference in every objective and rows
            that are not finite add nothing.
        reference: [k] the worst point that counts, in the units of the objectives.
    Returns: in the product of the objectives' units. Exact up to rounding in float64.
    Complexity: O(n log n) for k <= 3 (about 5 us per point at k = 3); exponential in k beyond: some hundred points.
    """
    return _volume(_above(values, reference)[0])


def hypervolume_contribution(values: npt.ArrayLike, reference: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """What each point adds to the hypervolume of the front: the volume that it alone covers.

        c[i] = hypervolume(front) - hypervolume(front without i)

    0 for rows beaten by another, not above the reference or not finite, and such rows take nothing from the others.
    Exact duplicates: 0 for each, since without one the other covers the same.

    Args: as for `hypervolume`. Complexity: O(n log n) for k <= 3, n times a hypervolume beyond.
    """
    points, number, count = _above(values, reference)
    alone = np.zeros(count + 1)  # the last one for rows that have no point
    alone[:-1] = _contributions(points)
    copies = np.bincount(number[number >= 0], minlength=count)
    alone[:-1][copies > 1] = 0.0
    return alone[number]


def _contributions(points: Floats) -> npt.NDArray[np.float64]:
    """What each of distinct front points alone covers above the origin."""
    n, k = points.shape
    if n == 0 or k == 1:
        return points[:, 0].copy() if n else np.zeros(0)
    if k == 2:
        order = np.argsort(points[:, 0])
        x, y = points[order].T
        alone = np.empty(n)
        alone[order] = np.diff(x, prepend=0.0) * (y - np.append(y[1:], 0.0))
        return alone
    if k == 3:
        return np.asarray(_sweep3(points)[1])
    return np.asarray([_alone(points[i], np.delete(points, i, axis=0)) for i in range(n)])


def area(values: npt.ArrayLike, reference: npt.ArrayLike = (0.0, 0.0)) -> float:
    """Area under the staircase of two objectives, such as tokens/s/GPU over tokens/s/user, from the reference on."""
    array = _as_values(values)
    if array.shape[1] != 2:
        raise ValueError(f"an area needs two objectives, not {array.shape[1]}")
    return hypervolume(array, reference)


def rank(
    frame: pl.DataFrame,
    objectives: str | Iterable[str | Objective],
    by: Sequence[str] = (),
    *,
    log: bool = True,
    margin: float = 0.1,
) -> pl.DataFrame:
    """The frame with a column `rank`: 1 for the row of its group that the frontier would miss most.

    Rows are ordered by hypervolume contribution after each objective is scaled to [0, 1] over the group's front; the
    reference lies `margin` below 0, so that the ends of the frontier count too. Exact duplicates share their
    contribution and follow each other in the order of the rows; beaten rows come last. Equal contributions: the better
    first objective, then the next, then the order of the rows. Rows with an unusable objective have no rank (null).

    Keyword args:
        log: scale rates, latencies, prices and energies by their logarithm: twice as fast counts the same everywhere.
        margin: as a share of the range.
    """
    goals = parse_objectives(objectives)
    by = [by] if isinstance(by, str) else list(by)
    _checked(goals, by, frame.schema)
    values = _matrix(frame, goals)
    columns, usable = _scaled(values, [log and goal.positive for goal in goals])
    scaled = np.stack(columns, axis=1) if len(usable) else np.empty((0, len(goals)))
    groups = _Groups(by).of(frame)
    ranks = np.zeros(frame.height, dtype=np.int64)
    index = np.flatnonzero(usable)
    index = index[np.argsort(groups[index], kind="stable")]
    for members in np.split(index, np.flatnonzero(np.diff(groups[index])) + 1):
        if not len(members):
            continue
        points = scaled[members]
        front = points[nondominated(points)]
        low, span = front.min(axis=0), np.ptp(front, axis=0)
        points = (points - low) / np.where(span > 0, span, 1.0)
        above, number, count = _above(points, np.full(len(goals), -margin))
        alone = np.append(_contributions(above), -1.0 if count else 0.0)[number]
        order = np.lexsort((members, *(-column for column in reversed(points.T)), -alone))
        ranks[members[order]] = np.arange(1, len(members) + 1)
    column = pl.Series("rank", ranks, dtype=pl.UInt32)
    return frame.with_columns(pl.when(pl.lit(pl.Series(usable))).then(column).alias("rank"))
