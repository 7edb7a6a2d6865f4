//! Instruction sets as tokens: a value of such a type proves that the machine has the
//! instructions. This module does not depend on the kernels that use them.

/// Token that proves that the machine has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

impl Avx2 {
    /// Returns the token if the machine has AVX2, FMA and F16C.
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

/// Token that proves that the machine has AVX-512 F, VL, BW and DQ, and also AVX2 and FMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512 {
    bf16: Option<Avx512Bf16>,
}

/// Token that proves that the machine has AVX-512 and the instruction `vdpbf16ps`, which
/// multiplies pairs of bf16 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512Bf16(());

/// The method by which a CPU computes products of bf16 values. The choice affects the last bits
/// of sums, so a resumed run must keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bf16Products {
    Pairs,
    /// Widens the factors to f32, which is exact, and multiplies them with the f32 kernels.
    Widened,
}

impl Bf16Products {
    /// Returns the name under which run folders record the choice.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pairs => "vdpbf16ps",
            Self::Widened => "widened",
        }
    }

    /// Parses a name returned by [`Self::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Pairs, Self::Widened].into_iter().find(|one| one.name() == name)
    }
}

/// Returns whether the machine has the instruction `vdpbf16ps`.
fn has_pairs() -> bool {
    #[cfg(target_arch = "x86_64")]
    let present = is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    let present = false;
    present
}

/// Returns whether `vdpbf16ps` is known to be faster than f32 multiply-adds. According to the
/// measurements of `docs/decisions/0012-number-formats-on-cpus.md`, it is faster on the AMD CPUs
/// that have the instruction. Other CPUs compute in f32 until a measurement shows otherwise.
fn has_fast_pairs() -> bool {
    #[cfg(target_arch = "x86_64")]
    let is_amd = {
        let vendor = std::arch::x86_64::__cpuid(0);
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
        name.as_flattened() == b"AuthenticAMD"
    };
    #[cfg(not(target_arch = "x86_64"))]
    let is_amd = false;
    is_amd && has_pairs()
}

impl Avx512 {
    /// Returns the token if the machine has all instructions of the group.
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
        present.then_some(Self { bf16: has_fast_pairs().then_some(Avx512Bf16(())) })
    }

    /// Returns the token for bf16 products if the kernels use `vdpbf16ps`.
    #[must_use]
    pub fn bf16(self) -> Option<Avx512Bf16> {
        self.bf16
    }
}

/// The instruction set that a kernel uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Scalar code that runs on any machine.
    Portable,
    /// AVX2 and FMA, with vectors of 8 floats.
    Avx2(Avx2),
    /// AVX-512, with vectors of 16 floats.
    Avx512(Avx512),
}

impl Isa {
    /// Detects the widest instruction set of this machine.
    #[must_use]
    pub fn detect() -> Self {
        let wide = Avx512::new().map(Self::Avx512);
        wide.or_else(|| Avx2::new().map(Self::Avx2)).unwrap_or(Self::Portable)
    }

    /// Returns how the kernels of this instruction set multiply bf16 values.
    #[must_use]
    pub fn bf16_products(self) -> Bf16Products {
        match self {
            Self::Avx512(Avx512 { bf16: Some(_) }) => Bf16Products::Pairs,
            _ => Bf16Products::Widened,
        }
    }

    /// Selects another method of multiplying bf16 values. Returns `None` if the machine does not
    /// support it.
    #[must_use]
    pub fn with_bf16_products(self, products: Bf16Products) -> Option<Self> {
        match (self, products) {
            (Self::Avx512(_), Bf16Products::Widened) => Some(Self::Avx512(Avx512 { bf16: None })),
            (_, Bf16Products::Widened) => Some(self),
            (Self::Avx512(_), Bf16Products::Pairs) if has_pairs() => {
                Some(Self::Avx512(Avx512 { bf16: Some(Avx512Bf16(())) }))
            }
            (_, Bf16Products::Pairs) => None,
        }
    }

    /// Returns every instruction set of this machine, narrowest first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let vectors = [Avx2::new().map(Self::Avx2), Avx512::new().map(Self::Avx512)];
        std::iter::once(Self::Portable).chain(vectors.into_iter().flatten()).collect()
    }
}
