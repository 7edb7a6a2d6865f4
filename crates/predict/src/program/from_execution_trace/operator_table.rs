//! The table from operators of PyTorch to the kernels that they launch, which is the file
//! `operators.tsv`. How the sizes of a kernel follow from tensors is in `kernels`.

use schema::HardwareSpec;

const TEXT: &str = include_str!("operators.tsv");

/// The least time of a kernel on two devices, and the number of its passes over memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassCost {
    pub name: &'static str,
    least_v100_ns: f64,
    least_h100_ns: f64,
    /// Number of times that the kernel moves the bytes of its tensors.
    pub passes: f64,
}

/// One kernel of an operator, with a factor on its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    pub kernel: &'static str,
    pub factor: f64,
}

/// An operator with the kernels that it launches.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorRow {
    name: &'static str,
    kernels: Vec<Token>,
    is_whole: bool,
    /// Name of the operator that GPUs run in place of this one.
    pub same_as: Option<&'static str>,
}

/// The table of operators and kernels that is shipped with rowmill.
#[derive(Clone, Debug)]
pub struct OperatorTable {
    passes: Vec<PassCost>,
    rows: Vec<OperatorRow>,
}

impl PassCost {
    /// Returns the least time of the kernel on a device in nanoseconds. It is interpolated between
    /// the two measured devices by the bandwidth of memory, and equal to theirs beyond them.
    pub fn least_ns(&self, device: &HardwareSpec) -> f64 {
        const V100: f64 = 900e9;
        const H100: f64 = 3_350e9;
        let share = ((device.dram / V100).ln() / (H100 / V100).ln()).clamp(0.0, 1.0);
        self.least_v100_ns * (self.least_h100_ns / self.least_v100_ns).powf(share)
    }
}

impl Token {
    /// The kernel of operators that are not in the table.
    pub const OTHER: Self = Self { kernel: "other", factor: 1.0 };
}

impl OperatorRow {
    /// Returns the kernels of the operator. The list is empty if it only allocates or views memory.
    pub fn kernels(&self) -> &[Token] {
        &self.kernels
    }

    /// Returns whether the operators nested in this one launch nothing on a GPU.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    fn matches(&self, name: &str) -> bool {
        let mut parts = self.name.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.is_empty() || self.name.ends_with('*')
    }
}

impl OperatorTable {
    /// Parses the shipped table. Lines that are malformed are left out; a test checks that
    /// all lines are well-formed.
    pub fn shipped() -> Self {
        let mut table = Self { passes: Vec::new(), rows: Vec::new() };
        for line in TEXT.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&'static str> = line.split_whitespace().collect();
            match words[..] {
                ["pass", name, v100, h100, passes] => {
                    let number = |text: &str| text.parse().unwrap_or(f64::NAN);
                    table.passes.push(PassCost {
                        name,
                        least_v100_ns: number(v100),
                        least_h100_ns: number(h100),
                        passes: number(passes),
                    });
                }
                [name, kernels] => table.rows.push(row(name, kernels, None)),
                [name, kernels, same_as] => table.rows.push(row(name, kernels, Some(same_as))),
                _ => {}
            }
        }
        table
    }

    /// Finds the row of an operator. Operators that work in place have the rows of those that do
    /// not.
    pub fn find(&self, name: &str) -> Option<&OperatorRow> {
        let plain = if name.starts_with("aten::") { name.trim_end_matches('_') } else { name };
        self.rows.iter().find(|row| row.matches(plain))
    }

    /// Returns the pass with a name. Kernels without a pass of their own are priced as other ones.
    pub fn pass(&self, name: &str) -> PassCost {
        let named = |wanted: &str| self.passes.iter().find(|pass| pass.name == wanted).copied();
        let other = PassCost { name: "other", least_v100_ns: 4e3, least_h100_ns: 2e3, passes: 1.0 };
        named(name).unwrap_or(other)
    }
}

fn row(name: &'static str, kernels: &'static str, same_as: Option<&'static str>) -> OperatorRow {
    let listed = kernels.trim_end_matches('!');
    let token = |text: &'static str| match text.split_once('*') {
        Some((kernel, factor)) => Token { kernel, factor: factor.parse().unwrap_or(f64::NAN) },
        None => Token { kernel: text, factor: 1.0 },
    };
    let tokens = listed.split('+').filter(|text| *text != "-").map(token);
    OperatorRow { name, kernels: tokens.collect(), is_whole: kernels.ends_with('!'), same_as }
}

#[cfg(test)]
mod tests {
    use super::{OperatorRow, OperatorTable, TEXT};

    #[test]
    fn every_line_of_the_table_is_a_pass_or_an_operator() {
        let table = OperatorTable::shipped();
        let lines = TEXT.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(lines, table.passes.len() + table.rows.len());
        let own = ["conv", "conv_backward", "layer_norm", "softmax", "attention", "collective"];
        for token in table.rows.iter().flat_map(OperatorRow::kernels) {
            let is_known =
                own.contains(&token.kernel) || table.pass(token.kernel).name == token.kernel;
            assert!(is_known && token.factor > 0.0, "{token:?}");
        }
        assert!(table.passes.iter().all(|pass| pass.passes >= 0.0));
    }

    #[test]
    fn names_in_place_and_names_with_stars_match() {
        let table = OperatorTable::shipped();
        let kernels = |name: &str| {
            table
                .find(name)
                .map(|row| row.kernels().iter().map(|one| one.kernel).collect::<Vec<_>>())
        };
        assert_eq!(kernels("aten::add_"), Some(vec!["element"]));
        assert_eq!(kernels("aten::_foreach_addcdiv_"), Some(vec!["element"]));
        assert_eq!(kernels("nccl:all_to_all"), Some(vec!["collective"]));
        assert_eq!(kernels("aten::empty_strided"), Some(vec![]));
        assert_eq!(kernels("fbgemm::asynchronous_complete_cumsum"), Some(vec!["scan"]));
        assert_eq!(kernels("my::operator"), None);
    }
}
