//! Tests of counters, with scenarios of a stub of the NVML library. The readings must appear on the
//! pages and in the rows.

use crate::fixture::{Agent, value};

const TWO: &str = "gpu=0 util=50 gpm=1 smactive=0.25 smoccupancy=0.125 power=200000 energy=1000 used=1073741824\n\
                   gpu=1 util=100 energy=5000 throttle=4\n";

#[test]
fn busy_blank_lost_and_faulty_gpus_are_distinguished() {
    let agent = Agent::start("", Some(TWO));
    let page = agent.until("a complete interval of both", |agent| {
        let page = agent.page("/metrics", "text/plain").body;
        let has = |gpu: &str| value(&page, "hw_gpu_utilization_ratio", &[gpu]).is_some();
        (has("gpu=\"0\"") && has("gpu=\"1\"")).then_some(page)
    });
    let value_of = |name: &str, gpu: &str| value(&page, name, &[&format!("gpu=\"{gpu}\"")]);
    assert_eq!(value_of("hw_gpu_sm_active_ratio", "1"), None, "no GPM there");
    let near = |one: Option<f64>, other: f64| (one.unwrap() - other).abs() < 1e-6;
    assert!(near(value_of("hw_gpu_utilization_ratio", "0"), 0.5), "{page}");
    assert!(near(value_of("hw_gpu_utilization_ratio", "1"), 1.0));
    assert!(near(value_of("hw_power_watts", "0"), 200.0));
    assert_eq!(value_of("hw_gpu_memory_usage_bytes", "0"), Some(1_073_741_824.0));
    assert!(value_of("rowmill_gpu_observed_seconds_total", "0").unwrap() > 0.0);
    assert!(
        value(&page, "hw_gpu_throttle_seconds_total", &["gpu=\"1\"", "sw_power_cap"]).unwrap()
            > 0.0
    );
    // The first reading of a GPU has no earlier GPM sample, so the SM columns appear with the
    // second reading.
    agent.scenario(
        "gpu=0 lost=1\n\
         gpu=1 util=100 blank=1 energy=9000 xid=79 ecc=3 replay=2\n",
    );
    let page = agent.until("the lost GPU", |agent| {
        let page = agent.page("/metrics", "text/plain").body;
        let is_lost = value(&page, "rowmill_gpu_up", &["gpu=\"0\""]) == Some(0.0);
        let has_xid = value(&page, "hw_errors_total", &["gpu=\"1\"", "xid_79"]) == Some(1.0);
        (is_lost && has_xid).then_some(page)
    });
    assert!(near(value(&page, "hw_energy_joules_total", &["gpu=\"1\""]), 4.0), "{page}");
    assert_eq!(value(&page, "hw_errors_total", &["gpu=\"1\"", "ecc_uncorrected"]), Some(3.0));
    let dcgm = agent.page("/metrics/dcgm", "*/*").body;
    assert_eq!(value(&dcgm, "DCGM_FI_DEV_XID_ERRORS", &["gpu=\"1\""]), Some(79.0));
    assert_eq!(value(&dcgm, "DCGM_FI_DEV_GPU_UTIL", &["gpu=\"1\""]), None, "blank is no value");
    assert_eq!(value(&dcgm, "DCGM_FI_DEV_POWER_USAGE", &["gpu=\"0\""]), None, "lost");
    // A row must not claim more observed seconds than its interval has.
    let rows = agent.rows();
    let gpu: Vec<&String> = rows.iter().filter(|row| row.contains("\"gpu\":")).collect();
    assert!(gpu.len() >= 2 && rows.iter().any(|row| row.contains("\"counters\":")), "{rows:?}");
}

#[test]
fn sm_activity_comes_from_gpm_except_during_a_pause() {
    let agent = Agent::start("", Some(TWO));
    let read = |agent: &Agent| {
        let page = agent.page("/metrics/dcgm", "*/*").body;
        value(&page, "DCGM_FI_PROF_SM_ACTIVE", &["gpu=\"0\"", "Hostname="])
    };
    let active = agent.until("a second sample", read);
    assert!((active - 0.25).abs() < 1e-9);
    let paused = agent.local("POST", "/v1/pause", "{\"gpu\": 0, \"seconds\": 600}");
    assert_eq!(paused.status, 204, "{paused:?}");
    agent.until("nothing read", |agent| read(agent).is_none().then_some(()));
    let status = agent.local("GET", "/v1/status", "").body;
    assert!(status.contains("\"paused_s\":"), "{status}");
    assert_eq!(agent.local("POST", "/v1/pause", "{\"gpu\": 0, \"seconds\": 0}").status, 204);
    agent.until("a sample again", read);
    let unknown = agent.local("POST", "/v1/pause", "{\"gpu\": 9, \"seconds\": 1}");
    assert!(
        unknown.status == 409 && unknown.body.contains("expected a GPU of this host"),
        "{unknown:?}"
    );
}

#[test]
fn mig_instances_have_their_own_rows_and_owners() {
    let mapping = tempfile::tempdir().unwrap();
    std::fs::write(mapping.path().join("0-1"), "4711 ada\n").unwrap();
    std::fs::write(mapping.path().join("1"), "4712\n").unwrap();
    let configuration = format!("job_mapping = '{}'\n", mapping.path().display());
    let agent = Agent::start(&configuration, Some("gpu=0 mig=2\ngpu=1 util=0\n"));
    let page = agent.until("an idle GPU that is held", |agent| {
        let page = agent.page("/metrics", "text/plain").body;
        (value(&page, "rowmill_gpu_held_idle", &["gpu=\"1\""]) == Some(1.0)).then_some(page)
    });
    let run = |labels: &[&str]| value(&page, "rowmill_run_info", labels);
    assert_eq!(
        run(&["MIG-00000000", "gpu_instance=\"1\"", "job_id=\"4711\"", "user=\"ada\""]),
        Some(1.0)
    );
    assert_eq!(run(&["GPU-00000001", "job_id=\"4712\""]), Some(1.0));
    assert_eq!(run(&["gpu_instance=\"0\""]), None);
    let is_plain = |line: &&str| line.contains("job_id=") && !line.starts_with("rowmill_run_info");
    assert_eq!(page.lines().find(is_plain), None, "jobs are on one series alone");
}

/// Returns the states of GPU 0 and GPU 1 (1 for up, 0 for lost, `None` for absent), and the number
/// of GPUs that are read.
fn states(page: &str) -> (Option<f64>, Option<f64>, Option<f64>) {
    let up = |gpu: &str| value(page, "rowmill_gpu_up", &[&format!("gpu=\"{gpu}\""), "GPU-"]);
    (up("0"), up("1"), value(page, "rowmill_gpus", &[]))
}

#[test]
fn a_late_failing_or_returning_driver_is_detected() {
    let agent = Agent::start("expected_gpus = 2\n", Some("driver=0\n"));
    let wait = |what: &str, expected: (Option<f64>, Option<f64>, Option<f64>)| {
        agent.until(what, |agent| {
            let page = agent.page("/metrics", "text/plain").body;
            (states(&page) == expected).then_some(page)
        })
    };
    let page = wait("no driver", (None, None, Some(0.0)));
    assert_eq!(value(&page, "rowmill_nvml_up", &[]), Some(0.0));
    assert_eq!(value(&page, "rowmill_gpus_expected", &[]), Some(2.0));
    let notes = || agent.local("GET", "/v1/status", "").body;
    assert!(notes().contains("NVML: "), "{}", notes());
    agent.scenario("gpu=0 util=50\n");
    let page = wait("the driver came", (Some(1.0), None, Some(1.0)));
    assert_eq!(value(&page, "rowmill_nvml_up", &[]), Some(1.0));
    agent.scenario("gpu=0 util=50\ngpu=1 util=50\n");
    wait("a new GPU", (Some(1.0), Some(1.0), Some(2.0)));
    agent.scenario("gpu=0 util=50\n");
    wait("one that is listed no more", (Some(1.0), Some(0.0), Some(1.0)));
    agent.scenario("driver=0\n");
    let page = wait("the driver failed", (Some(0.0), Some(0.0), Some(0.0)));
    let observed =
        |page: &str| value(page, "rowmill_gpu_observed_seconds_total", &["gpu=\"0\""]).unwrap();
    let before = observed(&page);
    agent.scenario("gpu=0 util=50\ngpu=1 util=50\n");
    let page = wait("it returned", (Some(1.0), Some(1.0), Some(2.0)));
    assert!(observed(&page) >= before && before > 0.0, "sums go on where they were");
    assert!(!notes().contains("NVML: "), "{}", notes());
    assert!(value(&page, "rowmill_reading_age_seconds", &[]).unwrap() < 60.0);
}

#[test]
fn mig_instances_appear_and_disappear() {
    let agent = Agent::start("", Some("gpu=0 util=50\n"));
    let instances = |agent: &Agent| {
        let page = agent.page("/metrics", "text/plain").body;
        let is_instance =
            |line: &&str| line.starts_with("rowmill_gpu_up{") && line.contains("gpu_instance=");
        let whole = value(&page, "rowmill_gpu_up", &["GPU-00000000"]);
        (whole == Some(1.0)).then(|| page.lines().filter(is_instance).count())
    };
    for (scenario, count) in [("mig=2", 2), ("mig=3", 3), ("util=50", 0)] {
        agent.scenario(&format!("gpu=0 {scenario}\n"));
        agent.until(scenario, |agent| (instances(agent) == Some(count)).then_some(()));
    }
}

#[test]
fn mig_instances_are_busy_or_idle_and_counted_once() {
    let mapping = tempfile::tempdir().unwrap();
    for (name, line) in [("0-0", "7 ada 1000\n"), ("0-1", "8 bob 1001\n")] {
        std::fs::write(mapping.path().join(name), line).unwrap();
    }
    let configuration = format!("job_mapping = '{}'\n", mapping.path().display());
    let scenario = "gpu=0 mig=2 gpm=1 util=70 smactive=0.5 pid=1 part=1 used=1000\n";
    let agent = Agent::start(&configuration, Some(scenario));
    let part = |page: &str, name: &str, part: u32| {
        value(page, name, &[&format!("gpu_instance=\"{part}\"")])
    };
    let page = agent.until("one busy and one held idle instance", |agent| {
        let page = agent.page("/metrics", "text/plain").body;
        let is_idle = part(&page, "rowmill_gpu_held_idle", 0) == Some(1.0);
        let busy = part(&page, "hw_gpu_utilization_ratio", 1);
        (is_idle && busy.is_some_and(|busy| busy > 0.5)).then_some(page)
    });
    assert_eq!(part(&page, "rowmill_gpu_held_idle", 1), Some(0.0));
    assert_eq!(part(&page, "hw_gpu_utilization_ratio", 0), Some(0.0));
    let whole = |name: &str| value(&page, name, &["UUID=\"GPU-00000000"]);
    assert_eq!(whole("hw_gpu_memory_usage_bytes"), None, "that is its instances'");
    assert_eq!((whole("hw_gpu_utilization_ratio"), whole("rowmill_gpu_held_idle")), (None, None));
    assert!(whole("hw_power_watts").is_some() && part(&page, "hw_power_watts", 0).is_none());
}

#[test]
fn row_remapping_and_nvlink_errors_are_counted_from_zero() {
    let agent = Agent::start("", Some("gpu=0 remap=5 nvlinkreplay=9\n"));
    let error =
        |page: &str, kind: &str| value(page, "hw_errors_total", &[&format!("type=\"{kind}\"")]);
    let page = agent.until("counters at zero", |agent| {
        let page = agent.page("/metrics", "text/plain").body;
        let all = ["row_remap_uncorrected", "nvlink_replay", "nvlink_crc_flit", "xid_140"];
        all.iter().all(|kind| error(&page, kind) == Some(0.0)).then_some(page)
    });
    let remap = |page: &str| value(page, "rowmill_gpu_row_remap", &["state=\"pending\""]);
    assert_eq!(remap(&page), Some(0.0));
    agent.scenario("gpu=0 remap=6 remappending=1 nvlinkreplay=12\n");
    agent.until("what came since", |agent| {
        let page = agent.page("/metrics", "text/plain").body;
        let counts = [error(&page, "row_remap_uncorrected"), error(&page, "nvlink_replay")];
        (counts == [Some(1.0), Some(3.0)] && remap(&page) == Some(1.0)).then_some(())
    });
}
