use schema::random::CounterRng;

use super::{Book, DAY_S, Ledger, TraceBudgets, Wait, WallTime, choose, seed_of};

const LIMITS: TraceBudgets =
    TraceBudgets { traces: 24, bytes: 1000, share: 0.01, iterations: 5, slowdown: 0.03 };
const MIDNIGHT: u64 = 20_000 * DAY_S;

fn at(second: u64) -> WallTime {
    WallTime { unix_s: MIDNIGHT + second }
}

/// A day, second by second, of a job with so many steps a second; when traces began.
fn day(ledger: &mut Ledger, steps: u64, bytes: u64, seed: u64) -> Vec<u64> {
    let mut begun = Vec::new();
    for second in 0..DAY_S {
        ledger.saw(steps);
        match ledger.allowance(at(second), &LIMITS, seed) {
            Ok(_) => {
                ledger.begin(at(second), &LIMITS);
                ledger.keep(bytes, LIMITS.iterations);
                begun.push(second);
            }
            Err(why) => ledger.wait(at(second), &LIMITS, why),
        }
    }
    begun
}

#[test]
fn a_day_has_a_trace_in_each_slot_at_moments_of_its_own() {
    let mut ledger = Ledger::default();
    let begun = day(&mut ledger, 10, 1, 7);
    let slots: Vec<u64> = begun.iter().map(|second| second / 3600).collect();
    assert_eq!(slots, (0..24).collect::<Vec<u64>>());
    let other = day(&mut Ledger::default(), 10, 1, 8);
    assert!(begun.iter().zip(&other).filter(|(a, b)| a == b).count() < 3, "{begun:?} {other:?}");
    assert!(ledger.totals.skipped.is_empty(), "{:?}", ledger.totals);
}

#[test]
fn every_step_is_stood_for_once() {
    let mut ledger = Ledger::default();
    let (mut weighed, mut made, mut draw) = (0.0, 0, 1);
    for second in 0..DAY_S {
        // A rate that changes, and every third trace is lost.
        let steps = 5 + second / 7000;
        made += steps;
        ledger.saw(steps);
        if ledger.allowance(at(second), &LIMITS, 1).is_ok() {
            ledger.begin(at(second), &LIMITS);
            draw += 1;
            if draw % 3 == 0 {
                ledger.lose("killed".to_owned());
            } else {
                weighed += ledger.weight(5) * 5.0;
                ledger.keep(1, 5);
            }
        }
    }
    assert_eq!((ledger.traces, ledger.lost), (16, 8));
    assert!((weighed + ledger.since as f64 - made as f64).abs() < 1e-6, "{weighed} of {made}");
}

#[test]
fn budgets_hold_whatever_comes() {
    // 300 bytes each: three fit into 1000, and the fourth might not.
    let mut bytes = Ledger::default();
    assert_eq!(day(&mut bytes, 10, 300, 1).len(), 3);
    assert_eq!(bytes.totals.skipped[&Wait::Bytes], 20, "the day's last slot has not ended");
    // A step every 100 seconds: 864 a day, of which at most 8 may be recorded.
    let mut steps = Ledger::default();
    let mut begun = 0;
    for second in 0..DAY_S {
        steps.saw(u64::from(second % 100 == 0));
        if steps.allowance(at(second), &LIMITS, 1).is_ok() {
            steps.begin(at(second), &LIMITS);
            steps.keep(1, 5);
            begun += 1;
        }
    }
    assert_eq!((begun, steps.recorded), (1, 5));
    let off = TraceBudgets { traces: 0, ..LIMITS };
    assert_eq!(Ledger::default().allowance(at(9), &off, 1), Err(Wait::Off));
    // More slots than before, in the middle of a day, are used from now on.
    let mut more = Ledger::default();
    more.saw(1_000_000);
    more.begin(at(7200), &TraceBudgets { traces: 86_400, ..LIMITS });
    assert_eq!(more.allowance(at(3 * 3600 + 3599), &LIMITS, 1), Ok(1000));
}

#[test]
fn slow_steps_back_off_longer_each_time() {
    let mut ledger = Ledger::default();
    ledger.saw(1_000_000);
    let limits = TraceBudgets { traces: 86_400, ..LIMITS };
    ledger.slowed(at(0), &limits, 0.029);
    assert!(ledger.allowance(at(1), &limits, 1).is_ok());
    for (length, from) in [(3600, 10), (7200, 4000), (14_400, 12_000)] {
        ledger.slowed(at(from), &limits, 0.031);
        assert_eq!(ledger.allowance(at(from + length - 1), &limits, 1), Err(Wait::BackedOff));
        assert_eq!(ledger.backs_off(at(from + length - 1)), 1);
        assert!(ledger.allowance(at(from + length), &limits, 1).is_ok());
    }
    let row = ledger.row("ranking", at(12_001), &limits);
    assert_eq!((row.state.as_str(), row.backs_off_s), ("backs off", Some(14_399)));
    ledger.slowed(at(40_000), &limits, 0.0);
    ledger.slowed(at(40_001), &limits, 0.1);
    assert_eq!(ledger.backs_off(at(40_001)), 3600, "a good trace forgives");
}

#[test]
fn a_new_day_has_new_budgets_and_a_clock_set_back_has_not() {
    let mut book = Book::default();
    book.turn(at(0));
    book.ledger("a").saw(1000);
    book.ledger("idle");
    book.ledger("a").begin(at(1), &LIMITS);
    book.ledger("a").keep(400, 5);
    book.turn(WallTime { unix_s: MIDNIGHT - 60 });
    assert_eq!((book.ledger("a").traces, book.ledger("a").bytes), (1, 400));
    book.ledger("a").saw(70);
    book.turn(at(DAY_S));
    let ledger = book.ledger("a").clone();
    assert_eq!((ledger.traces, ledger.bytes, ledger.steps, ledger.recorded), (0, 0, 0, 0));
    assert_eq!((ledger.since, ledger.largest, ledger.totals.steps), (70, 400, 1070));
    assert_eq!(book.all().len(), 1, "a type without steps is forgotten");
    let again = Book::parse(&serde_json::to_vec(&book).unwrap());
    assert_eq!(again.all()["a"].since, 70);
    assert!(
        Book::parse(b"{\"version\": 2}").all().is_empty() && Book::parse(b"x").all().is_empty()
    );
}

#[test]
fn endlessly_many_names_are_not_told_apart() {
    let mut book = Book::default();
    for at in 0..200 {
        let name = book.name(&format!("w{at}"));
        book.ledger(&name).saw(1);
    }
    assert_eq!(book.all().len(), 65);
    assert_eq!(book.all()["(others)"].since, 136);
}

#[test]
fn processes_are_chosen_by_their_steps() {
    let draw = CounterRng::new(seed_of(&["host", "ranking"]), 0);
    let steps = [(7, 10), (8, 0), (9, 30)];
    let mut counts = [0; 3];
    for counter in 0..4000 {
        let pid = choose(&steps, draw, counter).unwrap();
        counts[usize::try_from(pid - 7).unwrap()] += 1;
    }
    assert!(counts[1] == 0 && (900..1100).contains(&counts[0]), "{counts:?}");
    assert_eq!(choose(&[(7, 0)], draw, 0), Some(7));
    assert_eq!(choose(&[], draw, 0), None);
    assert_ne!(seed_of(&["ab", "c"]), seed_of(&["a", "bc"]));
}
