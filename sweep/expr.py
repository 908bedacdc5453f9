"""Small arithmetic on keys, for `zip` and `where`: `3.5 * d_model`, `params_total < 4e11 and layout.gpus >= 8`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sweep.errors import BadInput, closest


def _round(x: Any, multiple: Any = 1) -> Any:
    """To the nearest multiple, half up; at least one multiple."""
    return np.maximum(np.floor(np.asarray(x) / multiple + 0.5), 1) * multiple


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "log2": np.log2,
    "max": lambda *a: np.maximum.reduce(np.broadcast_arrays(*a)),
    "min": lambda *a: np.minimum.reduce(np.broadcast_arrays(*a)),
    "round": _round,
    "sqrt": np.sqrt,
    "where": np.where,
}
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def _name(node: ast.expr) -> str | None:
    """The dotted name that a node spells, if it is one."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _name(node.value)
        return None if inner is None else f"{inner}.{node.attr}"
    return None


def parse(text: str, key: str) -> ast.expr:
    """The syntax tree of an expression; errors name the key it stands under."""
    try:
        return ast.parse(str(text), mode="eval").body
    except SyntaxError as error:
        raise BadInput(f"{key}={text}: not an expression ({error.msg})") from None


def names_in(text: str, key: str = "expression") -> set[str]:
    """Keys that an expression refers to."""
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        dotted = _name(node) if isinstance(node, ast.expr) else None
        if dotted is not None:
            found.add(dotted)
            return
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call):
            children = [c for c in children if c is not node.func]
        for child in children:
            walk(child)

    walk(parse(text, key))
    return {n for n in found if n not in ("true", "false", "null")}


def evaluate(text: str, values: Mapping[str, Any], key: str = "expression") -> Any:
    """Value of an expression over numbers or arrays that broadcast.

    Arithmetic, comparisons (also chained and `in` lists), `and`, `or`, `not`, and the functions of `FUNCTIONS`;
    `round(x, 128)` rounds to a multiple. Words in quotes compare with labels.
    """

    def run(node: ast.expr) -> Any:
        dotted = _name(node)
        if dotted is not None:
            if dotted in ("true", "false"):
                return dotted == "true"
            if dotted not in values:
                raise BadInput(f"{key}={text}: no key {dotted}; {closest(dotted, values)}")
            return values[dotted]
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str | bool):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _BINARY[type(node.op)](run(node.left), run(node.right))
        if isinstance(node, ast.UnaryOp):
            value = run(node.operand)
            if isinstance(node.op, ast.Not):
                return np.logical_not(value)
            return -value if isinstance(node.op, ast.USub) else +value
        if isinstance(node, ast.BoolOp):
            parts = [run(v) for v in node.values]
            joined = parts[0]
            for part in parts[1:]:
                joined = np.logical_and(joined, part) if isinstance(node.op, ast.And) else np.logical_or(joined, part)
            return joined
        if isinstance(node, ast.Compare):
            result: Any = True
            left = run(node.left)
            for op, right_node in zip(node.ops, node.comparators, strict=True):
                if isinstance(op, ast.In | ast.NotIn) and isinstance(right_node, ast.List | ast.Tuple | ast.Set):
                    held = np.isin(left, [run(e) for e in right_node.elts])
                    result = np.logical_and(result, held if isinstance(op, ast.In) else ~held)
                    continue
                right = run(right_node)
                if type(op) not in _COMPARE:
                    break
                result = np.logical_and(result, _COMPARE[type(op)](left, right))
                left = right
            else:
                return result
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id not in FUNCTIONS:
                raise BadInput(f"{key}={text}: no function {node.func.id}; {closest(node.func.id, FUNCTIONS)}")
            if not node.keywords:
                return FUNCTIONS[node.func.id](*(run(a) for a in node.args))
        raise BadInput(f"{key}={text}: cannot use {ast.unparse(node)} here")

    with np.errstate(divide="ignore", invalid="ignore"):
        return run(parse(text, key))
