//! Fuzz tests. Malformed configurations, pages and requests must be refused or parsed, and must
//! never cause a panic.

use testkit::mutate::fuzz_parser;

use crate::config;
use crate::control::dynolog;
use crate::counters::dcgm;

const CONFIGURATION: &[u8] = b"socket_dir = '/run/kineto'\nmetrics = '127.0.0.1:9465'\ninterval_s = 10\n\
[listen]\naddress = '[::]:1'\ncertificate = 'c'\nkey = 'k'\n[[token]]\nname = 'a'\nfile = 'f'\n\
verbs = ['status']\nhosts = ['10.0.0.0/8', 'fd00::/8']\n[hub]\nurl = 'https://h'\ntoken_file = 't'\n\
[periodic]\ntraces_per_day = 24\nshare_of_steps = 0.5\nwith = ['shapes']\n[[periodic.workflow]]\n\
name = 'a*b'\nmib_per_day = 1\n";
const DYNOLOG: &[u8] = b"{\"fn\": \"setKinetOnDemandRequest\", \"config\": \"ACTIVITIES_LOG_FILE=\
/tmp/a.json\\nPROFILE_START_TIME=0\", \"pids\": [7, 8], \"job_id\": 0, \"process_limit\": 3}";
const PAGE: &[u8] =
    b"# TYPE DCGM_FI_PROF_SM_ACTIVE gauge\nDCGM_FI_PROF_SM_ACTIVE{gpu=\"1\",UUID=\"G\",\
modelName=\"a \\\"b\\\"\"} 0.25\nDCGM_FI_DEV_FB_USED{gpu=\"1\",UUID=\"G\",GPU_I_ID=\"2\"} 512 17\n\
DCGM_FI_DEV_GPU_UTIL{gpu=\"1\",UUID=\"G\"} 80\n";

#[test]
fn configurations() {
    fuzz_parser("configuration", &[CONFIGURATION], |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        let Ok(config) = config::parse(text) else { return false };
        let is_right = config.problems().is_empty();
        if let Some(policy) = config.periodic.filter(|_| is_right) {
            let limits = policy.limits("a-b");
            assert!(limits.share > 0.0 && limits.share <= 1.0 && limits.traces <= 86_400);
        }
        is_right
    });
}

#[test]
fn pages() {
    fuzz_parser("dcgm page", &[PAGE], |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let readings = dcgm::readings(&dcgm::samples(&text));
        for (_, reading) in readings.values() {
            let pipes = reading.pipes;
            let shares = [reading.busy, reading.sm_active, reading.sm_occupancy, reading.dram];
            let pipes = [pipes.tensor, pipes.fp64, pipes.fp32, pipes.fp16];
            for share in shares.into_iter().chain(pipes).flatten() {
                assert!((0.0..=1.0).contains(&share), "{share}");
            }
        }
        !readings.is_empty()
    });
}

#[test]
fn malformed_dynolog_requests() {
    fuzz_parser("dynolog", &[DYNOLOG], |bytes| {
        let Some(wanted) = dynolog::parse(bytes) else { return false };
        wanted.check().is_ok()
    });
}
