//! The command line of `rowmill init`.

use std::path::PathBuf;

use clap::Args;

/// Options of `rowmill init`, which proposes a configuration for files.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rowmill init clicks.csv.gz               writes clicks.toml
  rowmill init day_*.parquet --output ads.toml --label clicked
  rowmill init events/                     all files below; folders such as device=phone/ are columns
  rowmill init adult-train.csv.gz --evaluation adult-test.csv.gz
  rowmill init ratings.dat --output - | less

Reads CSV with any delimiter and quotes, TSV, Parquet and NumPy arrays, plain or compressed (gzip,
Zstandard, bzip2, xz, zip), with or without a header. Counts the values of every column over all files,
and writes a commented configuration that is ready to train: rowmill train clicks.toml")]
pub struct Init {
    /// Training files with the same columns, or folders of them
    #[arg(required = true)]
    pub files: Vec<String>,
    /// Test files, evaluated once, at the end of training [default: the newest tenth of the rows by
    /// a time column, or else the last tenth]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub evaluation: Vec<String>,
    /// The column to predict [default: chosen by name and values]
    #[arg(long, value_name = "COLUMN")]
    pub label: Option<String>,
    /// Field delimiter, such as ';' or tab [default: detected]
    #[arg(long, value_name = "TEXT")]
    pub delimiter: Option<String>,
    /// The configuration to write, or - for stdout [default: FILE with .toml]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also write bag sizes and skew of the sparse features, which rowmill plan --stats reads; the
    /// files are read a second time
    #[arg(long, value_name = "FILE.json")]
    pub feature_stats: Option<PathBuf>,
    /// Replace the configuration if it exists
    #[arg(long)]
    pub force: bool,
}

impl Init {
    /// The name of the first file without folder and file extensions. The model and its
    /// configuration get this name.
    pub fn stem(&self) -> String {
        let first = self.files.first().map_or("model", |file| file.trim_end_matches(['/', '\\']));
        let name = first.rsplit(['/', '\\']).next().unwrap_or(first);
        let stem = name.split('.').find(|part| !part.is_empty()).unwrap_or("model");
        let stem = ["_dense", "_labels", "_sparse"]
            .iter()
            .find_map(|end| stem.strip_suffix(end))
            .unwrap_or(stem);
        if stem == "-" { "model".to_owned() } else { stem.to_owned() }
    }

    /// The configuration file to write. `None` means stdout.
    pub fn target(&self) -> Option<PathBuf> {
        match &self.output {
            Some(path) if path.as_os_str() == "-" => None,
            Some(path) => Some(path.clone()),
            None => Some(PathBuf::from(format!("{}.toml", self.stem()))),
        }
    }
}
