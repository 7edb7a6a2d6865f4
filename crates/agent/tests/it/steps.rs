//! Tests of the Python module with which PyTorch jobs report their steps, while agents start and
//! end.

use std::path::Path;
use std::process::Command;

use testkit::ProgramOutput;

const SCRIPT: &str = "
import os, socket, struct, sys
import rowmill_steps as steps
name = os.path.join(os.environ['KINETO_IPC_SOCKET_DIR'], 'rowmill-steps')
def agent():
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bound.bind(name)
    bound.settimeout(10)
    return bound
steps.step()
assert steps._sender.not_before > 0, 'nobody is there: not tried again at once'
for _ in range(2):
    steps._sender.not_before = 0
    bound = agent()
    steps.step(samples=32)
    assert len(bound.recv(100)) == 40
    with steps.phase('save'):
        assert bound.recv(100)[1] == 3
    assert bound.recv(100)[1] == 1
    # Nobody reads: the queue fills, and what was not taken goes with the next message.
    number = steps._sender.number
    while steps._sender.samples == 0:
        steps.step(samples=3, exposed_ns=7)
    read = [bound.recv(100) for _ in range(steps._sender.number - number - 1)]
    steps.step(samples=4)
    step, _, samples, exposed = struct.unpack('<QQQQ', bound.recv(100)[8:])
    assert (step, samples, exposed) == (steps._sender.number, 7, 7), (step, samples, exposed)
    child = os.fork()
    if child == 0:
        steps.step()
        os._exit(0)
    os.waitpid(child, 0)
    assert struct.unpack('<I', bound.recv(100)[4:8])[0] == child
    bound.close()
    os.unlink(name)
    steps.step()
    assert steps._sender.socket is None, 'the next agent has another socket'
";

#[test]
fn a_python_job_survives_without_an_agent_and_finds_the_next_one() {
    if !testkit::has_program("python3", "the Python hook") {
        return;
    }
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).env("PYTHONPATH", deploy).env("PYTHONDONTWRITEBYTECODE", "1");
    python.env("KINETO_IPC_SOCKET_DIR", folder.path());
    ProgramOutput::collect(&mut python).expect_code(0, "rowmill_steps.py");
}
