"""Report the steps of a PyTorch job to rowmill-agent. Standard library only.

    import rowmill_steps
    rowmill_steps.watch()            # counts optimizer.step() of the first optimizer that steps

or, where steps are not one optimizer's:

    rowmill_steps.step(samples=1024)
    with rowmill_steps.phase("evaluate"):
        ...

The agent's socket is rowmill-steps in KINETO_IPC_SOCKET_DIR, else a name of the kernel. A job runs on
without an agent: a message that cannot be sent is dropped, and after a refusal none is tried for 5 s.
"""

import contextlib
import os
import socket
import struct
import time
import weakref

_FORM = struct.Struct("<BBHIQQQQ")
_PHASES = {"setup": 0, "train": 1, "evaluate": 2, "save": 3}
_UNKNOWN = (1 << 64) - 1
_AGAIN_NS = 5_000_000_000


class _Sender:
    def __init__(self):
        folder = os.environ.get("KINETO_IPC_SOCKET_DIR")
        self.address = os.path.join(folder, "rowmill-steps") if folder else "\0rowmill-steps\0"
        self.socket = None
        self.pid = 0
        self.number = 0
        self.phase = "train"
        self.not_before = 0

    def send(self, samples, exposed_ns):
        now = time.monotonic_ns()
        if now < self.not_before:
            return
        pid = os.getpid()
        if self.pid != pid:
            # A fork has a socket of its own, so that the kernel says whose a message is.
            self.socket, self.pid = None, pid
        exposed = _UNKNOWN if exposed_ns is None else exposed_ns
        message = _FORM.pack(1, _PHASES[self.phase], 0, pid, self.number, now, samples, exposed)
        try:
            if self.socket is None:
                # Connected once: a name that is looked up for every message costs a third more.
                fresh = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
                fresh.connect(self.address)
                self.socket = fresh
            self.socket.send(message)
        except BlockingIOError:
            pass
        except OSError:
            # The agent has gone; the next one has another socket of this name.
            self.socket, self.not_before = None, now + _AGAIN_NS


_sender = _Sender()


def step(samples=0, exposed_ns=None):
    """One training step is done."""
    _sender.number += 1
    _sender.send(samples, exposed_ns)


@contextlib.contextmanager
def phase(name):
    """Evaluation ("evaluate"), a checkpoint ("save") or preparation ("setup"): never taken for a hang."""
    if name not in _PHASES:
        raise ValueError(f"phase: expected one of {', '.join(_PHASES)}, got {name!r}")
    before, _sender.phase = _sender.phase, name
    _sender.send(0, None)
    try:
        yield
    finally:
        _sender.phase = before
        _sender.send(0, None)


def watch(samples=0):
    """Counts a step whenever the first optimizer that steps has stepped. The handle removes it."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    first = None

    def stepped(optimizer, *_):
        nonlocal first
        if first is None or first() is None:
            first = weakref.ref(optimizer)
        if first() is optimizer:
            step(samples)

    return register_optimizer_step_post_hook(stepped)
