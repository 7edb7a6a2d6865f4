//! Instruction sets as tokens: holding the value proves that the machine has the instructions.
//! Knows nothing of what the kernels do with them.

/// Proof that the machine has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

impl Avx2 {
    /// The token, where the machine has AVX2, FMA and F16C.
    #[must_use]
    pub fn new() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        let present = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        #[cfg(not(target_arch = "x86_64"))]
        let present = false;
        present.then_some(Self(()))
    }
}

/// Proof that the machine has AVX-512 F, VL, BW and DQ, and with them AVX2 and FMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

impl Avx512 {
    /// The token, where the machine has the whole group.
    #[must_use]
    pub fn new() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        let present = Avx2::new().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq");
        #[cfg(not(target_arch = "x86_64"))]
        let present = false;
        present.then_some(Self(()))
    }
}

/// The instruction set a kernel runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Scalar code for any machine.
    Portable,
    /// Vectors of 8 floats.
    Avx2(Avx2),
    /// Vectors of 16 floats.
    Avx512(Avx512),
}

impl Isa {
    /// The widest instruction set of this machine.
    #[must_use]
    pub fn detect() -> Self {
        let wide = Avx512::new().map(Self::Avx512);
        wide.or_else(|| Avx2::new().map(Self::Avx2)).unwrap_or(Self::Portable)
    }

    /// Every instruction set of this machine, narrowest first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let vectors = [Avx2::new().map(Self::Avx2), Avx512::new().map(Self::Avx512)];
        std::iter::once(Self::Portable).chain(vectors.into_iter().flatten()).collect()
    }
}
