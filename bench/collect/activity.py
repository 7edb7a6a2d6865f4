"""What ran on the device, from the text of a Kineto trace: kernels, who launched them, and when the device was busy.

A kernel belongs to the call of the runtime with its correlation id, and that call to whatever contains it in time. Works on
traces alone: no torch, no GPU.
"""
import bisect
import collections
import json

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver")


class Timeline:
    """The events of a trace in µs, by what they are."""

    def __init__(self, data):
        events = json.loads(data)["traceEvents"]
        spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
        self.device = sorted((one for one in spans if one.get("cat") in DEVICE), key=lambda one: one["ts"])
        self.operators = [one for one in spans if one.get("cat") == "cpu_op"]
        self.annotations = [one for one in spans if one.get("cat") == "user_annotation"]
        self.launches = {one["args"]["correlation"]: one for one in spans
                         if one.get("cat") in RUNTIME and "correlation" in one.get("args", {})}
        self.steps = sorted((one for one in self.annotations if one["name"].startswith("ProfilerStep#")),
                            key=lambda one: one["ts"])

    def launch_of(self, work):
        return self.launches.get(work.get("args", {}).get("correlation"))


def end(event):
    return event["ts"] + event["dur"]


def union(events):
    """µs in which at least one of them ran."""
    total, until = 0.0, float("-inf")
    for event in sorted(events, key=lambda one: one["ts"]):
        if end(event) > until:
            total += end(event) - max(event["ts"], until)
            until = end(event)
    return total


def outermost(spans):
    """Per thread, those that no other contains; sorted by start."""
    threads = collections.defaultdict(list)
    for span in spans:
        threads[(span["pid"], span["tid"])].append(span)
    found = {}
    for thread, own in threads.items():
        kept, until = [], float("-inf")
        for span in sorted(own, key=lambda one: (one["ts"], -one["dur"])):
            if span["ts"] >= until:
                kept.append(span)
                until = end(span)
        found[thread] = kept
    return found


def around(sorted_spans, moment):
    """Of spans that do not overlap, the one that contains the moment."""
    at = bisect.bisect_right(sorted_spans, moment, key=lambda one: one["ts"]) - 1
    return sorted_spans[at] if at >= 0 and moment <= end(sorted_spans[at]) else None


def share(data):
    """Busy µs per traced step, and the parts of it by what ran.

    On a GPU the union of kernels, copies and sets over all steps; the profiler slows the host down but hardly a kernel, so
    this over the un-profiled step time is the GPU's utilization. On a CPU the union of operators on any thread within the
    steps; the rest of a step is Python and the framework between operators.
    """
    timeline = Timeline(data)
    count = max(1, len(timeline.steps))
    span = sum(step["dur"] for step in timeline.steps) / count
    if timeline.device:
        owners = outermost(timeline.operators)
        parts = collections.Counter()
        for work in timeline.device:
            parts[owner_of(work, timeline, owners)] += work["dur"] / count
        busy = union(timeline.device) / count
    else:
        tops = [one for own in outermost(timeline.operators).values() for one in own
                if around(timeline.steps, one["ts"])]
        parts = collections.Counter()
        for operator in tops:
            parts[group(operator["name"])] += operator["dur"] / count
        busy = union(tops) / count
    return {"busy_us": busy, "traced_step_us": span, "steps": count, "device": bool(timeline.device), "parts": parts}


def owner_of(work, timeline, owners):
    launch = timeline.launch_of(work)
    if work["cat"] == "gpu_memcpy" and "HtoD" in work["name"]:
        return "copy to the device"
    if launch is None:
        return "launched before the trace"
    operator = around(owners.get((launch["pid"], launch["tid"]), []), launch["ts"])
    return group(operator["name"]) if operator else "outside of operators"


GROUPS = (
    ("embedding backward", ("EmbeddingBagBackward", "embedding_bag_backward", "EmbeddingBackward",
                            "embedding_dense_backward")),
    ("embedding forward", ("embedding",)),
    ("conv backward", ("ConvolutionBackward",)),
    ("conv", ("conv",)),
    ("norm", ("BatchNorm", "batch_norm", "LayerNorm", "layer_norm")),
    ("products backward", ("AddmmBackward", "MmBackward", "BmmBackward", "LinearBackward", "UnsafeViewBackward")),
    ("products", ("linear", "addmm", "bmm", "matmul", "aten::mm")),
    ("index backward", ("IndexBackward",)),
    ("index", ("aten::index",)),
    ("concat", ("CatBackward", "aten::cat")),
    ("softmax", ("softmax", "Softmax")),
    ("copy to the device", ("aten::to", "aten::_to_copy")),
    ("pool", ("pool2d", "MaxPool", "AvgPool")),
    ("optimizer", ("Optimizer", "_foreach", "_fused", "aten::add_")),
)


def group(name):
    """The kind of an operator, by its name: the parts of a step that a picture shows."""
    bare = name.removeprefix("autograd::engine::evaluate_function: ")
    return next((kind for kind, words in GROUPS if any(word in bare for word in words)), "element-wise and other")
