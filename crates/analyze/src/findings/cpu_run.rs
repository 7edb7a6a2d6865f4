//! Rewords findings for CPU runs of rowmill's own trainer, whose device is a pool of threads. Also
//! decides which rules apply to CPU runs, and what the user should do.

use super::finding::{Finding, FindingCategory, HeldBack};
use crate::tables::kernels::IN_PLACE;

/// Rules that apply to a pool of CPU threads, each with the advice for that case.
const APPLY: [(&str, &str); 10] = [
    (
        "H01",
        "The thread that leads the pool works alone in this time. Raise training.batch_size, so that each \
         operation gives the pool more to do for it.",
    ),
    (
        "H02",
        "Convert the input once (rowmill data convert) and train on the prepared folder; leave the \
         loader a core of its own by fewer --threads.",
    ),
    (
        "H03",
        "Evaluate, log or write checkpoints less often: training.evaluate_every, log_every and \
         checkpoint_every.",
    ),
    ("H12", "Leave them: making them faster would not shorten a step."),
    (
        "L01",
        "Raise training.batch_size: an operation must be longer than waking the pool up for it. Fewer \
         --threads wake up sooner.",
    ),
    (
        "L06",
        "The pool's threads were slow to start. Use no more --threads than CPUs are free; another process \
         takes time from them.",
    ),
    (
        "M01",
        "Try another sharding (--sharding, or a plan of your own with --plan), a larger batch, or fewer \
         --ranks: the ranks of one machine share its cores and its memory.",
    ),
    ("M04", "Use fewer --ranks, or a larger batch: each exchange costs a meeting of all ranks."),
    (
        "M06",
        "Look at this rank's share of the tables (M07) and at what else runs on its cores: ranks are \
         threads of one process, and together need no more threads than there are CPUs.",
    ),
    (
        "M07",
        "Spread the tables more evenly: --sharding row or mixed, or a plan of your own with --plan.",
    ),
];

/// Drops findings that cannot apply to a CPU pool and rewords the rest.
pub(super) fn reword(findings: &mut Vec<Finding>) {
    findings.retain(|finding| {
        let is_own = finding.rule.len() != 3;
        is_own || finding.category == FindingCategory::Quality || advice(&finding.rule).is_some()
    });
    for finding in findings {
        if let (Some(advice), None) = (advice(&finding.rule), finding.held_back) {
            advice.clone_into(&mut finding.advice);
        }
        if finding.held_back == Some(HeldBack::DeviceBound) {
            finding.advice =
                "The pool works almost all the time: nothing that its leading thread does \
                              differently shortens a step."
                    .to_owned();
        }
        for text in [&mut finding.title, &mut finding.what] {
            *text = worded(text);
        }
        // The trainer records the start of the pool's work under the name of a CUDA call, so that
        // other trace readers recognize it as a launch.
        for evidence in &mut finding.evidence {
            for name in evidence.within.iter_mut().chain([&mut evidence.name]) {
                if name.starts_with("cudaLaunchKernel") {
                    "start of the pool's work".clone_into(name);
                }
            }
        }
    }
}

fn advice(rule: &str) -> Option<&'static str> {
    APPLY.iter().find(|(id, _)| *id == rule).map(|(_, advice)| *advice)
}

/// Replaces words for a device by words for a pool of threads.
fn worded(text: &str) -> String {
    let pairs = [
        (IN_PLACE, ""),
        ("Kernels spend", "Ranks spend"),
        ("the host is in", "the leading thread is in"),
        ("device waits for the host", "pool waits for its leading thread"),
        ("The device waits", "The pool waits"),
        ("while the host runs operators and calls", "while its leading thread works alone"),
        ("the device", "the pool"),
        ("the host", "the leading thread"),
        (
            " coincide with memory calls of the driver or with code being loaded",
            " begin with set-up",
        ),
    ];
    pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::{APPLY, worded};

    #[test]
    fn every_cpu_rule_exists_and_does_not_mention_gpus() {
        for (rule, advice) in APPLY {
            assert!(super::super::rules().any(|known| known.id == rule), "{rule}");
            for word in ["NCCL", "Python", "GPU", "CUDA", "torch"] {
                assert!(!advice.contains(word), "{rule}: {advice}");
            }
        }
        assert_eq!(
            worded("The device waits while the host runs operators and calls"),
            "The pool waits while its leading thread works alone"
        );
    }
}
