//! The sources of kernels, which are embedded in the program.

/// The prelude that precedes every kernel source.
pub const PRELUDE: &str = concat!(
    "#line 1 \"cuda/prelude.cu\"\n",
    include_str!("prelude.cu"),
    "\n#line 1 \"optimizer/rule.cu\"\n",
    include_str!("../optimizer/rule.cu"),
);

/// A kernel source that is embedded in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSource {
    /// Path of the source below `crates/device/src`, which is shown in messages.
    pub name: &'static str,
    pub text: &'static str,
}
