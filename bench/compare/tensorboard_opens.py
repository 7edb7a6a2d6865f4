#!/usr/bin/env python3
"""Checks that TensorBoard reads the figures of a run as `metrics.jsonl` has them.

    python bench/compare/tensorboard_opens.py RUN

Prints JSON; exits 1 where a figure is missing or differs. Needs tensorboard.
"""
import json
import pathlib
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def numbers(value, outer=""):
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from numbers(inner, f"{outer}{name}/")
        elif isinstance(inner, (int, float)) and not isinstance(inner, bool) and name != "step":
            yield f"{outer}{name}", inner


def main():
    run = pathlib.Path(sys.argv[1])
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    found = {(tag, event.step): event.value for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}
    wanted = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(line)
        wanted.update({(name, line["step"]): number for name, number in numbers(line)})
    wrong = [key for key, number in wanted.items() if abs(found.get(key, 1e30) - number) > 1e-6 * max(1, abs(number))]
    print(json.dumps({"figures": len(wanted), "found": len(found), "wrong": wrong[:3]}))
    sys.exit(0 if wanted and not wrong and len(found) == len(wanted) else 1)


if __name__ == "__main__":
    main()
