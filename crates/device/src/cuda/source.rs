//! Sources of kernels as they are embedded.

/// The prelude that every kernel source begins with.
pub const PRELUDE: &str = concat!(
    "#line 1 \"cuda/prelude.cu\"\n",
    include_str!("prelude.cu"),
    "\n#line 1 \"optimizer/rule.cu\"\n",
    include_str!("../optimizer/rule.cu"),
);

/// A kernel's source as it is embedded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSource {
    /// Path below `crates/device/src`, for messages.
    pub name: &'static str,
    pub text: &'static str,
}
