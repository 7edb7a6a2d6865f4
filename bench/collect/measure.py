"""Un-profiled times of steps. Knows neither models nor files."""
import dataclasses
import time

import numpy as np

# Set by profiles.py: once CUPTI is loaded, every launch may cost a little more.
profiled_before = False


@dataclasses.dataclass(frozen=True)
class Bounds:
    """How long to measure: at least `least` steps, then up to `most` while `seconds` are not over.

    Where even `least` would take more than `seconds_most`, fewer are taken, but not fewer than ten.
    """

    least: int
    most: int
    seconds: float
    seconds_most: float
    warm_up: int

    def count(self, pilot_seconds):
        wanted = max(self.least, int(self.seconds / pilot_seconds))
        return max(10, min(wanted, self.most, int(self.seconds_most / pilot_seconds)))


FULL = Bounds(least=100, most=500, seconds=1.5, seconds_most=30.0, warm_up=10)
QUICK = Bounds(least=100, most=100, seconds=1.0, seconds_most=1.0, warm_up=2)
PILOT_STEPS = 3
SYNCHRONIZED_SHARE = 4


def step_times(step, device, bounds):
    """Times of `step(i)`, two ways.

    `step_us`: one step after the other without waiting in between, as in training; on CUDA from one event per step, so that
    a sample is the time from one step's end on the GPU to the next one's. `synchronized_us`: the wall clock around each of a
    quarter as many steps, the device idle before and after.
    """
    for i in range(bounds.warm_up):
        step(i)
    device.synchronize()
    begin = time.perf_counter()
    for i in range(PILOT_STEPS):
        step(i)
    device.synchronize()
    count = bounds.count((time.perf_counter() - begin) / PILOT_STEPS)
    samples, total = free_running(step, device, count)
    waited = synchronized(step, device, max(5, count // SYNCHRONIZED_SHARE))
    return {
        "timer": device.timer, "steps": count, "warm_up_steps": bounds.warm_up + PILOT_STEPS,
        "after_profiler": profiled_before,
        "step_us": percentiles(samples), "wall_us_mean": round(total / count * 1e6, 3),
        "synchronized_us": percentiles(waited), "samples_us": rounded(samples),
    }


def free_running(step, device, count):
    """(µs of each step, seconds of all)."""
    marks = device.marks(count + 1)
    clock = [0.0] * (count + 1)
    device.synchronize()
    begin = time.perf_counter()
    for i in range(count):
        clock[i] = time.perf_counter()
        if marks:
            marks[i].record()
        step(i)
    clock[count] = time.perf_counter()
    if marks:
        marks[count].record()
    device.synchronize()
    total = time.perf_counter() - begin
    if marks:
        return [1e3 * earlier.elapsed_time(later) for earlier, later in zip(marks, marks[1:])], total
    return [1e6 * (later - earlier) for earlier, later in zip(clock, clock[1:])], total


def synchronized(step, device, count):
    samples = []
    for i in range(count):
        device.synchronize()
        begin = time.perf_counter()
        step(i)
        device.synchronize()
        samples.append(1e6 * (time.perf_counter() - begin))
    return samples


def percentiles(samples):
    p5, median, p95 = np.percentile(samples, [5, 50, 95])
    mean = float(np.mean(samples))
    return {name: round(float(value), 3) for name, value in
            {"p5": p5, "median": median, "p95": p95, "mean": mean}.items()}


def rounded(samples):
    return [round(float(sample), 2) for sample in samples]
