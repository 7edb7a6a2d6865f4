use super::{ProposalError, Wish, dim_of, propose};
use crate::JobConfig;
use crate::facts::{ColumnFacts, FileFacts, ListFacts, TimeFacts};
use crate::source::{DataFormat, NumberForm};

const ROWS: u64 = 10_000;

fn column(name: &str, distinct: u64) -> ColumnFacts {
    let name = name.to_owned();
    ColumnFacts { name, present: ROWS, distinct, is_counted: true, ..ColumnFacts::default() }
}

fn integers(name: &str, distinct: u64, least: f64, greatest: f64) -> ColumnFacts {
    ColumnFacts {
        integers: ROWS,
        numbers: ROWS,
        least: Some(least),
        greatest: Some(greatest),
        mean: (least + greatest) / 2.0,
        deviation: (greatest - least) / 4.0,
        ..column(name, distinct)
    }
}

fn amounts(name: &str, number_form: NumberForm) -> ColumnFacts {
    let least = Some(0.5);
    ColumnFacts { number_form, numbers: ROWS, least, greatest: Some(90.0), ..column(name, 800) }
}

fn label() -> ColumnFacts {
    let values = vec![("0".to_owned(), 7000), ("1".to_owned(), 3000)];
    ColumnFacts { values, ..integers("click", 2, 0.0, 1.0) }
}

fn file(columns: Vec<ColumnFacts>) -> FileFacts {
    FileFacts {
        format: DataFormat::Csv,
        delimiter: None,
        quote: None,
        has_names: true,
        layout: None,
        rows: ROWS,
        missing: None,
        columns,
    }
}

fn wish() -> Wish {
    Wish { name: "x".to_owned(), train: vec!["x.csv".to_owned()], ..Wish::default() }
}

/// Proposes a configuration for `columns`, checks that it is valid, and returns the role of each
/// column.
fn roles(columns: Vec<ColumnFacts>) -> Vec<String> {
    let proposal = propose(&file(columns), &wish()).unwrap();
    JobConfig::parse(&proposal.text, &[])
        .unwrap_or_else(|error| panic!("{error}\n{}", proposal.text));
    proposal.uses.iter().map(|used| format!("{}: {}", used.column, used.role)).collect()
}

#[test]
fn integers_that_leave_gaps_are_categories_too() {
    let counts =
        ColumnFacts { mean: 50.0, deviation: 500.0, ..integers("impressions", 800, 0.0, 24_052.0) };
    let got = roles(vec![
        label(),
        integers("C14", 800, 375.0, 24_052.0),
        integers("days", 800, 1.0, 1000.0),
        integers("income", 5000, 1.0, 1_000_000.0),
        counts,
    ]);
    let expected = [
        "click: label",
        "C14: number and category",
        "days: number",
        // Most values are too rare to learn a table row from them.
        "income: number",
        "impressions: number",
    ];
    assert_eq!(got, expected);
}

#[test]
fn column_roles_depend_on_values() {
    let money = amounts("price", NumberForm::Money);
    let comma = amounts("preis", NumberForm::DecimalComma);
    let times = TimeFacts {
        format: Some("%d.%m.%Y".to_owned()),
        other_format: None,
        count: ROWS,
        least: 0.0,
        greatest: 1e6,
        has_clock: false,
    };
    let list = ListFacts {
        separator: Some("|".to_owned()),
        elements: 3 * ROWS,
        distinct: 18,
        integers: 0,
        once: 0,
    };
    let got = roles(vec![
        label(),
        integers("age", 73, 17.0, 90.0),
        integers("user_id", 2000, 5.0, 9_999.0),
        integers("item", 900, 1.0, 900.0),
        integers("weight", 8000, 12_285.0, 1_484_705.0),
        ColumnFacts { is_sorted: true, ..integers("row", ROWS, 0.0, 9999.0) },
        column("city", 40),
        column("name", ROWS),
        column("country", 1),
        ColumnFacts { missing: ROWS, present: 0, ..column("note", 0) },
        money,
        comma,
        ColumnFacts { times: Some(times), ..column("day", 300) },
        ColumnFacts { list: Some(list), ..column("genres", 400) },
        integers("timestamp", 9000, 1.4e9, 1.5e9),
    ]);
    let expected = [
        "click: label",
        "age: number and category",
        "user_id: category",
        "item: category",
        "weight: number",
        "row: left out",
        "city: category",
        "name: left out",
        "country: left out",
        "note: left out",
        "price: number",
        "preis: number",
        "day: time",
        "genres: list of categories",
        "timestamp: time",
    ];
    assert_eq!(got, expected);
}

#[test]
fn label_is_detected_or_an_error() {
    let binary = |name: &str| ColumnFacts { name: name.to_owned(), ..label() };
    let label_of = |columns: Vec<ColumnFacts>| {
        propose(&file(columns), &wish()).map(|proposal| proposal.uses[0].column.clone())
    };
    let city = || column("city", 40);
    assert_eq!(label_of(vec![city(), binary("a"), binary("target")]), Ok("target".to_owned()));
    assert_eq!(label_of(vec![binary("a"), city(), binary("b")]), Ok("b".to_owned()));
    assert_eq!(label_of(vec![city(), binary("a"), city()]).as_deref(), Ok("a"));
    let asked = label_of(vec![city(), binary("a"), binary("b"), column("d", 9)]);
    let candidates = vec!["a".to_owned(), "b".to_owned()];
    assert!(
        matches!(asked, Err(ProposalError::NoLabel { candidates: got, .. }) if got == candidates)
    );
    assert!(matches!(label_of(vec![label(), column("c", 1)]), Err(ProposalError::NoInputs { .. })));
}

#[test]
fn ratings_and_words_become_classes() {
    let stars = (1..=5).map(|star| (star.to_string(), 2000)).collect();
    let rating = ColumnFacts { values: stars, ..integers("rating", 5, 1.0, 5.0) };
    let text = |label: ColumnFacts, wish: &Wish| {
        propose(&file(vec![label, column("city", 40)]), wish).unwrap().text
    };
    assert!(text(rating, &wish()).contains("positive = [\"4\", \"5\"]"));
    let values = vec![("<=50K".to_owned(), 7000), (">50K".to_owned(), 3000)];
    let income = ColumnFacts { values, ..column("income", 2) };
    let labels = vec!["<=50K.".to_owned(), ">50K.".to_owned()];
    let wish = Wish { evaluation_labels: labels, ..wish() };
    let text = text(income, &wish);
    assert!(text.contains("positive = [\">50K\", \">50K.\"]"), "{text}");
}

#[test]
fn counts_are_positive_from_one_and_ratings_are_not() {
    let values = |zeros: u64| vec![("0".to_owned(), zeros), ("4".to_owned(), ROWS - zeros)];
    let text =
        |label: ColumnFacts| propose(&file(vec![label, column("city", 40)]), &wish()).unwrap().text;
    for name in ["clicks", "n_clicks", "Click Count", "purchases"] {
        let clicks = ColumnFacts { values: values(7000), ..integers(name, 5, 0.0, 4.0) };
        assert!(text(clicks).contains("positive_from = 1 }"), "{name}");
    }
    let mut values = values(4000);
    values.extend([("1".to_owned(), 0), ("2".to_owned(), 0), ("3".to_owned(), 0)]);
    let rating = ColumnFacts { values, ..integers("rating", 5, 0.0, 4.0) };
    assert!(text(rating).contains("positive = [\"3\", \"4\"]"));
    let missing = ColumnFacts { missing: 600, ..label() };
    assert!(text(missing).contains("unlabeled = \"leave_out\" }"));
}

#[test]
fn integers_beyond_float_precision_are_identifiers() {
    let beyond = ColumnFacts {
        large_integers: ROWS,
        integers_beyond_64_bits: ROWS,
        numbers: ROWS,
        ..column("shop", 40)
    };
    let large = ColumnFacts { large_integers: 1, ..integers("user", 900, 1e17, 2e17) };
    let got = roles(vec![label(), beyond, large]);
    assert_eq!(got, ["click: label", "shop: category", "user: category"]);
}

#[test]
fn messages_are_short_with_many_columns() {
    let columns: Vec<ColumnFacts> = (0..9000).map(|at| column(&format!("c{at}"), 9)).collect();
    let error = propose(&file(columns), &wish()).unwrap_err().to_string();
    assert!(error.len() < 600 && error.ends_with("… (9,000 in all)"), "{error}");
}

#[test]
fn dims_grow_with_the_fourth_root() {
    assert_eq!([1, 3, 10, 100, 2000, 40_000_000].map(dim_of), [8, 8, 8, 16, 32, 32]);
}
