"""`codesign <pipeline> ...`: the installed form of `python -m pipelines.<pipeline> ...`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from sweep.errors import closest


def available() -> dict[str, str]:
    """Pipelines and their first line of help."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        module = importlib.import_module(f"pipelines.{path.stem}")
        found[path.stem] = (module.__doc__ or "").strip().splitlines()[0]
    return found


def main() -> None:
    """List the pipelines, or run one."""
    words = sys.argv[1:]
    pipelines = available()
    if not words or words[0] in ("-h", "--help"):
        print("codesign <pipeline> [...]; each has --help\n")
        for name, line in pipelines.items():
            print(f"  {name:12} {line}")
        sys.exit(0)
    if words[0] not in pipelines:
        print(f"codesign {words[0]}: no such pipeline; {closest(words[0], pipelines)}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [f"codesign {words[0]}", *words[1:]]
    sys.exit(importlib.import_module(f"pipelines.{words[0]}").main())


if __name__ == "__main__":
    main()
