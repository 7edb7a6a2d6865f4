"""Report the steps of a PyTorch job to rowmill-agent. Standard library only.

    import rowmill_steps
    rowmill_steps.watch()            # counts optimizer.step() of the first optimizer that steps

or, if a step is not a step of one optimizer:

    rowmill_steps.step(samples=1024)
    with rowmill_steps.phase("evaluate"):
        ...

The agent's socket is rowmill-steps in KINETO_IPC_SOCKET_DIR, otherwise in the abstract namespace. A job
also runs without an agent: a message that cannot be sent is dropped, and after a refused connection no
message is sent for 5 s.
"""

import contextlib
import os
import socket
import struct
import time
import weakref

_HEAD = struct.Struct("<BBHI")
_BODY = struct.Struct("<QQQQ")
_PHASES = {"setup": 0, "train": 1, "evaluate": 2, "save": 3}
_UNKNOWN = (1 << 64) - 1
_AGAIN_NS = 5_000_000_000


class _Sender:
    # A step costs one system call. The message is a buffer in which only four numbers change per step;
    # version, phase and process id change rarely. The socket is connected once and never blocks.
    __slots__ = ("address", "exposed", "message", "not_before", "number", "phase", "samples", "socket")

    def __init__(self):
        folder = os.environ.get("KINETO_IPC_SOCKET_DIR")
        self.address = os.path.join(folder, "rowmill-steps") if folder else "\0rowmill-steps\0"
        self.message = bytearray(_HEAD.size + _BODY.size)
        self.number = 0
        self.begin()
        self.enter("train")

    def begin(self):
        # Samples and exposed communication of steps whose message did not fit into the queue.
        self.samples, self.exposed = 0, None
        self.socket, self.not_before = None, 0

    def enter(self, phase):
        self.phase = phase
        _HEAD.pack_into(self.message, 0, 1, _PHASES[phase], 0, os.getpid())

    def forked(self):
        # A forked process opens a socket of its own, so that the kernel reports it as the sender.
        self.begin()
        self.enter(self.phase)

    def send(self, samples, exposed, now=time.monotonic_ns, put=_BODY.pack_into, at=_HEAD.size):
        moment = now()
        if self.socket is None and not self.connect(moment):
            return
        if self.samples or self.exposed is not None:
            samples += self.samples
            exposed = self.exposed if exposed is None else exposed + (self.exposed or 0)
        put(self.message, at, self.number, moment, samples, _UNKNOWN if exposed is None else exposed)
        try:
            self.socket.send(self.message)
        except BlockingIOError:
            # The queue is full. The next message has the new step number and the samples of this step.
            self.samples, self.exposed = samples, exposed
            return
        except OSError:
            # The agent has ended. Its successor binds a new socket to the same name.
            self.begin()
            self.not_before = moment + _AGAIN_NS
            return
        self.samples, self.exposed = 0, None

    def connect(self, moment):
        if moment < self.not_before:
            return False
        fresh = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            fresh.connect(self.address)
        except OSError:
            fresh.close()
            self.not_before = moment + _AGAIN_NS
            return False
        self.socket = fresh
        return True


_sender = _Sender()
os.register_at_fork(after_in_child=_sender.forked)


def step(samples=0, exposed_ns=None):
    """Reports that one training step is done."""
    _sender.number += 1
    _sender.send(samples, exposed_ns)


@contextlib.contextmanager
def phase(name):
    """Marks evaluation ("evaluate"), a checkpoint ("save") or preparation ("setup"), which never count as a hang."""
    if name not in _PHASES:
        raise ValueError(f"phase: expected one of {', '.join(_PHASES)}, got {name!r}")
    before = _sender.phase
    _sender.enter(name)
    _sender.send(0, None)
    try:
        yield
    finally:
        _sender.enter(before)
        _sender.send(0, None)


def watch(samples=0):
    """Counts the steps of the first optimizer that makes one. Returns a handle that removes the hook."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    first = None

    def stepped(optimizer, *_):
        nonlocal first
        if first is None or first() is None:
            first = weakref.ref(optimizer)
        if first() is optimizer:
            step(samples)

    return register_optimizer_step_post_hook(stepped)
