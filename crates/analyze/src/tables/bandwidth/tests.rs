use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::window::WindowRule;

fn example() -> trace::store::Trace {
    let row = |name: &str, bytes: &str, start: i64, duration: i64| {
        format!(
            r#"{{"ph":"X","cat":"gpu_memcpy","name":"{name}","pid":0,"tid":7,
            "ts":{start},"dur":{duration},"args":{{{bytes}}}}}"#
        )
    };
    let rows = [
        row("Memcpy HtoD (Pinned -> Device)", r#""bytes":4000"#, 1, 2),
        row("Memcpy HtoD (Pinned -> Device)", r#""bytes":5000"#, 2, 2),
        row("Memcpy HtoD (Pinned -> Device)", "", 9, 1),
        row("Memcpy DtoD (Device -> Device)", r#""bytes":0"#, 5, 1),
    ];
    let text = format!("[{}]", rows.join(","));
    trace::open::parse(text.as_bytes()).unwrap()
}

#[test]
fn rates_are_bytes_over_time() {
    let trace = example();
    let scope = Scope::new(&trace, WindowRule::All, &Classifier::new(ClassRule::Category));
    let rows = measure_bandwidth(&scope);
    let expected = Bandwidth {
        rank: 0,
        device: 0,
        kind: "Memcpy HtoD (Pinned -> Device)".to_owned(),
        count: 3,
        without_bytes_count: 1,
        bytes: 9000,
        time_ns: 4000,
        busy_ns: 3000,
        gb_per_s: Some(2.25),
        gb_per_s_together: Some(3.0),
        concurrency_mean: Some(1.333333),
        concurrency_max: 2,
    };
    assert_eq!(rows[0], expected);
    assert_eq!((rows[1].bytes, rows[1].gb_per_s), (0, Some(0.0)));
}

#[test]
fn sizes_fall_between_powers_of_two() {
    let trace = example();
    let scope = Scope::new(&trace, WindowRule::All, &Classifier::new(ClassRule::Category));
    let seen: Vec<_> = by_size(&scope)
        .iter()
        .map(|class| (class.bytes_from, class.bytes_to, class.count, class.gb_per_s))
        .collect();
    let expected = [(0, 0, 1, Some(0.0)), (2048, 4095, 1, Some(2.0)), (4096, 8191, 1, Some(2.5))];
    assert_eq!(seen, expected);
}
