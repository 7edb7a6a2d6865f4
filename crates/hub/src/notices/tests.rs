use std::time::Duration;

use super::idle::IdleRun;
use super::rules::NoticeRules;
use super::{OwnerNotice, is_due};

fn idle_run() -> IdleRun {
    IdleRun {
        run: "slurm/7".to_owned(),
        user: "bot-1".to_owned(),
        account: "lab".to_owned(),
        gpus: 2,
        idle_gpus: 2,
        idle_gpu_s: 4000.0,
        worked_unix_s: 500,
        ..IdleRun::default()
    }
}

#[test]
fn a_run_is_due_only_if_all_its_gpus_were_seen_idle_since_the_notice() {
    let notice = OwnerNotice { time_unix_s: 2500, run: idle_run(), ..OwnerNotice::default() };
    let after = Duration::from_secs(600);
    let later = IdleRun { idle_gpu_s: 5200.0, ..idle_run() };
    assert!(is_due(&notice, &later, after, 3100));
    assert!(!is_due(&notice, &later, after, 3099));
    for (what, run) in [
        ("was not observed", IdleRun { idle_gpu_s: 5199.0, ..idle_run() }),
        ("worked", IdleRun { worked_unix_s: 501, idle_gpu_s: 6000.0, ..idle_run() }),
        ("has a GPU that works", IdleRun { idle_gpus: 1, ..later.clone() }),
        ("has a further GPU", IdleRun { gpus: 3, idle_gpus: 3, idle_gpu_s: 9000.0, ..idle_run() }),
        ("is not of Slurm", IdleRun { run: "kubernetes/7".to_owned(), ..later.clone() }),
    ] {
        assert!(!is_due(&notice, &run, after, 4000), "{what}");
    }
    let partly = IdleRun { idle_gpus: 1, ..idle_run() };
    assert!(!is_due(&OwnerNotice { run: partly, ..notice }, &later, after, 4000));
}

#[test]
fn rules_are_dry_and_checked() {
    let parse = |lines: &str| toml::from_str::<NoticeRules>(lines).unwrap();
    let check =
        |lines: &str, has_slurm| parse(lines).check(has_slurm).map_err(|error| error.to_string());
    assert!(parse("").dry_run && !parse("").cancel);
    assert_eq!(check("", false), Ok(()));
    let real = "dry_run = false\ncommand = ['mail', '{user}']";
    assert_eq!(check(&format!("{real}\ncancel = true\ncancel_after = '1h'"), true), Ok(()));
    for (lines, has_slurm, problem) in [
        ("dry_run = false", true, "notices: dry_run: expected `webhook` or `command`"),
        ("cancel = true", true, "notices: cancel: expected `cancel_after`"),
        ("cancel = true\ncancel_after = '1h'", false, "notices: cancel: expected"),
        ("after = '13h'", true, "notices: after: expected 1s to 12h, got 46800 s"),
        ("again = '1m'", true, "notices: again: expected at least `after`"),
        ("per_day = 0", true, "notices: per_day: expected 1 to 1000, got 0"),
        ("webhook.url = 'ftp://a'", true, "notices: webhook: url: expected http://"),
        ("webhook = { url = 'http://a', token_file = '/t' }", true, "notices: webhook: url: "),
        ("[[except]]", true, "notices: except: expected users, accounts"),
    ] {
        let error = check(lines, has_slurm).unwrap_err();
        assert!(error.starts_with(problem), "{error}");
    }
}

#[test]
fn all_lists_of_an_exception_must_match() {
    let is_excepted = |lines: &str| {
        let rules: NoticeRules = toml::from_str(&format!("[[except]]\n{lines}")).unwrap();
        rules.exception(&idle_run()).is_some()
    };
    assert!(is_excepted("users = ['anna', 'bot-*']"));
    assert!(is_excepted("users = ['bot-*']\naccounts = ['lab']"));
    assert!(!is_excepted("users = ['bot-*']\naccounts = ['sales']"));
    assert!(!is_excepted("workflows = ['train']"));
}
