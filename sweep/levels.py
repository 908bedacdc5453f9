"""A function of one point, taken apart by what each of its terms depends on, so that no term is computed twice.

The cost model is written for one point. Of its operations most depend on few of the point's numbers: how long a
projection takes, say, on the widths of the attention, the machine, one or two fields of the layout and the batch, but
neither on the experts nor on the context. `trace` records the operations once, `Program` knows on which inputs each
depends, and `factor` divides those that a configuration and a batch decide into groups whose inputs take few distinct
combinations in a grid: each group is evaluated once per combination, and configurations look their value up.

Nothing here knows the cost model: whatever formula is written there is taken apart the same way. Values are those of
the untouched function but for the order of sums (float rounding).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Calls whose operations are taken in as if they stood in the open
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}


@dataclass(frozen=True, eq=False)
class Constant:
    """A number that the function itself contains."""

    value: Any


Atom = int | Constant  # a variable by its number, or a constant


@dataclass(frozen=True, eq=False)
class Step:
    """One operation."""

    primitive: Any
    params: Mapping[str, Any]
    inputs: tuple[Atom, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Program:
    """Operations in order, and for every variable the inputs it depends on (bit i: input i)."""

    n_inputs: int
    steps: tuple[Step, ...]
    outputs: tuple[Atom, ...]
    depends: tuple[int, ...]  # by variable; inputs are variables 0 .. n_inputs - 1
    made_by: tuple[int, ...]  # step that makes a variable, -1 for inputs
    dtypes: tuple[Any, ...]  # by variable

    def of(self, atom: Atom) -> int:
        """Inputs that a variable depends on."""
        return 0 if isinstance(atom, Constant) else self.depends[atom]

    def needed(
        self, wanted: Iterable[Atom], given: Iterable[int] = (), stop: Callable[[int], bool] = lambda mask: False
    ) -> list[int]:
        """Steps, in order, that lead to the wanted variables from given ones and from those whose inputs `stop`."""
        known, seen, found = set(given), set[int](), list[int]()
        stack = [a for a in wanted if not isinstance(a, Constant)]
        while stack:
            variable = stack.pop()
            step = self.made_by[variable]
            if variable in known or step < 0 or step in seen or stop(self.depends[variable]):
                continue
            seen.add(step)
            found.append(step)
            stack.extend(a for a in self.steps[step].inputs if not isinstance(a, Constant))
        return sorted(found)

    def run(self, steps: Sequence[int], environment: dict[int, Any], wanted: Sequence[Atom]) -> list[Any]:
        """Evaluate some steps; `environment` holds what they start from and receives what they make."""

        def read(atom: Atom) -> Any:
            return atom.value if isinstance(atom, Constant) else environment[atom]

        for number in steps:
            step = self.steps[number]
            made = step.primitive.bind(*(read(a) for a in step.inputs), **step.params)
            results = made if step.primitive.multiple_results else [made]
            environment.update(zip(step.outputs, results, strict=True))
        return [read(a) for a in wanted]

    def on_host(self, steps: Sequence[int], environment: dict[int, Any]) -> None:
        """Evaluate some steps by NumPy, on arrays that broadcast against each other; nothing is compiled."""
        with np.errstate(all="ignore"):
            for number in steps:
                step = self.steps[number]
                given = [a.value if isinstance(a, Constant) else environment[a] for a in step.inputs]
                own = _NUMPY.get(step.primitive.name)
                made = own(*given, **step.params) if own is not None else _by_jax(step, given)
                environment.update(zip(step.outputs, made if isinstance(made, list) else [made], strict=True))

    def borders(self, steps: Sequence[int]) -> list[int]:
        """Variables that some steps read and do not make."""
        made = {v for number in steps for v in self.steps[number].outputs}
        read = {a for number in steps for a in self.steps[number].inputs if not isinstance(a, Constant)}
        return sorted(read - made)


def _plain(ufunc: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values, **_: ufunc(*values)


_NUMPY: dict[str, Callable[..., Any]] = {
    "select_n": lambda which, no, yes, **_: np.where(which, yes, no),
    "convert_element_type": lambda x, new_dtype, **_: np.asarray(x, dtype=new_dtype),
    "integer_pow": lambda x, y, **_: x**y,
    **{
        name: _plain(ufunc)
        for name, ufunc in {
            **{
                n: getattr(np, n)
                for n in ("exp", "exp2", "log", "log1p", "expm1", "ceil", "floor", "sqrt", "sign", "abs")
            },
            **{"add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide},
            **{"max": np.maximum, "min": np.minimum, "neg": np.negative, "pow": np.power},
            **{"gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal, "eq": np.equal},
            **{"ne": np.not_equal, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not},
        }.items()
    },
}


def _by_jax(step: Step, given: Sequence[Any]) -> list[Any]:
    """An operation that has no NumPy name, element by element."""
    varying = [i for i, a in enumerate(step.inputs) if not isinstance(a, Constant)]
    arrays = np.broadcast_arrays(*(given[i] for i in varying))

    def one(*numbers: Any) -> Any:
        values = list(given)
        for i, number in zip(varying, numbers, strict=True):
            values[i] = number
        return step.primitive.bind(*values, **step.params)

    made = jax.vmap(one)(*(jnp.asarray(a.reshape(-1)) for a in arrays))
    results = made if step.primitive.multiple_results else [made]
    return [np.asarray(r).reshape(arrays[0].shape) for r in results]


def trace(function: Callable[..., Any], *arguments: Any) -> tuple[Program, Any]:
    """Record the operations of a function of numbers.

    Args:
        function: of pytrees of scalars; returns a pytree of scalars.
        arguments: examples, whose values do not matter.
    Returns: the program, whose inputs are the leaves of the arguments, and the structure of its outputs.
    Equal operations on equal variables are recorded once.
    """
    leaves, tree = jax.tree.flatten(arguments)
    result: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        out, structure = jax.tree.flatten(function(*jax.tree.unflatten(tree, values)))
        result[:] = [structure]
        return out

    closed = jax.make_jaxpr(flat)(*leaves)
    recorder = _Recorder([v.aval.dtype for v in closed.jaxpr.invars])

    def inline(jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Atom]) -> list[Atom]:
        scope: dict[Any, Atom] = dict(zip(jaxpr.invars, inputs, strict=True))
        scope |= {v: Constant(c) for v, c in zip(jaxpr.constvars, constants, strict=True)}

        def read(v: Any) -> Atom:
            return Constant(np.asarray(v.val, dtype=v.aval.dtype)) if hasattr(v, "val") else scope[v]

        for equation in jaxpr.eqns:
            given = tuple(read(v) for v in equation.invars)
            inner = equation.params.get(_CALLS.get(equation.primitive.name, ""))
            if inner is not None:
                made: Sequence[Atom] = inline(inner.jaxpr, inner.consts, given)
            else:
                dtypes = [v.aval.dtype for v in equation.outvars]
                made = recorder.record(equation.primitive, equation.params, given, dtypes)
            scope.update(zip(equation.outvars, made, strict=True))
        return [read(v) for v in jaxpr.outvars]

    return recorder.program(inline(closed.jaxpr, closed.consts, range(len(leaves)))), result[0]


class _Recorder:
    """A program in the making; equal operations on equal variables are recorded once."""

    def __init__(self, dtypes: Sequence[Any]):
        self.n_inputs = len(dtypes)
        self.steps: list[Step] = []
        self.depends = [1 << i for i in range(len(dtypes))]
        self.made_by = [-1] * len(dtypes)
        self.dtypes = list(dtypes)
        self._known: dict[Any, tuple[int, ...]] = {}

    def record(
        self, primitive: Any, params: Mapping[str, Any], inputs: tuple[Atom, ...], dtypes: Sequence[Any]
    ) -> Sequence[Atom]:
        """What an operation makes."""
        same = _simple(primitive.name, inputs, params)
        if same is not None:
            return [same]

        def name(atom: Atom) -> Any:
            if isinstance(atom, int):
                return atom
            value = np.asarray(atom.value)
            return (str(value.dtype), value.shape, value.tobytes())

        given = tuple(name(a) for a in inputs)
        key = (primitive, tuple(sorted((k, str(v)) for k, v in params.items())), given)
        if key not in self._known:
            numbers = tuple(range(len(self.depends), len(self.depends) + len(dtypes)))
            mask = 0
            for atom in inputs:
                mask |= self.depends[atom] if isinstance(atom, int) else 0
            self.depends.extend([mask] * len(numbers))
            self.made_by.extend([len(self.steps)] * len(numbers))
            self.dtypes.extend(dtypes)
            self.steps.append(Step(primitive, params, inputs, numbers))
            self._known[key] = numbers
        return self._known[key]

    def program(self, outputs: Sequence[Atom]) -> Program:
        """What was recorded."""
        return Program(
            n_inputs=self.n_inputs,
            steps=tuple(self.steps),
            outputs=tuple(outputs),
            depends=tuple(self.depends),
            made_by=tuple(self.made_by),
            dtypes=tuple(self.dtypes),
        )


_SUMS, _PRODUCTS = ("add", "add_any", "sub"), ("mul", "div")


def regroup(program: Program, parts: Sequence[Callable[[int], bool]]) -> Program:
    """The same program with the terms of its widest sums and the factors of its widest products in another order.

    Args:
        parts: sets of inputs as conditions on what a variable depends on; a variable that is in none is wide.
    Returns: a program whose wide sums and products take first together what one part alone decides, so that this is
    done once for all values of the other inputs. Values differ by rounding.
    """

    def part(atom: Atom) -> int:
        mask = program.of(atom)
        return next((i for i, inside in enumerate(parts) if inside(mask)), len(parts))

    wide = len(parts)
    uses: dict[int, int] = {}
    for step in program.steps:
        for atom in step.inputs:
            if isinstance(atom, int):
                uses[atom] = uses.get(atom, 0) + 1
    for atom in program.outputs:
        if isinstance(atom, int):
            uses[atom] = uses.get(atom, 0) + 2  # an output is never dissolved in another
    recorder = _Recorder(program.dtypes[: program.n_inputs])
    place: dict[int, Atom] = {i: i for i in range(program.n_inputs)}

    def family(atom: Atom) -> tuple[str, ...]:
        made = -1 if isinstance(atom, Constant) else program.made_by[atom]
        name = program.steps[made].primitive.name if made >= 0 else ""
        return next((f for f in (_SUMS, _PRODUCTS) if name in f), ())

    def opened(atom: Atom, kind: tuple[str, ...], inverse: bool, found: list[tuple[Atom, bool]]) -> None:
        """Terms or factors of a wide variable, and whether each is subtracted or divided by."""
        assert isinstance(atom, int)
        step = program.steps[program.made_by[atom]]
        for i, given in enumerate(step.inputs):
            turned = inverse != (i == 1 and step.primitive.name in ("sub", "div"))
            inner = isinstance(given, int) and uses[given] == 1 and part(given) == wide
            if inner and family(given) == kind and not (turned and kind is _PRODUCTS):
                opened(given, kind, turned, found)
            else:
                found.append((given, turned))

    def again(atom: Atom) -> Atom:
        return place[atom] if isinstance(atom, int) else atom

    def folded(found: Sequence[tuple[Atom, bool]], kind: tuple[str, ...], dtype: Any) -> Atom:
        """Terms or factors of one part in their order, what is taken away or divided by last."""
        straight, turned = ([a for a, t in found if t == which] for which in (False, True))
        ahead, back = (jax.lax.add_p, jax.lax.sub_p) if kind is _SUMS else (jax.lax.mul_p, jax.lax.div_p)
        if not straight:
            straight = [Constant(np.asarray(0.0 if kind is _SUMS else 1.0, dtype=dtype))]
        total = straight[0]
        for atoms, primitive in ((straight[1:], ahead), (turned, back)):
            for atom in atoms:
                (total,) = recorder.record(primitive, {}, (total, atom), [dtype])
        return total

    dissolved: set[int] = set()
    roots: dict[int, tuple[tuple[str, ...], list[tuple[Atom, bool]]]] = {}
    for step in reversed(program.steps):
        made = step.outputs[0]
        kind = family(made)
        if kind and made not in dissolved and part(made) == wide and np.issubdtype(program.dtypes[made], np.floating):
            found: list[tuple[Atom, bool]] = []
            opened(made, kind, False, found)
            roots[made] = kind, found
            stack = [made]
            while stack:  # what was opened on the way
                for given in program.steps[program.made_by[stack.pop()]].inputs:
                    inner = isinstance(given, int) and uses[given] == 1 and part(given) == wide
                    if inner and family(given) == kind and not any(a == given for a, _ in found):
                        dissolved.add(given)  # type: ignore[arg-type]
                        stack.append(given)  # type: ignore[arg-type]
    for step in program.steps:
        made = step.outputs[0]
        if made in dissolved:
            continue
        if made not in roots:
            inputs, dtypes = tuple(again(a) for a in step.inputs), [program.dtypes[v] for v in step.outputs]
            outputs = recorder.record(step.primitive, step.params, inputs, dtypes)
            place.update(zip(step.outputs, outputs, strict=True))
            continue
        kind, found = roots[made]
        dtype = program.dtypes[made]
        whole: list[tuple[Atom, bool]] = []
        for i in (*range(len(parts)), wide):
            own = [(again(a), turned) for a, turned in found if part(a) == i]
            if not own:
                continue
            if i == wide or (len(own) == 1 and (kind is _SUMS or not own[0][1])):
                whole.extend(own)
            else:
                whole.append((folded(own, kind, dtype), False))
        place[made] = folded(whole, kind, dtype)
    return recorder.program([again(a) for a in program.outputs])


def factors(program: Program, atom: Atom, opened: Callable[[int], bool]) -> list[tuple[Atom, int]]:
    """The factors whose product a variable is, with power 1 or -1: products and quotients with `opened` are opened."""
    found: list[tuple[Atom, int]] = []
    stack: list[tuple[Atom, int]] = [(atom, 1)]
    while stack:
        factor, power = stack.pop()
        step = -1 if isinstance(factor, Constant) else program.made_by[factor]
        name = program.steps[step].primitive.name if step >= 0 else ""
        if name in _PRODUCTS and opened(factor):  # type: ignore[arg-type]
            left, right = program.steps[step].inputs
            stack += [(left, power), (right, -power if name == "div" else power)]
        else:
            found.append((factor, power))
    return found


_FOLDED = {"add": np.add, "add_any": np.add, "mul": np.multiply, "sub": np.subtract}


def _simple(name: str, inputs: Sequence[Atom], params: Mapping[str, Any]) -> Atom | None:
    """What an operation comes to without being done: x + 0, x * 1, 0 * x, and constants; `None` for all others.

    0 * x is 0 here even where x is infinite: of something that is not there, no amount costs anything.
    """
    if name == "convert_element_type" and isinstance(inputs[0], Constant):
        return Constant(np.asarray(inputs[0].value, dtype=params["new_dtype"]))
    if name not in _FOLDED:
        return None
    one, other = inputs
    if isinstance(one, Constant) and isinstance(other, Constant):
        return Constant(_FOLDED[name](one.value, other.value))
    for x, constant in ((one, other), (other, one)):
        if isinstance(constant, Constant) and np.ndim(constant.value) == 0:
            if constant.value == (1.0 if name == "mul" else 0.0) and (name != "sub" or constant is other):
                return x
            if name == "mul" and constant.value == 0.0:
                return constant
    return None


# --- terms of sums, grouped --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Sums of terms that are evaluated once per distinct combination of their inputs."""

    depends: int
    sums: tuple[tuple[int, tuple[int, ...]], ...]  # variable that each sum is part of, its terms


@dataclass(frozen=True)
class Factored:
    """Variables rewritten as sums over groups, and of terms that stay where they are."""

    groups: tuple[Group, ...]
    rest: tuple[tuple[int, tuple[Atom, ...]], ...]  # variable, its terms that are in no group


def terms(program: Program, variable: int, opened: Callable[[int], bool]) -> list[Atom]:
    """The terms whose sum a variable is: additions are opened as long as `opened` holds for their result."""
    found: list[Atom] = []
    stack: list[Atom] = [variable]
    while stack:
        atom = stack.pop()
        step = -1 if isinstance(atom, Constant) else program.made_by[atom]
        is_sum = step >= 0 and program.steps[step].primitive.name in ("add", "add_any")
        if is_sum and (atom == variable or opened(atom)):  # type: ignore[arg-type]
            stack.extend(program.steps[step].inputs)
        else:
            found.append(atom)
    return found


class _Part:
    """A group in the making: what it depends on, its sums, the operations it takes."""

    def __init__(self, depends: int, sums: dict[int, tuple[int, ...]], steps: frozenset[int], count: float):
        self.depends, self.sums, self.steps, self.count = depends, sums, steps, count

    def cost(self, rows: float, lookup: float) -> float:
        """Operations: of all combinations, and of looking the sums up for every row."""
        return self.count * len(self.steps) + rows * lookup * len(self.sums)


def factor(
    program: Program,
    variables: Sequence[int],
    *,
    wide: Callable[[int], bool],
    count: Callable[[int], float],
    rows: float,
    lookup: float = 30.0,
) -> Factored:
    """Divide the terms of some sums into groups so that the whole costs least.

    Args:
        variables: sums to be rewritten; one that is a term of another stays whole there.
        wide: whether a set of inputs makes a number of the level that is to be saved.
        count: distinct combinations of a set of inputs in the grid.
        rows: configurations of the grid.
        lookup: what looking a value up costs, in operations.
    Greedy: terms of equal inputs start together, then the two groups whose union saves most are joined while any does;
    groups that cost more than their own operations for every row are given up.
    """
    whole = set(variables)

    def work(found: Iterable[int]) -> frozenset[int]:
        steps = program.needed(found, stop=lambda mask: not wide(mask))
        return frozenset(s for s in steps if wide(program.depends[program.steps[s].outputs[0]]))

    rest: dict[int, list[Atom]] = {v: [] for v in variables}
    start: dict[int, dict[int, list[int]]] = {}
    for variable in variables:
        for term in terms(program, variable, lambda v: v not in whole and wide(program.depends[v])):
            itself = isinstance(term, int) and term in whole and term != variable
            if isinstance(term, Constant) or itself or not wide(program.of(term)):
                rest[variable].append(term)
            else:
                start.setdefault(program.of(term), {}).setdefault(variable, []).append(term)

    def part(depends: int, sums: Mapping[int, Sequence[int]]) -> _Part:
        steps = work([t for ts in sums.values() for t in ts])
        return _Part(depends, {v: tuple(ts) for v, ts in sums.items()}, steps, count(depends))

    def join(a: _Part, b: _Part) -> _Part:
        sums = {v: (*a.sums.get(v, ()), *b.sums.get(v, ())) for v in {**a.sums, **b.sums}}
        depends = a.depends | b.depends
        return _Part(depends, sums, a.steps | b.steps, count(depends))

    parts = [part(depends, sums) for depends, sums in start.items()]
    joined: dict[tuple[int, int], tuple[float, _Part]] = {}

    def consider(a: _Part, b: _Part) -> None:
        both = join(a, b)
        saved = a.cost(rows, lookup) + b.cost(rows, lookup) - both.cost(rows, lookup)
        if saved > 0:
            joined[id(a), id(b)] = saved, both

    for i, one in enumerate(parts):
        for other in parts[:i]:
            consider(one, other)
    while joined:
        pair = max(joined, key=lambda key: joined[key][0])
        both = joined[pair][1]
        parts = [p for p in parts if id(p) not in pair]
        joined = {key: value for key, value in joined.items() if not {*key} & {*pair}}
        for other in parts:
            consider(both, other)
        parts.append(both)
    kept = [p for p in parts if p.cost(rows, lookup) < rows * len(p.steps)]
    for given_up in parts:
        if given_up not in kept:
            for variable, found in given_up.sums.items():
                rest[variable].extend(found)
    return Factored(
        groups=tuple(Group(depends=p.depends, sums=tuple(sorted(p.sums.items()))) for p in kept),
        rest=tuple((v, tuple(rest[v])) for v in sorted(variables)),
    )
