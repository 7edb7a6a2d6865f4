#!/usr/bin/env python3
"""Tries the scripts of this folder where there is no GPU: resuming, memory that runs out, a made GPU for what needs CUDA.

    python bench/collect/selftest.py                              a minute at most
    python bench/collect/selftest.py --rowmill BINARY TRACE...    the busy time of these traces is that of rowmill
"""
import contextlib
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

import environment
import activity
import antipatterns
import cases
import collect
import device as devices
import kernels
import measure
import microbench
import models
import profiles
import report
import suite
import torch

HERE = pathlib.Path(__file__).resolve().parent
# What is tried is small: threads that wait for each other on a busy machine would take most of the time.
torch.set_num_threads(1)


class MadeEvent:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self):
        self.at = max(self.gpu.free_at, time.perf_counter())

    def elapsed_time(self, later):
        return 1e3 * (later.at - self.at)


class MadeGraph:
    def replay(self):
        self.replayed = True


class MadeGpu:
    """torch.cuda as far as device.py uses it: one queue that works one piece after the other, beside the host."""

    def __init__(self):
        self.free_at = 0.0
        self.allocated = 1 << 20

    def enqueue(self, seconds):
        self.free_at = max(self.free_at, time.perf_counter()) + seconds

    def synchronize(self):
        while time.perf_counter() < self.free_at:
            pass

    def Event(self, enable_timing):
        assert enable_timing
        return MadeEvent(self)

    def Stream(self):
        return self

    current_stream = Stream

    def wait_stream(self, other):
        assert other is self

    def stream(self, stream):
        return contextlib.nullcontext()

    def CUDAGraph(self):
        return MadeGraph()

    def graph(self, graph):
        return contextlib.nullcontext()

    def mem_get_info(self):
        return 100 << 30, 141 << 30

    def max_memory_allocated(self):
        return self.allocated

    def reset_peak_memory_stats(self):
        self.allocated = 0

    def empty_cache(self):
        pass

    def get_device_properties(self, _):
        names = ("name", "major", "minor", "multi_processor_count", "total_memory", "uuid")
        return type("Facts", (), dict(zip(names, ("Made GPU", 9, 0, 132, 141 << 30, "0-1"))))


class MadeCuda(devices.Cuda):
    """The GPU branch of every script; tensors stay on the CPU."""

    def __init__(self):
        super().__init__(MadeGpu(), "cpu")

    def pinned(self, tensor):
        return tensor.clone()


class Arguments:
    device, quick, seed, limit, budget, retry_failed = "cuda", True, 1, 60, 2, False


class Folder(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory(prefix="rowmill-")
        self.addCleanup(held.cleanup)
        self.folder = pathlib.Path(held.name) / "suite"
        said = io.StringIO()
        redirected = contextlib.redirect_stderr(said)
        redirected.__enter__()
        self.addCleanup(redirected.__exit__, None, None, None)

    def suite(self, **identity):
        return suite.Suite(self.folder, {"device": "cuda", "quick": True, "seed": 1, **identity})


class Times(unittest.TestCase):
    BOUNDS = measure.Bounds(least=20, most=20, seconds=0.1, seconds_most=5.0, warm_up=2)

    def test_a_gpu_that_is_behind_gives_the_times_of_its_work(self):
        device = MadeCuda()
        measured = measure.step_times(lambda i: device.cuda.enqueue(2e-3), device, self.BOUNDS)
        self.assertEqual((measured["steps"], measured["timer"], len(measured["samples_us"])), (20, "cuda events", 20))
        self.assertAlmostEqual(measured["step_us"]["median"], 2000, delta=1)
        self.assertAlmostEqual(measured["wall_us_mean"], 2000, delta=400)
        self.assertGreaterEqual(measured["synchronized_us"]["p5"], 2000)

    def test_a_gpu_that_waits_gives_the_times_of_the_host(self):
        device = MadeCuda()

        def step(i):
            device.cuda.enqueue(1e-5)
            time.sleep(2e-3)

        measured = measure.step_times(step, device, self.BOUNDS)
        self.assertGreaterEqual(measured["step_us"]["p5"], 1900)

    def test_slow_steps_are_fewer(self):
        self.assertEqual(measure.FULL.count(pilot_seconds=1e-3), 500)
        self.assertEqual(measure.FULL.count(pilot_seconds=0.1), 100)
        self.assertEqual(measure.FULL.count(pilot_seconds=1.0), 30)
        self.assertEqual(measure.QUICK.count(pilot_seconds=60.0), 10)

    def test_percentiles_are_in_order(self):
        spread = measure.percentiles([5.0, 1.0, 3.0, 2.0, 4.0])
        self.assertEqual((spread["p5"], spread["median"], spread["p95"]), (1.2, 3.0, 4.8))


class Runs(Folder):
    def add(self, kept, run, work=lambda: None):
        def make():
            kept.add(run, f"collect/{run}.json.gz", b"{}", "kineto")
            return work()

        kept.perform(run, devices.Cpu(), make)

    def statuses(self):
        content = json.loads((self.folder / suite.LIST).read_text())
        there = sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.gz"))
        return {one["id"]: one["status"] for one in content["runs"]}, there

    def test_a_finished_run_is_kept_and_others_go_on(self):
        ran = []

        def fail():
            raise ValueError(f"no such thing in {environment.ROOT}/x")

        def find_no_memory():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

        for _ in range(2):
            with self.suite() as kept:
                self.add(kept, "a", lambda: ran.append("a"))
                self.add(kept, "b", fail)
                self.add(kept, "c", find_no_memory)
                self.add(kept, "d", lambda: ran.append("d"))
        self.assertEqual(ran, ["a", "d"])
        statuses, files = self.statuses()
        self.assertEqual(statuses, {"a": "done", "b": "failed", "c": "out_of_memory", "d": "done"})
        self.assertEqual(files, ["collect/a.json.gz", "collect/d.json.gz"])
        self.assertNotIn(str(environment.ROOT), (self.folder / suite.LIST).read_text())
        with self.suite() as kept:
            kept.forget_failed()
            self.add(kept, "b", lambda: ran.append("b"))
        self.assertEqual(self.statuses()[0]["b"], "done")

    def test_an_interruption_keeps_what_was_finished(self):
        def interrupt():
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt), self.suite() as kept:
            self.add(kept, "a")
            self.add(kept, "b", interrupt)
        self.assertEqual(self.statuses(), ({"a": "done"}, ["collect/a.json.gz"]))
        with self.suite() as kept:
            self.add(kept, "b")
        self.assertEqual(self.statuses(), ({"a": "done", "b": "done"}, ["collect/a.json.gz", "collect/b.json.gz"]))

    def test_a_run_that_ends_its_process_is_tried_twice(self):
        ran = []
        for attempt in range(3):
            with self.suite() as kept:
                self.add(kept, "a", lambda: ran.append("a"))
                if attempt < 2:
                    # As a crash leaves it.
                    self.assertEqual(kept.content["runs"][0]["status"], "done")
                    kept.record({"id": "a", "status": "running", "attempts": attempt + 1})
        self.assertEqual((ran, self.statuses()[0]), (["a", "a"], {"a": "failed"}))

    def test_no_run_begins_after_the_limit(self):
        with self.assertRaises(suite.LimitReached), self.suite() as kept:
            kept.begin_stage("s", "collect", {}, 1)
            kept.limit = time.monotonic() - 1
            self.add(kept, "a")

    def test_a_device_that_is_gone_ends_the_stage(self):
        class Gone(devices.Cpu):
            def synchronize(self):
                raise RuntimeError("CUDA error: an illegal memory access was encountered")

        def fail():
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        with self.assertRaisesRegex(suite.Refused, "answers no more"), self.suite() as kept:
            kept.perform("a", Gone(), fail)
        self.assertEqual(self.statuses()[0], {"a": "failed"})

    def test_another_suite_is_refused(self):
        with self.suite() as kept:
            self.add(kept, "a")
        with self.assertRaisesRegex(suite.Refused, "seed=1, this call has 2"), self.suite(seed=2):
            pass
        (self.folder / suite.LIST).write_text('{"schema": "rowmill-suite", "version": 99}')
        with self.assertRaisesRegex(suite.Refused, "version 99"), self.suite():
            pass

    def test_a_folder_of_other_files_is_left_alone(self):
        (self.folder / "collect").mkdir(parents=True)
        (self.folder / "collect/collect.py").write_text("precious")
        with self.assertRaisesRegex(suite.Refused, "expected a suite or an empty folder"), self.suite():
            pass
        self.assertEqual((self.folder / "collect/collect.py").read_text(), "precious")

    def test_two_writers_are_refused_and_leftovers_removed(self):
        with self.suite() as kept:
            self.add(kept, "a")
            with self.assertRaisesRegex(suite.Refused, "another process"), self.suite():
                pass
        left = [self.folder / "collect" / name for name in (".half.json.gz.tmp", "unlisted.json.gz")]
        for path in left:
            path.write_bytes(b"half")
        with self.suite():
            self.assertEqual([path.exists() for path in left], [False, False])


class Traces(unittest.TestCase):
    """What a trace of a GPU holds, in µs: on thread 1 of process 9 operators and launches, on stream 7 kernels."""

    def span(self, cat, name, start, dur, tid=1, **args):
        return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": start, "dur": dur, "args": args}

    def launched(self, name, start, kernel, dur, correlation, tid=1):
        return [self.span("cuda_runtime", "cudaLaunchKernel", start, 3, tid, correlation=correlation),
                self.span("kernel", name, kernel, dur, 7, correlation=correlation)]

    def text(self, *events):
        return json.dumps({"traceEvents": [{"ph": "M", "name": "process_name"}, *events]}).encode()

    def test_the_active_part_is_a_union_by_operator(self):
        backward = "autograd::engine::evaluate_function: AddmmBackward0"
        found = activity.share(self.text(
            self.span("user_annotation", "ProfilerStep#2", 0, 100), self.span("user_annotation", "ProfilerStep#3", 100, 100),
            self.span("cpu_op", "aten::linear", 10, 20), self.span("cpu_op", "aten::addmm", 12, 15),
            self.span("cpu_op", backward, 40, 20, 2), *self.launched("gemm", 15, 30, 40, 1),
            *self.launched("gemm", 45, 60, 20, 2, tid=2), self.span("cuda_driver", "cuLaunchKernelEx", 150, 2, correlation=3),
            self.span("kernel", "fill", 160, 10, 7, correlation=3),
            self.span("cuda_runtime", "cudaMemcpyAsync", 102, 3, correlation=4),
            self.span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 110, 20, 7, correlation=4),
        ))
        self.assertEqual((found["steps"], found["device"], found["traced_step_us"]), (2, True, 100))
        # 30..80 and 110..130 and 160..170.
        self.assertEqual(found["busy_us"], 40)
        self.assertEqual(found["parts"], {"products": 20, "products backward": 10, "copy to the device": 10,
                                          "outside of operators": 5})

    def test_a_cpu_is_active_in_operators(self):
        found = activity.share(self.text(
            self.span("user_annotation", "ProfilerStep#2", 0, 100), self.span("cpu_op", "aten::embedding_bag", 10, 30),
            self.span("cpu_op", "aten::empty", 15, 5), self.span("cpu_op", "aten::relu", 50, 10),
            self.span("cpu_op", "aten::relu", 200, 10),
        ))
        self.assertEqual((found["busy_us"], found["device"]), (40, False))
        self.assertEqual(found["parts"], {"embedding forward": 30, "element-wise and other": 10})

    def calls(self, lose=None):
        """Calls of 100 µs, each with two kernels, one of them launched by another thread."""
        events = []
        for i in range(microbench.SAMPLES):
            at = 1000 + 100 * i
            events.append(self.span("user_annotation", f"call#1#{i}", at, 50))
            events += self.launched("large", at + 10, at + 20, 30 + i % 2, 2 * i + 1)
            if i != lose:
                events += self.launched("small", at + 20, at + 60, 5, 2 * i + 2, tid=2)
        # Warm-up, and another point.
        events += self.launched("large", 900, 910, 80, 9001)
        events += [self.span("user_annotation", "call#11#0", 500, 50), *self.launched("other", 510, 520, 7, 9002)]
        return activity.Timeline(self.text(*events))

    def point(self, name="gemm"):
        kernel = next(one for one in kernels.KERNELS if one.name == name)
        return microbench.Point(kernel, {"m": 128, "n": 64, "k": 32}, "float32")

    def test_a_call_is_the_sum_of_what_it_ran(self):
        (row,) = microbench.rows_of(1, self.point(), self.calls())
        self.assertEqual(row[:4], ("gemm", "m=128 n=64 k=32", "float32", "large"))
        self.assertEqual(row[4:], (35.5, 35.0, 36.0, 30, "duration of kernels", 2.0))

    def test_a_launch_has_the_host_s_side_too(self):
        rows = microbench.rows_of(1, self.point("launch"), self.calls())
        self.assertEqual([row[0] for row in rows], ["launch", "launch_call", "launch_delay"])
        self.assertEqual([row[4] for row in rows], [35.5, 3.0, 10.0])

    def test_a_call_without_work_is_no_time(self):
        self.assertEqual(len(microbench.rows_of(1, self.point(), self.calls(lose=3))), 1)
        empty = activity.Timeline(self.text(self.span("user_annotation", "call#1#0", 0, 50)))
        self.assertEqual(microbench.rows_of(1, self.point(), empty), [])

    def test_names_are_removed(self):
        root = str(environment.ROOT)
        text = f'{{"host_name": "box", "x": "{root}/bench/a.py(3): f", "traceName": "{root}/t.json"}}'.encode()
        clean = profiles.without_names(text).decode()
        self.assertEqual(json.loads(clean), {"x": "bench/a.py(3): f", "traceName": "trace.json"})


class Report(Folder):
    """A suite of a GPU as a table and a picture."""

    def test_the_active_share_is_of_the_step_without_a_profiler(self):
        made = Traces()
        trace = made.text(
            made.span("user_annotation", "ProfilerStep#2", 0, 400), made.span("cpu_op", "aten::bmm", 10, 20),
            *made.launched("gemm", 15, 30, 40, 1), *made.launched("fill", 45, 90, 10, 2))
        facts = models.Workload("dlrm-ddp", 512, "bags", 1).facts()
        times = {"step_us": {"p5": 90.0, "median": 100.0, "p95": 120.0, "mean": 101.0}, "steps": 100}
        with self.suite() as kept:
            def add():
                kept.add("times/x", "times.json", json.dumps(times).encode(), "step_times", **facts)
                kept.add("times/x", "kineto.json.gz", trace, "kineto", steps=1, **facts)

            kept.perform("times/x", MadeCuda(), add, **facts)
            rows = [report.Row(kept, kept.files("step_times")[0])]
            text, picture = report.provenance(kept) + report.tables(kept, rows), report.picture(rows)
        self.assertIn("| dlrm-ddp L=1 bags | 512 | 0.10 (0.09–0.12) | 5,120,000 | 0.05 | 50 | 50 | 100 |", text)
        self.assertIn("products 80, outside of operators 20", text)
        self.assertIn("50 %, 0.1 ms", picture)
        xml.etree.ElementTree.fromstring(picture)


class Gpu(Folder):
    """The branches for CUDA, on the made GPU."""

    def test_every_pair_runs(self):
        for pair in antipatterns.PAIRS:
            for variant in cases.VARIANTS:
                with self.subTest(pair=pair.name, variant=variant), cases.Step(pair, variant, MadeCuda(), 0.05) as step:
                    for i in range(4):
                        step(i)

    def test_pairs_that_give_tensors_give_the_same(self):
        for name in ("coarse-grain", "low-parallelism"):
            pair = next(one for one in antipatterns.PAIRS if one.name == name)
            results = []
            for variant in cases.VARIANTS:
                with cases.Step(pair, variant, MadeCuda(), 0.05) as step:
                    results.append(step(0))
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-3)

    def test_every_kernel_runs_at_its_smallest_shape(self):
        for kernel in kernels.KERNELS:
            for dtype in kernel.dtypes:
                shape = min(kernel.shapes(1 << 26), key=lambda one: sum(one.values()))
                with self.subTest(kernel=kernel.name, dtype=dtype), microbench.products_in(dtype):
                    run = kernel.make(shape, dtype, MadeCuda())
                    for i in range(5):
                        run(i)

    def test_forms_of_embeddings_give_the_same(self):
        rows, ids = (5, 7), torch.tensor([[1, 4, 0, 2], [6, 0, 3, 3]])
        bags, one = models.Bags(rows, 3, "cpu"), models.Batched(rows, 3, "cpu")
        one.tables.weight.data = torch.cat([table.weight.data for table in bags.tables])
        first = torch.cat(bags(ids, torch.tensor([0, 2])), dim=1)
        second = torch.cat(one((ids + torch.tensor([[0], [5]])).view(-1), torch.tensor([0, 2, 4, 6])), dim=1)
        torch.testing.assert_close(first, second)

    def test_times_are_taken_and_a_profile_without_kernels_is_refused(self):
        workload = models.Workload("dlrm-ddp", 8, "batched", 1)
        device = MadeCuda()
        with self.suite() as kept:
            collect.run_stage("times", [workload], kept, device, Arguments)
            kept.perform("traces/x", device, lambda: collect.traces(workload, "traces/x", kept, device, Arguments))
            kept.perform("kernels/x", device, lambda: microbench.sweep(
                next(one for one in kernels.KERNELS if one.name == "launch"), "kernels/x", 1, kept, device, Arguments))
            runs = {one["id"]: one for one in kept.content["runs"]}
            times = json.loads(kept.read("collect/dlrm-ddp-p1-batched-b8/times.json"))
        self.assertEqual((times["timer"], times["rows_cap"]), ("cuda events", None))
        self.assertEqual(runs["times/dlrm-ddp-p1-batched-b8"]["status"], "done")
        self.assertEqual((runs["traces/x"]["status"], runs["kernels/x"]["status"]), ("failed", "failed"))
        self.assertIn("CUPTI", runs["traces/x"]["reason"])
        self.assertEqual(kept.content["environments"]["collect/times"]["gpu"]["name"], "Made GPU")

    def test_tables_are_cut_to_the_memory(self):
        shape = models.DLRMS["dlrm-mlperf"]
        self.assertGreaterEqual(models.cap_that_fits(shape, 20e9), max(shape.rows))
        cap = models.cap_that_fits(shape, 2e9)
        self.assertLessEqual(4 * shape.dim * sum(min(rows, cap) for rows in shape.rows), 0.8e9)

    def test_torch_has_what_the_device_calls(self):
        used = set(re.findall(r"self\.cuda\.(\w+)", (HERE / "device.py").read_text()))
        self.assertGreater(len(used), 10)
        self.assertEqual({name for name in used if not hasattr(torch.cuda, name)}, set())
        facts = set(re.findall(r"facts\.(\w+)", (HERE / "device.py").read_text()))
        known = getattr(torch._C, "_CudaDeviceProperties", None)
        self.assertEqual({name for name in facts if known and not hasattr(known, name)}, set())


def agrees_with_rowmill(binary, traces):
    """Whether the union of device work is what `rowmill trace breakdown` calls busy."""
    for trace in traces:
        command = [binary, "trace", "breakdown", "--window", "all", "--format", "json", trace]
        theirs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[0]["busy_ns"]
        data = pathlib.Path(trace).read_bytes()
        timeline = activity.Timeline(suite.gzip.decompress(data) if trace.endswith(".gz") else data)
        ours = 1e3 * activity.union(timeline.device)
        print(f"{trace}: busy {ours:.0f} ns here, {theirs} ns in rowmill")
        if abs(ours - theirs) > 1e3:
            sys.exit(f"{trace}: expected the same busy time within 1 µs")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rowmill"]:
        agrees_with_rowmill(sys.argv[2], sys.argv[3:])
    else:
        unittest.main()
