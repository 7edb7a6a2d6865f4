"""Traces of steps, as bytes: Kineto, the execution trace of the same step, and both without private names.

Knows neither models nor where the bytes go.
"""
import json
import pathlib
import re
import tempfile

from torch.profiler import ExecutionTraceObserver, profile, schedule

import environment
import measure

WARM_UP = 2
HOST_NAME = re.compile(rb'"(host_name|username|user)":\s*"[^"]*",?\s*')
TRACE_NAME = re.compile(rb'"traceName":\s*"[^"]*"')


class NoKernels(Exception):
    """A profile of a GPU without a single kernel."""


def kineto(step, device, steps, observer=None, **options):
    """`steps` steps after two of warm-up.

    The device is idle when the first begins, so that no kernel of an earlier step runs inside the window, and the profiler
    waits for the last one's kernels before it closes.
    """
    measure.profiled_before = True
    with tempfile.TemporaryDirectory(prefix="rowmill-") as folder:
        path = pathlib.Path(folder) / "trace.json"
        profiler = profile(
            activities=list(device.activities), execution_trace_observer=observer,
            schedule=schedule(wait=0, warmup=WARM_UP, active=steps, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(str(path)), **options,
        )
        with profiler:
            for i in range(WARM_UP + steps):
                step(i)
                if i == WARM_UP - 1:
                    device.synchronize()
                profiler.step()
        data = without_names(path.read_bytes())
    if device.kind == "cuda" and b'"kernel"' not in data:
        raise NoKernels("the profile holds no kernel; hint: CUPTI must be usable (permissions, driver, another profiler)")
    return data


def linked_pair(step, device):
    """One step as (execution trace, Kineto trace), joined by `rf_id` = `Record function id`."""
    with tempfile.TemporaryDirectory(prefix="rowmill-") as folder:
        path = pathlib.Path(folder) / "execution.json"
        observer = ExecutionTraceObserver()
        observer.register_callback(str(path))
        try:
            timeline = kineto(step, device, 1, observer, record_shapes=True)
        finally:
            observer.unregister_callback()
        return without_names(path.read_bytes()), timeline


def linked_share(execution, timeline):
    """Share of the operators of the execution trace whose record-function id the timeline has."""
    ids = {event["args"].get("Record function id") for event in json.loads(timeline)["traceEvents"] if "args" in event}
    found = [attribute["value"] for node in json.loads(execution)["nodes"] for attribute in node.get("attrs", [])
             if attribute["name"] == "rf_id" and attribute["value"]]
    return sum(value in ids for value in found) / len(found) if found else 0.0


def without_names(data):
    """The same without the host's name and the beginnings of this machine's paths."""
    data = HOST_NAME.sub(b"", data, count=3)
    data = TRACE_NAME.sub(b'"traceName": "trace.json"', data)
    for path in environment.private_paths():
        data = data.replace(path.encode() + b"/", b"").replace(path.encode(), b"")
    return data
