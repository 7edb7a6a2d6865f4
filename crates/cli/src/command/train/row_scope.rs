//! Formats warnings about optimizers that compute a value per row, such as row-wise Adagrad, if a
//! sharding plan splits the columns of rows. The caller prints the warnings.

use schema::{Optimizer, RowScope};

/// Lists warnings about the optimizer rule. One says that the rule differs from the rule on whole
/// rows, and another one that it has changed since the checkpoint.
pub fn list_warnings(
    optimizer: Optimizer,
    scope: &RowScope,
    before: Option<&RowScope>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let tables = scope.split_tables().len();
    if tables > 0 {
        let plural = if tables == 1 { "" } else { "s" };
        warnings.push(format!(
            "{optimizer} on {tables} table{plural} with split columns is another rule than on whole \
             rows: {} ({scope}); optimizer.row_scope = \"whole_rows\" makes it independent of the plan",
            tile_rule(optimizer)
        ));
    }
    if let Some(difference) = before.and_then(|before| before.first_difference(scope)) {
        warnings.push(format!(
            "{optimizer} continues as another rule, as --accept-rule-change allows: table {:?} had {}, \
             now {}; {}",
            difference.table,
            difference.before,
            difference.after,
            state_rule(optimizer)
        ));
    }
    warnings
}

/// Describes what an optimizer rule does with the column tiles of a row.
fn tile_rule(optimizer: Optimizer) -> &'static str {
    match optimizer {
        Optimizer::Lamb => "each column tile is scaled to the norm of its own columns",
        _ => {
            "each column tile keeps a state of its own, the mean square of its own columns, as \
             TorchRec's column-wise sharding does"
        }
    }
}

/// Describes how optimizer states are converted when columns are merged or split.
fn state_rule(optimizer: Optimizer) -> &'static str {
    match optimizer {
        Optimizer::Lamb => "its states stay as they are",
        _ => {
            "states of merged columns were averaged by width, and that of a split row was copied to \
             each part"
        }
    }
}

#[cfg(test)]
mod tests {
    use schema::row_scope::ColumnSplit;
    use schema::{Optimizer, RowScope};

    use super::list_warnings;

    #[test]
    fn warnings_name_both_rules_and_the_conversion_of_states() {
        let split = ColumnSplit { table: "a".into(), rows: 0..9, columns: vec![0..2, 2..4] };
        let split = RowScope::ColumnTiles(vec![split]);
        let said = |kind, scope, before| list_warnings(kind, scope, before).join("\n");
        let text = said(Optimizer::RowwiseAdagrad, &split, None);
        let expected = "rowwise_adagrad on 1 table with split columns is another rule";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("(a: 2 column tiles of 2 columns)"), "{text}");
        let text = said(Optimizer::RowwiseAdagrad, &RowScope::WholeRows, Some(&split));
        let expected =
            "table \"a\" had 2 column tiles of 2 columns, now whole rows; states of merged";
        assert!(text.contains(expected), "{text}");
        let text = said(Optimizer::Lamb, &split, Some(&RowScope::WholeRows));
        assert!(text.contains("norm of its own columns"), "{text}");
        assert!(
            text.contains("had whole rows, now 2 column tiles of 2 columns; its states"),
            "{text}"
        );
    }
}
