//! The demonstration starts all programs, waits for real steps, and ends them.

use std::fs;

use serde_json::Value;
use testkit::{Folder, ProgramOutput, skip};

use crate::fixture::{program, program_beside};

#[test]
fn the_demonstration_shows_a_real_training_and_ends_all_programs() {
    let (Some(_), Some(_)) = (program_beside("rowmill"), program_beside("rowmill-agent")) else {
        skip("the demonstration", "rowmill, which `cargo xtask ci --only tests` builds");
        return;
    };
    let folder = Folder::new();
    let place = folder.path("demo");
    let start = || {
        let mut command = program();
        command.args(["demo", "--hosts", "2", "--listen", "127.0.0.1:0", "--for", "0s"]);
        command.arg("--no-browser").arg("--folder").arg(&place);
        command
    };
    let ran = ProgramOutput::collect(&mut start()).expect_code(0, "rowmill-hub demo");
    let page = ran.stderr.lines().find_map(|line| line.strip_prefix("page: ")).unwrap();
    assert!(page.contains("/#token="), "{page}");
    // The hub has ended and left its store, which has rows of both kinds of hosts.
    let address = page.trim_start_matches("http://").split('/').next().unwrap();
    assert!(std::net::TcpStream::connect(address).is_err(), "{page}");
    let mut status = program();
    status.args(["status", "--format", "json", "--config"]).arg(place.join("hub.toml"));
    let status: Value = ProgramOutput::collect(&mut status).expect_code(0, "status").json();
    let hosts = status["hosts"].as_object().unwrap();
    assert!(hosts.contains_key("this-machine") && hosts.len() == 3, "{hosts:?}");
    for log in ["hub.log", "agent.log", "training.log"] {
        let text = fs::read_to_string(place.join(log)).unwrap();
        assert!(
            text.contains("ended by a signal") || text.contains("resume with"),
            "{log}: {text}"
        );
    }
    // A second demonstration does not write into the folder of the first.
    let again = ProgramOutput::collect(&mut start());
    assert!(again.stderr.contains("cannot create as a new folder"), "{}", again.stderr);
}
