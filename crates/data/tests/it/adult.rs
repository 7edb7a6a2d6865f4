//! Tests on the census data Adult, which has spaces around fields, `?` for missing values, two
//! spellings of the label, and a separate test file.

use serde_json::json;

use crate::fixture::{Folder, config, request, whole};

fn adult() -> schema::DataConfig {
    config(json!({
        "format": "csv",
        "columns": [
            "age", "workclass", "fnlwgt", "education", "education-num", "marital-status",
            "occupation", "relationship", "race", "sex", "capital-gain", "capital-loss",
            "hours-per-week", "native-country", "income"
        ],
        "label": {"column": "income", "positive": [">50K", ">50K."]},
        "missing": "?",
        "dense": [
            {"column": "age", "transform": "standardise"},
            {"column": "capital-gain", "transform": "log1p"},
            {"column": "hours-per-week"},
        ],
        "categorical": [
            {"column": "workclass"}, {"column": "occupation"}, {"column": "age", "kind": "integer"},
        ],
        "ids": {"mode": "exact"},
    }))
}

#[test]
fn the_test_file_uses_the_fitted_state_of_the_training_file() {
    let (Some(train), Some(test)) = (
        testkit::fixture::path("adult/adult-train.csv.gz"),
        testkit::fixture::path("adult/adult-test.csv.gz"),
    ) else {
        return;
    };
    let folder = Folder::new();
    let config = adult();
    let inputs = |path: &std::path::Path| [path.to_str().unwrap().to_owned()];
    let trained = folder.prepare("train", &inputs(&train), &config);
    assert_eq!((trained.dataset.rows(), trained.losses.malformed_lines), (32_561, 0));
    let fitted = trained.dataset.fitted();
    let batch = whole(&trained.dataset, 1000);
    // The expected numbers are counts of the published files.
    assert_eq!(batch.labels.iter().filter(|&&label| label == 1.0).count(), 7841);
    let missing = |feature: usize, batch: &schema::Batch| {
        batch.sparse.values[batch.sparse.feature(feature)].iter().filter(|&&id| id == 0).count()
    };
    assert_eq!((missing(0, &batch), missing(1, &batch)), (1836, 1843));
    let ages: Vec<f64> = batch.dense.iter().step_by(3).map(|&age| f64::from(age)).collect();
    let mean = ages.iter().sum::<f64>() / ages.len() as f64;
    let variance = ages.iter().map(|age| age * age).sum::<f64>() / ages.len() as f64;
    assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-6, "{mean} {variance}");
    assert!((fitted.dense[0].mean - 38.581_646).abs() < 1e-4);
    // The first row has age 39, a gain of 2174 and 40 hours. The work class and the occupation of
    // this row are the first of their columns, so both have id 2.
    assert!((f64::from(batch.dense[1]) - 2175f64.ln()).abs() < 1e-6);
    assert_eq!(batch.dense[2], 40.0);
    assert_eq!(batch.sparse.values[batch.sparse.bag(0, 0)], [2]);

    let out = folder.path("test");
    let test = inputs(&test);
    let tested = data::prepare(&request(&test, &config, Some(fitted), &out), &mut |_| {}).unwrap();
    assert_eq!((tested.dataset.rows(), tested.losses.malformed_lines), (16_281, 0));
    assert_eq!(tested.dataset.fitted(), fitted);
    let batch = whole(&tested.dataset, 1000);
    assert_eq!(batch.labels.iter().filter(|&&label| label == 1.0).count(), 3846);
    assert_eq!(missing(0, &batch), 963);
    let age = (25.0 - fitted.dense[0].mean) / fitted.dense[0].deviation;
    assert!((f64::from(batch.dense[0]) - age).abs() < 1e-6);
}

#[test]
fn fitting_leaves_out_the_rows_that_will_be_held_out() {
    let folder = Folder::new();
    let config = config(json!({
        "format": "csv", "label": {"column": "y"},
        "dense": [{"column": "x", "transform": "standardise"}],
        "categorical": [{"column": "c"}],
        "ids": {"mode": "exact"},
    }));
    let inputs = [folder.file("x.csv", b"c,x,y\na,1,0\nb,3,1\nb,,1\nz,100,0\n")];
    let out = folder.path("out");
    let mut request = request(&inputs, &config, None, &out);
    request.hold_out = 0.25;
    let dataset = data::prepare(&request, &mut |_| {}).unwrap().dataset;
    assert_eq!(dataset.split(0.25), (0..3, 3..4));
    let fitted = &dataset.fitted().dense[0];
    assert_eq!((fitted.mean, fitted.deviation), (2.0, 1.0));
    let batch = whole(&dataset, 4);
    assert_eq!(batch.dense, [-1.0, 1.0, 0.0, 98.0]);
    // "z" occurs only in the held-out part, so it was never seen.
    assert_eq!(batch.sparse.values, [2, 3, 3, 1]);
}

#[test]
fn fitted_state_of_other_columns_is_refused() {
    let folder = Folder::new();
    let base = json!({"format": "csv", "label": {"column": "y"}, "dense": [{"column": "x"}]});
    let inputs = [folder.file("x.csv", b"x,y\n1,0\n")];
    let fitted = folder.prepare("a", &inputs, &config(base)).dataset.fitted().clone();
    let other = config(json!({
        "format": "csv", "label": {"column": "y"},
        "dense": [{"column": "x", "transform": "log1p"}],
    }));
    let error = folder.try_prepare("b", &inputs, &other, Some(&fitted)).unwrap_err().to_string();
    expect_test::expect![[r#"fitted dense columns: expected [("x", Log1p)], got [("x", None)]"#]]
        .assert_eq(&error);
}
