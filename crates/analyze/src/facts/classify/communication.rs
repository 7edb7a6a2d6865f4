//! Recognizes communication kernels by the words of their names. A word counts anywhere in the path
//! of namespaces and function, in snake case or camel case. Template arguments and parameters do
//! not count, because they name what a kernel works on.

/// Words in the names of kernels that reduce or exchange data between devices, each with a library
/// that uses the word. The words are written without separators.
const WORDS: [(&str, &str); 36] = [
    ("nccl", "NVIDIA/nccl: ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
    ("rccl", "ROCm/rccl"),
    ("hccl", "Habana and Ascend collectives"),
    ("hcom", "Ascend/pytorch: hcom_allReduce__123"),
    ("oneccl", "oneapi-src/oneCCL: oneccl_allreduce_..."),
    ("xccl", "intel/torch-xpu-ops: XCCL"),
    ("cncl", "Cambricon/torch_mlu: CNCL"),
    ("bkcl", "PaddlePaddle on Kunlun: BKCL"),
    ("mccl", "Moore Threads: MCCL"),
    ("msccl", "microsoft/mscclpp: mscclpp::..., microsoft/msccl"),
    ("uccl", "uccl-project/uccl"),
    ("ucc", "openucx/ucc: ucc_..._kernel"),
    ("nvshmem", "NVIDIA/nvshmem: nvshmemi_..., PyTorch's NVSHMEMSymmetricMemory"),
    ("rocshmem", "ROCm/rocSHMEM"),
    ("ishmem", "oneapi-src/ishmem"),
    ("nvls", "NVLink SHARP kernels of NCCL and TransformerEngine"),
    ("deepep", "deepseek-ai/DeepEP: deep_ep::intranode::dispatch"),
    ("pplx", "perplexityai/pplx-kernels"),
    ("mori", "ROCm/mori: mori::moe::EpDispatchIntraNodeKernel"),
    ("userbuffers", "NVIDIA/TransformerEngine: userbuffers_fp16_sum_inplace_gpu_rw"),
    ("kuserbuffers", "NVIDIA/TransformerEngine: kuserbuffers_pushrecv"),
    ("symmmem", "PyTorch: symm_mem::..."),
    ("symmetricmemory", "PyTorch: c10d::symmetric_memory::..."),
    ("multimem", "PyTorch, CUDASymmetricMemoryOps.cu: multimem_all_reduce_kernel"),
    ("putsignal", "PyTorch, CUDASymmetricMemory.cu: put_signal_kernel"),
    ("waitsignal", "PyTorch, CUDASymmetricMemory.cu: wait_signal_kernel"),
    ("crossdevicereduce", "vllm-project/vllm, sglang, ROCm/aiter: cross_device_reduce_1stage"),
    ("quickreduce", "vllm-project/vllm: quickreduce::allreduce_prototype_twoshot"),
    ("arfusion", "NVIDIA/TensorRT-LLM: tensorrt_llm::kernels::ar_fusion::..."),
    (
        "allreduce",
        "flashinfer-ai/flashinfer: allreduce_fusion_kernel_oneshot_lamport; TensorRT-LLM",
    ),
    ("allgather", "PyTorch: multimem_all_gather_kernel; TransformerEngine"),
    ("reducescatter", "ROCm/aiter: reduce_scatter_cross_device_store; TransformerEngine"),
    ("alltoall", "PyTorch: all_to_all_vdev; TensorRT-LLM: moe_alltoall"),
    ("all2all", "FBGEMM and MoE libraries: all2all_kernel"),
    ("a2a", "NVIDIA/TensorRT-LLM: moeA2ADispatchKernel"),
    ("sendrecv", "NCCL's and MSCCL++'s point-to-point kernels"),
];

/// Words such as `block` or `warp` that, before the word of an operation, show that the operation
/// stays within one kernel.
const WITHIN_A_KERNEL: [&str; 10] =
    ["block", "warp", "thread", "cta", "wave", "wavefront", "cluster", "subgroup", "lane", "tile"];

/// Maximum number of consecutive words of a name that together form one of [`WORDS`].
const LONGEST: usize = 4;

/// Returns whether a kernel with this name communicates between devices.
pub(super) fn is_name_of(kernel: &str) -> bool {
    let words = words(&mangled_path(kernel).unwrap_or_else(|| path(kernel)));
    // PyTorch's Inductor names a fused Triton kernel after the operators around it, not after what
    // it does.
    if words.first().is_some_and(|word| word == "triton") && words.iter().any(|w| w == "fused") {
        return false;
    }
    (0..words.len()).any(|at| {
        let is_within = at > 0 && WITHIN_A_KERNEL.contains(&words[at - 1].as_str());
        let joined = words[at..words.len().min(at + LONGEST)].concat();
        !is_within
            && WORDS.iter().any(|(word, _)| joined.starts_with(word) && begins(&words[at..], word))
    })
}

/// Returns whether a short word stands alone and does not begin another word, as `ucc` does in
/// `uccess`.
fn begins(words: &[String], word: &str) -> bool {
    const SHORT: usize = 4;
    word.len() > SHORT || word == "nccl" || words[0] == word || words.concat() == word
}

/// Returns the namespaces and the function of a mangled name such as `_ZN4vllm6kernelIfEEvPf`, or
/// `None` if the name is not mangled.
///
/// # Source
/// In the Itanium C++ ABI, section 5.1, each identifier is its length followed by its text, and
/// template arguments come after it.
fn mangled_path(kernel: &str) -> Option<String> {
    let mut rest = kernel.strip_prefix("_Z")?.trim_start_matches(['N', 'K', 'V']);
    let mut path = String::new();
    loop {
        rest = rest.trim_start_matches('L');
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let Ok(length) = rest[..digits].parse::<usize>() else { return Some(path) };
        let Some(identifier) = rest.get(digits..digits + length) else { return Some(path) };
        path = path + identifier + "::";
        rest = &rest[digits + length..];
    }
}

/// Returns the namespaces and the function of a kernel's name, without template arguments and
/// parameters.
fn path(kernel: &str) -> String {
    let kernel = kernel.replace("(anonymous namespace)::", "");
    let mut path = String::with_capacity(kernel.len());
    let mut depth = 0usize;
    for letter in kernel.chars() {
        match letter {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            '(' if depth == 0 => break,
            _ if depth == 0 => path.push(letter),
            _ => {}
        }
    }
    path
}

/// Returns the words of a path in lower case. For example, `twoShotAllReduce_kernel` has the words
/// `two`, `shot`, `all`, `reduce` and `kernel`.
fn words(path: &str) -> Vec<String> {
    let letters: Vec<char> = path.chars().collect();
    let mut words: Vec<String> = Vec::new();
    let mut is_open = false;
    for (at, letter) in letters.iter().enumerate() {
        if !letter.is_ascii_alphanumeric() {
            is_open = false;
            continue;
        }
        let before = at.checked_sub(1).map_or(' ', |before| letters[before]);
        // In a run of capitals such as `NCCLKernel`, the last capital begins the next word.
        let is_next_lower = letters.get(at + 1).is_some_and(char::is_ascii_lowercase);
        let is_hump = letter.is_ascii_uppercase()
            && (before.is_ascii_lowercase() || before.is_ascii_uppercase() && is_next_lower);
        if !is_open || is_hump {
            words.push(String::new());
            is_open = true;
        }
        if let Some(word) = words.last_mut() {
            word.push(letter.to_ascii_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::is_name_of;

    #[test]
    fn communication_is_known_in_any_namespace() {
        for name in [
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(T)1, 8>(P)",
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16>(float*)",
            "void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8>(Params)",
            "void tensorrt_llm::kernels::moe_alltoall::moeA2ADispatchKernel<int>(A)",
            "void tensorrt_llm::kernels::ar_fusion::fused_kernel<1>(A)",
            "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(A)",
            "void aiter::reduce_scatter_cross_device_store<half>(A)",
            "void deep_ep::intranode::dispatch<8>(A)",
            "mscclpp::allreduce8Read(A)",
            "nvshmemi_signal_wait_kernel",
            "void kuserbuffers_pushrecv(int)",
            "one_shot_all_reduce_kernel",
            "hcom_allReduce__123",
            "_ZN4vllm25cross_device_reduce_1stageI6__halfLi2EEEvPNS_8RankDataE",
            "_Z24one_shot_all_reduce_implPf",
        ] {
            assert!(is_name_of(name), "{name}");
        }
    }

    #[test]
    fn similar_compute_kernels_are_not_communication() {
        for name in [
            "void at::native::_scatter_gather_elementwise_kernel<128, 4>(A)",
            "void at::native::elementwise_kernel<AllReduceFunctor>(A)",
            "void small_reduce_kernel<float>(A)",
            "void parallel_reduce(A)",
            "void oneflow::BlockAllReduceKernel<float>(A)",
            "void layer_norm::warp_all_reduce_sum<float>(A)",
            "triton_poi_fused_all_reduce_wait_tensor_0",
            "void success_counter(A)",
            "void cub::DeviceReduceByKeyKernel<Dispatch>(A)",
            "void at::native::vectorized_gather_kernel<16, long>(A)",
            "_ZN2at6native18elementwise_kernelI9AllReduceEEvPf",
            "_ZN9oneflow20BlockAllReduceKernelIfEEvPf",
        ] {
            assert!(!is_name_of(name), "{name}");
        }
    }
}
