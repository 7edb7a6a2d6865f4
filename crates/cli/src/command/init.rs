//! The command `rowmill init`, which reads files and writes a configuration that trains on them.

use std::io::Write as _;

use data::Strictness;
use data::profile::{self, Profile};
use schema::JobConfig;
use schema::proposal::{self, Proposal, ProposalError, Use, Wish};
use schema::source::LabelColumn;
use serde::Serialize;

use crate::args::Init;
use crate::command::data::stats::{profile_files, summarize_files};
use setup::error::{Error, UsageError};
use setup::shell::quoted;
use setup::{Session, feature_stats_file, input};
use setup::{output, render};

/// The proposed configuration, in the form in which `rowmill init` prints it.
#[derive(Serialize)]
struct InitResult<'a> {
    configuration: Option<String>,
    rows: u64,
    columns: &'a [Use],
    remarks: &'a [String],
}

/// Runs `rowmill init` and prints its result.
pub fn run(args: &Init, session: &Session) -> Result<(), Error> {
    let target = args.target();
    if let Some(path) = target.as_ref().filter(|path| path.exists() && !args.force) {
        return Err(UsageError::ConfigExists { path: path.clone() }.into());
    }
    let files = list_files(&args.files)?;
    let mut profile = profile_files(&files, args.delimiter.as_deref(), session)?;
    input::report_losses(session, profile.facts.rows, &profile.losses);
    let mut proposal = propose(args, &profile, session)?;
    // A proposal that cannot be parsed is a bug in rowmill. The proposal is parsed here so that
    // such a bug is found before the user trains.
    let job = JobConfig::parse(&proposal.text, &[]);
    let job = job.map_err(|source| UsageError::Config {
        origin: "proposal".to_owned(),
        source: Box::new(source),
    })?;
    profile.name_columns(schema::proposal::column_names(&profile.facts));
    proposal.remarks.extend(describe_leaks(&profile, &job));
    if let Some(path) = &args.feature_stats {
        let most = Strictness::AtMost(Strictness::DEFAULT_MAX);
        // The profile has already reported the records that cannot be read.
        let (summary, _) = summarize_files(&files, &job.data, most, session)?;
        feature_stats_file::write(path, &summary)?;
    }
    let Some(path) = target else {
        session.console.print(proposal.text.trim_end())?;
        proposal.remarks.iter().for_each(|remark| session.console.warn(remark));
        return Ok(());
    };
    output::put(&path, |file| {
        file.write_all(proposal.text.as_bytes()).map_err(Error::io(&path, "write"))
    })?;
    let proposed = InitResult {
        configuration: Some(path.display().to_string()),
        rows: profile.facts.rows,
        columns: &proposal.uses,
        remarks: &proposal.remarks,
    };
    session.console.report(&proposed, table)?;
    for remark in &proposal.remarks {
        session.console.warn(remark);
    }
    session.console.say(format_args!(
        "wrote {}; review it, then train with:\n  rowmill train {}",
        path.display(),
        quoted(&path.display().to_string())
    ));
    Ok(())
}

/// Describes columns of the configuration that predict the label almost perfectly by themselves.
/// The user should check whether their values are known only after the label is known.
fn describe_leaks(profile: &Profile, job: &JobConfig) -> Vec<String> {
    let data = &job.data;
    // The published layouts have no configuration key for the label, because it is the first
    // column.
    let find_first_column = || schema::proposal::column_names(&profile.facts).into_iter().next();
    let Some(label) = data.label.clone().or_else(|| find_first_column().map(LabelColumn::new))
    else {
        return Vec::new();
    };
    let mut used: Vec<&str> = data.dense.iter().map(|column| column.column.as_str()).collect();
    used.extend(data.categorical.iter().map(|column| column.column.as_str()));
    let leaks = profile::find_leaks(profile, &label).into_iter();
    let leaks = leaks.filter(|leak| used.contains(&leak.column.as_str()));
    let remark = |leak: profile::Leak| {
        format!(
            "column {}: it alone predicts {} almost perfectly (AUC {:.3} on {}); remove it from the \
             configuration if it is known only after the label is",
            leak.column,
            label.column,
            leak.auc,
            render::counted(leak.rows as u64, "row")
        )
    };
    leaks.map(remark).collect()
}

fn list_files(paths: &[String]) -> Result<Vec<String>, Error> {
    if paths.iter().any(|path| path == "-") {
        return Err(UsageError::InitOfStream.into());
    }
    let files = input::files_of(paths)?;
    match files.iter().find(|path| std::path::Path::new(path).is_dir()) {
        Some(path) => Err(UsageError::InitOfPrepared { path: path.into() }.into()),
        None => Ok(files),
    }
}

fn propose(args: &Init, profile: &Profile, session: &Session) -> Result<Proposal, Error> {
    let mut words = vec!["rowmill init".to_owned()];
    words.extend(args.files.iter().map(|file| quoted(file)));
    let mut wish = Wish {
        name: args.stem(),
        command: words.join(" "),
        label: args.label.clone(),
        train: args.files.clone(),
        evaluation: args.evaluation.clone(),
        evaluation_labels: Vec::new(),
    };
    let refused = |error: ProposalError| {
        let files = schema::unit::listed(&args.files);
        Error::from(UsageError::NoProposal { files, source: error })
    };
    let proposal = proposal::propose(&profile.facts, &wish).map_err(refused)?;
    let label = proposal.uses.first().map(|label| label.column.clone());
    let (Some(label), false) = (label, args.evaluation.is_empty()) else { return Ok(proposal) };
    // Evaluation files may spell the values of the label differently. For example, they may contain
    // `>50K.` instead of `>50K`.
    let evaluation =
        profile_files(&list_files(&args.evaluation)?, args.delimiter.as_deref(), session)?;
    let mut columns = profile.facts.columns.iter().zip(&evaluation.facts.columns);
    if let Some((_, column)) = columns.find(|(column, _)| column.name == label) {
        wish.evaluation_labels = column.values.iter().map(|(text, _)| text.clone()).collect();
    }
    proposal::propose(&profile.facts, &wish).map_err(refused)
}

fn table(proposed: &InitResult<'_>) -> String {
    let row = |used: &Use| vec![used.column.clone(), used.role.clone(), used.reason.clone()];
    let rows: Vec<_> = proposed.columns.iter().map(row).collect();
    render::grid(&["column", "used as", "because"], &rows)
}
