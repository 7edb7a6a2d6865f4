"""The device that is measured: everything that differs between a CPU and a CUDA GPU, and nothing else.

All calls of torch.cuda are in `Cuda`; the rest of the scripts never ask which device it is but through `kind`. `Cuda`
takes the module as an argument, so that selftest.py can put a made one in its place.
"""
import gc

import torch
from torch.profiler import ProfilerActivity

import environment


class Cpu:
    kind = "cpu"
    timer = "wall clock"
    activities = (ProfilerActivity.CPU,)

    def __init__(self):
        self.torch = torch.device("cpu")

    def synchronize(self):
        pass

    def pinned(self, tensor):
        """The same on this side: a CPU reads its memory directly."""
        return tensor

    def put(self, tensor):
        """On the device; the copy may still run."""
        return tensor.to(self.torch)

    def marks(self, count):
        """A CPU has no events: the wall clock is exact, because a call returns when its work is done."""
        return None

    def free_bytes(self):
        return environment.memory_bytes("MemAvailable")

    def peak_bytes(self):
        return None

    def forget(self):
        """Gives back what the last run held."""
        gc.collect()


class Cuda:
    kind = "cuda"
    timer = "cuda events"
    activities = (ProfilerActivity.CPU, ProfilerActivity.CUDA)

    def __init__(self, cuda=torch.cuda, device="cuda:0"):
        self.cuda = cuda
        self.torch = torch.device(device)

    def synchronize(self):
        self.cuda.synchronize()

    def pinned(self, tensor):
        return tensor.pin_memory()

    def put(self, tensor):
        """Enqueued on the current stream; the source must not change before it has run."""
        return tensor.to(self.torch, non_blocking=True)

    def marks(self, count):
        """Events with a time each, made beforehand so that none is created between steps."""
        return [self.cuda.Event(enable_timing=True) for _ in range(count)]

    def free_bytes(self):
        return self.cuda.mem_get_info()[0]

    def peak_bytes(self):
        """Most that tensors held since the last call; the allocator's own reserve is not counted."""
        most = self.cuda.max_memory_allocated()
        self.cuda.reset_peak_memory_stats()
        return most

    def forget(self):
        gc.collect()
        self.cuda.empty_cache()

    def side_stream(self, warm_up):
        """Runs `warm_up` on a stream of its own, as capturing a graph demands, and waits for it in both directions."""
        stream = self.cuda.Stream()
        stream.wait_stream(self.cuda.current_stream())
        with self.cuda.stream(stream):
            warm_up()
        self.cuda.current_stream().wait_stream(stream)

    def captured(self, work):
        """`work` as a CUDA graph; calling the result replays it."""
        graph = self.cuda.CUDAGraph()
        with self.cuda.graph(graph):
            work()
        return graph.replay

    def uuid(self):
        """For nvidia-smi, whose numbers are not torch's; never written to a file."""
        found = str(getattr(self.cuda.get_device_properties(0), "uuid", ""))
        return found if not found or found.startswith(("GPU-", "MIG-")) else f"GPU-{found}"

    def describe(self):
        facts = self.cuda.get_device_properties(0)
        return {
            "name": facts.name, "capability": f"{facts.major}.{facts.minor}", "sms": facts.multi_processor_count,
            "memory_gb": round(facts.total_memory / 1e9, 1), "l2_bytes": getattr(facts, "L2_cache_size", None),
            "cuda": torch.version.cuda,
        }


class Absent(Exception):
    """The device that was asked for is not there."""


def named(kind):
    if kind == "cpu":
        return Cpu()
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        raise Absent(f"--device cuda: expected a usable GPU, found none (torch {torch.__version__}, {built}); "
                     "hint: `nvidia-smi` shows whether the driver sees one; `--device cpu` needs none")
    return Cuda()


def is_out_of_memory(error):
    """Whether memory ran out, of the device or of the host."""
    text = str(error)
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "out of memory" in text.lower()
    )
