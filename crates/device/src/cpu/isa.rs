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
pub struct Avx512 {
    bf16: Option<Avx512Bf16>,
}

/// Proof that the machine has that and multiplies pairs of bf16 (`vdpbf16ps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512Bf16(());

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
        #[cfg(target_arch = "x86_64")]
        let pairs = is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        let pairs = false;
        present.then_some(Self { bf16: pairs.then_some(Avx512Bf16(())) })
    }

    /// The token of the products of bf16, where the machine has them.
    #[must_use]
    pub fn bf16(self) -> Option<Avx512Bf16> {
        self.bf16
    }

    /// The group alone: kernels do without the products of bf16.
    #[must_use]
    pub fn without_bf16(self) -> Self {
        Self { bf16: None }
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
